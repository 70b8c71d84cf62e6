//! How much has to arrive before a reader is woken.

use std::os::fd::{AsFd, AsRawFd};

/// Below this a wake-up costs less than the wait for more.
const WORTH_BYTES: usize = 64 * 1024;

/// The socket's `SO_RCVLOWAT`, as it was last set.
///
/// A sender on the same host wakes its reader with every packet, at most 64 KiB, and pays for that more than for the
/// packet. A reader that knows how much of an answer is still to come, and can do nothing with less, sleeps until it is
/// there.
#[derive(Debug)]
pub(super) struct LowWater(usize);

impl Default for LowWater {
    fn default() -> Self {
        Self(1)
    }
}

impl LowWater {
    /// Before the reader sleeps: it can do nothing with less than `missing` bytes, which the peer has promised.
    ///
    /// A socket that does not take the setting wakes its reader with each packet, as before. So do all on other systems than
    /// Linux, which makes room in the socket's buffer for what is waited for: a reader there could wait for more than fits.
    #[expect(unsafe_code, reason = "no safe library has this socket option")]
    pub(super) fn set(&mut self, socket: &impl AsFd, missing: usize) {
        let bytes = if missing < WORTH_BYTES { 1 } else { missing };
        if bytes == self.0 || !cfg!(target_os = "linux") {
            return;
        }
        self.0 = bytes;
        let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        let len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or_default();
        // SAFETY: the descriptor is borrowed for the call, and the option's value is an int of the length that is given.
        unsafe {
            libc::setsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const value).cast(),
                len,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Duration;

    use mio::net::{TcpListener, TcpStream};
    use mio::{Events, Interest, Poll, Token};

    use super::*;

    fn is_told(poll: &mut Poll, wait: Duration) -> bool {
        let mut events = Events::with_capacity(8);
        poll.poll(&mut events, Some(wait)).unwrap();
        events.iter().any(mio::event::Event::is_readable)
    }

    #[test]
    fn a_reader_is_woken_once_what_it_misses_is_there() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (mut socket, _) = TcpListener::from_std(listener).accept().unwrap();
        let mut poll = Poll::new().unwrap();
        poll.registry().register(&mut socket, Token(0), Interest::READABLE).unwrap();
        let mut low_water = LowWater::default();
        let (soon, later) = (Duration::from_millis(50), Duration::from_secs(20));

        low_water.set(&socket, 200_000);
        sender.write_all(&vec![1; 150_000]).unwrap();
        assert!(!is_told(&mut poll, soon), "50,000 bytes are missing");
        sender.write_all(&vec![1; 50_000]).unwrap();
        assert!(is_told(&mut poll, later));
        read_all(&mut socket, 200_000);

        // What is not worth a wait is told at once, and so is the end.
        low_water.set(&socket, 10_000);
        sender.write_all(&[1; 10]).unwrap();
        assert!(is_told(&mut poll, later));
        read_all(&mut socket, 10);
        low_water.set(&socket, 200_000);
        drop(sender);
        assert!(is_told(&mut poll, later));
    }

    fn read_all(socket: &mut TcpStream, mut bytes: usize) {
        let mut buffer = vec![0; bytes];
        while bytes > 0 {
            match socket.read(&mut buffer) {
                Ok(read) => bytes -= read,
                Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
        // Readiness is told only once: the end of it has to be seen.
        assert_eq!(socket.read(&mut buffer).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
}
