//! A partition's log in Kafka's segment format: segments, indexes, recovery, retention.
#![forbid(unsafe_code)]
