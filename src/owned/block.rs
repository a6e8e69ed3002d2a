//! [`Block`], an allocation that frees itself.

use super::last_use::LastUse;
use super::raw_block::RawBlock;
use crate::allocator::Allocator;
use crate::error::{Error, Result};
use crate::ids::{PoolId, StreamId};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A live allocation, which is freed when it is dropped.
///
/// `A` is the pointer to the allocator. A `Block<&Allocator>` costs what [`Allocator::allocate`] and
/// [`Allocator::free`] cost. A `Block<Arc<Allocator>>`, also written `Block`, keeps the allocator alive, can be stored
/// in any type of the program, and costs two more atomic operations.
///
/// ```
/// use seamalloc::{Allocator, Block, StreamId};
/// use std::sync::Arc;
///
/// let allocator = Arc::new(Allocator::open("sim:h200", "")?);
/// let (copies, compute) = (StreamId(7), StreamId(8));
///
/// // Borrowed: for a function, a step, a scope.
/// let scratch = allocator.block(10 << 20, compute)?;
/// assert_eq!((scratch.len(), scratch.stream()), (10 << 20, compute));
/// drop(scratch);
///
/// // Counted: for a struct, a thread, a static.
/// let mut weights = Block::new(Arc::clone(&allocator), 1 << 30, copies)?;
/// // Another stream reads the block last, and the memory waits for both streams.
/// weights.set_last_use(compute);
/// drop(weights);
/// assert_eq!(allocator.stats().allocation.all.current, 0);
/// # Ok::<(), seamalloc::Error>(())
/// ```
///
/// **What drop does.** The drop frees the allocation, on the block's own stream or on the stream of
/// [`Self::set_last_use`]. The drop does not wait, and does not panic, so it is safe while the program unwinds. If the
/// free fails, the block stays live, and an error of `tracing` says so: memory that may be in use is not given away.
/// Call [`Self::free`] to see the error. A block in a `static` is not dropped at exit; a block of a thread is dropped
/// with the thread. After CUDA has shut down, the free, or the end of the allocator, fails with an error.
///
/// Drop no block in an observer, a segment source or a filter of a [`Route`](crate::Route): these run under the
/// allocator's lock.
#[must_use = "a block that is not kept is freed at once"]
pub struct Block<A: Deref<Target = Allocator> = Arc<Allocator>> {
    allocator: A,
    /// The address; 0 if there is nothing to free.
    address: u64,
    len: u64,
    last_use: LastUse,
}

impl Allocator {
    /// Allocates `size` bytes for work on `stream`, as [`Self::allocate`] does, and frees them when the block is
    /// dropped. [`Block::new`] with an `Arc` makes a block that does not borrow the allocator.
    ///
    /// # Errors
    /// The errors of [`Self::allocate`].
    #[inline]
    pub fn block(&self, size: u64, stream: impl Into<StreamId>) -> Result<Block<&Self>> {
        Block::new(self, size, stream)
    }
}

impl<A: Deref<Target = Allocator>> Block<A> {
    /// Allocates `size` bytes for work on `stream`. A block of 0 bytes has address 0.
    ///
    /// # Errors
    /// The errors of [`Allocator::allocate`].
    #[inline]
    pub fn new(allocator: A, size: u64, stream: impl Into<StreamId>) -> Result<Self> {
        let stream = stream.into();
        let address = allocator.allocate(size, stream)?;
        Ok(Self { allocator, address, len: size, last_use: LastUse::on(stream) })
    }

    /// Allocates `size` bytes from a private pool, as [`Pools::allocate`](crate::operations::Pools::allocate) does.
    pub(super) fn new_in(allocator: A, pool: PoolId, size: u64, stream: StreamId) -> Result<Self> {
        let address = allocator.pools().allocate(pool, size, stream)?;
        Ok(Self { allocator, address, len: size, last_use: LastUse::on(stream) })
    }

    /// Takes ownership of an allocation of `allocator` that no other owner frees, such as a value of
    /// [`Self::into_raw`], or an address of [`Allocator::allocate`] or of the C library.
    ///
    /// The values are not checked. If no live allocation starts at the address, the free fails when the block is
    /// dropped, and the error is logged.
    pub fn from_raw(allocator: A, raw: RawBlock) -> Self {
        let RawBlock { address, size, stream } = raw;
        Self { allocator, address, len: size, last_use: LastUse::on(stream) }
    }

    /// Returns the allocation as a plain value, which no longer frees itself. A stream of [`Self::set_last_use`] is
    /// named to the allocator ([`Allocator::record_stream`]); if this fails, the error is logged.
    #[must_use = "the allocation leaks unless somebody frees it"]
    pub fn into_raw(mut self) -> RawBlock {
        let raw = RawBlock { address: self.address, size: self.len, stream: self.last_use.own() };
        self.last_use.leave(&self.allocator, self.address);
        self.forget();
        raw
    }

    /// Returns the address of the first byte on the device: a multiple of 512, or 0 for a block of 0 bytes.
    #[must_use]
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the address as a pointer, for C functions that take pointers. The CPU may not dereference a pointer to
    /// GPU memory.
    #[must_use]
    #[inline]
    pub fn as_ptr<T>(&self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }

    /// Returns the bytes that were asked for.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the block has no memory.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the stream that the block was allocated for.
    #[must_use]
    #[inline]
    pub fn stream(&self) -> StreamId {
        self.last_use.own()
    }

    /// Returns the allocator of the block.
    #[must_use]
    #[inline]
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Returns the stream on which the block will be freed.
    #[must_use]
    #[inline]
    pub fn last_use(&self) -> StreamId {
        self.last_use.stream()
    }

    /// Sets the stream that uses the block last: the block is then freed as by [`Allocator::free_on`]. If this stream
    /// is not the block's own stream, the memory waits for both streams. The last call counts; for several streams
    /// besides the block's own, use [`Self::record_stream`].
    #[inline]
    pub fn set_last_use(&mut self, stream: impl Into<StreamId>) {
        self.last_use.set(stream.into());
    }

    /// Records that work on `stream` uses the block: after the free, the block's memory waits for that stream too
    /// ([`Allocator::record_stream`]).
    ///
    /// # Errors
    /// The errors of [`Allocator::record_stream`].
    pub fn record_stream(&self, stream: impl Into<StreamId>) -> Result<()> {
        self.allocator.record_stream(self.address, stream.into())
    }

    /// Frees the block now. Afterwards the block has no memory, and dropping it does nothing.
    ///
    /// # Errors
    /// The errors of [`Allocator::free_on`]: after an error the block is unchanged, and the call can be repeated.
    pub fn free(&mut self) -> Result<()> {
        self.give_back()?;
        self.forget();
        Ok(())
    }

    /// Marks the block as one without memory to free.
    fn forget(&mut self) {
        (self.address, self.len) = (0, 0);
    }

    #[inline]
    fn give_back(&self) -> Result<()> {
        self.last_use.free(&self.allocator, self.address)
    }
}

impl<A: Deref<Target = Allocator>> Drop for Block<A> {
    #[inline]
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            stays_live(&error, self.address, self.len);
        }
    }
}

#[cold]
fn stays_live(error: &Error, address: u64, bytes: u64) {
    tracing::error!(%error, address, bytes, "a block that is dropped could not be freed; its memory leaks");
}

impl<A: Deref<Target = Allocator>> fmt::Debug for Block<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut block = f.debug_struct("Block");
        block
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .field("stream", &self.stream());
        if let Some(other) = self.last_use.other() {
            block.field("last_use", &other);
        }
        block.finish_non_exhaustive()
    }
}
