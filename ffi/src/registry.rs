//! Handles: numbers that C holds instead of pointers.
//!
//! Owns: the table of live instances, and the parts of a handle: an index and a generation. A generation is used once,
//! so a stale handle finds its slot empty or with another generation. A call enters and leaves with one atomic
//! operation each, and takes no lock (`slots.rs`).

use crate::fork;
use crate::ids::AllocatorId;
use crate::instance::Instance;
use crate::primitive::{AtomicPtr, AtomicU64, Ordering};
use crate::slots::{self, NEVER_USED, Slot};
use crate::status::{Failure, Outcome, Status};
use parking_lot::Mutex;
use std::ops::Deref;
use std::ptr;

/// The most live instances, far more than two for each device of the largest machines. The table of slots takes 16 KiB.
const SLOTS: usize = 1024;
/// The bits of a handle that contain the index.
const INDEX: u64 = u32::MAX as u64;
const GENERATION_SHIFT: u32 = 32;

static TABLE: [Slot<Instance>; SLOTS] =
    [const { Slot { state: AtomicU64::new(NEVER_USED), value: AtomicPtr::new(ptr::null_mut()) } }; SLOTS];
/// The instance of each slot, if it is never destroyed. Calls on such an instance are not counted, since counting would
/// make all threads write to one place.
static PERMANENT: [AtomicPtr<Instance>; SLOTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS];
/// A lock that is held while a slot is filled, so that no two instances get the same slot.
static FILLING: Mutex<()> = Mutex::new(());

/// An instance in use: it is not dropped before this value is.
pub(crate) enum Use {
    Counted(slots::Use<'static, Instance>),
    Permanent(&'static Instance),
}

impl Deref for Use {
    type Target = Instance;

    #[inline]
    fn deref(&self) -> &Instance {
        match self {
            Self::Counted(instance) => instance,
            Self::Permanent(instance) => instance,
        }
    }
}

fn handle(index: usize, generation: u64) -> AllocatorId {
    generation << GENERATION_SHIFT | index as u64
}

fn generation(id: AllocatorId) -> u64 {
    id >> GENERATION_SHIFT
}

#[cold]
fn stale(id: AllocatorId) -> Failure {
    match id {
        0 => Failure::new(Status::InvalidHandle, "0 is no allocator"),
        _ => Failure::new(
            Status::InvalidHandle,
            format_args!("no allocator has the handle {id:#x}: it was destroyed, or never created"),
        ),
    }
}

/// Gives an instance a handle.
pub(crate) fn add(instance: Box<Instance>) -> Outcome<AllocatorId> {
    fork::notice_forks()?;
    let _filling = FILLING.lock();
    match TABLE.iter().enumerate().find(|(_, slot)| slot.is_free()) {
        Some((index, slot)) => Ok(handle(index, slot.fill(instance))),
        None => Err(Failure::new(Status::TooManyAllocators, format_args!("{SLOTS} allocators exist, and no more can"))),
    }
}

/// Returns the instance of a handle.
#[inline]
pub(crate) fn borrow(id: AllocatorId) -> Outcome<Use> {
    let index = (id & INDEX) as usize;
    let (Some(slot), Some(permanent)) = (TABLE.get(index), PERMANENT.get(index)) else { return Err(stale(id)) };
    // SAFETY: the pointer is NULL, or was stored by `borrow_forever`, whose instance is never dropped.
    if let Some(instance) = unsafe { permanent.load(Ordering::Acquire).as_ref() }
        && slot.is_open_to(generation(id))
    {
        return Ok(Use::Permanent(instance));
    }
    slot.enter(generation(id)).map(Use::Counted).ok_or_else(|| stale(id))
}

/// Calls `look` for each instance, with the index of its handle.
pub(crate) fn each(mut look: impl FnMut(u32, &Instance)) {
    for (index, slot) in (0..).zip(&TABLE) {
        let generation = slot.generation();
        if slot.is_open_to(generation)
            && let Ok(instance) = borrow(handle(index as usize, generation))
        {
            look(index, &instance);
        }
    }
}

/// Makes the instance of a handle permanent. Returns its handle and the instance.
pub(crate) fn borrow_forever(id: AllocatorId) -> Outcome<(AllocatorId, &'static Instance)> {
    let instance = match borrow(id)? {
        Use::Permanent(instance) => instance,
        Use::Counted(instance) => instance.for_ever(),
    };
    if let Some(permanent) = PERMANENT.get((id & INDEX) as usize) {
        permanent.store(ptr::from_ref(instance).cast_mut(), Ordering::Release);
    }
    Ok((id, instance))
}

/// Invalidates a handle. The instance is dropped by the last call that uses it, which is the present call if no other
/// thread is in a call.
pub(crate) fn remove(id: AllocatorId) -> Outcome<()> {
    let instance = borrow(id)?;
    if instance.is_permanent {
        let text = "the allocator is that of seamalloc_malloc, which uses it as long as the process lives";
        return Err(Failure::new(Status::InvalidHandle, text));
    }
    match instance {
        // Otherwise another thread has destroyed the allocator at the same moment.
        Use::Counted(instance) if instance.close(generation(id)) => Ok(()),
        _ => Err(stale(id)),
    }
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
        drop(used);
        assert_eq!(borrow(id).map(drop).unwrap_err().status, Status::InvalidHandle);
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
    fn handles_that_were_never_given_are_refused() {
        let id = add(instance()).unwrap();
        for other in [0, id ^ 1 << GENERATION_SHIFT, id + (1 << GENERATION_SHIFT), id | INDEX, u64::MAX] {
            assert_eq!(borrow(other).map(drop).unwrap_err().status, Status::InvalidHandle, "{other:#x}");
        }
    }

    #[test]
    fn a_slot_is_open_to_one_generation_until_its_last_user_has_left() {
        let slot = Slot { state: AtomicU64::new(NEVER_USED), value: AtomicPtr::new(ptr::null_mut()) };
        for round in 1..3 {
            let generation = slot.fill(Box::new(round));
            let used = slot.enter(generation).unwrap();
            for other in [0, generation - 1, generation + 1, u64::from(u32::MAX)] {
                assert!(slot.enter(other).is_none(), "{other}");
            }
            assert!(used.close(generation) && !used.close(generation));
            assert!(slot.enter(generation).is_none() && !slot.is_free());
            assert_eq!((*used, generation), (round, round));
            drop(used);
            assert!(slot.is_free() && slot.enter(generation).is_none());
        }
        slot.state.fetch_or(u64::from(u32::MAX) << GENERATION_SHIFT, std::sync::atomic::Ordering::Relaxed);
        assert!(!slot.is_free(), "its generations are used up");
    }
}
