//! Making, extending and removing topics in turns.

use std::collections::{BTreeMap, VecDeque};

use headrace_log::{Disk, LogError};
use headrace_wire::errors::ErrorCode;
use headrace_wire::uuid::Uuid;

use super::topics::Refusal;
use crate::broker::Broker;
use crate::call::Call;
use crate::store::{Making, Removing};
use crate::turns::{Task, Turn};

/// Partitions whose files are made or removed in one turn.
pub(super) const PARTITIONS_PER_TURN: usize = 32;
/// Topics that one write of the state file stands for.
const TOPICS_PER_WRITE: usize = 32;

/// A topic to be made, or to get partitions.
pub(super) struct Wish {
    pub(super) name: String,
    pub(super) what: What,
    /// How many partitions it is to have.
    pub(super) partitions: i32,
}

/// What is to become of a topic.
pub(super) enum What {
    /// It is made, under this id and with these settings. Where `or_there` says so it may be there already.
    New { id: Uuid, overrides: BTreeMap<String, String>, or_there: bool },
    /// It gets partitions.
    Extended,
}

/// By name, why topics could not be made.
pub(super) type Refused = BTreeMap<String, Refusal>;

/// Answers a request when all of its topics are there: by name, why one is not.
pub(super) type Finish<D, A> = fn(&mut Broker<D>, &Call, A, Refused);

/// Makes topics, a few partitions in each turn. Once begun it goes on without its client: what is made is not left half made.
pub(super) struct Make<D: Disk, A> {
    wishes: VecDeque<Wish>,
    /// Made in part, or in whole and not in the state file yet.
    made: Vec<Making<D>>,
    leaving: Vec<Removing<D>>,
    refused: Refused,
    answer: Option<A>,
    finish: Finish<D, A>,
}

impl<D: Disk, A: Send + 'static> Make<D, A> {
    pub(super) fn new(wishes: Vec<Wish>, answer: A, finish: Finish<D, A>) -> Self {
        Self {
            wishes: wishes.into(),
            made: Vec::new(),
            leaving: Vec::new(),
            refused: BTreeMap::new(),
            answer: Some(answer),
            finish,
        }
    }

    fn refuse(&mut self, name: &str, error: &LogError) {
        let why = format!("topic {name} cannot be made or extended: {error}");
        self.refused.insert(name.to_owned(), (ErrorCode::KAFKA_STORAGE_ERROR, why));
    }

    /// Begins with the next wish; whether there is one that can be begun now.
    fn start(&mut self, broker: &mut Broker<D>) -> bool {
        let Some(wish) = self.wishes.front() else { return false };
        // Another request is at it: its outcome is awaited.
        if broker.store.is_busy(&wish.name) {
            return false;
        }
        let Some(Wish { name, what, partitions }) = self.wishes.pop_front() else { return false };
        let begun = match what {
            What::New { id, overrides, or_there } => match broker.check_new_name(&name) {
                Ok(()) => Ok(Some(broker.store.start_topic(&name, id, partitions, overrides))),
                // Another request was faster: it is there.
                Err((ErrorCode::TOPIC_ALREADY_EXISTS, _)) if or_there => Ok(None),
                Err(refusal) => Err(refusal),
            },
            // Another request may have been faster.
            What::Extended => broker
                .check_more_partitions(&name, partitions)
                .map(|()| broker.store.start_partitions(&name, partitions)),
        };
        match begun {
            Ok(making) => self.made.extend(making),
            Err(refusal) => drop(self.refused.insert(name, refusal)),
        }
        true
    }

    /// Makes a turn's worth of partitions; whether the state file is to be written.
    fn make(&mut self, broker: &mut Broker<D>) -> bool {
        let mut left = PARTITIONS_PER_TURN;
        while left > 0 {
            let unfinished = self.made.last_mut().filter(|making| making.left() > 0);
            let Some(making) = unfinished else {
                let begun = self.made.len();
                if begun >= TOPICS_PER_WRITE || !self.start(broker) {
                    return true;
                }
                // To refuse one has its price too.
                left -= usize::from(self.made.len() == begun);
                continue;
            };
            let before = making.left();
            if let Err(error) = broker.store.make_some(&broker.config, making, left, broker.now) {
                let name = making.name.clone();
                if let Some(making) = self.made.pop() {
                    self.leaving.push(broker.store.give_up(making));
                }
                self.refuse(&name, &error);
                return false;
            }
            left -= before - making.left();
        }
        self.made.last().is_none_or(|making| making.left() == 0)
    }

    fn write(&mut self, broker: &mut Broker<D>) {
        let mut made = std::mem::take(&mut self.made);
        if made.is_empty() {
            return;
        }
        if let Err(error) = broker.store.finish(&broker.config, &mut made) {
            for making in made {
                self.refuse(&making.name, &error);
                self.leaving.push(broker.store.give_up(making));
            }
        }
    }
}

impl<D: Disk, A: Send + 'static> Task<D> for Make<D, A> {
    fn turn(&mut self, broker: &mut Broker<D>, call: &Call) -> Turn {
        if let Some(removing) = self.leaving.last_mut() {
            if !broker.store.remove_some(removing, PARTITIONS_PER_TURN) {
                self.leaving.pop();
            }
            return Turn::More;
        }
        if self.make(broker) {
            self.write(broker);
        }
        if self.leaving.is_empty() && self.made.is_empty() && self.wishes.is_empty() {
            if let Some(answer) = self.answer.take() {
                (self.finish)(broker, call, answer, std::mem::take(&mut self.refused));
            }
            return Turn::Done;
        }
        Turn::More
    }

    fn outlives_client(&self) -> bool {
        true
    }

    fn abandon(&mut self, broker: &mut Broker<D>) {
        let made = std::mem::take(&mut self.made);
        self.leaving.extend(made.into_iter().map(|making| broker.store.give_up(making)));
        for removing in &mut self.leaving {
            broker.store.remove_some(removing, usize::MAX);
        }
    }
}
