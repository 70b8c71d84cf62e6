//! Options: one table of rows gives the typed structs, the checks, the error messages and the reference page.

mod known;
mod page;
mod role;
mod security;
mod security_checks;
mod table;
#[cfg(test)]
mod tests;
mod value;

pub use headrace_options::{Kind, Row};

pub use self::page::page;
pub use self::role::Role;
pub use self::security::{Mechanism, Secret, SecurityProtocol};
pub use self::table::{AdminConfig, CommonConfig, ConsumerConfig, ProducerConfig, ShareConfig, rows};
pub use self::value::{
    AcknowledgementMode, Acks, AcquireMode, Assignor, AutoOffsetReset, BrokerShare, CompressionType,
    Datapath, Endpoint, GroupProtocol, IsolationLevel, OnBadRecords, Partitioner, RecoveryStrategy,
    ValueType,
};
