//! [`Stream`], a stream that the allocator forgets when it is dropped.

use crate::allocator::Allocator;
use crate::error::Result;
use crate::ids::StreamId;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A stream of the program. When the value is dropped, the allocator forgets the stream
/// ([`Streams::forget`](crate::operations::Streams::forget)), and then `held`, which keeps the stream alive, is
/// dropped.
///
/// `S` is the type of `held`: `Arc<CudaStream>` of cudarc with the feature `cudarc`, a `Stream` of cust, any type of
/// the program whose drop destroys the stream. `()` is for a handle that the program looks after itself.
///
/// ```
/// use seamalloc::{Allocator, Stream, StreamId};
/// # fn handle_of_c() -> *mut u8 { std::ptr::without_provenance_mut(7) }
///
/// let allocator = Allocator::open("sim:h200", "")?;
/// let stream = Stream::new(&allocator, handle_of_c());
/// let block = allocator.block(1 << 20, &stream)?;
/// drop(block);
/// // The stream's memory serves other streams from here on, and its handle may name another stream.
/// drop(stream);
/// # Ok::<(), seamalloc::Error>(())
/// ```
///
/// **What drop does.** The CPU waits for the stream's work, which is short if the program has waited itself. Live
/// blocks of the stream stay valid. If the wait fails, as it does while a stream is captured, the error is logged, and
/// `held` is dropped nevertheless; [`Self::forget`] returns the error. Drop the value before the stream is destroyed,
/// and after the last call that names the stream.
#[must_use = "a stream that is not kept is forgotten at once"]
pub struct Stream<A: Deref<Target = Allocator> = Arc<Allocator>, S = ()> {
    allocator: A,
    id: StreamId,
    is_forgotten: bool,
    /// The value that keeps the stream alive. It is dropped after the stream was forgotten.
    held: S,
}

impl<A: Deref<Target = Allocator>> Stream<A> {
    /// Names a stream by its handle, as other CUDA bindings return it: `cu_stream()` of cudarc, `as_inner()` of cust, a
    /// `cudaStream_t` of C, a [`StreamId`]. On a real GPU, other handles than the driver's own need
    /// [`Allocator::open_trusting`].
    pub fn new(allocator: A, handle: impl Into<StreamId>) -> Self {
        Self { allocator, id: handle.into(), is_forgotten: false, held: () }
    }
}

impl<A: Deref<Target = Allocator>, S> Stream<A, S> {
    /// Names the stream of `held`, and keeps it alive: `Stream::holding(&allocator, stream, |stream|
    /// stream.as_inner())`.
    pub fn holding<H: Into<StreamId>>(allocator: A, held: S, handle: impl FnOnce(&S) -> H) -> Self {
        let id = handle(&held).into();
        Self { allocator, id, is_forgotten: false, held }
    }

    /// Returns the handle of the stream.
    #[must_use]
    #[inline]
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Returns the value that keeps the stream alive.
    #[must_use]
    pub fn held(&self) -> &S {
        &self.held
    }

    /// Makes the allocator forget the stream now. Afterwards, dropping the value does nothing.
    ///
    /// # Errors
    /// The errors of [`Streams::forget`](crate::operations::Streams::forget); after an error the stream stays
    /// registered.
    pub fn forget(&mut self) -> Result<()> {
        self.allocator.streams().forget(self.id)?;
        self.is_forgotten = true;
        Ok(())
    }
}

impl<A: Deref<Target = Allocator>, S> Drop for Stream<A, S> {
    fn drop(&mut self) {
        if !self.is_forgotten
            && let Err(error) = self.allocator.streams().forget(self.id)
        {
            tracing::error!(%error, stream = %self.id, "a stream that is dropped could not be forgotten");
        }
    }
}

impl<A: Deref<Target = Allocator>, S> From<&Stream<A, S>> for StreamId {
    #[inline]
    fn from(stream: &Stream<A, S>) -> Self {
        stream.id
    }
}

impl<A: Deref<Target = Allocator>, S> fmt::Debug for Stream<A, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).finish_non_exhaustive()
    }
}
