//! Seeded weather: peers that lose, stall, garble and move, at random. The seed is in the failure's message.

use std::collections::BTreeMap;

use super::*;

/// One run: calls to random targets while peers misbehave; every call must end exactly once, by its deadline.
fn run(seed: u64) {
    let mut chance = Jitter::new(seed);
    let (mut world, mut layout) = (world("localhost:9092,localhost:9093"), two_nodes());
    world.piece = [1, 3, 64, usize::MAX][usize::try_from(chance.below(4)).unwrap()];
    let (silence, close, garbage) = (chance.below(15), chance.below(15), chance.below(8));
    let mut weather = Jitter::new(seed ^ 0xABCD);
    let mut deadlines: BTreeMap<u32, u64> = BTreeMap::new();
    let mut ended: BTreeMap<u32, u64> = BTreeMap::new();
    world.command(Do::Want("t"));
    for tag in 0..60 {
        let timeout = 100 + chance.below(4_000);
        let node = 1 + i32::try_from(chance.below(3)).unwrap();
        let target = match chance.below(4) {
            0 => Target::Any,
            1 => Target::Controller,
            _ => Target::Node(node),
        };
        let lane = if chance.below(2) == 0 { Lane::Control } else { Lane::Coordinator };
        if chance.below(5) == 0 {
            deadlines.insert(tag, world.now.mono_ms + 30_000);
            world.command(Do::Fetch(node, tag));
        } else {
            deadlines.insert(tag, world.now.mono_ms + timeout);
            world.command(Do::Call(target, lane, tag, timeout));
        }
        if chance.below(6) == 0 {
            world.command(Do::Refresh);
        }
        if chance.below(10) == 0 {
            world.refused = vec![9001 + u16::try_from(chance.below(2)).unwrap()];
        } else if chance.below(5) == 0 {
            world.refused.clear();
        }
        if chance.below(12) == 0 {
            layout.epoch += 1;
            layout.topics[0].1.swap(0, 1);
        }
        let open = world.open_conns();
        if !open.is_empty() && chance.below(8) == 0 {
            world.reset(open[usize::try_from(chance.below(open.len() as u64)).unwrap()]);
        }
        let mut broker = |i: &Incoming| match weather.below(100) {
            roll if roll < silence => Answer::Silence,
            roll if roll < silence + close => Answer::Last(Vec::new()),
            roll if roll < silence + close + garbage => {
                let bytes: Vec<u8> =
                    (0..weather.below(40)).map(|_| weather.next_u64().to_be_bytes()[0]).collect();
                Answer::Last(bytes)
            }
            _ => healthy(&layout, i),
        };
        world.run(chance.below(300), &mut broker);
        note(&mut world, &deadlines, &mut ended, seed);
    }
    world.refused.clear();
    let mut broker = |i: &Incoming| healthy(&layout, i);
    world.run(60_000, &mut broker);
    note(&mut world, &deadlines, &mut ended, seed);
    assert_eq!(ended.len(), deadlines.len(), "seed {seed}: calls are left over");
    // The weather has cleared: all is well again.
    assert!(world.engine.core.cluster().leader("t", 0).is_some(), "seed {seed}");
    world.command(Do::Call(Target::Node(1), Lane::Control, 999, 5_000));
    world.run(5_000, &mut broker);
    assert!(world.events.iter().any(|r| r.tag == 999 && r.result.is_ok()), "seed {seed}");
}

fn note(world: &mut World<Probe>, deadlines: &BTreeMap<u32, u64>, ended: &mut BTreeMap<u32, u64>, seed: u64) {
    for reply in world.events.drain(..) {
        // The sink counts its pieces in the thousands.
        let tag = reply.tag % 1_000;
        let before = ended.insert(tag, world.now.mono_ms);
        assert_eq!(before, None, "seed {seed}: call {tag} has ended twice");
    }
    for (tag, deadline) in deadlines {
        let late = *deadline < world.now.mono_ms && !ended.contains_key(tag);
        assert!(
            !late,
            "seed {seed}: call {tag} should have ended by {deadline}, it is {}",
            world.now.mono_ms
        );
    }
}

#[test]
fn every_call_ends_once_by_its_deadline_whatever_peers_do() {
    for seed in 0..300 {
        run(seed);
    }
}
