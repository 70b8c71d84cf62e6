//! Time, as engines wait for it: what is tried again, and when an engine is to be woken.

mod retry;
mod table;

pub(crate) use self::retry::{Backoff, Jitter, Retry};
pub(crate) use self::table::TimerTable;
