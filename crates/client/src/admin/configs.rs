//! Settings of topics and brokers.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::describe_configs_request::DescribeConfigsResource;
use headrace_wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use headrace_wire::messages::{DescribeConfigsRequest, IncrementalAlterConfigsRequest};

use super::job::{Answer, Calls, Job, Route, missing, settle};
use super::types::{AdminOutcome, ConfigChange, ConfigEntry, ConfigResource};
use crate::error::{Error, Place, Result};

/// `ConfigSource` of a value that nobody has set.
const SOURCE_DEFAULT: i8 = 5;

impl ConfigResource {
    /// Kafka's number for the kind of resource.
    fn kind(&self) -> i8 {
        match self {
            Self::Topic(_) => 2,
            Self::Broker(_) => 4,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Topic(name) => name.clone(),
            Self::Broker(node) => node.to_string(),
        }
    }

    fn place(&self) -> Place {
        match self {
            Self::Topic(name) => Place::topic(name),
            Self::Broker(_) => Place::NONE,
        }
    }

    /// A broker knows its own settings; those of topics any broker knows, and the controller changes.
    fn route(&self, otherwise: Route<'static>) -> Route<'static> {
        match self {
            Self::Topic(_) => otherwise,
            Self::Broker(node) => Route::Node(*node),
        }
    }

    fn verdict(&self, code: i16, message: Option<String>) -> Result<()> {
        ErrorCode::new(code).check().map_err(|code| {
            let mut detail = message.unwrap_or_default();
            if let Self::Broker(node) = self {
                detail = format!("broker {node}: {detail}");
            }
            Error::Broker { code, place: self.place(), detail }
        })
    }
}

pub(super) struct DescribeConfigs {
    resources: Vec<ConfigResource>,
    found: Vec<Option<Vec<ConfigEntry>>>,
}

impl DescribeConfigs {
    pub(super) fn new(resources: Vec<ConfigResource>) -> Self {
        let found = vec![None; resources.len()];
        Self { resources, found }
    }
}

impl Job for DescribeConfigs {
    fn what(&self) -> String {
        "reading settings".to_owned()
    }

    fn len(&self) -> usize {
        self.resources.len()
    }

    fn route(&self, item: usize) -> Route<'_> {
        self.resources[item].route(Route::Any)
    }

    fn place(&self, item: usize) -> Place {
        self.resources[item].place()
    }

    fn unknown_topic_tries(&self) -> u32 {
        3
    }

    fn send(&self, calls: Calls<'_>) {
        let resource = |&item: &usize| DescribeConfigsResource {
            resource_type: self.resources[item].kind(),
            resource_name: self.resources[item].name(),
            configuration_keys: None,
        };
        let resources = calls.items.iter().map(resource).collect();
        calls.call(DescribeConfigsRequest { resources, ..Default::default() });
    }

    fn receive(&mut self, items: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let mut response = answer.decode::<DescribeConfigsRequest>()?;
        let mut take = |&item: &usize| {
            let resource = &self.resources[item];
            let name = resource.name();
            let mut results = response.results.iter_mut();
            let result = results.find(|r| r.resource_type == resource.kind() && r.resource_name == name);
            let result = result.ok_or_else(|| missing(answer, &format!("'{name}'")))?;
            resource.verdict(result.error_code, result.error_message.take())?;
            let entry =
                |c: headrace_wire::messages::describe_configs_response::DescribeConfigsResourceResult| {
                    ConfigEntry {
                        name: c.name,
                        value: c.value,
                        read_only: c.read_only,
                        sensitive: c.is_sensitive,
                        is_default: c.config_source == SOURCE_DEFAULT,
                    }
                };
            self.found[item] = Some(std::mem::take(&mut result.configs).into_iter().map(entry).collect());
            Ok(())
        };
        Ok(items.iter().map(&mut take).collect())
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        let results = self.resources.into_iter().zip(self.found).zip(errors);
        let results = results.map(|((resource, found), error)| (resource, settle(found, error)));
        Ok(AdminOutcome::Configs(results.collect()))
    }
}

pub(super) struct AlterConfigs {
    changes: Vec<(ConfigResource, Vec<(String, ConfigChange)>)>,
    validate_only: bool,
}

impl AlterConfigs {
    pub(super) fn new(
        changes: Vec<(ConfigResource, Vec<(String, ConfigChange)>)>,
        validate_only: bool,
    ) -> Self {
        Self { changes, validate_only }
    }
}

impl Job for AlterConfigs {
    fn what(&self) -> String {
        "changing settings".to_owned()
    }

    fn len(&self) -> usize {
        self.changes.len()
    }

    fn route(&self, item: usize) -> Route<'_> {
        self.changes[item].0.route(Route::Controller)
    }

    fn place(&self, item: usize) -> Place {
        self.changes[item].0.place()
    }

    fn send(&self, calls: Calls<'_>) {
        let alter = |(name, change): &(String, ConfigChange)| {
            let (config_operation, value) = match change {
                ConfigChange::Set(value) => (0, Some(value.clone())),
                ConfigChange::Delete => (1, None),
                ConfigChange::Append(value) => (2, Some(value.clone())),
                ConfigChange::Subtract(value) => (3, Some(value.clone())),
            };
            AlterableConfig { name: name.clone(), config_operation, value }
        };
        let resource = |&item: &usize| {
            let (resource, changes) = &self.changes[item];
            AlterConfigsResource {
                resource_type: resource.kind(),
                resource_name: resource.name(),
                configs: changes.iter().map(alter).collect(),
            }
        };
        let resources = calls.items.iter().map(resource).collect();
        calls.call(IncrementalAlterConfigsRequest { resources, validate_only: self.validate_only });
    }

    fn receive(&mut self, items: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let mut response = answer.decode::<IncrementalAlterConfigsRequest>()?;
        let verdict = |&item: &usize| {
            let (resource, _) = &self.changes[item];
            let name = resource.name();
            let mut results = response.responses.iter_mut();
            let result = results.find(|r| r.resource_type == resource.kind() && r.resource_name == name);
            let result = result.ok_or_else(|| missing(answer, &format!("'{name}'")))?;
            resource.verdict(result.error_code, result.error_message.take())
        };
        Ok(items.iter().map(verdict).collect())
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        let results = self.changes.into_iter().zip(errors);
        let results = results.map(|((resource, _), error)| (resource, settle(Some(()), error)));
        Ok(AdminOutcome::Altered(results.collect()))
    }
}
