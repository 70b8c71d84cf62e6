//! One answer of each kind that cannot be read, says nothing, or never comes: the share consumer goes on by itself.

use super::*;
use crate::testing::{ALL_WAYS, COST_MS};

/// The kinds that every share consumer asks for, and those that one asks for which has fewer credits than brokers.
const KINDS: [ApiKey; 6] = [
    ApiKey::ApiVersions,
    ApiKey::Metadata,
    ApiKey::FindCoordinator,
    ApiKey::ShareGroupHeartbeat,
    ApiKey::ShareFetch,
    ApiKey::ShareAcknowledge,
];
const KINDS_OF_WATCHES: [ApiKey; 2] = [ApiKey::ListOffsets, ApiKey::Fetch];

const OPTIONS: [(&str, &str); 2] =
    [("request.timeout.ms", "2000"), ("socket.connection.setup.timeout.ms", "1000")];

#[test]
fn a_share_consumer_goes_on_after_one_spoiled_answer_of_any_kind() {
    for key in KINDS {
        for way in ALL_WAYS {
            let limited = [("share.acquire.mode", "record_limit"), ("max.poll.records", "50")];
            goes_on(key, way, Bench::new(&[1, 2], &[&OPTIONS[..], &limited].concat()));
            goes_on(key, way, Bench::new(&[1, 2], &OPTIONS));
        }
    }
}

#[test]
fn a_share_consumer_goes_on_after_one_spoiled_answer_to_a_watch() {
    for key in KINDS_OF_WATCHES {
        for way in ALL_WAYS {
            let limited = [("share.acquire.mode", "record_limit"), ("max.poll.records", "1")];
            goes_on(key, way, Bench::new(&[1, 2], &[&OPTIONS[..], &limited].concat()));
        }
    }
}

/// Polls until so many records are accepted, for as long as one spoiled answer may cost.
fn accepts(bench: &mut Bench, records: usize, what: &str) {
    let begun = bench.now_ms();
    while bench.accepted() < records {
        bench.poll(100).unwrap_or_else(|error| panic!("{what}: {error}"));
        let (took, accepted) = (bench.now_ms() - begun, bench.accepted());
        assert!(took <= COST_MS, "{what}: {accepted} of {records} accepted; {:?}", bench.troubles());
    }
}

fn goes_on(key: ApiKey, way: Way, mut bench: Bench) {
    let what = format!("{key:?} {way:?}, at most {} records", bench.world.engine.settings.max_records);
    bench.kafka.faults.add(key, Fault::Spoil(way));
    bench.append(0, 5);
    bench.subscribe();
    accepts(&mut bench, 5, &what);
    // There is nothing for a while, so quiet brokers are looked at, and then there is.
    bench.poll(2_000).unwrap_or_else(|error| panic!("{what}: {error}"));
    bench.append(1, 5);
    let (_, rows) = bench.poll(COST_MS).unwrap().unwrap_or_else(|| panic!("{what}: no rows"));
    assert!(!rows.is_empty(), "{what}");
    let begun = bench.now_ms();
    bench.commit();
    assert!(bench.now_ms() - begun <= COST_MS, "{what}: a commit takes {} ms", bench.now_ms() - begun);
    accepts(&mut bench, 10, &what);
    let (requests, ms) = (bench.world.log.len(), bench.now_ms());
    assert!(requests < 300, "{what}: {requests} requests in {ms} ms");
    assert!(bench.close(true) <= COST_MS, "{what}");
    assert!(bench.kafka.faults.of(&[key]).is_empty(), "{what}: it was asked for");
}
