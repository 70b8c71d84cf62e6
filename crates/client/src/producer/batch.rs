//! A batch before it is sent: open, being sealed, closed.

use headrace_wire::compression::Codec;
use headrace_wire::records::{BatchBuilder, ClosedBatch, RecordError};

/// Names a batch of one producer. Later batches have greater ids, across all partitions; the parts of one that was split
/// stand between it and the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId {
    number: u64,
    /// Place of the first record in the batch as it was filled.
    first: u32,
}

impl BatchId {
    /// The batch that is filled after `number` others.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self { number, first: 0 }
    }

    /// The part of this one behind its first `records`.
    pub(super) fn behind(self, records: u32) -> Self {
        Self { first: self.first.saturating_add(records), ..self }
    }
}

/// A partition, by the index of its topic in the accumulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PartitionKey {
    pub(super) topic: u32,
    pub(super) partition: u32,
}

impl PartitionKey {
    /// The partition's number as Kafka writes it.
    pub(super) fn number(self) -> i32 {
        i32::try_from(self.partition).unwrap_or(i32::MAX)
    }
}

/// A batch that the engine has not taken yet.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) id: BatchId,
    /// When its first record came, in `Now::mono_ms`.
    pub(super) created_ms: u64,
    pub(super) body: Body,
}

/// What is known of a batch's bytes.
#[derive(Debug)]
pub(super) enum Body {
    /// Takes records.
    Open(BatchBuilder),
    /// A [`SealJob`] has the bytes.
    Sealing {
        records: u32,
    },
    Closed(ClosedBatch),
    /// Could not be closed.
    Broken {
        records: u32,
        why: RecordError,
    },
}

impl Body {
    pub(super) fn records(&self) -> u32 {
        match self {
            Self::Open(builder) => builder.records(),
            Self::Closed(batch) => batch.records(),
            Self::Sealing { records } | Self::Broken { records, .. } => *records,
        }
    }
}

/// A full batch that has to be compressed and summed. Run it without holding the accumulator's lock.
#[derive(Debug)]
pub(super) struct SealJob {
    pub(super) key: PartitionKey,
    pub(super) id: BatchId,
    pub(super) builder: BatchBuilder,
    pub(super) codec: Codec,
    pub(super) level: Option<i32>,
}

impl SealJob {
    /// Does the work. The result goes to [`super::Accumulator::sealed`].
    pub(super) fn run(self) -> Sealed {
        let records = self.builder.records();
        let body = match self.builder.close(self.codec, self.level) {
            Ok(batch) => Body::Closed(batch),
            Err(why) => Body::Broken { records, why },
        };
        Sealed { key: self.key, id: self.id, body }
    }
}

/// What came of a [`SealJob`].
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) key: PartitionKey,
    pub(super) id: BatchId,
    pub(super) body: Body,
}
