//! What waits to be written to one socket: byte segments and file ranges, in order, never flattened.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use bytes::{Buf, Bytes};
use headrace_link::carrier::{Flushed, Outgoing};
use rustix::net::SendAncillaryBuffer;

use crate::disk::OpenFile;
use crate::system;

/// Segments gathered into one `sendmsg`; Linux allows 1,024 (`IOV_MAX`), past 64 nothing is gained.
const IOV_MAX: usize = 64;
/// The most that one `sendfile` moves, so that one fat fetch cannot hold the loop.
const SENDFILE_MAX: u64 = 1 << 20;

/// What a piece takes beside its bytes: many short ones are not for nothing.
const PIECE_OVERHEAD_BYTES: u64 = 1024;
/// Pieces that the queue keeps room for once it is empty.
const PIECES_KEPT: usize = 64;

/// A range of a file that goes to the socket from the page cache.
#[derive(Debug)]
pub struct FileRange {
    /// The open file; kept alive until the range is sent, even when it was deleted meanwhile.
    pub file: OpenFile,
    /// First byte of the range.
    pub position: u64,
    /// Bytes in the range.
    pub len: u64,
}

#[derive(Debug)]
enum Piece {
    Bytes(Bytes),
    File(FileRange),
}

/// The write queue of one socket.
#[derive(Debug, Default)]
pub struct Outbox {
    pieces: VecDeque<Piece>,
    len: u64,
    /// Of `len`, what lies in files.
    in_files: u64,
}

impl Outbox {
    /// Appends bytes.
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len() as u64;
            self.pieces.push_back(Piece::Bytes(bytes));
        }
    }

    /// Appends a file range.
    pub fn push_file(&mut self, range: FileRange) {
        if range.len > 0 {
            self.len += range.len;
            self.in_files += range.len;
            self.pieces.push_back(Piece::File(range));
        }
    }

    /// Bytes not yet taken by the socket.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Memory that is held by what waits, at most: file ranges hold none.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        (self.len - self.in_files).saturating_add(self.pieces.len() as u64 * PIECE_OVERHEAD_BYTES)
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Writes until the socket is full, `budget` bytes are written, or nothing is left.
    pub fn flush(&mut self, socket: &impl AsFd, budget: u64) -> io::Result<Flushed> {
        let mut written = 0;
        while let Some(front) = self.pieces.front_mut() {
            if written >= budget {
                return Ok(Flushed::Yielded);
            }
            let (step, of_file) = match front {
                Piece::Bytes(_) => (self.send_bytes(socket), false),
                Piece::File(range) => (send_file(socket, range), true),
            };
            if matches!(self.pieces.front(), Some(Piece::File(range)) if range.len == 0) {
                self.pieces.pop_front();
            }
            match step {
                Ok(n) => {
                    self.len -= n;
                    self.in_files -= if of_file { n } else { 0 };
                    written += n;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Flushed::Blocked),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.pieces.shrink_to(PIECES_KEPT);
        Ok(Flushed::All)
    }

    /// Hands the byte pieces at the front to something that is no socket, and drops what it has taken. Files stay.
    pub(crate) fn pass(&mut self, send: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<u64> {
        let sent = self.give(|pieces, _| send(pieces))?;
        self.len -= sent;
        Ok(sent)
    }

    /// One `sendmsg` over the byte pieces at the front; `MSG_MORE` when a file follows, so that a response's
    /// head and its first record bytes share a packet.
    fn send_bytes(&mut self, socket: &impl AsFd) -> io::Result<u64> {
        self.give(|pieces, more| {
            let flags = if more { system::QUIET | system::MORE } else { system::QUIET };
            Ok(rustix::net::sendmsg(socket, pieces, &mut SendAncillaryBuffer::default(), flags)?)
        })
    }

    /// Calls `send` with the byte pieces at the front, and whether more follows, and drops what it has taken.
    fn give(&mut self, send: impl FnOnce(&[IoSlice<'_>], bool) -> io::Result<usize>) -> io::Result<u64> {
        let mut iov = [IoSlice::new(&[]); IOV_MAX];
        let mut count = 0;
        let mut more = false;
        for piece in &self.pieces {
            match piece {
                Piece::Bytes(bytes) if count < IOV_MAX => {
                    if let Some(slot) = iov.get_mut(count) {
                        *slot = IoSlice::new(bytes);
                    }
                    count += 1;
                }
                Piece::Bytes(_) | Piece::File(_) => {
                    more = true;
                    break;
                }
            }
        }
        let sent = send(iov.get(..count).unwrap_or(&[]), more)?;
        let mut left = sent;
        while left > 0 {
            let Some(Piece::Bytes(front)) = self.pieces.front_mut() else { break };
            let step = left.min(front.len());
            front.advance(step);
            left -= step;
            if front.is_empty() {
                self.pieces.pop_front();
            }
        }
        Ok(sent as u64)
    }
}

impl Outgoing for Outbox {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }

    /// Files with it.
    fn fill(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let (Some(front), Some(room)) = (self.pieces.front_mut(), into.get_mut(filled..))
            && !room.is_empty()
        {
            let (taken, over, of_file) = match front {
                Piece::Bytes(bytes) => {
                    let taken = bytes.len().min(room.len());
                    bytes.copy_to_slice(room.get_mut(..taken).unwrap_or_default());
                    (taken, bytes.is_empty(), false)
                }
                Piece::File(range) => {
                    let want = room.len().min(usize::try_from(range.len).unwrap_or(usize::MAX));
                    let taken = range
                        .file
                        .file()
                        .read_at(room.get_mut(..want).unwrap_or_default(), range.position)?;
                    range.shorten(taken as u64)?;
                    (taken, range.len == 0, true)
                }
            };
            if over {
                self.pieces.pop_front();
            }
            filled += taken;
            self.len -= taken as u64;
            self.in_files -= if of_file { taken as u64 } else { 0 };
        }
        Ok(filled)
    }
}

/// Moves part of the range from the page cache into the socket and shortens the range by it.
fn send_file(socket: &impl AsFd, range: &mut FileRange) -> io::Result<u64> {
    let want = usize::try_from(range.len.min(SENDFILE_MAX)).unwrap_or(usize::MAX);
    let sent = system::send_file(socket, range.file.file(), range.position, want)? as u64;
    range.shorten(sent)?;
    Ok(sent)
}

impl FileRange {
    /// So many bytes have gone.
    fn shorten(&mut self, sent: u64) -> io::Result<()> {
        if sent == 0 {
            // The log never truncates below what it handed out; were the file shorter, the response could not be
            // completed and the connection must not go on with a hole in it.
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "a log file is shorter than its index says",
            ));
        }
        self.position += sent;
        self.len -= sent;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn shared(file: &File) -> OpenFile {
        OpenFile::alone(file.try_clone().unwrap())
    }

    #[test]
    fn what_is_passed_on_is_dropped_as_far_as_it_was_taken() {
        let mut outbox = Outbox::default();
        outbox.push(Bytes::from_static(b"abc"));
        outbox.push(Bytes::from_static(b"de"));
        let mut seen = Vec::new();
        let taken = outbox.pass(|pieces| {
            for piece in pieces {
                seen.extend_from_slice(piece);
            }
            Ok(4)
        });
        assert_eq!((taken.unwrap(), outbox.len(), &seen[..]), (4, 1, &b"abcde"[..]));
        outbox.pass(|_| Err(io::ErrorKind::WouldBlock.into())).unwrap_err();
        assert_eq!(outbox.len(), 1);
        outbox.pass(|pieces| Ok(pieces.iter().map(|p| p.len()).sum())).unwrap();
        assert!(outbox.is_empty());
    }

    #[test]
    fn what_is_moved_into_memory_keeps_its_order_and_a_short_file_is_an_error() {
        let path = std::env::temp_dir().join(format!("headrace-outbox-fill-{}", std::process::id()));
        std::fs::write(&path, b"0123456789").unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut outbox = Outbox::default();
        outbox.push(Bytes::from_static(b"ab"));
        outbox.push_file(FileRange { file: shared(&file), position: 2, len: 5 });
        outbox.push(Bytes::from_static(b"cd"));
        let (mut got, mut room) = (Vec::new(), [0; 4]);
        while !outbox.is_empty() {
            let filled = outbox.fill(&mut room).unwrap();
            assert!(filled == 4 || outbox.is_empty());
            got.extend_from_slice(&room[..filled]);
        }
        assert_eq!((&got[..], outbox.len()), (&b"ab23456cd"[..], 0));
        outbox.push_file(FileRange { file: shared(&file), position: 8, len: 5 });
        assert_eq!(outbox.fill(&mut [0; 2]).unwrap(), 2);
        assert_eq!(outbox.fill(&mut [0; 2]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn bytes_and_files_arrive_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut input, _) = listener.accept().unwrap();
        out.set_nonblocking(true).unwrap();
        let path = std::env::temp_dir().join(format!("headrace-outbox-{}", std::process::id()));
        let mut file =
            File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        let body: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        file.write_all(&body).unwrap();
        std::fs::remove_file(&path).unwrap();

        let mut outbox = Outbox::default();
        let mut expected = Vec::new();
        for i in 0..200_u8 {
            outbox.push(Bytes::from(vec![i; 100]));
            expected.extend_from_slice(&[i; 100]);
        }
        outbox.push_file(FileRange { file: shared(&file), position: 10, len: 2_500_000 });
        expected.extend_from_slice(&body[10..2_500_010]);
        outbox.push(Bytes::from_static(b"tail"));
        expected.extend_from_slice(b"tail");
        assert_eq!(outbox.len(), expected.len() as u64);
        // What lies in a file takes no memory, and short pieces take more than their bytes.
        assert_eq!(outbox.memory_bytes(), 200 * 100 + 4 + 202 * PIECE_OVERHEAD_BYTES);

        let total = expected.len();
        let reader = std::thread::Builder::new().spawn(move || {
            let mut got = vec![0; total];
            input.read_exact(&mut got).unwrap();
            got
        });
        while outbox.flush(&out, 64 * 1024).unwrap() != Flushed::All {
            std::thread::yield_now();
        }
        assert_eq!(reader.unwrap().join().unwrap(), expected);
        assert_eq!((outbox.len(), outbox.memory_bytes()), (0, 0));
    }
}
