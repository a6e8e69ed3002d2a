//! Handles: numbers that C holds instead of pointers.
//!
//! Owns: the table of live instances, who is using one at this moment, and that an instance is dropped when it is
//! destroyed and the last call has left it, and never before.
//!
//! A handle is an index and a generation; a generation is given once, so a stale handle finds its slot taken by another
//! or by nobody. A call enters and leaves with one atomic operation each, and takes no lock:
//! ```text
//! state of a slot   | generation: 32 bits | phase: 2 | users: 30 |
//! phases            Free -> Open (generation + 1) -> Closing -> Emptying -> Free
//! ```
//! Calls with a stale handle come and go in every phase: they add themselves, see that the generation or the phase is
//! not theirs, and leave without a look at the instance. While it is `Closing`, whoever leaves last empties the slot.

use crate::fork;
use crate::ids::AllocatorId;
use crate::instance::Instance;
use crate::status::{Failure, Outcome, Status};
use parking_lot::Mutex;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The most instances that may live at once: two for each device of the largest machines many times over, in 16 KiB.
const SLOTS: usize = 1024;

const PHASE_SHIFT: u32 = 30;
const GENERATION_SHIFT: u32 = 32;
const USERS: u64 = (1 << PHASE_SHIFT) - 1;

/// What becomes of a slot.
const FREE: u64 = 0;
const OPEN: u64 = 1;
const CLOSING: u64 = 2;
const EMPTYING: u64 = 3;

struct Slot {
    state: AtomicU64,
    /// Of a `Box`, while the slot is open or closing; NULL otherwise.
    instance: AtomicPtr<Instance>,
}

static TABLE: [Slot; SLOTS] =
    [const { Slot { state: AtomicU64::new(FREE), instance: AtomicPtr::new(ptr::null_mut()) } }; SLOTS];
/// Held while a slot is filled, so that no two instances get the same.
static FILLING: Mutex<()> = Mutex::new(());

fn generation(state: u64) -> u64 {
    state >> GENERATION_SHIFT
}

fn phase(state: u64) -> u64 {
    state >> PHASE_SHIFT & 3
}

fn handle(index: usize, generation: u64) -> AllocatorId {
    generation << GENERATION_SHIFT | index as u64
}

/// Whether a slot in this state is that of the handle, and open.
fn is_open(state: u64, id: AllocatorId) -> bool {
    state >> PHASE_SHIFT == generation(id) << (GENERATION_SHIFT - PHASE_SHIFT) | OPEN
}

fn slot(id: AllocatorId) -> Outcome<&'static Slot> {
    TABLE.get((id & u64::from(u32::MAX)) as usize).ok_or_else(|| stale(id))
}

#[cold]
fn stale(id: AllocatorId) -> Failure {
    let text = match id {
        0 => "0 is no allocator".to_owned(),
        _ => format!("no allocator has the handle {id:#x}: it was destroyed, or never created"),
    };
    Failure::new(Status::InvalidHandle, text)
}

/// Gives an instance a handle.
pub(crate) fn add(instance: Box<Instance>) -> Outcome<AllocatorId> {
    fork::notice_forks()?;
    let _filling = FILLING.lock();
    for (index, slot) in TABLE.iter().enumerate() {
        let state = slot.state.load(Ordering::Acquire);
        // The last generation is not followed by another: such a slot is used no more.
        if phase(state) != FREE || generation(state) == u64::from(u32::MAX) {
            continue;
        }
        slot.instance.store(Box::into_raw(instance), Ordering::Relaxed);
        // Added, not stored: calls with stale handles may be counted at this moment.
        let opened = slot.state.fetch_add((1 << GENERATION_SHIFT) + (OPEN << PHASE_SHIFT), Ordering::Release);
        return Ok(handle(index, generation(opened) + 1));
    }
    Err(Failure::new(Status::TooManyAllocators, format!("{SLOTS} allocators exist, and no more can")))
}

/// An instance in use: it is not dropped before this is.
pub(crate) struct Use {
    entered: Entered,
    instance: NonNull<Instance>,
}

/// Someone who is counted among the users of a slot.
struct Entered(&'static Slot);

/// The instance of a handle.
#[inline]
pub(crate) fn borrow(id: AllocatorId) -> Outcome<Use> {
    let slot = slot(id)?;
    let entered = Entered(slot);
    let state = slot.state.fetch_add(1, Ordering::Acquire);
    if !is_open(state, id) {
        return Err(stale(id));
    }
    let instance = NonNull::new(slot.instance.load(Ordering::Relaxed)).ok_or_else(|| stale(id))?;
    Ok(Use { entered, instance })
}

/// The instance of a handle that is never destroyed, and its handle.
pub(crate) fn borrow_forever(id: AllocatorId) -> Outcome<(AllocatorId, &'static Instance)> {
    let used = borrow(id)?;
    // SAFETY: it is in use from now on, and so is not dropped.
    let instance = unsafe { used.instance.as_ref() };
    std::mem::forget(used);
    Ok((id, instance))
}

impl Deref for Use {
    type Target = Instance;

    #[inline]
    fn deref(&self) -> &Instance {
        // SAFETY: the slot was open when this use of it was counted, and its instance is not dropped while it is.
        unsafe { self.instance.as_ref() }
    }
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        let left = self.0.state.fetch_sub(1, Ordering::AcqRel) - 1;
        if phase(left) == CLOSING && left & USERS == 0 {
            empty(self.0, left);
        }
    }
}

/// Drops the instance of a slot that was closing and in use by nobody. Another thread may have been faster.
#[cold]
fn empty(slot: &Slot, state: u64) {
    let emptying = state + ((EMPTYING - CLOSING) << PHASE_SHIFT);
    if slot.state.compare_exchange(state, emptying, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        // Someone entered meanwhile, and empties it when leaving, or has.
        return;
    }
    let instance = slot.instance.swap(ptr::null_mut(), Ordering::Relaxed);
    slot.state.fetch_sub(EMPTYING << PHASE_SHIFT, Ordering::Release);
    if !instance.is_null() {
        // SAFETY: it was made by `Box::into_raw`; one thread only gets here from a closing slot, nobody uses the instance
        // in this phase, and nobody finds it afterwards.
        drop(unsafe { Box::from_raw(instance) });
    }
}

/// Takes a handle back: from now on it is refused. The instance is dropped by the last call that is using it, which is
/// this one if no other thread is in one.
pub(crate) fn remove(id: AllocatorId) -> Outcome<()> {
    let instance = borrow(id)?;
    if instance.is_permanent {
        let text = "the allocator is that of seamalloc_malloc, which uses it as long as the process lives";
        return Err(Failure::new(Status::InvalidHandle, text));
    }
    let mut state = instance.entered.0.state.load(Ordering::Relaxed);
    while is_open(state, id) {
        let closing = state + ((CLOSING - OPEN) << PHASE_SHIFT);
        match instance.entered.0.state.compare_exchange_weak(state, closing, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Ok(()),
            Err(now) => state = now,
        }
    }
    // Another thread has destroyed it at the same moment.
    Err(stale(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance() -> Box<Instance> {
        Instance::open("sim:h200", "").unwrap()
    }

    #[test]
    fn an_instance_in_use_outlives_its_handle() {
        let id = add(instance()).unwrap();
        let used = borrow(id).unwrap();
        remove(id).unwrap();
        assert_eq!(borrow(id).map(drop).unwrap_err().status, Status::InvalidHandle);
        assert_eq!(remove(id).unwrap_err().status, Status::InvalidHandle);
        assert_eq!(used.allocator.allocate(512, seamalloc::driver::StreamId(3)).map(|address| address % 512), Ok(0));
        let slot = used.entered.0;
        assert_eq!(phase(slot.state.load(Ordering::Relaxed)), CLOSING);
        drop(used);
        assert_ne!(phase(slot.state.load(Ordering::Relaxed)), CLOSING);
    }

    #[test]
    fn one_that_is_permanent_stays() {
        let mut boxed = instance();
        boxed.is_permanent = true;
        let (id, forever) = borrow_forever(add(boxed).unwrap()).unwrap();
        assert!(remove(id).unwrap_err().text.contains("seamalloc_malloc"));
        assert!(std::ptr::eq(forever, &*borrow(id).unwrap()));
    }

    #[test]
    fn a_slot_is_open_to_one_generation() {
        let state = 7 << GENERATION_SHIFT | OPEN << PHASE_SHIFT | 12;
        assert!(is_open(state, handle(3, 7)));
        for other in [handle(3, 6), handle(3, 8), 0, u64::MAX] {
            assert!(!is_open(state, other), "{other:#x}");
        }
        for phase in [FREE, CLOSING, EMPTYING] {
            assert!(!is_open(7 << GENERATION_SHIFT | phase << PHASE_SHIFT, handle(3, 7)));
        }
    }
}
