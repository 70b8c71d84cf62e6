//! Every interleaving of threads that wait and threads that give back: no wake-up is lost, no byte either.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p headrace-pool --test loom`. Time-outs of a sleeping thread never happen here, so
//! a lost wake-up is a deadlock, which loom reports; the slices of the real shell would hide it.
#![cfg(loom)]

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use headrace_pool::{AllocationStrategy, BlockingWait, BufferPool, Lease, PoolConfig, PoolError};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

const CHUNK: u64 = 128;

fn pool_of(chunks: u64) -> BufferPool {
    let strategy = AllocationStrategy::Incremental;
    BufferPool::new(PoolConfig { buffer_bytes: chunks * CHUNK, batch_bytes: 128, strategy })
}

fn take(pool: &BufferPool, chunks: usize) -> Result<Lease, PoolError> {
    pool.take(chunks, &mut BlockingWait { now: &|| Duration::ZERO, deadline: None, check: &mut || false })
}

fn whole(pool: &BufferPool, chunks: u64) {
    let metrics = pool.metrics(Duration::ZERO);
    assert_eq!((metrics.buffer_available_bytes, metrics.waiting_threads), (chunks * CHUNK, 0));
    assert!(pool.resting_chunks() as u64 <= chunks);
}

/// Explores all interleavings with up to three preemptions, where most faults are.
fn explore(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(3);
    model.check(test);
}

#[test]
fn bytes_that_another_thread_drops_wake_who_waits() {
    explore(|| {
        let pool = pool_of(1);
        let mut chunk = pool.try_take(1).unwrap().next_chunk();
        chunk.put(b"x");
        let bytes = chunk.freeze();
        let socket = thread::spawn(move || drop(bytes));
        let lease = take(&pool, 1).unwrap();
        assert_eq!(lease.chunks(), 1);
        socket.join().unwrap();
        drop(lease);
        whole(&pool, 1);
    });
}

#[test]
fn pieces_from_two_threads_gather_for_one_waiter() {
    explore(|| {
        let pool = pool_of(2);
        let mut lease = pool.try_take(2).unwrap();
        let chunks = [lease.next_chunk(), lease.next_chunk()];
        let threads = chunks.map(|chunk| thread::spawn(move || drop(chunk)));
        drop(take(&pool, 2).unwrap());
        for thread in threads {
            thread.join().unwrap();
        }
        whole(&pool, 2);
    });
}

#[test]
fn two_waiters_and_one_chunk_take_turns() {
    explore(|| {
        let pool = pool_of(1);
        let first = pool.try_take(1).unwrap();
        let other = pool.clone();
        let waiter = thread::spawn(move || drop(take(&other, 1).unwrap().next_chunk()));
        let other = pool.clone();
        let another = thread::spawn(move || drop(take(&other, 1).unwrap()));
        drop(first);
        waiter.join().unwrap();
        another.join().unwrap();
        whole(&pool, 1);
    });
}

#[test]
fn a_head_that_gives_up_while_memory_comes_back_leaves_none_behind() {
    explore(|| {
        let pool = pool_of(2);
        let mut lease = pool.try_take(2).unwrap();
        let chunk = lease.next_chunk();
        let head = pool.wait(2, Duration::ZERO).unwrap();
        let giver = thread::spawn(move || drop(chunk));
        let quitter = thread::spawn(move || drop(head));
        drop(take(&pool, 1).unwrap());
        giver.join().unwrap();
        quitter.join().unwrap();
        drop(lease);
        whole(&pool, 2);
    });
}

#[test]
fn close_reaches_who_waits_or_is_about_to() {
    explore(|| {
        let pool = pool_of(1);
        let lease = pool.try_take(1).unwrap();
        let other = pool.clone();
        let closer = thread::spawn(move || other.close());
        let other = pool.clone();
        let waiter = thread::spawn(move || take(&other, 1));
        drop(lease);
        // The memory may come before the end.
        match waiter.join().unwrap() {
            Ok(lease) => drop(lease),
            Err(error) => assert_eq!(error, PoolError::Closed),
        }
        closer.join().unwrap();
        assert!(matches!(take(&pool, 1), Err(PoolError::Closed)));
        whole(&pool, 1);
    });
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_task_that_is_told_to_wait_is_woken() {
    explore(|| {
        let pool = pool_of(1);
        let lease = pool.try_take(1).unwrap();
        let giver = thread::spawn(move || drop(lease));
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        let waker = Waker::from(flag.clone());
        let mut waiting = pool.wait(1, Duration::ZERO).unwrap();
        let told_to_wait = waiting.poll(Duration::ZERO, None, &waker).is_pending();
        giver.join().unwrap();
        if told_to_wait {
            assert!(flag.0.load(Ordering::Acquire), "nobody woke the task");
            assert!(matches!(waiting.poll(Duration::ZERO, None, &waker), Poll::Ready(Ok(_))));
        }
        drop(waiting);
        whole(&pool, 1);
    });
}
