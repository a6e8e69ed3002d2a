//! What a program is told when a tag sleeps and wakes.
//!
//! Owns: [`SleepNotice`]. The allocator calls the program.

use crate::ids::PoolId;

/// When a program is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SleepStage {
    /// A tag is about to sleep: its memory is there, and nothing else was done. Who has registered it elsewhere, such as with NCCL,
    /// ends that now.
    BeforeSleep,
    /// It sleeps: after it fell asleep, or after waking it failed.
    Asleep,
    /// It is about to wake: nothing was done.
    BeforeWake,
    /// It is awake: after it woke, or after sleeping failed. Its memory is at the same addresses, and is other memory; who has ended a
    /// registration makes it anew.
    Awake,
}

/// What a callback is told of a tag ([`Tags::on_change`](crate::operations::Tags::on_change)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SleepNotice {
    /// When.
    pub stage: SleepStage,
    /// The tag.
    pub tag: PoolId,
    /// The physical memory that it has while it is awake.
    pub bytes: u64,
}
