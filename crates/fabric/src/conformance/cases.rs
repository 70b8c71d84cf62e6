//! The cases.

use std::sync::atomic::Ordering;

use super::Failure;
use super::side::{Side, Turn, ensure};
use crate::endpoint::{
    Access, Endpoint, Event, FabricError, Local, PIECES_MAX, Piece, Remote, SHORT_BYTES_MAX,
};
use crate::region::Region;

type Ended = Result<(), Failure>;

/// What is shown, and what each side does for it.
pub(super) const CASES: &[(&str, Turn, Turn)] = &[
    ("a write is told of once all its pieces are there", pieces_first, pieces_second),
    ("writes are told of in order, however many", order_first, order_second),
    ("bytes are read as they are", reads_first, reads_second),
    ("a word is added to", adds_first, adds_second),
    ("nothing is reached beyond a region", bounds_first, bounds_second),
    ("nothing is done without the right to it", rights_first, rights_second),
    ("what is revoked is not written while it is in use", revoke_first, revoke_second),
    ("what is asked wrongly is refused, and nothing else", misuse_first, misuse_second),
    ("short messages come whole and in order", short_first, short_second),
    ("long messages come whole and in order, and wait for room", long_first, long_second),
    ("who sleeps is woken, on both sides", sleep_first, sleep_second),
    ("who sleeps is nudged", nudge_first, nudge_second),
    ("operations end in order, and are bounded", outstanding_first, outstanding_second),
    ("both sides write and tell at once", both, both),
    ("a peer that has gone is noticed", gone_first, gone_second),
];

fn piece(local: Local, at: usize, len: usize) -> Piece {
    Piece { local, at, len }
}

fn bytes(region: &Region, at: usize, len: usize) -> Result<Vec<u8>, Failure> {
    let mut seen = vec![0; len];
    region.read(at, &mut seen)?;
    Ok(seen)
}

/// Bytes that tell where they come from.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from(at.wrapping_mul(31).wrapping_add(seed) % 251).unwrap_or(0);
    (0..len).map(byte).collect()
}

fn pieces_first(side: &mut Side<'_, '_>) -> Ended {
    let to = side.reach()?;
    let (own, local) = side.own(256)?;
    own.write(0, b"onetwothree, and more")?;
    side.write(&[piece(local, 3, 3), piece(local, 0, 3), piece(local, 6, 5)], to, 101, Some(7))?;
    side.write(&[], to, 4096, Some(8))?;
    side.write(&[piece(local, 9, 0)], to, 0, Some(u32::MAX))?;
    side.write(&[piece(local, 0, 11)], to, 4085, None)?;
    let most = side.endpoint()?.limits().pieces;
    let most: Vec<Piece> = (0..most).map(|at| piece(local, at, 1)).collect();
    side.write(&most, to, 1000, Some(9))?;
    side.insist(|endpoint| endpoint.tell(b"after"))?;
    side.meet("end")
}

fn pieces_second(side: &mut Side<'_, '_>) -> Ended {
    let (region, _) = side.share(4096, Access::WRITE)?;
    for expected in [(7, 11), (8, 0), (u32::MAX, 0)] {
        let reported = side.notified()?;
        ensure!(reported == expected, "{reported:?} for {expected:?}");
    }
    ensure!(bytes(&region, 100, 13)? == b"\0twoonethree\0", "{:?}", bytes(&region, 100, 13)?);
    let reported = side.notified()?;
    ensure!(reported == (9, 16), "{reported:?}");
    ensure!(bytes(&region, 1000, 17)? == b"onetwothree, and\0", "{:?}", bytes(&region, 1000, 17)?);
    let message = side.message()?;
    ensure!(*message == *b"after", "{message:?}");
    ensure!(bytes(&region, 4085, 11)? == b"onetwothree", "what was written without a word is not there");
    side.meet("end")?;
    side.nothing_else()
}

const WRITES: u32 = 5000;
const SLOTS: u32 = 64;
const SLOT_BYTES: usize = 64;

fn slot(number: u32) -> usize {
    usize::try_from(number % SLOTS).unwrap_or(0).saturating_mul(SLOT_BYTES)
}

fn order_first(side: &mut Side<'_, '_>) -> Ended {
    let to = side.reach()?;
    let (own, local) = side.own(slot(SLOTS.saturating_sub(1)).saturating_add(SLOT_BYTES))?;
    let (mut free, mut begun) = (SLOTS, Vec::new());
    for number in 0..WRITES {
        while free == 0 {
            let message = side.message()?;
            ensure!(*message == *b"half", "{message:?}");
            free = free.saturating_add(SLOTS / 2);
        }
        free = free.saturating_sub(1);
        own.write(slot(number), &number.to_le_bytes().repeat(SLOT_BYTES / 4))?;
        let (op, from) = (side.op(), piece(local, slot(number), SLOT_BYTES));
        side.insist(|endpoint| endpoint.write(op, &[from], to, slot(number), Some(number)))?;
        begun.push(op);
    }
    for op in begun {
        side.done(op)?;
    }
    side.meet("end")
}

fn order_second(side: &mut Side<'_, '_>) -> Ended {
    let (region, _) = side.share(slot(SLOTS.saturating_sub(1)).saturating_add(SLOT_BYTES), Access::WRITE)?;
    for number in 0..WRITES {
        let reported = side.notified()?;
        ensure!(reported == (number, 64), "{reported:?} for {number}");
        let seen = bytes(&region, slot(number), SLOT_BYTES)?;
        ensure!(seen == number.to_le_bytes().repeat(SLOT_BYTES / 4), "{number} is not there: {seen:?}");
        if number % (SLOTS / 2) == SLOTS / 2 - 1 {
            side.insist(|endpoint| endpoint.tell(b"half"))?;
        }
    }
    side.meet("end")
}

const MUCH: usize = 1 << 20;

fn reads_first(side: &mut Side<'_, '_>) -> Ended {
    let from = side.reach()?;
    let (own, local) = side.own(MUCH)?;
    side.read(from, 0, piece(local, 0, MUCH))?;
    ensure!(bytes(&own, 0, MUCH)? == pattern(MUCH, 5), "it is not what is there");
    for (at, into, len) in [(1, 3, 1), (8, 8, 8), (77, 1000, 4099), (MUCH - 3, 0, 3), (MUCH, MUCH, 0)] {
        side.read(from, at, piece(local, into, len))?;
        let expected = pattern(MUCH, 5).split_off(at);
        let expected = expected.get(..len).unwrap_or_default();
        ensure!(bytes(&own, into, len)? == expected, "{len} bytes of {at} are not what is there");
    }
    side.meet("changed")?;
    side.read(from, 0, piece(local, 0, MUCH))?;
    ensure!(bytes(&own, 0, MUCH)? == pattern(MUCH, 6), "it is not what is there now");
    side.meet("end")
}

fn reads_second(side: &mut Side<'_, '_>) -> Ended {
    let region = side.region(MUCH)?;
    region.write(0, &pattern(MUCH, 5))?;
    side.share_region(&region, Access::READ)?;
    // When the other side has come here, it has read.
    let went = side.get()?;
    ensure!(went == b"changed", "{went:?}");
    region.write(0, &pattern(MUCH, 6))?;
    side.put(b"changed")?;
    side.meet("end")?;
    side.nothing_else()
}

/// One of order, and a size, in one word.
const ORDER_AND_SIZE: u64 = (1 << 48) + 1000;
const ADDS: u64 = 1000;

fn adds_first(side: &mut Side<'_, '_>) -> Ended {
    let to = side.reach()?;
    if !side.endpoint()?.limits().adds {
        let refused = side.endpoint()?.fetch_add(1, to, 0, 1);
        ensure!(matches!(refused, Err(FabricError::Misuse(_))), "it cannot add, and says {refused:?}");
        return side.meet("end");
    }
    for number in 0..ADDS {
        let before = side.add(to, 8, ORDER_AND_SIZE)?;
        ensure!(before == ORDER_AND_SIZE.wrapping_mul(number), "{before:#x} after {number}");
    }
    ensure!(side.add(to, 16, u64::MAX)? == 0, "the word beside was added to");
    ensure!(side.add(to, 16, 3)? == u64::MAX, "it is not what was added");
    side.meet("end")
}

fn adds_second(side: &mut Side<'_, '_>) -> Ended {
    let (region, _) = side.share(64, Access::ADD)?;
    side.meet("end")?;
    if side.endpoint()?.limits().adds {
        ensure!(region.load(8)? == ORDER_AND_SIZE.wrapping_mul(ADDS), "{:#x}", region.load(8)?);
        ensure!(region.load(16)? == 2, "{:#x}", region.load(16)?);
    }
    ensure!(region.load(0)? == 0 && region.load(24)? == 0, "words beside were added to");
    side.nothing_else()
}

/// An operation that the peer does not let us do.
#[derive(Clone, Copy, Debug)]
enum Bad {
    Write(usize, usize),
    Read(usize, usize),
    Add(usize),
}

/// It is refused at once, or in the end.
fn is_refused(side: &mut Side<'_, '_>, bad: Bad, remote: Remote, local: Local) -> Ended {
    let (endpoint, op) = (side.endpoint()?, 99);
    if matches!(bad, Bad::Add(_)) && !endpoint.limits().adds {
        return Ok(());
    }
    let begun = match bad {
        Bad::Write(at, len) => endpoint.write(op, &[piece(local, 0, len)], remote, at, Some(1)),
        Bad::Read(at, len) => endpoint.read(op, remote, at, piece(local, 0, len)),
        Bad::Add(at) => endpoint.fetch_add(op, remote, at, 1),
    };
    let ended = match begun {
        Ok(()) => side.end_of(op)?.map(|_| ()),
        refused => refused,
    };
    ensure!(
        matches!(ended, Err(FabricError::Refused(_) | FabricError::Misuse(_))),
        "{bad:?} comes to {ended:?}"
    );
    Ok(())
}

const BEYOND: [Bad; 7] = [
    Bad::Write(57, 8),
    Bad::Write(usize::MAX, 8),
    Bad::Write(65, 1),
    Bad::Read(57, 8),
    Bad::Read(usize::MAX, 8),
    Bad::Add(64),
    Bad::Add(4),
];

fn bounds_first(side: &mut Side<'_, '_>) -> Ended {
    for bad in BEYOND {
        // What is refused may end the connection.
        side.connect()?;
        let remote = side.reach()?;
        let (own, local) = side.own(64)?;
        own.write(0, &[0xff; 64])?;
        is_refused(side, bad, remote, local)?;
        side.meet("tried")?;
    }
    Ok(())
}

fn bounds_second(side: &mut Side<'_, '_>) -> Ended {
    for bad in BEYOND {
        // What is refused may end the connection.
        side.connect()?;
        let whole = side.region(4096)?;
        let access = Access::READ | Access::WRITE | Access::ADD;
        side.share_region(&whole.part(1024, 64)?, access)?;
        side.meet("tried")?;
        ensure!(bytes(&whole, 0, 4096)? == [0; 4096], "{bad:?} was done");
    }
    Ok(())
}

const WITHOUT_RIGHT: [(Access, Bad); 6] = [
    (Access::READ, Bad::Write(0, 8)),
    (Access::READ, Bad::Add(0)),
    (Access::WRITE, Bad::Read(0, 8)),
    (Access::WRITE, Bad::Add(0)),
    (Access::ADD, Bad::Write(0, 8)),
    (Access::ADD, Bad::Read(0, 8)),
];

fn rights_first(side: &mut Side<'_, '_>) -> Ended {
    for (_, bad) in WITHOUT_RIGHT {
        side.connect()?;
        let remote = side.reach()?;
        let (own, local) = side.own(64)?;
        own.write(0, &[0xff; 64])?;
        is_refused(side, bad, remote, local)?;
        ensure!(bytes(&own, 0, 64)? == [0xff; 64], "{bad:?} was done");
        side.meet("tried")?;
    }
    Ok(())
}

fn rights_second(side: &mut Side<'_, '_>) -> Ended {
    for (access, bad) in WITHOUT_RIGHT {
        side.connect()?;
        let (region, _) = side.share(4096, access)?;
        side.meet("tried")?;
        ensure!(bytes(&region, 0, 4096)? == [0; 4096], "{bad:?} was done");
    }
    Ok(())
}

fn revoke_first(side: &mut Side<'_, '_>) -> Ended {
    let (to, from) = (side.reach()?, side.reach()?);
    let (own, local) = side.own(64)?;
    own.write(0, b"before!!")?;
    side.write(&[piece(local, 0, 8)], to, 8, Some(1))?;
    side.read(from, 0, piece(local, 8, 8))?;
    side.meet("revoked")?;
    own.write(0, b"too late")?;
    let endpoint = side.endpoint()?;
    // Where the peer's memory is mapped this may land, in memory that was given up.
    if let Ok(()) = endpoint.write(98, &[piece(local, 0, 8)], to, 8, None) {
        let _ = side.end_of(98)?;
    }
    side.meet("tried")
}

fn revoke_second(side: &mut Side<'_, '_>) -> Ended {
    let (region, local) = side.share(64, Access::WRITE)?;
    let (_, read) = side.share(64, Access::READ)?;
    let reported = side.notified()?;
    ensure!(reported == (1, 8) && bytes(&region, 8, 8)? == b"before!!", "{reported:?}");
    // When the other side has come here, it has read.
    let went = side.get()?;
    ensure!(went == b"revoked", "{went:?}");
    let (written, read_only) = (side.endpoint()?.revoke(local)?, side.endpoint()?.revoke(read)?);
    ensure!(read_only.is_some(), "memory that nobody else writes is given up");
    let again = side.endpoint()?.revoke(local);
    ensure!(matches!(again, Err(FabricError::Misuse(_))), "it is revoked twice: {again:?}");
    drop(region);
    let in_use = match written {
        Some(region) => region,
        None => side.region(64)?,
    };
    in_use.write(8, b"in use!!")?;
    side.put(b"revoked")?;
    side.meet("tried")?;
    ensure!(bytes(&in_use, 8, 8)? == b"in use!!", "it was written");
    Ok(())
}

fn misuse_first(side: &mut Side<'_, '_>) -> Ended {
    let to = side.reach()?;
    let (own, local) = side.own(64)?;
    own.write(0, b"in order")?;
    let much = side.endpoint()?.limits().message_bytes.saturating_add(1);
    let (_, long) = side.own(much)?;
    let (many, none) = ([piece(local, 0, 1); PIECES_MAX + 1], Local(u64::MAX));
    let endpoint = side.endpoint()?;
    for (what, begun) in [
        ("a piece beyond its region", endpoint.write(1, &[piece(local, 60, 5)], to, 0, Some(1))),
        ("an endless piece", endpoint.write(2, &[piece(local, 8, usize::MAX)], to, 0, Some(1))),
        ("a piece of nothing", endpoint.write(3, &[piece(none, 0, 1)], to, 0, Some(1))),
        ("many pieces", endpoint.write(4, &many, to, 0, Some(1))),
        ("a read beyond our region", endpoint.read(5, to, 0, piece(local, 60, 5))),
        ("a read into nothing", endpoint.read(6, to, 0, piece(none, 0, 1))),
        ("a long short message", endpoint.tell(&[0; SHORT_BYTES_MAX + 1])),
        ("a very long message", endpoint.send(7, &[piece(long, 0, much)])),
        ("a message of nothing", endpoint.send(8, &[piece(none, 0, 1)])),
        ("a region that is unknown", endpoint.revoke(none).map(|_| ())),
    ] {
        ensure!(matches!(begun, Err(FabricError::Misuse(_))), "{what} comes to {begun:?}");
    }
    side.write(&[piece(local, 0, 8)], to, 0, Some(2))?;
    side.nothing_else()?;
    side.meet("end")
}

fn misuse_second(side: &mut Side<'_, '_>) -> Ended {
    let (region, _) = side.share(64, Access::WRITE | Access::READ)?;
    let reported = side.notified()?;
    ensure!(reported == (2, 8) && bytes(&region, 0, 9)? == b"in order\0", "{reported:?}");
    side.meet("end")?;
    side.nothing_else()
}

const ROUNDS: usize = 50;

fn tells_all(side: &mut Side<'_, '_>) -> Ended {
    for seed in 0..ROUNDS {
        for len in 0..=SHORT_BYTES_MAX {
            side.insist(|endpoint| endpoint.tell(&pattern(len, seed)))?;
        }
    }
    Ok(())
}

fn hears_all(side: &mut Side<'_, '_>) -> Ended {
    for seed in 0..ROUNDS {
        for len in 0..=SHORT_BYTES_MAX {
            let message = side.message()?;
            ensure!(*message == *pattern(len, seed), "{message:?} for {len} bytes of round {seed}");
        }
    }
    Ok(())
}

fn short_first(side: &mut Side<'_, '_>) -> Ended {
    tells_all(side)?;
    hears_all(side)?;
    side.meet("end")?;
    side.nothing_else()
}

fn short_second(side: &mut Side<'_, '_>) -> Ended {
    hears_all(side)?;
    tells_all(side)?;
    side.meet("end")?;
    side.nothing_else()
}

fn long_lens(most: usize) -> impl Iterator<Item = usize> {
    let few = [0, 1, SHORT_BYTES_MAX, SHORT_BYTES_MAX.saturating_add(1), 1000, most / 3, most];
    few.into_iter().cycle().take(200)
}

fn long_first(side: &mut Side<'_, '_>) -> Ended {
    let most = side.endpoint()?.limits().message_bytes;
    let (own, local) = side.own(most)?;
    side.put(&u64::try_from(most).unwrap_or(0).to_le_bytes())?;
    let mut waited = false;
    for (seed, len) in long_lens(most).enumerate() {
        own.write(0, &pattern(len, seed))?;
        let (half, op) = (len / 2, side.op());
        let pieces =
            [piece(local, 0, half), piece(local, 0, 0), piece(local, half, len.saturating_sub(half))];
        let begun = side.endpoint()?.send(op, &pieces);
        if let (Err(FabricError::Full(_)), false) = (&begun, waited) {
            // The other side has taken nothing until now.
            waited = true;
            side.meet("full")?;
        }
        match begun {
            Err(FabricError::Full(_)) => side.insist(|endpoint| endpoint.send(op, &pieces))?,
            other => other?,
        }
        side.done(op)?;
    }
    ensure!(waited, "there is no end of room");
    side.meet("end")
}

fn long_second(side: &mut Side<'_, '_>) -> Ended {
    let reported = <[u8; 8]>::try_from(side.get()?).map_err(|_| Failure("no length".to_owned()))?;
    let most = usize::try_from(u64::from_le_bytes(reported)).unwrap_or(0);
    side.meet("full")?;
    for (seed, len) in long_lens(most).enumerate() {
        let message = side.message()?;
        ensure!(*message == *pattern(len, seed), "{} bytes come for {len}, or others", message.len());
    }
    side.meet("end")?;
    side.nothing_else()
}

const TURNS: u32 = 2000;

fn sleep_first(side: &mut Side<'_, '_>) -> Ended {
    for turn in 0..TURNS {
        side.insist(|endpoint| endpoint.tell(&turn.to_le_bytes()))?;
        let message = side.message()?;
        ensure!(*message == turn.to_le_bytes(), "{message:?} for {turn}");
    }
    side.meet("end")
}

fn sleep_second(side: &mut Side<'_, '_>) -> Ended {
    for _ in 0..TURNS {
        let message = side.message()?;
        side.insist(|endpoint| endpoint.tell(&message))?;
    }
    side.meet("end")
}

fn nudge_first(side: &mut Side<'_, '_>) -> Ended {
    for _ in 0..100 {
        while !side.endpoint()?.park()? {
            side.pump()?;
        }
        side.put(b"asleep")?;
        side.sleep()?;
        side.nothing_else()?;
    }
    side.meet("end")
}

fn nudge_second(side: &mut Side<'_, '_>) -> Ended {
    for _ in 0..100 {
        let went = side.get()?;
        ensure!(went == b"asleep", "{went:?}");
        side.insist(|endpoint: &mut dyn Endpoint| endpoint.nudge())?;
    }
    side.meet("end")
}

fn outstanding_first(side: &mut Side<'_, '_>) -> Ended {
    let to = side.reach()?;
    let (own, local) = side.own(8)?;
    own.write(0, b"the same")?;
    let most = side.endpoint()?.limits().outstanding;
    let mut begun = Vec::new();
    let full = loop {
        ensure!(begun.len() <= most, "{} are outstanding", begun.len());
        let op = side.op();
        match side.endpoint()?.write(op, &[piece(local, 0, 8)], to, 0, None) {
            Ok(()) => begun.push(op),
            other => break other,
        }
    };
    ensure!(matches!(full, Err(FabricError::Full(_))), "{full:?}");
    ensure!(begun.len() > 1, "there is no room for two");
    for op in begun {
        side.done(op)?;
    }
    side.write(&[piece(local, 0, 8)], to, 8, Some(1))?;
    side.meet("end")
}

fn outstanding_second(side: &mut Side<'_, '_>) -> Ended {
    let (region, _) = side.share(64, Access::WRITE)?;
    let reported = side.notified()?;
    ensure!(reported == (1, 8) && bytes(&region, 0, 16)? == b"the samethe same", "{reported:?}");
    side.meet("end")?;
    side.nothing_else()
}

fn both(side: &mut Side<'_, '_>) -> Ended {
    let (region, _) = side.share(64, Access::WRITE | Access::ADD)?;
    let to = side.reach()?;
    let (_, local) = side.own(64)?;
    let adds = side.endpoint()?.limits().adds;
    let (mut reported, mut heard) = (0, 0);
    let mut hear = |event: Event| {
        match event {
            Event::Notified { imm, len: 16 } if imm == reported => reported = reported.wrapping_add(1),
            Event::Message(message) if *message == u32::to_le_bytes(heard) => heard = heard.wrapping_add(1),
            other => return Err(Failure(format!("{other:?} after {reported} and {heard}"))),
        }
        Ok(reported == 3000 && heard == 3000)
    };
    for number in 0..3000_u32 {
        side.write(&[piece(local, 0, 16)], to, 16, Some(number))?;
        side.insist(|endpoint| endpoint.tell(&number.to_le_bytes()))?;
        if adds {
            side.add(to, 0, 1)?;
        }
    }
    while !hear(side.brought()?)? {}
    side.meet("end")?;
    ensure!(!adds || region.word(0)?.load(Ordering::Acquire) == 3000, "adds were lost");
    side.nothing_else()
}

fn gone_first(side: &mut Side<'_, '_>) -> Ended {
    let to = side.reach()?;
    let (_, local) = side.own(8)?;
    let message = side.message()?;
    ensure!(*message == *b"farewell", "{message:?}");
    side.meet("gone")?;
    // A card tells that the peer has gone when it is written to; a mapping, when it is looked after.
    for _ in 0..100_000 {
        let begun = side.endpoint()?.write(97, &[piece(local, 0, 8)], to, 0, Some(1));
        match begun {
            Ok(()) => {}
            Err(FabricError::Full(_)) => {
                side.endpoint()?.wake()?;
            }
            Err(FabricError::Gone | FabricError::Refused(_)) => return Ok(()),
            other => return Err(Failure(format!("it comes to {other:?}"))),
        }
        let mut events = Vec::new();
        match side.endpoint()?.poll(&mut events, 1) {
            Ok(()) => {}
            Err(FabricError::Gone) => return Ok(()),
            Err(other) => return Err(other.into()),
        }
        let failed = events.iter().any(|event| matches!(event, Event::Done { result: Err(_), .. }));
        if failed {
            return Ok(());
        }
    }
    Err(Failure("nobody notices".to_owned()))
}

fn gone_second(side: &mut Side<'_, '_>) -> Ended {
    side.share(64, Access::WRITE)?;
    side.insist(|endpoint| endpoint.tell(b"farewell"))?;
    let went = side.get()?;
    ensure!(went == b"gone", "{went:?}");
    side.leave();
    side.put(b"gone")
}
