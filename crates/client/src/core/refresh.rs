//! When metadata is asked for: at once for a new topic, else no oftener than the back-off allows.

use std::collections::BTreeMap;

use headrace_wire::time::Now;

use crate::time::{Backoff, Jitter};

/// The first wait in milliseconds for a topic that an answer did not have: mostly it is being created, which takes
/// Apache Kafka some 40 ms. The waits double until they are as long as the back-off's.
const CREATING_WAIT_MS: u64 = 10;

/// How many of those waits come on top of the back-off's: whoever counts answers before it calls a topic unknown counts
/// so many more.
pub(crate) const CREATING_WAITS: u32 = 3;

/// Decides when the next metadata request is due. At most one is in flight.
#[derive(Debug)]
pub(super) struct Refresh {
    /// By name, whether a request for it may make the topic. What an assignment or a pattern names may not: it was there
    /// already, and asking would make it again once somebody has deleted it.
    wanted: BTreeMap<String, bool>,
    /// The last answer was to a request that made nothing, and misses topics that may be made: those are asked for next.
    makes_next: bool,
    backoff: Backoff,
    max_age_ms: u64,
    in_flight: bool,
    due: Option<u64>,
    /// Why it is due, for the log.
    why: &'static str,
    /// A topic was added while a request was in flight that did not ask for it.
    again: bool,
    failures: u32,
    last_sent: Option<u64>,
    /// The first request since the last answer, or since the cluster was last looked for anew.
    trying_since: Option<u64>,
}

impl Refresh {
    pub(super) fn new(backoff: Backoff, max_age_ms: u64) -> Self {
        Self {
            wanted: BTreeMap::new(),
            makes_next: false,
            backoff,
            max_age_ms,
            in_flight: false,
            due: None,
            why: "",
            again: false,
            failures: 0,
            last_sent: None,
            trying_since: None,
        }
    }

    pub(super) fn wanted(&self) -> impl Iterator<Item = &String> {
        self.wanted.keys()
    }

    pub(super) fn is_wanted(&self, topic: &str) -> bool {
        self.wanted.contains_key(topic)
    }

    /// The topics that a request may make.
    pub(super) fn makeable(&self) -> impl Iterator<Item = &String> {
        self.wanted.iter().filter(|(_, makes)| **makes).map(|(topic, _)| topic)
    }

    /// Whether there are topics of both kinds, so that one request does not do for all.
    pub(super) fn is_mixed(&self) -> bool {
        self.makeable().next().is_some() && self.wanted.values().any(|makes| !makes)
    }

    /// Whether what is missing and may be made is asked for next.
    pub(super) fn makes_next(&self) -> bool {
        self.makes_next
    }

    /// Adds a topic; asked for at once when it is new. One that may be made stays so.
    pub(super) fn want(&mut self, now: Now, topic: &str, makes: bool) {
        let known = self.wanted.get(topic).copied();
        if known.is_none() || (makes && known == Some(false)) {
            self.wanted.insert(topic.to_owned(), makes);
            self.ask(now);
        }
    }

    /// Adds a topic that is known already.
    pub(super) fn keep(&mut self, topic: &str, makes: bool) {
        *self.wanted.entry(topic.to_owned()).or_default() |= makes;
    }

    /// No request makes this topic from now on.
    pub(super) fn make_no_more(&mut self, topic: &str) {
        if let Some(makes) = self.wanted.get_mut(topic) {
            *makes = false;
        }
    }

    /// Something new is wanted: asked for at once.
    pub(super) fn ask(&mut self, now: Now) {
        // What another topic has missed so far must not slow down this one.
        self.failures = 0;
        self.why = "a topic is new";
        if self.in_flight {
            self.again = true;
        } else {
            self.due = Some(now.mono_ms);
        }
    }

    pub(super) fn forget(&mut self, topic: &str) {
        self.wanted.remove(topic);
    }

    /// Something showed that what is known is stale: asks again as soon as the back-off since the last time is over.
    pub(super) fn stale(&mut self, now: Now) {
        if self.in_flight {
            return;
        }
        let at = self.last_sent.map_or(0, |sent| sent.saturating_add(self.backoff.first_ms)).max(now.mono_ms);
        // While failures are being waited out, their longer wait stands.
        let at = if self.failures > 0 { self.due.unwrap_or(at) } else { at };
        if self.due.is_none_or(|due| at < due) {
            (self.due, self.why) = (Some(at), "what is known may be stale");
        }
    }

    /// When to ask next.
    pub(super) fn due(&self) -> Option<u64> {
        if self.in_flight { None } else { self.due }
    }

    /// Why it is asked for next, for the log.
    pub(super) fn why(&self) -> &'static str {
        self.why
    }

    /// Whether an answer is awaited.
    pub(super) fn in_flight(&self) -> bool {
        self.in_flight
    }

    pub(super) fn sent(&mut self, now: Now) {
        self.in_flight = true;
        self.again = false;
        self.due = None;
        self.last_sent = Some(now.mono_ms);
        self.trying_since.get_or_insert(now.mono_ms);
    }

    /// Since when there is no answer; `None` while none is missing.
    pub(super) fn trying_since(&self) -> Option<u64> {
        self.trying_since
    }

    /// The cluster is looked for anew: at once, and with all the time there is.
    pub(super) fn start_over(&mut self, now: Now) {
        self.trying_since = None;
        self.failures = 0;
        if !self.in_flight {
            (self.due, self.why) = (Some(now.mono_ms), "the cluster is looked for anew");
        }
    }

    /// An answer came that made nothing, and misses topics that may be made: they are asked for at once.
    pub(super) fn answered_unmade(&mut self, now: Now) {
        self.in_flight = false;
        self.trying_since = None;
        // A topic that has been added since is not known to be missing yet.
        self.makes_next = !self.again;
        (self.due, self.why) = (Some(now.mono_ms), "topics are to be created");
    }

    /// An answer came. `complete` says that no wanted topic misses anything that may still come.
    pub(super) fn answered(&mut self, now: Now, complete: bool, jitter: &mut Jitter) {
        self.in_flight = false;
        self.makes_next = false;
        self.trying_since = None;
        if complete {
            self.failures = 0;
            self.due = Some(now.mono_ms.saturating_add(self.max_age_ms));
            self.why = "metadata.max.age.ms is over";
        } else {
            self.back_off(now, jitter);
            let doublings = self.failures.saturating_sub(1).min(u64::BITS / 2);
            let at = now.mono_ms.saturating_add(CREATING_WAIT_MS << doublings);
            self.due = self.due.map(|due| due.min(at));
            self.why = "a topic or a leader was missing";
        }
        if self.again {
            (self.due, self.why) = (Some(now.mono_ms), "a topic is new");
        }
    }

    pub(super) fn failed(&mut self, now: Now, jitter: &mut Jitter) {
        self.in_flight = false;
        self.why = "the last request failed";
        self.back_off(now, jitter);
    }

    fn back_off(&mut self, now: Now, jitter: &mut Jitter) {
        self.failures = self.failures.saturating_add(1);
        self.due = Some(now.mono_ms.saturating_add(self.backoff.wait_ms(self.failures, jitter).max(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mono_ms: u64) -> Now {
        Now { mono_ms, wall_ms: 0 }
    }

    #[test]
    fn a_topic_that_is_being_created_is_asked_for_soon_and_then_less_and_less() {
        let backoff = Backoff { first_ms: 100, max_ms: 1000 };
        let (mut refresh, mut jitter) = (Refresh::new(backoff, 300_000), Jitter::new(7));
        refresh.want(at(0), "t", true);
        let (mut now, mut waits) = (0, Vec::new());
        for _ in 0..10 {
            refresh.sent(at(now));
            refresh.answered(at(now), false, &mut jitter);
            waits.push(refresh.due().unwrap() - now);
            now += waits[waits.len() - 1];
        }
        assert_eq!(waits[..4], [10, 20, 40, 80]);
        assert!(waits[8..].iter().all(|wait| (800..=1200).contains(wait)), "{waits:?}");
        refresh.sent(at(now));
        refresh.failed(at(now), &mut jitter);
        assert!(refresh.due().unwrap() - now >= 800, "a request that failed waits as long as it is set");
    }

    #[test]
    fn a_wait_that_is_set_shorter_stays_shorter() {
        let (mut refresh, mut jitter) =
            (Refresh::new(Backoff { first_ms: 2, max_ms: 2 }, 300_000), Jitter::new(7));
        refresh.want(at(0), "t", true);
        refresh.sent(at(0));
        refresh.answered(at(0), false, &mut jitter);
        assert!(refresh.due().unwrap() <= 3);
    }
}
