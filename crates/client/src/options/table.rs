//! The table of options.

use headrace_options::{INT_MAX, Kind, LONG_MAX, Row, number, options};
use headrace_pool::AllocationStrategy;

use super::known;
use super::role::Role;
use super::security::{Mechanism, Secret, SecurityProtocol};
use super::value::{
    AcknowledgementMode, Acks, AcquireMode, Assignor, AutoOffsetReset, BrokerShare, CompressionType,
    Datapath, Endpoint, GroupProtocol, IsolationLevel, OnBadRecords, Partitioner, RecoveryStrategy,
    ValueType,
};
use crate::error::{Error, Result};
use crate::sasl::TokenSource;

const fn ms(min: i64) -> Kind {
    Kind::Int { min, max: i64::MAX, unit: "ms" }
}

const fn bytes(min: i64, max: i64) -> Kind {
    Kind::Int { min, max, unit: "bytes" }
}

pub(super) const PROTOCOLS: &[&str] = &["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"];
pub(super) const MECHANISMS: &[&str] = &["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"];

options! {
    /// Options of every client.
    CommonConfig {}
    bootstrap_servers: Vec<Endpoint> = "bootstrap.servers",
        Kind::Form("a list of host:port, separated by commas"), None, false,
        "The brokers to connect to first, to learn of all brokers in the cluster; list a few, in case one is down.";
    client_id: String = "client.id", Kind::Text, Some("headrace"), false,
        "The client's name in the broker's logs, metrics and quotas.";
    request_timeout_ms: u64 = "request.timeout.ms", ms(1), Some("30000"), false,
        "How long a request may go unanswered before its connection is closed. The request is then retried where that is safe.";
    default_api_timeout_ms: u64 = "default.api.timeout.ms", ms(1), Some("60000"), false,
        "How long a call of the consumer or admin client may take, retries included, when it is given no timeout of its own.";
    metadata_max_age_ms: u64 = "metadata.max.age.ms", ms(100), Some("300000"), false,
        "How old metadata may get before it is refreshed, even when nothing seems to have changed.";
    metadata_recovery_strategy: RecoveryStrategy = "metadata.recovery.strategy",
        Kind::Choice(&["rebootstrap", "none"]), Some("rebootstrap"), false,
        "What to do when no known broker answers: rebootstrap asks bootstrap.servers again, none keeps trying the known brokers (KIP-899).";
    metadata_recovery_rebootstrap_trigger_ms: u64 = "metadata.recovery.rebootstrap.trigger.ms", ms(0), Some("300000"), false,
        "How long metadata may be unavailable before all known brokers are dropped and only bootstrap.servers are asked (KIP-1102).";
    reconnect_backoff_ms: u64 = "reconnect.backoff.ms", ms(0), Some("50"), false,
        "The first wait before connecting again; it doubles with each failure.";
    reconnect_backoff_max_ms: u64 = "reconnect.backoff.max.ms", ms(0), Some("1000"), false,
        "The longest wait before connecting again.";
    retry_backoff_ms: u64 = "retry.backoff.ms", ms(0), Some("100"), false,
        "The first wait before a failed request is sent again; it doubles with each failure.";
    retry_backoff_max_ms: u64 = "retry.backoff.max.ms", ms(0), Some("1000"), false,
        "The longest wait before a failed request is sent again. While an error lasts, polls raise it no more often than this.";
    socket_connection_setup_timeout_ms: u64 = "socket.connection.setup.timeout.ms", ms(1), Some("10000"), false,
        "How long connecting may take, including the exchange of API versions; it doubles with each failure.";
    socket_connection_setup_timeout_max_ms: u64 = "socket.connection.setup.timeout.max.ms", ms(1), Some("30000"), false,
        "The limit up to which socket.connection.setup.timeout.ms doubles.";
    connections_max_idle_ms: u64 = "connections.max.idle.ms", ms(100), Some("540000"), false,
        "How long an idle connection is kept open.";
    receive_buffer_bytes: i32 = "receive.buffer.bytes", bytes(-1, INT_MAX), Some("-1"), false,
        "The socket's receive buffer (SO_RCVBUF); -1 leaves it to the system, which grows it as needed.";
    send_buffer_bytes: i32 = "send.buffer.bytes", bytes(-1, INT_MAX), Some("-1"), false,
        "The socket's send buffer (SO_SNDBUF); -1 leaves it to the system.";
    security_protocol: SecurityProtocol = "security.protocol", Kind::Choice(PROTOCOLS), Some("PLAINTEXT"), false,
        "How connections are secured: with TLS (SSL, SASL_SSL), with a login (SASL_PLAINTEXT, SASL_SSL), or not at all (PLAINTEXT).";
    ssl_ca_location: Option<String> = "ssl.ca.location", Kind::Text, None, true,
        "A PEM file with the certificate authorities to trust, or with the broker's own certificate; by default the system's authorities are trusted. librdkafka has the same option.";
    ssl_certificate_location: Option<String> = "ssl.certificate.location", Kind::Text, None, true,
        "A PEM file with the client's certificate and any intermediate certificates, for brokers that ask for one. librdkafka has the same option.";
    ssl_key_location: Option<String> = "ssl.key.location", Kind::Text, None, true,
        "A PEM file with the private key of the client's certificate; by default the key is read from ssl.certificate.location. librdkafka has the same option.";
    ssl_key_password: Secret = "ssl.key.password", Kind::Text, None, false,
        "The password of the private key, if it is encrypted (PKCS#8). It never appears in errors.";
    ssl_endpoint_identification_algorithm: String = "ssl.endpoint.identification.algorithm", Kind::Choice(&["https", "none", ""]), Some("https"), false,
        "With https, a broker's certificate must name the host that the client connects to among its alternative names. With none or an empty value this is not checked, and anyone with a certificate from the same authority can pose as the broker.";
    sasl_mechanism: Option<Mechanism> = "sasl.mechanism", Kind::Choice(MECHANISMS), None, false,
        "How the client authenticates. Required with SASL; Kafka's own default, GSSAPI (Kerberos), is not supported.";
    sasl_username: Option<String> = "sasl.username", Kind::Text, None, true,
        "The user name for PLAIN and SCRAM; librdkafka has the same option.";
    sasl_password: Secret = "sasl.password", Kind::Text, None, true,
        "The password for PLAIN and SCRAM. It never appears in errors. PLAIN sends it in clear text: use it over TLS only. librdkafka has the same option.";
    sasl_oauthbearer_token: TokenSource = "sasl.oauthbearer.token", Kind::Text, None, true,
        "A long-lived bearer token for OAUTHBEARER. It never appears in errors. For tokens that expire, pass the Python function oauth_cb instead: see security.md.";
    sasl_oauthbearer_config: Secret = "sasl.oauthbearer.config", Kind::Text, None, true,
        "The argument that oauth_cb is called with. It never appears in errors. librdkafka has the same option.";
}

options! {
    /// Options of a producer.
    ProducerConfig {
        /// The options of every client.
        common: CommonConfig
    }
    acks: Acks = "acks", Kind::Choice(&["all", "-1", "1", "0"]), Some("all"), false,
        "When a broker acknowledges records: once all in-sync replicas have them (all), once the leader has them (1), or never (0).";
    linger_ms: u64 = "linger.ms", ms(0), Some("5"), false,
        "How long an open batch waits for more records.";
    batch_size: u32 = "batch.size", bytes(0, INT_MAX), Some("131072"), false,
        "The size at which a batch is closed. The default of Kafka's own producer is 16384.";
    buffer_memory: u64 = "buffer.memory", bytes(1, LONG_MAX), Some("33554432"), false,
        "Memory for batches that are open, waiting or in flight.";
    buffer_memory_allocation_strategy: AllocationStrategy = "buffer.memory.allocation.strategy",
        Kind::Choice(&["full", "incremental"]), Some("full"), false,
        "How much of buffer.memory an open batch takes: all of batch.size (full), or what its records need, in chunks of 16 KiB (incremental; KIP-1332), which leaves room for more partitions.";
    buffer_memory_broker_share: BrokerShare = "buffer.memory.broker.share",
        Kind::Form("a decimal number above 0 and at most 1"), Some("0.5"), true,
        "The fraction of buffer.memory that records for one broker may hold, so that a broker that stops answering leaves memory for the others. 1 means no limit; nor is there one while a single broker leads every partition that is written to. A broker's first batch is accepted whatever its size.";
    max_block_ms: u64 = "max.block.ms", ms(0), Some("60000"), false,
        "How long a send may wait for memory, and how long its record may then wait for the topic's metadata. For Arrow data it is the limit for both together.";
    max_request_size: u32 = "max.request.size", bytes(1, INT_MAX), Some("1048576"), false,
        "The largest Produce request, and so the largest record, before compression.";
    compression_type: CompressionType = "compression.type",
        Kind::Choice(&["none", "gzip", "snappy", "lz4", "zstd"]), Some("none"), false,
        "How batches are compressed.";
    compression_gzip_level: i32 = "compression.gzip.level", number(-1, 9), Some("-1"), false,
        "gzip's compression level, from 1 (fastest) to 9 (smallest); -1 is gzip's own default.";
    compression_zstd_level: i32 = "compression.zstd.level", number(-131_072, 22), Some("3"), false,
        "zstd's compression level: higher is smaller but slower.";
    delivery_timeout_ms: u64 = "delivery.timeout.ms", ms(1), Some("120000"), false,
        "How long a record may take from the send to its acknowledgement, retries included. Must be at least linger.ms + request.timeout.ms; the default is raised to that where needed.";
    retries: u32 = "retries", number(0, INT_MAX), Some("2147483647"), false,
        "How often a batch is sent again after retriable errors, within delivery.timeout.ms.";
    max_in_flight_requests_per_connection: u32 = "max.in.flight.requests.per.connection", number(1, INT_MAX), Some("5"), false,
        "How many Produce requests may be in flight to one broker at the same time; at most 5 with idempotence.";
    enable_idempotence: bool = "enable.idempotence", Kind::Bool, Some("true"), false,
        "Whether the broker drops duplicates that retries cause. Turned off automatically when acks, retries or max.in.flight.requests.per.connection is set to a value that rules it out.";
    transactional_id: Option<String> = "transactional.id", Kind::Text, None, false,
        "Makes the producer transactional: everything it sends belongs to transactions. The id must be unique: a second producer with the same id fences the first.";
    transaction_timeout_ms: u32 = "transaction.timeout.ms", Kind::Int { min: 1, max: INT_MAX, unit: "ms" }, Some("60000"), false,
        "How long a transaction may stay open before the broker aborts it; at most the broker's transaction.max.timeout.ms.";
    partitioner: Partitioner = "partitioner", Kind::Choice(&[
            "murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random", "fnv1a", "random", "sticky",
        ]), Some("murmur2_random"), true,
        "How the partition is chosen for a record that names none; the names are librdkafka's. It follows from a hash of the key: murmur2 as in Kafka's own producer, CRC-32 as in librdkafka (consistent), or FNV-1a as in Sarama. In the variants with _random, records without a key (for consistent_random also those with an empty key) fill one partition with a batch's worth of bytes, then move to another; in those without _random, a missing key is hashed as an empty one. random and sticky ignore keys and do so with all records.";
    partitioner_ignore_keys: bool = "partitioner.ignore.keys", Kind::Bool, Some("false"), false,
        "Whether keys are ignored when a partition is chosen, as with partitioner=sticky.";
    partitioner_adaptive_partitioning_enable: bool = "partitioner.adaptive.partitioning.enable", Kind::Bool, Some("true"), false,
        "Whether records that may go to any partition go less often to those with a longer queue of batches, so that a slow broker gets fewer (KIP-794). If false, all partitions get an equal share.";
    partitioner_availability_timeout_ms: u64 = "partitioner.availability.timeout.ms", ms(0), Some("0"), false,
        "How long a broker may accept none of the batches that are ready for it before records that may go to any partition avoid its partitions, as long as others are available; 0 turns this off. It has no effect without partitioner.adaptive.partitioning.enable.";
    datapath: Datapath = "headrace.datapath", Kind::Choice(&["tcp", "auto", "shm", "verbs", "two-sided"]), Some("tcp"), true,
        "How record batches travel to and from a headrace broker: over TCP (tcp), through memory that this process shares with a broker of the same user on the same host (shm), through memory that is reached over RDMA (verbs), or as Kafka's own requests and answers in messages over RDMA (two-sided). The last three fail where they are not available; auto uses shm or else verbs where available, and TCP otherwise. See one-sided.md.";
    poll_spin_us: u32 = "headrace.poll.spin.us", Kind::Int { min: 0, max: 1_000_000, unit: "us" }, Some("50"), true,
        "How long a waiting caller polls shared memory, yielding the processor after each look, before it sleeps until it is woken.";
    verbs_device: Option<String> = "headrace.verbs.device", Kind::Text, None, true,
        "The RDMA device, as `rdma link` shows it; by default the first one with an active port.";
}

options! {
    /// Options of a consumer.
    ConsumerConfig {
        /// The options of every client.
        common: CommonConfig
    }
    group_id: Option<String> = "group.id", Kind::Text, None, false,
        "The group to share partitions and commit offsets with.";
    group_instance_id: Option<String> = "group.instance.id", Kind::Text, None, false,
        "Makes this a static member: a restart within the session time-out moves no partitions (KIP-345).";
    group_protocol: GroupProtocol = "group.protocol", Kind::Choice(&["classic", "consumer"]), Some("classic"), false,
        "The protocol for groups. With consumer (KIP-848) the coordinator divides the partitions, and session.timeout.ms, heartbeat.interval.ms and partition.assignment.strategy have no effect.";
    group_remote_assignor: Option<String> = "group.remote.assignor", Kind::Text, None, false,
        "How the coordinator divides partitions with group.protocol=consumer: one of its group.consumer.assignors; by default the first.";
    auto_offset_reset: AutoOffsetReset = "auto.offset.reset",
        Kind::Form("latest, earliest, none, or by_duration: and an ISO 8601 duration such as by_duration:PT1H"),
        Some("latest"), false,
        "Where to start when there is no committed offset, or when its records are gone.";
    enable_auto_commit: bool = "enable.auto.commit", Kind::Bool, Some("true"), false,
        "Whether positions are committed periodically, and before partitions are given up. Without a group.id nothing is committed.";
    auto_commit_interval_ms: u64 = "auto.commit.interval.ms", ms(0), Some("5000"), false,
        "How often positions are committed when enable.auto.commit is true.";
    session_timeout_ms: u32 = "session.timeout.ms", Kind::Int { min: 1, max: INT_MAX, unit: "ms" }, Some("45000"), false,
        "How long the group waits for a heartbeat before it gives the member's partitions to others.";
    heartbeat_interval_ms: u32 = "heartbeat.interval.ms", Kind::Int { min: 1, max: INT_MAX, unit: "ms" }, Some("3000"), false,
        "How often heartbeats are sent. Must be less than session.timeout.ms, ideally a third of it.";
    max_poll_interval_ms: u32 = "max.poll.interval.ms", Kind::Int { min: 1, max: INT_MAX, unit: "ms" }, Some("300000"), false,
        "How long a member may go without polling before it leaves the group.";
    max_poll_records: u32 = "max.poll.records", number(1, INT_MAX), Some("2147483647"), false,
        "The most rows that a poll returns when the call names no limit of its own. The default of Kafka's own consumer is 500.";
    partition_assignment_strategy: Vec<Assignor> = "partition.assignment.strategy",
        Kind::Choices(&["range", "roundrobin", "sticky", "cooperative-sticky"]), Some("range"), false,
        "How a group's leader divides partitions: the first in the list that all members support. With cooperative-sticky alone, a member keeps reading while its group rebalances. When it is listed with others, members give up all partitions first, so that a group can migrate one member at a time.";
    fetch_min_bytes: u32 = "fetch.min.bytes", bytes(0, INT_MAX), Some("1"), false,
        "How much data a broker waits for before it answers.";
    fetch_max_bytes: u32 = "fetch.max.bytes", bytes(0, INT_MAX), Some("52428800"), false,
        "The most data that one response should hold; a first batch that is larger is returned anyway (KIP-74).";
    fetch_max_wait_ms: u32 = "fetch.max.wait.ms", Kind::Int { min: 0, max: INT_MAX, unit: "ms" }, Some("500"), false,
        "How long a broker waits at most for fetch.min.bytes.";
    max_partition_fetch_bytes: u32 = "max.partition.fetch.bytes", bytes(0, INT_MAX), Some("8388608"), false,
        "The most data from one partition in a response. The default of Kafka's own consumer is 1048576.";
    fetch_buffer_bytes: u64 = "fetch.buffer.bytes", bytes(1 << 20, LONG_MAX), Some("67108864"), true,
        "Memory for records that were fetched and not yet polled. One more batch may be held while it arrives.";
    check_crcs: bool = "check.crcs", Kind::Bool, Some("true"), false,
        "Whether each batch's checksum is checked.";
    on_bad_records: OnBadRecords = "on.bad.records", Kind::Choice(&["error", "skip"]), Some("error"), true,
        "What to do with a record batch that is damaged or too large: error raises until a seek moves past it, skip leaves the batch out and logs that. A batch whose bounds cannot be read is always an error.";
    isolation_level: IsolationLevel = "isolation.level",
        Kind::Choice(&["read_uncommitted", "read_committed"]), Some("read_uncommitted"), false,
        "Whether records of open and aborted transactions are returned (read_uncommitted) or not (read_committed).";
    include_headers: bool = "include.headers", Kind::Bool, Some("false"), true,
        "Whether the Arrow batches have a column with the records' headers.";
    value_type: ValueType = "value.type", Kind::Choice(&["binary", "binary_view"]), Some("binary"), true,
        "The Arrow type of the column `value`. With binary_view, values are not copied: they stay in the memory into which they were received or decompressed, and rows keep all of it alive.";
    allow_auto_create_topics: bool = "allow.auto.create.topics", Kind::Bool, Some("true"), false,
        "Whether subscribing to a topic by name may create it, where the broker allows that. A topic that was found by a pattern or assigned by the group is not created again once it has been deleted.";
    exclude_internal_topics: bool = "exclude.internal.topics", Kind::Bool, Some("true"), false,
        "Whether a subscription by pattern leaves out topics that the cluster calls internal. With group.protocol=consumer the coordinator always leaves them out.";
    client_rack: String = "client.rack", Kind::Text, Some(""), false,
        "The rack this client is in, for fetching from a nearby replica (KIP-392).";
    datapath: Datapath = "headrace.datapath", Kind::Choice(&["tcp", "auto", "shm", "verbs", "two-sided"]), Some("tcp"), true,
        "How record batches travel to and from a headrace broker: over TCP (tcp), through memory that this process shares with a broker of the same user on the same host (shm), through memory that is reached over RDMA (verbs), or as Kafka's own requests and answers in messages over RDMA (two-sided). The last three fail where they are not available; auto uses shm or else verbs where available, and TCP otherwise. See one-sided.md.";
    poll_spin_us: u32 = "headrace.poll.spin.us", Kind::Int { min: 0, max: 1_000_000, unit: "us" }, Some("50"), true,
        "How long a waiting caller polls shared memory, yielding the processor after each look, before it sleeps until it is woken.";
    verbs_device: Option<String> = "headrace.verbs.device", Kind::Text, None, true,
        "The RDMA device, as `rdma link` shows it; by default the first one with an active port.";
}

options! {
    /// Options of a share consumer.
    ShareConfig {
        /// The options of every client.
        common: CommonConfig
    }
    group_id: String = "group.id", Kind::Text, None, false,
        "The share group to join.";
    share_acquire_mode: AcquireMode = "share.acquire.mode",
        Kind::Choice(&["batch_optimized", "record_limit"]), Some("batch_optimized"), false,
        "What brokers return: whole batches, so that more than max.poll.records may be acquired (batch_optimized), or never more than max.poll.records at a time, from all brokers together (record_limit; KIP-1206, needs Kafka 4.2).";
    share_acknowledgement_mode: AcknowledgementMode = "share.acknowledgement.mode",
        Kind::Choice(&["implicit", "explicit"]), Some("implicit"), false,
        "Who acknowledges the rows of a poll: the next poll, which accepts them all (implicit), or the caller, row by row (explicit).";
    max_poll_records: u32 = "max.poll.records", number(1, INT_MAX), Some("500"), false,
        "The most rows that a poll acquires and returns when the call names no limit of its own.";
    max_poll_interval_ms: u32 = "max.poll.interval.ms", Kind::Int { min: 1, max: INT_MAX, unit: "ms" }, Some("300000"), false,
        "How long a member may go without polling before it leaves the group.";
    fetch_min_bytes: u32 = "fetch.min.bytes", bytes(0, INT_MAX), Some("1"), false,
        "How much data a broker waits for before it answers. With share.acquire.mode=record_limit one record is always enough.";
    fetch_max_bytes: u32 = "fetch.max.bytes", bytes(0, INT_MAX), Some("52428800"), false,
        "The most data that one response should hold; a first batch that is larger is returned anyway (KIP-74).";
    fetch_max_wait_ms: u32 = "fetch.max.wait.ms", Kind::Int { min: 0, max: INT_MAX, unit: "ms" }, Some("500"), false,
        "How long a broker that has no records waits for some. Never less than 50 ms nor more than 500 ms, so that closing and acknowledging never wait longer than that.";
    check_crcs: bool = "check.crcs", Kind::Bool, Some("true"), false,
        "Whether each batch's checksum is checked.";
    on_bad_records: OnBadRecords = "on.bad.records", Kind::Choice(&["error", "skip"]), Some("error"), true,
        "What to do with records that cannot be read: error raises once for each batch and releases the records for other members to try; skip rejects them and logs that.";
    include_headers: bool = "include.headers", Kind::Bool, Some("false"), true,
        "Whether the Arrow batches have a column with the records' headers.";
    value_type: ValueType = "value.type", Kind::Choice(&["binary", "binary_view"]), Some("binary"), true,
        "The Arrow type of the column `value`. With binary_view, values are not copied: they stay in the memory into which they were received or decompressed, and rows keep all of it alive.";
    client_rack: String = "client.rack", Kind::Text, Some(""), false,
        "The rack this client is in, which is reported to the group's coordinator.";
}

options! {
    /// Options of an admin client.
    AdminConfig {
        /// The options of every client.
        common: CommonConfig
    }
    retries: u32 = "retries", number(0, INT_MAX), Some("2147483647"), false,
        "How often a request is sent again after retriable errors, within default.api.timeout.ms.";
}

/// All options, in the order of the reference page, and whose they are.
pub fn rows() -> impl Iterator<Item = (Role, &'static Row)> {
    let tables: [(Role, &[Row]); 5] = [
        (Role::Common, CommonConfig::ROWS),
        (Role::Producer, ProducerConfig::ROWS),
        (Role::Consumer, ConsumerConfig::ROWS),
        (Role::Share, ShareConfig::ROWS),
        (Role::Admin, AdminConfig::ROWS),
    ];
    tables.into_iter().flat_map(|(role, rows)| rows.iter().map(move |row| (role, row)))
}

impl CommonConfig {
    /// Reads the options of every client alone.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let values = known::values(Role::Common, pairs)?;
        let config = Self::from_values(&values)?;
        config.check_security(&values)?;
        Ok(config)
    }
}

impl ProducerConfig {
    /// Reads a producer's options; names as `a.b.c` or `a_b_c`. Options that do not go together are errors.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let values = known::values(Role::Producer, pairs)?;
        let mut config = Self::from_values(&values)?;
        config.common.check_security(&values)?;
        config.datapath.check_system(cfg!(target_os = "linux"))?;
        let conflict = if config.acks != Acks::All {
            Some(("acks", "must be 'all'"))
        } else if config.retries == 0 {
            Some(("retries", "must be at least 1"))
        } else if config.max_in_flight_requests_per_connection > 5 {
            Some(("max.in.flight.requests.per.connection", "must be at most 5"))
        } else {
            None
        };
        if config.transactional_id.is_some() {
            if let Some((option, must)) = conflict {
                return Err(Error::config(option, format!("it {must} with a transactional.id")));
            }
            if !config.enable_idempotence {
                return Err(Error::config("enable.idempotence", "it must be true with a transactional.id"));
            }
            if config.datapath.is_required() {
                let why = "with a transactional.id records go over TCP: it takes auto or tcp then";
                return Err(Error::config("headrace.datapath", why));
            }
        }
        if config.datapath.is_required() && config.acks == Acks::None {
            let why = "with acks=0 records go over TCP: it takes auto, two-sided or tcp then";
            return Err(Error::config("headrace.datapath", why));
        }
        if let (true, Some((option, must))) = (config.enable_idempotence, conflict) {
            if values.given("enable.idempotence") {
                return Err(Error::config(option, format!("it {must} with enable.idempotence=true")));
            }
            // As in Kafka's producer: what the caller set stands, and what is on by default gives way.
            config.enable_idempotence = false;
        }
        if config.partitioner_ignore_keys && values.given("partitioner") && config.partitioner.uses_keys() {
            return Err(Error::config(
                "partitioner.ignore.keys",
                "it takes away what 'partitioner' looks at",
            ));
        }
        let least = config.linger_ms.saturating_add(config.common.request_timeout_ms);
        if config.delivery_timeout_ms < least {
            if values.given("delivery.timeout.ms") {
                let why = format!(
                    "it must be at least linger.ms + request.timeout.ms, which is {least}; it is {}",
                    config.delivery_timeout_ms
                );
                return Err(Error::config("delivery.timeout.ms", why));
            }
            config.delivery_timeout_ms = least;
        }
        Ok(config)
    }
}

impl ConsumerConfig {
    /// Reads a consumer's options; names as `a.b.c` or `a_b_c`. Options that do not go together are errors.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let values = known::values(Role::Consumer, pairs)?;
        let mut config = Self::from_values(&values)?;
        config.common.check_security(&values)?;
        config.datapath.check_system(cfg!(target_os = "linux"))?;
        if config.heartbeat_interval_ms >= config.session_timeout_ms {
            let why = format!(
                "it must be less than session.timeout.ms, which is {}; it is {}",
                config.session_timeout_ms, config.heartbeat_interval_ms
            );
            return Err(Error::config("heartbeat.interval.ms", why));
        }
        if config.group_id.is_none() {
            if config.enable_auto_commit && values.given("enable.auto.commit") {
                return Err(Error::config("enable.auto.commit", "it needs a group.id"));
            }
            if config.group_instance_id.is_some() {
                return Err(Error::config("group.instance.id", "it needs a group.id"));
            }
            config.enable_auto_commit = false;
        }
        if config.datapath.is_required() && config.isolation_level == IsolationLevel::ReadCommitted {
            let why = "with isolation.level=read_committed records go over TCP: it takes auto or tcp then";
            return Err(Error::config("headrace.datapath", why));
        }
        Ok(config)
    }
}

impl ShareConfig {
    /// Reads a share consumer's options; names as `a.b.c` or `a_b_c`.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let values = known::values(Role::Share, pairs)?;
        let config = Self::from_values(&values)?;
        config.common.check_security(&values)?;
        if config.group_id.is_empty() {
            return Err(Error::config("group.id", "it must be given; it takes a text that is not empty"));
        }
        Ok(config)
    }
}

impl AdminConfig {
    /// Reads an admin client's options; names as `a.b.c` or `a_b_c`.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let values = known::values(Role::Admin, pairs)?;
        let config = Self::from_values(&values)?;
        config.common.check_security(&values)?;
        Ok(config)
    }

    /// Reads an admin client's options out of those of another client beside which it works: what an admin client does
    /// not take is skipped.
    pub fn from_shared_pairs(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let own = pairs.into_iter().filter(|(written, _)| !known::is_of_another(Role::Admin, written));
        Self::from_pairs(own)
    }
}
