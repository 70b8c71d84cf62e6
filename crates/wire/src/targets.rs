//! The targets of log events: what a line is about, and so what `HEADRACE_LOG` and Python's loggers are named after.
//!
//! Every event of the project has one of these. docs/logging.md says what each one tells on which level.

/// Connections to brokers: made, lost, closed, tried again; each request and answer.
pub const CONNECTION: &str = "headrace::connection";
/// What a client knows of the cluster: brokers, topics, leaders.
pub const METADATA: &str = "headrace::metadata";
/// Fetches, positions and commits of a consumer.
pub const CONSUMER: &str = "headrace::consumer";
/// Batches, retries and transactions of a producer.
pub const PRODUCER: &str = "headrace::producer";
/// Share consumers: sessions, acquired records, acknowledgements.
pub const SHARE: &str = "headrace::share";
/// Coordinators, members and assignments, of clients and of the broker.
pub const GROUP: &str = "headrace::group";
/// One-sided links, of clients and of the broker.
pub const LINK: &str = "headrace::link";
/// The broker: its life, its connections, its requests.
pub const BROKER: &str = "headrace::broker";
/// The log: recovery, damage, retention.
pub const LOG: &str = "headrace::log";

/// All of them.
pub const ALL: [&str; 9] = [CONNECTION, METADATA, CONSUMER, PRODUCER, SHARE, GROUP, LINK, BROKER, LOG];

/// The place of a target in [`ALL`]; `None` for one that is not ours.
#[must_use]
pub fn index(target: &str) -> Option<usize> {
    ALL.iter().position(|known| *known == target)
}
