//! The notices that a program gets when a tag (a private pool that can sleep) falls asleep or wakes.
//!
//! Owns: [`SleepNotice`]. The allocator calls the program.

use crate::pool::PoolId;

/// The stage of falling asleep or waking at which a callback is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SleepStage {
    /// A tag is about to sleep: its memory is still mapped. Programs that registered the memory elsewhere, such as with
    /// NCCL, end the registration now.
    BeforeSleep,
    /// The tag sleeps: after it fell asleep, or after waking it failed.
    Asleep,
    /// The tag is about to wake: its memory is not mapped yet.
    BeforeWake,
    /// The tag is awake: after it woke, or after sleeping failed. The addresses are the same, but the physical memory
    /// is new; programs that ended a registration register the memory again.
    Awake,
}

/// The notice of a tag's change that a callback gets (`Tags::on_change`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SleepNotice {
    /// The stage of the change.
    pub stage: SleepStage,
    /// The tag.
    pub tag: PoolId,
    /// Bytes of physical memory that the tag has while it is awake.
    pub bytes: u64,
}

impl SleepNotice {
    /// Returns the notice of a stage.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(stage: SleepStage, tag: PoolId, bytes: u64) -> Self {
        Self { stage, tag, bytes }
    }
}
