//! What a broker counts, for its metrics.

/// What has happened since the broker started.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    /// Bytes of batches that clients have sent.
    pub(crate) bytes_in: u64,
    /// The same that were copied from leaders.
    pub(crate) replication_bytes_in: u64,
    /// In-sync sets of partitions that it leads that became smaller, and larger.
    pub(crate) isr_shrinks: u64,
    pub(crate) isr_expands: u64,
}
