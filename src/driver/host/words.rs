//! Words of 8 bytes in the device's memory.
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
