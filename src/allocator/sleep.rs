//! Private pools sleep and wake: the public operations.
//!
//! Owns: which pools may sleep, and the memory that is given back to make room for a pool that wakes.
//! `backing/sleep.rs` makes the calls.

use super::borrowing::ask_others;
use super::core::{Allocator, Core};
use super::operations::Tags;
use super::release::reclaim;
use crate::backing::{self, Miss};
use crate::error::{Error, Result};
use crate::features::lending::Asking;
use crate::heap::{Backup, Request};
use crate::ids::{Class, PoolId, ViewId};
use crate::report::sleep::SleepStage;
use crate::strategy::Goal;

impl Allocator {
    fn fall_asleep(&self, tag: PoolId, backup: &Backup) -> Result<u64> {
        let core = &mut *self.core.lock();
        core.may_sleep(tag)?;
        let slept = core.timed(|_, context| {
            context.wait_for_all()?;
            let slept = backing::sleep(context, tag, backup);
            backing::bound_backups(context);
            slept
        });
        core.checked()?;
        slept
    }

    fn wake_up(&self, tag: PoolId) -> Result<u64> {
        let guard = &mut self.core.lock();
        let mut asking = Asking::new();
        loop {
            let core = &mut **guard;
            core.may_sleep(tag)?;
            let bytes = core.heap.bytes_asleep(tag);
            let woken = core.wake(tag, bytes);
            core.timed(|_, context| backing::bound_backups(context));
            core.checked()?;
            let refused = match woken {
                Ok(bytes) => return Ok(bytes),
                Err(Miss::Failed(error)) => return Err(error),
                Err(Miss::OutOfMemory { refused }) => refused,
            };
            let lent = core.missing_of_device(bytes).and_then(|missing| ask_others(&mut asking, guard, missing));
            if lent.is_none() {
                guard.features.lending.told = asking.told();
                let pool = guard.heap.pair_of(tag).unwrap_or(guard.heap.idle());
                let class = Class::Large;
                let request = Request { size: bytes, requested: bytes, pool, class, extends: ViewId::NONE };
                return Err(guard.out_of_memory(&request, refused));
            }
        }
    }
}

impl Tags<'_> {
    /// Makes a new tag: a private pool with one use, as [`Pools::create`](crate::operations::Pools::create) does, with
    /// chunks of its own. While the tag lives, it takes no free memory of other pools, and they take none of its
    /// memory.
    ///
    /// # Errors
    /// [`Error::NotSleepable`] with other strategies than `stitch`; [`Error::HostMemory`].
    pub fn create(self) -> Result<PoolId> {
        let core = &mut *self.0.core.lock();
        core.may_have_tags(PoolId::NONE)?;
        let pool = core.heap.private_mut().create()?;
        core.heap.private_mut().set_apart(pool);
        Ok(pool)
    }

    /// Adds one use to the tag of this id, which is made if it does not exist; for programs that choose the ids
    /// themselves.
    ///
    /// # Errors
    /// The errors of [`Self::create`]; [`Error::UnknownPool`] for [`PoolId::NONE`]; [`Error::PoolInUse`] if a private
    /// pool of this id was used already without chunks of its own, or has segments of its own.
    pub fn open(self, pool: PoolId) -> Result<()> {
        let core = &mut *self.0.core.lock();
        core.may_have_tags(pool)?;
        if !core.heap.private().is_apart(pool) {
            let has_pairs = core.heap.has_pairs(pool);
            if core.heap.private().segments(pool).is_some() || has_pairs {
                return Err(Error::PoolInUse { pool });
            }
        }
        core.heap.private_mut().open(pool)?;
        core.heap.private_mut().set_apart(pool);
        Ok(())
    }

    /// Gives all physical memory of a tag back to the driver, and keeps the contents of its live blocks as `backup`
    /// says. Returns the bytes given back: 0 if the tag holds none, or sleeps already. Waits for the device first.
    ///
    /// The addresses of blocks and views stay, and graphs that were captured with these addresses stay valid. Until
    /// [`Self::wake`] has returned, **no work of any stream, device or process may use the tag's memory**, and no graph
    /// that uses the memory may be launched: the device would access addresses without memory. Meanwhile blocks of the
    /// tag can be freed; requests for the tag fail with [`Error::PoolAsleep`].
    ///
    /// # Errors
    /// [`Error::NotSleepable`] for a pool that is no tag, for memory that is shared with other processes or pinned
    /// ([`Sharing::pin_physical`](crate::operations::Sharing::pin_physical)), in guard mode, and during a stream
    /// capture; [`Error::UnknownPool`] if the tag has no use; [`Error::HostMemory`] if the backup does not fit;
    /// [`Error::Backup`] if its file fails; [`Error::Driver`]. After an error the tag is awake, and its memory is as
    /// before.
    pub fn sleep(self, tag: PoolId, backup: &Backup) -> Result<u64> {
        let Some(change) = self.0.begin_change(tag, SleepStage::BeforeSleep)? else { return Ok(0) };
        let slept = self.0.fall_asleep(tag, backup);
        change.end(slept.is_ok());
        slept
    }

    /// Gives a sleeping tag its memory again, at the same addresses, with the contents of its live blocks. Returns the
    /// bytes taken: 0 if the tag does not sleep. If too little memory is left, free memory of other pools is given back
    /// first, as by [`Allocator::trim`](crate::Allocator::trim).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::UnknownPool`] if the tag has no use; [`Error::NotSleepable`] during a stream
    /// capture; [`Error::Backup`] if the file fails; [`Error::HostMemory`]; [`Error::Driver`]. After an error the tag
    /// still sleeps, its backup is kept, and the call can be repeated.
    pub fn wake(self, tag: PoolId) -> Result<u64> {
        let Some(change) = self.0.begin_change(tag, SleepStage::BeforeWake)? else { return Ok(0) };
        let woken = self.0.wake_up(tag);
        change.end(woken.is_ok());
        woken
    }

    /// Gives page-locked memory that was kept for backups ([`Backup::Pinned`]), and that no sleeping tag needs, back to
    /// the host. Returns the bytes given back.
    ///
    /// # Errors
    /// [`Error::NotSleepable`] during a stream capture; [`Error::Driver`]; memory that was not given back is kept.
    pub fn release_backups(self) -> Result<u64> {
        let core = &mut *self.0.core.lock();
        if core.capturing() {
            let why = "a stream may be being captured: end the capture, and its route, first";
            return Err(Error::NotSleepable { pool: PoolId::NONE, why });
        }
        Ok(core.timed(|_, context| backing::release_backups(context))?)
    }

    /// Returns whether a tag sleeps.
    #[must_use]
    pub fn is_asleep(self, tag: PoolId) -> bool {
        self.0.core.lock().heap.private().asleep(tag).is_some()
    }
}

impl Core {
    /// Wakes a tag of which `bytes` bytes sleep. If there is too little room, free memory of other pools goes back
    /// first.
    fn wake(&mut self, tag: PoolId, bytes: u64) -> std::result::Result<u64, Miss> {
        let mut woken = self.timed(|_, context| backing::wake(context, tag));
        for everything in [false, true] {
            if !matches!(woken, Err(Miss::OutOfMemory { .. })) {
                break;
            }
            woken = self.timed(|strategy, context| {
                let missing = context.missing(bytes);
                let down_to = context.heap().reserved().saturating_sub(missing);
                let goal = if everything { Goal::Everything } else { Goal::DownTo { down_to, may_wait: true } };
                reclaim(strategy, context, goal)?;
                backing::wake(context, tag)
            });
        }
        woken
    }

    fn may_have_tags(&self, pool: PoolId) -> Result<()> {
        if self.rules.abilities.sleeps {
            return Ok(());
        }
        let why = "only the strategy `stitch` has memory that can go from under its addresses";
        Err(Error::NotSleepable { pool, why })
    }
}
