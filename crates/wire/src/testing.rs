//! Arbitrary messages, for tests and fuzzing. Only with the feature `testing`.

use crate::messages::{Message, VersionRange};
use crate::primitive::{DecodeError, EncodeError, Encoded, Reader};
use crate::random::SplitMix64;
use crate::uuid::Uuid;
use bytes::Bytes;

/// Every message.
pub const CASES: &[Case] = crate::messages::CASES;

/// Elements that an arbitrary array, string or byte field has at most.
const LEN_MAX: u64 = 4;

/// A seeded source of field values: mostly small ones, sometimes a type's limits.
#[derive(Clone, Debug)]
pub struct Filler {
    random: SplitMix64,
}

impl Filler {
    /// The same seed gives the same values.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { random: SplitMix64::new(seed) }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.random.next_u64()
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end.max(1)
    }

    /// Either.
    pub fn bool(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Whether a field that may be null is.
    pub fn null(&mut self) -> bool {
        self.below(4) == 0
    }

    /// An integer of any width.
    pub fn int<T: ArbitraryInt>(&mut self) -> T {
        let raw = self.next_u64();
        match self.below(4) {
            0 => T::cut(raw % 256),
            1 => T::cut((raw % 3).wrapping_sub(1)),
            _ => T::cut(raw),
        }
    }

    /// A finite double.
    pub fn f64(&mut self) -> f64 {
        f64::from(self.int::<i32>()) / 8.0
    }

    /// A string, also with letters of more than one byte.
    pub fn string(&mut self) -> String {
        let len = self.below(LEN_MAX + 1);
        (0..len)
            .map(|_| ['a', 'Z', '-', 'é', '水', '\u{1F6B0}'][usize::try_from(self.below(6)).unwrap_or(0)])
            .collect()
    }

    /// Bytes.
    pub fn bytes(&mut self) -> Bytes {
        let len = self.below(LEN_MAX + 1);
        (0..len).map(|_| self.int::<u8>()).collect::<Vec<u8>>().into()
    }

    /// An id; sometimes zero.
    pub fn uuid(&mut self) -> Uuid {
        if self.null() { Uuid::ZERO } else { Uuid(std::array::from_fn(|_| self.int())) }
    }

    /// An array.
    pub fn array<T>(&mut self, mut element: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let len = self.below(LEN_MAX);
        (0..len).map(|_| element(self)).collect()
    }
}

/// Integers that [`Filler::int`] can make.
pub trait ArbitraryInt {
    /// The low bits.
    fn cut(raw: u64) -> Self;
}

macro_rules! arbitrary_int {
    ($($type:ty),*) => {$(
        impl ArbitraryInt for $type {
            fn cut(raw: u64) -> Self {
                let mut low = [0; size_of::<Self>()];
                low.iter_mut().zip(raw.to_le_bytes()).for_each(|(to, from)| *to = from);
                Self::from_le_bytes(low)
            }
        }
    )*};
}
arbitrary_int!(i8, u8, i16, u16, i32, u32, i64);

/// A message that tests can make.
pub trait Arbitrary: Message {
    /// A value that `version` can carry.
    fn arbitrary(version: i16, filler: &mut Filler) -> Self;
}

/// One message with its type erased.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Kafka's name.
    pub name: &'static str,
    /// The versions known here.
    pub versions: VersionRange,
    encode: fn(i16, u64) -> Result<Encoded, EncodeError>,
    encode_default: fn(i16) -> Result<Encoded, EncodeError>,
    recode: fn(i16, Bytes) -> Result<Recoded, DecodeError>,
    read: fn(i16, Bytes) -> Result<(), DecodeError>,
    round_trip: fn(i16, u64) -> Result<(), String>,
}

/// A message read and written again.
#[derive(Clone, Debug)]
pub struct Recoded {
    /// What was written.
    pub encoded: Result<Encoded, EncodeError>,
    /// Bytes that were left behind the message.
    pub left: usize,
}

impl Case {
    pub(crate) const fn of<M: Arbitrary>() -> Self {
        Self {
            name: M::NAME,
            versions: M::VERSIONS,
            encode: |version, seed| M::arbitrary(version, &mut Filler::new(seed)).to_encoded(version),
            encode_default: |version| M::default().to_encoded(version),
            recode: |version, bytes| {
                let mut reader = Reader::new(bytes);
                let message = M::decode(version, &mut reader)?;
                Ok(Recoded { encoded: message.to_encoded(version), left: reader.remaining() })
            },
            read: |version, bytes| M::decode(version, &mut Reader::new(bytes)).map(drop),
            round_trip: round_trip::<M>,
        }
    }

    /// An arbitrary message, written.
    pub fn encode(&self, version: i16, seed: u64) -> Result<Encoded, EncodeError> {
        (self.encode)(version, seed)
    }

    /// The message with nothing set, written.
    pub fn encode_default(&self, version: i16) -> Result<Encoded, EncodeError> {
        (self.encode_default)(version)
    }

    /// Reads a message and writes it again.
    pub fn recode(&self, version: i16, bytes: Bytes) -> Result<Recoded, DecodeError> {
        (self.recode)(version, bytes)
    }

    /// Reads a message and drops it.
    pub fn read(&self, version: i16, bytes: Bytes) -> Result<(), DecodeError> {
        (self.read)(version, bytes)
    }

    /// Writes an arbitrary message, reads it, and says what is not the same.
    pub fn round_trip(&self, version: i16, seed: u64) -> Result<(), String> {
        (self.round_trip)(version, seed)
    }
}

fn round_trip<M: Arbitrary>(version: i16, seed: u64) -> Result<(), String> {
    let message = M::arbitrary(version, &mut Filler::new(seed));
    let encoded = message.to_encoded(version).map_err(|e| e.to_string())?;
    let bytes = encoded.to_bytes().ok_or("bytes elsewhere")?;
    if bytes.len() != encoded.len {
        return Err(format!("{} bytes, said to be {}", bytes.len(), encoded.len));
    }
    let mut reader = Reader::new(bytes);
    let read = M::decode(version, &mut reader).map_err(|e| e.to_string())?;
    match reader.remaining() {
        0 if read == message => Ok(()),
        0 => Err(format!("wrote {message:?}, read {read:?}")),
        left => Err(format!("{left} bytes left")),
    }
}
