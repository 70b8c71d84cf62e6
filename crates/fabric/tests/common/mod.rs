//! What the tests of links share: links, patience, and other processes.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test uses a part; a test panics")]

use std::os::fd::BorrowedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headrace_fabric::shm::{self, Arrival, Control, Link, LinkError, Listener};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub const TOKEN: [u8; 16] = *b"a token of tests";
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until one of these is readable, or has ended.
pub fn wait(files: &[BorrowedFd<'_>]) {
    let mut polled: Vec<PollFd<'_>> =
        files.iter().map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN)).collect();
    let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert!(poll(&mut polled, Some(&patience)).unwrap() > 0, "nothing came");
}

pub fn listener() -> Listener {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut random = [0; 16];
    random[..8].copy_from_slice(&u64::from(std::process::id()).to_le_bytes());
    random[8..].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    Listener::bind(random).unwrap()
}

pub fn accept(listener: &Listener) -> Result<Arrival, LinkError> {
    loop {
        if let Some(arrival) = listener.accept()? {
            return Ok(arrival);
        }
        wait(&[std::os::fd::AsFd::as_fd(listener)]);
    }
}

pub fn hello(arrival: &mut Arrival) -> Result<[u8; 16], LinkError> {
    loop {
        if let Some(token) = arrival.hello()? {
            return Ok(token);
        }
        wait(&[std::os::fd::AsFd::as_fd(arrival)]);
    }
}

/// The broker's side of a link, to whoever connects.
pub fn welcome(listener: &Listener, notes: u32) -> Link {
    let mut arrival = accept(listener).unwrap();
    assert_eq!(hello(&mut arrival).unwrap(), TOKEN);
    arrival.welcome(notes).unwrap()
}

/// The broker's side and the client's.
pub fn pair(notes: u32) -> (Link, Link) {
    let listener = listener();
    let name = listener.name();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| shm::connect(&name, TOKEN, PATIENCE).unwrap());
        (welcome(&listener, notes), client.join().unwrap())
    })
}

pub fn control(link: &mut Link) -> Result<Control, LinkError> {
    loop {
        if let Some(control) = link.control()? {
            return Ok(control);
        }
        wait(&[link.socket()]);
    }
}

/// Sleeps until the other side rings or tells something, unless there are notes.
pub fn sleep(link: &mut Link) {
    if link.park().unwrap() {
        wait(&[link.bell(), link.socket()]);
    }
    link.wake();
    link.drain_bell();
}

/// A variable of the environment that tells a process what it is for.
const ROLE: &str = "HEADRACE_FABRIC_ROLE";

/// This test program once more, for one of its ignored tests, told what to be.
pub fn process(test: &str, role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(ROLE, role);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What this process was told to be.
#[expect(clippy::disallowed_methods, reason = "how one test process tells another what it is for")]
pub fn role() -> Vec<String> {
    std::env::var(ROLE).unwrap_or_default().split(' ').map(str::to_owned).collect()
}

/// The other process ends well.
pub fn ends_well(child: Child) {
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
}
