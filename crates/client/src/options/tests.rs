//! The table of options.

use super::*;
use crate::error::{Error, Result};

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let servers = [("bootstrap.servers", "k:9092")];
    servers.iter().chain(pairs).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn producer(given: &[(&str, &str)]) -> Result<ProducerConfig> {
    ProducerConfig::from_pairs(pairs(given))
}

fn consumer(given: &[(&str, &str)]) -> Result<ConsumerConfig> {
    ConsumerConfig::from_pairs(pairs(given))
}

fn share(given: &[(&str, &str)]) -> Result<ShareConfig> {
    ShareConfig::from_pairs(pairs(given))
}

/// The option an error names, and its sentence.
fn refused<T: std::fmt::Debug>(result: Result<T>) -> (String, String) {
    match result.unwrap_err() {
        Error::Config { option, why } => (option, why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn defaults() {
    let p = producer(&[]).unwrap();
    assert_eq!(p.common.bootstrap_servers, [Endpoint { host: "k".to_owned(), port: 9092 }]);
    assert_eq!((p.acks, p.linger_ms, p.enable_idempotence), (Acks::All, 5, true));
    assert_eq!((p.retries, p.max_in_flight_requests_per_connection), (i32::MAX.unsigned_abs(), 5));
    assert_eq!(p.common.receive_buffer_bytes, -1);
    let c = consumer(&[("group.id", "g")]).unwrap();
    assert_eq!(c.auto_offset_reset, AutoOffsetReset::Latest);
    assert_eq!((c.enable_auto_commit, c.check_crcs, c.include_headers), (true, true, false));
    assert_eq!(c.partition_assignment_strategy, [Assignor::Range]);
    assert!(!consumer(&[]).unwrap().enable_auto_commit, "without a group there is nothing to commit to");
    let s = share(&[("group.id", "g")]).unwrap();
    assert_eq!((s.group_id.as_str(), s.max_poll_records, s.max_poll_interval_ms), ("g", 500, 300_000));
    assert_eq!(s.share_acquire_mode, AcquireMode::BatchOptimized);
    assert_eq!(s.share_acknowledgement_mode, AcknowledgementMode::Implicit);
    assert_eq!((s.fetch_min_bytes, s.fetch_max_bytes, s.fetch_max_wait_ms), (1, 52_428_800, 500));
    AdminConfig::from_pairs(pairs(&[])).unwrap();
}

#[test]
fn every_default_is_accepted_and_every_row_has_its_sentence() {
    let mut names = std::collections::BTreeSet::new();
    for (role, row) in rows() {
        assert!(names.insert((role, row.name)), "{} stands twice", row.name);
        assert!(row.sentence.ends_with('.') && row.sentence.len() > 15, "{}", row.name);
        assert!(row.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'.'), "{}", row.name);
        let Some(default) = row.default else { continue };
        if let Kind::Int { min, max, .. } = row.kind {
            assert!((min..=max).contains(&default.parse().unwrap()), "{}", row.name);
        }
        if let Kind::Choice(words) | Kind::Choices(words) = row.kind {
            assert!(words.contains(&default), "{}", row.name);
        }
    }
    assert!(names.len() > 40);
}

#[test]
fn every_word_that_a_row_offers_is_accepted() {
    for (role, row) in rows().filter(|(role, _)| *role != Role::Common) {
        let (Kind::Choice(words) | Kind::Choices(words)) = row.kind else { continue };
        for word in words {
            let given = [(row.name, *word), ("group.id", "g")];
            let refused = match role {
                Role::Producer => producer(&given[..1]).err(),
                Role::Share => share(&given).err(),
                _ => consumer(&given).err(),
            };
            assert_eq!(refused, None, "{}={word}", row.name);
        }
    }
}

#[test]
fn both_spellings_are_accepted_but_not_at_once() {
    assert_eq!(producer(&[("linger_ms", "7")]).unwrap().linger_ms, 7);
    assert_eq!(producer(&[("linger.ms", " 8 ")]).unwrap().linger_ms, 8);
    let (option, why) = refused(producer(&[("linger.ms", "7"), ("linger_ms", "7")]));
    assert!(option == "linger_ms" && why.contains("linger.ms"), "{why}");
    assert!(consumer(&[("include_headers", "True"), ("value_type", "binary_view")]).unwrap().include_headers);
}

#[test]
fn an_unknown_option_is_answered_with_the_nearest() {
    for (written, near) in [
        ("linger", "linger.ms"),
        ("lingerms", "linger.ms"),
        ("bacth.size", "batch.size"),
        ("compresion_type", "compression.type"),
        ("bootstrap_server", "bootstrap.servers"),
    ] {
        let (option, why) = refused(producer(&[(written, "1")]));
        assert_eq!(option, written);
        assert!(why.contains(&format!("did you mean '{near}'?")), "{why}");
    }
    for (written, near) in [("sasl.passwrd", "sasl.password"), ("ssl_ca_loction", "ssl.ca.location")] {
        let (_, why) = refused(producer(&[(written, "secret")]));
        assert!(why.contains(&format!("did you mean '{near}'?")) && !why.contains("secret"), "{why}");
    }
    let (_, why) = refused(producer(&[("ssl.keystore.password", "secret")]));
    assert!(why.contains("ssl.certificate.location") && !why.contains("secret"), "{why}");
    let (_, why) = refused(producer(&[("fnord.gizmo", "1")]));
    assert!(!why.contains("did you mean"), "{why}");
    refused(producer(&[(&"x".repeat(100_000), "1")]));
}

#[test]
fn names_of_librdkafka_are_answered_with_ours() {
    for (written, instead) in
        [("queue.buffering.max.ms", "linger.ms"), ("message_timeout_ms", "delivery.timeout.ms")]
    {
        let (option, why) = refused(producer(&[(written, "1")]));
        assert_eq!(option, written);
        assert!(why.contains(&format!("use {instead}")), "{why}");
    }
    for (name, instead) in known::OF_LIBRDKAFKA {
        assert!(!rows().any(|(_, row)| row.name == *name), "{name} is an option");
        if let Some(ours) = instead.strip_prefix("use ").and_then(|rest| rest.split([',', ' ']).next()) {
            assert!(rows().any(|(_, row)| row.name == ours), "{ours} is none");
        }
    }
}

#[test]
fn an_option_of_another_client_is_named_as_such() {
    let (_, why) = refused(producer(&[("group.id", "g")]));
    assert_eq!(why, "it is an option of the consumer, not of the producer");
    let (_, why) = refused(consumer(&[("acks", "1")]));
    assert!(why.contains("producer"), "{why}");
}

#[test]
fn a_share_consumer_says_why_it_does_not_take_what_a_consumer_does() {
    for (name, reason) in [
        ("auto.offset.reset", "share.auto.offset.reset"),
        ("isolation_level", "share.isolation.level"),
        ("enable.auto.commit", "share.acknowledgement.mode"),
        ("group.instance.id", "no static members"),
        ("group.protocol", "KIP-932"),
        ("session.timeout.ms", "share.session.timeout.ms"),
        ("partition.assignment.strategy", "group.share.assignors"),
        ("fetch.buffer.bytes", "max.poll.records"),
        ("exclude.internal.topics", "it is an option of the consumer, not of the share consumer"),
    ] {
        let (option, why) = refused(share(&[("group.id", "g"), (name, "x")]));
        assert!(option == name && why.contains(reason), "{why}");
    }
    assert_eq!(consumer(&[("group.id", "g"), ("isolation.level", "read_committed")]).err(), None);
    let (_, why) = refused(consumer(&[("share.acquire.mode", "record_limit")]));
    assert_eq!(why, "it is an option of the share consumer, not of the consumer");
    for given in [&[][..], &[("group.id", "")]] {
        let (option, why) = refused(share(given));
        assert!(option == "group.id" && why.contains("must be given"), "{why}");
    }
    let (option, why) = refused(share(&[("group.id", "g"), ("max.poll.records", "0")]));
    assert!(option == "max.poll.records" && why.contains("from 1 to"), "{why}");
}

#[test]
fn what_goes_over_tcp_alone_is_no_shared_memory() {
    let transactional = |datapath| producer(&[("transactional.id", "t"), ("headrace.datapath", datapath)]);
    let committed =
        |datapath| consumer(&[("isolation.level", "read_committed"), ("headrace.datapath", datapath)]);
    let unanswered = |datapath| producer(&[("acks", "0"), ("headrace.datapath", datapath)]);
    let (option, why) = refused(unanswered("verbs"));
    assert!(option == "headrace.datapath" && why.contains("acks=0"), "{why}");
    assert_eq!((unanswered("auto").err(), unanswered("two-sided").err()), (None, None));
    for (option, why) in [refused(transactional("shm")), refused(committed("shm"))] {
        assert!(option == "headrace.datapath" && why.contains("auto or tcp"), "{why}");
    }
    for datapath in ["auto", "tcp"] {
        assert_eq!((transactional(datapath).err(), committed(datapath).err()), (None, None));
    }
}

#[test]
fn what_needs_linux_is_refused_elsewhere() {
    for datapath in [Datapath::Shm, Datapath::Verbs, Datapath::TwoSided] {
        assert_eq!(datapath.check_system(true), Ok(()));
        let refused = datapath.check_system(false).unwrap_err().to_string();
        let starts = format!("option 'headrace.datapath': {} needs Linux", datapath.name());
        assert!(refused.starts_with(&starts) && refused.contains("auto or tcp"), "{refused}");
    }
    for datapath in [Datapath::Auto, Datapath::Tcp] {
        assert_eq!(datapath.check_system(false), Ok(()));
    }
}

#[test]
fn settings_of_a_share_group_are_no_options() {
    for name in ["share.auto.offset.reset", "share_record_lock_duration_ms", "share.session.timeout.ms"] {
        for result in [share(&[("group.id", "g"), (name, "1")]).err(), consumer(&[(name, "1")]).err()] {
            let Some(Error::Config { option, why }) = result else { panic!("{name}: {result:?}") };
            assert!(option == name && why.contains("Admin.alter_group_config"), "{why}");
        }
    }
}

#[test]
fn what_kafka_knows_and_we_do_not_is_refused_with_the_reason() {
    for (name, reason) in [
        ("ssl.truststore.location", "ssl.ca.location"),
        ("sasl_login_class", "sasl.username"),
        ("transaction.two.phase.commit.enable", "outside of Kafka"),
        ("key.serializer", "Arrow"),
        ("compression.lz4.level", "one level"),
        ("partitioner.class", "Java class"),
    ] {
        let (option, why) = refused(producer(&[(name, "x")]));
        assert_eq!(option, name);
        assert!(why.contains("does not support it") && why.contains(reason), "{why}");
    }
    let (_, why) = refused(producer(&[("security.protocol", "TLS")]));
    assert!(why.contains("PLAINTEXT"), "{why}");
    let (_, why) = refused(consumer(&[("group.protocol", "streams")]));
    assert!(why.contains("classic"), "{why}");
}

#[test]
fn a_wrong_value_is_named_with_what_is_accepted() {
    for (option, value, accepted) in [
        ("linger.ms", "-1", "at least 0 ms"),
        ("linger.ms", "5ms", "whole number"),
        ("linger.ms", "", "whole number"),
        ("linger.ms", "99999999999999999999", "whole number"),
        ("batch.size", "2147483648", "from 0 to 2147483647 bytes"),
        ("acks", "2", "one of all, -1, 1, 0"),
        ("enable.idempotence", "yes", "true or false"),
        ("compression.type", "brotli", "one of none, gzip, snappy, lz4, zstd"),
        ("compression.zstd.level", "23", "from -131072 to 22"),
    ] {
        let (named, why) = refused(producer(&[(option, value)]));
        assert_eq!(named, option);
        assert!(why.contains(&format!("'{value}'")) && why.contains(accepted), "{why}");
    }
    for (option, value) in [
        ("auto.offset.reset", "newest"),
        ("auto.offset.reset", "by_duration:P1"),
        ("partition.assignment.strategy", "range,stick"),
        ("partition.assignment.strategy", ","),
    ] {
        assert_eq!(refused(consumer(&[(option, value)])).0, option);
    }
    let c = consumer(&[("auto.offset.reset", "by_duration:PT1H")]).unwrap();
    assert_eq!(c.auto_offset_reset, AutoOffsetReset::ByDuration(3_600_000));
    let c = consumer(&[("partition.assignment.strategy", "roundrobin, range")]).unwrap();
    assert_eq!(c.partition_assignment_strategy, [Assignor::RoundRobin, Assignor::Range]);
}

#[test]
fn servers_must_be_given_and_readable() {
    let none: [(String, String); 0] = [];
    let (option, why) = refused(ProducerConfig::from_pairs(none));
    assert!(
        option == "bootstrap.servers" && why.contains("must be given") && why.contains("host:port"),
        "{why}"
    );
    for bad in ["", " , ", "kafka", "kafka:port", "a:1,b"] {
        let given = [("bootstrap.servers".to_owned(), bad.to_owned())];
        assert_eq!(refused(CommonConfig::from_pairs(given)).0, "bootstrap.servers", "{bad}");
    }
    let given = [("bootstrap.servers".to_owned(), " a:1, [::1]:2 ,".to_owned())];
    assert_eq!(CommonConfig::from_pairs(given).unwrap().bootstrap_servers.len(), 2);
}

/// What is said of these servers.
fn refusal_of(servers: &str) -> String {
    let given = [("bootstrap.servers".to_owned(), servers.to_owned())];
    let (option, why) = refused(CommonConfig::from_pairs(given));
    assert_eq!(option, "bootstrap.servers");
    why
}

#[test]
fn a_password_among_the_servers_is_not_shown() {
    for servers in [
        "alice:hunter2@k:9092",
        "hunter2@k:9092",
        "a:1,alice:hunter2@k",
        "alice:hunter2@k:port",
        "SASL_SSL://alice:hunter2@k:9092",
        "alice:hun,hunter2@k:9092",
        "alice:@hunter2@k:9092",
        "alice:hunter2%40k:9092",
        "alice:hunter2@[::1]:9092",
        "a:1,b c:2,alice:hunter2@k:1",
    ] {
        let why = refusal_of(servers);
        assert!(!why.contains("hun") && !why.contains("alice"), "{why}");
        assert!(why.contains("sasl.username and sasl.password"), "{why}");
        assert!(why.contains("host:port"), "{why}");
    }
    let why = refusal_of("alice:hunter2:9092");
    assert!(!why.contains("hunter2") && why.contains("more than one ':'"), "{why}");
}

#[test]
fn a_host_without_a_place_in_dns_is_refused_by_name() {
    for (servers, shown) in [
        ("a:1,b\nc:2", r"no '\n', and 'b\nc:2' has"),
        ("[::1\u{7}]:2", r"no '\u{7}', and '[::1\u{7}]:2' has"),
        ("b c:2", "no ' ', and 'b c:2' has"),
        ("b\tc", r"no '\t'"),
        ("::1:9092", "an IPv6 address stands in brackets"),
        ("a:1,b", "'b' is not accepted"),
        (" , ", "it names no server"),
    ] {
        let why = refusal_of(servers);
        assert!(why.contains(shown) && !why.contains('\n') && why.ends_with("separated by commas"), "{why}");
    }
}

#[test]
fn idempotence_gives_way_unless_it_was_asked_for() {
    for conflict in [("acks", "1"), ("retries", "0"), ("max.in.flight.requests.per.connection", "6")] {
        assert!(!producer(&[conflict]).unwrap().enable_idempotence, "{conflict:?}");
        let (option, why) = refused(producer(&[conflict, ("enable.idempotence", "true")]));
        assert!(option == conflict.0 && why.contains("enable.idempotence"), "{why}");
        producer(&[conflict, ("enable.idempotence", "false")]).unwrap();
    }
}

#[test]
fn a_transactional_producer_is_idempotent() {
    let p = producer(&[("transactional.id", "orders-1"), ("transaction_timeout_ms", "1500")]).unwrap();
    assert_eq!((p.transactional_id.as_deref(), p.transaction_timeout_ms), (Some("orders-1"), 1500));
    assert!(p.enable_idempotence);
    assert_eq!(producer(&[]).unwrap().transaction_timeout_ms, 60_000);
    for conflict in [("acks", "1"), ("retries", "0"), ("enable.idempotence", "false")] {
        let (option, why) = refused(producer(&[conflict, ("transactional.id", "x")]));
        assert!(option == conflict.0 && why.contains("transactional.id"), "{why}");
    }
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let (option, why) = refused(producer(&[("delivery.timeout.ms", "100")]));
    assert!(option == "delivery.timeout.ms" && why.contains("30005"), "{why}");
    let (option, why) = refused(producer(&[("partitioner", "murmur2"), ("partitioner.ignore.keys", "true")]));
    assert!(option == "partitioner.ignore.keys" && why.contains("'partitioner'"), "{why}");
    assert!(producer(&[("partitioner.ignore.keys", "true")]).unwrap().partitioner_ignore_keys);
    producer(&[("partitioner", "random"), ("partitioner.ignore.keys", "true")]).unwrap();
    assert_eq!(producer(&[("request.timeout.ms", "200000")]).unwrap().delivery_timeout_ms, 200_005);
    assert_eq!(refused(consumer(&[("session.timeout.ms", "3000")])).0, "heartbeat.interval.ms");
    assert_eq!(refused(consumer(&[("enable.auto.commit", "true")])).0, "enable.auto.commit");
    assert_eq!(refused(consumer(&[("group.instance.id", "i")])).0, "group.instance.id");
}

#[test]
fn an_admin_client_takes_its_part_of_another_clients_options() {
    let given = [("group.id", "g"), ("acks", "1"), ("request_timeout_ms", "77"), ("retries", "3")];
    let admin = AdminConfig::from_shared_pairs(pairs(&given)).unwrap();
    assert_eq!((admin.common.request_timeout_ms, admin.retries), (77, 3));
    assert_eq!(refused(AdminConfig::from_shared_pairs(pairs(&[("group.ids", "g")]))).0, "group.ids");
    assert_eq!(refused(AdminConfig::from_pairs(pairs(&[("group.id", "g")]))).0, "group.id");
}

#[test]
fn the_reference_page_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/options.md");
    let there = std::fs::read_to_string(path).unwrap();
    let how = "run: cargo run -p headrace-client --example options_page > docs/options.md";
    assert!(there == page(), "docs/options.md is not what the table says; {how}");
}
