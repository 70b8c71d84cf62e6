//! Cuts a connection's byte stream into whole request frames, with memory bounded by what really arrived.

use std::io;
use std::os::fd::AsFd;

use bytes::Bytes;
use headrace_broker::OTHER_REQUEST_BYTES_MAX;
use headrace_wire::messages::ApiKey;
use rustix::buffer::spare_capacity;
use rustix::net::RecvFlags;

/// Small frames are read many at a time through a buffer of this size.
const SCRATCH_BYTES: usize = 64 * 1024;
/// A frame's buffer grows by doubling from here, however large the frame says it is.
const FRAME_BYTES_FIRST: usize = 2 << 20;

/// Why no further frame can be read from a connection.
#[derive(Debug)]
pub(super) enum FrameError {
    /// The peer closed its side.
    Eof,
    /// The size prefix is negative, zero or beyond `socket.request.max.bytes`.
    Size(i32),
    /// No Produce request, and too large for any other: its bytes.
    TooLarge(usize),
    /// The socket failed.
    Io(io::Error),
}

/// What one turn of reading gave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadTurn {
    /// The socket has nothing more for now.
    Blocked,
    /// The budget of this turn is used up; the socket may hold more.
    Yielded,
}

/// The read half of one connection.
#[derive(Debug)]
pub(super) struct FrameReader {
    scratch: Vec<u8>,
    /// Start of the bytes in `scratch` that are not consumed yet.
    start: usize,
    /// A frame that did not fit in `scratch`: its buffer and its whole size.
    large: Option<(Vec<u8>, usize)>,
    request_max_bytes: usize,
    /// What comes are answers, which do not begin with a kind.
    are_answers: bool,
}

impl FrameReader {
    pub(super) fn new(request_max_bytes: usize) -> Self {
        Self { scratch: Vec::new(), start: 0, large: None, request_max_bytes, are_answers: false }
    }

    /// Of answers of so many bytes at most.
    pub(super) fn of_answers(max_bytes: usize) -> Self {
        Self { are_answers: true, ..Self::new(max_bytes) }
    }

    /// Reads until the socket is empty, `budget` bytes are read, or `accept` (given each whole frame) says stop.
    pub(super) fn read(
        &mut self,
        socket: &impl AsFd,
        budget: usize,
        accept: impl FnMut(Bytes) -> bool,
    ) -> Result<ReadTurn, FrameError> {
        let recv = |into: &mut Vec<u8>| {
            let (_, read) = rustix::net::recv(socket, spare_capacity(into), RecvFlags::empty())?;
            Ok(read)
        };
        self.read_from(recv, budget, accept)
    }

    /// As [`Self::read`], from whatever appends to the capacity that a vector has, as a socket does.
    pub(super) fn read_from(
        &mut self,
        mut source: impl FnMut(&mut Vec<u8>) -> io::Result<usize>,
        budget: usize,
        mut accept: impl FnMut(Bytes) -> bool,
    ) -> Result<ReadTurn, FrameError> {
        let mut taken = 0;
        loop {
            while let Some(frame) = self.next_frame()? {
                if !accept(frame) {
                    return Ok(ReadTurn::Yielded);
                }
            }
            if taken >= budget {
                return Ok(ReadTurn::Yielded);
            }
            match source(self.room()) {
                Ok(0) => return Err(FrameError::Eof),
                Ok(n) => taken += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(ReadTurn::Blocked),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(FrameError::Io(e)),
            }
        }
    }

    /// Gives back the scratch buffer of an idle connection: 10,000 idle clients must not hold 640 MB.
    pub(super) fn shrink(&mut self) {
        if self.start == self.scratch.len() {
            self.scratch = Vec::new();
            self.start = 0;
        }
    }

    /// Where the next bytes go.
    fn room(&mut self) -> &mut Vec<u8> {
        if let Some((frame, size)) = &mut self.large {
            if frame.len() == frame.capacity() {
                let more = frame.capacity().min(size.saturating_sub(frame.len()));
                frame.reserve_exact(more.max(1));
            }
            frame
        } else {
            if self.start > 0 {
                self.scratch.drain(..self.start);
                self.start = 0;
            }
            if self.scratch.capacity() < SCRATCH_BYTES {
                self.scratch.reserve_exact(SCRATCH_BYTES - self.scratch.len());
            }
            &mut self.scratch
        }
    }

    fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        if let Some((frame, size)) = &mut self.large {
            if frame.len() < *size {
                return Ok(None);
            }
            // The allocator may have given more room than asked for, so the next frame's start can be in here.
            let rest = frame.split_off(*size);
            let frame = Bytes::from(std::mem::take(frame));
            self.large = None;
            self.scratch.clear();
            self.scratch.extend_from_slice(&rest);
            self.start = 0;
            return Ok(Some(frame));
        }
        let waiting = self.scratch.get(self.start..).unwrap_or(&[]);
        let Some((head, body)) = waiting.split_first_chunk::<4>() else { return Ok(None) };
        let prefix = i32::from_be_bytes(*head);
        let size = usize::try_from(prefix).map_err(|_| FrameError::Size(prefix))?;
        if size == 0 || size > self.request_max_bytes {
            return Err(FrameError::Size(prefix));
        }
        if size > OTHER_REQUEST_BYTES_MAX && !self.are_answers {
            let Some((key, _)) = body.split_first_chunk::<2>() else { return Ok(None) };
            if i16::from_be_bytes(*key) != ApiKey::Produce.code() {
                return Err(FrameError::TooLarge(size));
            }
        }
        if let Some(frame) = body.get(..size) {
            let frame = Bytes::copy_from_slice(frame);
            self.start += 4 + size;
            return Ok(Some(frame));
        }
        if size + 4 > SCRATCH_BYTES {
            let mut frame = Vec::with_capacity(size.min(FRAME_BYTES_FIRST));
            frame.extend_from_slice(body);
            self.scratch.clear();
            self.start = 0;
            self.large = Some((frame, size));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (b, _) = listener.accept().unwrap();
        b.set_nonblocking(true).unwrap();
        (a, b)
    }

    #[test]
    fn frames_of_every_size_come_out_whole() {
        let (mut writer, reader) = pair();
        let sizes = [1, 3, 65_531, 65_532, 65_533, 70_000, 5, 3_000_000, 1 << 20, (1 << 20) + 1, 9];
        let thread = std::thread::Builder::new().spawn(move || {
            for (i, size) in sizes.into_iter().enumerate() {
                writer.write_all(&u32::try_from(size).unwrap().to_be_bytes()).unwrap();
                writer.write_all(&vec![u8::try_from(i).unwrap(); size]).unwrap();
            }
        });
        let mut frames = FrameReader::new(100 << 20);
        let mut got = Vec::new();
        loop {
            match frames.read(&reader, usize::MAX, |f| {
                got.push(f);
                true
            }) {
                Ok(_) => std::thread::yield_now(),
                Err(FrameError::Eof) => break,
                Err(e) => panic!("{e:?}"),
            }
        }
        thread.unwrap().join().unwrap();
        assert_eq!(got.iter().map(Bytes::len).collect::<Vec<_>>(), sizes);
        for (i, frame) in got.iter().enumerate() {
            assert!(frame.iter().all(|b| usize::from(*b) == i));
        }
    }

    #[test]
    fn a_huge_size_prefix_costs_no_memory_and_a_lying_one_is_refused() {
        let (mut writer, reader) = pair();
        writer.write_all(&(90_i32 << 20).to_be_bytes()).unwrap();
        writer.write_all(b"\0\0only a little").unwrap();
        let mut frames = FrameReader::new(100 << 20);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(frames.read(&reader, usize::MAX, |_| true).unwrap(), ReadTurn::Blocked);
        assert!(frames.large.as_ref().unwrap().0.capacity() <= 2 * FRAME_BYTES_FIRST);

        let (mut writer, reader) = pair();
        writer.write_all(&(5_i32 << 20).to_be_bytes()).unwrap();
        writer.write_all(b"\0\x03too large for Metadata").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
        let mut frames = FrameReader::new(100 << 20);
        let refused = frames.read(&reader, usize::MAX, |_| true);
        assert!(matches!(refused, Err(FrameError::TooLarge(n)) if n == 5 << 20), "{refused:?}");

        for lie in [0, -1, i32::MIN, (100 << 20) + 1, i32::from_be_bytes(*b"GET ")] {
            let (mut writer, reader) = pair();
            writer.write_all(&lie.to_be_bytes()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
            let mut frames = FrameReader::new(100 << 20);
            assert!(matches!(frames.read(&reader, 1 << 20, |_| true), Err(FrameError::Size(n)) if n == lie));
        }
    }
}
