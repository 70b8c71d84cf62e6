//! Who polls, who parks, and who is notified.
//!
//! To notify a thread and to wake it costs some 30 us, several times a record's way through shared memory. So whoever has had
//! something goes on polling for a while, and a peer that polls is not notified. What must hold all the while: a note never
//! lies where nobody polls, nobody is notified, and no thread looks by itself soon.
//!
//! What a client's threads share is decided by [`Parking`], under the lock that its engine is under; tests/loom.rs tries its
//! interleavings with a broker's.

/// How long brokers go on not to notify after a caller has ended to poll, or while nobody waits for what comes. The engine's
/// thread looks by itself then.
pub const LINGER_MS: u64 = 2;
/// Commands in that time after which the caller is taken for one that does not wait for what it sends.
const COMMANDS_MAX: u32 = 2;
/// Polls of a broker's links without sockets getting their turn, while there is something in each.
const TURNS_MAX: usize = 64;
/// And for so long at most.
const TURNS_US_MAX: u64 = 2000;
/// Polls in which nothing came, before sockets get their turn.
const IDLE_TURNS_MAX: usize = 8;

/// What a thread that polls does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It polls again.
    Poll,
    /// It polls again once others had the processor: with fewer processors than who poll, a turn would else last for
    /// milliseconds.
    Yield,
    /// It polls no more for now.
    End,
}

/// When a broker's thread polls its links: as long as something came within `headrace.poll.spin.us`.
#[derive(Debug)]
pub struct BrokerPolling {
    spin_us: u64,
    /// When something came last.
    stirred_us: u64,
}

/// Polls one after the other.
#[derive(Debug)]
pub struct Round {
    since_us: u64,
    turns: usize,
    idle: usize,
    any: bool,
    stopped: bool,
}

impl Round {
    /// It is to end: something is to be done elsewhere.
    pub fn stop(&mut self) {
        self.stopped = true;
    }
}

impl BrokerPolling {
    /// Something has just come, or may.
    #[must_use]
    pub fn new(spin_us: u64) -> Self {
        Self { spin_us, stirred_us: 0 }
    }

    /// Something has come.
    pub fn stir(&mut self, now_us: u64) {
        self.stirred_us = now_us;
    }

    /// Whether something came so lately that the thread does not sleep.
    #[must_use]
    pub fn is_stirred(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.stirred_us) < self.spin_us
    }

    /// Begins a round.
    #[must_use]
    pub fn begin(&self, now_us: u64) -> Round {
        Round { since_us: now_us, turns: 0, idle: 0, any: false, stopped: false }
    }

    /// After a poll of all links, in which something came or not.
    pub fn goes_on(&self, round: &mut Round, came: bool, now_us: u64) -> Next {
        round.any |= came;
        round.turns += 1;
        round.idle = if came { 0 } else { round.idle + 1 };
        let stirred = round.any || self.is_stirred(now_us);
        let long = now_us.saturating_sub(round.since_us) > TURNS_US_MAX;
        if round.stopped || !stirred || long || round.idle >= IDLE_TURNS_MAX || round.turns >= TURNS_MAX {
            Next::End
        } else if came {
            Next::Poll
        } else {
            Next::Yield
        }
    }

    /// Ends a round; whether anything came.
    pub fn end(&mut self, round: &Round, now_us: u64) -> bool {
        if round.any {
            self.stir(now_us);
        }
        round.any
    }
}

/// A caller that polls while it waits, for `headrace.poll.spin.us` since something came.
#[derive(Debug)]
pub struct CallerPolling {
    spin_us: u64,
    since_us: u64,
}

impl CallerPolling {
    /// It begins to.
    #[must_use]
    pub fn new(spin_us: u64, now_us: u64) -> Self {
        Self { spin_us, since_us: now_us }
    }

    /// After a poll that found something or not.
    pub fn goes_on(&mut self, found: bool, now_us: u64) -> Next {
        if found {
            self.since_us = now_us;
            Next::Poll
        } else if now_us.saturating_sub(self.since_us) >= self.spin_us {
            Next::End
        } else {
            Next::Yield
        }
    }
}

/// Before a client's thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeforeSleep {
    /// It may: there are no links, others poll them, or it looks by itself at [`Parking::linger_until`].
    Sleep,
    /// It parks all links, and looks once more after that: what was published before was notified to nobody. If there is
    /// something, it does not sleep.
    Park,
}

/// Who polls a client's links: callers that wait, or the engine's thread, or nobody, and then brokers notify.
#[derive(Debug, Default)]
pub struct Parking {
    /// Callers that poll: while there are some, nobody needs to be notified.
    callers: usize,
    /// One has just ended to poll, and is likely to come again, as one that waits for each of its records; or nobody waits.
    linger: Option<Linger>,
    /// Something has come since the engine's thread slept last.
    stirred: bool,
}

#[derive(Debug)]
struct Linger {
    until_ms: u64,
    commands: u32,
}

impl Parking {
    /// After a look at all links; whether it found something.
    pub fn looked(&mut self, found: bool) {
        self.stirred |= found;
    }

    /// When the engine's thread looks, if brokers do not notify meanwhile.
    #[must_use]
    pub fn linger_until(&self) -> Option<u64> {
        self.linger.as_ref().map(|linger| linger.until_ms)
    }

    /// Whether callers poll.
    #[must_use]
    pub fn has_callers(&self) -> bool {
        self.callers > 0
    }

    /// The engine's thread is about to sleep, or has nobody to poll for it. `patient`: what comes may come late.
    pub fn before_sleep(
        &mut self,
        has_links: bool,
        now_ms: impl Fn() -> u64,
        patient: impl FnOnce() -> bool,
    ) -> BeforeSleep {
        if self.linger.as_ref().is_some_and(|linger| linger.until_ms > now_ms()) {
            return BeforeSleep::Sleep;
        }
        self.linger = None;
        if !has_links || self.callers > 0 {
            return BeforeSleep::Sleep;
        }
        if std::mem::take(&mut self.stirred) && patient() {
            self.linger(now_ms());
            return BeforeSleep::Sleep;
        }
        BeforeSleep::Park
    }

    fn linger(&mut self, now_ms: u64) {
        self.linger = Some(Linger { until_ms: now_ms.saturating_add(LINGER_MS), commands: 0 });
    }

    /// A caller's command was carried out; whether nobody is going to poll for what comes of it, so that links are to be
    /// parked. `held_up`: something is to follow as soon as it comes.
    pub fn command(&mut self, held_up: impl FnOnce() -> bool, patient: impl FnOnce() -> bool) -> bool {
        let Some(linger) = &mut self.linger else { return false };
        if held_up() {
            return true;
        }
        if patient() {
            return false;
        }
        linger.commands += 1;
        linger.commands > COMMANDS_MAX
    }

    /// A caller begins to poll; whether brokers may have been asked to notify, and are told that they need not.
    pub fn caller_begins(&mut self) -> bool {
        self.callers += 1;
        self.callers == 1 && self.linger.take().is_none()
    }

    /// A caller polls no more; whether nobody does now, so that links are to be parked. `lingers`: it has found what it
    /// waited for, and nothing is to follow.
    pub fn caller_ends(&mut self, lingers: bool, now_ms: impl FnOnce() -> u64) -> bool {
        self.callers = self.callers.saturating_sub(1);
        if self.callers > 0 {
            return false;
        }
        if lingers {
            self.linger(now_ms());
        }
        !lingers
    }

    /// A caller sleeps until it is told; whether links are to be parked for it.
    #[must_use]
    pub fn caller_sleeps(&self) -> bool {
        self.linger.is_some() && self.callers == 0
    }

    /// Nobody is going to come back soon.
    pub fn end_linger(&mut self) {
        self.linger = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer that is not asked for.
    fn never() -> bool {
        unreachable!("not asked")
    }

    fn parks(parking: &mut Parking, now_ms: u64, patient: bool) -> bool {
        parking.before_sleep(true, || now_ms, || patient) == BeforeSleep::Park
    }

    #[test]
    fn a_broker_polls_for_as_long_as_something_comes() {
        let mut polling = BrokerPolling::new(50);
        let mut round = polling.begin(1000);
        assert_eq!(polling.goes_on(&mut round, false, 1000), Next::End, "nothing came for long");
        let mut round = polling.begin(1000);
        assert_eq!(polling.goes_on(&mut round, true, 1000), Next::Poll);
        for _ in 1..IDLE_TURNS_MAX {
            assert_eq!(polling.goes_on(&mut round, false, 1001), Next::Yield);
        }
        assert_eq!(polling.goes_on(&mut round, false, 1001), Next::End, "sockets have their turn");
        assert!(polling.end(&round, 1010));
        assert!(polling.is_stirred(1059) && !polling.is_stirred(1060));
        let mut round = polling.begin(1020);
        assert_eq!(polling.goes_on(&mut round, false, 1059), Next::Yield);
        assert_eq!(polling.goes_on(&mut round, false, 1060), Next::End);
        assert!(!polling.end(&round, 1060));
    }

    #[test]
    fn a_broker_whose_clients_never_stop_sees_to_its_sockets() {
        let polling = BrokerPolling::new(50);
        let mut round = polling.begin(0);
        let polls = (1..1000).find(|_| polling.goes_on(&mut round, true, 0) == Next::End);
        assert_eq!(polls, Some(TURNS_MAX));
        let mut round = polling.begin(0);
        assert_eq!(polling.goes_on(&mut round, true, TURNS_US_MAX), Next::Poll);
        assert_eq!(polling.goes_on(&mut round, true, TURNS_US_MAX + 1), Next::End);
    }

    #[test]
    fn a_broker_that_is_not_to_spin_sleeps_at_once() {
        let mut polling = BrokerPolling::new(0);
        polling.stir(7);
        assert!(!polling.is_stirred(7));
    }

    #[test]
    fn a_caller_polls_for_a_while_since_something_came() {
        let mut polling = CallerPolling::new(50, 100);
        assert_eq!(polling.goes_on(false, 149), Next::Yield);
        assert_eq!(polling.goes_on(true, 149), Next::Poll);
        assert_eq!(polling.goes_on(false, 198), Next::Yield);
        assert_eq!(polling.goes_on(false, 199), Next::End);
    }

    #[test]
    fn links_are_parked_when_nobody_polls() {
        let mut parking = Parking::default();
        assert_eq!(parking.before_sleep(false, || 0, never), BeforeSleep::Sleep, "there are none");
        assert!(parks(&mut parking, 0, true), "nothing has come");
        assert!(parking.caller_begins(), "brokers notify, and need not");
        assert!(!parking.caller_begins());
        assert!(!parks(&mut parking, 0, false), "callers poll");
        assert!(!parking.caller_ends(false, || 0), "one still does");
        assert!(parking.caller_ends(false, || 0));
        assert!(parks(&mut parking, 0, false));
    }

    #[test]
    fn a_caller_that_found_what_it_waited_for_is_expected_again() {
        let mut parking = Parking::default();
        parking.caller_begins();
        assert!(!parking.caller_ends(true, || 10));
        assert_eq!(parking.linger_until(), Some(10 + LINGER_MS));
        assert!(!parks(&mut parking, 11, false), "the thread looks by itself");
        assert!(!parking.caller_begins(), "nobody was asked to notify");
        assert_eq!(parking.linger_until(), None);
        parking.caller_ends(true, || 20);
        assert!(parks(&mut parking, 20 + LINGER_MS, false), "it has not come");
        assert_eq!(parking.linger_until(), None);
    }

    #[test]
    fn who_sends_and_does_not_poll_has_brokers_notify() {
        let mut parking = Parking::default();
        assert!(!parking.command(never, never), "they do already");
        parking.caller_begins();
        parking.caller_ends(true, || 0);
        assert!(!parking.command(|| false, || false) && !parking.command(|| false, || false));
        assert!(parking.command(|| false, || false), "the third without a look");
        assert!(parking.command(|| true, never), "something is to follow what comes");
        assert!(!parking.command(|| false, || true), "nobody waits for it");
    }

    #[test]
    fn a_caller_that_goes_to_sleep_has_brokers_notify() {
        let mut parking = Parking::default();
        assert!(!parking.caller_sleeps(), "they do already");
        parking.caller_begins();
        parking.caller_begins();
        parking.caller_ends(true, || 0);
        assert!(!parking.caller_sleeps(), "another one polls");
        parking.caller_ends(true, || 0);
        assert!(parking.caller_sleeps());
        parking.end_linger();
        assert!(parks(&mut parking, 0, false));
    }

    #[test]
    fn what_nobody_waits_for_is_looked_at_in_a_while_as_long_as_it_comes() {
        let mut parking = Parking::default();
        parking.looked(true);
        assert!(!parks(&mut parking, 5, true));
        assert_eq!(parking.linger_until(), Some(5 + LINGER_MS));
        assert!(!parks(&mut parking, 6, true));
        parking.looked(false);
        assert!(parks(&mut parking, 5 + LINGER_MS, true), "nothing has come since");
        parking.looked(true);
        assert!(parks(&mut parking, 20, false), "somebody waits");
    }
}
