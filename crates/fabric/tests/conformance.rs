//! The suite of all fabrics over shared memory: both sides in one process, and each in its own.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics")]

mod common;

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use common::{PATIENCE, TOKEN, ends_well, listener, process, role, welcome};
use headrace_fabric::Waitable;
use headrace_fabric::conformance::{Channel, Connector, Failure, Outcome, Role, run};
use headrace_fabric::shm::{self, LinkEndpoint};

/// Links with little room, so that rings wrap and fill.
struct Links;

impl Connector for Links {
    fn connect(&mut self, role: Role, channel: &mut Channel<'_>) -> Result<Box<dyn Waitable>, Failure> {
        let link = match role {
            Role::First => {
                let listener = listener();
                channel.put(listener.name().as_bytes())?;
                welcome(&listener, 16)
            }
            Role::Second => {
                let name = String::from_utf8(channel.get()?).unwrap();
                shm::connect(&name, TOKEN, PATIENCE)?
            }
        };
        Ok(Box::new(LinkEndpoint::new(link)?))
    }
}

fn is_conformant(outcomes: &[Outcome]) {
    let failed: Vec<_> = outcomes.iter().filter(|outcome| outcome.result.is_err()).collect();
    assert!(!outcomes.is_empty() && failed.is_empty(), "{failed:#?}");
}

fn runs(role: Role, mut stream: UnixStream) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    is_conformant(&run(role, &mut Links, &mut stream).unwrap());
}

#[test]
fn two_threads() {
    let (first, second) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| runs(Role::First, first));
        scope.spawn(|| runs(Role::Second, second));
    });
}

#[test]
fn two_processes_whichever_is_the_broker() {
    for (ours, theirs) in [(Role::First, "second"), (Role::Second, "first")] {
        let name = format!("headrace-conformance-{}-{theirs}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let meeting = UnixListener::bind_addr(&address).unwrap();
        let child = process("another_process", &format!("{theirs} {name}"));
        let (stream, _) = meeting.accept().unwrap();
        runs(ours, stream);
        ends_well(child);
    }
}

#[test]
#[ignore = "for other processes, which the test above starts"]
fn another_process() {
    let role = role();
    let theirs = if role[0] == "first" { Role::First } else { Role::Second };
    let address = SocketAddr::from_abstract_name(&role[1]).unwrap();
    runs(theirs, UnixStream::connect_addr(&address).unwrap());
}
