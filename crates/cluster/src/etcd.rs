//! A store's requests and answers as messages of etcd's HTTP gateway (etcd 3.5, `/v3/*`): JSON in which keys and values are
//! base64 and numbers of 64 bits are texts. Whoever has the connections sends and receives them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::store::{Answer, Change, Compare, Event, Pair, Request, Revision, Watched};

/// Keys of one answer.
const RANGE_KEYS_MAX: u32 = 500;
/// The longest message of a watch: etcd takes requests of 1.5 MiB, and base64 makes a third more of them.
pub const WATCH_MESSAGE_BYTES_MAX: usize = 16 << 20;
/// With a million changes a second it is reached after a hundred thousand years.
const REVISION_MAX: Revision = i64::MAX / 2;
/// The gateway's code of what is not there.
const NOT_FOUND: i64 = 5;

/// A request to the gateway: a POST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRequest {
    /// Such as `/v3/kv/range`.
    pub path: &'static str,
    /// JSON.
    pub body: Vec<u8>,
}

/// The keys of one cluster in an etcd.
#[derive(Debug, Clone)]
pub struct Etcd {
    prefix: String,
}

/// A number of 64 bits, which the gateway writes as a text and leaves out if it is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Long(i64);

impl<'de> Deserialize<'de> for Long {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let found = Value::deserialize(deserializer)?;
        let number = match &found {
            Value::String(text) => text.parse().ok(),
            other => other.as_i64(),
        };
        number.map(Self).ok_or_else(|| serde::de::Error::custom(format!("{found} is no number")))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Header {
    revision: Long,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Kv {
    key: String,
    value: String,
    create_revision: Long,
    mod_revision: Long,
    lease: Long,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RangeAnswer {
    header: Header,
    kvs: Vec<Kv>,
    more: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TxnAnswer {
    header: Header,
    succeeded: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LeaseAnswer {
    header: Header,
    #[serde(rename = "ID")]
    id: Long,
    #[serde(rename = "TTL")]
    ttl: Long,
}

/// What streams wrap each message in.
#[derive(Debug, Deserialize)]
struct Streamed<T> {
    result: Option<T>,
    error: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WatchAnswer {
    canceled: bool,
    cancel_reason: String,
    compact_revision: Long,
    events: Vec<WatchEvent>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WatchEvent {
    #[serde(rename = "type")]
    kind: String,
    kv: Kv,
}

fn base64(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// The first text behind all that begin with this one.
fn behind(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// A state of the store. One that far ahead would make all that comes later count as old.
fn revision(found: Long) -> Result<Revision, String> {
    let is_possible = (0..=REVISION_MAX).contains(&found.0);
    if is_possible { Ok(found.0) } else { Err(format!("the revision {} cannot be", found.0)) }
}

fn milliseconds(seconds: Long) -> u64 {
    u64::try_from(seconds.0).unwrap_or(0).saturating_mul(1000)
}

impl Etcd {
    /// The keys below a prefix, such as `/headrace/`.
    #[must_use]
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }

    fn key(&self, key: &str) -> String {
        base64(format!("{}{key}", self.prefix))
    }

    /// A request as the gateway takes it.
    #[must_use]
    pub fn encode(&self, request: &Request) -> HttpRequest {
        let (path, body) = match request {
            Request::Grant { ttl_ms } => {
                ("/v3/lease/grant", json!({"TTL": ttl_ms.div_ceil(1000).to_string()}))
            }
            Request::KeepAlive(lease) => ("/v3/lease/keepalive", json!({"ID": lease.to_string()})),
            Request::Revoke(lease) => ("/v3/lease/revoke", json!({"ID": lease.to_string()})),
            Request::Range { prefix, after, revision } => {
                let first = after.as_ref().map_or_else(|| prefix.clone(), |after| format!("{after}\0"));
                let end = behind(&format!("{}{prefix}", self.prefix));
                let body = json!({
                    "key": self.key(&first),
                    "range_end": base64(end),
                    "limit": RANGE_KEYS_MAX.to_string(),
                    "revision": revision.to_string(),
                });
                ("/v3/kv/range", body)
            }
            Request::Commit { compares, changes } => {
                let compares: Vec<_> = compares.iter().map(|compare| self.compare(compare)).collect();
                let changes: Vec<_> = changes.iter().map(|change| self.change(change)).collect();
                ("/v3/kv/txn", json!({"compare": compares, "success": changes}))
            }
            Request::Watch { from } => {
                let body = json!({"create_request": {
                    "key": self.key(""),
                    "range_end": base64(behind(&self.prefix)),
                    "start_revision": from.to_string(),
                }});
                ("/v3/watch", body)
            }
        };
        HttpRequest { path, body: body.to_string().into_bytes() }
    }

    fn compare(&self, compare: &Compare) -> Value {
        match compare {
            Compare::Created(key, revision) => json!({
                "key": self.key(key), "target": "CREATE", "result": "EQUAL", "create_revision": revision.to_string(),
            }),
            Compare::Modified(key, revision) => json!({
                "key": self.key(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string(),
            }),
        }
    }

    fn change(&self, change: &Change) -> Value {
        match change {
            Change::Put(key, value, lease) => json!({"request_put": {
                "key": self.key(key), "value": base64(value), "lease": lease.unwrap_or(0).to_string(),
            }}),
            Change::Delete(key) => json!({"request_delete_range": {"key": self.key(key)}}),
        }
    }

    /// The answer to a request. Whatever cannot be read is [`Answer::Failed`].
    #[must_use]
    pub fn decode(&self, request: &Request, status: u16, body: &[u8]) -> Answer {
        if status != 200 {
            let refused: Value = serde_json::from_slice(body).unwrap_or_default();
            if matches!(request, Request::Revoke(_)) && refused["code"].as_i64() == Some(NOT_FOUND) {
                return Answer::Revoked;
            }
            let said = refused["message"].as_str().map_or_else(
                || String::from_utf8_lossy(body).chars().take(300).collect(),
                |message| message.chars().take(300).collect::<String>(),
            );
            return Answer::Failed(format!("etcd has answered {status}: {said}"));
        }
        self.read(request, body).unwrap_or_else(|why| Answer::Failed(format!("etcd's answer: {why}")))
    }

    fn read(&self, request: &Request, body: &[u8]) -> Result<Answer, String> {
        fn parsed<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
            serde_json::from_slice(body).map_err(|why| why.to_string())
        }
        Ok(match request {
            Request::Grant { .. } => {
                let LeaseAnswer { id, ttl, .. } = parsed(body)?;
                Answer::Granted(id.0, milliseconds(ttl))
            }
            Request::KeepAlive(_) => {
                let answer: Streamed<LeaseAnswer> = parsed(body)?;
                let Some(LeaseAnswer { header, ttl, .. }) = answer.result else {
                    return Err(answer.error.unwrap_or_default().to_string());
                };
                Answer::KeptAlive { ttl_ms: milliseconds(ttl), revision: revision(header.revision)? }
            }
            Request::Revoke(_) => Answer::Revoked,
            Request::Range { .. } => {
                let RangeAnswer { header, kvs, more } = parsed(body)?;
                let pairs = kvs.into_iter().map(|kv| self.pair(&kv)).collect::<Result<_, _>>()?;
                Answer::Range { revision: revision(header.revision)?, pairs, more }
            }
            Request::Commit { .. } => {
                let TxnAnswer { header, succeeded } = parsed(body)?;
                Answer::Committed { succeeded, revision: revision(header.revision)? }
            }
            Request::Watch { .. } => return Err("a watch is a stream".to_owned()),
        })
    }

    fn own_key(&self, key: &str) -> Result<String, String> {
        let key = STANDARD.decode(key).ok().and_then(|key| String::from_utf8(key).ok());
        let own = key.as_deref().and_then(|key| key.strip_prefix(&*self.prefix));
        own.map(str::to_owned).ok_or_else(|| format!("the key {key:?} is not below {}", self.prefix))
    }

    fn pair(&self, kv: &Kv) -> Result<Pair, String> {
        Ok(Pair {
            key: self.own_key(&kv.key)?,
            value: STANDARD.decode(&kv.value).map_err(|why| why.to_string())?,
            created: revision(kv.create_revision)?,
            modified: revision(kv.mod_revision)?,
            lease: Some(kv.lease.0).filter(|lease| *lease != 0),
        })
    }
}

/// What a watch sends, out of bytes as they arrive: a message on each line.
#[derive(Debug)]
pub struct WatchStream {
    etcd: Etcd,
    line: Vec<u8>,
    /// It has ended; what comes after is nothing.
    ended: bool,
}

impl WatchStream {
    /// A stream from its first byte.
    #[must_use]
    pub fn new(etcd: Etcd) -> Self {
        Self { etcd, line: Vec::new(), ended: false }
    }

    /// Takes bytes in; what they bring.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Watched> {
        let mut found = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.ended {
                break;
            }
            self.line.extend_from_slice(part);
            if self.line.len() > WATCH_MESSAGE_BYTES_MAX {
                found.push(Watched::Ended(format!("a message of more than {WATCH_MESSAGE_BYTES_MAX} bytes")));
            } else if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.message(&line, &mut found);
            }
            self.ended = matches!(found.last(), Some(Watched::Ended(_) | Watched::Compacted));
        }
        found
    }

    fn message(&self, line: &[u8], found: &mut Vec<Watched>) {
        if line.trim_ascii().is_empty() {
            return;
        }
        let answer = match serde_json::from_slice::<Streamed<WatchAnswer>>(line) {
            Ok(Streamed { result: Some(answer), .. }) => answer,
            Ok(Streamed { error, .. }) => {
                return found.push(Watched::Ended(format!("etcd: {}", error.unwrap_or_default())));
            }
            Err(why) => return found.push(Watched::Ended(format!("etcd's message: {why}"))),
        };
        for event in answer.events {
            let revision = match revision(event.kv.mod_revision) {
                Ok(revision) => revision,
                Err(why) => return found.push(Watched::Ended(format!("etcd's message: {why}"))),
            };
            let event = match &*event.kind {
                "DELETE" => self.etcd.own_key(&event.kv.key).map(Event::Deleted),
                _ => self.etcd.pair(&event.kv).map(Event::Put),
            };
            let event = match event {
                Ok(event) => event,
                Err(why) => return found.push(Watched::Ended(format!("etcd's message: {why}"))),
            };
            match found.last_mut() {
                Some(Watched::Changes(last, events)) if *last == revision => events.push(event),
                _ => found.push(Watched::Changes(revision, vec![event])),
            }
        }
        if answer.compact_revision.0 > 0 {
            found.push(Watched::Compacted);
        } else if answer.canceled {
            found.push(Watched::Ended(format!("etcd: {}", answer.cancel_reason)));
        }
    }
}
