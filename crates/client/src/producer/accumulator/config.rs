//! What the accumulator has to know of the options.

use headrace_pool::AllocationStrategy;
use headrace_wire::compression::Codec;

use crate::options::{BrokerShare, CompressionType, Partitioner, ProducerConfig};

/// What the accumulator has to know of the options.
#[derive(Debug, Clone)]
pub struct AccumulatorConfig {
    /// `batch.size`: plain bytes of a batch, header included. A larger record has a batch of its own.
    pub batch_bytes: usize,
    /// `linger.ms`: how long a batch waits for more records.
    pub linger_ms: u64,
    /// `max.request.size`: plain bytes of a record with its batch header.
    pub request_bytes_max: usize,
    /// `buffer.memory`: bytes of all batches that are not done.
    pub buffer_bytes: u64,
    /// `max.in.flight.requests.per.connection`.
    pub in_flight_max: u32,
    /// `buffer.memory.allocation.strategy`.
    pub strategy: AllocationStrategy,
    /// `buffer.memory.broker.share`: what batches for one broker may hold of it, where there are several.
    pub broker_share: BrokerShare,
    /// `compression.type`.
    pub codec: Codec,
    /// `compression.<type>.level`; `None` is the codec's own default.
    pub level: Option<i32>,
    /// `delivery.timeout.ms`: how long a batch may take from its first record to its end.
    pub delivery_timeout_ms: u64,
    /// `max.block.ms`, and at most `delivery.timeout.ms`: how long a record waits for its topic to become known.
    pub parked_timeout_ms: u64,
    /// `partitioner`, and with `partitioner.ignore.keys` one that looks at no key.
    pub partitioner: Partitioner,
    /// `partitioner.adaptive.partitioning.enable`: longer queues get fewer of the records that may go anywhere.
    pub adaptive: bool,
    /// Where the random choice of partitions starts.
    pub seed: u64,
}

impl AccumulatorConfig {
    /// Takes what concerns the accumulator from a producer's options.
    #[must_use]
    pub fn new(config: &ProducerConfig, seed: u64) -> Self {
        let (codec, level) = match config.compression_type {
            CompressionType::None => (Codec::None, None),
            CompressionType::Gzip => {
                (Codec::Gzip, Some(config.compression_gzip_level).filter(|level| *level > 0))
            }
            CompressionType::Snappy => (Codec::Snappy, None),
            CompressionType::Lz4 => (Codec::Lz4, None),
            CompressionType::Zstd => (Codec::Zstd, Some(config.compression_zstd_level)),
        };
        Self {
            // A batch of many records never makes a request larger than allowed.
            batch_bytes: config.batch_size.min(config.max_request_size) as usize,
            linger_ms: config.linger_ms,
            request_bytes_max: config.max_request_size as usize,
            buffer_bytes: config.buffer_memory,
            in_flight_max: config.max_in_flight_requests_per_connection,
            strategy: config.buffer_memory_allocation_strategy,
            broker_share: config.buffer_memory_broker_share,
            codec,
            level,
            delivery_timeout_ms: config.delivery_timeout_ms,
            parked_timeout_ms: config.max_block_ms.min(config.delivery_timeout_ms),
            partitioner: if config.partitioner_ignore_keys {
                Partitioner::Sticky
            } else {
                config.partitioner
            },
            adaptive: config.partitioner_adaptive_partitioning_enable,
            seed,
        }
    }
}
