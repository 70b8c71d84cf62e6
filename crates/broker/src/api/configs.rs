//! `DescribeConfigs`, `AlterConfigs`, `IncrementalAlterConfigs`: settings of topics, and read-only settings of the
//! broker.

use std::collections::{BTreeMap, HashSet, VecDeque};

use headrace_log::Disk;
use headrace_options::{Row, Type};
use headrace_wire::address::HostPort;
use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::alter_configs_response::AlterConfigsResourceResponse;
use headrace_wire::messages::describe_configs_request::DescribeConfigsResource;
use headrace_wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use headrace_wire::messages::{
    AlterConfigsRequest, AlterConfigsResponse, DescribeConfigsRequest, DescribeConfigsResponse,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, alter_configs_request,
    incremental_alter_configs_request, incremental_alter_configs_response,
};

use super::Refusal;
use crate::auth::{Operation, Resource};
use crate::config::BrokerConfig;
use crate::context::call::{Call, Outcome};
use crate::context::task::{Each, Task, Turn};
use crate::context::waiting::Awaited;
use crate::context::{Change, Context};
use crate::distinct::{distinct, repeated};
use crate::lacking::lacks;
use crate::store::{Topic, check_name};
use crate::topic_config::{self, DefaultOf, TOPIC_OPTIONS, TopicOption};

/// Kafka's resource types.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// Kafka's resource types that this broker has none of, in its words for them.
const LACKING: [(i8, &str); 3] =
    [(8, "loggers to set"), (16, "client metrics subscriptions"), (32, "settings of groups")];

/// Kafka's sources of a value.
const OF_TOPIC: i8 = 1;
const OF_BROKER_FILE: i8 = 4;
const OF_DEFAULT: i8 = 5;

/// Operations of `IncrementalAlterConfigs`.
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// Resources whose settings are answered in one turn.
const DESCRIBED_PER_TURN: usize = 32;
/// Memory that the settings of one answer may take before it is encoded, about; what a request names beyond that is
/// refused. It is some five thousand topics.
const DESCRIBED_BYTES_MAX: usize = 24 << 20;
/// What a string or list takes beside its bytes, about.
const FIELD_OVERHEAD_BYTES: usize = 40;

/// What is answered beside the settings themselves.
#[derive(Clone, Copy)]
struct Detail {
    synonyms: bool,
    documentation: bool,
}

/// A `DescribeConfigs` request under way.
pub(crate) struct DescribeConfigs {
    items: VecDeque<DescribeConfigsResource>,
    detail: Detail,
    /// What the answer takes so far.
    bytes: usize,
    response: DescribeConfigsResponse,
}

impl<D: Disk> Task<D> for DescribeConfigs {
    fn turn(&mut self, (): &mut (), context: &mut Context<D>, call: &Call) -> Turn {
        for _ in 0..DESCRIBED_PER_TURN {
            let Some(resource) = self.items.pop_front() else { break };
            let described = if self.bytes < DESCRIBED_BYTES_MAX {
                describe_resource(context, call, &resource, self.detail)
            } else {
                let why = "the answer would be too large: describe fewer resources in one request";
                Err((ErrorCode::INVALID_REQUEST, why.to_owned()))
            };
            let mut result = DescribeConfigsResult {
                resource_type: resource.resource_type,
                resource_name: resource.resource_name,
                error_message: None,
                ..DescribeConfigsResult::default()
            };
            match described {
                Ok(configs) => {
                    self.bytes += configs.iter().map(cost_of).sum::<usize>();
                    result.configs = configs;
                }
                Err((error, why)) => {
                    result.error_code = error.code();
                    result.error_message = Some(why);
                }
            }
            self.response.results.push(result);
        }
        if !self.items.is_empty() {
            return Turn::More;
        }
        context.reply::<DescribeConfigsRequest>(call, &self.response);
        Turn::Done
    }
}

/// An `AlterConfigs` request under way: by resource, whether it stands there once, and whether it is only to be checked.
type AlterConfigs<D> = Each<
    D,
    (),
    AlterConfigsRequest,
    (alter_configs_request::AlterConfigsResource, Result<(), Refusal>, bool),
>;

/// The same of `IncrementalAlterConfigs`.
type IncrementalAlterConfigs<D> = Each<
    D,
    (),
    IncrementalAlterConfigsRequest,
    (incremental_alter_configs_request::AlterConfigsResource, Result<(), Refusal>, bool),
>;

/// Memory that the answer about a setting takes, about.
fn cost_of(config: &DescribeConfigsResourceResult) -> usize {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len) + FIELD_OVERHEAD_BYTES;
    let synonyms = config.synonyms.iter().map(|s| s.name.len() + FIELD_OVERHEAD_BYTES + text(&s.value));
    let own = config.name.len() + 2 * FIELD_OVERHEAD_BYTES;
    own + text(&config.value) + text(&config.documentation) + synonyms.sum::<usize>()
}

/// What has settings.
enum Target<'a, D: Disk> {
    Topic(&'a Topic<D>),
    Broker,
}

/// A topic's value of a setting.
pub(super) fn effective(
    option: &TopicOption,
    overrides: &BTreeMap<String, String>,
    config: &BrokerConfig,
) -> String {
    overrides.get(option.name).cloned().unwrap_or_else(|| option.default_value(config))
}

/// Where a topic's value of a setting comes from.
pub(super) fn source_of(
    option: &TopicOption,
    overrides: &BTreeMap<String, String>,
    config: &BrokerConfig,
) -> i8 {
    match option.default {
        _ if overrides.contains_key(option.name) => OF_TOPIC,
        DefaultOf::Broker(name) => broker_source(name, config),
        DefaultOf::Fixed(_) => OF_DEFAULT,
    }
}

fn broker_source(name: &str, config: &BrokerConfig) -> i8 {
    let default = BrokerConfig::ROWS.iter().find(|row| row.name == name).and_then(|row| row.default);
    if config.get(name).as_deref() == default { OF_DEFAULT } else { OF_BROKER_FILE }
}

/// Each resource may stand once in a request, and each setting once in a resource.
fn check_once<'a>(
    twice: &HashSet<(i8, String)>,
    kind: i8,
    name: &str,
    settings: impl Iterator<Item = &'a String>,
) -> Result<(), Refusal> {
    let why = if twice.contains(&(kind, name.to_owned())) {
        "Each resource must appear at most once."
    } else if !repeated(settings).is_empty() {
        "Error due to duplicate config keys"
    } else {
        return Ok(());
    };
    Err((ErrorCode::INVALID_REQUEST, why.to_owned()))
}

fn no_value(setting: &str) -> Refusal {
    (ErrorCode::INVALID_REQUEST, format!("Null value not supported for topic configs: {setting}"))
}

/// What Kafka says of a broker's id that is none, or another's.
fn not_this_broker(kind: &str, name: &str, expected: &str) -> String {
    if name.parse::<i32>().is_ok() {
        format!("Unexpected broker id, expected {expected}, but received {name}")
    } else {
        format!("{kind} id must be an integer, but it is: {name}")
    }
}

/// Answers settings.
///
/// Most work: in turns, all settings of [`DESCRIBED_PER_TURN`] resources, of which [`DESCRIBED_BYTES_MAX`] of answers
/// are made, and encoded at once at the end.
pub(crate) fn describe_configs<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: DescribeConfigsRequest,
) -> Outcome<DescribeConfigsResponse, DescribeConfigs> {
    let detail = Detail { synonyms: request.include_synonyms, documentation: request.include_documentation };
    let items = distinct(request.resources, |r| (r.resource_type, r.resource_name.clone())).collect();
    let task = DescribeConfigs { items, detail, bytes: 0, response: DescribeConfigsResponse::default() };
    task.begin(&mut (), context, call)
}

fn describe_resource<D: Disk>(
    context: &Context<D>,
    call: &Call,
    resource: &DescribeConfigsResource,
    detail: Detail,
) -> Result<Vec<DescribeConfigsResourceResult>, Refusal> {
    let name = &resource.resource_name;
    let keys = resource.configuration_keys.as_deref();
    let wanted = |name: &str| keys.is_none_or(|keys| keys.iter().any(|key| key == name));
    match config_target(context, call, Operation::DescribeConfigs, resource.resource_type, name)? {
        Target::Topic(topic) => {
            let options = TOPIC_OPTIONS.iter().filter(|option| wanted(option.name));
            Ok(options.map(|option| topic_option(context, option, &topic.overrides, detail)).collect())
        }
        // An empty name asks for the defaults of all brokers, of which there are none.
        Target::Broker if name.is_empty() => Ok(Vec::new()),
        Target::Broker if *name == context.config.node_id.to_string() => {
            let options = BrokerConfig::ROWS.iter().map(|row| broker_option(context, row, detail));
            let options = options.chain([advertised_listeners(context, detail)]);
            Ok(options.filter(|option| wanted(&option.name)).collect())
        }
        Target::Broker => {
            let expected = format!("{} or empty string", context.config.node_id);
            Err((ErrorCode::INVALID_REQUEST, not_this_broker("Broker", name, &expected)))
        }
    }
}

/// What a request about settings names, if the caller may do `operation` with it.
fn config_target<'a, D: Disk>(
    context: &'a Context<D>,
    call: &Call,
    operation: Operation,
    kind: i8,
    name: &str,
) -> Result<Target<'a, D>, Refusal> {
    match kind {
        TOPIC if context.allows(call, operation, Resource::Topic(name)) => {
            check_name(name).map_err(|why| (ErrorCode::INVALID_TOPIC_EXCEPTION, why))?;
            let why = || format!("The topic '{name}' does not exist.");
            let found = context.store.by_name(name).map(Target::Topic);
            found.ok_or_else(|| (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, why()))
        }
        TOPIC => Err((ErrorCode::TOPIC_AUTHORIZATION_FAILED, format!("not authorized: topic {name}"))),
        BROKER if context.allows(call, operation, Resource::Cluster) => Ok(Target::Broker),
        BROKER => Err((ErrorCode::CLUSTER_AUTHORIZATION_FAILED, "not authorized: cluster".to_owned())),
        other => {
            let known = LACKING.iter().find(|(kind, _)| *kind == other);
            let why = known.map_or_else(|| format!("Unknown resource type {other}"), |(_, what)| lacks(what));
            Err((ErrorCode::INVALID_REQUEST, why))
        }
    }
}

fn topic_option<D: Disk>(
    context: &Context<D>,
    option: &TopicOption,
    overrides: &BTreeMap<String, String>,
    detail: Detail,
) -> DescribeConfigsResourceResult {
    let mut synonyms = Vec::new();
    if let Some(value) = overrides.get(option.name).filter(|_| detail.synonyms) {
        let (name, value) = (option.name.to_owned(), Some(value.clone()));
        synonyms.push(DescribeConfigsSynonym { name, value, source: OF_TOPIC });
    }
    if let DefaultOf::Broker(name) = option.default
        && detail.synonyms
    {
        let source = broker_source(name, &context.config);
        let value = context.config.get(name);
        synonyms.push(DescribeConfigsSynonym { name: name.to_owned(), value, source });
    }
    DescribeConfigsResourceResult {
        name: option.name.to_owned(),
        value: Some(effective(option, overrides, &context.config)),
        read_only: false,
        config_source: source_of(option, overrides, &context.config),
        is_sensitive: false,
        synonyms,
        config_type: option.kind.id(),
        documentation: detail.documentation.then(|| option.sentence().into_owned()),
    }
}

/// Kafka's one setting for our host and port: admin tools look there for a broker's address.
fn advertised_listeners<D: Disk>(context: &Context<D>, detail: Detail) -> DescribeConfigsResourceResult {
    let at = HostPort { host: &context.config.advertised_host, port: context.config.advertised_port };
    DescribeConfigsResourceResult {
        name: "advertised.listeners".to_owned(),
        value: Some(format!("PLAINTEXT://{at}")),
        read_only: true,
        config_source: OF_BROKER_FILE,
        is_sensitive: false,
        synonyms: Vec::new(),
        config_type: Type::List.id(),
        documentation: detail.documentation.then(|| "where clients are told to connect.".to_owned()),
    }
}

fn broker_option<D: Disk>(context: &Context<D>, row: &Row, detail: Detail) -> DescribeConfigsResourceResult {
    let value = context.config.get(row.name);
    let source = broker_source(row.name, &context.config);
    let name = row.name.to_owned();
    let own = || DescribeConfigsSynonym { name: name.clone(), value: value.clone(), source };
    let synonyms = detail.synonyms.then(own).into_iter().collect();
    DescribeConfigsResourceResult {
        name,
        value,
        read_only: true,
        config_source: source,
        is_sensitive: false,
        synonyms,
        config_type: row.config_type.id(),
        documentation: detail.documentation.then(|| row.sentence.to_owned()),
    }
}

/// Why a change of a topic is answered with an error that may pass.
const NOT_DONE: &str =
    "the cluster's metadata store has not taken the change: look whether it was made, and try again";

/// Replaces all settings of topics.
///
/// Most work: one topic a turn, with a write of the state file.
pub(crate) fn alter_configs<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: AlterConfigsRequest,
) -> Outcome<AlterConfigsResponse, AlterConfigs<D>> {
    let repeated = repeated(request.resources.iter().map(|r| (r.resource_type, r.resource_name.clone())));
    let items = request.resources.into_iter().map(|resource| {
        let names = resource.configs.iter().map(|c| &c.name);
        let once = check_once(&repeated, resource.resource_type, &resource.resource_name, names);
        (resource, once, request.validate_only)
    });
    let response = AlterConfigsResponse::default();
    let task = AlterConfigs::new(1, items.collect(), response, |(), context, call, item, response| {
        let (resource, once, dry) = item;
        let name = &resource.resource_name;
        let result =
            once.and_then(|()| alter_target(context, call, resource.resource_type, name)).and_then(|_| {
                let mut overrides = BTreeMap::new();
                for config in resource.configs {
                    overrides
                        .insert(config.name.clone(), config.value.ok_or_else(|| no_value(&config.name))?);
                }
                apply_overrides(context, call, name, overrides, (dry, response.responses.len()))
            });
        let (error, why) = result.err().map_or((ErrorCode::NONE, None), |(e, why)| (e, Some(why)));
        response.responses.push(AlterConfigsResourceResponse {
            error_code: error.code(),
            error_message: why,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
        });
    });
    let task = task.then(|(), context, call, response| {
        let asked = context.take_asked(call);
        context.reply_when_reached::<AlterConfigsRequest>(
            call,
            response,
            asked,
            None,
            |response, slot, failure| {
                if let Some(answer) = response.responses.get_mut(slot.0) {
                    (answer.error_code, answer.error_message) =
                        (failure.error.code(), Some(NOT_DONE.to_owned()));
                }
            },
        )
    });
    task.begin(&mut (), context, call)
}

/// Changes settings of topics one by one.
///
/// Most work: one topic a turn, with a write of the state file.
pub(crate) fn incremental_alter_configs<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    request: IncrementalAlterConfigsRequest,
) -> Outcome<IncrementalAlterConfigsResponse, IncrementalAlterConfigs<D>> {
    let repeated = repeated(request.resources.iter().map(|r| (r.resource_type, r.resource_name.clone())));
    let items = request.resources.into_iter().map(|resource| {
        let names = resource.configs.iter().map(|c| &c.name);
        let once = check_once(&repeated, resource.resource_type, &resource.resource_name, names);
        (resource, once, request.validate_only)
    });
    let response = IncrementalAlterConfigsResponse::default();
    let task =
        IncrementalAlterConfigs::new(1, items.collect(), response, |(), context, call, item, response| {
            let (resource, once, dry) = item;
            let name = resource.resource_name;
            let kind = resource.resource_type;
            // A broker has no settings of its own: nothing is to be taken back, as Kafka's tools do after a move.
            let is_empty =
                kind == BROKER && resource.configs.iter().all(|one| one.config_operation == DELETE);
            let result = once.and_then(|()| {
                if is_empty {
                    return config_target(context, call, Operation::AlterConfigs, kind, &name).map(drop);
                }
                let mut overrides = alter_target(context, call, kind, &name)?;
                for config in resource.configs {
                    change(context, &mut overrides, &config.name, config.config_operation, config.value)?;
                }
                apply_overrides(context, call, &name, overrides, (dry, response.responses.len()))
            });
            let (error, why) = result.err().map_or((ErrorCode::NONE, None), |(e, why)| (e, Some(why)));
            response.responses.push(incremental_alter_configs_response::AlterConfigsResourceResponse {
                error_code: error.code(),
                error_message: why,
                resource_type: resource.resource_type,
                resource_name: name,
            });
        });
    let task = task.then(|(), context, call, response| {
        let (asked, none) = (context.take_asked(call), None);
        context.reply_when_reached::<IncrementalAlterConfigsRequest>(
            call,
            response,
            asked,
            none,
            |response, slot, failure| {
                if let Some(answer) = response.responses.get_mut(slot.0) {
                    (answer.error_code, answer.error_message) =
                        (failure.error.code(), Some(NOT_DONE.to_owned()));
                }
            },
        )
    });
    task.begin(&mut (), context, call)
}

/// The settings that a topic has of its own, if the caller may change them.
fn alter_target<D: Disk>(
    context: &Context<D>,
    call: &Call,
    kind: i8,
    name: &str,
) -> Result<BTreeMap<String, String>, Refusal> {
    if kind == TOPIC && name.is_empty() {
        return Err((ErrorCode::INVALID_REQUEST, "Default topic resources are not allowed.".to_owned()));
    }
    match config_target(context, call, Operation::AlterConfigs, kind, name)? {
        Target::Topic(topic) => Ok(topic.overrides.clone()),
        Target::Broker => {
            let here = context.config.node_id.to_string();
            let why = if name.is_empty() || *name == here {
                "This broker's settings are given when it starts: docs/broker.md".to_owned()
            } else {
                not_this_broker("Node", name, &here)
            };
            Err((ErrorCode::INVALID_REQUEST, why))
        }
    }
}

fn change<D: Disk>(
    context: &Context<D>,
    overrides: &mut BTreeMap<String, String>,
    name: &str,
    operation: i8,
    value: Option<String>,
) -> Result<(), Refusal> {
    if !(SET..=SUBTRACT).contains(&operation) {
        let why = format!("Unknown operation {operation} on {name}");
        return Err((ErrorCode::INVALID_REQUEST, why));
    }
    if operation == DELETE {
        overrides.remove(name);
        return Ok(());
    }
    let value = value.ok_or_else(|| no_value(name))?;
    if operation == SET {
        overrides.insert(name.to_owned(), value);
        return Ok(());
    }
    let Some(option) = topic_config::find(name).filter(|o| o.kind == Type::List) else {
        let operation = if operation == APPEND { "APPEND" } else { "SUBTRACT" };
        let why = format!("Can't {operation} to key {name} because its type is not LIST.");
        return Err((ErrorCode::INVALID_CONFIG, why));
    };
    let now = effective(option, overrides, &context.config);
    let mut words: Vec<&str> = now.split(',').map(str::trim).filter(|w| !w.is_empty()).collect();
    for word in value.split(',').map(str::trim) {
        words.retain(|w| *w != word);
        if operation == APPEND {
            words.push(word);
        }
    }
    overrides.insert(name.to_owned(), words.join(","));
    Ok(())
}

fn apply_overrides<D: Disk>(
    context: &mut Context<D>,
    call: &Call,
    topic: &str,
    overrides: BTreeMap<String, String>,
    (dry, slot): (bool, usize),
) -> Result<(), Refusal> {
    topic_config::check_all(&overrides).map_err(|why| (ErrorCode::INVALID_CONFIG, why))?;
    if dry {
        return Ok(());
    }
    if let Some(cluster) = &mut context.cluster {
        let asked = cluster.member.alter_topic(context.now.mono_ms, topic, Some(overrides), &[]);
        let command = asked.map_err(|why| (ErrorCode::REQUEST_TIMED_OUT, why))?;
        cluster.asked.push((call.token, Awaited::done((slot, 0), command)));
        return Ok(());
    }
    context.store.set_overrides(&context.config, topic, overrides).map_err(|e| {
        (ErrorCode::KAFKA_STORAGE_ERROR, format!("settings of {topic} cannot be stored: {e}"))
    })?;
    if let Some(id) = context.store.by_name(topic).map(|topic| topic.id) {
        context.changes.push_back(Change::TopicConfigured(id));
    }
    Ok(())
}
