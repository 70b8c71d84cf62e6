//! Finds an option by the name that a caller wrote, or says why there is none.

use headrace_options::{Refusal, Row, Values, nearest};

use super::role::Role;
use super::table::rows;
use crate::error::{Error, Result};

/// Options that Kafka's clients know and this one does not, each with the reason. A name ending in a dot stands for
/// all that begin so.
pub(super) const UNSUPPORTED: &[(&str, &str)] = &[
    ("ssl.truststore.", "use ssl.ca.location with a PEM file"),
    ("ssl.keystore.", "use ssl.certificate.location and ssl.key.location with PEM files"),
    ("ssl.enabled.protocols", "TLS 1.2 and 1.3 are always on, and nothing older"),
    ("ssl.protocol", "TLS 1.2 and 1.3 are always on, and nothing older"),
    ("ssl.cipher.suites", "the suites are those that rustls holds safe"),
    ("ssl.", "it configures Java's TLS; use ssl.ca.location, ssl.certificate.location and ssl.key.location"),
    ("sasl.jaas.config", "it configures Java; use sasl.username and sasl.password"),
    ("sasl.mechanisms", "use sasl.mechanism"),
    ("sasl.kerberos.", "Kerberos (GSSAPI) is not supported"),
    (
        "sasl.oauthbearer.",
        "tokens come from oauth_cb, a Python function that may ask an issuer (OIDC) for them, or from \
         sasl.oauthbearer.token",
    ),
    (
        "sasl.",
        "it configures Java's login modules; use sasl.username, sasl.password or sasl.oauthbearer.token",
    ),
    ("security.providers", "it configures Java"),
    (
        "transaction.two.phase.commit.enable",
        "a transaction ends by commit_transaction or abort_transaction alone, not by a coordinator outside of Kafka",
    ),
    ("key.serializer", NO_SERIALIZERS),
    ("value.serializer", NO_SERIALIZERS),
    ("key.deserializer", NO_SERIALIZERS),
    ("value.deserializer", NO_SERIALIZERS),
    ("interceptor.classes", "there are no interceptors: change the columns before or after the call"),
    ("partitioner.class", "it names a Java class; use 'partitioner', or a partition column"),
    ("compression.lz4.level", "LZ4 has one level here, the fast one"),
    ("config.providers", "it configures Java; give the value itself"),
    ("metric.reporters", NO_METRICS),
    ("metrics.", NO_METRICS),
    ("enable.metrics.push", NO_METRICS),
    ("auto.include.jmx.reporter", NO_METRICS),
    ("client.dns.lookup", "the system's resolver decides, each time a host is connected to"),
    ("metadata.max.idle.ms", "a producer asks for the metadata of every topic it has written to"),
    ("bootstrap.controllers", "only brokers are connected to; they hand on what is the controller's"),
    ("internal.throw.on.fetch.stable.offset.unsupported", "it is internal to Kafka's own consumer"),
];

/// librdkafka's names for what has another name here, each with what to use.
pub(super) const OF_LIBRDKAFKA: &[(&str, &str)] = &[
    ("metadata.broker.list", "use bootstrap.servers"),
    ("queue.buffering.max.ms", "use linger.ms"),
    ("queue.buffering.max.kbytes", "use buffer.memory, which is in bytes"),
    ("queue.buffering.max.messages", "use buffer.memory, which limits bytes and not records"),
    ("queue.buffering.backpressure.threshold", "batches grow as far as batch.size by themselves"),
    ("batch.num.messages", "use batch.size, which limits bytes and not records"),
    ("message.max.bytes", "use max.request.size"),
    ("message.timeout.ms", "use delivery.timeout.ms"),
    ("message.send.max.retries", "use retries, or delivery.timeout.ms"),
    ("request.required.acks", "use acks"),
    ("compression.codec", "use compression.type"),
    ("compression.level", "use compression.gzip.level or compression.zstd.level"),
    ("max.in.flight", "use max.in.flight.requests.per.connection"),
    (
        "sticky.partitioning.linger.ms",
        "a batch's worth of bytes goes to one partition, whatever time that takes",
    ),
    ("enable.gapless.guarantee", "with enable.idempotence records of a partition keep their order"),
    ("dr.cb", "send gives a future: its result is the delivery report"),
    ("dr.msg.cb", "send gives a future: its result is the delivery report"),
    ("on.delivery", "send gives a future: its result is the delivery report"),
    ("delivery.report.only.error", "send gives a future: its result is the delivery report"),
    ("error.cb", "errors are raised by the calls that they are about"),
    ("throttle.cb", NO_STATISTICS),
    ("stats.cb", NO_STATISTICS),
    ("statistics.interval.ms", NO_STATISTICS),
    ("logger", "Python's loggers below 'headrace' tell what no call can raise"),
    ("debug", "Python's loggers below 'headrace' tell what no call can raise"),
    ("log.level", "Python's loggers below 'headrace' tell what no call can raise"),
    ("log.connection.close", "Python's loggers below 'headrace' tell what no call can raise"),
    ("socket.timeout.ms", "use request.timeout.ms"),
    ("socket.keepalive.enable", "connections.max.idle.ms ends those that nobody needs"),
    ("socket.nagle.disable", "it is always so"),
    ("socket.send.buffer.bytes", "use send.buffer.bytes"),
    ("socket.receive.buffer.bytes", "use receive.buffer.bytes"),
    ("topic.metadata.refresh.interval.ms", "use metadata.max.age.ms"),
    ("topic.metadata.refresh.fast.interval.ms", "use retry.backoff.ms"),
    ("topic.metadata.refresh.sparse", "only topics in use are asked for, always"),
    (
        "enable.auto.offset.store",
        "rows of a poll count as processed with the next one: see enable.auto.commit and commit",
    ),
    ("queued.min.messages", "use fetch.buffer.bytes, which limits bytes and not records"),
    ("queued.max.messages.kbytes", "use fetch.buffer.bytes"),
    ("fetch.message.max.bytes", "use max.partition.fetch.bytes"),
    ("fetch.wait.max.ms", "use fetch.max.wait.ms"),
    ("fetch.error.backoff.ms", "use retry.backoff.ms"),
    ("fetch.queue.backoff.ms", "a full cache is filled again as soon as rows are taken"),
    ("coordinator.query.interval.ms", "the coordinator is looked up whenever it is not known"),
    ("enable.partition.eof", "compare Consumer.position with Consumer.end_offsets, or use headrace.read"),
    ("rebalance.cb", "give on_assigned and on_revoked to Consumer.subscribe"),
    ("offset.commit.cb", "give a callback to Consumer.commit_async"),
    ("on.commit", "give a callback to Consumer.commit_async"),
    ("ssl.ca.pem", "write it to a file, and use ssl.ca.location"),
    ("ssl.certificate.pem", "write it to a file, and use ssl.certificate.location"),
    ("ssl.key.pem", "write it to a file, and use ssl.key.location"),
    (
        "enable.ssl.certificate.verification",
        "certificates are always verified: trust the broker's own by ssl.ca.location",
    ),
    ("broker.address.family", "every address that the system's resolver gives is tried"),
];

const NO_STATISTICS: &str = "metrics() of producers and consumers tells what there is";

/// Settings of a share group (KIP-932, KIP-1240), which all its members have in common.
pub(super) const OF_SHARE_GROUPS: &[&str] = &[
    "share.auto.offset.reset",
    "share.isolation.level",
    "share.record.lock.duration.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
    "share.renew.acknowledge.enable",
    "share.session.timeout.ms",
    "share.heartbeat.interval.ms",
    "share.assignment.interval.ms",
    "share.assignor.offload.enable",
];

/// Options of a consumer that a share consumer has no use for, each with the reason.
const NOT_FOR_SHARES: &[(&str, &str)] = &[
    (
        "auto.offset.reset",
        "where a share group begins is a setting of the group, share.auto.offset.reset: Admin.alter_group_config sets it",
    ),
    (
        "isolation.level",
        "it is a setting of the group, share.isolation.level: Admin.alter_group_config sets it",
    ),
    ("enable.auto.commit", "there are no positions to commit: see share.acknowledgement.mode"),
    ("auto.commit.interval.ms", "there are no positions to commit: see share.acknowledgement.mode"),
    ("group.instance.id", "share groups have no static members"),
    ("group.protocol", "share groups have a protocol of their own (KIP-932)"),
    ("group.remote.assignor", "the coordinator chooses, by its group.share.assignors"),
    ("partition.assignment.strategy", "the coordinator chooses, by its group.share.assignors"),
    (
        "session.timeout.ms",
        "it is a setting of the group, share.session.timeout.ms: Admin.alter_group_config sets it",
    ),
    (
        "heartbeat.interval.ms",
        "it is a setting of the group, share.heartbeat.interval.ms: Admin.alter_group_config sets it",
    ),
    ("max.partition.fetch.bytes", "share groups have no such limit: see fetch.max.bytes"),
    ("fetch.buffer.bytes", "what is held is bounded by max.poll.records and fetch.max.bytes"),
];

const NO_SERIALIZERS: &str = "there are no serializers: keys and values are bytes and Arrow columns";
const NO_METRICS: &str = "there are no reporters; Producer.metrics() tells what there is";

/// Letters in which a name that was meant to be an option's differs from it, at most.
const SLIP_MAX: usize = 2;

/// What was given, checked to be options of the role.
pub(super) fn values(role: Role, pairs: impl IntoIterator<Item = (String, String)>) -> Result<Values> {
    let mut values = Values::default();
    for (written, text) in pairs {
        if let Some(other) = values.insert(find(role, &written)?, &written, &text) {
            return Err(Error::config(written, format!("it is given twice (also as '{other}')")));
        }
    }
    Ok(values)
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::config(refusal.written, refusal.why)
    }
}

/// The row for a name in either spelling, among those that `role` takes.
fn find(role: Role, written: &str) -> Result<&'static Row> {
    let name = canonical(written);
    if let Some((_, row)) = rows().find(|(of, row)| row.name == name && role.takes(*of)) {
        return Ok(row);
    }
    if let Some((_, why)) = NOT_FOR_SHARES.iter().find(|(known, _)| role == Role::Share && name == *known) {
        return Err(Error::config(written, *why));
    }
    if OF_SHARE_GROUPS.contains(&name.as_str()) {
        let why = "it is a setting of the share group, not of a client: Admin.alter_group_config sets it";
        return Err(Error::config(written, why));
    }
    if let Some((other, _)) = rows().find(|(_, row)| row.name == name) {
        let why = format!("it is an option of the {}, not of the {}", other.name(), role.name());
        return Err(Error::config(written, why));
    }
    if let Some((_, instead)) = OF_LIBRDKAFKA.iter().find(|(known, _)| name == *known) {
        return Err(Error::config(written, format!("librdkafka calls it so: {instead}")));
    }
    let near = nearest(&name, rows().filter(|(of, _)| role.takes(*of)).map(|(_, row)| row.name));
    let unsupported = UNSUPPORTED.iter().find(|(known, _)| match known.strip_suffix('.') {
        // A slip of the finger is no option of Kafka's.
        Some(_) => name.starts_with(known) && near.is_none_or(|(far, _)| far > SLIP_MAX),
        None => name == *known,
    });
    if let Some((_, reason)) = unsupported {
        return Err(Error::config(
            written,
            format!("Kafka knows it, headrace does not support it: {reason}"),
        ));
    }
    let hint = match near {
        Some((_, near)) => format!("; did you mean '{near}'?"),
        None => String::new(),
    };
    Err(Error::config(written, format!("no such option of the {}{hint}", role.name())))
}

/// Whether a name in either spelling is an option of another kind of client only.
pub(super) fn is_of_another(role: Role, written: &str) -> bool {
    let name = canonical(written);
    let mut named = rows().filter(|(_, row)| row.name == name).peekable();
    named.peek().is_some() && !named.any(|(of, _)| role.takes(of))
}

fn canonical(written: &str) -> String {
    written.trim().replace('_', ".")
}
