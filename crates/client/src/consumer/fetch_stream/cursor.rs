//! Primitives of a response that has arrived in part.

use super::parts::{DivergingEpoch, LeaderHint, NodeEndpoint};

/// The largest name of a topic or host that is taken, in bytes (Kafka's own limit is 249).
const STRING_BYTES_MAX: usize = 32_767;

/// Why a step ended early.
pub(super) enum Stop {
    /// Counted from the step's first byte.
    Need(usize),
    Bad(&'static str),
}

/// Reads primitives from a slice; short slices stop the step with the number of bytes it needs.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    /// Bytes taken so far.
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    pub(super) fn peek(&self, len: usize) -> Result<&'a [u8], Stop> {
        let need = self.at.saturating_add(len);
        self.bytes.get(self.at..need).ok_or(Stop::Need(need))
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Stop> {
        let bytes = self.peek(len)?;
        self.at += len;
        Ok(bytes)
    }

    /// Takes what is there, at most `len` bytes; asks for more when there is nothing.
    pub(super) fn take_up_to(&mut self, len: usize) -> Result<usize, Stop> {
        let there = self.bytes.len() - self.at;
        if there == 0 && len > 0 {
            return Err(Stop::Need(self.at + 1));
        }
        let taken = there.min(len);
        self.at += taken;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let need = self.at.saturating_add(N);
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let array = rest.first_chunk().ok_or(Stop::Need(need))?;
        self.at = need;
        Ok(*array)
    }

    pub(super) fn i16(&mut self) -> Result<i16, Stop> {
        self.array().map(i16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, Stop> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, Stop> {
        self.array().map(i64::from_be_bytes)
    }

    pub(super) fn uvarint(&mut self) -> Result<usize, Stop> {
        let mut value: u64 = 0;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let value = u32::try_from(value).map_err(|_| Stop::Bad("a count beyond 32 bits"))?;
                return usize::try_from(value).map_err(|_| Stop::Bad("a count beyond memory"));
            }
        }
        Err(Stop::Bad("a count beyond 32 bits"))
    }

    /// The length of a compact array, string or bytes field; null counts as empty.
    pub(super) fn array_len(&mut self) -> Result<usize, Stop> {
        Ok(self.uvarint()?.saturating_sub(1))
    }

    pub(super) fn string(&mut self) -> Result<Option<String>, Stop> {
        let len = self.uvarint()?;
        if len == 0 {
            return Ok(None);
        }
        if len > STRING_BYTES_MAX {
            return Err(Stop::Bad("a name is too long"));
        }
        let text = std::str::from_utf8(self.bytes(len - 1)?);
        text.map(|text| Some(text.to_owned())).map_err(|_| Stop::Bad("a name is not UTF-8"))
    }

    pub(super) fn skip_tags(&mut self) -> Result<(), Stop> {
        for _ in 0..self.uvarint()? {
            self.uvarint()?;
            let size = self.uvarint()?;
            self.bytes(size)?;
        }
        Ok(())
    }

    pub(super) fn diverging(&mut self) -> Result<DivergingEpoch, Stop> {
        Ok(DivergingEpoch { epoch: self.i32()?, end_offset: self.i64()? })
    }

    pub(super) fn leader(&mut self) -> Result<LeaderHint, Stop> {
        Ok(LeaderHint { leader_id: self.i32()?, leader_epoch: self.i32()? })
    }

    pub(super) fn endpoints(&mut self) -> Result<Vec<NodeEndpoint>, Stop> {
        let count = self.array_len()?;
        let mut endpoints = Vec::new();
        for _ in 0..count {
            let node_id = self.i32()?;
            let host = self.string()?.ok_or(Stop::Bad("a broker without a host"))?;
            let port = self.i32()?;
            self.string()?;
            self.skip_tags()?;
            endpoints.push(NodeEndpoint { node_id, host, port });
        }
        Ok(endpoints)
    }
}
