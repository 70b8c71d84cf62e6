//! What a run came to, in counts.

use headrace_client::testing::share::Counts;

use crate::consumer::Tally;

/// What a run came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Records that callers gave.
    pub records: usize,
    /// Those that came in as rows of Arrow batches and were taken.
    pub rows: usize,
    /// Those of all that were confirmed.
    pub acked: usize,
    /// Batches that a node refused since it did not lead, or did not know that it did.
    pub refused: usize,
    /// Syncs that failed.
    pub syncs_failed: usize,
    /// Syncs that succeeded and wrote nothing.
    pub syncs_lied: usize,
    /// Records that went with the power since syncs had lied.
    pub lost: usize,
    /// Segments that were closed, of all logs in the end.
    pub segments: usize,
    /// Records that came through to their node while another one did nothing.
    pub lively: usize,
    /// What consumers did.
    pub read: Tally,
    /// What became of the records of share groups.
    pub shared: Shared,
    /// What came of memory that the broker exposed.
    pub exposed: Exposed,
    /// Events that were simulated.
    pub events: u64,
    /// Stands for all that happened: two runs of a seed have the same.
    pub digest: u64,
}

/// What came of memory that the broker exposed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exposed {
    /// Links that stood.
    pub links: usize,
    /// Those that ended while their client lived.
    pub ended: usize,
    /// Rings that were exposed.
    pub rings: usize,
    /// Segments that were shown.
    pub files: usize,
    /// Memory that never came.
    pub withheld: usize,
    /// Batches that were written and told.
    pub writes: usize,
    /// Those that were never told, or not even written to their end.
    pub broken: usize,
    /// Those of all that the broker took.
    pub taken: usize,
    /// Times that a reader's slot changed.
    pub slots: usize,
    /// What clients were told that is not so.
    pub lies: usize,
    /// Rings that producers had to share.
    pub shared: usize,
    /// Turns that producers over RDMA were given.
    pub drawn: usize,
    /// Turns in shared rings that Byzantine peers were given.
    pub taken_by_byzantine: usize,
    /// Links that a client ended over that.
    pub given_up: usize,
    /// Links that the broker ended since their client lied.
    pub closed: usize,
    /// Producers that were gone at one blow.
    pub deaths: usize,
    /// Topics that were deleted.
    pub deleted: usize,
    /// Times that records were deleted.
    pub records_deleted: usize,
    /// Bytes of segments that consumers read in memory.
    pub read: usize,
    /// Parts of files that were shown to readers over RDMA, and refused.
    pub windows: usize,
    /// See [`Exposed::windows`].
    pub refused: usize,
    /// What engines have read of them, one after the other.
    pub reads: usize,
    /// Reads after which nothing came any more.
    pub failed: usize,
}

/// What became of the records of a share group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shared {
    /// As the brokers have counted.
    pub counts: Counts,
    /// Rows that callers were given.
    pub given: usize,
    /// Records that commits have told as accepted.
    pub confirmed: usize,
    /// Share consumers that were gone at one blow.
    pub crashes: usize,
    /// Requests while there was nothing.
    pub idle: usize,
}
