//! Settings of topics, brokers and groups.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::describe_configs_request::DescribeConfigsResource;
use headrace_wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use headrace_wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use headrace_wire::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use headrace_wire::messages::{DescribeConfigsRequest, IncrementalAlterConfigsRequest};

use super::job::{Answer, Calls, Found, Question, Route};
use super::types::{AdminOutcome, ConfigChange, ConfigEntry, ConfigResource};
use crate::error::{Error, Result};

/// `ConfigSource` of a value that nobody has set.
const SOURCE_DEFAULT: i8 = 5;

impl ConfigResource {
    /// Kafka's number for the kind of resource.
    fn kind(&self) -> i8 {
        match self {
            Self::Topic(_) => 2,
            Self::Broker(_) => 4,
            Self::Group(_) => 32,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Topic(name) | Self::Group(name) => name.clone(),
            Self::Broker(node) => node.to_string(),
        }
    }

    /// The resource that an answer names.
    fn of(kind: i8, name: String) -> Option<Self> {
        match kind {
            2 => Some(Self::Topic(name)),
            4 => name.parse().ok().map(Self::Broker),
            32 => Some(Self::Group(name)),
            _ => None,
        }
    }

    fn title(&self) -> String {
        match self {
            Self::Topic(name) => format!("topic '{name}'"),
            Self::Broker(node) => format!("broker {node}"),
            Self::Group(name) => format!("group '{name}'"),
        }
    }

    /// A broker knows its own settings; those of topics and groups any broker knows, and the controller changes.
    fn route(&self, otherwise: Route<'static>) -> Route<'static> {
        match self {
            Self::Topic(_) | Self::Group(_) => otherwise,
            Self::Broker(node) => Route::Node(*node),
        }
    }

    fn verdict(&self, code: i16, message: Option<String>) -> Result<()> {
        ErrorCode::new(code).check().map_err(|code| {
            let detail = message.unwrap_or_default();
            match self {
                Self::Topic(name) => Error::topic(code, name, detail),
                Self::Broker(_) | Self::Group(_) => {
                    Error::broker(code, format!("{}: {detail}", self.title()))
                }
            }
        })
    }
}

/// All settings of topics, brokers and groups.
pub(super) struct DescribeConfigs;

impl Question for DescribeConfigs {
    type Key = ConfigResource;
    type Item = ();
    type Value = Vec<ConfigEntry>;

    const UNKNOWN_TOPIC_TRIES: u32 = 3;

    fn what(&self) -> String {
        "reading settings".to_owned()
    }

    fn route<'a>(&'a self, resource: &'a ConfigResource) -> Route<'a> {
        resource.route(Route::Any)
    }

    fn name(&self, resource: &ConfigResource) -> String {
        resource.title()
    }

    fn ask(&self, items: &[&(ConfigResource, ())], calls: Calls<'_>) {
        let resource = |(resource, ()): &&(ConfigResource, ())| DescribeConfigsResource {
            resource_type: resource.kind(),
            resource_name: resource.name(),
            configuration_keys: None,
        };
        let resources = items.iter().map(resource).collect();
        calls.call(DescribeConfigsRequest { resources, ..Default::default() });
    }

    fn read(&self, answer: &Answer) -> Result<Found<Self>> {
        let entry = |c: DescribeConfigsResourceResult| ConfigEntry {
            name: c.name,
            value: c.value,
            read_only: c.read_only,
            sensitive: c.is_sensitive,
            is_default: c.config_source == SOURCE_DEFAULT,
        };
        let one = |r: DescribeConfigsResult| {
            let resource = ConfigResource::of(r.resource_type, r.resource_name)?;
            let verdict = resource.verdict(r.error_code, r.error_message);
            Some((resource, verdict.map(|()| r.configs.into_iter().map(entry).collect())))
        };
        Ok(answer.decode::<DescribeConfigsRequest>()?.results.into_iter().filter_map(one).collect())
    }

    fn outcome(&self, results: Found<Self>) -> AdminOutcome {
        AdminOutcome::Configs(results)
    }
}

/// Changes settings of topics, brokers and groups.
pub(super) struct AlterConfigs {
    pub(super) validate_only: bool,
}

impl Question for AlterConfigs {
    type Key = ConfigResource;
    type Item = Vec<(String, ConfigChange)>;
    type Value = ();

    fn what(&self) -> String {
        "changing settings".to_owned()
    }

    fn route<'a>(&'a self, resource: &'a ConfigResource) -> Route<'a> {
        resource.route(Route::Controller)
    }

    fn name(&self, resource: &ConfigResource) -> String {
        resource.title()
    }

    fn ask(&self, items: &[&(ConfigResource, Self::Item)], calls: Calls<'_>) {
        let alter = |(name, change): &(String, ConfigChange)| {
            let (config_operation, value) = match change {
                ConfigChange::Set(value) => (0, Some(value.clone())),
                ConfigChange::Delete => (1, None),
                ConfigChange::Append(value) => (2, Some(value.clone())),
                ConfigChange::Subtract(value) => (3, Some(value.clone())),
            };
            AlterableConfig { name: name.clone(), config_operation, value }
        };
        let resource = |(resource, changes): &&(ConfigResource, Self::Item)| AlterConfigsResource {
            resource_type: resource.kind(),
            resource_name: resource.name(),
            configs: changes.iter().map(alter).collect(),
        };
        let resources = items.iter().map(resource).collect();
        calls.call(IncrementalAlterConfigsRequest { resources, validate_only: self.validate_only });
    }

    fn read(&self, answer: &Answer) -> Result<Found<Self>> {
        let responses = answer.decode::<IncrementalAlterConfigsRequest>()?.responses.into_iter();
        let one = |r: AlterConfigsResourceResponse| {
            let resource = ConfigResource::of(r.resource_type, r.resource_name)?;
            let verdict = resource.verdict(r.error_code, r.error_message);
            Some((resource, verdict))
        };
        Ok(responses.filter_map(one).collect())
    }

    fn outcome(&self, results: Found<Self>) -> AdminOutcome {
        AdminOutcome::Altered(results)
    }
}
