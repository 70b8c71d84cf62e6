//! What the broker wants done: what it says over connections, and what it exposes over links.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headrace_broker::{LinkAction, SLOTS_KEY};
use headrace_fabric::{FabricError, Memory};
use headrace_link::LinkFault;
use headrace_log::MemoryFile;

use super::state::{Event, LinkEvent, World};
use crate::links::{Control, Growing, Mirror, SimFile, Slots};
use crate::net::Way;
use crate::server::{Extra, Said};

/// The longest sync when all is well.
const CALM_SYNC_MS: u64 = 20;
const THROTTLE_MS_MAX: u64 = 700;

impl World {
    pub(super) fn after_broker(&mut self) -> Result<(), String> {
        let throttle = if self.healed { 0 } else { self.plan.throttle };
        let (rng, tells) = (&mut self.rng, self.plan.cluster.tells_leader);
        let said = self.server.poll(self.now, || {
            let throttle_ms = if rng.chance(throttle) { rng.between(1, THROTTLE_MS_MAX) } else { 0 };
            let throttle_ms = i32::try_from(throttle_ms).unwrap_or(0);
            Extra { throttle_ms, tells_leader: rng.chance(tells) }
        })?;
        for conn in self.server.take_closed_own() {
            self.tell(|| format!("the broker closes a rogue's connection {conn}"));
            self.rogue_is_hung_up(conn);
        }
        for said in said {
            match said {
                Said::Bytes(conn, bytes, refusals) => {
                    let len = bytes.len();
                    self.tell(|| {
                        format!("connection {conn} is answered: {len} bytes, {refusals} refusals by its node")
                    });
                    // Not even a refusal takes no time, a node's or that of a log that is offline, or who tries again at once
                    // would do so for ever at one moment.
                    let at = self.now.mono_ms + u64::from(refusals > 0 || self.plan.sync_fails > 0);
                    self.send_at(conn, Way::ToClient, bytes, at);
                }
                Said::Close(conn) => {
                    self.tell(|| format!("the broker closes connection {conn}"));
                    self.server.disconnect(self.now, conn);
                    self.end(conn, Way::ToClient);
                }
            }
        }
        self.expose()?;
        let sync_ms_max = if self.healed { CALM_SYNC_MS } else { self.plan.sync_ms_max };
        for _ in 0..self.server.poll_syncs() {
            // One thread does them, one after the other.
            let at = self.now.mono_ms + self.rng.between(0, sync_ms_max);
            self.sync_until = self.sync_until.max(at);
            self.tell(|| "a sync begins".to_owned());
            self.at(self.sync_until, Event::Synced);
        }
        if let Some(at) = self.server.poll_timeout()
            && self.broker_armed.is_none_or(|armed| at < armed)
        {
            self.broker_armed = Some(at);
            self.at(at, Event::BrokerTimer(at));
        }
        Ok(())
    }

    fn expose(&mut self) -> Result<(), String> {
        if self.plan.direct.is_none() {
            return Ok(());
        }
        for mirror in self.links.values_mut().flat_map(|link| link.mirrors.values_mut()) {
            let torn = self.plan.direct.as_ref().map_or(0, |plan| plan.torn);
            let grown = mirror.follow().map_err(|why| why.to_string())?;
            if grown && self.rng.chance(torn) {
                mirror.tear(&mut self.rng).map_err(|why| why.to_string())?;
            }
        }
        let (mut nudged, mut shown) = (BTreeSet::new(), BTreeSet::new());
        while let Some(action) = self.server.poll_link_action() {
            if let LinkAction::Nudge { link } = &action {
                nudged.insert(link.0);
            }
            if let LinkAction::ExposeToRead { link, .. } | LinkAction::ExposeFile { link, .. } = &action {
                shown.insert(link.0);
            }
            self.act_on(action)?;
        }
        self.check_exposed()?;
        for key in self.links.keys().copied().collect::<Vec<_>>() {
            if let Some(end) = self.links.get_mut(&key).and_then(|link| link.broker_end.as_mut()) {
                end.notify_owed();
            }
            self.carry(key)?;
            self.send_slots(key, nudged.contains(&key), shown.contains(&key))?;
            self.carry(key)?;
        }
        Ok(())
    }

    fn act_on(&mut self, action: LinkAction<MemoryFile>) -> Result<(), String> {
        match action {
            LinkAction::ExposeToWrite { link, key, memory, shared } => {
                self.note_exposed(link.0, key, Some(memory.clone()));
                if self.rogue_is_exposed(link.0, key, &memory) {
                    return self
                        .act_over_rogues(link.0, LinkAction::ExposeToWrite { link, key, memory, shared });
                }
                self.outcome.exposed.rings += 1;
                self.act_over(link.0, LinkAction::ExposeToWrite { link, key, memory, shared })
            }
            LinkAction::ExposeToRead { link, key, memory } => {
                if let Some(owner) = self.links.get_mut(&link.0) {
                    if key == SLOTS_KEY {
                        let (slots, copy) = Slots::new(memory.clone())?;
                        owner.slots = Some(slots);
                        // Over shared memory its reader sees a copy that follows.
                        let memory = if owner.verbs { memory } else { copy };
                        return self.act_over(link.0, LinkAction::ExposeToRead { link, key, memory });
                    }
                    // How far a shared ring was read.
                    self.outcome.exposed.shared += 1;
                }
                self.act_over(link.0, LinkAction::ExposeToRead { link, key, memory })
            }
            LinkAction::ExposeFile { link, key, file, bytes } => self.expose_file(link, key, file, bytes),
            LinkAction::End { link, key } => {
                self.exposes.remove(&(link.0, key));
                if let Some(owner) = self.links.get_mut(&link.0) {
                    owner.mirrors.remove(&key);
                }
                self.server.forget_window(link.0, key);
                self.act_over(link.0, LinkAction::End { link, key })
            }
            LinkAction::Acknowledge { link, note } => {
                self.act_over(link.0, LinkAction::Acknowledge { link, note })
            }
            LinkAction::Nudge { link } => self.act_over(link.0, LinkAction::Nudge { link }),
            LinkAction::Join { link, hello } => self.joins(link.0, &hello),
            LinkAction::Carry { .. } => Err("the broker carries a connection over verbs".to_owned()),
            LinkAction::Close { link, why } => {
                self.exposes.retain(|(of, _), _| *of != link.0);
                self.server.forget_windows(link.0);
                if self.rogue_is_closed(link.0) {
                    self.outcome.exposed.closed += 1;
                    return Ok(());
                }
                let Some(owner) = self.links.get_mut(&link.0) else { return Ok(()) };
                owner.broker = false;
                owner.broker_end = None;
                let left = !owner.client;
                self.tell(|| format!("the broker closes link {}: {why}", link.0));
                if !left && why != "its connection has ended" {
                    return Err(format!("the broker ends the link of an honest client: {why}"));
                }
                self.tell_end(link.0, "the broker has ended it");
                Ok(())
            }
        }
    }

    fn expose_file(
        &mut self,
        link: headrace_broker::LinkId,
        key: u64,
        file: MemoryFile,
        bytes: u64,
    ) -> Result<(), String> {
        self.note_exposed(link.0, key, None);
        if bytes == 0 {
            return Err("the broker exposes a file of which there is nothing to be mapped".to_owned());
        }
        let unregistered = self.exposing()?.unregistered;
        let unmapped = self.rng.chance(unregistered);
        let Some(owner) = self.links.get_mut(&link.0) else {
            let file = SimFile::new(file, None, true);
            return self.act_over_rogues(link.0, LinkAction::ExposeFile { link, key, file, bytes });
        };
        self.outcome.exposed.files += 1;
        let file = if owner.verbs {
            let exposed = SimFile::new(file.clone(), None, unmapped);
            owner.files.insert(key, (exposed.clone(), Growing::new(file)));
            exposed
        } else {
            let (mirror, reader) = Mirror::new(file.clone()).map_err(|why| why.to_string())?;
            owner.mirrors.insert(key, mirror);
            SimFile::new(file, Some(reader), false)
        };
        self.act_over(link.0, LinkAction::ExposeFile { link, key, file, bytes })
    }

    /// Something is exposed, unless its link has ended meanwhile.
    fn note_exposed(&mut self, link: u64, key: u64, memory: Option<Arc<Memory>>) {
        if self.links.get(&link).is_some_and(|link| link.broker) || self.is_rogues(link) {
            self.exposes.insert((link, key), memory);
        }
    }

    /// The broker's end of a link does what the broker wants.
    fn act_over(&mut self, name: u64, action: LinkAction<SimFile>) -> Result<(), String> {
        let Some(end) = self.links.get_mut(&name).and_then(|link| link.broker_end.as_mut()) else {
            return self.act_over_rogues(name, action);
        };
        match end.act(action, &mut self.server) {
            Ok(()) => Ok(()),
            Err(fault) => self.broker_drops(name, &fault),
        }
    }

    fn act_over_rogues(&mut self, name: u64, action: LinkAction<SimFile>) -> Result<(), String> {
        if self.rogue_act_on(name, action) { self.after_broker() } else { Ok(()) }
    }

    /// The broker connects an end of its own to a client's, which takes its time.
    fn joins(&mut self, offered: u64, hello: &[u8]) -> Result<(), String> {
        self.server.offer();
        let key = u64::from_le_bytes(hello.try_into().map_err(|_| "an end says what none says")?);
        self.joining.insert(offered, key);
        let at = self.control_due();
        self.at(at, Event::Link(offered, LinkEvent::Joined));
        Ok(())
    }

    /// The broker's end of a link has failed: it is given up.
    pub(super) fn broker_drops(&mut self, name: u64, fault: &LinkFault) -> Result<(), String> {
        self.tell(|| format!("the broker's end of link {name} fails: {fault}"));
        let Some(link) = self.links.get(&name) else { return Ok(()) };
        let gone = matches!(fault, LinkFault::Remote(FabricError::Gone));
        if link.client && !link.lied && !gone {
            return Err(format!("the broker ends link {name}, whose client is honest: {fault}"));
        }
        self.tell_end(name, "its broker has given it up");
        self.link_end(name)
    }

    /// A link has ended at the broker. Over RDMA nobody tells its client so but the end of its connection.
    pub(super) fn tell_end(&mut self, key: u64, why: &'static str) {
        if self.links.get(&key).is_some_and(|link| !link.verbs) {
            self.tell_link(key, Control::Gone(why));
        }
    }

    /// The broker learns that a link has ended.
    pub(super) fn link_end(&mut self, key: u64) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&key) else { return Ok(()) };
        let known = std::mem::take(&mut link.broker);
        link.broker_end = None;
        if !link.client {
            self.links.remove(&key);
        }
        if !known {
            return Ok(());
        }
        self.exposes.retain(|(of, _), _| *of != key);
        self.server.unlink(key);
        self.after_broker()
    }

    /// What clients can make the broker expose has a limit.
    fn check_exposed(&self) -> Result<(), String> {
        let setting = |name: &str| self.server.setting(name).and_then(|text| text.parse::<u64>().ok());
        // Those who share a ring have one between them, with a line more for its order word.
        let rings: BTreeMap<_, _> = self
            .exposes
            .values()
            .flatten()
            .map(|memory| (Arc::as_ptr(memory), memory.len() as u64))
            .collect();
        let rings = rings.values().sum::<u64>().saturating_sub(64 * rings.len() as u64);
        let bytes = rings + self.server.window_bytes();
        if setting("headrace.direct.memory.bytes").is_some_and(|max| bytes > max) {
            return Err(format!("{bytes} bytes are exposed, which is more than may be"));
        }
        let grants = self.exposes.len() as u64;
        if setting("headrace.direct.grants.max").is_some_and(|max| grants > max) {
            return Err(format!("there are {grants} grants, which is more than may be"));
        }
        Ok(())
    }

    /// All have gone, and have given back what they had.
    pub(crate) fn check_given_back(&self) -> Result<(), String> {
        let links: Vec<u64> =
            self.links.iter().filter(|(_, link)| link.broker).map(|(key, _)| *key).collect();
        if self.exposes.is_empty() && links.is_empty() {
            return Ok(());
        }
        let exposes: Vec<_> = self.exposes.keys().collect();
        Err(format!("all have gone, and there are links {links:?}, and exposed (link and key): {exposes:?}"))
    }
}
