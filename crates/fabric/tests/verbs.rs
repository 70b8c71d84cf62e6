//! Verbs on a device: Soft-RoCE in a guest, where tests/rdma runs these; `cargo test -- --ignored` on a machine with a card.
//! Each fault has a pair of its own, since a failure ends a connection.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test ends at what it did not expect, waits for a device, and prints what it has measured"
)]

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use headrace_fabric::conformance::{self, Channel, Connector, Outcome, Role};
use headrace_fabric::verbs::{
    Address, Completion, Completions, Device, Domain, Done, Failure, Grants, Joining, Opening, Options,
    Patience, Place, QueuePair, Registration, Remote, Shape, VerbsEndpoint, VerbsError, Want, Work, devices,
};
use headrace_fabric::{Access, Descriptor, Endpoint, Event, FabricError, Piece, Waitable};
use headrace_fabric::{Memory, Region, Rights};

const ALL: Grants = Grants { reads: true, writes: true, adds: true };
const READS: Grants = Grants { reads: true, writes: false, adds: false };
const NONE: Grants = Grants { reads: false, writes: false, adds: false };
const SHAPE: Shape = Shape { work: 64, receives: 64, pieces: 8, grants: ALL };
/// A dead peer is found within tens of milliseconds.
const SOON: Patience = Patience { timeout: 10, retries: 3, retries_not_ready: 0 };
const LEN: usize = 8192;
/// A guest's seconds are long ones.
const LIMIT: Duration = Duration::from_secs(20);

/// One end of a connection.
struct End {
    pair: QueuePair,
    completions: Arc<Completions>,
    domain: Arc<Domain>,
    /// Registered for ourselves.
    own: Registration,
}

fn device() -> Arc<Device> {
    Device::open(&Want::default()).unwrap()
}

fn memory(len: usize) -> Arc<Memory> {
    Memory::sealed("verbs", len).unwrap()
}

fn region(len: usize) -> Region {
    Region::whole(memory(len))
}

fn opening(device: &Arc<Device>, shape: Shape) -> (Opening, Arc<Completions>, Arc<Domain>) {
    let domain = device.domain().unwrap();
    let completions = Completions::new(device, shape.work + shape.receives).unwrap();
    (Opening::new(&domain, &completions, shape, 77).unwrap(), completions, domain)
}

fn ends_with(device: &Arc<Device>, shape: Shape, patience: Patience) -> (End, End) {
    let (ours, theirs) = (opening(device, shape), opening(device, shape));
    let (our_address, their_address) = (ours.0.address(), theirs.0.address());
    let end = |(opening, completions, domain): (Opening, _, Arc<Domain>), peer: &Address| End {
        pair: opening.connect(peer, patience).unwrap(),
        completions,
        own: domain.register(&region(LEN), NONE).unwrap(),
        domain,
    };
    // As it travels.
    let reported = Address::from_bytes(&their_address.to_bytes()).unwrap();
    (end(ours, &reported), end(theirs, &our_address))
}

fn ends(device: &Arc<Device>) -> (End, End) {
    ends_with(device, SHAPE, SOON)
}

impl End {
    /// The next completion; looked for without sleeping, but letting others run.
    fn next(&self) -> Completion {
        let deadline = Instant::now() + LIMIT;
        let mut found = Vec::new();
        while self.completions.poll(&mut found, 1).unwrap() == 0 {
            assert!(Instant::now() < deadline, "nothing was completed");
            std::thread::yield_now();
        }
        found[0]
    }

    fn done(&self, id: u64) -> Done {
        let found = self.next();
        assert_eq!((found.id, found.pair), (id, self.pair.number()), "{found:?}");
        found.done.unwrap()
    }

    fn fails(&self, id: u64) -> Failure {
        let found = self.next();
        assert_eq!(found.id, id, "{found:?}");
        found.done.unwrap_err()
    }

    fn grant(&self, grants: Grants) -> (Registration, Remote) {
        let registration = self.domain.register(&region(LEN), grants).unwrap();
        let remote = registration.remote();
        (registration, remote)
    }

    fn write(&self, id: u64, to: Place, len: usize) {
        self.pair.post(id, Work::Write { to, notify: None }, &[self.own.piece(0, len)]).unwrap();
    }
}

fn bytes(region: &Region, at: usize, len: usize) -> Vec<u8> {
    let mut seen = vec![0; len];
    region.read(at, &mut seen).unwrap();
    seen
}

fn place(of: &Remote, at: u64) -> Place {
    of.place(at, 0).unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_device_says_what_it_can_do() {
    let device = device();
    assert!(devices().unwrap().contains(&device.name().to_owned()));
    let limits = device.limits();
    assert!(limits.pieces >= 8 && limits.answers > 0 && limits.message >= 1 << 20, "{device:?}");
    let by_name = Want { device: Some(device.name().to_owned()), port: Some(1), gid_index: None };
    Device::open(&by_name).unwrap();
    let reported = |want: Want| Device::open(&want).unwrap_err();
    let other = reported(Want { device: Some("no-such".into()), ..Want::default() });
    assert!(other.to_string().contains(device.name()), "{other}");
    assert!(matches!(reported(Want { port: Some(9), ..Want::default() }), VerbsError::NoPort { .. }));
    assert!(matches!(
        reported(Want { gid_index: Some(200), ..Want::default() }),
        VerbsError::NoAddress { .. }
    ));
}

#[test]
#[ignore = "needs an RDMA device"]
fn pieces_are_written_in_order_and_the_word_comes_after_them() {
    let (ours, theirs) = ends(&device());
    let (landing, remote) = theirs.grant(Grants { writes: true, ..NONE });
    theirs.pair.receive(9, None).unwrap();
    theirs.pair.receive(10, None).unwrap();
    ours.own.region().write(0, b"one-two-three").unwrap();
    let pieces = [ours.own.piece(8, 5), ours.own.piece(4, 4), ours.own.piece(0, 3)];
    let to = remote.place(100, 12).unwrap();
    ours.pair.post(1, Work::Write { to, notify: Some(0xfedc_ba98) }, &pieces).unwrap();
    assert_eq!(theirs.done(9), Done::Notified { word: 0xfedc_ba98, bytes: 12 });
    assert_eq!(bytes(landing.region(), 99, 14), b"\0threetwo-one\0");
    assert_eq!(ours.done(1), Done::Work);
    // Nothing at all can be notified of as well.
    let nowhere = remote.place(0, 0).unwrap();
    ours.pair.post(2, Work::Write { to: nowhere, notify: Some(3) }, &[]).unwrap();
    assert_eq!(theirs.done(10), Done::Notified { word: 3, bytes: 0 });
    assert_eq!(ours.done(2), Done::Work);
    remote.place(LEN as u64, 1).unwrap_err();
}

#[test]
#[ignore = "needs an RDMA device"]
fn bytes_are_read() {
    let (ours, theirs) = ends(&device());
    let (exposed, remote) = theirs.grant(READS);
    exposed.region().write(40, b"what they have").unwrap();
    let pieces = [ours.own.piece(16, 4), ours.own.piece(0, 10)];
    ours.pair.post(1, Work::Read { from: remote.place(40, 14).unwrap() }, &pieces).unwrap();
    assert_eq!(ours.done(1), Done::Work);
    assert_eq!(bytes(ours.own.region(), 0, 20), b" they have\0\0\0\0\0\0what");
}

#[test]
#[ignore = "needs an RDMA device"]
fn words_are_added_to_by_both_sides() {
    let device = device();
    let (ours, theirs) = ends(&device);
    let (words, remote) = theirs.grant(ALL);
    words.region().word(16).unwrap().store(1 << 48, Ordering::Release);
    let at = remote.place(16, 8).unwrap();
    // The owner adds through the device as well: a pair that is connected to itself.
    let (own, own_completions, domain) = opening(&device, SHAPE);
    let address = own.address();
    let to_itself = End {
        pair: own.connect(&address, SOON).unwrap(),
        completions: own_completions,
        own: domain.register(&region(LEN), NONE).unwrap(),
        domain,
    };
    let (words_again, remote_again) = to_itself.grant(ALL);
    for round in 0..100_u64 {
        let into = [ours.own.piece(0, 8)];
        ours.pair.post(round, Work::FetchAdd { at, add: (1 << 48) + 10 }, &into).unwrap();
        assert_eq!(ours.done(round), Done::Work);
        assert_eq!(ours.own.region().load(0).unwrap(), ((round + 1) << 48) + round * 10);
        let add = Work::FetchAdd { at: remote_again.place(8, 8).unwrap(), add: 3 };
        to_itself.pair.post(round, add, &[to_itself.own.piece(0, 8)]).unwrap();
        to_itself.done(round);
        assert_eq!(to_itself.own.region().load(0).unwrap(), round * 3);
    }
    assert_eq!(words.region().load(16).unwrap(), (101 << 48) + 1000);
    assert_eq!(words_again.region().load(8).unwrap(), 300);
    let add = Work::FetchAdd { at, add: 1 };
    for pieces in [&[ours.own.piece(0, 4)][..], &[]] {
        assert!(matches!(ours.pair.post(0, add, pieces), Err(VerbsError::NoWord)));
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn messages_come_in_order() {
    let (ours, theirs) = ends(&device());
    for number in 0..4 {
        theirs
            .pair
            .receive(number, Some(theirs.own.piece(usize::try_from(number).unwrap() * 64, 64)))
            .unwrap();
    }
    for number in 0..4_u8 {
        let at = usize::from(number) * 64;
        ours.own.region().write(at, &[number + 1; 32]).unwrap();
        ours.pair.post(number.into(), Work::Send, &[ours.own.piece(at, 32)]).unwrap();
    }
    for number in 0..4_u8 {
        assert_eq!(theirs.done(number.into()), Done::Received { bytes: 32 });
        assert_eq!(bytes(theirs.own.region(), usize::from(number) * 64, 32), [number + 1; 32]);
        ours.done(number.into());
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_million_bytes_go_in_one_piece() {
    let (ours, theirs) = ends(&device());
    let len = 1 << 20;
    let landing = theirs.domain.register(&region(len), ALL).unwrap();
    let source = ours.domain.register(&region(len), NONE).unwrap();
    let pattern: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    source.region().write(0, &pattern).unwrap();
    theirs.pair.receive(0, None).unwrap();
    let to = place(&landing.remote(), 0);
    ours.pair.post(1, Work::Write { to, notify: Some(0) }, &[source.piece(0, len)]).unwrap();
    assert_eq!(theirs.done(0), Done::Notified { word: 0, bytes: 1 << 20 });
    ours.done(1);
    assert_eq!(bytes(landing.region(), 0, len), pattern);
    source.region().write(0, &vec![0; len]).unwrap();
    ours.pair.post(2, Work::Read { from: to }, &[source.piece(0, len)]).unwrap();
    ours.done(2);
    assert_eq!(bytes(source.region(), 0, len), pattern);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_sleeper_is_woken() {
    let (ours, theirs) = ends(&device());
    theirs.pair.receive(0, Some(theirs.own.piece(0, 64))).unwrap();
    theirs.completions.arm().unwrap();
    let ready = |milliseconds: i64| {
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: milliseconds * 1_000_000 };
        let descriptor = theirs.completions.as_fd();
        let mut asked = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut asked, Some(&timeout)).unwrap() == 1
    };
    assert!(!ready(0));
    ours.pair.post(1, Work::Send, &[ours.own.piece(0, 8)]).unwrap();
    assert!((0..100).any(|_| ready(200)), "nobody was woken");
    theirs.completions.awake().unwrap();
    assert_eq!(theirs.done(0), Done::Received { bytes: 8 });
    assert!(!ready(0), "it wakes once");
}

#[test]
#[ignore = "needs an RDMA device"]
fn after_a_revocation_nothing_lands() {
    let (ours, theirs) = ends(&device());
    let memory = memory(LEN);
    let landing = theirs.domain.register(&Region::whole(memory.clone()), ALL).unwrap();
    let to = place(&landing.remote(), 0);
    ours.own.region().write(0, b"in time").unwrap();
    ours.write(1, to, 7);
    ours.done(1);
    landing.revoke().unwrap();
    ours.own.region().write(0, b"LATE").unwrap();
    ours.write(2, to, 4);
    ours.write(3, to, 4);
    assert_eq!(ours.fails(2), Failure::Access);
    assert_eq!(ours.fails(3), Failure::Flushed);
    assert_eq!(bytes(&Region::whole(memory), 0, 7), b"in time");
}

#[test]
#[ignore = "needs an RDMA device"]
fn one_peers_keys_are_nothing_to_another() {
    let device = device();
    let (_ours, theirs) = ends(&device);
    let (landing, remote) = theirs.grant(ALL);
    let (stranger, _other) = ends(&device);
    stranger.write(1, place(&remote, 0), 4);
    assert_eq!(stranger.fails(1), Failure::Access);
    assert_eq!(bytes(landing.region(), 0, 4), [0; 4]);
}

/// What it is, what is granted, and the work that is not.
type Case<'a> = (&'a str, Grants, &'a dyn Fn(Remote) -> Work);

#[test]
#[ignore = "needs an RDMA device"]
fn what_was_not_granted_is_refused() {
    let device = device();
    let add = |at| Work::FetchAdd { at, add: 1 };
    let read = |from| Work::Read { from };
    let write = |to| Work::Write { to, notify: None };
    let cases: [Case<'_>; 7] = [
        ("a wrong key", ALL, &|of| write(Place { key: of.key ^ 0x55, ..place(&of, 0) })),
        ("a write beyond the end", ALL, &|of| write(place(&of, LEN as u64 - 4))),
        ("a read beyond the end", ALL, &|of| read(place(&of, LEN as u64 - 4))),
        ("a write before the start", ALL, &|of| write(Place { address: of.address - 4, ..place(&of, 0) })),
        ("a write of what is only read", READS, &|of| write(place(&of, 0))),
        ("an addition to what is only read", READS, &|of| add(place(&of, 0))),
        ("a read of what is only written", Grants { writes: true, ..NONE }, &|of| read(place(&of, 0))),
    ];
    for (what, grants, work) in cases {
        let (ours, theirs) = ends(&device);
        let (exposed, remote) = theirs.grant(grants);
        ours.own.region().write(0, &[7; 8]).unwrap();
        ours.pair.post(1, work(remote), &[ours.own.piece(0, 8)]).unwrap();
        let failure = ours.fails(1);
        assert!(matches!(failure, Failure::Access | Failure::Request), "{what}: {failure}");
        assert_eq!(bytes(exposed.region(), 0, LEN), [0; LEN], "{what}");
        assert_eq!(ours.own.region().load(0).unwrap(), 0x0707_0707_0707_0707, "{what}");
    }
    // A pair that grants less than its memory.
    let (ours, theirs) = ends_with(&device, Shape { grants: READS, ..SHAPE }, SOON);
    let (exposed, remote) = theirs.grant(ALL);
    ours.write(1, place(&remote, 0), 8);
    assert!(matches!(ours.fails(1), Failure::Access | Failure::Request));
    assert_eq!(bytes(exposed.region(), 0, 8), [0; 8]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_word_that_is_not_aligned_is_not_added_to() {
    let (ours, theirs) = ends(&device());
    let (words, remote) = theirs.grant(ALL);
    let add = Work::FetchAdd { at: place(&remote, 4), add: 1 };
    // Some devices refuse it themselves, others the peer's.
    match ours.pair.post(1, add, &[ours.own.piece(0, 8)]) {
        Err(reported) => assert!(reported.to_string().contains("cannot post work"), "{reported}"),
        Ok(()) => assert!(matches!(ours.fails(1), Failure::Access | Failure::Request)),
    }
    assert_eq!(bytes(words.region(), 0, 16), [0; 16]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn who_has_posted_nothing_to_receive_is_not_waited_for() {
    let (ours, theirs) = ends(&device());
    let (_landing, remote) = theirs.grant(ALL);
    ours.pair.post(1, Work::Write { to: place(&remote, 0), notify: Some(1) }, &[]).unwrap();
    assert_eq!(ours.fails(1), Failure::NotReceiving);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_that_is_gone_is_found_silent() {
    let (ours, theirs) = ends(&device());
    let (_landing, remote) = theirs.grant(ALL);
    drop(theirs);
    ours.write(1, place(&remote, 0), 8);
    assert_eq!(ours.fails(1), Failure::Silent);
}

/// The other process of the test below: answers each notification with a write of what has come and a word that counts.
#[test]
#[ignore = "started by two_processes_and_one_is_killed"]
fn echo() {
    let Some(reported) = std::env::var_os(PEER) else { return };
    let (peer, theirs) = parse(reported.to_str().unwrap());
    let (opening, completions, domain) = opening(&device(), SHAPE);
    let landing = domain.register(&region(LEN), ALL).unwrap();
    for _ in 0..SHAPE.receives {
        opening.receive(0, None).unwrap();
    }
    println!("{PEER}{}", text(&opening.address(), &landing.remote()));
    let pair = opening.connect(&peer, SOON).unwrap();
    let end = End { pair, completions, own: landing, domain };
    let to = theirs.place(0, LEN as u64).unwrap();
    loop {
        match end.next() {
            Completion { done: Ok(Done::Notified { word, bytes }), .. } => {
                end.pair.receive(0, None).unwrap();
                let answer = Work::Write { to, notify: Some(word + 1) };
                end.pair.post(1, answer, &[end.own.piece(0, bytes as usize)]).unwrap();
            }
            Completion { done, .. } => assert_eq!(done.unwrap(), Done::Work),
        }
    }
}

const PEER: &str = "HEADRACE_TEST_PEER";

fn text(address: &Address, memory: &Remote) -> String {
    format!("{:?} {} {} {}", address.to_bytes(), memory.address, memory.len, memory.key)
}

fn parse(text: &str) -> (Address, Remote) {
    let (address, memory) = text.trim_start_matches('[').split_once(']').unwrap();
    let address: Vec<u8> = address.split(", ").map(|byte| byte.parse().unwrap()).collect();
    let numbers: Vec<u64> = memory.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let remote = Remote { address: numbers[0], len: numbers[1], key: numbers[2].try_into().unwrap() };
    (Address::from_bytes(&address).unwrap(), remote)
}

/// Ends the process with the test, however that ends.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn two_processes_and_one_is_killed() {
    let (opening, completions, domain) = opening(&device(), SHAPE);
    let landing = domain.register(&region(LEN), ALL).unwrap();
    let reported = text(&opening.address(), &landing.remote());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--ignored", "--nocapture", "echo"]).env(PEER, reported);
    let mut child = Child(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let line = lines.find_map(|line| Some(line.unwrap().split_once(PEER)?.1.to_owned()));
    let (peer, theirs) = parse(&line.unwrap());
    opening.receive(0, None).unwrap();
    let ours = End {
        pair: opening.connect(&peer, SOON).unwrap(),
        completions,
        own: domain.register(&region(LEN), NONE).unwrap(),
        domain,
    };
    let to = theirs.place(0, LEN as u64).unwrap();
    let mut times = Vec::new();
    for round in 0..200_u32 {
        let sent = [round as u8; 100];
        ours.own.region().write(0, &sent).unwrap();
        let began = Instant::now();
        ours.pair.post(1, Work::Write { to, notify: Some(round) }, &[ours.own.piece(0, 100)]).unwrap();
        let mut back = None;
        for _ in 0..2 {
            match ours.next().done.unwrap() {
                Done::Notified { word, bytes } => back = Some((word, bytes)),
                done => assert_eq!(done, Done::Work),
            }
        }
        times.push(began.elapsed());
        assert_eq!(back, Some((round + 1, 100)));
        assert_eq!(bytes(landing.region(), 0, 100), sent);
        ours.pair.receive(0, None).unwrap();
    }
    times.sort();
    println!("round trips, one spinning with the other: p50 {:?}, p99 {:?}", times[100], times[198]);
    drop(child);
    ours.write(2, to, 8);
    assert_eq!(ours.fails(2), Failure::Silent);
}

#[test]
#[ignore = "needs an RDMA device"]
fn who_ends_a_connection_gets_back_what_was_posted() {
    let (ours, theirs) = ends(&device());
    theirs.pair.receive(5, Some(theirs.own.piece(0, 64))).unwrap();
    theirs.pair.end().unwrap();
    assert_eq!(theirs.fails(5), Failure::Flushed);
    ours.pair.post(1, Work::Send, &[ours.own.piece(0, 8)]).unwrap();
    assert_eq!(ours.fails(1), Failure::Silent);
}

#[test]
#[ignore = "needs an RDMA device"]
fn local_mistakes_are_refused_before_the_device_sees_them() {
    let device = device();
    let (ours, theirs) = ends(&device);
    let (_landing, remote) = theirs.grant(ALL);
    let write = Work::Write { to: place(&remote, 0), notify: None };
    let post = |work, pieces: &[_]| ours.pair.post(1, work, pieces).unwrap_err();
    assert!(matches!(post(write, &[ours.own.piece(LEN - 4, 8)]), VerbsError::Bounds(_)));
    assert!(matches!(post(write, &[theirs.own.piece(0, 8)]), VerbsError::OtherDomain));
    assert!(matches!(post(write, &[ours.own.piece(0, 1); 9]), VerbsError::TooMany { asked: 9, room: 8, .. }));
    let many = Shape { work: 1 << 30, ..SHAPE };
    let completions = Completions::new(&device, 16).unwrap();
    assert!(matches!(
        Opening::new(&ours.domain, &completions, many, 0),
        Err(VerbsError::TooMany { what: "operations under way", .. })
    ));
    assert!(matches!(
        Opening::new(&ours.domain, &completions, SHAPE, 0),
        Err(VerbsError::TooMany { what: "completions of a queue pair", asked: 128, room: 16 })
    ));
    // What a pair has taken of the room comes back with it.
    let small = Shape { work: 8, receives: 8, pieces: 1, grants: NONE };
    for _ in 0..3 {
        Opening::new(&ours.domain, &completions, small, 0).unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn memory_that_is_only_read_is_exposed_to_readers_alone() {
    let device = device();
    let (ours, theirs) = ends(&device);
    let made = memory(LEN);
    Region::whole(made.clone()).write(0, b"sealed").unwrap();
    let read = Memory::from_peer(made.readers_file().unwrap(), LEN, Rights::Read).unwrap();
    let reported = theirs.domain.register(&Region::whole(read.clone()), ALL).unwrap_err().to_string();
    assert!(reported.contains("it is only read"), "{reported}");
    match theirs.domain.register(&Region::whole(read.clone()), READS) {
        Ok(exposed) => {
            ours.pair
                .post(1, Work::Read { from: place(&exposed.remote(), 0) }, &[ours.own.piece(0, 6)])
                .unwrap();
            ours.done(1);
            assert_eq!(bytes(ours.own.region(), 0, 6), b"sealed");
            // And the card is not told to write into it.
            let (exposed_too, remote) = ours.grant(ALL);
            let into = [exposed.piece(0, 8)];
            let posted = theirs.pair.post(1, Work::Read { from: place(&remote, 0) }, &into);
            assert!(matches!(posted, Err(VerbsError::Bounds(_))), "{posted:?}");
            drop(exposed_too);
        }
        // Kernels before 6.2.
        Err(reported) => assert!(matches!(reported, VerbsError::File { .. }), "{reported}"),
    }
}

#[test]
#[ignore = "needs an RDMA device, and to be a user whose memory is limited"]
fn more_than_may_be_locked_is_explained() {
    let domain = device().domain().unwrap();
    let len = 4 << 20;
    let reported = domain.register(&region(len), ALL).unwrap_err();
    assert!(matches!(reported, VerbsError::Locked { bytes } if bytes == len), "{reported}");
    assert!(reported.to_string().contains("ulimit -l"), "{reported}");
}

#[test]
#[ignore = "needs an RDMA device that this user may not open"]
fn a_device_that_may_not_be_opened_is_explained() {
    let reported = Device::open(&Want::default()).unwrap_err();
    assert!(matches!(reported, VerbsError::NotPermitted { .. }), "{reported}");
    assert!(reported.to_string().contains("/dev/infiniband"), "{reported}");
}

#[test]
#[ignore = "needs libibverbs, and no RDMA device"]
fn no_device_is_explained() {
    let reported = Device::open(&Want::default()).unwrap_err();
    assert!(matches!(reported, VerbsError::NoDevice), "{reported}");
    assert!(reported.to_string().contains("headrace.datapath"), "{reported}");
}

#[test]
#[ignore = "needs an RDMA device, and a file system on a disk as the temporary folder"]
fn files_of_a_disk_are_registered_where_the_kernel_does() {
    let path = std::env::temp_dir().join("headrace-registered");
    let memory = Memory::create(&path, LEN).unwrap();
    std::fs::remove_file(&path).unwrap();
    let (ours, theirs) = ends(&device());
    match theirs.domain.register(&Region::whole(memory.clone()), ALL) {
        Ok(landing) => {
            ours.write(1, place(&landing.remote(), 0), 8);
            ours.done(1);
            println!("written, as kernels do that register such pages");
        }
        Err(reported) => {
            assert!(matches!(reported, VerbsError::File { .. }), "{reported}");
            println!("refused: {reported}");
        }
    }
    // Reading is allowed by all of them.
    Region::whole(memory.clone()).write(0, b"segment!").unwrap();
    let (ours, theirs) = ends(&device());
    let exposed = theirs.domain.register(&Region::whole(memory.clone()), READS).unwrap();
    ours.pair.post(1, Work::Read { from: place(&exposed.remote(), 0) }, &[ours.own.piece(0, 8)]).unwrap();
    ours.done(1);
    assert_eq!(bytes(ours.own.region(), 0, 8), b"segment!");
}

/// Connections of little room, so that it is missing at times.
struct Joins(Arc<Device>);

impl Connector for Joins {
    fn connect(
        &mut self,
        _: Role,
        channel: &mut Channel<'_>,
    ) -> Result<Box<dyn Waitable>, conformance::Failure> {
        let options = Options {
            outstanding: 32,
            receives: 16,
            message_bytes: 4096,
            patience: Patience { timeout: 12, ..SOON },
        };
        let joining = Joining::new(&self.0, options, 123).unwrap();
        channel.put(&joining.hello())?;
        Ok(Box::new(joining.join(&channel.get()?).unwrap()))
    }
}

fn conforms(role: Role, mut stream: UnixStream) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let outcomes = conformance::run(role, &mut Joins(device()), &mut stream).unwrap();
    let failed: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.result.is_err()).collect();
    assert!(!outcomes.is_empty() && failed.is_empty(), "{failed:#?}");
    println!("{} cases of the suite of all fabrics", outcomes.len());
}

#[test]
#[ignore = "needs an RDMA device"]
fn it_does_what_every_fabric_does() {
    let path = std::env::temp_dir().join(format!("headrace-verbs-{}", std::process::id()));
    let meeting = UnixListener::bind(&path).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--ignored", "--nocapture", "conforming_peer"]).env(PEER, &path);
    let mut child = Child(command.stdout(Stdio::null()).spawn().unwrap());
    let (stream, _) = meeting.accept().unwrap();
    std::fs::remove_file(&path).unwrap();
    conforms(Role::Second, stream);
    assert!(child.0.wait().unwrap().success());
}

#[test]
#[ignore = "started by it_does_what_every_fabric_does"]
fn conforming_peer() {
    let path = std::env::var_os(PEER).unwrap();
    conforms(Role::First, UnixStream::connect(path).unwrap());
}

const OPTIONS: Options = Options { outstanding: 8, receives: 8, message_bytes: 256, patience: SOON };

/// An endpoint, and a peer of it that can send whatever it likes.
fn against(device: &Arc<Device>) -> (VerbsEndpoint, End) {
    let joining = Joining::new(device, OPTIONS, 5).unwrap();
    let hello = joining.hello();
    let (opening, completions, domain) = opening(device, SHAPE);
    let own = domain.register(&region(LEN), NONE).unwrap();
    for number in 0..8 {
        opening.receive(number, Some(own.piece(LEN - 256, 256))).unwrap();
    }
    let mut theirs = opening.address().to_bytes().to_vec();
    theirs.extend(8_u32.to_le_bytes());
    theirs.extend(256_u32.to_le_bytes());
    let end = End {
        pair: opening.connect(&Address::from_bytes(&hello[..Address::LEN]).unwrap(), SOON).unwrap(),
        completions,
        own,
        domain,
    };
    (joining.join(&theirs).unwrap(), end)
}

impl End {
    fn sends(&self, bytes: &[u8]) {
        self.own.region().write(0, bytes).unwrap();
        self.pair.post(1, Work::Send, &[self.own.piece(0, bytes.len())]).unwrap();
    }
}

/// Polls until there is an event, or an end.
fn polled(endpoint: &mut VerbsEndpoint) -> Result<Event, FabricError> {
    let deadline = Instant::now() + LIMIT;
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(Instant::now() < deadline, "nothing has come");
        endpoint.poll(&mut events, 1)?;
        std::thread::yield_now();
    }
    Ok(events.remove(0))
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_that_lies_is_found_out() {
    let device = device();
    let head = |kind: u8, taken: u32| [&[kind, 0, 0, 0][..], &taken.to_le_bytes(), b"hello"].concat();
    for (bytes, expected) in [
        (b"short".to_vec(), "too short"),
        (head(9, 0), "means nothing"),
        (head(1, 1), "taken what was not sent"),
        (head(2, u32::MAX), "taken what was not sent"),
        (vec![1; 400], "the peer has gone"),
    ] {
        let (mut ours, theirs) = against(&device);
        theirs.sends(&head(1, 0));
        let event = polled(&mut ours).unwrap();
        assert!(matches!(&event, Event::Message(message) if **message == *b"hello"), "{event:?}");
        theirs.sends(&bytes);
        let reported = polled(&mut ours).unwrap_err();
        assert!(reported.to_string().contains(expected), "{reported} for {expected}");
        let refused = ours.tell(b"any more?").unwrap_err();
        assert_eq!(refused.to_string(), reported.to_string());
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn who_sends_more_than_there_is_room_for_loses_the_connection() {
    let (mut ours, theirs) = against(&device());
    for number in 0..9 {
        theirs.sends(&[1, 0, 0, 0, 0, 0, 0, 0, number]);
        if number < 8 {
            theirs.done(1);
        }
    }
    assert_eq!(theirs.fails(1), Failure::NotReceiving);
    for number in 0..8 {
        let event = polled(&mut ours).unwrap();
        assert!(matches!(&event, Event::Message(message) if **message == [number]), "{event:?}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_endpoint_sends_no_more_than_its_peer_has_said() {
    let (mut ours, theirs) = against(&device());
    // Four of its eight receives are kept back.
    for _ in 0..4 {
        ours.tell(b"one").unwrap();
    }
    for _ in 0..3 {
        assert!(matches!(ours.tell(b"more"), Err(FabricError::Full(_))));
    }
    assert!(ours.park().unwrap());
    for number in 0..4 {
        assert_eq!(theirs.done(number), Done::Received { bytes: 11 });
    }
    theirs.sends(&[2, 0, 0, 0, 1, 0, 0, 0]);
    theirs.done(1);
    let deadline = Instant::now() + LIMIT;
    while ours.park().unwrap() {
        assert!(Instant::now() < deadline, "nobody was woken");
        std::thread::yield_now();
    }
    ours.tell(b"two").unwrap();
    assert!(matches!(ours.tell(b"more"), Err(FabricError::Full(_))));
}

#[test]
#[ignore = "needs an RDMA device"]
fn what_is_held_waits_and_keeps_neither_operations_nor_sleepers() {
    let (mut ours, theirs) = against(&device());
    let local = ours.register(&region(64), Access::NONE).unwrap().local;
    theirs.sends(b"\x01\0\0\0\0\0\0\0hello");
    theirs.done(1);
    ours.hold(true);
    ours.send(7, &[Piece { local, at: 0, len: 64 }]).unwrap();
    let event = polled(&mut ours).unwrap();
    assert!(matches!(event, Event::Done { op: 7, result: Ok(_) }), "{event:?}");
    let mut events = Vec::new();
    ours.poll(&mut events, 8).unwrap();
    assert!(events.is_empty() && ours.park().unwrap(), "{events:?}");
    ours.hold(false);
    assert!(!ours.park().unwrap());
    let event = polled(&mut ours).unwrap();
    assert!(matches!(&event, Event::Message(message) if **message == *b"hello"), "{event:?}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn what_a_peer_says_of_itself_is_checked() {
    let device = device();
    let hello = Joining::new(&device, OPTIONS, 5).unwrap().hello();
    let reported =
        |hello: &[u8]| Joining::new(&device, OPTIONS, 5).unwrap().join(hello).unwrap_err().to_string();
    assert!(reported(&hello[1..]).contains("another length"));
    assert!(reported(&hello[..20]).contains("another length"));
    assert!(reported(&[&hello[..], b"x"].concat()).contains("another length"));
    for receives in [0, 4, u32::MAX] {
        let mut bad = hello;
        bad[Address::LEN..Address::LEN + 4].copy_from_slice(&u32::to_le_bytes(receives));
        assert!(reported(&bad).contains("receives none, or too many"), "{receives}");
    }
    let (mut ours, _theirs) = against(&device);
    let good = ours.register(&region(64), Access::READ).unwrap().descriptor;
    ours.reach(&good).unwrap().unwrap();
    let good = good.as_bytes();
    let beyond = [&[0xff; 16][..], &good[16..]].concat();
    let rights = [&good[..good.len() - 1], &[8]].concat();
    for bad in [&good[1..], &[good, b"x"].concat(), &beyond, &rights, b""] {
        let reported = ours.reach(&Descriptor::new(bad).unwrap()).unwrap_err();
        assert!(matches!(reported, FabricError::Peer(_)), "{reported}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn what_is_refused_here_does_not_end_the_connection() {
    let device = device();
    let joining = || Joining::new(&device, OPTIONS, 5).unwrap();
    let (ours, theirs) = (joining(), joining());
    let (our_hello, their_hello) = (ours.hello(), theirs.hello());
    let (mut ours, mut theirs) = (ours.join(&their_hello).unwrap(), theirs.join(&our_hello).unwrap());
    let exposed = region(64);
    exposed.write(0, b"still here").unwrap();
    let descriptor = theirs.register(&exposed, Access::READ).unwrap().descriptor;
    let remote = ours.reach(&descriptor).unwrap().unwrap();
    let own = region(64);
    let local = ours.register(&own, Access::NONE).unwrap().local;
    let piece = |len| Piece { local, at: 0, len };
    assert!(matches!(ours.write(1, &[piece(8)], remote, 0, None), Err(FabricError::Refused(_))));
    assert!(matches!(ours.fetch_add(2, remote, 0, 1), Err(FabricError::Refused(_))));
    assert!(matches!(ours.read(3, remote, 60, piece(8)), Err(FabricError::Refused(_))));
    ours.read(4, remote, 0, piece(10)).unwrap();
    assert!(matches!(polled(&mut ours).unwrap(), Event::Done { op: 4, result: Ok(0) }));
    assert_eq!(bytes(&own, 0, 10), b"still here");
}
