//! The engine that copies between a simulated GPU and page-locked host memory.
//!
//! Owns: the buffers, and the end of each copy. `page_locked.rs` has the calls.

use crate::bookkeeping::HostBuffers;

/// The buffers and the engine.
#[derive(Debug)]
pub(super) struct Copies {
    /// The buffers, each with the time when its last copy ends.
    pub(super) buffers: HostBuffers<u64>,
    /// The time when the last of all copies ends.
    pub(super) ends: u64,
}

impl Copies {
    pub(super) fn new() -> Self {
        Self { buffers: HostBuffers::new(), ends: 0 }
    }
}
