//! A slot for one value that any thread may use while another removes it.
//!
//! Owns: the count of users, and the rule that a value is dropped once the slot was closed and the last user has left,
//! never before. `tests/schedules.rs` tries every order of the threads' steps.
//!
//! Each value has a generation: a number that no other value of the slot gets. A user enters and leaves with one atomic
//! operation each:
//! ```text
//! state     | generation: 32 bits | phase: 2 | users: 30 |
//! phases    Free -> Open (generation + 1) -> Closing -> Emptying -> Free
//! ```
//! Users with a stale generation may enter in every phase: they add themselves, see another generation or phase, and
//! leave without reading the value. While the slot is `Closing`, the last user to leave empties it.

use super::primitive::{AtomicPtr, AtomicU64, Ordering};
use std::ops::Deref;
use std::ptr::{self, NonNull};

const PHASE_SHIFT: u32 = 30;
const GENERATION_SHIFT: u32 = 32;
const USERS: u64 = (1 << PHASE_SHIFT) - 1;

/// The phases of a slot.
const FREE: u64 = 0;
const OPEN: u64 = 1;
const CLOSING: u64 = 2;
const EMPTYING: u64 = 3;

/// A slot for one value.
pub(crate) struct Slot<T> {
    pub(crate) state: AtomicU64,
    /// The pointer of a `Box`, while the slot is open or closing; NULL otherwise.
    pub(crate) value: AtomicPtr<T>,
}

/// The state of a slot that has had no value yet.
pub(crate) const NEVER_USED: u64 = FREE;

fn generation_in(state: u64) -> u64 {
    state >> GENERATION_SHIFT
}

fn phase_in(state: u64) -> u64 {
    state >> PHASE_SHIFT & 3
}

/// Returns whether a slot in this state has the value of this generation, and is open.
fn is_open(state: u64, generation: u64) -> bool {
    state >> PHASE_SHIFT == generation << (GENERATION_SHIFT - PHASE_SHIFT) | OPEN
}

impl<T> Slot<T> {
    /// Returns whether [`Self::fill`] may be called. A slot that has used up its generations is never free again.
    pub(crate) fn is_free(&self) -> bool {
        let state = self.state.load(Ordering::Acquire);
        phase_in(state) == FREE && generation_in(state) != u64::from(u32::MAX)
    }

    /// Puts a value in, and returns its generation.
    ///
    /// pre: the slot is free, and no other thread fills it at this moment.
    pub(crate) fn fill(&self, value: Box<T>) -> u64 {
        self.value.store(Box::into_raw(value), Ordering::Relaxed);
        // The state is added to, not stored: users with stale generations may be counted at this moment.
        let before = self.state.fetch_add((1 << GENERATION_SHIFT) + (OPEN << PHASE_SHIFT), Ordering::Release);
        generation_in(before) + 1
    }

    /// Returns the generation of the present value, or of the last value if the slot has none.
    pub(crate) fn generation(&self) -> u64 {
        generation_in(self.state.load(Ordering::Acquire))
    }

    /// Returns whether the slot has the value of this generation, and is open. The slot may be closed at any time,
    /// unless a use of its value never ends ([`Use::for_ever`]).
    #[inline]
    pub(crate) fn is_open_to(&self, generation: u64) -> bool {
        is_open(self.state.load(Ordering::Acquire), generation)
    }

    /// Returns the value of this generation, if the slot was not closed.
    #[inline]
    pub(crate) fn enter(&self, generation: u64) -> Option<Use<'_, T>> {
        let entered = Entered(self);
        let state = self.state.fetch_add(1, Ordering::Acquire);
        if !is_open(state, generation) {
            return None;
        }
        NonNull::new(self.value.load(Ordering::Relaxed)).map(|value| Use { entered, value })
    }
}

/// A value in use: it is not dropped before this guard is.
pub(crate) struct Use<'a, T> {
    entered: Entered<'a, T>,
    value: NonNull<T>,
}

/// A user that is counted in the slot's state.
struct Entered<'a, T>(&'a Slot<T>);

impl<'a, T> Use<'a, T> {
    /// Closes the slot: later users are refused, and the last user drops the value. Returns whether this call closed
    /// the slot; `false` if another thread was first.
    pub(crate) fn close(&self, generation: u64) -> bool {
        let slot = self.entered.0;
        let mut state = slot.state.load(Ordering::Relaxed);
        while is_open(state, generation) {
            let closing = state + ((CLOSING - OPEN) << PHASE_SHIFT);
            match slot.state.compare_exchange_weak(state, closing, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Returns the value for as long as the slot lives: this use never ends, so the value is never dropped.
    pub(crate) fn for_ever(self) -> &'a T {
        // SAFETY: as in `deref`; this user never leaves.
        let value = unsafe { self.value.as_ref() };
        std::mem::forget(self);
        value
    }
}

impl<T> Deref for Use<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the slot was open when this use was counted, and the slot's value is not dropped while the use is
        // counted.
        unsafe { self.value.as_ref() }
    }
}

impl<T> Drop for Entered<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let left = self.0.state.fetch_sub(1, Ordering::AcqRel) - 1;
        if phase_in(left) == CLOSING && left & USERS == 0 {
            empty(self.0, left);
        }
    }
}

/// Drops the value of a slot that was closing and has no users. Another thread may have done so already.
#[cold]
fn empty<T>(slot: &Slot<T>, state: u64) {
    let emptying = state + ((EMPTYING - CLOSING) << PHASE_SHIFT);
    if slot.state.compare_exchange(state, emptying, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        // Another user has entered meanwhile, and empties the slot when leaving, or has done so.
        return;
    }
    let value = slot.value.swap(ptr::null_mut(), Ordering::Relaxed);
    slot.state.fetch_sub(EMPTYING << PHASE_SHIFT, Ordering::Release);
    if !value.is_null() {
        // SAFETY: the pointer was made by `Box::into_raw`; only one thread gets here from a closing slot, nobody uses
        // the value in this phase, and nobody finds it afterwards.
        drop(unsafe { Box::from_raw(value) });
    }
}
