//! Rogues, clients that ask for memory as others do and lie over their links: what the broker does to them.

use std::sync::Arc;

use headrace_broker::{LinkAction, LinkId};
use headrace_fabric::simulated::{Cable, SimSide};
use headrace_fabric::{Memory, Region};

use super::state::{Event, World};
use crate::links::{Line, SimBrokerEnd, SimFile};
use crate::rogue::Rogue;

/// What their ends of links over RDMA say of themselves is counted from here.
pub(super) const FIRST_END: u64 = 1 << 58;

impl World {
    pub(super) fn plan_rogues(&mut self) {
        let plans = self.plan.direct.as_ref().map(|plan| plan.rogues.clone()).unwrap_or_default();
        for (number, plan) in plans.into_iter().enumerate() {
            self.rogues.push(Rogue { acts: plan.acts, ..Rogue::default() });
            self.at(plan.at_ms, Event::Rogue(number));
        }
    }

    fn rogue_of(&mut self, link: u64) -> Option<&mut Rogue> {
        self.rogues.iter_mut().find(|rogue| rogue.link == Some(link))
    }

    /// Whether a link is a rogue's.
    pub(super) fn is_rogues(&self, link: u64) -> bool {
        self.rogues.iter().any(|rogue| rogue.link == Some(link))
    }

    /// The broker has connected an end of its own to a rogue's; whether it is one's.
    pub(super) fn rogue_joins(&mut self, end: u64, offered: u64) -> bool {
        let Some(number) = end.checked_sub(FIRST_END).and_then(|number| usize::try_from(number).ok()) else {
            return false;
        };
        self.tell(|| format!("rogue {number} is joined to link {offered}"));
        match self.rogues.get_mut(number).filter(|rogue| rogue.conn.is_some()) {
            Some(rogue) => {
                (rogue.link, rogue.asked) = (Some(offered), false);
                let (cable, broker, _) = Cable::new();
                rogue.end = Some(SimBrokerEnd::remote(LinkId(offered), broker));
                rogue.line = Line::Verbs(cable);
            }
            None => self.server.unlink(offered),
        }
        true
    }

    pub(super) fn rogue_is_exposed(&mut self, link: u64, key: u64, memory: &Arc<Memory>) -> bool {
        let rogue = self.rogue_of(link);
        rogue.map(|rogue| rogue.exposed.insert(key, Region::whole(memory.clone()))).is_some()
    }

    /// What it had of the broker's memory it still has, as a process would.
    pub(super) fn rogue_is_closed(&mut self, link: u64) -> bool {
        let rogue = self.rogue_of(link);
        rogue.map(|rogue| (rogue.link, rogue.end, rogue.rings) = (None, None, Vec::new())).is_some()
    }

    /// The broker's end of a rogue's link does what the broker wants. Whether it is given up, which the broker learns.
    pub(super) fn rogue_act_on(&mut self, link: u64, action: LinkAction<SimFile>) -> bool {
        let Some(rogue) = self.rogues.iter_mut().find(|rogue| rogue.link == Some(link)) else {
            return false;
        };
        let Some(end) = &mut rogue.end else { return false };
        if let Err(fault) = end.act(action, &mut self.server) {
            self.rogue_is_dropped(link, &fault.to_string());
            return true;
        }
        // It hears nothing of what it is told.
        match &rogue.line {
            Line::Shm(wire) => while wire.next(SimSide::Broker).is_some() {},
            Line::Verbs(cable) => while cable.next(SimSide::Broker).is_some() {},
            Line::None => {}
        }
        false
    }

    /// The broker's end of a rogue's link has seen that it lies.
    pub(super) fn rogue_is_dropped(&mut self, link: u64, why: &str) {
        self.tell(|| format!("the broker gives link {link} of a rogue up: {why}"));
        self.outcome.exposed.closed += 1;
        self.rogue_is_closed(link);
        self.exposes.retain(|(of, _), _| *of != link);
        self.server.unlink(link);
    }

    /// The broker has closed its connection, as where it has lied over RDMA.
    pub(super) fn rogue_is_hung_up(&mut self, conn: u64) {
        if let Some(rogue) = self.rogues.iter_mut().find(|rogue| rogue.conn == Some(conn)) {
            (rogue.conn, rogue.asked) = (None, false);
        }
    }

    /// The broker is gone.
    pub(super) fn forget_rogues(&mut self) {
        for rogue in &mut self.rogues {
            (rogue.conn, rogue.asked, rogue.link, rogue.rings) = (None, false, None, Vec::new());
            rogue.end = None;
        }
    }
}
