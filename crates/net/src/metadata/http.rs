//! As much of HTTP/1.1 as etcd's gateway needs: POST with a body, and answers whose length is named, or that come in chunks.
//! A library would bring an agent, cookies, redirects and TLS of its own along; what is here is a head and two kinds of bodies.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

use rustls::ClientConfig;

use super::stream::{Stream, share_of};

/// The longest head of an answer.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The longest answer: a range of keys is much shorter.
const BODY_BYTES_MAX: usize = 64 << 20;
/// Bytes read at once.
const PIECE_BYTES: usize = 16 << 10;

/// How the length of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Named(usize),
    Chunked,
    /// It ends with the connection.
    ToEnd,
}

/// The head of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    length: Length,
    closes: bool,
}

/// Where in a body of chunks the next byte lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    /// The line with a chunk's length.
    Length,
    /// A chunk, of which so much is still to come.
    Chunk(usize),
    /// The end of a chunk's last line.
    End,
    /// What may come behind the last chunk.
    Trailer,
}

/// A connection to one address.
pub(super) struct Http {
    stream: Stream,
    host: String,
    /// What was read and is not used yet.
    buffer: Vec<u8>,
    within: Within,
    /// After an error, or while an answer is being read, no request can be sent.
    is_over: bool,
}

fn malformed(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

fn parse_head(head: &[u8]) -> io::Result<Head> {
    let text = std::str::from_utf8(head).map_err(|_| malformed("the answer is not HTTP"))?;
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
    let status = status.ok_or_else(|| malformed("the answer is not HTTP/1"))?;
    let mut found = Head { status, length: Length::ToEnd, closes: first.starts_with("HTTP/1.0") };
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or_else(|| malformed("a line of the answer's head"))?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") && found.length != Length::Chunked {
            let length = value.parse().map_err(|_| malformed(format!("a length of {value:?}")))?;
            found.length = Length::Named(length);
        } else if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
            found.length = Length::Chunked;
        } else if name.eq_ignore_ascii_case("connection") {
            found.closes |= value.eq_ignore_ascii_case("close");
        }
    }
    found.closes |= found.length == Length::ToEnd;
    Ok(found)
}

impl Http {
    /// Connects until a time.
    pub(super) fn connect(
        host: &str,
        port: u16,
        tls: Option<&Arc<ClientConfig>>,
        until: Instant,
    ) -> io::Result<Self> {
        let mut last = io::Error::other("it has no address");
        let all: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
        for (at, left) in all.iter().zip((1..=all.len()).rev()) {
            let connected = share_of(until, left)
                .and_then(|share| Stream::connect(*at, host, tls, Instant::now() + share));
            match connected {
                Ok(stream) => {
                    let host = format!("{host}:{port}");
                    return Ok(Self {
                        stream,
                        host,
                        buffer: Vec::new(),
                        within: Within::Length,
                        is_over: false,
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Whether no further request can be sent over it: the other side may have closed it meanwhile.
    pub(super) fn is_over(&self) -> bool {
        self.is_over || !self.stream.is_silent().unwrap_or(false)
    }

    fn send(&mut self, path: &str, more: &str, body: &[u8], until: Instant) -> io::Result<()> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{more}Content-Length: {}\r\n\r\n",
            self.host,
            body.len()
        );
        self.stream.write(&[head.as_bytes(), body].concat(), until)
    }

    /// Reads more, until a time.
    fn fill(&mut self, until: Instant) -> io::Result<()> {
        let before = self.buffer.len();
        self.buffer.resize(before + PIECE_BYTES, 0);
        let read = self.stream.read(self.buffer.get_mut(before..).unwrap_or_default(), until);
        self.buffer.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has closed the connection")),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A line without its end.
    fn line(&mut self, until: Instant) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line = self.buffer.drain(..end + 2).take(end).collect();
                return Ok(line);
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(malformed("a line of the answer is too long"));
            }
            self.fill(until)?;
        }
    }

    fn head(&mut self, until: Instant) -> io::Result<Head> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
                return parse_head(head.get(..end).unwrap_or_default());
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(malformed("the answer's head is too long"));
            }
            match self.fill(until) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && self.buffer.is_empty() => {
                    let hint = if self.stream.has_tls() { "" } else { "; if it wants TLS, use etcds://" };
                    return Err(io::Error::new(error.kind(), format!("{error} without an answer{hint}")));
                }
                read => read?,
            }
        }
    }

    fn take(&mut self, bytes: usize, until: Instant) -> io::Result<Vec<u8>> {
        if bytes > BODY_BYTES_MAX {
            return Err(malformed(format!("an answer of {bytes} bytes, {BODY_BYTES_MAX} are read")));
        }
        while self.buffer.len() < bytes {
            self.fill(until)?;
        }
        Ok(self.buffer.drain(..bytes).collect())
    }

    /// What comes next of a body of chunks; nothing at its end. It can be called again after a time has passed in vain.
    fn piece(&mut self, until: Instant) -> io::Result<Option<Vec<u8>>> {
        loop {
            match self.within {
                Within::Length => {
                    let line = self.line(until)?;
                    let size = std::str::from_utf8(&line).ok().and_then(|line| line.split(';').next());
                    let size = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
                    let size = size.ok_or_else(|| malformed("a chunk without a length"))?;
                    self.within = if size == 0 { Within::Trailer } else { Within::Chunk(size) };
                }
                Within::Chunk(left) => {
                    if self.buffer.is_empty() {
                        self.fill(until)?;
                    }
                    let come = left.min(self.buffer.len());
                    self.within = if come == left { Within::End } else { Within::Chunk(left - come) };
                    if come > 0 {
                        return Ok(Some(self.buffer.drain(..come).collect()));
                    }
                }
                Within::End => {
                    if !self.line(until)?.is_empty() {
                        return Err(malformed("a chunk is longer than it says"));
                    }
                    self.within = Within::Length;
                }
                Within::Trailer => {
                    if self.line(until)?.is_empty() {
                        self.within = Within::Length;
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Sends a request and reads its answer until a time: status and body.
    pub(super) fn post(&mut self, path: &str, body: &[u8], until: Instant) -> io::Result<(u16, Vec<u8>)> {
        self.is_over = true;
        self.send(path, "", body, until)?;
        let head = self.head(until)?;
        let body = self.body(head.length, until)?;
        self.is_over = head.closes || !self.buffer.is_empty();
        Ok((head.status, body))
    }

    fn body(&mut self, length: Length, until: Instant) -> io::Result<Vec<u8>> {
        match length {
            Length::Named(bytes) => self.take(bytes, until),
            Length::Chunked => {
                let mut body = Vec::new();
                while let Some(piece) = self.piece(until)? {
                    body.extend(piece);
                    if body.len() > BODY_BYTES_MAX {
                        return Err(malformed("the answer is too long"));
                    }
                }
                Ok(body)
            }
            Length::ToEnd => loop {
                match self.fill(until) {
                    Ok(()) if self.buffer.len() > BODY_BYTES_MAX => {
                        return Err(malformed("the answer is too long"));
                    }
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        return Ok(std::mem::take(&mut self.buffer));
                    }
                    Err(error) => return Err(error),
                }
            },
        }
    }

    /// Sends a request, with `more` lines in its head, whose answer is a stream: an error if it is none.
    pub(super) fn open_stream(
        &mut self,
        path: &str,
        more: &str,
        body: &[u8],
        until: Instant,
    ) -> io::Result<()> {
        self.is_over = true;
        self.send(path, more, body, until)?;
        let head = self.head(until)?;
        if head.status != 200 {
            let body = self.body(head.length, until).unwrap_or_default();
            let said: String = String::from_utf8_lossy(&body).chars().take(300).collect();
            return Err(malformed(format!("it has answered {}: {said}", head.status)));
        }
        if head.length != Length::Chunked {
            return Err(malformed("its answer is no stream"));
        }
        Ok(())
    }

    /// What comes next in a stream until a time; nothing if none came.
    pub(super) fn next_piece(&mut self, until: Instant) -> io::Result<Option<Vec<u8>>> {
        match self.piece(until) {
            Ok(None) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended the stream")),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_understood_or_refused() {
        let head = parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nX: y").unwrap();
        assert_eq!(head, Head { status: 200, length: Length::Named(12), closes: false });
        let head = parse_head(b"HTTP/1.1 503 No\r\ntransfer-encoding: Chunked\r\nconnection: close").unwrap();
        assert_eq!(head, Head { status: 503, length: Length::Chunked, closes: true });
        let head = parse_head(b"HTTP/1.0 200 OK").unwrap();
        assert_eq!(head, Head { status: 200, length: Length::ToEnd, closes: true });
        for bad in [
            &b""[..],
            b"\xff",
            b"SSH-2.0",
            b"HTTP/1.1 abc",
            b"HTTP/1.1 200\r\nx",
            b"HTTP/2 200",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999",
        ] {
            assert!(parse_head(bad).is_err(), "{bad:?}");
        }
    }
}
