//! What can go wrong, kinds kept apart: the broker said no, time ran out, the peer misbehaved, the caller misused us.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use headrace_wire::errors::ErrorCode;

/// The result of anything a client does.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// So many answers in a row that are [`Error::BadAnswer`] are asked for again in silence; the next is the caller's.
pub(crate) const BAD_ANSWERS_MAX: u32 = 3;

/// Of a broker's own words about a refusal, as many are handed on.
const WORDS_MAX: usize = 500;

/// The start of a text from a broker, in one line.
pub(crate) fn clip(text: &str) -> String {
    text.chars().take(WORDS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Where an error belongs, as far as it belongs to a topic.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Place {
    /// The topic, or `None` for an error of the whole request.
    pub topic: Option<String>,
    /// The partition, or `None` for an error of the whole topic.
    pub partition: Option<i32>,
}

impl Place {
    /// An error of the whole request.
    pub const NONE: Self = Self { topic: None, partition: None };

    /// A whole topic.
    #[must_use]
    pub fn topic(topic: impl Into<String>) -> Self {
        Self { topic: Some(topic.into()), partition: None }
    }

    /// One partition.
    #[must_use]
    pub fn partition(topic: impl Into<String>, partition: i32) -> Self {
        Self { topic: Some(topic.into()), partition: Some(partition) }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.topic, self.partition) {
            (Some(topic), Some(partition)) => write!(f, "topic '{topic}', partition {partition}: "),
            (Some(topic), None) => write!(f, "topic '{topic}': "),
            (None, Some(partition)) => write!(f, "partition {partition}: "),
            (None, None) => Ok(()),
        }
    }
}

/// What is behind an error, for whoever knows its type, such as an exception of the caller's language.
#[derive(Clone)]
pub struct Cause(Arc<dyn Any + Send + Sync>);

impl Cause {
    /// Keeps it.
    pub fn new(what: impl Any + Send + Sync) -> Self {
        Self(Arc::new(what))
    }

    /// What was kept, if it is of this type.
    #[must_use]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cause(..)")
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Cause {}

/// Everything that a client call can fail with. Messages are whole sentences that name topic, partition or option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A broker answered with an error code.
    #[error("{place}{}{} ({})", code.message().trim_end_matches('.'), Detail(detail), code.name())]
    Broker {
        /// Kafka's code.
        code: ErrorCode,
        /// What it is about.
        place: Place,
        /// What the broker or we have to add; may be empty.
        detail: String,
    },
    /// Time ran out.
    #[error("{what} took longer than {ms} ms{}", Detail(detail))]
    Timeout {
        /// What was waited for.
        what: String,
        /// The limit that was passed, in milliseconds.
        ms: u64,
        /// What stood in the way, as far as known; may be empty.
        detail: String,
    },
    /// A connection could not be made, or was lost before the answer came.
    #[error("{peer}: {why}")]
    Disconnected {
        /// Host, port and node of the peer.
        peer: String,
        /// What happened.
        why: String,
    },
    /// TLS could not be agreed on: a certificate that is not trusted, a peer that does not speak TLS.
    #[error("{peer}: TLS failed: {why}")]
    Tls {
        /// Host, port and node of the peer.
        peer: String,
        /// What was wrong.
        why: String,
    },
    /// There is nothing to log in with: the function that gives tokens has never given one.
    #[error("{peer}: cannot log in: {why}")]
    Login {
        /// Host, port and node of the peer.
        peer: String,
        /// What was wrong.
        why: String,
        /// What the function failed with.
        cause: Option<Cause>,
    },
    /// A peer does not speak Kafka's protocol, or says in it what cannot be.
    #[error("{peer} {why}")]
    Protocol {
        /// Host, port and node of the peer.
        peer: String,
        /// What was wrong, as the rest of a sentence that begins with the peer.
        why: String,
    },
    /// An answer cannot be read, or lacks what was asked for. The request may have been carried out all the same; sent
    /// again on a new connection it may be answered well.
    #[error("{peer} {why}")]
    BadAnswer {
        /// Host, port and node of the peer.
        peer: String,
        /// What was wrong, as the rest of a sentence that begins with the peer.
        why: String,
    },
    /// An option is unknown, not supported, or has a value that is not accepted.
    #[error("option '{option}': {why}")]
    Config {
        /// The option as the caller wrote it.
        option: String,
        /// What is wrong and what would be accepted.
        why: String,
    },
    /// The client was used in a way that cannot work.
    #[error("{0}")]
    Usage(String),
    /// A record or record batch is damaged, or cannot be written.
    #[error("{}{}{why}", Place { topic: Some(topic.clone()), partition: Some(*partition) }, AtOffset(*offset))]
    Record {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// The offset, or -1 when there is none yet.
        offset: i64,
        /// What is wrong.
        why: String,
    },
    /// A partition's log no longer holds what was read of it: another replica became the leader with a log of its own
    /// (KIP-320), and `auto.offset.reset` is `none`.
    #[error("{}{}", Place { topic: Some(topic.clone()), partition: Some(*partition) }, Cut { offset: *offset, end: *end })]
    Truncated {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// The position: all before it was read.
        offset: i64,
        /// Where the log and what was read part; `None` when the leader cannot tell.
        end: Option<i64>,
    },
    /// A record was not sent, or is not to be seen, since its transaction was aborted.
    #[error("the transaction of this record was aborted")]
    Aborted,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
    /// A forked child uses its parent's client.
    #[error("this client belongs to the parent process: a forked child must make its own")]
    Forked,
}

struct Detail<'a>(&'a str);

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

struct AtOffset(i64);

impl fmt::Display for AtOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0 { Ok(()) } else { write!(f, "offset {}: ", self.0) }
    }
}

struct Cut {
    offset: i64,
    end: Option<i64>,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what was read before offset {} is not in the leader's log", self.offset)?;
        if let Some(end) = self.end {
            write!(f, ", which goes its own way from offset {end} on")?;
        }
        f.write_str("; auto.offset.reset is none, so seek to go on")
    }
}

impl Error {
    /// A broker's answer about a whole request.
    #[must_use]
    pub fn broker(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self::Broker { code, place: Place::NONE, detail: detail.into() }
    }

    /// A broker's answer about a topic.
    #[must_use]
    pub fn topic(code: ErrorCode, topic: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Broker { code, place: Place::topic(topic), detail: detail.into() }
    }

    /// A broker's answer about a partition.
    #[must_use]
    pub fn partition(
        code: ErrorCode,
        topic: impl Into<String>,
        partition: i32,
        detail: impl Into<String>,
    ) -> Self {
        Self::Broker { code, place: Place::partition(topic, partition), detail: detail.into() }
    }

    /// Time ran out for `what`.
    #[must_use]
    pub fn timeout(what: impl Into<String>, ms: u64) -> Self {
        Self::Timeout { what: what.into(), ms, detail: String::new() }
    }

    /// An option that cannot be taken as it is.
    #[must_use]
    pub fn config(option: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Config { option: option.into(), why: why.into() }
    }

    /// The broker's code, if a broker answered.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Broker { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the same request may succeed when it is sent again.
    #[must_use]
    pub fn retriable(&self) -> bool {
        match self {
            Self::Broker { code, .. } => code.retriable(),
            Self::Timeout { .. } | Self::Disconnected { .. } | Self::BadAnswer { .. } => true,
            _ => false,
        }
    }

    /// Whether no answer came, or none that can be read: what was asked for may have been done all the same.
    pub(crate) fn answer_is_lost(&self) -> bool {
        matches!(
            self,
            Self::Timeout { .. } | Self::Disconnected { .. } | Self::Protocol { .. } | Self::BadAnswer { .. }
        )
    }

    /// Kafka's name of the error where it has one, else a name of the same style.
    #[must_use]
    pub fn kafka_name(&self) -> &'static str {
        match self {
            Self::Broker { code, .. } => code.name(),
            Self::Timeout { .. } => "REQUEST_TIMED_OUT",
            Self::Disconnected { .. } => "NETWORK_EXCEPTION",
            Self::Tls { .. } => "TLS_FAILED",
            Self::Login { .. } => ErrorCode::SASL_AUTHENTICATION_FAILED.name(),
            Self::Protocol { .. } | Self::BadAnswer { .. } => "PROTOCOL_ERROR",
            Self::Config { .. } => "INVALID_CONFIG",
            Self::Usage(_) => "ILLEGAL_STATE",
            Self::Record { .. } => "CORRUPT_MESSAGE",
            Self::Truncated { .. } => "LOG_TRUNCATION",
            Self::Aborted => "TRANSACTION_ABORTED",
            Self::Closed => "CLIENT_CLOSED",
            Self::Forked => "CLIENT_FORKED",
        }
    }

    /// The topic and partition the error is about.
    #[must_use]
    pub fn place(&self) -> Place {
        match self {
            Self::Broker { place, .. } => place.clone(),
            Self::Record { topic, partition, .. } | Self::Truncated { topic, partition, .. } => {
                Place::partition(topic.clone(), *partition)
            }
            _ => Place::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_speaks_in_a_sentence_that_names_what_it_is_about() {
        for (error, text) in [
            (
                Error::partition(ErrorCode::NOT_LEADER_OR_FOLLOWER, "t", 3, "node 1"),
                "topic 't', partition 3: The broker is not the partition's leader, or holds no replica of it: node 1 \
                 (NOT_LEADER_OR_FOLLOWER)",
            ),
            (
                Error::topic(ErrorCode::TOPIC_AUTHORIZATION_FAILED, "secret", ""),
                "topic 'secret': The user may not do this with the topic (TOPIC_AUTHORIZATION_FAILED)",
            ),
            (Error::timeout("looking up offsets", 500), "looking up offsets took longer than 500 ms"),
            (
                Error::Disconnected { peer: "node 1 (k:9092)".into(), why: "cannot connect: refused".into() },
                "node 1 (k:9092): cannot connect: refused",
            ),
            (Error::config("linger", "no such option"), "option 'linger': no such option"),
            (
                Error::Record {
                    topic: "t".into(),
                    partition: 0,
                    offset: 7,
                    why: "its checksum is wrong".into(),
                },
                "topic 't', partition 0: offset 7: its checksum is wrong",
            ),
            (
                Error::Record { topic: "t".into(), partition: 0, offset: -1, why: "it is too large".into() },
                "topic 't', partition 0: it is too large",
            ),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn only_what_may_pass_is_retriable() {
        assert!(Error::timeout("x", 1).retriable());
        assert!(Error::BadAnswer { peer: String::new(), why: String::new() }.retriable());
        assert!(Error::broker(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS, "").retriable());
        for error in [
            Error::broker(ErrorCode::TOPIC_AUTHORIZATION_FAILED, ""),
            Error::Protocol { peer: String::new(), why: String::new() },
            Error::Tls { peer: String::new(), why: String::new() },
            Error::Login { peer: String::new(), why: String::new(), cause: Some(Cause::new(1u8)) },
            Error::Closed,
            Error::Forked,
            Error::Usage(String::new()),
        ] {
            assert!(!error.retriable(), "{error:?}");
        }
    }

    #[test]
    fn a_code_from_a_newer_broker_is_kept() {
        let error = Error::topic(ErrorCode::new(9_999), "t", "");
        assert_eq!(error.code().map(ErrorCode::code), Some(9_999));
        assert!(error.to_string().contains("'t'") && !error.retriable(), "{error}");
    }
}
