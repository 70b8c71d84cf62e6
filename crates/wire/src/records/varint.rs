//! Zigzag varints, as Kafka's records use them (the same coding as Protocol Buffers' sint32 and sint64).

/// Most bytes that a 32-bit varint takes.
pub const MAX_VARINT_BYTES: usize = 5;
/// Most bytes that a 64-bit varint takes.
pub const MAX_VARLONG_BYTES: usize = 10;

/// Takes a varint off the front of `bytes`. `None` when it is cut off or does not fit into 32 bits.
#[inline]
pub(crate) fn take_varint(bytes: &mut &[u8]) -> Option<i32> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        *bytes = rest;
        return Some(unzigzag32(u32::from(first)));
    }
    let raw = take_unsigned(bytes, MAX_VARINT_BYTES)?;
    u32::try_from(raw).ok().map(unzigzag32)
}

/// Takes a varlong off the front of `bytes`. `None` when it is cut off or does not fit into 64 bits.
#[inline]
pub(crate) fn take_varlong(bytes: &mut &[u8]) -> Option<i64> {
    take_unsigned(bytes, MAX_VARLONG_BYTES).map(unzigzag64)
}

fn take_unsigned(bytes: &mut &[u8], max_bytes: usize) -> Option<u64> {
    let mut value = 0_u64;
    let mut shift = 0_u32;
    for (at, &byte) in bytes.iter().take(max_bytes).enumerate() {
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit only.
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte < 0x80 {
            *bytes = bytes.get(at + 1..)?;
            return Some(value);
        }
        shift += 7;
    }
    None
}

#[inline]
fn unzigzag32(raw: u32) -> i32 {
    (raw >> 1).cast_signed() ^ -(raw & 1).cast_signed()
}

#[inline]
fn unzigzag64(raw: u64) -> i64 {
    (raw >> 1).cast_signed() ^ -(raw & 1).cast_signed()
}

#[inline]
pub(crate) fn zigzag64(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// Bytes that the varint of `value` takes; a varint and a varlong of one number are the same bytes.
#[inline]
pub(crate) fn varlong_len(value: i64) -> usize {
    // Seven bits a byte; `| 1` because zero takes a byte too. (bits + 6) / 7 without a division.
    let bits = 64 - (zigzag64(value) | 1).leading_zeros() as usize;
    (bits * 9 + 64) / 64
}

/// The fields of a record before its key or value, put together on the stack.
#[derive(Clone, Copy)]
pub(crate) struct Prefix {
    bytes: [u8; Prefix::CAPACITY],
    len: usize,
}

impl Prefix {
    /// Length, attributes, timestamp delta, offset delta, key length and value length take 31 bytes at most.
    pub(crate) const CAPACITY: usize = 32;

    #[inline]
    pub(crate) fn new() -> Self {
        Self { bytes: [0; Self::CAPACITY], len: 0 }
    }

    #[inline]
    pub(crate) fn push(&mut self, byte: u8) {
        // Masked, so that the index needs no check; no caller writes more than the capacity.
        self.bytes[self.len % Self::CAPACITY] = byte;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn put_varlong(&mut self, value: i64) {
        let mut raw = zigzag64(value);
        while raw >= 0x80 {
            self.push((raw & 0x7f) as u8 | 0x80);
            raw >>= 7;
        }
        self.push((raw & 0x7f) as u8);
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// All the bytes, used or not: a copy of known length is a few vector moves.
    #[inline]
    pub(crate) fn padded(&self) -> &[u8; Self::CAPACITY] {
        &self.bytes
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
