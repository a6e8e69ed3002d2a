//! Where the memory of a private pool comes from when it does not come from the allocator's strategy.
//!
//! Owns: the [`SegmentSource`] trait, and [`Segments`], which a private pool is opened with. Taking segments and giving
//! them back is strategy/segmented.rs's, the pool itself pools.rs's.

use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Gives a private pool its memory, segment by segment, in the place of `cudaMalloc` and `cudaFree`: memory that a library
/// has registered, that other devices or hosts can reach, that lies in a file. What PyTorch calls the allocator of a
/// `MemPool`.
///
/// It is called under the allocator's lock, by the thread whose request it is: it must not call the allocator, which would
/// wait for itself for ever, nor wait for a thread that may. During a stream capture it is called in relaxed capture mode,
/// so that it may call `cudaMalloc` and its kin. Where it panics, it counts as having failed.
///
/// It is dropped when the pool has ended and the last of its segments went back, under the lock too. Where an allocator is
/// dropped while some of its segments are in use, it is not dropped at all.
pub trait SegmentSource: Send {
    /// A segment of `size` bytes: 2 MiB, the option `large_segment_size_mb` (20 MiB), or a multiple of 2 MiB. The address
    /// of its first byte, a multiple of 512, at which no memory lies that the allocator has already.
    ///
    /// # Errors
    /// [`SourceError::OutOfMemory`], whereupon the allocator gives back what it can and asks once more or twice;
    /// [`SourceError::Failed`], which ends the request.
    fn malloc(&mut self, size: u64) -> Result<u64, SourceError>;

    /// Takes back a whole segment that it gave. Everything that used it is done.
    ///
    /// # Errors
    /// [`SourceError::Failed`]: the allocator keeps the segment, and tries again when it next gives memory back.
    fn free(&mut self, address: u64, size: u64) -> Result<(), SourceError>;
}

/// Why a source did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceError {
    /// It has too little memory.
    OutOfMemory,
    /// Something else, in words.
    Failed(String),
}

/// The memory of a private pool that has segments of its own ([`Allocator::open_pool_with`]). They are cached and split as
/// the strategy `caching` does, whatever the allocator's strategy: never stitched, never mapped or unmapped. When the pool
/// has ended, they go back where they came from, and serve nobody else.
///
/// [`Allocator::open_pool_with`]: crate::Allocator::open_pool_with
pub struct Segments {
    source: Option<Box<dyn SegmentSource>>,
    unsplit: bool,
}

impl Segments {
    /// Segments from a source.
    pub fn from_source(source: impl SegmentSource + 'static) -> Self {
        Self { source: Some(Box::new(source)), unsplit: false }
    }

    /// Segments by the driver's `malloc` (`cudaMalloc`).
    #[must_use]
    pub fn by_malloc() -> Self {
        Self { source: None, unsplit: false }
    }

    /// The same, of which each is one block: what a request leaves of it serves no other. PyTorch's `no_split`.
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
        self.source.as_mut().map(|source| &mut **source as &mut dyn SegmentSource)
    }

    pub(crate) fn have_source(&self) -> bool {
        self.source.is_some()
    }

    /// The source is never dropped.
    pub(crate) fn leak(&mut self) {
        mem::forget(self.source.take());
    }
}

/// It is the program's code, under the allocator's lock.
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

/// A call of a source, which is the program's code: a panic is a failure.
pub(crate) fn guarded<T>(doing: &str, call: impl FnOnce() -> Result<T, SourceError>) -> Result<T, SourceError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        drop(catch_unwind(AssertUnwindSafe(|| drop(panic))));
        Err(SourceError::Failed(format!("it panicked, {doing}")))
    })
}
