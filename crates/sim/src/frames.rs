//! Requests cut out of a byte stream, as any server does it.

use bytes::Bytes;

/// The bytes of one connection that are no whole request yet.
#[derive(Debug, Default)]
pub(crate) struct Frames(Vec<u8>);

impl Frames {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole request without its size; an error if the size is none.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, String> {
        let Some(size) = self.0.first_chunk::<4>() else { return Ok(None) };
        let size = i32::from_be_bytes(*size);
        let Some(len) = usize::try_from(size).ok().filter(|len| *len > 0) else {
            return Err(format!("a client sent a frame of size {size}"));
        };
        if self.0.len() < 4 + len {
            return Ok(None);
        }
        let rest = self.0.split_off(4 + len);
        let frame = std::mem::replace(&mut self.0, rest);
        Ok(Some(Bytes::from(frame).slice(4..)))
    }
}
