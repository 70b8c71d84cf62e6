//! The Java class path of the tests against Kafka's own classes.

use std::env;
use std::ffi::OsString;

/// The Java class path with Apache Kafka, which `make test` sets.
pub(crate) fn classpath() -> OsString {
    env::var_os("HEADRACE_KAFKA_CLASSPATH").expect(
        "HEADRACE_KAFKA_CLASSPATH must hold a Java class path with kafka-clients and kafka-group-coordinator 4.3.1; \
         `make test` sets it",
    )
}
