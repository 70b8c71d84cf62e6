//! Which partition a record goes to: by its key as in Kafka, else one partition at a time, changed by bytes (KIP-794).

use crate::options::Partitioner;
use crate::time::Jitter;

/// Kafka's hash of a key: murmur2 with its seed, 32 bits, signed as in Java.
///
/// Every Kafka client must agree on it, or records of one key end up in two partitions.
#[must_use]
pub fn murmur2(key: &[u8]) -> i32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;

    // Kafka mixes in the low 32 bits of the length.
    let length = u32::try_from(key.len() & 0xffff_ffff).unwrap_or_default();
    let mut hash = SEED ^ length;
    let (words, tail) = key.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word);
        k = k.wrapping_mul(M);
        k ^= k >> R;
        k = k.wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    if !tail.is_empty() {
        for (byte, shift) in tail.iter().zip([0, 8, 16]) {
            hash ^= u32::from(*byte) << shift;
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^= hash >> 15;
    hash.cast_signed()
}

/// The partition of a key among `partitions` (at least 1): `(murmur2(key) & 0x7fffffff) % partitions`.
#[must_use]
pub fn partition_of_key(key: &[u8], partitions: u32) -> u32 {
    (murmur2(key).cast_unsigned() & 0x7fff_ffff) % partitions.max(1)
}

/// The CRC-32 of zip and Ethernet, with which librdkafka's `consistent` partitioners choose.
fn crc32(key: &[u8]) -> u32 {
    let next = |crc: u32, byte: &u8| CRC32_TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)] ^ (crc >> 8);
    !key.iter().fold(u32::MAX, next)
}

/// What a byte does to the checksum.
const CRC32_TABLE: [u32; 256] = {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let mut table = [0; 256];
    let mut byte = 0_u32;
    while byte < 256 {
        let mut crc = byte;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

/// FNV-1a over 32 bits, its sign taken away, as Sarama and librdkafka do.
fn fnv1a(key: &[u8]) -> u32 {
    const PRIME: u32 = 0x0100_0193;
    const OFFSET: u32 = 0x811c_9dc5;
    let hash = key.iter().fold(OFFSET, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(PRIME));
    hash.cast_signed().unsigned_abs()
}

impl Partitioner {
    /// Whether a record's key can choose its partition.
    pub(crate) fn uses_keys(self) -> bool {
        !matches!(self, Self::Random | Self::Sticky)
    }

    /// Whether a record with this key goes to a certain partition; else any may take it.
    #[inline]
    pub(super) fn binds(self, key: Option<&[u8]>) -> bool {
        match self {
            Self::Murmur2 | Self::Consistent | Self::Fnv1a => true,
            Self::Murmur2Random | Self::Fnv1aRandom => key.is_some(),
            Self::ConsistentRandom => key.is_some_and(|key| !key.is_empty()),
            Self::Random | Self::Sticky => false,
        }
    }

    /// The partition that a key chooses among `partitions` (at least 1), if it does.
    #[inline]
    pub(super) fn partition(self, key: Option<&[u8]>, partitions: u32) -> Option<u32> {
        if !self.binds(key) {
            return None;
        }
        let key = key.unwrap_or_default();
        Some(match self {
            Self::Consistent | Self::ConsistentRandom => crc32(key) % partitions.max(1),
            Self::Fnv1a | Self::Fnv1aRandom => fnv1a(key) % partitions.max(1),
            _ => partition_of_key(key, partitions),
        })
    }
}

/// The partition that records without key and partition go to at present.
///
/// It changes at the end of a batch, once it has had half of `switch_bytes`, and without one at twice the bytes: so
/// batches are filled, and each partition gets about the same number of bytes in the long run (KIP-794).
#[derive(Debug, Clone, Default)]
pub(super) struct Sticky {
    partition: Option<u32>,
    bytes: u64,
}

impl Sticky {
    /// Goes on with `partition`.
    pub(super) fn start(&mut self, partition: u32) -> u32 {
        *self = Self { partition: Some(partition), bytes: 0 };
        partition
    }

    /// The current partition, if one was chosen.
    pub(super) fn current(&self) -> Option<u32> {
        self.partition
    }

    /// Leaves the current partition before its time.
    pub(super) fn leave(&mut self) {
        *self = Self::default();
    }

    /// Counts bytes that have gone to the current partition and leaves it once it had its share.
    pub(super) fn sent(&mut self, bytes: u64, batch_ended: bool, switch_bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        let share = self.bytes >= switch_bytes / 2;
        if (share && batch_ended) || self.bytes >= switch_bytes.saturating_mul(2) {
            self.partition = None;
            self.bytes = 0;
        }
    }
}

/// What the choice of a partition looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartitionLoad {
    /// Batches that wait to be sent; 0 for all where that is not to count.
    pub(super) queued: u32,
    /// A broker leads the partition now, and takes batches.
    pub(super) available: bool,
}

/// Chooses by chance, with a weight that falls with the queue: a slow broker gets less (KIP-794, adaptive).
/// Partitions that are not available are taken only when none is.
pub(super) fn pick(jitter: &mut Jitter, loads: &[PartitionLoad]) -> u32 {
    let any_available = loads.iter().any(|load| load.available);
    let longest = loads.iter().map(|load| load.queued).max().unwrap_or_default();
    let weight = |load: &PartitionLoad| {
        if any_available && !load.available { 0 } else { u64::from(longest - load.queued) + 1 }
    };
    let sum: u64 = loads.iter().map(weight).sum();
    let mut point = jitter.below(sum);
    for (index, load) in loads.iter().enumerate() {
        let weight = weight(load);
        if point < weight {
            return u32::try_from(index).unwrap_or_default();
        }
        point -= weight;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur2_agrees_with_kafka() {
        let known: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
        ];
        for (key, hash) in known {
            assert_eq!(murmur2(key), hash, "{}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn a_negative_hash_gives_a_partition_in_range() {
        // -973932308 & 0x7fffffff = 1173551340
        assert_eq!(partition_of_key(b"21", 7), 1_173_551_340 % 7);
        for length in 0..64 {
            assert!(partition_of_key(&vec![0xff; length], 3) < 3);
        }
    }

    #[test]
    fn crc32_and_fnv1a_have_their_known_values() {
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        // The published values are 0x811c9dc5, 0xe40c292c and 0xbf9cf968, all negative as signed numbers.
        for (key, hash) in [(&b""[..], 0x811c_9dc5_u32), (b"a", 0xe40c_292c), (b"foobar", 0xbf9c_f968)] {
            assert_eq!(fnv1a(key), hash.wrapping_neg(), "{}", String::from_utf8_lossy(key));
        }
        assert_eq!(fnv1a(b"fo"), 0x6222_e842, "positive ones stay");
    }

    #[test]
    fn null_and_empty_keys_go_where_librdkafka_says() {
        let null_is_free =
            [Partitioner::Murmur2Random, Partitioner::ConsistentRandom, Partitioner::Fnv1aRandom];
        for partitioner in null_is_free {
            assert_eq!(partitioner.partition(None, 7), None, "{partitioner:?}");
            assert!(partitioner.partition(Some(b"k"), 7).is_some(), "{partitioner:?}");
        }
        assert_eq!(Partitioner::ConsistentRandom.partition(Some(b""), 7), None);
        for partitioner in [Partitioner::Murmur2, Partitioner::Consistent, Partitioner::Fnv1a] {
            let of_null = partitioner.partition(None, 7);
            assert!(of_null.is_some() && of_null == partitioner.partition(Some(b""), 7), "{partitioner:?}");
        }
        for partitioner in [Partitioner::Random, Partitioner::Sticky] {
            assert_eq!(partitioner.partition(Some(b"k"), 7), None);
        }
        assert_eq!(Partitioner::Consistent.partition(Some(b"123456789"), 1000), Some(0xcbf4_3926 % 1000));
    }

    fn load(queued: u32, available: bool) -> PartitionLoad {
        PartitionLoad { queued, available }
    }

    #[test]
    fn a_longer_queue_is_chosen_less() {
        let mut jitter = Jitter::new(7);
        let loads = [load(0, true), load(9, true), load(4, true)];
        let mut counts = [0_u32; 3];
        for _ in 0..17_000 {
            counts[pick(&mut jitter, &loads) as usize] += 1;
        }
        // Weights 10, 1, 6 of 17.
        for (count, expected) in counts.into_iter().zip([10_000, 1_000, 6_000]) {
            assert!(count.abs_diff(expected) < 400, "{counts:?}");
        }
    }

    #[test]
    fn a_partition_without_leader_is_left_out_unless_all_are() {
        let mut jitter = Jitter::new(1);
        for _ in 0..100 {
            assert_eq!(pick(&mut jitter, &[load(0, false), load(50, true), load(0, false)]), 1);
        }
        let picked: Vec<u32> =
            (0..100).map(|_| pick(&mut jitter, &[load(0, false), load(0, false)])).collect();
        assert!(picked.contains(&0) && picked.contains(&1));
    }

    #[test]
    fn sticky_stays_for_its_bytes_and_then_moves() {
        let mut sticky = Sticky::default();
        assert_eq!(sticky.current(), None);
        sticky.start(4);
        sticky.sent(499, true, 1000);
        assert_eq!(sticky.current(), Some(4));
        sticky.sent(1, false, 1000);
        assert_eq!(sticky.current(), Some(4), "waits for the end of the batch");
        sticky.sent(1, true, 1000);
        assert_eq!(sticky.current(), None);
        sticky.start(1);
        sticky.sent(1999, false, 1000);
        assert_eq!(sticky.current(), Some(1));
        sticky.sent(1, false, 1000);
        assert_eq!(sticky.current(), None, "twice the bytes end it in the middle of a batch");
    }
}
