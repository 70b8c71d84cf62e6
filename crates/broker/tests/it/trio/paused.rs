//! Processes that are stopped where they stand, and go on later.

use super::*;

/// Where a broker's loop stands. It takes what has come from one source after the other, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Requests,
    Notes,
    Timers,
    Peers,
    Store,
}

impl Source {
    pub(crate) const ALL: [Self; 5] = [Self::Requests, Self::Notes, Self::Timers, Self::Peers, Self::Store];

    fn of(what: &Travelling) -> Self {
        match what {
            Travelling::Request(..) | Travelling::Client(..) | Travelling::Hangup(..) => Self::Requests,
            Travelling::Pushed(..)
            | Travelling::Acknowledged(..)
            | Travelling::Pushing(..)
            | Travelling::Unlinked(..) => Self::Notes,
            Travelling::Answer(..) | Travelling::Closed(..) => Self::Peers,
            Travelling::Asked(..) | Travelling::Answered(..) | Travelling::Watched(..) => Self::Store,
        }
    }
}

/// A process that is paused.
pub(super) struct Paused {
    /// What has come meanwhile.
    pub(super) held: Vec<Travelling>,
    at: Source,
}

impl Trio {
    /// Brokers that are up, and not paused.
    pub(crate) fn awake(&self) -> Vec<i32> {
        self.ids().into_iter().filter(|id| !self.paused.contains_key(id)).collect()
    }

    /// A broker's process is stopped there: it has just looked at its clock.
    pub(crate) fn pause(&mut self, id: i32, at: Source) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.clock.stale = Some(node.clock.at(self.now));
        self.paused.insert(id, Paused { held: Vec::new(), at });
    }

    /// It goes on. Of what has come meanwhile from the source where it stands it takes so much before it looks at its clock
    /// again, and says what comes of that. `look` sees it when it has looked, and has not seen to what is due. How much it took.
    pub(crate) fn resume(&mut self, id: i32, before_looking: usize, look: impl FnOnce(&mut Self)) -> usize {
        let Some(Paused { held, at }) = self.paused.remove(&id) else { return 0 };
        let (mut taken, mut rest) = (0, Vec::new());
        for one in held {
            if taken < before_looking && Source::of(&one) == at {
                taken += 1;
                self.arrive(one);
                self.carry_store(id);
                self.carry_out(id);
            } else {
                rest.push(one);
            }
        }
        let node = self.nodes.get_mut(&id).unwrap();
        node.clock.stale = None;
        look(self);
        let start = Source::ALL.iter().position(|source| *source == at).unwrap();
        for source in Source::ALL.iter().cycle().skip(start).take(Source::ALL.len()) {
            if *source == Source::Timers {
                let node = self.nodes.get_mut(&id).unwrap();
                node.broker.handle_timeout(node.clock.at(self.now));
            }
            let (now, later) = rest.into_iter().partition(|one| Source::of(one) == *source);
            rest = later;
            let now: Vec<_> = now;
            for one in now {
                self.arrive(one);
            }
            self.carry_out(id);
        }
        self.settle();
        taken
    }
}
