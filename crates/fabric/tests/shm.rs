//! Links over shared memory: how they come about, what goes over them, and what a broken other side can do.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics")]

mod common;

use std::fs::File;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use common::{
    PATIENCE, TOKEN, accept, control, ends_well, hello, listener, pair, process, role, sleep, welcome,
};
use headrace_fabric::shm::{self, Control, KEYS_MAX, LENT_BYTES_MAX, Link, LinkError, NOTES_MAX, QUEUE_MAX};
use headrace_fabric::{Memory, NotesError, Region, Rights, ring_bytes};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};

fn raw_socket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn raw_connect(name: &str) -> OwnedFd {
    let socket = raw_socket();
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    socket
}

fn raw_send(socket: impl AsFd, packet: &[u8], files: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    assert!(files.is_empty() || with.push(SendAncillaryMessage::ScmRights(files)));
    rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut with, SendFlags::NOSIGNAL).unwrap();
}

fn packet(kind: u32, detail: u32, key: u64, len: u64) -> Vec<u8> {
    let head = [kind.to_le_bytes(), detail.to_le_bytes()].concat();
    [head, key.to_le_bytes().to_vec(), len.to_le_bytes().to_vec()].concat()
}

/// A broker's side of a link whose client is a bare socket.
fn raw_client() -> (Link, OwnedFd) {
    let listener = listener();
    let client = raw_connect(&listener.name());
    raw_send(&client, &TOKEN, &[]);
    (welcome(&listener, 4), client)
}

/// What a client says of a broker that welcomes it like this.
fn raw_broker(packet: &[u8], files: &[BorrowedFd<'_>]) -> LinkError {
    let socket = raw_socket();
    let name = listener().name();
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| shm::connect(&name, TOKEN, PATIENCE).unwrap_err());
        let arrival = rustix::net::accept(&socket).unwrap();
        raw_send(&arrival, packet, files);
        client.join().unwrap()
    })
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn region(control: Control) -> Region {
    match control {
        Control::Exposed { memory, .. } => Region::whole(memory),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_link_needs_a_listener_a_token_and_a_welcome() {
    let listener = listener();
    let name = listener.name();
    assert!(name.starts_with("headrace-") && name.len() == 41, "{name}");
    assert!(listener.accept().unwrap().is_none());
    let none = shm::connect("headrace-none", TOKEN, PATIENCE).unwrap_err();
    assert!(matches!(&none, LinkError::Absent { name } if name == "headrace-none"), "{none:?}");
    assert!(none.to_string().contains("headrace.datapath"), "{none}");
    shm::connect(&"x".repeat(200), TOKEN, PATIENCE).unwrap_err();
    let late = shm::connect(&name, TOKEN, Duration::ZERO).unwrap_err();
    assert!(matches!(late, LinkError::TimedOut), "{late}");
    let mut arrival = accept(&listener).unwrap();
    assert_eq!(hello(&mut arrival).unwrap(), TOKEN);
    assert!(matches!(arrival.hello(), Err(LinkError::Gone)));
    for notes in [0, 3, NOTES_MAX * 2] {
        let client = raw_connect(&name);
        let refused = accept(&listener).unwrap().welcome(notes).unwrap_err();
        assert!(matches!(refused, LinkError::Misuse(_)), "{refused}");
        drop(client);
    }
    let (broker, client) = pair(NOTES_MAX);
    drop((broker, client));
}

#[test]
fn a_hello_is_a_token_and_nothing_else() {
    let listener = listener();
    for (packet, files) in [(&TOKEN[..15], 0), (&[0; 17], 0), (&TOKEN, 1), (&TOKEN, 8)] {
        let client = raw_connect(&listener.name());
        let mut arrival = accept(&listener).unwrap();
        assert!(arrival.hello().unwrap().is_none());
        raw_send(&client, packet, &vec![listener.as_fd(); files]);
        let refused = hello(&mut arrival).unwrap_err();
        assert!(matches!(refused, LinkError::Peer(_)), "{refused}");
    }
    let client = raw_connect(&listener.name());
    let mut arrival = accept(&listener).unwrap();
    drop(client);
    assert!(matches!(arrival.hello(), Err(LinkError::Gone)));
}

#[test]
fn a_welcome_that_lies_is_refused() {
    let notes = 4;
    let memory = Memory::sealed("lie", 2 * ring_bytes(notes)).unwrap();
    let small = Memory::sealed("lie", 2 * ring_bytes(notes) - 8).unwrap();
    let loose = rustix::fs::memfd_create("lie", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&loose, 2 * ring_bytes(notes) as u64).unwrap();
    let (file, small, bell) = (memory.file().unwrap(), small.file().unwrap(), loose.as_fd());
    let good = packet(1, 1, 0, u64::from(notes));
    for (packet, files, why) in [
        (good.clone(), vec![file, bell], "other descriptors"),
        (good.clone(), vec![file, bell, bell, bell], "other descriptors"),
        (good.clone(), vec![file; 8], "more than there is room for"),
        (good.clone(), vec![], "other descriptors"),
        (good.clone(), vec![small, bell, bell], "another size"),
        (good.clone(), vec![loose.as_fd(), bell, bell], "can be cut"),
        (good[..23].to_vec(), vec![file, bell, bell], "no welcome"),
        ([&good[..], b"x"].concat(), vec![file, bell, bell], "more than there is room for"),
        (packet(1, 2, 0, 4), vec![file, bell, bell], "no welcome"),
        (packet(4, 0, 0, 0), vec![file, bell, bell], "no welcome"),
        (packet(1, 1, 0, 3), vec![file, bell, bell], "a size that none can have"),
        (packet(1, 1, 0, 0), vec![file, bell, bell], "a size that none can have"),
        (packet(1, 1, 0, u64::from(NOTES_MAX) * 2), vec![file, bell, bell], "a size that none can have"),
        (packet(1, 1, 0, 1 << 32 | 4), vec![file, bell, bell], "no welcome"),
        (packet(1, 1, 0, 8), vec![file, bell, bell], "another size"),
    ] {
        let text = raw_broker(&packet, &files).to_string();
        assert!(text.contains(why), "{text}: {why}");
    }
}

#[test]
fn a_side_that_ends_is_noticed_at_every_step() {
    let listener = listener();
    for role in ["dies-before-hello", "dies-after-hello", "dies-after-welcome"] {
        let child = process("another_process", &format!("{role} {}", listener.name()));
        let mut arrival = accept(&listener).unwrap();
        let link = hello(&mut arrival).and_then(|_| arrival.welcome(4));
        let ended = child.wait_with_output().unwrap();
        assert!(!ended.status.success() || role == "dies-before-hello", "{ended:?}");
        let gone = match link {
            Ok(mut link) => control(&mut link).map(|_| ()),
            Err(error) => Err(error),
        };
        assert!(matches!(gone, Err(LinkError::Gone)), "{role}: {gone:?}");
    }
    let (mut broker, client) = pair(4);
    drop(client);
    broker.send([1; 4]).unwrap();
    broker.ring_if_asleep();
    assert!(matches!(broker.end(5), Err(LinkError::Misuse(_))));
    let memory = Memory::sealed("test", 64).unwrap();
    assert!(matches!(broker.expose(5, &memory, Rights::Read), Err(LinkError::Gone)));
    let (broker, mut client) = pair(4);
    drop(broker);
    assert!(matches!(client.control(), Err(LinkError::Gone)));
}

#[test]
fn memory_is_exposed_in_both_directions_and_ended() {
    let (mut broker, mut client) = pair(4);
    let memory = Memory::sealed("test", 5000).unwrap();
    let whole = Region::whole(memory.clone());
    for link in [&mut broker, &mut client] {
        link.expose(7, &memory, Rights::Write).unwrap();
        link.expose(8, &memory, Rights::Read).unwrap();
        assert!(matches!(link.expose(7, &memory, Rights::Read), Err(LinkError::Misuse(_))));
    }
    for link in [&mut broker, &mut client] {
        let written = region(control(link).unwrap());
        written.write(4990, b"0123456789").unwrap();
        let read = region(control(link).unwrap());
        let mut seen = [0; 10];
        read.read(4990, &mut seen).unwrap();
        assert_eq!(&seen, b"0123456789");
        assert!(read.write(0, b"x").is_err());
        whole.write(4990, &[0; 10]).unwrap();
        assert!(link.control().unwrap().is_none());
    }
    for link in [&mut broker, &mut client] {
        link.end(7).unwrap();
        assert!(matches!(link.end(7), Err(LinkError::Misuse(_))));
        link.expose(7, &memory, Rights::Read).unwrap();
    }
    for link in [&mut broker, &mut client] {
        assert!(matches!(control(link).unwrap(), Control::Ended { key: 7 }));
        assert!(region(control(link).unwrap()).write(0, b"x").is_err());
    }
}

#[test]
fn a_broker_exposes_a_file_that_grows() {
    let path = std::env::temp_dir().join(format!("headrace-grows-{}", std::process::id()));
    let mut file = File::create_new(&path).unwrap();
    let reader = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let (mut broker, mut client) = pair(4);
    assert!(matches!(client.expose_file(1, reader.as_fd(), 8192), Err(LinkError::Misuse(_))));
    broker.expose_file(1, reader.as_fd(), 8192).unwrap();
    let Control::File { key: 1, file: mut log } = control(&mut client).unwrap() else { panic!("no file") };
    file.write_all(b"committed, and not").unwrap();
    log.advance(9).unwrap();
    let bytes = log.bytes(0..9).unwrap();
    drop((broker, client, log));
    assert_eq!(bytes, "committed");
}

#[test]
fn what_is_not_to_be_exposed_is_not() {
    let (mut broker, mut client) = pair(4);
    let path = std::env::temp_dir().join(format!("headrace-loose-{}", std::process::id()));
    let loose = Memory::create(&path, 4096).unwrap();
    std::fs::remove_file(&path).unwrap();
    let misused = |reported: Result<(), LinkError>| matches!(reported, Err(LinkError::Misuse(_)));
    assert!(misused(broker.expose(1, &loose, Rights::Write)));
    assert!(misused(client.expose(1, &loose, Rights::Read)));
    broker.expose(1, &loose, Rights::Read).unwrap();
    let Control::Exposed { memory, .. } = control(&mut client).unwrap() else { panic!("nothing exposed") };
    assert!(client.expose(2, &memory, Rights::Read).is_err(), "it is not the client's to expose");
    assert!(misused(broker.expose_file(2, loose.file().unwrap(), 0)));
    assert!(misused(broker.expose_file(2, loose.file().unwrap(), LENT_BYTES_MAX + 1)));
}

#[test]
fn what_is_exposed_with_lies_is_refused() {
    let sealed = Memory::sealed("lie", 4096).unwrap();
    let loose = rustix::fs::memfd_create("lie", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&loose, 4096).unwrap();
    let null = File::open("/dev/null").unwrap();
    let file = sealed.file().unwrap();
    for (packet, files, why) in [
        (packet(2, 1, 1, 4095), vec![file], "another size"),
        (packet(2, 0, 1, 8192), vec![file], "another size"),
        (packet(2, 1, 1, 0), vec![file], "too long"),
        (packet(2, 1, 1, LENT_BYTES_MAX as u64 + 1), vec![file], "too long"),
        (packet(2, 1, 1, u64::MAX), vec![file], "too long"),
        (packet(2, 1, 1, 4096), vec![loose.as_fd()], "could cut"),
        (packet(2, 0, 1, 4096), vec![loose.as_fd()], "could cut"),
        (packet(2, 0, 1, 4096), vec![null.as_fd()], "could cut"),
        (packet(2, 2, 1, 4096), vec![file], "no message"),
        (packet(2, 1, 1, 4096), vec![], "should not"),
        (packet(2, 1, 1, 4096), vec![file, file], "more descriptors"),
        (packet(2, 1, 1, 4096), vec![file; 8], "more than there is room for"),
        (packet(3, 0, 1, 4096), vec![file], "should not"),
        (packet(4, 0, 1, 0), vec![], "not exposed"),
        (packet(4, 0, 1, 0), vec![file], "should not"),
        (packet(1, 1, 0, 4), vec![], "should not"),
        (packet(9, 0, 0, 0), vec![], "no message"),
        (b"x".to_vec(), vec![], "no message"),
    ] {
        let (mut link, client) = raw_client();
        raw_send(&client, &packet, &files);
        let text = control(&mut link).unwrap_err().to_string();
        assert!(text.contains(why), "{text}: {why}");
    }
    let (mut link, client) = raw_client();
    raw_send(&client, &packet(2, 1, 1, 4096), &[file]);
    raw_send(&client, &packet(2, 1, 1, 4096), &[file]);
    region(control(&mut link).unwrap());
    assert!(control(&mut link).unwrap_err().to_string().contains("twice by one key"));
}

#[test]
fn keys_are_bounded_on_both_sides() {
    let (mut broker, mut client) = pair(4);
    let memory = Memory::sealed("test", 64).unwrap();
    for key in 0..KEYS_MAX as u64 {
        client.expose(key, &memory, Rights::Write).unwrap();
        while client.wants_write() {
            region(control(&mut broker).unwrap());
            client.flush().unwrap();
        }
    }
    let full = client.expose(u64::MAX, &memory, Rights::Write).unwrap_err();
    assert!(full.to_string().contains("KEYS_MAX"), "{full}");
    drop(broker);
    let (mut link, client) = raw_client();
    for key in 0..=KEYS_MAX as u64 {
        raw_send(&client, &packet(2, 1, key, 64), &[memory.file().unwrap()]);
        match control(&mut link) {
            Ok(reported) => assert_eq!(region(reported).len(), 64),
            Err(error) => {
                assert!(error.to_string().contains("more at once") && key == KEYS_MAX as u64, "{error}");
            }
        }
    }
}

#[test]
fn what_the_socket_does_not_take_waits_in_order_up_to_a_limit() {
    let (mut broker, mut client) = pair(4);
    let memory = Memory::sealed("test", 64).unwrap();
    // One key all the time: what is bounded here is what waits.
    let mut reported = 0;
    let full = loop {
        if let Err(error) = broker.expose(1, &memory, Rights::Write) {
            break error;
        }
        reported += 1;
        if let Err(error) = broker.end(1) {
            break error;
        }
        reported += 1;
    };
    assert!(full.to_string().contains("QUEUE_MAX"), "{full}");
    assert!(reported > QUEUE_MAX && broker.wants_write());
    for number in 0..reported {
        match control(&mut client).unwrap() {
            Control::Exposed { key: 1, .. } => assert_eq!(number % 2, 0),
            Control::Ended { key: 1 } => assert_eq!(number % 2, 1),
            other => panic!("{other:?}"),
        }
        broker.flush().unwrap();
    }
    assert!(!broker.wants_write());
    assert!(client.control().unwrap().is_none());
}

#[test]
fn notes_go_both_ways_and_a_bell_rings_for_who_sleeps() {
    let (mut broker, mut client) = pair(4);
    let rings = |link: &Link| {
        let mut polled = [rustix::event::PollFd::from_borrowed_fd(link.bell(), rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())).unwrap() > 0
    };
    for _ in 0..2 {
        assert!(client.take().unwrap().is_none());
        broker.send([1, 2, 3, 4]).unwrap();
        assert!(!rings(&client), "it did not sleep");
        assert_eq!(client.take().unwrap(), Some([1, 2, 3, 4]));
        assert!(client.park().unwrap());
        broker.send([5; 4]).unwrap();
        assert!(rings(&client));
        assert!(!client.park().unwrap(), "there is a note");
        client.drain_bell();
        assert!(!rings(&client));
        assert_eq!(client.take().unwrap(), Some([5; 4]));
        broker.ring_if_asleep();
        assert!(!rings(&client), "it is awake");
        client.park().unwrap();
        broker.ring_if_asleep();
        assert!(rings(&client));
        client.wake();
        client.drain_bell();
        std::mem::swap(&mut broker, &mut client);
    }
    for number in 0..4 {
        broker.send([number; 4]).unwrap();
    }
    assert_eq!(broker.send([4; 4]), Err(NotesError::Full));
    assert!(broker.park().unwrap(), "there is no room");
    while client.take().unwrap().is_some() {}
    assert!(rings(&broker), "there is room");
    broker.drain_bell();
    assert!(client.take().unwrap().is_none());
    assert!(!rings(&broker), "it was told");
    assert!(!broker.park().unwrap(), "there is room");
    broker.send([5; 4]).unwrap();
    assert!(broker.has_room(3).unwrap() && !broker.has_room(4).unwrap());
    assert!(broker.park().unwrap(), "there is less than it wants");
}

#[test]
fn a_million_notes_to_another_process_and_back() {
    const NOTES: u64 = 1_000_000;
    let listener = listener();
    let child = process("another_process", &format!("echo {}", listener.name()));
    let mut link = welcome(&listener, 1 << 10);
    let (mut sent, mut taken) = (0, 0);
    while taken < NOTES {
        while sent < NOTES && link.send([sent, !sent, sent << 7, 3]) != Err(NotesError::Full) {
            sent += 1;
        }
        let before = taken;
        while let Some(note) = link.take().unwrap() {
            assert_eq!(note, [taken, !taken, taken << 7, 4]);
            taken += 1;
        }
        if before == taken {
            sleep(&mut link);
        }
    }
    drop(link);
    ends_well(child);
}

#[test]
fn another_process_sees_what_is_exposed_and_exposes() {
    let listener = listener();
    let child = process("another_process", &format!("adds {}", listener.name()));
    let mut link = welcome(&listener, 4);
    let memory = Memory::sealed("test", 4096).unwrap();
    link.expose(1, &memory, Rights::Write).unwrap();
    let theirs = region(control(&mut link).unwrap());
    let ours = Region::whole(memory);
    for _ in 0..10_000 {
        ours.word(8).unwrap().fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        theirs.word(16).unwrap().fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    while link.take().unwrap().is_none() {
        sleep(&mut link);
    }
    assert_eq!((ours.load(8), theirs.load(16)), (Ok(20_000), Ok(20_000)));
    drop(link);
    ends_well(child);
}

#[test]
fn nothing_is_left_open() {
    ends_well(process("another_process", "counts-files"));
}

#[test]
fn another_user_is_refused_by_both_sides() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return;
    }
    let listener = listener();
    let name = listener.name();
    std::thread::scope(|scope| {
        // The system call is of one thread, which ends here.
        let other = scope.spawn(|| {
            let nobody = rustix::process::Uid::from_raw(65_534);
            rustix::thread::set_thread_uid(nobody).unwrap();
            let refused = shm::connect(&name, TOKEN, PATIENCE).unwrap_err();
            (refused, raw_connect(&name))
        });
        let (refused, _client) = other.join().unwrap();
        assert!(matches!(refused, LinkError::OtherUser { uid: 0 }), "{refused}");
        let text = accept(&listener).unwrap_err().to_string();
        assert!(text.contains("user 65534") && text.contains("headrace.datapath"), "{text}");
    });
}

#[test]
#[ignore = "for other processes, which the tests above start"]
fn another_process() {
    let role: Vec<String> = role();
    let name = role.get(1).cloned().unwrap_or_default();
    match role[0].as_str() {
        "dies-before-hello" => drop(raw_connect(&name)),
        "dies-after-hello" => {
            raw_send(raw_connect(&name), &TOKEN, &[]);
            std::process::abort();
        }
        "dies-after-welcome" => {
            let _link = shm::connect(&name, TOKEN, PATIENCE).unwrap();
            std::process::abort();
        }
        "echo" => echo(&name),
        "adds" => adds(&name),
        "counts-files" => counts_files(),
        other => panic!("no role {other}"),
    }
}

/// Sends back each note, with its last word one more, until the link ends.
fn echo(name: &str) {
    let mut link = shm::connect(name, TOKEN, PATIENCE).unwrap();
    loop {
        while let Some([number, not, more, last]) = link.take().unwrap() {
            while link.send([number, not, more, last + 1]) == Err(NotesError::Full) {
                sleep(&mut link);
            }
        }
        match link.control() {
            Ok(None) => sleep(&mut link),
            Err(LinkError::Gone) => return,
            other => panic!("{other:?}"),
        }
    }
}

/// Adds to words of its own memory, and of the broker's.
fn adds(name: &str) {
    let mut link = shm::connect(name, TOKEN, PATIENCE).unwrap();
    let memory = Memory::sealed("test", 64).unwrap();
    link.expose(1, &memory, Rights::Write).unwrap();
    let theirs = region(control(&mut link).unwrap());
    let ours = Region::whole(memory);
    for _ in 0..10_000 {
        theirs.word(8).unwrap().fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        ours.word(16).unwrap().fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    link.send([0; 4]).unwrap();
    assert!(matches!(control(&mut link), Err(LinkError::Gone)));
}

/// In a process of its own, where no other test opens anything.
fn counts_files() {
    let memory = Memory::sealed("test", 64).unwrap();
    let before = open_files();
    for _ in 0..3 {
        let (mut broker, mut client) = pair(4);
        for key in 0..100 {
            broker.expose(key, &memory, Rights::Write).unwrap();
            client.expose(key, &memory, Rights::Read).unwrap();
        }
        let held: Vec<Arc<Memory>> = (0..50)
            .map(|_| match control(&mut client).unwrap() {
                Control::Exposed { memory, .. } => memory,
                other => panic!("{other:?}"),
            })
            .collect();
        // What is on its way ends with the link.
        drop((broker, client));
        assert_eq!(open_files(), before, "{} are held", held.len());
    }
    let file = memory.file().unwrap();
    for _ in 0..3 {
        raw_broker(&packet(1, 1, 0, 4), &[file; 8]);
        raw_broker(&packet(1, 1, 0, 4), &[file; 4]);
        let (mut link, client) = raw_client();
        raw_send(&client, &packet(2, 1, 1, 64), &[file; 8]);
        control(&mut link).unwrap_err();
        drop((link, client));
        assert_eq!(open_files(), before);
    }
}
