//! What a broker finds in a store that is not as it should be.

use std::collections::BTreeMap;

use headrace_cluster::local::LocalStore;
use headrace_cluster::model::{self, ClusterValue, FORMAT, NodeValue, TopicValue};
use headrace_cluster::store::Change;
use headrace_cluster::view::Seen;
use headrace_cluster::{Answer, Member, MemberConfig, MemberEvent, Refusal, Request};

use super::world::SESSION_MS;

fn config(node: i32, cluster_id: Option<&str>) -> MemberConfig {
    MemberConfig {
        node,
        cluster_id: cluster_id.map(str::to_owned),
        new_cluster_id: "new".into(),
        session_timeout_ms: SESSION_MS,
    }
}

fn put(store: &mut LocalStore, key: &str, value: &[u8]) {
    let changes = vec![Change::Put(key.into(), value.to_vec(), None)];
    let answer = store.handle(1, 0, 0, &Request::Commit { compares: vec![], changes });
    assert!(matches!(answer, Some(Answer::Committed { succeeded: true, .. })));
}

fn cluster(id: &str) -> Vec<u8> {
    model::encode(&ClusterValue { format: FORMAT, cluster_id: id.into() })
}

/// A member that registers as soon as it can.
fn member(config: MemberConfig, now_ms: u64) -> Member {
    let mut member = Member::new(config, now_ms);
    let value = NodeValue { host: "localhost".into(), port: 9092, rack: None, intact_since: None };
    member.register(now_ms, value);
    member
}

/// Has a store answer a member until nothing is asked; what happened.
fn settle(store: &mut LocalStore, client: u64, member: &mut Member, now_ms: u64) -> Vec<MemberEvent> {
    while let Some((id, request)) = member.poll_request() {
        if let Some(answer) = store.handle(now_ms, client, id, &request) {
            member.handle_answer(now_ms, id, &answer);
        }
        while let Some((watch, watched)) = store.poll_watch(client) {
            member.handle_watched(now_ms, watch, &watched);
        }
    }
    std::iter::from_fn(|| member.poll_event()).collect()
}

fn refusal(store: &mut LocalStore, cluster_id: Option<&str>) -> Refusal {
    let mut member = member(config(1, cluster_id), 1);
    let events = settle(store, 1, &mut member, 1);
    let Some(MemberEvent::Refused(why)) = events.last() else { panic!("{events:?}") };
    assert_eq!(member.acts(1), None);
    assert!(!store.pairs().any(|pair| pair.key == "nodes/1"), "it is registered no longer");
    why.clone()
}

#[test]
fn the_first_broker_makes_the_cluster_and_the_others_join_it() {
    let mut store = LocalStore::new();
    for (node, client) in [(1, 1), (10, 2)] {
        let mut member = member(config(node, None), 1);
        let events = settle(&mut store, client, &mut member, 1);
        assert!(
            matches!(&events[..], [MemberEvent::Identified(id), MemberEvent::Registered(..), ..] if id == "new"),
            "{events:?}"
        );
        assert_eq!(member.acts(1), Some(store.get(&format!("nodes/{node}")).unwrap().created));
        assert_eq!(member.acts(SESSION_MS), None, "its lease is over before the store ends it");
    }
}

#[test]
fn a_store_of_others_is_not_joined() {
    let mut store = LocalStore::new();
    assert_eq!(refusal(&mut store, Some("mine")), Refusal::Empty("mine".into()));
    put(&mut store, "cluster", &cluster("theirs"));
    let other = Refusal::OtherCluster { store: "theirs".into(), directory: "mine".into() };
    assert_eq!(refusal(&mut store, Some("mine")), other);
    for (key, value, why) in [
        (
            "cluster",
            &b"{\"format\": 2, \"cluster_id\": \"x\"}"[..],
            "format 2 is not 1: written by another version",
        ),
        ("cluster", b"{\"format\": 1", "EOF while parsing"),
        ("registry/pods/x", b"", "it is no key of a cluster"),
        ("nodes/007", b"{}", "it is no key of a cluster"),
        ("nodes/-1", b"{}", "it is no key of a cluster"),
        ("nodes/5", b"{\"host\": \"x\", \"port\": 1, \"more\": 1}", "unknown field `more`"),
        ("topics/t", b"{\"id\": \"x\", \"partitions\": 1}", "not an id"),
        (
            "partitions/AAAAAAAAAAAAAAAAAAAAAQ/0",
            b"{\"replicas\": [1, 1], \"leader\": null, \"epoch\": 0, \"isr\": [[1, 2]]}",
            "1 to 64 different ones are possible",
        ),
        (
            "partitions/AAAAAAAAAAAAAAAAAAAAAQ/0",
            b"{\"replicas\": [1], \"leader\": null, \"epoch\": 0, \"isr\": [[2, 2]]}",
            "is not a part of the replicas",
        ),
        (
            "partitions/AAAAAAAAAAAAAAAAAAAAAQ/0",
            b"{\"replicas\": [1], \"leader\": [1, 3], \"epoch\": 0, \"isr\": [[1, 2]]}",
            "the leader is not in the in-sync set",
        ),
    ] {
        let mut store = LocalStore::new();
        put(&mut store, "cluster", &cluster("mine"));
        put(&mut store, key, value);
        let found = refusal(&mut store, Some("mine")).to_string();
        assert!(found.contains(&format!("{key:?}")) && found.contains(why), "{found}");
    }
}

#[test]
fn a_store_that_went_back_is_noticed() {
    let mut store = LocalStore::new();
    put(&mut store, "cluster", &cluster("mine"));
    let mut member = member(config(1, None), 1);
    settle(&mut store, 1, &mut member, 1);
    for _ in 0..10 {
        put(&mut store, "topics/t", b"{\"id\": \"AAAAAAAAAAAAAAAAAAAAAQ\", \"partitions\": 1}");
    }
    let mut watch = 0;
    while let Some((id, watched)) = store.poll_watch(1) {
        member.handle_watched(1, id, &watched);
        watch = id;
    }
    assert_eq!(member.view().revision, store.revision());
    let mut older = LocalStore::new();
    put(&mut older, "cluster", &cluster("mine"));
    member.handle_watched(1, watch, &headrace_cluster::store::Watched::Ended("restarted".into()));
    let events = settle(&mut older, 1, &mut member, 1);
    let Some(MemberEvent::Refused(Refusal::WentBack { from, to })) = events.last() else {
        panic!("{events:?}")
    };
    assert!(from > to);
}

#[test]
fn a_store_that_goes_on_while_its_keys_are_read_is_read_to_the_end() {
    let mut store = LocalStore::new();
    put(&mut store, "cluster", &cluster("mine"));
    for number in 0..1200 {
        put(
            &mut store,
            &format!("topics/t{number}"),
            b"{\"id\": \"AAAAAAAAAAAAAAAAAAAAAQ\", \"partitions\": 1}",
        );
    }
    let mut member = member(config(1, Some("mine")), 1);
    let mut later = 0;
    while let Some((id, request)) = member.poll_request() {
        let Some(mut answer) = store.handle(1, 1, id, &request) else { continue };
        if let (Answer::Range { revision, .. }, Request::Range { after: Some(_), .. }) =
            (&mut answer, &request)
        {
            // etcd names its newest state, whichever was asked for.
            later += 7;
            *revision += later;
        }
        member.handle_answer(1, id, &answer);
    }
    assert!(later > 0);
    assert_eq!((member.view().topics.len(), member.view().revision), (1200, store.revision()));
}

/// A store with a partition that has been changed so many times.
fn with_partition(changes: usize) -> LocalStore {
    let mut store = LocalStore::new();
    put(&mut store, "cluster", &cluster("mine"));
    put(&mut store, "topics/t", format!("{{\"id\": \"{TOPIC}\", \"partitions\": 1}}").as_bytes());
    for _ in 0..changes {
        change_partition(&mut store);
    }
    store
}

const TOPIC: &str = "AAAAAAAAAAAAAAAAAAAAAQ";

fn change_partition(store: &mut LocalStore) {
    let value = b"{\"replicas\": [1], \"leader\": null, \"epoch\": 0, \"isr\": [[1, 1]]}";
    put(store, &format!("partitions/{TOPIC}/0"), value);
}

/// The same, restored from a backup with a later revision, as `etcdctl snapshot restore --bump-revision` does it.
fn bumped(backup: &[u8]) -> LocalStore {
    let mut store = LocalStore::load(backup).unwrap();
    for _ in 0..50 {
        put(&mut store, "cluster", &cluster("mine"));
    }
    store
}

#[test]
fn a_partition_that_was_changed_after_the_backup_shows_that_one_was_restored() {
    let mut store = with_partition(3);
    let mut running = member(config(1, Some("mine")), 1);
    settle(&mut store, 1, &mut running, 1);
    let (same, place) = (store.save(), (TOPIC.parse().unwrap(), 0));
    let seen = Seen::of(place, &running.view().partitions[&place]);
    let events = |store: &mut LocalStore| {
        let mut member = member(config(2, Some("mine")), 1);
        member.remember(vec![seen], [(place.0, "t".to_owned())].into());
        settle(store, 9, &mut member, 1)
    };
    let forgot = |events: &[MemberEvent], to| {
        let partition = "t-0".to_owned();
        let refusal = Refusal::Forgot { partition, from: seen.modified, to };
        assert_eq!(events.last(), Some(&MemberEvent::Refused(refusal)));
    };
    // Nothing is missing, or the partition was deleted since.
    assert!(matches!(events(&mut bumped(&same)).last(), Some(MemberEvent::Changed(_))));
    let mut deleted = bumped(&same);
    let delete = Change::Delete(format!("partitions/{TOPIC}/0"));
    deleted.handle(1, 0, 0, &Request::Commit { compares: vec![], changes: vec![delete] });
    assert!(matches!(events(&mut deleted).last(), Some(MemberEvent::Changed(_))));
    // It was changed since, or made.
    let older = with_partition(1).save();
    let known = with_partition(1).revision();
    forgot(&events(&mut bumped(&older)), known);
    let mut before = with_partition(0);
    let known = before.revision();
    let found = events(&mut before);
    let Some(MemberEvent::Refused(Refusal::Forgot { partition, from, to })) = found.last() else {
        panic!("{found:?}")
    };
    assert!(*from == seen.modified && *to >= known);
    assert_eq!(partition, "t-0", "of a topic that the store has not got the name is known from before");
    // A broker that runs finds it out as well, though the revision has not gone back.
    let ended = headrace_cluster::store::Watched::Ended("restarted".into());
    let watch = |member: &mut Member, store: &mut LocalStore| {
        change_partition(store);
        let (id, watched) = store.poll_watch(1).unwrap();
        member.handle_watched(1, id, &watched);
        id
    };
    let id = watch(&mut running, &mut store);
    running.handle_watched(1, id, &ended);
    let found = settle(&mut bumped(&same), 1, &mut running, 1);
    assert!(matches!(found.last(), Some(MemberEvent::Refused(Refusal::Forgot { .. }))), "{found:?}");
}

#[test]
fn a_second_broker_of_a_number_waits_for_the_first() {
    let mut store = LocalStore::new();
    let mut first = member(config(1, None), 1);
    settle(&mut store, 1, &mut first, 1);
    let mut second = member(config(1, None), 1);
    let events = settle(&mut store, 2, &mut second, 1);
    assert!(matches!(&events[..], [MemberEvent::Identified(_), MemberEvent::Waits(_)]), "{events:?}");
    // The first is heard of no more.
    let mut now_ms = 1;
    while second.acts(now_ms).is_none() && now_ms < 3 * SESSION_MS {
        now_ms = second.poll_timeout().unwrap().max(now_ms + 1);
        second.handle_timeout(now_ms);
        settle(&mut store, 2, &mut second, now_ms);
    }
    assert!((SESSION_MS..SESSION_MS + 500).contains(&now_ms), "{now_ms}");
    assert_eq!(first.acts(now_ms), None);
}

/// It leaves when the lease that it has is revoked, and not when an answer about an earlier one comes.
#[test]
fn a_late_answer_about_an_earlier_lease_ends_no_membership() {
    let mut store = LocalStore::new();
    let [_, mut first] = [(2, 2), (1, 1)].map(|(node, client)| {
        let mut member = member(config(node, None), 1);
        settle(&mut store, client, &mut member, 1);
        member
    });
    let first = &mut first;
    let id = "AAAAAAAAAAAAAAAAAAAAAQ";
    let place = (id.parse().unwrap(), 0);
    let topic = TopicValue { id: id.into(), partitions: 1, configs: BTreeMap::new() };
    first.create_topic(1, "t", &topic, &[vec![1, 2]]).unwrap();
    settle(&mut store, 1, first, 1);
    assert_eq!(first.leads(1, place), Some(0));
    // Its time is over, and nobody answers its revocation; it registers again, and leads again since it has lost nothing.
    first.handle_timeout(SESSION_MS);
    let (late, revoke) = first.poll_request().unwrap();
    assert!(matches!(revoke, Request::Revoke(_)));
    let revoked = store.handle(SESSION_MS, 1, late, &revoke).unwrap();
    settle(&mut store, 1, first, SESSION_MS);
    assert_eq!(first.leads(SESSION_MS, place), Some(1));
    first.stop(SESSION_MS);
    first.handle_answer(SESSION_MS, late, &revoked);
    assert!(first.acts(SESSION_MS).is_some(), "it is still handing over");
    let events = settle(&mut store, 1, first, SESSION_MS);
    assert_eq!(events.last(), Some(&MemberEvent::Left));
    assert!(store.get("nodes/1").is_none(), "its lease has ended");
}
