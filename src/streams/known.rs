//! The streams that may use memory of the allocator.
//!
//! Owns: the set of streams that a gate (`backing/gate.rs`) must hold while memory is exchanged under live addresses.
//! The set has every stream that a request, a free or `record_stream` has named, and every announced stream, until the
//! stream is forgotten.

use super::context::{StreamContext, is_destroyed};
use crate::fallible::{Grown, TryCollect};
use crate::heap::Heap;
use crate::ids::StreamId;
use rustc_hash::FxHashSet;

/// The most streams that are kept. A gate could not hold more streams of a device anyway.
const MOST: usize = 1024;

/// The streams that may use memory of the allocator.
#[derive(Debug, Default)]
pub(crate) struct KnownStreams {
    streams: FxHashSet<StreamId>,
    /// Whether there were more than [`MOST`] streams, so that some are not in the set.
    incomplete: bool,
}

impl KnownStreams {
    /// Adds a stream. Callers add it before any other change, so that the set has every stream that may use memory.
    ///
    /// # Errors
    /// The host has too little memory for the table. The set is unchanged.
    #[inline]
    pub(crate) fn add(&mut self, stream: StreamId) -> Grown<()> {
        if self.streams.contains(&stream) { Ok(()) } else { self.insert(stream) }
    }

    #[cold]
    fn insert(&mut self, stream: StreamId) -> Grown<()> {
        if self.streams.len() >= MOST {
            self.incomplete = true;
        } else {
            self.streams.try_reserve(1)?;
            self.streams.insert(stream);
        }
        Ok(())
    }

    pub(crate) fn forget(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
    }

    /// Returns whether a gate may hold all streams: all streams are known, and no external stream exists.
    pub(crate) fn may_be_held(&self, heap: &Heap) -> bool {
        !self.incomplete && !heap.has_external()
    }

    /// Returns the streams that a gate must hold. Returns `None` if some streams are not known, or if an external
    /// stream exists.
    pub(crate) fn held_streams(&mut self, on: &StreamContext<'_>) -> Grown<Option<Vec<StreamId>>> {
        if !self.may_be_held(on.heap) {
            return Ok(None);
        }
        self.streams.retain(|stream| *stream == StreamId::DEFAULT || !is_destroyed(on.driver, *stream));
        let mut streams = self.streams.iter().copied().try_to_vec()?;
        // The order is the same each time, unlike the order of the table.
        streams.sort_unstable();
        Ok(Some(streams))
    }
}
