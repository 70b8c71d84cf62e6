//! A connection of bytes, with TLS or without, each of whose calls ends by a time.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

pub(super) fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it has not answered in time")
}

/// The time that is left, shared by so many tries; an error if none is.
pub(super) fn share_of(until: Instant, tries: usize) -> io::Result<Duration> {
    let tries = u32::try_from(tries.max(1)).unwrap_or(u32::MAX);
    let left = until.saturating_duration_since(Instant::now()) / tries;
    if left < Duration::from_micros(1) { Err(late()) } else { Ok(left) }
}

/// A connection to one address.
pub(super) struct Stream {
    socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
}

impl Stream {
    /// Connects until a time, and shakes hands where there is TLS: `host` is whom the certificate must name.
    pub(super) fn connect(
        at: SocketAddr,
        host: &str,
        tls: Option<&Arc<ClientConfig>>,
        until: Instant,
    ) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&at, share_of(until, 1)?)?;
        socket.set_nodelay(true)?;
        let session = |settings: &Arc<ClientConfig>| {
            let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
            ClientConnection::new(settings.clone(), name).map(Box::new).map_err(io::Error::other)
        };
        let mut stream = Self { socket, tls: tls.map(session).transpose()? };
        while stream.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            stream.flush(until)?;
            if stream.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) && !stream.receive(until)? {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended the TLS handshake"));
            }
        }
        stream.flush(until)?;
        Ok(stream)
    }

    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether nothing has come, not even the end.
    pub(super) fn is_silent(&self) -> io::Result<bool> {
        self.socket.set_nonblocking(true)?;
        let seen = self.socket.peek(&mut [0]);
        self.socket.set_nonblocking(false)?;
        Ok(seen.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock))
    }

    /// Sends all of it.
    pub(super) fn write(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = match &mut self.tls {
                Some(tls) => tls.writer().write(bytes)?,
                None => send(&mut self.socket, until, |socket| socket.write(bytes))?,
            };
            bytes = bytes.get(written..).unwrap_or_default();
            self.flush(until)?;
        }
        Ok(())
    }

    /// Reads what there is, or waits for something; 0 bytes at the end.
    pub(super) fn read(&mut self, into: &mut [u8], until: Instant) -> io::Result<usize> {
        loop {
            let Some(tls) = &mut self.tls else {
                return receive(&mut self.socket, until, |socket| socket.read(into));
            };
            match tls.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            // A change of keys has an answer.
            self.flush(until)?;
            self.receive(until)?;
        }
    }

    /// Takes in what the other side of TLS has sent; whether it was not the end.
    fn receive(&mut self, until: Instant) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        let read = receive(&mut self.socket, until, |socket| tls.read_tls(socket))?;
        if let Err(error) = tls.process_new_packets() {
            // The other side learns why.
            let _ = self.flush(until);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(read > 0)
    }

    /// Sends what is encrypted.
    fn flush(&mut self, until: Instant) -> io::Result<()> {
        while let Some(tls) = self.tls.as_mut().filter(|tls| tls.wants_write()) {
            send(&mut self.socket, until, |socket| tls.write_tls(socket))?;
        }
        Ok(())
    }
}

/// Tries to receive until a time.
fn receive(
    socket: &mut TcpStream,
    until: Instant,
    mut read: impl FnMut(&mut TcpStream) -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        socket.set_read_timeout(Some(share_of(until, 1)?))?;
        match read(socket) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Sockets say of a time that has passed that they would wait.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
            other => return other,
        }
    }
}

/// Tries to send until a time.
fn send(
    socket: &mut TcpStream,
    until: Instant,
    mut write: impl FnMut(&mut TcpStream) -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        socket.set_write_timeout(Some(share_of(until, 1)?))?;
        match write(socket) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
            other => return other,
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A child of this process that was forked meanwhile has the socket open too.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
