//! The pool beside a model of KIP-1332's own wording, in which each waiter gathers its memory piece by piece: the
//! same grants in the same order, and no byte lost or made at any step.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of tests fails as tests do")]

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use headrace_pool::{AllocationStrategy, BufferPool, Chunk, Lease, PoolConfig, PoolError, Waiting};
use proptest::prelude::*;

const CHUNK: u64 = 128;
/// What the pool has in whole chunks.
const CHUNKS: usize = 10;
/// Not a whole number of chunks.
const TOTAL: u64 = CHUNK * 10 + 50;

/// Memory as the KIP tells it.
#[derive(Default)]
struct Model {
    free: u64,
    queue: VecDeque<Gathering>,
    granted: HashSet<usize>,
    closed: bool,
}

struct Gathering {
    id: usize,
    need: u64,
    got: u64,
}

impl Model {
    fn try_take(&mut self, chunks: usize, also_closed: bool) -> bool {
        let bytes = chunks as u64 * CHUNK;
        let taken = bytes <= self.available() && (also_closed || !self.closed);
        if taken {
            self.free -= bytes;
        }
        taken
    }

    fn join(&mut self, id: usize, chunks: usize) {
        self.queue.push_back(Gathering { id, need: chunks as u64 * CHUNK, got: 0 });
        self.hand_out();
    }

    fn give_back(&mut self, chunks: usize) {
        self.free += chunks as u64 * CHUNK;
        self.hand_out();
    }

    /// Says whether it was waiting still.
    fn leave(&mut self, id: usize) -> bool {
        let Some(place) = self.queue.iter().position(|waiter| waiter.id == id) else { return false };
        self.free += self.queue.remove(place).unwrap().got;
        self.hand_out();
        true
    }

    fn hand_out(&mut self) {
        while !self.closed
            && let Some(head) = self.queue.front_mut()
        {
            let piece = self.free.min(head.need - head.got);
            head.got += piece;
            self.free -= piece;
            if head.got < head.need {
                return;
            }
            self.granted.insert(self.queue.pop_front().unwrap().id);
        }
    }

    fn gathered(&self) -> u64 {
        self.queue.iter().map(|waiter| waiter.got).sum()
    }

    /// A closed pool hands nothing out until its waiters have left.
    fn available(&self) -> u64 {
        if self.closed && !self.queue.is_empty() { 0 } else { self.free }
    }
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Waiter {
    id: usize,
    chunks: usize,
    deadline: Duration,
    waiting: Waiting,
    flag: Arc<Flag>,
}

/// The pool, all that was taken from it, and the model.
struct World {
    pool: BufferPool,
    model: Model,
    now: Duration,
    ids: usize,
    waiters: Vec<Waiter>,
    leases: Vec<Lease>,
    chunks: Vec<Chunk>,
    /// Bytes that share a chunk have the same number.
    bytes: Vec<(usize, Bytes)>,
    exhausted: u64,
}

#[derive(Debug, Clone)]
enum Step {
    TryTake(usize),
    Join { chunks: usize, timeout_ms: u64 },
    Poll(usize),
    Leave(usize),
    Grow(usize, usize),
    Shrink(usize, usize),
    Move(usize, usize),
    DropLease(usize),
    NextChunk(usize),
    Freeze(usize, usize),
    DropChunk(usize),
    Share(usize),
    DropBytes(usize),
    Tick(u64),
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    let any = || any::<prop::sample::Index>().prop_map(|index| index.index(64));
    prop_oneof![
        3 => (0..6_usize).prop_map(Step::TryTake),
        4 => (0..12_usize, 0..40_u64).prop_map(|(chunks, timeout_ms)| Step::Join { chunks, timeout_ms }),
        4 => any().prop_map(Step::Poll),
        1 => any().prop_map(Step::Leave),
        2 => (any(), 0..4_usize).prop_map(|(lease, chunks)| Step::Grow(lease, chunks)),
        1 => (any(), 0..4_usize).prop_map(|(lease, chunks)| Step::Shrink(lease, chunks)),
        1 => (any(), 0..4_usize).prop_map(|(lease, chunks)| Step::Move(lease, chunks)),
        3 => any().prop_map(Step::DropLease),
        6 => any().prop_map(Step::NextChunk),
        4 => (any(), 0..200_usize).prop_map(|(chunk, len)| Step::Freeze(chunk, len)),
        3 => any().prop_map(Step::DropChunk),
        2 => any().prop_map(Step::Share),
        6 => any().prop_map(Step::DropBytes),
        2 => (1..20_u64).prop_map(Step::Tick),
        1 => Just(Step::Close),
    ]
}

/// Takes one out, if there is any.
fn pick<T>(list: &mut Vec<T>, index: usize) -> Option<T> {
    (!list.is_empty()).then(|| list.remove(index % list.len()))
}

impl World {
    fn new() -> Self {
        let strategy = AllocationStrategy::Incremental;
        let pool = BufferPool::new(PoolConfig { buffer_bytes: TOTAL, batch_bytes: 100, strategy });
        assert_eq!(pool.config().chunk_bytes() as u64, CHUNK);
        Self {
            pool,
            model: Model { free: TOTAL, ..Model::default() },
            now: Duration::ZERO,
            ids: 0,
            waiters: Vec::new(),
            leases: Vec::new(),
            chunks: Vec::new(),
            bytes: Vec::new(),
            exhausted: 0,
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::TryTake(chunks) => {
                let lease = self.pool.try_take(chunks);
                assert_eq!(lease.is_some(), self.model.try_take(chunks, false));
                self.leases.extend(lease);
            }
            Step::Join { chunks, timeout_ms } => self.join(chunks, timeout_ms),
            Step::Poll(index) => {
                if let Some(waiter) = pick(&mut self.waiters, index) {
                    self.poll(waiter);
                }
            }
            Step::Leave(index) => {
                if let Some(Waiter { id, chunks, waiting, .. }) = pick(&mut self.waiters, index) {
                    drop(waiting);
                    if !self.model.leave(id) {
                        self.model.give_back(chunks);
                    }
                }
            }
            Step::Tick(ms) => self.now += Duration::from_millis(ms),
            Step::Close => {
                self.pool.close();
                self.model.closed = true;
            }
            step => drop(self.use_memory(step)),
        }
    }

    fn use_memory(&mut self, step: Step) -> Option<()> {
        match step {
            Step::Grow(index, chunks) => {
                let mut lease = pick(&mut self.leases, index)?;
                assert_eq!(lease.try_grow(chunks), self.model.try_take(chunks, false));
                self.leases.push(lease);
            }
            Step::Shrink(index, chunks) => {
                let mut lease = pick(&mut self.leases, index)?;
                self.model.give_back(lease.chunks().saturating_sub(chunks));
                lease.shrink_to(chunks);
                self.leases.push(lease);
            }
            Step::Move(index, chunks) => {
                let mut from = pick(&mut self.leases, index)?;
                let mut to = self.pool.empty_lease();
                let moved = chunks.min(from.chunks());
                assert_eq!((from.move_to(&mut to, chunks), to.chunks()), (moved, moved));
                self.leases.extend([from, to]);
            }
            Step::DropLease(index) => {
                let lease = pick(&mut self.leases, index)?;
                self.model.give_back(lease.chunks());
            }
            Step::NextChunk(index) => {
                let mut lease = pick(&mut self.leases, index)?;
                let charged = lease.chunks() > 0 || self.model.try_take(1, true);
                let chunk = lease.next_chunk();
                assert_eq!((chunk.is_charged(), chunk.len(), chunk.room()), (charged, 0, 128));
                self.chunks.push(chunk);
                self.leases.push(lease);
            }
            Step::Freeze(index, len) => {
                let mut chunk = pick(&mut self.chunks, index)?;
                assert_eq!(chunk.put(&vec![7; len]), len.min(128));
                let charged = chunk.is_charged();
                let bytes = chunk.freeze();
                assert_eq!(bytes, vec![7; len.min(128)]);
                match (charged, len) {
                    (true, 0) => self.model.give_back(1),
                    (true, _) => self.bytes.push((self.ids, bytes)),
                    (false, _) => {}
                }
                self.ids += 1;
            }
            Step::DropChunk(index) => {
                let chunk = pick(&mut self.chunks, index)?;
                self.model.give_back(usize::from(chunk.is_charged()));
            }
            Step::Share(index) => {
                let (id, bytes) = pick(&mut self.bytes, index)?;
                self.bytes.extend([(id, bytes.slice(..1)), (id, bytes)]);
            }
            Step::DropBytes(index) => {
                let (id, bytes) = pick(&mut self.bytes, index)?;
                drop(bytes);
                let last = self.bytes.iter().all(|(other, _)| *other != id);
                self.model.give_back(usize::from(last));
            }
            other => unreachable!("{other:?} uses no memory"),
        }
        Some(())
    }

    fn join(&mut self, chunks: usize, timeout_ms: u64) {
        let deadline = self.now + Duration::from_millis(timeout_ms);
        match self.pool.wait(chunks, self.now) {
            Err(PoolError::Closed) => assert!(self.model.closed),
            Err(error) => {
                assert_eq!(error, PoolError::TooLarge { bytes: chunks as u64 * CHUNK, total: TOTAL });
                assert!(chunks > CHUNKS);
            }
            Ok(waiting) => {
                assert!(chunks <= CHUNKS && !self.model.closed);
                let id = self.ids;
                self.ids += 1;
                if chunks == 0 {
                    // No memory is no wait, not even behind others.
                    self.model.granted.insert(id);
                } else {
                    self.model.join(id, chunks);
                }
                let flag = Arc::new(Flag::default());
                self.poll(Waiter { id, chunks, deadline, waiting, flag });
            }
        }
    }

    fn poll(&mut self, mut waiter: Waiter) {
        let Waiter { id, deadline, ref flag, .. } = waiter;
        let waker = Waker::from(flag.clone());
        let outcome = waiter.waiting.poll(self.now, Some(waiter.deadline), &waker);
        if self.model.granted.remove(&id) {
            let Poll::Ready(Ok(lease)) = outcome else { panic!("{id} is granted, not {outcome:?}") };
            assert_eq!(lease.chunks(), waiter.chunks);
            self.leases.push(lease);
        } else if self.model.closed {
            assert!(matches!(outcome, Poll::Ready(Err(PoolError::Closed))), "{outcome:?}");
            assert!(self.model.leave(id));
        } else if deadline <= self.now {
            assert!(matches!(outcome, Poll::Ready(Err(PoolError::Exhausted { .. }))), "{outcome:?}");
            assert!(self.model.leave(id));
            self.exhausted += 1;
        } else {
            assert!(outcome.is_pending(), "{outcome:?}");
            self.waiters.push(waiter);
        }
    }

    fn check(&self) {
        let leased: usize = self.leases.iter().map(Lease::chunks).sum();
        let written = self.chunks.iter().filter(|chunk| chunk.is_charged()).count();
        let read = self.bytes.iter().map(|(id, _)| id).collect::<HashSet<_>>().len();
        let granted: usize =
            self.waiters.iter().filter(|w| self.model.granted.contains(&w.id)).map(|w| w.chunks).sum();
        let held = (leased + written + read + granted) as u64 * CHUNK;
        assert_eq!(self.model.free + self.model.gathered() + held, TOTAL);

        let metrics = self.pool.metrics(self.now);
        assert_eq!(metrics.buffer_available_bytes, self.model.available());
        assert_eq!(metrics.waiting_threads, self.model.queue.len());
        assert_eq!(metrics.buffer_exhausted_total, self.exhausted);
        assert!(self.pool.resting_chunks() + written + read <= CHUNKS);
        for waiter in &self.waiters {
            let woken = waiter.flag.0.load(Ordering::Relaxed);
            assert_eq!(woken, self.model.closed || self.model.granted.contains(&waiter.id));
        }
    }

    /// All memory comes back: every waiter is granted in its turn.
    fn drain(mut self) {
        self.leases.clear();
        self.chunks.clear();
        self.bytes.clear();
        self.waiters.sort_by_key(|waiter| waiter.id);
        for mut waiter in std::mem::take(&mut self.waiters) {
            let waker = Waker::from(waiter.flag.clone());
            match waiter.waiting.poll(self.now, Some(waiter.deadline), &waker) {
                Poll::Ready(Ok(lease)) => assert_eq!(lease.chunks(), waiter.chunks),
                Poll::Ready(Err(PoolError::Closed)) => assert!(self.model.closed),
                other => panic!("{} was left behind: {other:?}", waiter.id),
            }
        }
        let metrics = self.pool.metrics(self.now);
        assert_eq!((metrics.buffer_available_bytes, metrics.waiting_threads), (TOTAL, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_pool_does_what_the_model_does(steps in prop::collection::vec(step(), 1..120)) {
        // A closed pool is another world; let most runs be of an open one.
        let may_close = steps.len() % 4 == 0;
        let mut world = World::new();
        for step in steps {
            if may_close || !matches!(step, Step::Close) {
                world.run(step);
                world.check();
            }
        }
        world.drain();
    }
}
