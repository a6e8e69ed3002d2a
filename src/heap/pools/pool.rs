//! A pool: the free blocks that requests of one stream and one class may take.
//!
//! Owns: [`Pool`]. A pool does not know what its blocks are used for.

use crate::heap::sorted::SortedSet;
use crate::ids::{BlockId, Class, StreamId};

/// The free blocks that requests of one stream and one class may take.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) stream: StreamId,
    /// Whether the pool is part of a private pool, or is vacant.
    pub(crate) private: bool,
    /// Whether the pool is part of a private pool with chunks of its own.
    pub(crate) apart: bool,
    pub(crate) class: Class,
    /// Unmapped blocks by address.
    pub(crate) unmapped: SortedSet<(u64, BlockId)>,
    /// The open epoch of the pool's stream. `freed_at` of free blocks at home is such an epoch.
    pub(crate) epoch: u64,
    /// Whether anything was freed in the open epoch.
    pub(crate) freed_in_epoch: bool,
    /// Bytes that the program freed on the pool's stream since an epoch was last ended for its length.
    pub(crate) freed_bytes: u64,
    /// The first epoch that the GPU has not passed yet.
    pub(crate) passed: u64,
    /// For a private pool: whether some of its free memory was used outside of the present capture, so that only this
    /// stream may take it.
    pub(crate) in_stream_order: bool,
    /// Whether memory of the pair was freed while another stream was the current one, without an event on that stream:
    /// until the CPU has waited for the device, only the pool's stream may take the memory.
    pub(crate) used_by_others: bool,
    /// Whether the pool's stream has ended and all work of the stream is done.
    pub(crate) ended: bool,
    /// A number that tells the stream from other streams with the same handle, if the driver gives one.
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
