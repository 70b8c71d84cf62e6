//! Finding the cluster anew (KIP-899, KIP-1102).

use std::cell::RefCell;

use super::*;
use headrace_wire::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use headrace_wire::messages::{MetadataRequest, MetadataResponse};

/// A metadata answer of a cluster of this name: topic "t", led by one node.
fn metadata(incoming: &Incoming, cluster: &str, nodes: &[i32], epoch: i32) -> Answer {
    let partition =
        MetadataResponsePartition { leader_id: nodes[0], leader_epoch: epoch, ..Default::default() };
    let topic = MetadataResponseTopic {
        name: Some("t".to_owned()),
        partitions: vec![partition],
        ..MetadataResponseTopic::default()
    };
    let broker = |&node_id: &i32| MetadataResponseBroker {
        node_id,
        host: "localhost".to_owned(),
        port: 9000 + node_id,
        rack: None,
    };
    incoming.reply::<MetadataRequest>(&MetadataResponse {
        cluster_id: Some(cluster.to_owned()),
        brokers: nodes.iter().map(broker).collect(),
        topics: vec![topic],
        ..MetadataResponse::default()
    })
}

fn first_cluster(incoming: &Incoming) -> Answer {
    match incoming.key {
        ApiKey::Metadata => metadata(incoming, "first", &[1, 2], 5),
        _ => healthy(&two_nodes(), incoming),
    }
}

/// What stands at the bootstrap address later: its leader epochs begin anew.
fn other_cluster(incoming: &Incoming) -> Answer {
    match incoming.key {
        ApiKey::Metadata => metadata(incoming, "other", &[7], 0),
        _ => healthy(&two_nodes(), incoming),
    }
}

fn refuses(incoming: &Incoming, code: ErrorCode) -> Answer {
    let error_code = code.code();
    incoming.reply::<MetadataRequest>(&MetadataResponse { error_code, ..MetadataResponse::default() })
}

fn nodes(world: &World<Probe>) -> Vec<i32> {
    world.engine.core.cluster().brokers().map(|b| b.node).collect()
}

fn call(world: &mut World<Probe>, broker: &mut dyn Peers) -> Result<()> {
    world.command(Do::Call(Target::Any, Lane::Control, 1, 5_000));
    world.run(10_000, broker);
    ends(world).remove(0).1
}

/// A core that knows both nodes, whose bootstrap connection is gone.
fn settled(more: &[(&str, &str)]) -> World<Probe> {
    let mut world = world_with("localhost:9092", more);
    world.command(Do::Want("t"));
    world.settle(&mut first_cluster);
    let conn = world.conn_of(9092);
    world.reset(conn);
    world
}

#[test]
fn a_cluster_that_was_replaced_is_found_at_the_bootstrap_servers() {
    let mut world = settled(&[]);
    world.refused = vec![9001, 9002];
    world.command(Do::Refresh);
    world.run(5_000, &mut other_cluster);
    assert_eq!(nodes(&world), [7]);
    let leader = world.engine.core.cluster().leader("t", 0);
    assert_eq!(leader, Some((7, 0)), "another cluster's epochs begin anew");
    assert!(call(&mut world, &mut other_cluster).is_ok());
}

#[test]
fn with_strategy_none_only_known_brokers_are_asked() {
    let mut world = settled(&[("metadata.recovery.strategy", "none")]);
    world.refused = vec![9001, 9002];
    let before = world.attempts.len();
    assert!(matches!(call(&mut world, &mut other_cluster), Err(Error::Timeout { .. })));
    let attempts: Vec<u16> = world.attempts[before..].iter().map(|a| a.1).collect();
    assert!(
        attempts.contains(&9001) && attempts.contains(&9002) && !attempts.contains(&9092),
        "{attempts:?}"
    );
    world.refused = vec![9001];
    assert!(call(&mut world, &mut first_cluster).is_ok(), "a known broker that comes back is found");
}

#[test]
fn brokers_that_are_of_no_use_are_forgotten_after_the_trigger() {
    // They answer, and go on answering, so nobody else would be asked.
    let mut of_no_use = |i: &Incoming| match (i.port, i.key) {
        (9001 | 9002, ApiKey::Metadata) => refuses(i, ErrorCode::UNKNOWN_SERVER_ERROR),
        _ => other_cluster(i),
    };
    for (strategy, found) in [("rebootstrap", true), ("none", false)] {
        let trigger = ("metadata.recovery.rebootstrap.trigger.ms", "20000");
        let mut world = settled(&[trigger, ("metadata.recovery.strategy", strategy)]);
        world.command(Do::Refresh);
        world.run(19_000, &mut of_no_use);
        assert_eq!(nodes(&world), [1, 2], "not before its time");
        world.run(5_000, &mut of_no_use);
        assert_eq!(nodes(&world), if found { vec![7] } else { vec![1, 2] }, "{strategy}");
        let leader = if found { (7, 0) } else { (1, 5) };
        assert_eq!(world.engine.core.cluster().leader("t", 0), Some(leader));
        assert_eq!(world.open_ports().iter().any(|port| *port == 9001 || *port == 9002), !found);
    }
}

#[test]
fn a_broker_can_ask_for_it() {
    for (strategy, found) in [("rebootstrap", true), ("none", false)] {
        let mut world = settled(&[("metadata.recovery.strategy", strategy)]);
        let mut broker = |i: &Incoming| match (i.port, i.key) {
            (9001 | 9002, ApiKey::Metadata) => refuses(i, ErrorCode::REBOOTSTRAP_REQUIRED),
            _ => other_cluster(i),
        };
        world.command(Do::Refresh);
        world.run(3_000, &mut broker);
        assert_eq!(nodes(&world), if found { vec![7] } else { vec![1, 2] }, "{strategy}");
        let why = world.engine.core.metadata_error().map(ToString::to_string).unwrap_or_default();
        assert_eq!(why.contains("REBOOTSTRAP_REQUIRED"), !found, "{why}");
    }
}

#[test]
fn a_bootstrap_server_that_asks_for_it_is_not_asked_without_end() {
    let tries = RefCell::new(0);
    let mut world = world("localhost:9092");
    let mut broker = |i: &Incoming| {
        if i.key != ApiKey::Metadata {
            return healthy(&two_nodes(), i);
        }
        *tries.borrow_mut() += 1;
        refuses(i, ErrorCode::REBOOTSTRAP_REQUIRED)
    };
    world.command(Do::Want("t"));
    world.run(3_000, &mut broker);
    assert!((3..20).contains(&*tries.borrow()), "{tries:?}");
}
