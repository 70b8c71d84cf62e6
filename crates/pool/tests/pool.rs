//! The pool as callers meet it: threads that wait, bytes that come back, what goes wrong.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of tests fails as tests do")]

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use headrace_pool::{
    AllocationStrategy, BlockingWait, BufferPool, Chunk, Lease, PoolConfig, PoolError, Waiting,
};

const CHUNK: usize = 128;

fn pool_of(chunks: u64) -> BufferPool {
    let strategy = AllocationStrategy::Incremental;
    BufferPool::new(PoolConfig { buffer_bytes: chunks * 128, batch_bytes: CHUNK, strategy })
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn available(pool: &BufferPool) -> u64 {
    pool.metrics(Duration::ZERO).buffer_available_bytes
}

/// Waits without a deadline; the clock stands still.
fn take_for_ever(pool: &BufferPool, chunks: usize) -> Result<Lease, PoolError> {
    pool.take(chunks, &mut BlockingWait { now: &|| Duration::ZERO, deadline: None, check: &mut || false })
}

/// Sleeps until so many are in the queue.
fn until_waiting(pool: &BufferPool, waiters: usize) {
    for _ in 0..10_000 {
        if pool.waiting() == waiters {
            return;
        }
        thread::sleep(ms(1));
    }
    panic!("{} wait, not {waiters}", pool.waiting());
}

/// Polls without a deadline.
fn poll(waiting: &mut Waiting) -> Poll<Result<Lease, PoolError>> {
    waiting.poll(ms(0), None, Waker::noop())
}

fn poll_until(deadline: Duration, waiting: &mut Waiting, now: Duration) -> Poll<Result<Lease, PoolError>> {
    waiting.poll(now, Some(deadline), Waker::noop())
}

fn granted(waiting: &mut Waiting) -> Lease {
    match poll(waiting) {
        Poll::Ready(Ok(lease)) => lease,
        other => panic!("not granted: {other:?}"),
    }
}

#[test]
fn blocked_threads_are_served_in_the_order_they_came() {
    let pool = pool_of(4);
    let all = pool.try_take(4).unwrap();
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        // The later ones want less, and would be served first by a pool that lets them.
        for (place, chunks) in [4, 3, 2, 1].into_iter().enumerate() {
            let (pool, order) = (&pool, &order);
            scope.spawn(move || {
                let lease = take_for_ever(pool, chunks).unwrap();
                order.lock().unwrap().push(place);
                drop(lease);
            });
            until_waiting(pool, place + 1);
        }
        drop(all);
    });
    let order = order.into_inner().unwrap();
    // The last two are granted together; which thread runs first then is chance.
    assert_eq!(order[..2], [0, 1]);
    assert_eq!(available(&pool), 4 * 128);
}

#[test]
fn what_comes_back_gathers_for_the_head_and_newcomers_get_none_of_it() {
    let pool = pool_of(4);
    let mut all = pool.try_take(4).unwrap();
    let mut many = pool.wait(3, ms(0)).unwrap();
    let mut one = pool.wait(1, ms(0)).unwrap();
    all.shrink_to(2);
    assert!(poll(&mut many).is_pending() && poll(&mut one).is_pending());
    assert!(pool.try_take(1).is_none(), "a newcomer overtook the queue");
    assert!(!pool.empty_lease().try_grow(1), "an open batch overtook the queue");
    assert_eq!(available(&pool), 0);
    all.shrink_to(1);
    assert_eq!(granted(&mut many).chunks(), 3);
    assert_eq!(granted(&mut one).chunks(), 1);
}

#[test]
fn a_waiter_whose_time_is_up_makes_room_for_the_next() {
    let pool = pool_of(4);
    let mut all = pool.try_take(4).unwrap();
    let mut head = pool.wait(4, ms(10)).unwrap();
    let mut next = pool.wait(2, ms(10)).unwrap();
    all.shrink_to(2);
    assert!(poll_until(ms(70), &mut head, ms(69)).is_pending());
    assert!(poll(&mut next).is_pending());
    let Poll::Ready(Err(error)) = poll_until(ms(70), &mut head, ms(70)) else { panic!("its time was up") };
    assert_eq!(error, PoolError::Exhausted { bytes: 512, total: 512, waited_ms: 60 });
    assert!(error.to_string().contains("buffer.memory") && error.to_string().contains("max.block.ms"));
    assert_eq!(granted(&mut next).chunks(), 2);
    assert!(matches!(poll(&mut head), Poll::Ready(Err(PoolError::Closed))), "it is over");
}

#[test]
fn a_grant_counts_even_when_it_is_seen_after_the_deadline() {
    let pool = pool_of(1);
    let all = pool.try_take(1);
    let mut waiting = pool.wait(1, ms(0)).unwrap();
    drop(all);
    assert!(matches!(poll_until(ms(5), &mut waiting, ms(100)), Poll::Ready(Ok(_))));
    assert_eq!(pool.metrics(ms(100)).buffer_exhausted_total, 0);
}

#[test]
fn a_dropped_wait_gives_its_grant_back() {
    let pool = pool_of(2);
    let all = pool.try_take(2);
    let head = pool.wait(2, ms(0)).unwrap();
    let mut next = pool.wait(2, ms(0)).unwrap();
    drop(all);
    assert!(poll(&mut next).is_pending());
    drop(head);
    assert_eq!(granted(&mut next).chunks(), 2);
}

#[test]
fn close_ends_every_wait_and_leaves_memory_in_use_alone() {
    let pool = pool_of(3);
    let mut lease = pool.try_take(3).unwrap();
    drop([lease.next_chunk(), lease.next_chunk()]);
    lease.shrink_to(0);
    assert!(lease.try_grow(3));
    let mut chunk = lease.next_chunk();
    assert_eq!(pool.resting_chunks(), 1);
    thread::scope(|scope| {
        let head = scope.spawn(|| take_for_ever(&pool, 3));
        until_waiting(&pool, 1);
        let next = scope.spawn(|| take_for_ever(&pool, 1));
        until_waiting(&pool, 2);
        pool.close();
        for waiter in [head, next] {
            assert!(matches!(waiter.join().unwrap(), Err(PoolError::Closed)));
        }
    });
    assert!(matches!(pool.wait(1, ms(0)), Err(PoolError::Closed)));
    assert!(pool.try_take(1).is_none() && !lease.try_grow(1));
    assert_eq!(pool.resting_chunks(), 0);

    assert_eq!(chunk.put(b"still here"), 10);
    let bytes = chunk.freeze();
    assert_eq!(bytes, "still here");
    // A batch that is being closed may need more than it has: first what is reserved, then what is free.
    assert!((0..2).map(|_| lease.next_chunk()).all(|chunk| chunk.is_charged()));
    drop((bytes, lease));
    assert_eq!((available(&pool), pool.resting_chunks()), (3 * 128, 0));
}

#[test]
fn a_blocked_thread_ends_at_its_deadline_by_the_clock_it_was_given() {
    let pool = pool_of(1);
    let all = pool.try_take(1);
    let clock = Cell::new(ms(1000));
    let now = || {
        clock.set(clock.get() + ms(400));
        clock.get()
    };
    let mut wait = BlockingWait { now: &now, deadline: Some(ms(2000)), check: &mut || false };
    let error = pool.take(1, &mut wait).unwrap_err();
    assert_eq!(error, PoolError::Exhausted { bytes: 128, total: 128, waited_ms: 800 });
    drop(all);
    assert_eq!(available(&pool), 128, "the place in the queue is still taken");
}

#[test]
fn a_blocked_thread_asks_whether_to_go_on() {
    let pool = pool_of(1);
    let all = pool.try_take(1);
    let mut asked = 0;
    let mut check = || {
        asked += 1;
        asked == 2
    };
    let mut wait = BlockingWait { now: &|| ms(5), deadline: Some(ms(3_600_000)), check: &mut check };
    assert!(matches!(pool.take(1, &mut wait), Err(PoolError::Interrupted)));
    assert_eq!(asked, 2);
    drop(all);
    assert_eq!(available(&pool), 128);
}

#[test]
fn no_time_to_wait_is_a_refusal_at_once_and_only_this_is_counted() {
    let pool = pool_of(2);
    let mut lease = pool.try_take(2).unwrap();
    assert!(!lease.try_grow(1));
    assert_eq!(pool.metrics(ms(0)).buffer_exhausted_total, 0);
    let mut wait = BlockingWait { now: &|| ms(3), deadline: Some(ms(3)), check: &mut || true };
    assert!(matches!(pool.take(1, &mut wait), Err(PoolError::Exhausted { waited_ms: 0, .. })));
    assert_eq!(pool.metrics(ms(3)).buffer_exhausted_total, 1);
}

#[test]
fn a_request_beyond_the_total_is_refused_at_once_whatever_its_size() {
    let pool = pool_of(2);
    let refused = |chunks| pool.wait(chunks, ms(0)).unwrap_err();
    assert_eq!(refused(3), PoolError::TooLarge { bytes: 384, total: 256 });
    assert_eq!(refused(usize::MAX), PoolError::TooLarge { bytes: u64::MAX, total: 256 });
    assert!(pool.try_take(usize::MAX).is_none());
    assert!(refused(3).to_string().contains("buffer.memory"));
    assert_eq!(available(&pool), 256);
}

#[test]
fn totals_beyond_four_gibibytes_are_counted_right() {
    let total = 6_u64 << 30;
    let strategy = AllocationStrategy::Full;
    let pool = BufferPool::new(PoolConfig { buffer_bytes: total, batch_bytes: 1 << 20, strategy });
    let lease = pool.try_take(pool.config().chunks_for(5 << 30)).unwrap();
    assert_eq!(available(&pool), 1 << 30);
    drop(lease);
    assert_eq!(available(&pool), total);
}

#[test]
fn bytes_hold_their_memory_until_the_last_clone_is_gone_on_any_thread() {
    let pool = pool_of(2);
    let mut lease = pool.try_take(1).unwrap();
    let mut chunk = lease.next_chunk();
    assert_eq!(chunk.put(&[9; 200]), CHUNK);
    assert_eq!((chunk.room(), &chunk[..3]), (0, &[9, 9, 9][..]));
    let bytes = chunk.freeze();
    let part = bytes.slice(100..);
    drop(bytes);
    assert_eq!(available(&pool), 128);
    thread::scope(|scope| scope.spawn(|| drop(part)).join().unwrap());
    assert_eq!((available(&pool), pool.resting_chunks()), (256, 1));
}

#[test]
fn a_batch_after_the_other_uses_the_same_memory() {
    let pool = pool_of(3);
    for resting in [[0, 0, 0], [2, 1, 0], [2, 1, 0]] {
        let mut lease = pool.try_take(3).unwrap();
        let mut batch: Vec<Bytes> = Vec::new();
        for left in resting {
            let mut chunk = lease.next_chunk();
            assert_eq!((chunk.len(), chunk.put(b"x")), (0, 1));
            assert_eq!(pool.resting_chunks(), left);
            batch.push(chunk.freeze());
        }
        drop(batch);
        assert_eq!(pool.resting_chunks(), 3);
    }
}

struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_task_that_moved_is_woken_where_it_last_looked() {
    let pool = pool_of(1);
    let all = pool.try_take(1);
    let mut waiting = pool.wait(1, ms(0)).unwrap();
    let wakers = [Arc::new(Count(AtomicU32::new(0))), Arc::new(Count(AtomicU32::new(0)))];
    for waker in &wakers {
        assert!(waiting.poll(ms(0), None, &Waker::from(waker.clone())).is_pending());
    }
    drop(all);
    assert_eq!(wakers.map(|waker| waker.0.load(Ordering::Relaxed)), [0, 1]);
}

#[test]
fn a_reservation_is_no_memory_until_it_is_written() {
    let pool = pool_of(8);
    let lease = pool.try_take(8);
    drop(lease);
    assert_eq!((available(&pool), pool.resting_chunks()), (8 * 128, 0));
}

#[test]
fn beyond_the_reservation_come_the_pool_and_then_the_heap() {
    let pool = pool_of(2);
    let mut lease = pool.try_take(1).unwrap();
    let chunks: Vec<_> = (0..4).map(|_| lease.next_chunk()).collect();
    assert_eq!(chunks.iter().map(Chunk::is_charged).collect::<Vec<_>>(), [true, true, false, false]);
    assert_eq!((lease.overflow_chunks(), available(&pool)), (2, 0));
    let mut heap = chunks.into_iter().nth(3).unwrap();
    heap.put(b"same as the others");
    assert_eq!(heap.freeze(), "same as the others");
    assert_eq!((available(&pool), pool.resting_chunks()), (256, 2));

    // While somebody waits, what is free is theirs.
    let mut rest = pool.try_take(2).unwrap();
    let _waiting = pool.wait(2, ms(0)).unwrap();
    rest.shrink_to(1);
    assert!(!lease.next_chunk().is_charged());
}

#[test]
fn a_lease_of_the_heap_has_chunks_and_no_pool() {
    let mut heap = Lease::of_heap(1000);
    let mut chunk = heap.next_chunk();
    assert_eq!((chunk.put(&[1; 2000]), chunk.is_charged()), (1000, false));
    assert!(heap.try_grow(1), "the heap has always more");
    let pool = pool_of(2);
    let mut pooled = pool.try_take(2).unwrap();
    assert_eq!((pooled.move_to(&mut heap, 1), heap.chunks()), (0, 1));
    let mut other = pool_of(2).empty_lease();
    assert_eq!((pooled.move_to(&mut other, 1), pooled.chunks()), (0, 2));
}

#[test]
fn a_block_that_is_put_padded_and_cut_leaves_what_was_meant() {
    let mut chunk = Lease::of_heap(128).next_chunk();
    chunk.put(&[1, 2, 3, 0, 0, 0, 0, 0]);
    chunk.truncate(3);
    chunk.put(b"abc");
    assert_eq!(chunk.freeze(), [1, 2, 3, b'a', b'b', b'c'][..]);
    assert!(Lease::of_heap(128).next_chunk().freeze().is_empty());
}

#[test]
fn bytes_outlive_the_pool() {
    let pool = pool_of(1);
    let mut lease = pool.try_take(1).unwrap();
    let mut chunk = lease.next_chunk();
    chunk.put(b"late");
    let bytes = chunk.freeze();
    drop((pool, lease));
    assert_eq!(bytes, "late");
}

#[test]
fn metrics_are_kafkas() {
    let pool = pool_of(4);
    let idle = pool.metrics(ms(0));
    assert_eq!((idle.buffer_total_bytes, idle.buffer_available_bytes, idle.waiting_threads), (512, 512, 0));
    assert_eq!((idle.bufferpool_wait_ratio, idle.buffer_exhausted_rate), (0.0, 0.0));

    let all = pool.try_take(3);
    let mut late = pool.wait(4, ms(1000)).unwrap();
    let mut patient = pool.wait(2, ms(1000)).unwrap();
    let waiting = pool.metrics(ms(1000));
    // The chunk that is free is the head's.
    assert_eq!((waiting.buffer_available_bytes, waiting.waiting_threads), (0, 2));
    assert!(matches!(
        poll_until(ms(4000), &mut late, ms(4000)),
        Poll::Ready(Err(PoolError::Exhausted { .. }))
    ));
    drop(all);
    assert!(matches!(poll_until(ms(9000), &mut patient, ms(7000)), Poll::Ready(Ok(_))));

    let after = pool.metrics(ms(7500));
    assert_eq!(after.bufferpool_wait_time_ns_total, 9_000_000_000);
    // Over one window of 30 s at least.
    assert_eq!((after.bufferpool_wait_ratio, after.buffer_exhausted_rate), (0.3, 1.0 / 30.0));
    assert_eq!((after.buffer_exhausted_total, after.waiting_threads), (1, 0));
    let much_later = pool.metrics(ms(100_000));
    assert_eq!((much_later.bufferpool_wait_ratio, much_later.buffer_exhausted_rate), (0.0, 0.0));
    assert_eq!(much_later.bufferpool_wait_time_ns_total, 9_000_000_000);
}
