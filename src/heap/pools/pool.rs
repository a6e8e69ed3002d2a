//! A pool: the free blocks that requests of one stream and one class may take.
//!
//! Owns: [`Pool`]. A pool does not know how its blocks are used.

use crate::heap::sorted::SortedSet;
use crate::ids::{BlockId, Class, StreamId};

/// The free blocks that requests of one stream and one class may take.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) stream: StreamId,
    /// Whether the pool is part of a private pool, or is vacant (left by an ended private pool, for a later use).
    pub(crate) private: bool,
    /// Whether the pool is part of a private pool with chunks of its own.
    pub(crate) apart: bool,
    pub(crate) class: Class,
    /// The unmapped blocks, by address.
    pub(crate) unmapped: SortedSet<(u64, BlockId)>,
    /// The open epoch of the pool's stream. `freed_at` of free blocks at home is a number of such an epoch.
    pub(crate) epoch: u64,
    /// Whether any memory was freed in the open epoch.
    pub(crate) freed_in_epoch: bool,
    /// The bytes that the program freed on the pool's stream since an epoch of the stream last ended because of many
    /// freed bytes.
    pub(crate) freed_bytes: u64,
    /// The first epoch that the GPU has not passed yet.
    pub(crate) passed: u64,
    /// For a private pool: whether some of its free memory was used outside of the present capture. Only the pool's own
    /// stream may take such memory.
    pub(crate) in_stream_order: bool,
    /// Whether memory of the stream's pair of pools was freed while another stream was current, without an event on the
    /// other stream. Only the pool's stream may take the memory until the CPU has waited for the device.
    pub(crate) used_by_others: bool,
    /// Whether the pool's stream has ended. All work of an ended stream is done.
    pub(crate) ended: bool,
    /// A number that distinguishes the stream from other streams with the same handle; `None` if the driver gives no
    /// number.
    pub(crate) number: Option<u64>,
}

impl Pool {
    pub(in crate::heap) fn new(stream: StreamId, private: bool, class: Class) -> Self {
        Self {
            stream,
            private,
            apart: false,
            class,
            unmapped: SortedSet::default(),
            epoch: 1,
            freed_in_epoch: false,
            freed_bytes: 0,
            passed: 0,
            in_stream_order: false,
            used_by_others: false,
            ended: false,
            number: None,
        }
    }
}
