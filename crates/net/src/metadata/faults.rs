//! Tests: an etcd that is slow, silent, cut off or not one at all. What a real one does is in tests/cluster.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headrace_cluster::store::{Change, Watched};
use headrace_cluster::{Answer, Request};
use mio::{Poll, Token, Waker};

use super::etcd::EtcdClient;
use super::http::Http;
use super::{MetadataEvent, MetadataStore};

/// How long a request may take here.
const LIMIT: Duration = Duration::from_millis(400);
/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server whose connections are each served by `serve`, with the number of the connection.
fn server(serve: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (serve, stream) = (serve.clone(), stream.unwrap());
            std::thread::spawn(move || serve(number, stream));
        }
    });
    address
}

/// The next request of a connection: its head and body. Nothing once it is closed.
fn next_request(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    loop {
        let mut byte = [0];
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        read.extend(byte);
        let text = String::from_utf8_lossy(&read);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.split("Content-Length: ").nth(1).and_then(|rest| rest.lines().next());
        if body.len() == length.unwrap().parse::<usize>().unwrap() {
            return Some(text.into_owned());
        }
    }
}

fn answer(stream: &mut TcpStream, status: u16, body: &str) {
    let head = format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
}

/// Answers each request with this.
fn says(status: u16, body: &'static str) -> String {
    server(move |_, mut stream| {
        while next_request(&mut stream).is_some() {
            answer(&mut stream, status, body);
        }
    })
}

/// Reads requests, and says nothing.
fn silent() -> (String, Receiver<String>) {
    let (seen, requests) = channel();
    let seen = Mutex::new(seen);
    let address = server(move |_, mut stream| {
        while let Some(request) = next_request(&mut stream) {
            let _ = seen.lock().unwrap().send(request);
        }
    });
    (address, requests)
}

struct Client {
    client: EtcdClient,
    _poll: Poll,
}

impl Client {
    fn new(hosts: &[&str]) -> Self {
        let poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let address = format!("etcd://{}", hosts.join(",")).parse().unwrap();
        Self { client: EtcdClient::start(address, LIMIT, waker).unwrap(), _poll: poll }
    }

    fn next(&mut self) -> MetadataEvent {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(event) = self.client.poll() {
                return event;
            }
            assert!(Instant::now() < until, "nothing comes");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn ask(&mut self, id: u64, request: Request) -> Answer {
        self.client.send(id, request);
        match self.next() {
            MetadataEvent::Answer(of, answer) if of == id => answer,
            other => panic!("{other:?}"),
        }
    }
}

fn change(key: &str) -> Request {
    Request::Commit { compares: Vec::new(), changes: vec![Change::Delete(key.to_owned())] }
}

const COMMITTED: &str = r#"{"header": {"revision": "7"}, "succeeded": true}"#;
const KEPT: &str = r#"{"result": {"header": {"revision": "7"}, "ID": "5", "TTL": "3"}}"#;

fn is_committed(answer: &Answer) -> bool {
    *answer == Answer::Committed { succeeded: true, revision: 7 }
}

#[test]
fn what_keeps_a_lease_alive_is_asked_of_each_address_in_its_time() {
    let (silent, _requests) = silent();
    for hosts in [[&*silent, &says(200, KEPT)], [&says(503, "no leader"), &says(200, KEPT)]] {
        let kept = Client::new(&hosts).ask(1, Request::KeepAlive(5));
        assert_eq!(kept, Answer::KeptAlive { ttl_ms: 3000, revision: 7 });
    }
}

#[test]
fn a_change_is_sent_once_and_the_next_one_to_another_address() {
    let (silent, requests) = silent();
    for (host, why) in
        [(silent, "not answered in time"), (says(503, "no leader"), "503"), (says(200, "{"), "EOF")]
    {
        let mut client = Client::new(&[&host, &says(200, COMMITTED)]);
        let Answer::Failed(said) = client.ask(1, change("a")) else { panic!("it was done") };
        assert!(said.contains(why) && said.contains(&host), "{said}");
        assert!(is_committed(&client.ask(2, change("b"))));
    }
    assert_eq!(requests.iter().take(1).count(), 1);
    assert!(requests.try_recv().is_err());
}

#[test]
fn what_has_waited_for_its_whole_time_is_not_sent() {
    let (seen, requests) = channel();
    let seen: Mutex<Sender<String>> = Mutex::new(seen);
    let host = server(move |number, mut stream| {
        while let Some(request) = next_request(&mut stream) {
            seen.lock().unwrap().send(request).unwrap();
            if number > 0 {
                answer(&mut stream, 200, COMMITTED);
            }
        }
    });
    let mut client = Client::new(&[&host]);
    for (id, key) in ["first", "second", "third"].into_iter().enumerate() {
        client.client.send(id as u64, change(key));
    }
    assert!(matches!(client.next(), MetadataEvent::Answer(0, Answer::Failed(_))));
    assert!(is_committed(&client.ask(3, change("fourth"))));
    assert_eq!(requests.try_iter().count(), 2, "the first and the fourth");
}

#[test]
fn a_connection_that_was_closed_while_idle_is_made_anew() {
    let (closed, closes) = channel();
    let closed = Mutex::new(closed);
    let host = server(move |_, mut stream| {
        if next_request(&mut stream).is_some() {
            answer(&mut stream, 200, COMMITTED);
            drop(stream);
            let _ = closed.lock().unwrap().send(());
        }
    });
    let mut client = Client::new(&[&host]);
    for id in 0..5 {
        assert!(is_committed(&client.ask(id, change("a"))), "a change is sent once: this one was, to nobody");
        closes.recv_timeout(PATIENCE).unwrap();
    }
}

#[test]
fn a_watch_that_stands_still_within_a_message_gives_way_to_a_newer_one() {
    let event = r#"{"result": {"events": [{"kv": {"key": "L2hlYWRyYWNlL2E=", "mod_revision": "9"}}]}}"#;
    let host = server(move |number, mut stream| {
        let request = next_request(&mut stream).unwrap_or_default();
        assert!(request.contains("Grpc-Metadata-hasleader: true\r\n"), "{request}");
        let whole = format!("{:x}\r\n{event}\n\r\n", event.len() + 1);
        let (sent, _) = whole.split_at(if number == 0 { 20 } else { whole.len() });
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(format!("{head}{sent}").as_bytes()).unwrap();
        let _ = next_request(&mut stream);
    });
    let mut client = Client::new(&[&host]);
    client.client.send(1, Request::Watch { from: 3 });
    std::thread::sleep(Duration::from_millis(200));
    client.client.send(2, Request::Watch { from: 3 });
    assert!(matches!(client.next(), MetadataEvent::Watched(2, Watched::Changes(9, _))));
}

#[test]
fn a_watch_that_is_cut_has_ended() {
    for cut in
        ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", "SSH-2.0\r\n\r\n"]
    {
        let host = server(move |_, mut stream| {
            next_request(&mut stream);
            let _ = stream.write_all(cut.as_bytes());
        });
        let mut client = Client::new(&[&host]);
        client.client.send(1, Request::Watch { from: 3 });
        let MetadataEvent::Watched(1, Watched::Ended(why)) = client.next() else { panic!("{cut:?}") };
        assert!(why.contains(&host), "{why}");
    }
}

/// An answer that comes a byte at a time, some of it in chunks, is whole, or is late: it has all its time but no more.
#[test]
fn an_answer_may_come_byte_by_byte_in_its_time() {
    let whole =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n1;x=y\r\ne\r\n0\r\nA: b\r\n\r\n";
    for pause in [Duration::ZERO, Duration::from_millis(50)] {
        let host = server(move |_, mut stream| {
            next_request(&mut stream);
            stream.set_nodelay(true).unwrap();
            for byte in whole.as_bytes() {
                std::thread::sleep(pause);
                if stream.write_all(&[*byte]).is_err() {
                    return;
                }
            }
            let _ = next_request(&mut stream);
        });
        let (name, port) = host.split_once(':').unwrap();
        let limit = if pause.is_zero() { PATIENCE } else { LIMIT };
        let mut http = Http::connect(name, port.parse().unwrap(), None, Instant::now() + limit).unwrap();
        let posted = http.post("/", b"{}", Instant::now() + limit);
        if pause.is_zero() {
            assert_eq!(posted.unwrap(), (200, b"abcde".to_vec()));
            assert!(!http.is_over());
        } else {
            assert_eq!(posted.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
            assert!(http.is_over());
        }
    }
}

/// Whatever comes is an answer or an error, and no more memory than an answer may have.
#[test]
fn damaged_answers_are_errors() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n";
    let named = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd";
    let mut cases: Vec<Vec<u8>> = Vec::new();
    for whole in [chunked.as_bytes(), named.as_bytes()] {
        for at in 0..whole.len() {
            let mut damaged = whole.to_vec();
            damaged[at] = 0xff;
            cases.push(damaged);
            cases.push(whole[..at].to_vec());
        }
    }
    cases.push(named.replace("4\r\n", "99999999999999\r\n").into_bytes());
    cases.push(chunked.replace("4\r\n", "ffffffffffffffff\r\n").into_bytes());
    cases.push(vec![b'x'; 1 << 20]);
    let count = cases.len();
    let host = server(move |number, mut stream| {
        next_request(&mut stream);
        let _ = stream.write_all(&cases[number]);
    });
    let (name, port) = host.split_once(':').unwrap();
    let mut answered = 0;
    for _ in 0..count {
        let until = Instant::now() + PATIENCE;
        let mut http = Http::connect(name, port.parse().unwrap(), None, until).unwrap();
        match http.post("/", b"{}", until) {
            // In a word that nobody reads, or in the body.
            Ok((200, _)) => answered += 1,
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert_ne!(error.kind(), std::io::ErrorKind::TimedOut),
        }
    }
    assert!(answered < count / 3, "{answered} of {count}");
}
