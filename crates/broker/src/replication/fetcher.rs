//! One follower's requests to one leader: Fetch, one at a time, with a session (KIP-227) and the epochs by which logs that part
//! are found out (KIP-595).

use std::collections::BTreeMap;

use bytes::Bytes;
use headrace_cluster::model::Registration;
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame;
use headrace_wire::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic, ReplicaState};
use headrace_wire::messages::fetch_response::PartitionData;
use headrace_wire::messages::{FetchRequest, FetchResponse};
use headrace_wire::primitive::Encoded;

use crate::config::BrokerConfig;
use crate::context::cluster::Endpoint;
use crate::store::Place;

/// The version of Fetch between brokers.
const FETCH_VERSION: i16 = 17;
/// What leaders know followers by.
const CLIENT_ID: &str = "headrace-replica";
/// After a failure a leader is asked again after so long.
const RETRY_MS: u64 = 100;
/// Copies that are to be asked for within so long are asked for together: each time cuts short a wait for records of others.
const TOGETHER_MS: u64 = 10;
/// A copy that cannot be written or read here is asked for again after so long: what was read for it was dropped.
const FAILED_MS: u64 = 1_000;
/// A leader that may not know yet that it leads is asked again after so long, and each time after twice as long, up to that.
const SOON_MS: u64 = 10;
/// An answer takes so much longer than it may wait for records, at most.
const ANSWER_MS: u64 = 30_000;

/// What is asked of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    /// The epoch in which it is led.
    pub(super) epoch: i32,
    /// The end of the own log, and its start.
    pub(super) end: i64,
    pub(super) start: i64,
    /// The epoch of the last batch; -1: there is none.
    pub(super) last_epoch: i32,
    /// In this epoch the log was found to be as the leader's. Where it was not yet, the partition is named, and so answered.
    pub(super) agrees: bool,
}

/// An answer about one partition.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) place: Place,
    pub(super) asked: Asked,
    pub(super) data: PartitionData,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// It is made at this time.
    Closed(u64),
    Connecting,
    Open,
}

#[derive(Debug)]
struct InFlight {
    correlation_id: i32,
    asked: BTreeMap<Place, Asked>,
    deadline: u64,
}

/// What is to be done about the connection to a leader.
#[derive(Debug)]
pub(super) enum Wish {
    Connect(Endpoint),
    Send(Encoded),
    Close,
}

/// The requests to one leader.
#[derive(Debug)]
pub(super) struct Fetcher {
    /// Under which registration it leads: with another it is another process.
    pub(super) leader: Registration,
    at: Endpoint,
    link: Link,
    last_correlation_id: i32,
    in_flight: Option<InFlight>,
    /// The id of the session, and the epoch of its next request.
    session: (i32, i32),
    /// What the session has.
    known: BTreeMap<Place, Asked>,
    /// What is copied from the leader; the time: not before then.
    pub(super) places: BTreeMap<Place, u64>,
    /// How often the leader has refused a copy since it was given some of it.
    refusals: BTreeMap<Place, u32>,
}

impl Fetcher {
    pub(super) fn new(leader: Registration, at: Endpoint) -> Self {
        Self {
            leader,
            at,
            link: Link::Closed(0),
            last_correlation_id: 0,
            in_flight: None,
            session: (0, 0),
            known: BTreeMap::new(),
            places: BTreeMap::new(),
            refusals: BTreeMap::new(),
        }
    }

    pub(super) fn opened(&mut self) {
        self.link = Link::Open;
    }

    pub(super) fn closed(&mut self, now_ms: u64) {
        self.link = Link::Closed(now_ms.saturating_add(RETRY_MS));
        self.in_flight = None;
        self.forget_session();
    }

    /// Something is wrong with the copy: it is not asked for again before a while.
    pub(super) fn failed(&mut self, place: Place, now_ms: u64) {
        self.pause_until(place, now_ms.saturating_add(FAILED_MS));
    }

    /// The leader has another view of the cluster than this broker: it is asked again soon, and later if that goes on.
    pub(super) fn refused(&mut self, place: Place, now_ms: u64) {
        // Its topic may be gone.
        if !self.places.contains_key(&place) {
            return;
        }
        let times = self.refusals.entry(place).or_insert(0);
        let wait_ms = (SOON_MS << (*times).min(8)).min(RETRY_MS);
        *times = times.saturating_add(1);
        self.pause_until(place, now_ms.saturating_add(wait_ms));
    }

    /// It has answered what was asked of a partition.
    pub(super) fn agreed(&mut self, place: Place) {
        self.refusals.remove(&place);
    }

    /// A partition is copied from it no longer.
    pub(super) fn forget(&mut self, place: Place) {
        self.places.remove(&place);
        self.refusals.remove(&place);
    }

    /// A partition is not asked for again before this time.
    pub(super) fn pause_until(&mut self, place: Place, time_ms: u64) {
        if let Some(until) = self.places.get_mut(&place) {
            *until = time_ms.checked_next_multiple_of(TOGETHER_MS).unwrap_or(time_ms);
        }
    }

    fn pause_all(&mut self, now_ms: u64) {
        for until in self.places.values_mut() {
            *until = now_ms.saturating_add(RETRY_MS);
        }
    }

    fn forget_session(&mut self) {
        self.session = (0, 0);
        self.known.clear();
    }

    /// When [`Self::next`] has something to say, if nothing else happens.
    pub(super) fn due(&self, now_ms: u64) -> Option<u64> {
        match (self.link, &self.in_flight) {
            _ if self.places.is_empty() => None,
            (Link::Closed(at), _) => Some(at),
            (Link::Connecting, _) => None,
            (Link::Open, Some(in_flight)) => Some(in_flight.deadline),
            (Link::Open, None) => self.places.values().filter(|until| **until > now_ms).min().copied(),
        }
    }

    /// What is to be done next; `look` says what is to be asked of a partition.
    pub(super) fn next(
        &mut self,
        own: Registration,
        config: &BrokerConfig,
        now_ms: u64,
        look: impl Fn(Place) -> Option<Asked>,
    ) -> Option<Wish> {
        match self.link {
            Link::Closed(at) if at <= now_ms && !self.places.is_empty() => {
                self.link = Link::Connecting;
                Some(Wish::Connect(self.at.clone()))
            }
            Link::Open if self.in_flight.as_ref().is_some_and(|one| one.deadline <= now_ms) => {
                self.closed(now_ms);
                Some(Wish::Close)
            }
            Link::Open if self.in_flight.is_none() => self.ask(own, config, now_ms, look).map(Wish::Send),
            _ => None,
        }
    }

    fn ask(
        &mut self,
        own: Registration,
        config: &BrokerConfig,
        now_ms: u64,
        look: impl Fn(Place) -> Option<Asked>,
    ) -> Option<Encoded> {
        let due = self.places.iter().filter(|(_, until)| **until <= now_ms);
        let asked: BTreeMap<Place, Asked> =
            due.filter_map(|(place, _)| Some((*place, look(*place)?))).collect();
        if asked.is_empty() {
            return None;
        }
        // Those that are to wait a moment do not wait for records of the others.
        let later = self.places.values().filter(|until| **until > now_ms).min();
        let most_ms = u64::try_from(config.replica_fetch_wait_max_ms).unwrap_or(0);
        let wait_ms = later.map_or(most_ms, |until| most_ms.min(until - now_ms));
        let is_news = |(place, one): &(&Place, &Asked)| self.known.get(place) != Some(*one);
        let mut request = FetchRequest {
            replica_state: ReplicaState { replica_id: own.0, replica_epoch: own.1 },
            max_wait_ms: i32::try_from(wait_ms).unwrap_or(i32::MAX),
            min_bytes: 1,
            max_bytes: config.replica_fetch_response_max_bytes,
            session_id: self.session.0,
            session_epoch: self.session.1,
            ..FetchRequest::default()
        };
        for (place, one) in asked.iter().filter(is_news) {
            if request.topics.last().is_none_or(|topic| topic.topic_id != place.0) {
                request.topics.push(FetchTopic { topic_id: place.0, ..FetchTopic::default() });
            }
            let partition = FetchPartition {
                partition: place.1,
                current_leader_epoch: one.epoch,
                fetch_offset: one.end,
                last_fetched_epoch: one.last_epoch,
                log_start_offset: one.start,
                partition_max_bytes: config.replica_fetch_max_bytes,
                ..FetchPartition::default()
            };
            request.topics.last_mut()?.partitions.push(partition);
        }
        for place in self.known.keys().filter(|place| !asked.contains_key(place)) {
            let forgotten = &mut request.forgotten_topics_data;
            if forgotten.last().is_none_or(|topic| topic.topic_id != place.0) {
                forgotten.push(ForgottenTopic { topic_id: place.0, ..ForgottenTopic::default() });
            }
            forgotten.last_mut()?.partitions.push(place.1);
        }
        self.last_correlation_id = self.last_correlation_id.wrapping_add(1);
        let id = self.last_correlation_id;
        let frame = frame::encode_request(FETCH_VERSION, id, Some(CLIENT_ID), &request).ok()?;
        let deadline = now_ms.saturating_add(wait_ms).saturating_add(ANSWER_MS);
        self.known.clone_from(&asked);
        self.in_flight = Some(InFlight { correlation_id: id, asked, deadline });
        Some(frame)
    }

    /// The leader has answered: what it says of each partition.
    ///
    /// # Errors
    /// The answer is none to what was asked; the connection is to be closed.
    pub(super) fn answered(&mut self, answer: Bytes, now_ms: u64) -> Result<Vec<Fetched>, String> {
        let (id, answer) = frame::decode_response::<FetchRequest>(FETCH_VERSION, answer)
            .map_err(|error| format!("its answer cannot be read: {error}"))?;
        let in_flight = self.in_flight.take().filter(|one| one.correlation_id == id);
        let InFlight { asked, .. } = in_flight.ok_or("it has answered what was not asked")?;
        let FetchResponse { error_code, session_id, responses, .. } = answer;
        match ErrorCode::new(error_code) {
            ErrorCode::NONE => {}
            ErrorCode::FETCH_SESSION_ID_NOT_FOUND | ErrorCode::INVALID_FETCH_SESSION_EPOCH => {
                // Where none was named, it will hardly say anything else the next moment.
                if self.session == (0, 0) {
                    self.pause_all(now_ms);
                }
                self.forget_session();
                return Ok(Vec::new());
            }
            // It has not heard of this registration yet.
            ErrorCode::STALE_BROKER_EPOCH => {
                self.forget_session();
                self.pause_all(now_ms);
                return Ok(Vec::new());
            }
            error => return Err(format!("it refuses to be copied: {error}")),
        }
        let next = if session_id == 0 { 0 } else { self.session.1.checked_add(1).unwrap_or(1) };
        self.session = (session_id, next);
        if session_id == 0 {
            self.known.clear();
        }
        let mut fetched = Vec::new();
        for topic in responses {
            for data in topic.partitions {
                let place = (topic.topic_id, data.partition_index);
                if let Some(asked) = asked.get(&place).copied() {
                    fetched.push(Fetched { place, asked, data });
                }
            }
        }
        Ok(fetched)
    }
}

#[cfg(test)]
mod tests {
    use headrace_wire::messages::Message;
    use headrace_wire::primitive::Reader;
    use headrace_wire::uuid::Uuid;

    use super::*;

    #[test]
    fn a_leader_that_refuses_is_asked_again_soon_and_then_less_often() {
        let at = Endpoint { host: "l".to_owned(), port: 1, rack: None };
        let mut fetcher = Fetcher::new(Registration(2, 12), at);
        let place = (Uuid::ZERO, 0);
        fetcher.places.insert(place, 0);
        fetcher.opened();
        let refused = |fetcher: &mut Fetcher| {
            fetcher.refused(place, 1000);
            fetcher.due(1000).unwrap() - 1000
        };
        assert_eq!([0; 6].map(|_| refused(&mut fetcher)), [10, 20, 40, 80, 100, 100]);
        fetcher.agreed(place);
        assert_eq!(refused(&mut fetcher), 10);
        fetcher.forget(place);
        fetcher.refused(place, 1000);
        assert_eq!(
            (fetcher.due(1000), fetcher.refusals.len()),
            (None, 0),
            "what is copied no longer is not counted"
        );
    }

    #[test]
    fn records_of_some_are_not_waited_for_while_another_is_to_be_asked_for() {
        let at = Endpoint { host: "l".to_owned(), port: 1, rack: None };
        let config = BrokerConfig::from_pairs([("log.dir", "/data")]).unwrap();
        let wait_ms = |until| {
            let mut fetcher = Fetcher::new(Registration(2, 12), at.clone());
            fetcher.places = BTreeMap::from([((Uuid::ZERO, 0), 0), ((Uuid::ZERO, 1), until)]);
            let asked = Asked { epoch: 0, end: 0, start: 0, last_epoch: -1, agrees: true };
            let frame = fetcher.ask(Registration(1, 11), &config, 1000, |_| Some(asked)).unwrap();
            let bytes = frame.to_bytes().unwrap().slice(4..);
            let mut reader = Reader::new(bytes);
            frame::decode_request_header(&mut reader).unwrap();
            FetchRequest::decode(FETCH_VERSION, &mut reader).unwrap().max_wait_ms
        };
        assert_eq!((wait_ms(0), wait_ms(1010), wait_ms(9000)), (500, 10, 500));
    }

    #[test]
    fn copies_that_wait_are_asked_for_together() {
        let at = Endpoint { host: "l".to_owned(), port: 1, rack: None };
        let mut fetcher = Fetcher::new(Registration(2, 12), at);
        fetcher.places = BTreeMap::from([((Uuid::ZERO, 0), 0), ((Uuid::ZERO, 1), 0)]);
        fetcher.refused((Uuid::ZERO, 0), 1001);
        fetcher.refused((Uuid::ZERO, 1), 1007);
        assert_eq!(fetcher.places.values().copied().collect::<Vec<_>>(), [1020, 1020]);
    }

    #[test]
    fn a_leader_that_denies_a_session_that_was_not_named_is_asked_again_in_a_while() {
        let at = Endpoint { host: "l".to_owned(), port: 1, rack: None };
        let config = BrokerConfig::from_pairs([("log.dir", "/data")]).unwrap();
        let place = (Uuid::ZERO, 0);
        let asked = Asked { epoch: 0, end: 0, start: 0, last_epoch: -1, agrees: true };
        let mut fetcher = Fetcher::new(Registration(2, 12), at);
        fetcher.places.insert(place, 0);
        fetcher.opened();
        let answer = |fetcher: &mut Fetcher, error, session_id| {
            fetcher.ask(Registration(1, 11), &config, 1000, |_| Some(asked)).expect("it asks at once");
            let answer = FetchResponse { error_code: error, session_id, ..FetchResponse::default() };
            let id = fetcher.last_correlation_id;
            let frame = frame::encode_response::<FetchRequest>(FETCH_VERSION, id, &answer).unwrap();
            fetcher.answered(frame.to_bytes().unwrap().slice(4..), 1000).unwrap();
            fetcher.places[&place]
        };
        let gone = ErrorCode::FETCH_SESSION_ID_NOT_FOUND.code();
        assert_eq!(answer(&mut fetcher, 0, 7), 0);
        assert_eq!(answer(&mut fetcher, gone, 0), 0, "the session has ended, and is made anew at once");
        assert_eq!(answer(&mut fetcher, gone, 0), 1100);
    }
}
