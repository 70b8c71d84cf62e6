//! What a cluster has agreed to do, and what its brokers could (KIP-584): a part of the answer to ApiVersions.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::ApiVersionsRequest;

use super::job::{Answer, Calls, Job, Route, settle};
use super::types::{AdminOutcome, FeatureMetadata};
use crate::error::{Error, Result};

#[derive(Default)]
pub(super) struct DescribeFeatures {
    found: Option<FeatureMetadata>,
}

impl Job for DescribeFeatures {
    fn what(&self) -> String {
        "describing the features".to_owned()
    }

    fn len(&self) -> usize {
        1
    }

    fn route(&self, _: usize) -> Route<'_> {
        Route::Any
    }

    fn send(&self, calls: Calls<'_>) {
        calls.call(ApiVersionsRequest {
            client_software_name: "headrace".to_owned(),
            client_software_version: env!("CARGO_PKG_VERSION").to_owned(),
        });
    }

    fn receive(&mut self, _: &[usize], answer: &Answer) -> Result<Vec<Result<()>>> {
        let response = answer.decode::<ApiVersionsRequest>()?;
        let code = ErrorCode::new(response.error_code);
        if !code.is_none() {
            return Err(Error::broker(code, String::new()));
        }
        // Features may be missing, where a broker is older than they are; requests are not.
        if response.api_keys.is_empty() {
            return Err(answer.lacks("all requests"));
        }
        let mut found = FeatureMetadata {
            finalized: response
                .finalized_features
                .into_iter()
                .map(|f| (f.name, f.max_version_level))
                .collect(),
            supported: response
                .supported_features
                .into_iter()
                .map(|f| (f.name, (f.min_version, f.max_version)))
                .collect(),
        };
        found.finalized.sort();
        found.supported.sort();
        self.found = Some(found);
        Ok(vec![Ok(())])
    }

    fn finish(self: Box<Self>, errors: Vec<Option<Error>>) -> Result<AdminOutcome> {
        settle(self.found, errors.into_iter().flatten().next()).map(AdminOutcome::Features)
    }
}
