//! Copies of memory that others may write at the same moment.
//!
//! # Why this is sound
//! A plain copy (`ptr::copy`, `memcpy` as the compiler knows it) of bytes that are written meanwhile is a data race, and the
//! compiler may believe that what it has read twice is the same. Atomic words have no race, but the compiler never joins
//! them, so they go at half of the speed. What is written here in the machine's own words is opaque to the compiler: to it,
//! each copy is what [`by_words`] does, a load and a store without order of each byte at least once, which no race makes
//! undefined; and the machine knows no undefined loads. The bytes may be of any moment, also several moments: nothing is
//! believed of them before they are copied, and order comes from the words that are loaded and stored beside them.

#![expect(
    unsafe_code,
    reason = "pointers to memory that peers write; callers have checked what they point to"
)]

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// Copies `len` bytes. Where the two overlap, what comes of it is unsaid.
///
/// # Safety
/// `len` bytes may be read at `from` and written at `to`, of memory that stays mapped, and that this process reaches
/// meanwhile in no other way than through this and atomics, unless it is the caller's alone.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller says.
    unsafe {
        x86_64::copy(from, to, len);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as the caller says.
    unsafe {
        by_words(from, to, len);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::asm;

    const VECTOR: usize = 16;
    const BLOCK: usize = 64;
    /// From here on the processor's own copy is faster than a loop.
    const LONG: usize = 4096;

    /// # Safety
    /// As [`super::copy`].
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        if len < VECTOR {
            // SAFETY: as the caller says.
            unsafe { super::by_words(from, to, len) }
        } else if len < LONG {
            // SAFETY: as the caller says, and it is a vector or longer.
            unsafe { vectors(from, to, len) }
        } else {
            // SAFETY: as the caller says: these bytes are read and written, no others. The direction is up, as Rust has it.
            unsafe {
                asm!(
                    "rep movsb",
                    inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
                    options(nostack, preserves_flags),
                );
            }
        }
    }

    /// Blocks of four vectors, then vectors, the last of which ends where the bytes end, and may overlap the one before.
    ///
    /// # Safety
    /// As [`super::copy`]; `len` is at least that of a vector.
    unsafe fn vectors(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: as the caller says: each load and each store is within the bytes.
        unsafe {
            asm!(
                "sub {left}, {BLOCK}",
                "jb 3f",
                "2:",
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                "movups [{to}], {a}",
                "movups [{to} + 16], {b}",
                "movups [{to} + 32], {c}",
                "movups [{to} + 48], {d}",
                "add {from}, {BLOCK}",
                "add {to}, {BLOCK}",
                "sub {left}, {BLOCK}",
                "jae 2b",
                "3:",
                "add {left}, {BLOCK} - {VECTOR}",
                "js 5f",
                "4:",
                "movups {a}, [{from}]",
                "movups [{to}], {a}",
                "add {from}, {VECTOR}",
                "add {to}, {VECTOR}",
                "sub {left}, {VECTOR}",
                "jns 4b",
                "5:",
                // Left are from 0 to 15 bytes, less a vector.
                "movups {a}, [{from} + {left}]",
                "movups [{to} + {left}], {a}",
                left = inout(reg) len => _,
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                BLOCK = const BLOCK, VECTOR = const VECTOR,
                options(nostack),
            );
        }
    }
}

/// The same without the machine's words: loads of words where `from` is aligned, and of bytes before and after.
///
/// # Safety
/// As [`copy`].
unsafe fn by_words(from: *const u8, to: *mut u8, len: usize) {
    let end = from.wrapping_add(len);
    let (mut from, mut to) = (from, to);
    while from != end {
        let left = end.addr().wrapping_sub(from.addr());
        let step = if left >= WORD && from.addr().is_multiple_of(WORD) {
            // SAFETY: aligned, and there is a word; it is only loaded.
            let word = unsafe { AtomicU64::from_ptr(from.cast_mut().cast()) }.load(Ordering::Relaxed);
            // SAFETY: as the caller says; as long as what was loaded.
            unsafe { store(to, word) };
            WORD
        } else {
            // SAFETY: as the caller says; it is only loaded.
            let byte = unsafe { AtomicU8::from_ptr(from.cast_mut()) }.load(Ordering::Relaxed);
            // SAFETY: as the caller says.
            unsafe { AtomicU8::from_ptr(to) }.store(byte, Ordering::Relaxed);
            1
        };
        from = from.wrapping_add(step);
        to = to.wrapping_add(step);
    }
}

/// Stores a word wherever it lies, in the order of its bytes in memory.
///
/// # Safety
/// As [`copy`], of a word at `to`.
unsafe fn store(to: *mut u8, word: u64) {
    if to.addr().is_multiple_of(WORD) {
        // SAFETY: aligned, and as the caller says.
        unsafe { AtomicU64::from_ptr(to.cast()) }.store(word, Ordering::Relaxed);
        return;
    }
    #[expect(clippy::host_endian_bytes, reason = "bytes as they lie in memory go where they lie in memory")]
    for (offset, byte) in word.to_ne_bytes().into_iter().enumerate() {
        // SAFETY: as the caller says.
        unsafe { AtomicU8::from_ptr(to.wrapping_add(offset)) }.store(byte, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies from and to each alignment, with what is around it left alone.
    fn copies(copy: unsafe fn(*const u8, *mut u8, usize), len: usize, from_at: usize, to_at: usize) {
        let from: Vec<u8> = (0..len + from_at + 64).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut to = vec![255; len + to_at + 64];
        let mut expected = to.clone();
        expected[to_at..to_at + len].copy_from_slice(&from[from_at..from_at + len]);
        // SAFETY: both are longer than what is copied, and ours alone.
        unsafe { copy(from.as_ptr().wrapping_add(from_at), to.as_mut_ptr().wrapping_add(to_at), len) };
        assert_eq!(to, expected, "{len} bytes from {from_at} to {to_at}");
    }

    #[test]
    fn every_length_and_alignment() {
        let lengths = (0..300).chain(4000..4200).chain([65_536, 65_537]);
        for len in lengths {
            for (from, to) in [(0, 0), (0, 3), (5, 0), (1, 9), (15, 14)] {
                copies(copy, len, from, to);
                copies(by_words, len, from, to);
            }
        }
    }
}
