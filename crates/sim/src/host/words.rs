//! Words of 8 bytes in the device's memory, and bytes of words.
//!
//! Owns: reading and writing the words one by one, by relaxed atomics. Other streams, other mappings of the same memory
//! and other processes may access the words at the same time. A reader then sees a word that was written there, as on a
//! GPU.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
pub(super) const WORD: u64 = 8;

/// Returns the word at an address.
///
/// # Safety
/// The address must be a multiple of 8. For as long as the result is used, the word must be mapped for reading and
/// writing.
#[inline]
unsafe fn word<'a>(address: u64) -> &'a AtomicU64 {
    // SAFETY: the word is mapped and aligned, as the caller guarantees, and is only used through atomics.
    unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(address as usize)) }
}

/// Writes words from an address on.
///
/// # Safety
/// The address must be a multiple of 8. All of the words must be mapped for reading and writing until this function
/// returns.
pub(super) unsafe fn write(address: u64, from: &[u64]) {
    let (mut at, mut left) = (address, from);
    // The loop has no iterator, so that builds with little optimization make no call for each word.
    while let [value, rest @ ..] = left {
        // SAFETY: the word is one of those for which the caller gives the guarantee.
        unsafe { word(at) }.store(*value, Ordering::Relaxed);
        (at, left) = (at + WORD, rest);
    }
}

/// Reads words from an address on.
///
/// # Safety
/// The conditions of [`write`].
pub(super) unsafe fn read(address: u64, to: &mut [u64]) {
    let (mut at, mut left) = (address, to);
    // The loop has no iterator for the reason given in `write`.
    while let [value, rest @ ..] = left {
        // SAFETY: the word is one of those for which the caller gives the guarantee.
        *value = unsafe { word(at) }.load(Ordering::Relaxed);
        (at, left) = (at + WORD, rest);
    }
}

/// Sets bytes from an address on. Neighbouring bytes in the first and the last word keep the values that others write
/// there.
///
/// # Safety
/// `size` bytes are mapped there for reading and writing until this function returns. The rest of the first and of the
/// last word is then mapped too, since a page has whole words.
pub(super) unsafe fn set_bytes(address: u64, size: u64, value: u8) {
    let end = address + size;
    let pattern = u64::from_ne_bytes([value; WORD as usize]);
    let mut next = address - address % WORD;
    while next < end {
        let at = next;
        next += WORD;
        // SAFETY: the word is one of those for which the caller gives the guarantee.
        let word = unsafe { word(at) };
        if at >= address && next <= end {
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

/// Writes bytes from an address on. Neighbouring bytes in the first and the last word keep the values that others write
/// there.
///
/// # Safety
/// The conditions of [`set_bytes`].
pub(super) unsafe fn write_bytes(address: u64, from: &[u8]) {
    let before = ((WORD - address % WORD) % WORD) as usize;
    let (head, rest) = from.split_at(before.min(from.len()));
    let (whole, tail) = rest.as_chunks::<{ WORD as usize }>();
    let middle = address + head.len() as u64;
    let mut at = middle;
    for bytes in whole {
        // SAFETY: the word is one of those for which the caller gives the guarantee, and the first word lies at a
        // multiple of 8.
        unsafe { word(at) }.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        at += WORD;
    }
    let end = middle + whole.len() as u64 * WORD;
    for (at, byte) in (address..).zip(head).chain((end..).zip(tail)) {
        // SAFETY: the byte is one of those for which the caller gives the guarantee.
        unsafe { set_bytes(at, 1, *byte) };
    }
}

/// Reads bytes from an address on.
///
/// # Safety
/// The conditions of [`set_bytes`].
pub(super) unsafe fn read_bytes(address: u64, to: &mut [u8]) {
    let before = ((WORD - address % WORD) % WORD) as usize;
    let (head, rest) = to.split_at_mut(before.min(to.len()));
    let (whole, tail) = rest.as_chunks_mut::<{ WORD as usize }>();
    let mut at = address + head.len() as u64;
    // SAFETY: this word, and each word below, contains bytes for which the caller gives the guarantee, and lies at a
    // multiple of 8.
    let load = |at: u64| unsafe { word(at) }.load(Ordering::Relaxed).to_ne_bytes();
    if !head.is_empty() {
        let offset = address % WORD;
        head.iter_mut()
            .zip(load(address - offset).into_iter().skip(offset as usize))
            .for_each(|(byte, value)| *byte = value);
    }
    for bytes in whole {
        *bytes = load(at);
        at += WORD;
    }
    if !tail.is_empty() {
        tail.iter_mut().zip(load(at)).for_each(|(byte, value)| *byte = value);
    }
}
