//! Making topics in turns.

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
const PARTITIONS_PER_TURN: usize = 32;
/// Topics that one write of the state file stands for.
const TOPICS_PER_WRITE: usize = 32;

/// A topic to be made.
pub(super) struct Wish {
    pub(super) name: String,
    pub(super) id: Uuid,
    pub(super) partitions: i32,
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
    leaving: Vec<Removing>,
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
        let why = format!("topic {name} cannot be made: {error}");
        self.refused.insert(name.to_owned(), (ErrorCode::KAFKA_STORAGE_ERROR, why));
    }

    /// Begins with the next wish; whether there is one that can be begun now.
    fn start(&mut self, broker: &mut Broker<D>) -> bool {
        let Some(wish) = self.wishes.front() else { return false };
        // Another request is at it: its outcome is awaited.
        if broker.store.is_busy(&wish.name) {
            return false;
        }
        let Some(wish) = self.wishes.pop_front() else { return false };
        match broker.check_new_name(&wish.name) {
            Ok(()) => {
                let making = broker.store.start_topic(&wish.name, wish.id, wish.partitions, BTreeMap::new());
                self.made.push(making);
            }
            // Another request was faster: it is there.
            Err((ErrorCode::TOPIC_ALREADY_EXISTS, _)) => {}
            Err(refusal) => drop(self.refused.insert(wish.name, refusal)),
        }
        true
    }

    /// Makes a turn's worth of partitions; whether the state file is to be written.
    fn make(&mut self, broker: &mut Broker<D>) -> bool {
        let mut left = PARTITIONS_PER_TURN;
        while left > 0 {
            let unfinished = self.made.last_mut().filter(|making| making.left() > 0);
            let Some(making) = unfinished else {
                if self.made.len() >= TOPICS_PER_WRITE || !self.start(broker) {
                    return true;
                }
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
        if let Err(error) = broker.store.finish(&mut made) {
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
