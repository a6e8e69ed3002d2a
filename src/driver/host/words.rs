//! Words of 8 bytes in the device's memory, and bytes of them.
//!
//! Owns: how they are read and written: one by one, by relaxed atomics, since other streams, other mappings of the same
//! memory and other processes may do so at the same time. What they then see is what a GPU would show: some word that was
//! written there.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
pub(super) const WORD: u64 = 8;

/// The words from an address on.
///
/// # Safety
/// The address is a multiple of 8, and for as long as the result is used, `count` words from there are mapped for reading
/// and writing.
unsafe fn words<'a>(address: u64, count: usize) -> impl Iterator<Item = &'a AtomicU64> {
    let first: *mut u64 = ptr::with_exposed_provenance_mut(address as usize);
    (0..count).map(move |at| {
        // SAFETY: the word is mapped and aligned, as the caller says, and is only used through atomics.
        unsafe { AtomicU64::from_ptr(first.add(at)) }
    })
}

/// Writes words from an address on.
///
/// # Safety
/// The address is a multiple of 8, and that many words are mapped there for reading and writing until this returns.
pub(super) unsafe fn write(address: u64, from: &[u64]) {
    // SAFETY: the caller's promise is the same.
    let to = unsafe { words(address, from.len()) };
    to.zip(from).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
}

/// Reads words from an address on.
///
/// # Safety
/// As for [`write`].
pub(super) unsafe fn read(address: u64, to: &mut [u64]) {
    // SAFETY: the caller's promise is the same.
    let from = unsafe { words(address, to.len()) };
    from.zip(to).for_each(|(word, value)| *value = word.load(Ordering::Relaxed));
}

/// Sets bytes from an address on. Bytes beside them in the first and the last word keep what others write there.
///
/// # Safety
/// So many bytes are mapped there for reading and writing until this returns. (With them are the rest of their words, since
/// pages are whole words.)
pub(super) unsafe fn set_bytes(address: u64, size: u64, value: u8) {
    let (first, end) = (address - address % WORD, address + size);
    let pattern = u64::from_ne_bytes([value; WORD as usize]);
    let count = (end - first).div_ceil(WORD) as usize;
    // SAFETY: the caller's promise is the same, and the first address is a multiple of 8.
    let to = unsafe { words(first, count) };
    for (at, word) in (first..).step_by(WORD as usize).zip(to) {
        if at >= address && at + WORD <= end {
            word.store(pattern, Ordering::Relaxed);
            continue;
        }
        let mut mask = [0; WORD as usize];
        for (byte, place) in mask.iter_mut().zip(at..) {
            *byte = if (address..end).contains(&place) { u8::MAX } else { 0 };
        }
        let mask = u64::from_ne_bytes(mask);
        let mut old = word.load(Ordering::Relaxed);
        while let Err(newer) =
            word.compare_exchange_weak(old, (old & !mask) | (pattern & mask), Ordering::Relaxed, Ordering::Relaxed)
        {
            old = newer;
        }
    }
}

/// Writes bytes from an address on. Bytes beside them in the first and the last word keep what others write there.
///
/// # Safety
/// As for [`set_bytes`].
pub(super) unsafe fn write_bytes(address: u64, from: &[u8]) {
    let before = ((WORD - address % WORD) % WORD) as usize;
    let (head, rest) = from.split_at(before.min(from.len()));
    let (whole, tail) = rest.as_chunks::<{ WORD as usize }>();
    let middle = address + head.len() as u64;
    // SAFETY: the caller's promise is the same, and the first word lies at a multiple of 8.
    let to = unsafe { words(middle, whole.len()) };
    to.zip(whole).for_each(|(word, bytes)| word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed));
    let end = middle + whole.len() as u64 * WORD;
    for (at, byte) in (address..).zip(head).chain((end..).zip(tail)) {
        // SAFETY: the byte is one of those that the caller speaks of.
        unsafe { set_bytes(at, 1, *byte) };
    }
}

/// Reads bytes from an address on.
///
/// # Safety
/// As for [`set_bytes`].
pub(super) unsafe fn read_bytes(address: u64, to: &mut [u8]) {
    let offset = (address % WORD) as usize;
    let count = (offset + to.len()).div_ceil(WORD as usize);
    // SAFETY: the caller's promise is the same, and the first address is a multiple of 8.
    let from = unsafe { words(address - address % WORD, count) };
    let bytes = from.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).skip(offset);
    to.iter_mut().zip(bytes).for_each(|(byte, value)| *byte = value);
}
