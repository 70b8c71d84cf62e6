//! All ends of one thread of a broker: where each is, and how far it has come.
//!
//! An end over shared memory is linked as soon as it is there. One over verbs is offered first, with what it says of itself,
//! joins when a client has asked for it, and is linked when it is connected. The driver connects: here it is only known that
//! it does. An id names one end for ever: what comes for an end that is gone changes nothing in its place.

use headrace_broker::{ConnId, LinkAction, LinkId};
use headrace_fabric::{Endpoint, FabricError, MappedLink};
use slab::Slab;

use super::{BrokerEnd, LinkOwner, LogFile};
use crate::LinkFault;

/// The lower bits of an id say the place, of which each takes a descriptor; those above count.
const PLACE_BITS: u32 = 20;

/// See the module. `O` is an end that is offered.
#[derive(Debug)]
pub struct Ends<M, E, F: LogFile, O> {
    places: Slab<End<M, E, F, O>>,
    made: u64,
    linked: usize,
}

#[derive(Debug)]
struct End<M, E, F: LogFile, O> {
    id: LinkId,
    state: State<M, E, F, O>,
}

#[derive(Debug)]
enum State<M, E, F: LogFile, O> {
    Linked(BrokerEnd<M, E, F>),
    Offered(O),
    Joining,
}

/// What the driver is to connect: afterwards [`Ends::joined`], or [`Ends::remove`].
#[derive(Debug, PartialEq, Eq)]
pub struct Join<O> {
    /// Which one.
    pub link: LinkId,
    /// The end as it was offered.
    pub offer: O,
    /// What the client's end says of itself.
    pub hello: Vec<u8>,
    /// The connection whose bytes are to go over it; it is no end here then, once it is connected.
    pub carries: Option<ConnId>,
}

impl<M, E, F: LogFile, O> Default for Ends<M, E, F, O> {
    fn default() -> Self {
        Self { places: Slab::new(), made: 0, linked: 0 }
    }
}

/// The place of an end.
#[must_use]
pub fn place_of(id: LinkId) -> usize {
    usize::try_from(id.0 & ((1 << PLACE_BITS) - 1)).unwrap_or(usize::MAX)
}

/// The number of an end among all that were made, for people.
#[must_use]
pub fn number_of(id: LinkId) -> u64 {
    id.0 >> PLACE_BITS
}

impl<M: MappedLink, E: Endpoint, F: LogFile, O> Ends<M, E, F, O> {
    fn next_id(&mut self) -> LinkId {
        self.made += 1;
        LinkId((self.made << PLACE_BITS) | self.places.vacant_key() as u64)
    }

    /// Makes a linked end; `make` gets its id.
    ///
    /// # Errors
    /// That of `make`: there is no such end.
    pub fn link<R>(
        &mut self,
        make: impl FnOnce(LinkId) -> Result<BrokerEnd<M, E, F>, R>,
    ) -> Result<LinkId, (LinkId, R)> {
        let id = self.next_id();
        let end = make(id).map_err(|why| (id, why))?;
        self.places.insert(End { id, state: State::Linked(end) });
        self.linked += 1;
        Ok(id)
    }

    /// Offers an end.
    pub fn offer(&mut self, offer: O) -> LinkId {
        let id = self.next_id();
        self.places.insert(End { id, state: State::Offered(offer) });
        id
    }

    /// Whether none is linked.
    #[inline]
    #[must_use]
    pub fn are_idle(&self) -> bool {
        self.linked == 0
    }

    /// The linked ends.
    #[inline]
    pub fn linked(&mut self) -> impl Iterator<Item = &mut BrokerEnd<M, E, F>> {
        self.places.iter_mut().filter_map(|(_, end)| match &mut end.state {
            State::Linked(end) => Some(end),
            State::Offered(_) | State::Joining => None,
        })
    }

    /// The linked end at a place.
    pub fn at(&mut self, place: usize) -> Option<&mut BrokerEnd<M, E, F>> {
        match &mut self.places.get_mut(place)?.state {
            State::Linked(end) => Some(end),
            State::Offered(_) | State::Joining => None,
        }
    }

    /// Does what the broker wants done over a link, or gives what is to be connected for it.
    ///
    /// # Errors
    /// The link has ended, or its client says what cannot be: it is to be removed.
    #[inline]
    pub fn act(
        &mut self,
        action: LinkAction<F>,
        owner: &mut impl LinkOwner,
    ) -> Result<Option<Join<O>>, LinkFault> {
        let link = action.link();
        let Some(end) = self.places.get_mut(place_of(link)).filter(|end| end.id == link) else {
            return Ok(None);
        };
        let (hello, carries) = match action {
            LinkAction::Join { hello, .. } => (hello, None),
            LinkAction::Carry { hello, conn, .. } => (hello, Some(conn)),
            action => {
                let State::Linked(end) = &mut end.state else { return Err(FabricError::Gone.into()) };
                return end.act(action, owner).map(|()| None);
            }
        };
        match std::mem::replace(&mut end.state, State::Joining) {
            State::Offered(offer) => Ok(Some(Join { link, offer, hello, carries })),
            other => {
                end.state = other;
                Ok(None)
            }
        }
    }

    /// Whether an end is being connected, and was not given up meanwhile.
    #[must_use]
    pub fn is_joining(&self, link: LinkId) -> bool {
        let end = self.places.get(place_of(link));
        end.is_some_and(|end| end.id == link && matches!(end.state, State::Joining))
    }

    /// An end is connected; it is dropped if it was given up meanwhile. Whether it is linked.
    pub fn joined(&mut self, link: LinkId, endpoint: E) -> bool {
        let joining = self.is_joining(link);
        if joining && let Some(end) = self.places.get_mut(place_of(link)) {
            end.state = State::Linked(BrokerEnd::remote(link, endpoint));
            self.linked += 1;
        }
        joining
    }

    /// Removes an end, however far it has come; whether it was there.
    pub fn remove(&mut self, link: LinkId) -> bool {
        let place = place_of(link);
        let is_there = self.places.get(place).is_some_and(|end| end.id == link);
        if is_there {
            let end = self.places.remove(place);
            self.linked -= usize::from(matches!(end.state, State::Linked(_)));
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use headrace_broker::Refusal;
    use headrace_fabric::Note;
    use headrace_fabric::simulated::{Cable, SimLink, SimNic, Wire};
    use headrace_wire::time::Now;

    use super::super::testing::NoFile;
    use super::*;

    type TestEnds = Ends<SimLink, SimNic, NoFile, &'static str>;

    struct Nobody;

    impl LinkOwner for Nobody {
        fn written(&mut self, _: Now, _: LinkId, _: Note) {}

        fn window(&mut self, _: LinkId, _: u64, _: u64) -> Result<Range<u64>, Refusal> {
            unreachable!("nothing is read")
        }

        fn not_exposed(&mut self, _: LinkId, _: u64) {}

        fn notified(&mut self, _: LinkId) {}
    }

    fn join(link: LinkId) -> LinkAction<NoFile> {
        LinkAction::Join { link, hello: vec![1] }
    }

    fn nudge(link: LinkId) -> LinkAction<NoFile> {
        LinkAction::Nudge { link }
    }

    fn linked(ends: &mut TestEnds) -> LinkId {
        ends.link(|id| Ok::<_, ()>(BrokerEnd::mapped(id, Wire::new(1 << 16).1))).unwrap()
    }

    #[test]
    fn an_end_is_offered_joins_once_and_is_linked() {
        let mut ends = TestEnds::default();
        let link = ends.offer("an end");
        assert!(ends.are_idle() && !ends.is_joining(link) && ends.at(place_of(link)).is_none());
        let wanted = Join { link, offer: "an end", hello: vec![1], carries: None };
        assert_eq!(ends.act(join(link), &mut Nobody).unwrap(), Some(wanted));
        assert_eq!(ends.act(join(link), &mut Nobody).unwrap(), None, "it joins already");
        assert!(ends.is_joining(link) && ends.are_idle());
        assert!(ends.joined(link, Cable::new().1));
        assert_eq!(ends.at(place_of(link)).map(|end| end.id()), Some(link));
        assert_eq!(ends.linked().count(), 1);
        assert_eq!(ends.act(join(link), &mut Nobody).unwrap(), None, "it is linked already");
        assert!(!ends.joined(link, Cable::new().1), "and is once");
        assert!(ends.remove(link) && !ends.remove(link) && ends.are_idle());
    }

    #[test]
    fn what_comes_for_an_end_that_is_gone_changes_nothing_in_its_place() {
        let mut ends = TestEnds::default();
        let gone = ends.offer("given up");
        assert!(ends.act(join(gone), &mut Nobody).unwrap().is_some());
        assert!(ends.remove(gone));
        let here = ends.offer("another");
        assert_eq!(place_of(here), place_of(gone));
        assert_ne!(number_of(here), number_of(gone));
        assert!(!ends.joined(gone, Cable::new().1) && !ends.is_joining(gone) && !ends.remove(gone));
        assert_eq!(ends.act(join(gone), &mut Nobody).unwrap(), None);
        assert_eq!(ends.act(join(here), &mut Nobody).unwrap().unwrap().offer, "another");
        assert!(!ends.joined(gone, Cable::new().1), "also while that joins");
        assert!(ends.remove(here));
        let third = linked(&mut ends);
        assert_eq!(place_of(third), place_of(gone));
        let close = LinkAction::Close { link: here, why: String::new() };
        assert_eq!(ends.act(close, &mut Nobody).unwrap(), None, "it is not closed for another's sake");
        assert!(!ends.remove(here) && !ends.are_idle());
    }

    #[test]
    fn an_end_that_is_not_linked_can_be_told_nothing() {
        let mut ends = TestEnds::default();
        let link = ends.offer("an end");
        assert!(ends.act(nudge(link), &mut Nobody).is_err());
        assert!(ends.act(join(link), &mut Nobody).unwrap().is_some());
        assert!(ends.act(nudge(link), &mut Nobody).is_err(), "as little while it joins");
        assert!(!ends.joined(LinkId(link.0 + 1), Cable::new().1), "of another place");
    }

    #[test]
    fn an_end_that_cannot_be_made_leaves_no_trace() {
        let mut ends = TestEnds::default();
        let (link, why) = ends.link(|_| Err("no descriptors")).unwrap_err();
        assert_eq!(why, "no descriptors");
        assert!(ends.are_idle() && ends.at(place_of(link)).is_none() && !ends.remove(link));
        let next = linked(&mut ends);
        assert!(next != link && place_of(next) == place_of(link));
    }
}
