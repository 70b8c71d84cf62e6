//! The client as sans-IO state machines: connection, cluster, producer, consumer, groups, admin.
#![forbid(unsafe_code)]
