//! The judge of benches/share.py: proxies on loopback, one for each broker, that read what share consumers and brokers say
//! to each other, and count what each member holds.
//!
//! `sharetap N` prints N ports. The first line of its standard input has N ports of loopback, where brokers listen; each
//! line after that is answered with what was counted since the one before, as a line of JSON. A record counts as held from
//! the answer that gives it to the answer that takes it back, until somebody else is given it, or its connection ends.
#![allow(clippy::print_stdout, reason = "the result goes to standard output")]
#![allow(clippy::disallowed_methods, reason = "a bench reads its arguments")]

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use bytes::Bytes;
use headrace_wire::frame::{
    RequestHeader, SIZE_BYTES, decode_request_header, decode_response, frame_len, peek_correlation_id,
};
use headrace_wire::messages::{ApiKey, Message, ShareAcknowledgeRequest, ShareFetchRequest};
use headrace_wire::primitive::Reader;
use headrace_wire::uuid::Uuid;

const FRAME_BYTES_MAX: usize = 200 << 20;
const RENEW: i8 = 4;

/// Broker, topic, partition.
type Place = (usize, Uuid, i32);

/// An acknowledgement: where, from and to which offset, and as what.
type Ack = (Uuid, i32, i64, i64, Vec<i8>);

/// A request that is to be understood with its answer.
struct Asked {
    version: i16,
    key: ApiKey,
    member: String,
    records_max: i64,
    acks: Vec<Ack>,
}

#[derive(Default)]
struct Member {
    /// Ranges by their first offset.
    held: HashMap<Place, BTreeMap<i64, i64>>,
    count: i64,
    most: i64,
    /// Records that an answer gave beyond what it was asked for.
    excess: i64,
    acquired: i64,
    accepted: i64,
    refused: i64,
}

#[derive(Default)]
struct Judge {
    members: BTreeMap<String, Member>,
    /// By client id, broker and kind.
    requests: BTreeMap<(String, usize, &'static str), u64>,
}

impl Member {
    fn take(&mut self, place: Place, first: i64, last: i64) {
        self.drop_range(place, first, last);
        self.held.entry(place).or_default().insert(first, last);
        self.count += last - first + 1;
    }

    /// Forgets what it holds of these offsets; gives how many that were.
    fn drop_range(&mut self, place: Place, first: i64, last: i64) -> i64 {
        let Some(ranges) = self.held.get_mut(&place) else { return 0 };
        let touched: Vec<(i64, i64)> = ranges
            .range(..=last)
            .rev()
            .take_while(|(_, end)| **end >= first)
            .map(|(a, b)| (*a, *b))
            .collect();
        let mut dropped = 0;
        for (begin, end) in touched {
            ranges.remove(&begin);
            if begin < first {
                ranges.insert(begin, first - 1);
            }
            if end > last {
                ranges.insert(last + 1, end);
            }
            dropped += end.min(last) - begin.max(first) + 1;
        }
        self.count -= dropped;
        dropped
    }
}

impl Judge {
    fn fetched(&mut self, broker: usize, asked: &Asked, frame: Bytes) {
        let Ok((_, answer)) = decode_response::<ShareFetchRequest>(asked.version, frame) else { return };
        if answer.error_code != 0 {
            return;
        }
        let mut acquired = 0;
        for topic in &answer.responses {
            for part in &topic.partitions {
                let place = (broker, topic.topic_id, part.partition_index);
                self.settle(place, asked, part.acknowledge_error_code);
            }
        }
        for topic in &answer.responses {
            for part in &topic.partitions {
                let place = (broker, topic.topic_id, part.partition_index);
                for range in &part.acquired_records {
                    for (name, member) in &mut self.members {
                        if *name != asked.member {
                            member.drop_range(place, range.first_offset, range.last_offset);
                        }
                    }
                    let member = self.members.entry(asked.member.clone()).or_default();
                    member.take(place, range.first_offset, range.last_offset);
                    acquired += range.last_offset - range.first_offset + 1;
                }
            }
        }
        let member = self.members.entry(asked.member.clone()).or_default();
        member.acquired += acquired;
        member.excess += (acquired - asked.records_max).max(0);
        member.most = member.most.max(member.count);
    }

    fn acknowledged(&mut self, broker: usize, asked: &Asked, frame: Bytes) {
        let Ok((_, answer)) = decode_response::<ShareAcknowledgeRequest>(asked.version, frame) else {
            return;
        };
        if answer.error_code != 0 {
            return;
        }
        for topic in &answer.responses {
            for part in &topic.partitions {
                self.settle((broker, topic.topic_id, part.partition_index), asked, part.error_code);
            }
        }
    }

    fn settle(&mut self, place: Place, asked: &Asked, code: i16) {
        let member = self.members.entry(asked.member.clone()).or_default();
        for (topic, partition, first, last, types) in &asked.acks {
            if (*topic, *partition) != (place.1, place.2) {
                continue;
            }
            if code != 0 {
                member.refused += last - first + 1;
                continue;
            }
            if let [kind] = types.as_slice() {
                if *kind != RENEW {
                    member.accepted += member.drop_range(place, *first, *last);
                }
                continue;
            }
            for (offset, kind) in (*first..=*last).zip(types) {
                if *kind != RENEW {
                    member.accepted += member.drop_range(place, offset, offset);
                }
            }
        }
    }

    /// A connection to a broker has ended, and with it the session of who used it.
    fn gone(&mut self, broker: usize, name: &str) {
        let Some(member) = self.members.get_mut(name) else { return };
        let dropped = |(place, ranges): (&Place, &BTreeMap<i64, i64>)| {
            if place.0 == broker { ranges.iter().map(|(first, last)| last - first + 1).sum() } else { 0 }
        };
        let count: i64 = member.held.iter().map(dropped).sum();
        member.held.retain(|place, _| place.0 != broker);
        member.count -= count;
    }

    /// What there is, as JSON, and from zero.
    fn tell(&mut self) -> String {
        let mut line = String::from("{\"members\": {");
        for (index, (name, member)) in self.members.iter_mut().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let Member { count, most, excess, acquired, accepted, refused, .. } = member;
            let _ = write!(
                line,
                "{comma}\"{name}\": {{\"held\": {count}, \"most\": {most}, \"excess\": {excess}, \
                 \"acquired\": {acquired}, \"settled\": {accepted}, \"refused\": {refused}}}"
            );
            *most = *count;
            (*excess, *acquired, *accepted, *refused) = (0, 0, 0, 0);
        }
        line.push_str("}, \"requests\": [");
        for (index, ((client, broker, kind), count)) in self.requests.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let _ = write!(line, "{comma}[\"{client}\", {broker}, \"{kind}\", {count}]");
        }
        self.requests.clear();
        line.push_str("]}");
        line
    }
}

type Shared = Arc<Mutex<Judge>>;

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next frame without its size; `None` at the end.
fn read_frame(from: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut size = [0; SIZE_BYTES];
    match from.read_exact(&mut size) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let len = frame_len(size, FRAME_BYTES_MAX).map_err(io::Error::other)?;
    let mut frame = size.to_vec();
    frame.resize(SIZE_BYTES + len, 0);
    from.read_exact(frame.get_mut(SIZE_BYTES..).unwrap_or_default())?;
    Ok(Some(frame))
}

/// What a request says, if it is one of those that matter.
fn asked(header: &RequestHeader, reader: &mut Reader) -> Option<Asked> {
    let (version, key) = (header.api_version, header.api_key);
    match key {
        ApiKey::ShareFetch => {
            let request = ShareFetchRequest::decode(version, reader).ok()?;
            let mut acks = Vec::new();
            for topic in &request.topics {
                for part in &topic.partitions {
                    acks.extend(part.acknowledgement_batches.iter().map(|batch| {
                        let types = batch.acknowledge_types.clone();
                        (topic.topic_id, part.partition_index, batch.first_offset, batch.last_offset, types)
                    }));
                }
            }
            let strict = request.share_acquire_mode == 1;
            let records_max = if strict { i64::from(request.max_records) } else { i64::MAX };
            Some(Asked { version, key, member: request.member_id.unwrap_or_default(), records_max, acks })
        }
        ApiKey::ShareAcknowledge => {
            let request = ShareAcknowledgeRequest::decode(version, reader).ok()?;
            let mut acks = Vec::new();
            for topic in &request.topics {
                for part in &topic.partitions {
                    acks.extend(part.acknowledgement_batches.iter().map(|batch| {
                        let types = batch.acknowledge_types.clone();
                        (topic.topic_id, part.partition_index, batch.first_offset, batch.last_offset, types)
                    }));
                }
            }
            Some(Asked { version, key, member: request.member_id.unwrap_or_default(), records_max: 0, acks })
        }
        _ => None,
    }
}

/// Hands requests on, and remembers those that matter.
fn upstream(
    broker: usize,
    mut client: TcpStream,
    mut server: TcpStream,
    judge: &Shared,
    open: &Mutex<HashMap<i32, Asked>>,
) -> io::Result<()> {
    while let Some(frame) = read_frame(&mut client)? {
        let mut reader = Reader::new(Bytes::copy_from_slice(frame.get(SIZE_BYTES..).unwrap_or_default()));
        if let Ok(header) = decode_request_header(&mut reader) {
            let name = header.client_id.clone().unwrap_or_default();
            *lock(judge).requests.entry((name, broker, header.api_key.name())).or_default() += 1;
            if let Some(asked) = asked(&header, &mut reader) {
                lock(open).insert(header.correlation_id, asked);
            }
        }
        server.write_all(&frame)?;
    }
    server.shutdown(Shutdown::Write)
}

/// Hands answers on, after they were counted.
fn downstream(
    broker: usize,
    mut server: TcpStream,
    mut client: TcpStream,
    judge: &Shared,
    open: &Mutex<HashMap<i32, Asked>>,
) -> io::Result<()> {
    let mut member = String::new();
    let result = loop {
        let frame = match read_frame(&mut server) {
            Ok(Some(frame)) => frame,
            Ok(None) => break client.shutdown(Shutdown::Write),
            Err(error) => break Err(error),
        };
        let bytes = Bytes::copy_from_slice(frame.get(SIZE_BYTES..).unwrap_or_default());
        let asked = peek_correlation_id(&bytes).ok().and_then(|id| lock(open).remove(&id));
        if let Some(asked) = asked {
            let mut judge = lock(judge);
            match asked.key {
                ApiKey::ShareFetch => judge.fetched(broker, &asked, bytes),
                _ => judge.acknowledged(broker, &asked, bytes),
            }
            member = asked.member;
        }
        if let Err(error) = client.write_all(&frame) {
            break Err(error);
        }
    };
    lock(judge).gone(broker, &member);
    result
}

fn serve(broker: usize, listener: &TcpListener, port: u16, judge: &Shared) {
    for client in listener.incoming().flatten() {
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
        let (Ok(()), Ok(())) = (client.set_nodelay(true), server.set_nodelay(true)) else { continue };
        let (Ok(client_too), Ok(server_too)) = (client.try_clone(), server.try_clone()) else { continue };
        let open = Arc::new(Mutex::new(HashMap::new()));
        let (judge_up, judge_down, open_too) = (judge.clone(), judge.clone(), open.clone());
        thread::spawn(move || drop(upstream(broker, client, server_too, &judge_up, &open)));
        thread::spawn(move || drop(downstream(broker, server, client_too, &judge_down, &open_too)));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let count: usize = std::env::args().nth(1).ok_or("sharetap N")?.parse()?;
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
    let ports: Vec<String> = listeners
        .iter()
        .map(|listener| listener.local_addr().map(|address| address.port().to_string()))
        .collect::<Result<_, _>>()?;
    println!("{}", ports.join(" "));
    let mut lines = io::stdin().lock().lines();
    let targets = lines.next().ok_or("no ports of brokers")??;
    let targets: Vec<u16> = targets.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    if targets.len() != count {
        return Err(format!("{} ports of brokers for {count}", targets.len()).into());
    }
    let judge = Shared::default();
    for (broker, (listener, port)) in listeners.into_iter().zip(targets).enumerate() {
        let judge = judge.clone();
        thread::spawn(move || serve(broker, &listener, port, &judge));
    }
    for line in lines {
        line?;
        println!("{}", lock(&judge).tell());
    }
    Ok(())
}
