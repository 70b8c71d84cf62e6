//! Time as an argument: sans-IO code never reads a clock.

/// The moment an event happened, as its driver saw it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since the driver started. For deadlines; never goes back.
    pub mono_ms: u64,
    /// Milliseconds since the Unix epoch. Only written into records and compared with record timestamps, since it
    /// may jump in both directions.
    pub wall_ms: i64,
}
