//! The store in memory and etcd answer alike.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use headrace_cluster::etcd::{Etcd, HttpRequest, WatchStream};
use headrace_cluster::local::LocalStore;
use headrace_cluster::store::{Change, Compare, Event, LeaseId, Pair, Revision, Watched};
use headrace_cluster::{Answer, Request};

/// How long a lease of the cases lives: etcd's shortest is a second.
const TTL_MS: u64 = 2000;

trait Asked {
    fn ask(&mut self, request: &Request) -> Answer;
    /// What a watch from a revision brings, until there are so many events.
    fn watch(&mut self, from: Revision, events: usize) -> Vec<Watched>;
    fn compact(&mut self, revision: Revision);
    fn sleep(&mut self, ms: u64);
}

struct Local(LocalStore, u64);

impl Asked for Local {
    fn ask(&mut self, request: &Request) -> Answer {
        self.0.handle(self.1, 1, 1, request).unwrap()
    }

    fn watch(&mut self, from: Revision, _: usize) -> Vec<Watched> {
        self.0.handle(self.1, 1, 1, &Request::Watch { from });
        std::iter::from_fn(|| self.0.poll_watch(1).map(|(_, watched)| watched)).collect()
    }

    fn compact(&mut self, revision: Revision) {
        self.0.compact(revision);
    }

    fn sleep(&mut self, ms: u64) {
        self.1 += ms;
        self.0.expire(self.1);
    }
}

struct Real {
    address: String,
    etcd: Etcd,
}

impl Real {
    /// A request in HTTP/1.0, whose answer ends with its connection and has no chunks.
    fn post(&self, request: &HttpRequest) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let head =
            format!("POST {} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", request.path, request.body.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&request.body).unwrap();
        stream
    }

    fn answer(stream: &mut TcpStream) -> (u16, Vec<u8>) {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let status = std::str::from_utf8(&bytes[9..12]).unwrap().parse().unwrap();
        (status, bytes[end + 4..].to_vec())
    }
}

fn count(watched: &[Watched]) -> usize {
    let events = |one: &Watched| match one {
        Watched::Changes(_, events) => events.len(),
        Watched::Compacted | Watched::Ended(_) => usize::MAX / 2,
    };
    watched.iter().map(events).sum()
}

impl Asked for Real {
    fn ask(&mut self, request: &Request) -> Answer {
        let (status, body) = Self::answer(&mut self.post(&self.etcd.encode(request)));
        self.etcd.decode(request, status, &body)
    }

    fn watch(&mut self, from: Revision, events: usize) -> Vec<Watched> {
        let mut stream = self.post(&self.etcd.encode(&Request::Watch { from }));
        let (mut watch, mut found, mut head) = (WatchStream::new(self.etcd.clone()), Vec::new(), Vec::new());
        while count(&found) < events {
            let mut byte = [0];
            assert_eq!(stream.read(&mut byte).unwrap(), 1, "the watch has ended: {found:?}");
            if head.ends_with(b"\r\n\r\n") { found.extend(watch.push(&byte)) } else { head.push(byte[0]) }
        }
        found
    }

    fn compact(&mut self, revision: Revision) {
        let body = format!("{{\"revision\": \"{revision}\", \"physical\": true}}").into_bytes();
        let (status, _) = Self::answer(&mut self.post(&HttpRequest { path: "/v3/kv/compaction", body }));
        assert_eq!(status, 200);
    }

    fn sleep(&mut self, ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }
}

fn put(key: &str, value: &str, lease: Option<LeaseId>) -> Change {
    Change::Put(key.into(), value.as_bytes().to_vec(), lease)
}

fn commit(store: &mut dyn Asked, compares: &[Compare], changes: &[Change]) -> (bool, Revision) {
    let request = Request::Commit { compares: compares.to_vec(), changes: changes.to_vec() };
    let answer = store.ask(&request);
    let Answer::Committed { succeeded, revision } = answer else { panic!("{answer:?}") };
    (succeeded, revision)
}

fn all(store: &mut dyn Asked, prefix: &str) -> (Revision, Vec<Pair>) {
    let (mut pairs, mut after, mut at) = (Vec::new(), None, 0);
    loop {
        let request = Request::Range { prefix: prefix.into(), after: after.clone(), revision: at };
        let answer = store.ask(&request);
        let Answer::Range { revision, pairs: mut found, more } = answer else { panic!("{answer:?}") };
        at = revision;
        pairs.append(&mut found);
        if !more {
            return (revision, pairs);
        }
        after = pairs.last().map(|pair| pair.key.clone());
    }
}

fn cases(store: &mut dyn Asked) {
    let made = Compare::Created("nodes/1".into(), 0);
    let Answer::Granted(lease, ttl_ms) = store.ask(&Request::Grant { ttl_ms: TTL_MS }) else { panic!() };
    assert_eq!(ttl_ms, TTL_MS);
    let (succeeded, first) = commit(store, std::slice::from_ref(&made), &[put("nodes/1", "a", Some(lease))]);
    assert!(succeeded);
    assert_eq!(commit(store, &[made], &[put("nodes/1", "b", None)]), (false, first), "it is there");
    let (_, second) = commit(store, &[], &[put("nodes/10", "ü\0", None), put("topics/t", "", None)]);
    assert_eq!(second, first + 1);
    let both = [Compare::Created("nodes/10".into(), second), Compare::Modified("topics/t".into(), second)];
    let (succeeded, third) =
        commit(store, &both, &[put("topics/t", "x", None), Change::Delete("nodes/10".into())]);
    assert!(succeeded);
    assert!(!commit(store, &both, &[put("topics/t", "y", None)]).0, "they have changed");
    let pair = |key: &str, value: &str, created, modified, lease| Pair {
        key: key.into(),
        value: value.as_bytes().to_vec(),
        created,
        modified,
        lease,
    };
    let node = pair("nodes/1", "a", first, first, Some(lease));
    let topic = pair("topics/t", "x", second, third, None);
    assert_eq!(all(store, ""), (third, vec![node.clone(), topic.clone()]));
    assert_eq!(all(store, "nodes/"), (third, vec![node.clone()]));
    // A watch begins in the past, and each revision comes whole.
    let ten = pair("nodes/10", "ü\0", second, second, None);
    let wanted = [
        Watched::Changes(first, vec![Event::Put(node)]),
        Watched::Changes(
            second,
            vec![Event::Put(ten), Event::Put(pair("topics/t", "", second, second, None))],
        ),
        Watched::Changes(third, vec![Event::Put(topic), Event::Deleted("nodes/10".into())]),
    ];
    let sorted = |mut watched: Vec<Watched>| {
        for one in &mut watched {
            if let Watched::Changes(_, events) = one {
                events.sort_by_key(|event| match event {
                    Event::Put(pair) => (0, pair.key.clone()),
                    Event::Deleted(key) => (1, key.clone()),
                });
            }
        }
        watched
    };
    assert_eq!(sorted(store.watch(first, 5)), wanted);
    // Leases live as long as they are kept alive, and their keys go with them.
    for _ in 0..3 {
        store.sleep(TTL_MS / 2);
        let kept = store.ask(&Request::KeepAlive(lease));
        assert_eq!(kept, Answer::KeptAlive { ttl_ms: TTL_MS, revision: third });
    }
    let Answer::Granted(other, _) = store.ask(&Request::Grant { ttl_ms: TTL_MS }) else { panic!() };
    commit(store, &[], &[put("nodes/2", "b", Some(other))]);
    assert_eq!(store.ask(&Request::Revoke(other)), Answer::Revoked);
    assert_eq!(store.ask(&Request::Revoke(other)), Answer::Revoked, "it is over already");
    assert_eq!(all(store, "nodes/2").1, []);
    store.sleep(TTL_MS * 2);
    let kept = store.ask(&Request::KeepAlive(lease));
    assert!(matches!(kept, Answer::KeptAlive { ttl_ms: 0, .. }), "{kept:?}");
    assert_eq!(all(store, "nodes").1, []);
    // What is not kept any more cannot be watched.
    let (revision, _) = all(store, "");
    store.compact(revision);
    assert_eq!(store.watch(first, 1), [Watched::Compacted]);
    // More keys than one answer has.
    for group in 0..12 {
        let changes: Vec<_> = (0..100).map(|at| put(&format!("many/{group}-{at:02}"), "", None)).collect();
        assert!(commit(store, &[], &changes).0);
    }
    let (_, many) = all(store, "many/");
    assert_eq!(many.len(), 1200);
    assert!(many.is_sorted_by(|one, next| one.key < next.key));
}

#[test]
fn a_store_in_memory() {
    cases(&mut Local(LocalStore::new(), 1));
}

#[test]
#[ignore = "needs an etcd, whose host and port HEADRACE_ETCD names: tests/cluster/test_etcd.py starts one"]
fn a_real_etcd() {
    let address = std::env::var("HEADRACE_ETCD").unwrap();
    cases(&mut Real { address: address.clone(), etcd: Etcd::new("/headrace/it/") });
    // Keys of others are none of ours.
    let mut other = Real { address, etcd: Etcd::new("/headrace/other/") };
    assert_eq!(all(&mut other, "").1, []);
}

#[test]
fn answers_that_etcd_does_not_give() {
    let etcd = Etcd::new("/p/");
    let range = Request::Range { prefix: String::new(), after: None, revision: 0 };
    for (status, body, why) in [
        (503, &b"overloaded"[..], "503: overloaded"),
        (
            400,
            b"{\"error\": \"x\", \"message\": \"etcdserver: no leader\", \"code\": 14}",
            "400: etcdserver: no leader",
        ),
        (200, b"", "EOF"),
        (200, b"{\"header\": {\"revision\": \"9223372036854775807\"}}", "9223372036854775807 cannot be"),
        (200, b"{\"header\": {\"revision\": \"-1\"}}", "-1 cannot be"),
        (200, b"[", "EOF"),
        (200, b"{\"header\": {\"revision\": \"x\"}}", "is no number"),
        (200, b"{\"kvs\": [{\"key\": \"L290aGVy\"}]}", "is not below /p/"),
        (200, b"{\"kvs\": [{\"key\": \"*\"}]}", "is not below /p/"),
        (200, b"{\"kvs\": [{\"key\": \"L3AveA==\", \"value\": \"*\"}]}", "Invalid"),
    ] {
        let answer = etcd.decode(&range, status, body);
        assert!(matches!(&answer, Answer::Failed(found) if found.contains(why)), "{answer:?}");
    }
    let streams: [(&[u8], &str); 4] = [
        (b"{\"error\": {\"message\": \"gone\"}}\n", "gone"),
        (b"nothing\n", "expected"),
        (b"{\"result\": {\"events\": [{\"kv\": {\"key\": \"*\"}}]}}\n", "is not below"),
        (b"{\"result\": {\"canceled\": true, \"cancel_reason\": \"too slow\"}}\n", "too slow"),
    ];
    for (bytes, why) in streams {
        let mut stream = WatchStream::new(etcd.clone());
        let found = stream.push(bytes);
        assert!(matches!(&found[..], [Watched::Ended(said)] if said.contains(why)), "{found:?}");
        assert_eq!(stream.push(b"{\"result\": {}}\n"), [], "it has ended");
    }
    let mut endless = WatchStream::new(etcd);
    let found = (0..20).flat_map(|_| endless.push(&vec![b' '; 1 << 20])).collect::<Vec<_>>();
    assert!(
        matches!(&found[..], [Watched::Ended(why)] if why.contains("a message of more than")),
        "{found:?}"
    );
}
