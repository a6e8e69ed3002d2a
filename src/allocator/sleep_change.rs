//! The callbacks of a program that are told when a tag falls asleep or wakes.
//!
//! Owns: which callbacks are told of which stage. A callback that agreed to a change is always told the result of the
//! change.

use super::core::{Allocator, Core};
use super::operations::Tags;
use crate::error::{Error, Result};
use crate::features::pressure::CallbackId;
use crate::features::sleep::{Callback, call};
use crate::ids::PoolId;
use crate::report::sleep::{SleepNotice, SleepStage};
use std::sync::Arc;

/// A change of a tag (sleep or wake) that callbacks were asked about. [`Self::end`] tells them the result.
pub(super) struct Change<'a> {
    allocator: &'a Allocator,
    told: Vec<Callback>,
    pub(super) notice: SleepNotice,
}

impl<'a> Change<'a> {
    /// Asks all callbacks whether a tag may change. The tag is marked as changing.
    ///
    /// # Errors
    /// [`Error::NotSleepable`] if one refuses; [`Error::HostMemory`]. Callbacks that had agreed were told that the tag
    /// stayed as it was.
    pub(super) fn begin(allocator: &'a Allocator, notice: SleepNotice) -> Result<Self> {
        let mut change = Self { allocator, told: Vec::new(), notice };
        let callbacks = allocator.sleep_callbacks.all()?;
        change.told.try_reserve(callbacks.len())?;
        for callback in callbacks {
            if !call(&callback, &notice) {
                change.end(false);
                return Err(Error::NotSleepable { pool: notice.tag, why: "a callback of `on_sleep` refused" });
            }
            change.told.push(callback);
        }
        Ok(change)
    }

    /// Tells the result to all callbacks that agreed, the last one first.
    pub(super) fn end(mut self, done: bool) {
        let falls = self.notice.stage == SleepStage::BeforeSleep;
        let stage = if falls == done { SleepStage::Asleep } else { SleepStage::Awake };
        let notice = SleepNotice::new(stage, self.notice.tag, self.notice.bytes);
        while let Some(callback) = self.told.pop() {
            call(&callback, &notice);
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.allocator.core.lock().heap.private_mut().set_turning(self.notice.tag, false);
    }
}

impl Allocator {
    /// Begins a change (sleep or wake) of a tag. Returns `None` if the tag needs no change.
    pub(super) fn begin_change(&self, tag: PoolId, stage: SleepStage) -> Result<Option<Change<'_>>> {
        let notice = {
            let core = &mut *self.core.lock();
            core.may_sleep(tag)?;
            if core.heap.private().asleep(tag).is_some() != (stage == SleepStage::BeforeWake) {
                return Ok(None);
            }
            if core.heap.private().get(tag).is_some_and(|pool| pool.turning) {
                let why = "another call lets it sleep, or wakes it, at this moment";
                return Err(Error::NotSleepable { pool: tag, why });
            }
            let bytes = core.heap.sleeper(tag)?.bytes();
            core.heap.private_mut().set_turning(tag, true);
            SleepNotice::new(stage, tag, bytes)
        };
        Change::begin(self, notice).map(Some)
    }
}

impl Tags<'_> {
    /// Registers `callback` for tags that sleep and wake, for programs that have registered a tag's memory elsewhere:
    /// with NCCL, for RDMA, in pools of other libraries. The callback runs before and after each change, in the thread
    /// that makes the change ([`SleepStage`]). Before a change, the answer `false` refuses the change with
    /// [`Error::NotSleepable`]. Each callback that agreed is told the result of the change, also after a failure, in
    /// reverse order.
    ///
    /// The callback runs without any lock of the allocator, and may call every method, such as
    /// [`Pools::blocks`](crate::operations::Pools::blocks) for the addresses. Only `sleep` and `wake` of the same tag
    /// are refused meanwhile. A callback that panics counts as a refusal. A callback should hold the allocator by
    /// [`std::sync::Weak`].
    ///
    /// ```
    /// use seamalloc::{Allocator, Backup, SleepStage};
    /// use std::sync::{Arc, Mutex};
    ///
    /// let allocator = Allocator::open("sim:h200", "")?;
    /// let told = Arc::new(Mutex::new(Vec::new()));
    /// let seen = Arc::clone(&told);
    /// allocator.tags().on_change(move |notice| {
    ///     seen.lock().is_ok_and(|mut seen| {
    ///         seen.push(notice.stage);
    ///         true
    ///     })
    /// })?;
    /// let tag = allocator.tags().create()?;
    /// allocator.tags().sleep(tag, &Backup::Discard)?;
    /// assert_eq!(*told.lock().unwrap(), [SleepStage::BeforeSleep, SleepStage::Asleep]);
    /// # Ok::<(), seamalloc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::HostMemory`].
    pub fn on_change(self, callback: impl Fn(&SleepNotice) -> bool + Send + Sync + 'static) -> Result<CallbackId> {
        Ok(self.0.sleep_callbacks.add(Arc::new(callback))?)
    }

    /// Removes a callback of [`Self::on_change`]. Returns whether it was registered. A change under way still tells the
    /// callback its result.
    pub fn remove_callback(self, callback: CallbackId) -> bool {
        self.0.sleep_callbacks.remove(callback)
    }
}

impl Core {
    /// Refuses a pool that can neither sleep nor wake at present.
    pub(super) fn may_sleep(&mut self, pool: PoolId) -> Result<()> {
        self.heap.private_mut().used(pool)?;
        let why = if !self.heap.private().is_apart(pool) {
            "it shares chunks with others: make it by `create_tag` or `open_tag`, before it has memory"
        } else if self.features.guard.is_some() {
            "guard mode is on, which looks at freed memory and keeps blocks apart"
        } else if self.capturing() {
            "a stream may be being captured: end the capture, and its route, first"
        } else {
            return Ok(());
        };
        Err(Error::NotSleepable { pool, why })
    }
}
