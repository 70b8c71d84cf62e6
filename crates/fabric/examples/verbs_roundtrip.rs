//! What operations over RDMA cost, as lines of JSON: one side's reads, additions and writes, and a write that the process on
//! the other side is notified of and answers, spinning and sleeping.
//!
//! `cargo run --release -p headrace-fabric --example verbs_roundtrip`, on a machine with a device. In a guest with Soft-RoCE,
//! whose figures tell of nothing but Soft-RoCE: `python -m tests.rdma.guest target/release/examples/verbs_roundtrip`. The
//! other process is this program once more.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a program to measure with: it has a clock, prints, and ends where something fails"
)]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::time::Instant;

use headrace_fabric::verbs::{Device, Joining, Options, VerbsEndpoint, Want};
use headrace_fabric::{Access, Descriptor, Endpoint, Event, Local, Memory, Piece, Region, Remote, Waitable};
use rustix::event::{PollFd, PollFlags, poll};

const LEN: usize = 1 << 20;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [path, how] = words.as_slice() {
        return answer(Side::new(UnixStream::connect(path).unwrap()), how == "sleep");
    }
    let mut peer = Peer::new("sleep");
    peer.one_sided("read", 8, 2000, |side, op, len| side.endpoint.read(op, side.theirs, 0, side.piece(len)));
    peer.one_sided("read", 2048, 2000, |side, op, len| {
        side.endpoint.read(op, side.theirs, 0, side.piece(len))
    });
    peer.one_sided("fetch_add", 8, 2000, |side, op, _| side.endpoint.fetch_add(op, side.theirs, 8, 1));
    for len in [64, 4096, 65_536, LEN] {
        let count = if len < LEN { 500 } else { 20 };
        peer.one_sided("write", len, count, |side, op, len| {
            let pieces = [side.piece(len)];
            side.endpoint.write(op, &pieces, side.theirs, 0, None)
        });
    }
    peer.reported("sleep");
    drop(peer);
    Peer::new("yield").reported("yield");
}

/// One side: an endpoint, memory of its own, and the other side's.
struct Side {
    endpoint: VerbsEndpoint,
    own: Local,
    theirs: Remote,
}

impl Side {
    fn new(mut stream: UnixStream) -> Side {
        let device = Device::open(&Want::default()).unwrap();
        let joining = Joining::new(&device, Options::default(), std::process::id()).unwrap();
        stream.write_all(&joining.hello()).unwrap();
        let mut hello = [0; Joining::HELLO_BYTES];
        stream.read_exact(&mut hello).unwrap();
        let mut endpoint = joining.join(&hello).unwrap();
        let region = Region::whole(Memory::sealed("roundtrip", LEN).unwrap());
        let access = Access::READ | Access::WRITE | Access::ADD;
        let own = endpoint.register(&region, access).unwrap();
        let mut reported = own.descriptor.as_bytes().to_vec();
        stream.write_all(&reported).unwrap();
        stream.read_exact(&mut reported).unwrap();
        let theirs = endpoint.reach(&Descriptor::new(&reported).unwrap()).unwrap().unwrap();
        Side { endpoint, own: own.local, theirs }
    }

    fn piece(&self, len: usize) -> Piece {
        Piece { local: self.own, at: 0, len }
    }

    fn write(&mut self, word: u32) {
        let piece = self.piece(64);
        self.endpoint.write(0, &[piece], self.theirs, 0, Some(word)).unwrap();
    }

    /// The next event; none: the peer has gone.
    fn next(&mut self, sleeps: bool) -> Option<Event> {
        let mut events = Vec::new();
        loop {
            self.endpoint.poll(&mut events, 1).ok()?;
            if let Some(event) = events.pop() {
                return Some(event);
            }
            if !sleeps {
                std::thread::yield_now();
            } else if self.endpoint.park().unwrap() {
                let (waker, _) = self.endpoint.wakers();
                poll(&mut [PollFd::from_borrowed_fd(waker, PollFlags::IN)], None).unwrap();
                self.endpoint.wake().unwrap();
            }
        }
    }

    /// The word of the peer's next notification.
    fn notified(&mut self, sleeps: bool) -> Option<u32> {
        loop {
            match self.next(sleeps)? {
                Event::Notified { imm, .. } => return Some(imm),
                Event::Done { result: Err(_), .. } => return None,
                _ => {}
            }
        }
    }
}

/// Answers every word with itself, until the last.
fn answer(mut side: Side, sleeps: bool) {
    while let Some(word) = side.notified(sleeps) {
        side.write(word);
        if word == u32::MAX {
            break;
        }
    }
}

/// This side, and the process of the other.
struct Peer(Side, Child);

impl Peer {
    fn new(how: &str) -> Peer {
        let path = std::env::temp_dir().join(format!("headrace-roundtrip-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let child = command.arg(&path).arg(how).spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        std::fs::remove_file(&path).unwrap();
        Peer(Side::new(stream), child)
    }

    fn one_sided<E: std::fmt::Debug>(
        &mut self,
        what: &str,
        len: usize,
        count: usize,
        begin: impl Fn(&mut Side, u64, usize) -> Result<(), E>,
    ) {
        let side = &mut self.0;
        let mut times = Vec::with_capacity(count);
        for op in 0..count {
            let began = Instant::now();
            begin(side, op as u64, len).unwrap();
            match side.next(false).unwrap() {
                Event::Done { result, .. } => drop(result.unwrap()),
                other => panic!("{other:?}"),
            }
            times.push(began.elapsed());
        }
        report(what, "one-sided", len, times);
    }

    fn reported(&mut self, how: &str) {
        let count: u32 = 1000;
        let mut times = Vec::new();
        for word in 0..count {
            let began = Instant::now();
            self.0.write(word);
            assert_eq!(self.0.notified(how == "sleep"), Some(word));
            times.push(began.elapsed());
        }
        report("write and answer", how, 64, times);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A sleeper is not told when we go.
        let _ = self.1.kill();
        self.1.wait().unwrap();
    }
}

fn report(what: &str, how: &str, len: usize, mut times: Vec<std::time::Duration>) {
    times.sort();
    let at = |per_mille: usize| times[(times.len() - 1) * per_mille / 1000].as_nanos() as f64 / 1000.0;
    println!(
        "{{\"what\": \"{what}\", \"how\": \"{how}\", \"bytes\": {len}, \"count\": {}, \"p50_us\": {:.1}, \
         \"p99_us\": {:.1}, \"p999_us\": {:.1}}}",
        times.len(),
        at(500),
        at(990),
        at(999)
    );
}
