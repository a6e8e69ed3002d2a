//! Sources of memory for private pools whose memory does not come from the allocator's strategy.
//!
//! Owns: the [`SegmentSource`] trait, and [`Segments`], with which a private pool is opened. `backing/segments.rs`
//! takes segments and gives them back. The pool itself is in `private_pools.rs`.

use crate::fallible::{boxed, text};
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A source of memory for a private pool, segment by segment, in place of `cudaMalloc` and `cudaFree`. Examples are
/// memory that a library has registered, that other devices or hosts can reach, or that lies in a file. PyTorch calls a
/// source the allocator of a `MemPool`.
///
/// The thread that makes a request calls the source, under the allocator's lock. So the source must not call the
/// allocator, which would deadlock, and must not wait for a thread that may. During a stream capture the source is
/// called in relaxed capture mode, so that the source may call `cudaMalloc` and similar functions. A panic counts as a
/// failure.
///
/// A source is dropped under the lock, when the pool has ended and the last segment was given back. If an allocator is
/// dropped while some segments are in use, the source is never dropped.
pub trait SegmentSource: Send {
    /// Returns the address of a new segment of `size` bytes. The size is 2 MiB, the option `large_segment_size_mb` (20
    /// MiB by default), or a multiple of 2 MiB. The address must be a multiple of 512, and the allocator must not
    /// already hold any of the segment's addresses.
    ///
    /// # Errors
    /// [`SourceError::OutOfMemory`]: the allocator gives back the memory that it can, and calls the source once or
    /// twice more. [`SourceError::Failed`]: the request fails.
    fn malloc(&mut self, size: u64) -> Result<u64, SourceError>;

    /// Takes back a whole segment that this source gave. All work that used the segment is done.
    ///
    /// # Errors
    /// [`SourceError::Failed`]: the allocator keeps the segment. The allocator tries again when it next gives memory
    /// back.
    fn free(&mut self, address: u64, size: u64) -> Result<(), SourceError>;
}

/// The reason why a source failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceError {
    /// The source has too little memory.
    OutOfMemory,
    /// Another failure, described by the text.
    Failed(String),
}

/// The memory of a private pool that has segments of its own
/// ([`Pools::open_with`](crate::operations::Pools::open_with)). Such segments are cached and split as in the strategy
/// `caching`, whatever the allocator's strategy is. The segments are never stitched, mapped or unmapped. When the pool
/// has ended, its segments go back to their source, and serve no other pool.
///
pub struct Segments {
    source: Option<Box<dyn Held>>,
    unsplit: bool,
    /// Whether the host had no memory for the source, so that no pool can be opened with these segments.
    unfounded: bool,
}

/// A source in a box.
trait Held: Send {
    fn source(&mut self) -> &mut dyn SegmentSource;
}

impl<S: SegmentSource> Held for [S; 1] {
    fn source(&mut self) -> &mut dyn SegmentSource {
        let [source] = self;
        source
    }
}

impl Segments {
    /// Returns segments from a source. If the host has no memory for the source, opening a pool with these segments
    /// fails with [`Error::HostMemory`](crate::Error::HostMemory).
    pub fn from_source(source: impl SegmentSource + 'static) -> Self {
        let source = boxed(source).map(|source| source as Box<dyn Held>);
        Self { unfounded: source.is_none(), source, unsplit: false }
    }

    /// Returns segments that the driver's `malloc` (`cudaMalloc`) gives.
    #[must_use]
    pub fn by_malloc() -> Self {
        Self { source: None, unsplit: false, unfounded: false }
    }

    /// Keeps each segment one block. Bytes of a segment that its request leaves over serve no other request. PyTorch's
    /// option for this is `no_split`.
    #[must_use]
    pub fn unsplit(mut self) -> Self {
        self.set_unsplit();
        self
    }

    pub(crate) fn set_unsplit(&mut self) {
        self.unsplit = true;
    }

    pub(crate) fn are_unsplit(&self) -> bool {
        self.unsplit
    }

    pub(crate) fn source(&mut self) -> Option<&mut dyn SegmentSource> {
        Some(self.source.as_mut()?.source())
    }

    pub(crate) fn have_source(&self) -> bool {
        self.source.is_some()
    }

    /// Returns whether the host had no memory for the source.
    pub(crate) fn are_unfounded(&self) -> bool {
        self.unfounded
    }

    /// Leaks the source, so that it is never dropped.
    pub(crate) fn leak(&mut self) {
        mem::forget(self.source.take());
    }
}

/// The source is the program's code, and is dropped under the allocator's lock, so a panic in its drop is caught.
impl Drop for Segments {
    fn drop(&mut self) {
        let source = self.source.take();
        let dropped = guarded("when it was dropped", || {
            drop(source);
            Ok(())
        });
        if dropped.is_err() {
            tracing::error!("the segment source of a private pool panicked when it was dropped");
        }
    }
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segments")
            .field("source", &self.source.is_some())
            .field("unsplit", &self.unsplit)
            .finish_non_exhaustive()
    }
}

/// Calls a source, which is the program's code. A panic counts as a failure.
pub(crate) fn guarded<T>(doing: &str, call: impl FnOnce() -> Result<T, SourceError>) -> Result<T, SourceError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        drop(catch_unwind(AssertUnwindSafe(|| drop(panic))));
        Err(SourceError::Failed(text(format_args!("it panicked, {doing}"))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source that must be dropped, and whose drop panics.
    struct Panics;

    impl SegmentSource for Panics {
        fn malloc(&mut self, _: u64) -> Result<u64, SourceError> {
            Err(SourceError::OutOfMemory)
        }

        fn free(&mut self, _: u64, _: u64) -> Result<(), SourceError> {
            Ok(())
        }
    }

    impl Drop for Panics {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new(1));
        }
    }

    #[test]
    fn segments_without_memory_for_their_source_are_no_others() {
        let unfounded = Segments { source: None, unsplit: false, unfounded: true };
        assert!(unfounded.are_unfounded() && !Segments::by_malloc().are_unfounded());
    }

    #[test]
    fn a_source_that_panics_when_it_is_dropped_harms_nobody() {
        drop(Segments::from_source(Panics));
    }
}
