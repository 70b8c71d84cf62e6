//! What a peer sends cannot make a reader take much more memory than the frame has bytes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]
#![expect(unsafe_code, reason = "counting allocations takes a global allocator")]

use headrace_wire::testing::{CASES, Filler};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Bytes of memory that one byte of a frame may become: an empty string, one byte, takes 24, and a growing `Vec`
/// holds its old and its doubled new room at once.
const MEMORY_PER_BYTE_MAX: usize = 48;
/// What any frame may take besides: elements reserved ahead, once for each array that is open.
const MEMORY_BASE_MAX: usize = 256 << 10;

struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn held(change: impl Fn(usize) -> usize) {
    let now = change(HELD.get());
    HELD.set(now);
    PEAK.set(PEAK.get().max(now));
}

// SAFETY: every call is passed on to the system allocator as it came; the counters are no part of the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        held(|now| now + layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        held(|now| now.saturating_sub(layout.size()));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Peak memory of reading `bytes` as each version of each message.
fn check(bytes: &[u8]) {
    for case in CASES {
        for version in case.versions.min..=case.versions.max {
            let frame = bytes::Bytes::copy_from_slice(bytes);
            let before = HELD.get();
            PEAK.set(before);
            let failed = case.read(version, frame).is_err();
            let peak = PEAK.get() - before;
            assert!(
                peak <= MEMORY_BASE_MAX + MEMORY_PER_BYTE_MAX * bytes.len(),
                "{} {version}: {peak} bytes of memory for {} bytes, failed {failed}",
                case.name,
                bytes.len()
            );
        }
    }
}

#[test]
fn the_counter_counts() {
    let before = HELD.get();
    PEAK.set(before);
    drop(Vec::<u8>::with_capacity(12_345));
    assert_eq!(PEAK.get() - before, 12_345);
    assert_eq!(HELD.get(), before);
}

#[test]
fn counts_that_lie() {
    // All ones: huge classic counts; all zeros and all 1: empty elements without end; small numbers: nested arrays.
    for byte in [0xFF, 0x7F, 0, 1, 2, 3, 0x80] {
        check(&vec![byte; 20_000]);
    }
    for count in [100, 10_000, 1_000_000, i32::MAX] {
        check(&count.to_be_bytes().repeat(5000));
        check(&[&count.to_be_bytes()[..], &vec![0; 20_000]].concat());
        check(&[&count.to_be_bytes()[..], &vec![1; 20_000]].concat());
    }
    // A compact count of about 16,000, then elements of ones (empty) or zeros.
    for (head, fill) in [(&[0x81, 0x7D][..], 1), (&[0x81, 0x7D], 0), (&[0xFF, 0xFF, 0xFF, 0xFF, 0x07], 1)] {
        check(&[head, &vec![fill; 40_000]].concat());
    }
}

#[test]
fn random_bytes() {
    let mut random = Filler::new(7);
    for limit in [2, 4, 16, 256] {
        for _ in 0..20 {
            let bytes: Vec<u8> = (0..4000).map(|_| u8::try_from(random.below(limit)).unwrap()).collect();
            check(&bytes);
        }
    }
}
