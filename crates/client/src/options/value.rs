//! The types that option values are turned into.

use std::fmt;

use headrace_options::{Kind, OptionValue, choice};
use headrace_wire::address::{HostError, HostPort, check_host, has_user_info};

use crate::error::{Error, Result};

/// `buffer.memory.broker.share`: a part of `buffer.memory`, more than nothing and at most all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrokerShare {
    billionths: u32,
}

impl BrokerShare {
    const ALL: u32 = 1_000_000_000;
    /// Digits behind the point.
    const DIGITS: usize = 9;

    /// So much of `bytes`, rounded down.
    #[must_use]
    pub fn of(self, bytes: u64) -> u64 {
        let part = u128::from(bytes) * u128::from(self.billionths) / u128::from(Self::ALL);
        u64::try_from(part).unwrap_or(bytes)
    }

    /// Whether it is no limit.
    #[must_use]
    pub fn is_all(self) -> bool {
        self.billionths == Self::ALL
    }

    /// A decimal number such as `0.5` or `1`.
    fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = fraction.bytes().chain(whole.bytes()).all(|b| b.is_ascii_digit());
        if whole.is_empty() || !digits || fraction.len() > Self::DIGITS {
            return None;
        }
        let behind: u32 = format!("{fraction:0<width$}", width = Self::DIGITS).parse().ok()?;
        let billionths = whole.parse::<u32>().ok()?.checked_mul(Self::ALL)?.checked_add(behind)?;
        (1..=Self::ALL).contains(&billionths).then_some(Self { billionths })
    }
}

impl fmt::Display for BrokerShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_all() {
            return f.write_str("1");
        }
        let digits = format!("{:0width$}", self.billionths, width = Self::DIGITS);
        write!(f, "0.{}", digits.trim_end_matches('0'))
    }
}

impl OptionValue for BrokerShare {
    fn from_text(text: Option<&str>, _: Kind) -> Option<Self> {
        Self::parse(text?.trim())
    }
}

/// A server of `bootstrap.servers`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Host name or address, without the brackets of an IPv6 address.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        HostPort { host: &self.host, port: self.port }.fmt(f)
    }
}

impl Endpoint {
    fn parse(text: &str) -> Option<Self> {
        // A listener is often pasted with its protocol in front.
        let text = text.strip_prefix("PLAINTEXT://").unwrap_or(text);
        let (host, port) = text.rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let host = match bare {
            Some(address) => address,
            None if host.contains(':') => return None,
            None => host,
        };
        let port = port.parse().ok().filter(|port| *port > 0)?;
        (!host.is_empty() && check_host(host).is_ok()).then(|| Self { host: host.to_owned(), port })
    }

    /// Why a server is refused. A text that may contain a password is not printed.
    fn why_not(text: &str) -> String {
        // Not the port: with a password in front, all that is known of the text is that it is wrong.
        let host = text.strip_prefix("PLAINTEXT://").unwrap_or(text).trim_start_matches('[');
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host).trim_end_matches(']');
        match check_host(host) {
            Err(HostError::Character(c)) if c.is_control() || c.is_whitespace() => {
                format!("a host name has no {c:?}, and '{}' has", text.escape_debug())
            }
            _ if host.contains(':') && !text.starts_with('[') => {
                "a server has more than one ':' (an IPv6 address stands in brackets)".to_owned()
            }
            _ => format!("'{}' is not accepted", text.escape_debug()),
        }
    }
}

impl OptionValue for Endpoint {
    fn from_text(text: Option<&str>, _: Kind) -> Option<Self> {
        Self::parse(text?)
    }

    fn refusal(text: &str, accepted: &str) -> String {
        // A comma may be part of a password, so all of the text counts.
        let why = if has_user_info(text) {
            "user info does not belong there (what stands before '@' is not shown): name sasl.username and sasl.password"
                .to_owned()
        } else {
            let mut servers = text.split(',').map(str::trim).filter(|s| !s.is_empty());
            servers
                .find(|server| Endpoint::parse(server).is_none())
                .map_or_else(|| "it names no server".to_owned(), Endpoint::why_not)
        };
        format!("{why}; it takes {accepted}")
    }
}

choice! {
    /// `acks`: when a broker answers a Produce request.
    Acks {
        /// Not at all.
        None = "0",
        /// When the leader has the records.
        Leader = "1",
        /// When every replica in sync has them.
        All = "all" | "-1",
    }
}

impl Acks {
    /// The number in a Produce request.
    #[must_use]
    pub const fn code(self) -> i16 {
        match self {
            Self::None => 0,
            Self::Leader => 1,
            Self::All => -1,
        }
    }
}

choice! {
    /// `compression.type`.
    CompressionType {
        /// Plain.
        None = "none",
        /// gzip.
        Gzip = "gzip",
        /// Snappy.
        Snappy = "snappy",
        /// LZ4.
        Lz4 = "lz4",
        /// Zstandard.
        Zstd = "zstd",
    }
}

choice! {
    /// `partitioner`: which partition a record without one goes to. The hashes and names are librdkafka's.
    Partitioner {
        /// By the murmur2 hash of the key, as in Kafka's own producer; without a key as `Sticky`.
        Murmur2Random = "murmur2_random",
        /// By the murmur2 hash; a null key counts as an empty one.
        Murmur2 = "murmur2",
        /// By the CRC-32 of the key; with an empty or null key as `Sticky`. librdkafka's default.
        ConsistentRandom = "consistent_random",
        /// By the CRC-32; a null key counts as an empty one.
        Consistent = "consistent",
        /// By the FNV-1a hash of the key; without a key as `Sticky`.
        Fnv1aRandom = "fnv1a_random",
        /// By the FNV-1a hash; a null key counts as an empty one.
        Fnv1a = "fnv1a",
        /// As `Sticky`: any partition may take any record.
        Random = "random",
        /// One partition for a batch's worth of bytes, then another (KIP-794); keys are ignored.
        Sticky = "sticky",
    }
}

choice! {
    /// `metadata.recovery.strategy`.
    RecoveryStrategy {
        /// `bootstrap.servers` are asked again.
        Rebootstrap = "rebootstrap",
        /// Only known brokers are asked.
        None = "none",
    }
}

choice! {
    /// `isolation.level`.
    IsolationLevel {
        /// All records.
        ReadUncommitted = "read_uncommitted",
        /// None of aborted or open transactions.
        ReadCommitted = "read_committed",
    }
}

choice! {
    /// `on.bad.records`.
    OnBadRecords {
        /// The partition stands still, and each poll of it raises, until a seek.
        Error = "error",
        /// The record batch is left out, and that is logged.
        Skip = "skip",
    }
}

choice! {
    /// `value.type`: the Arrow type of the column `value`.
    ValueType {
        /// `binary`: one buffer of bytes and 32-bit offsets.
        Binary = "binary",
        /// `binary_view`: values stay where they are.
        BinaryView = "binary_view",
    }
}

choice! {
    /// `share.acquire.mode` (KIP-1206).
    AcquireMode {
        /// Whole batches; `max.poll.records` may be passed.
        BatchOptimized = "batch_optimized",
        /// Never more than `max.poll.records`.
        RecordLimit = "record_limit",
    }
}

choice! {
    /// `share.acknowledgement.mode`.
    AcknowledgementMode {
        /// The next poll accepts the rows of the last one.
        Implicit = "implicit",
        /// The caller says of each row what became of it.
        Explicit = "explicit",
    }
}

choice! {
    /// `headrace.datapath`.
    Datapath {
        /// The broker's connections carry everything.
        Tcp = "tcp",
        /// Memory that is shared with the broker, where it can be had; else TCP.
        Auto = "auto",
        /// Memory that is shared with the broker; it is an error where it cannot be had.
        Shm = "shm",
        /// Memory that is reached over RDMA; it is an error where it cannot be had.
        Verbs = "verbs",
        /// Requests and answers as messages over RDMA; it is an error where it cannot be had.
        TwoSided = "two-sided",
    }
}

impl Datapath {
    /// Whether it is an error that there is no memory.
    #[must_use]
    pub fn is_required(self) -> bool {
        matches!(self, Datapath::Shm | Datapath::Verbs)
    }

    /// Whether it can be had: memory that processes share, and RDMA, are Linux's.
    pub(super) fn check_system(self, is_linux: bool) -> Result<()> {
        if is_linux || matches!(self, Datapath::Tcp | Datapath::Auto) {
            return Ok(());
        }
        let why =
            format!("{} needs Linux; on this system it takes auto or tcp, which both use TCP", self.name());
        Err(Error::config("headrace.datapath", why))
    }

    /// Whether records may go through memory, beside the connections.
    #[must_use]
    pub fn is_one_sided(self) -> bool {
        !matches!(self, Datapath::Tcp | Datapath::TwoSided)
    }
}

choice! {
    /// `group.protocol`.
    GroupProtocol {
        /// The members divide the partitions among themselves.
        Classic = "classic",
        /// The coordinator does (KIP-848).
        Consumer = "consumer",
    }
}

choice! {
    /// One of `partition.assignment.strategy`.
    Assignor {
        /// Neighbouring partitions of each topic.
        Range = "range",
        /// All partitions in turn.
        RoundRobin = "roundrobin",
        /// As even as can be, and moving little (KIP-54).
        Sticky = "sticky",
        /// The same, while partitions that stay are read on (KIP-429).
        CooperativeSticky = "cooperative-sticky",
    }
}

/// `auto.offset.reset`: where to start without a committed offset, or when it is out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoOffsetReset {
    /// The oldest record.
    Earliest,
    /// The next record to be written.
    Latest,
    /// Nowhere: an error.
    None,
    /// The first record not older than this many milliseconds (KIP-1106).
    ByDuration(u64),
}

impl OptionValue for AutoOffsetReset {
    fn from_text(text: Option<&str>, _: Kind) -> Option<Self> {
        match text?.trim().to_ascii_lowercase().as_str() {
            "earliest" => Some(Self::Earliest),
            "latest" => Some(Self::Latest),
            "none" => Some(Self::None),
            other => other.strip_prefix("by_duration:").and_then(iso_duration_ms).map(Self::ByDuration),
        }
    }
}

/// Milliseconds of an ISO 8601 duration of days and smaller units in lower case, such as `p1dt2h3m4.5s`.
fn iso_duration_ms(text: &str) -> Option<u64> {
    let rest = text.strip_prefix('p')?;
    let (days, time) = match rest.split_once('t') {
        Some((_, "")) => return None,
        Some((days, time)) => (days, time),
        None => (rest, ""),
    };
    let mut total = 0u64;
    let mut parts = 0;
    for (mut text, units) in
        [(days, &[('d', 86_400_000u64)][..]), (time, &[('h', 3_600_000), ('m', 60_000), ('s', 1000)])]
    {
        for &(unit, unit_ms) in units {
            let Some((number, behind)) = text.split_once(unit) else { continue };
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            if unit != 's' && !fraction.is_empty() || fraction.len() > 9 {
                return None;
            }
            let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
            if whole.is_empty() || !digits(whole) || !digits(fraction) {
                return None;
            }
            let fraction_ms: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
            let ms = whole.parse::<u64>().ok()?.checked_mul(unit_ms)?.checked_add(fraction_ms)?;
            total = total.checked_add(ms)?;
            parts += 1;
            text = behind;
        }
        if !text.is_empty() {
            return None;
        }
    }
    (parts > 0).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_java_reads_them() {
        for (text, ms) in [
            ("p1d", 86_400_000),
            ("pt0s", 0),
            ("pt1h30m", 5_400_000),
            ("p2dt3h4m5.678s", 183_845_678),
            ("pt0.25s", 250),
            ("pt0.0004s", 0),
        ] {
            assert_eq!(iso_duration_ms(text), Some(ms), "{text}");
        }
        for text in [
            "",
            "p",
            "pt",
            "1d",
            "p1",
            "p1h",
            "pt1",
            "pt-1s",
            "pt1.5h",
            "pt1s1m",
            "p1dt",
            "pt99999999999999999999s",
        ] {
            assert_eq!(iso_duration_ms(text), None, "{text}");
        }
    }

    #[test]
    fn a_share_is_above_nothing_and_at_most_all() {
        let kind = Kind::Form("a number");
        for (text, bytes, shown) in [
            ("0.5", 50, "0.5"),
            ("1", 100, "1"),
            ("1.0", 100, "1"),
            (" 0.250 ", 25, "0.25"),
            ("0.000000001", 0, "0.000000001"),
            ("0.999", 99, "0.999"),
        ] {
            let share = BrokerShare::from_text(Some(text), kind).unwrap();
            assert_eq!((share.of(100), share.to_string().as_str()), (bytes, shown), "{text}");
            assert_eq!(share.is_all(), bytes == 100);
        }
        assert_eq!(BrokerShare::parse("1").unwrap().of(u64::MAX), u64::MAX);
        for text in
            ["0", "0.0", "1.1", "2", "-0.5", "", ".5", "0,5", "50%", "0.0000000001", "nan", "9999999999"]
        {
            assert_eq!(BrokerShare::from_text(Some(text), kind), None, "{text}");
        }
    }

    #[test]
    fn endpoints() {
        let parse = |text| Endpoint::parse(text).map(|e| (e.host, e.port));
        assert_eq!(parse("kafka1:9092"), Some(("kafka1".to_owned(), 9092)));
        assert_eq!(parse("[::1]:9092"), Some(("::1".to_owned(), 9092)));
        assert_eq!(parse("PLAINTEXT://k:1"), Some(("k".to_owned(), 1)));
        for bad in [
            "kafka1",
            "kafka1:",
            ":9092",
            "::1:9092",
            "kafka1:0",
            "kafka1:70000",
            "http://k:1",
            "a b:1",
            "[::1\n]:1",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(Endpoint { host: "::1".into(), port: 1 }.to_string(), "[::1]:1");
    }
}
