//! What links over shared memory cost, as lines of JSON: a note to another process and back, spinning and sleeping; memory
//! exposed; copies beside plain ones.
//!
//! `cargo run --release -p headrace-fabric --example roundtrip`. The other process is this program once more.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a program to measure with: it has a clock, prints, and ends where something fails"
)]

use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headrace_fabric::shm::{self, Control, Link, LinkEndpoint, Listener};
use headrace_fabric::{Access, Descriptor, Endpoint, Event, Memory, Piece, Region, Rights};
use rustix::event::{PollFd, PollFlags, poll};

const TOKEN: [u8; 16] = [7; 16];
const PATIENCE: Duration = Duration::from_secs(10);
/// Empty looks before the processor is given up for a moment: with more processes than processors the other one needs it.
const LOOKS_BETWEEN_YIELDS: u32 = 64;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["echo", name, how] => echo(shm::connect(name, TOKEN, PATIENCE).unwrap(), how),
        ["endpoint", name] => echo_endpoint(shm::connect(name, TOKEN, PATIENCE).unwrap()),
        _ => measure(),
    }
}

fn measure() {
    notes("yield", 300_000);
    notes("spin", 300_000);
    notes("sleep", 30_000);
    endpoint(300_000);
    exposes();
    for bytes in [64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1 << 20] {
        copies(bytes);
    }
}

fn wait(files: &[std::os::fd::BorrowedFd<'_>]) {
    let mut polled: Vec<_> =
        files.iter().map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN)).collect();
    poll(&mut polled, None).unwrap();
}

/// The broker's side of a link to this program once more.
fn link(words: &[&str]) -> (Link, Child) {
    let mut random = [0; 16];
    random[..4].copy_from_slice(&std::process::id().to_le_bytes());
    let listener = Listener::bind(random).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(words[0]).arg(listener.name()).args(&words[1..]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    wait(&[listener.as_fd()]);
    let mut arrival = listener.accept().unwrap().unwrap();
    wait(&[arrival.as_fd()]);
    assert_eq!(arrival.hello().unwrap(), Some(TOKEN));
    (arrival.welcome(1 << 10).unwrap(), child)
}

/// The next note, waited for as told.
fn next(link: &mut Link, how: &str) -> Option<[u64; 4]> {
    let mut looks: u32 = 0;
    loop {
        if let Some(note) = link.take().unwrap() {
            return Some(note);
        }
        looks = looks.wrapping_add(1);
        match how {
            "sleep" => {
                if link.park().unwrap() {
                    wait(&[link.bell(), link.socket()]);
                    link.wake();
                }
                link.drain_bell();
                if matches!(link.control(), Err(shm::LinkError::Gone)) {
                    return None;
                }
            }
            "yield" if looks.is_multiple_of(LOOKS_BETWEEN_YIELDS) => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
        if looks.is_multiple_of(1 << 16) && matches!(link.control(), Err(shm::LinkError::Gone)) {
            return None;
        }
    }
}

fn echo(mut link: Link, how: &str) {
    while let Some(note) = next(&mut link, how) {
        link.send(note).unwrap();
    }
}

fn report(what: &str, mut each: Vec<Duration>, took: Duration) {
    each.sort_unstable();
    let at = |part: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the length")]
        let index = (each.len() as f64 * part) as usize;
        each[index.min(each.len() - 1)].as_nanos()
    };
    println!(
        "{{\"what\": \"{what}\", \"count\": {}, \"p50_ns\": {}, \"p99_ns\": {}, \"p99_9_ns\": {}, \"mean_ns\": {:.0}}}",
        each.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        took.as_nanos() as f64 / each.len() as f64,
    );
}

fn timed(what: &str, count: u32, mut once: impl FnMut(u32)) {
    for number in 0..count / 10 {
        once(number);
    }
    let mut each = Vec::with_capacity(usize::try_from(count).unwrap());
    let begun = Instant::now();
    for number in 0..count {
        let before = Instant::now();
        once(number);
        each.push(before.elapsed());
    }
    report(what, each, begun.elapsed());
}

fn notes(how: &str, count: u32) {
    let (mut link, mut child) = link(&["echo", how]);
    timed(&format!("note and back, {how}"), count, |number| {
        link.send([u64::from(number), 0, 0, 0]).unwrap();
        let note = next(&mut link, how).unwrap();
        assert_eq!(note[0], u64::from(number));
    });
    drop(link);
    assert!(child.wait().unwrap().success());
}

fn next_event(endpoint: &mut LinkEndpoint, events: &mut Vec<Event>) -> Option<Event> {
    let mut looks: u32 = 0;
    loop {
        if let Some(event) = events.pop() {
            return Some(event);
        }
        if endpoint.poll(events, 1).is_err() {
            return None;
        }
        looks = looks.wrapping_add(1);
        if events.is_empty() && looks.is_multiple_of(LOOKS_BETWEEN_YIELDS) {
            std::thread::yield_now();
        }
    }
}

/// Lends memory, tells its descriptor on standard output, and answers each notification.
fn echo_endpoint(link: Link) {
    let mut endpoint = LinkEndpoint::new(link).unwrap();
    let region = Region::whole(Memory::sealed("roundtrip", 1 << 16).unwrap());
    let registration = endpoint.register(&region, Access::WRITE | Access::READ).unwrap();
    let reported: Vec<String> = registration.descriptor.as_bytes().iter().map(u8::to_string).collect();
    println!("{}", reported.join(" "));
    let mut events = Vec::new();
    while let Some(event) = next_event(&mut endpoint, &mut events) {
        if matches!(event, Event::Notified { .. }) {
            endpoint.tell(&[0; 22]).unwrap();
        }
    }
}

fn endpoint(count: u32) {
    let (link, mut child) = link(&["endpoint"]);
    let mut endpoint = LinkEndpoint::new(link).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let reported: Vec<u8> = line.split_whitespace().map(|byte| byte.parse().unwrap()).collect();
    let remote = endpoint.reach(&Descriptor::new(&reported).unwrap()).unwrap().unwrap();
    let region = Region::whole(Memory::sealed("roundtrip", 1 << 16).unwrap());
    let local = endpoint.register(&region, Access::NONE).unwrap().local;
    let mut events = Vec::new();
    timed("write of 100 bytes and a message back, yield", count, |number| {
        let piece = Piece { local, at: 0, len: 100 };
        endpoint.write(u64::from(number), &[piece], remote, 0, Some(number)).unwrap();
        while !matches!(next_event(&mut endpoint, &mut events), Some(Event::Message(_))) {}
    });
    timed("read of 64 bytes", count, |number| {
        endpoint.read(u64::from(number), remote, 0, Piece { local, at: 0, len: 64 }).unwrap();
        assert!(matches!(next_event(&mut endpoint, &mut events), Some(Event::Done { .. })));
    });
    drop(endpoint);
    assert!(child.wait().unwrap().success());
}

/// Within this process: what it costs both sides together.
fn exposes() {
    let listener = Listener::bind([8; 16]).unwrap();
    let name = listener.name();
    let (mut broker, mut client) = std::thread::scope(|scope| {
        let client = scope.spawn(|| shm::connect(&name, TOKEN, PATIENCE).unwrap());
        wait(&[listener.as_fd()]);
        let mut arrival = listener.accept().unwrap().unwrap();
        wait(&[arrival.as_fd()]);
        arrival.hello().unwrap();
        (arrival.welcome(16).unwrap(), client.join().unwrap())
    });
    for (what, rights) in [("to be written", Rights::Write), ("to be read", Rights::Read)] {
        let memory = Memory::sealed("roundtrip", 1 << 20).unwrap();
        timed(&format!("1 MiB exposed {what}, mapped and ended"), 20_000, |number| {
            broker.expose(u64::from(number), &memory, rights).unwrap();
            let Some(Control::Exposed { memory, .. }) = client.control().unwrap() else { return };
            broker.end(u64::from(number)).unwrap();
            assert!(matches!(client.control().unwrap(), Some(Control::Ended { .. })));
            drop::<Arc<Memory>>(memory);
        });
    }
}

fn copies(bytes: usize) {
    /// Bytes that are copied for one figure.
    const ENOUGH: usize = 1 << 30;
    let ours = vec![1_u8; bytes];
    let mut theirs = vec![2_u8; bytes];
    let (from, to) = (Memory::sealed("from", bytes).unwrap(), Memory::sealed("to", bytes).unwrap());
    let (from, to) = (Region::whole(from), Region::whole(to));
    from.write(0, &ours).unwrap();
    let rate = |copy: &mut dyn FnMut()| {
        let best = (0..5).map(|_| {
            let begun = Instant::now();
            for _ in 0..ENOUGH / 5 / bytes {
                copy();
            }
            begun.elapsed()
        });
        (ENOUGH / 5) as f64 / best.min().unwrap().as_secs_f64() / 1e9
    };
    let plain = rate(&mut || black_box(&mut theirs).copy_from_slice(black_box(&ours)));
    let write = rate(&mut || to.write(0, black_box(&ours)).unwrap());
    let read = rate(&mut || from.read(0, black_box(&mut theirs)).unwrap());
    let across = rate(&mut || to.copy_from(0, &from, 0, bytes).unwrap());
    println!(
        "{{\"what\": \"copies\", \"bytes\": {bytes}, \"plain_gb_s\": {plain:.1}, \"write_gb_s\": {write:.1}, \
         \"read_gb_s\": {read:.1}, \"region_to_region_gb_s\": {across:.1}}}"
    );
}
