//! What is reported to the thread that polls between rows: rebalances, and the ends of commits that nobody waits for.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use headrace_client::consumer::{Rebalance, TopicPartition};
use headrace_client::error::Error;

/// What is to be reported.
#[derive(Debug, PartialEq, Eq)]
pub enum Notice {
    /// A rebalance: say [`listener_called`](super::ConsumerClient::listener_called) when the listener was called.
    Rebalance {
        /// Names it.
        number: u64,
        /// What happens to the partitions.
        news: Rebalance,
        /// Which; at least one.
        partitions: Vec<TopicPartition>,
    },
    /// A commit of [`commit_async`](super::ConsumerClient::commit_async) has ended.
    Committed {
        /// The number that call gave.
        op: u64,
        /// How.
        result: Result<(), Error>,
    },
}

/// The queue of them. Each partition is reported as given once and as taken once: one that was lost before the listener
/// heard of it is not reported at all, and one that was reported as revoked is not lost on top.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    state: Mutex<State>,
    /// Something is in the queue: so that a poll need not lock.
    pending: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Notice>,
    /// There is a listener. Without one nobody takes notices of rebalances, and a poll would wait for them for ever.
    listening: bool,
    /// What the listener has given back, and has not been given again.
    gone: BTreeSet<TopicPartition>,
    /// Commits in the order of their calls.
    commits: VecDeque<u64>,
    ended: HashMap<u64, Result<(), Error>>,
    /// The engine is gone.
    over: bool,
}

impl Notices {
    /// A listener is there from now on, or none any more: then what was to be reported to it is dropped.
    pub(crate) fn listen(&self, on: bool) {
        let mut state = self.lock();
        state.listening = on;
        if !on {
            state.gone.clear();
            state.queue.retain(|notice| matches!(notice, Notice::Committed { .. }));
        }
        self.note(&state);
    }

    /// A commit is about to be sent, which is to be notified of in this place of the order.
    pub(crate) fn await_commit(&self, op: u64) {
        let mut state = self.lock();
        if state.over {
            state.queue.push_back(Notice::Committed { op, result: Err(Error::Closed) });
            self.note(&state);
        } else {
            state.commits.push_back(op);
        }
    }

    /// A command has ended. `false` when it is no commit of here.
    pub(crate) fn commit_ended(&self, op: u64, result: Result<(), Error>) -> bool {
        let mut state = self.lock();
        if !state.commits.contains(&op) {
            return false;
        }
        state.ended.insert(op, result);
        while let Some(&op) = state.commits.front()
            && let Some(result) = state.ended.remove(&op)
        {
            state.commits.pop_front();
            state.queue.push_back(Notice::Committed { op, result });
        }
        self.note(&state);
        true
    }

    /// The engine is gone: commits that have not ended have failed.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.over = true;
        while let Some(op) = state.commits.pop_front() {
            let result = state.ended.remove(&op).unwrap_or(Err(Error::Closed));
            state.queue.push_back(Notice::Committed { op, result });
        }
        self.note(&state);
    }

    /// The engine has news of the group.
    pub(crate) fn rebalance(&self, number: u64, news: Rebalance, partitions: Vec<TopicPartition>) {
        let mut state = self.lock();
        if !state.listening {
            return;
        }
        if news == Rebalance::Lost {
            state.forget(&partitions.iter().collect());
        }
        state.queue.push_back(Notice::Rebalance { number, news, partitions });
        self.note(&state);
    }

    /// Whether there is something to tell.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// The next notice.
    pub(crate) fn take(&self) -> Option<Notice> {
        let mut state = self.lock();
        let next = loop {
            let Some(mut next) = state.queue.pop_front() else { break None };
            if let Notice::Rebalance { news, partitions, .. } = &mut next {
                match news {
                    Rebalance::Assigned => {
                        for partition in partitions.iter() {
                            state.gone.remove(partition);
                        }
                    }
                    Rebalance::Revoked => state.gone.extend(partitions.iter().cloned()),
                    Rebalance::Lost => partitions.retain(|partition| state.gone.insert(partition.clone())),
                }
                if partitions.is_empty() {
                    continue;
                }
            }
            break Some(next);
        };
        self.note(&state);
        next
    }

    /// The next commit that has ended, also when a rebalance is to be told before it.
    pub(crate) fn take_committed(&self) -> Option<(u64, Result<(), Error>)> {
        let mut state = self.lock();
        let at = state.queue.iter().position(|notice| matches!(notice, Notice::Committed { .. }))?;
        let Some(Notice::Committed { op, result }) = state.queue.remove(at) else { return None };
        self.note(&state);
        Some((op, result))
    }

    /// All that is assigned goes back now. What of it the listener believes to have: who calls this tells it. Open news
    /// are moot.
    pub(crate) fn take_back(&self, mut assigned: Vec<TopicPartition>) -> Vec<TopicPartition> {
        let mut state = self.lock();
        assigned.retain(|partition| state.gone.insert(partition.clone()));
        for notice in std::mem::take(&mut state.queue) {
            match notice {
                Notice::Rebalance { news: Rebalance::Assigned, partitions, .. } => {
                    let untold: BTreeSet<_> = partitions.into_iter().collect();
                    assigned.retain(|partition| !untold.contains(partition));
                }
                Notice::Rebalance { .. } => {}
                committed @ Notice::Committed { .. } => state.queue.push_back(committed),
            }
        }
        self.note(&state);
        assigned
    }

    fn note(&self, state: &State) {
        self.pending.store(!state.queue.is_empty(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// These are lost: what was still to be notified of them is moot. Who waited for it does not wait any more.
    fn forget(&mut self, lost: &BTreeSet<&TopicPartition>) {
        let mut seen = BTreeSet::new();
        for notice in &mut self.queue {
            let Notice::Rebalance { news, partitions, .. } = notice else { continue };
            partitions.retain(|partition| {
                let stays = !lost.contains(partition);
                // What is first is that it was given, to somebody who has not heard of it.
                if !stays && seen.insert(partition.clone()) && *news == Rebalance::Assigned {
                    self.gone.insert(partition.clone());
                }
                stays
            });
        }
        let moot =
            |notice: &Notice| matches!(notice, Notice::Rebalance { partitions, .. } if partitions.is_empty());
        self.queue.retain(|notice| !moot(notice));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tps(partitions: &[i32]) -> Vec<TopicPartition> {
        partitions.iter().map(|p| TopicPartition::new("t", *p)).collect()
    }

    fn news(number: u64, news: Rebalance, partitions: &[i32]) -> Notice {
        Notice::Rebalance { number, news, partitions: tps(partitions) }
    }

    fn listening() -> Notices {
        let notices = Notices::default();
        notices.listen(true);
        notices
    }

    #[test]
    fn commits_are_told_in_the_order_of_their_calls() {
        let notices = Notices::default();
        for op in 1..=3 {
            notices.await_commit(op);
        }
        assert!(notices.commit_ended(2, Err(Error::Closed)) && !notices.is_pending());
        assert!(!notices.commit_ended(9, Ok(())), "not one of here");
        assert!(notices.commit_ended(1, Ok(())) && notices.is_pending());
        assert_eq!(notices.take(), Some(Notice::Committed { op: 1, result: Ok(()) }));
        assert_eq!(notices.take(), Some(Notice::Committed { op: 2, result: Err(Error::Closed) }));
        assert!(notices.take().is_none() && !notices.is_pending());
        notices.end();
        assert_eq!(notices.take(), Some(Notice::Committed { op: 3, result: Err(Error::Closed) }));
        notices.await_commit(4);
        assert_eq!(notices.take(), Some(Notice::Committed { op: 4, result: Err(Error::Closed) }));
    }

    #[test]
    fn a_partition_is_told_as_given_once_and_as_taken_once() {
        let notices = listening();
        notices.rebalance(1, Rebalance::Assigned, tps(&[0, 1]));
        assert_eq!(notices.take(), Some(news(1, Rebalance::Assigned, &[0, 1])));
        notices.rebalance(2, Rebalance::Revoked, tps(&[0]));
        assert_eq!(notices.take(), Some(news(2, Rebalance::Revoked, &[0])));
        notices.rebalance(3, Rebalance::Lost, tps(&[0, 1]));
        assert_eq!(notices.take(), Some(news(3, Rebalance::Lost, &[1])), "0 was told as revoked");
        notices.rebalance(4, Rebalance::Assigned, tps(&[5]));
        notices.rebalance(5, Rebalance::Lost, tps(&[5]));
        assert_eq!(notices.take(), None, "it never heard of 5");
        assert!(!notices.is_pending());
    }

    #[test]
    fn what_was_to_be_revoked_and_is_lost_is_told_as_lost() {
        let notices = listening();
        notices.rebalance(1, Rebalance::Assigned, tps(&[0]));
        notices.take();
        notices.rebalance(2, Rebalance::Revoked, tps(&[0]));
        notices.rebalance(3, Rebalance::Lost, tps(&[0]));
        assert_eq!(notices.take(), Some(news(3, Rebalance::Lost, &[0])));
        assert_eq!(notices.take(), None);
    }

    #[test]
    fn who_leaves_gets_back_what_was_told_and_nothing_else() {
        let notices = listening();
        notices.rebalance(1, Rebalance::Assigned, tps(&[0, 1]));
        notices.take();
        notices.rebalance(2, Rebalance::Revoked, tps(&[3]));
        notices.take();
        notices.rebalance(4, Rebalance::Assigned, tps(&[2]));
        notices.await_commit(7);
        notices.commit_ended(7, Ok(()));
        assert_eq!(notices.take_back(tps(&[0, 1, 2, 3])), tps(&[0, 1]));
        assert_eq!(notices.take(), Some(Notice::Committed { op: 7, result: Ok(()) }));
        assert_eq!(notices.take(), None);
    }

    #[test]
    fn without_a_listener_nothing_stands_before_rows() {
        let notices = listening();
        notices.rebalance(1, Rebalance::Assigned, tps(&[0]));
        notices.await_commit(7);
        notices.listen(false);
        assert!(!notices.is_pending());
        // The engine has said this before it heard of it.
        notices.rebalance(2, Rebalance::Lost, tps(&[0]));
        assert!(!notices.is_pending());
        notices.commit_ended(7, Ok(()));
        assert_eq!(notices.take(), Some(Notice::Committed { op: 7, result: Ok(()) }));
        notices.listen(true);
        notices.rebalance(3, Rebalance::Assigned, tps(&[0]));
        assert_eq!(notices.take(), Some(news(3, Rebalance::Assigned, &[0])));
    }
}
