//! [`Growing`], an allocation that grows in place and frees itself.

use super::last_use::LastUse;
use crate::allocator::{Allocator, Extent};
use crate::error::Result;
use crate::ids::{PoolId, StreamId};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// An allocation that grows and shrinks at one address, and is freed when it is dropped: a key-value cache, a buffer of
/// tokens.
///
/// `A` is the pointer to the allocator, as for a [`Block`](super::Block), and dropping the value frees the allocation
/// in the same way.
///
/// ```
/// use seamalloc::{Allocator, Growing, StreamId};
///
/// let allocator = Allocator::open("sim:h200", "")?;
/// let token = 320 << 10;
/// let mut cache = Growing::new(&allocator, 40 << 30, StreamId::DEFAULT)?;
/// let address = cache.address();
/// for tokens in 1..=1000 {
///     cache.grow(tokens * token)?;
/// }
/// assert_eq!((cache.address(), cache.len()), (address, 1000 * token));
/// assert!(cache.mapped() - cache.len() <= 4 << 20);
/// cache.shrink(10 * token)?;
/// assert_eq!(cache.mapped(), 4 << 20);
/// # Ok::<(), seamalloc::Error>(())
/// ```
#[must_use = "an allocation that is not kept is freed at once"]
pub struct Growing<A: Deref<Target = Allocator> = Arc<Allocator>> {
    allocator: A,
    /// The address; 0 if there is nothing to free.
    address: u64,
    last_use: LastUse,
}

impl<A: Deref<Target = Allocator>> Growing<A> {
    /// Reserves `capacity` bytes of addresses for work on `stream`. The allocation has no memory yet.
    ///
    /// # Errors
    /// The errors of [`GrowingAllocations::reserve`](crate::operations::GrowingAllocations::reserve).
    pub fn new(allocator: A, capacity: u64, stream: impl Into<StreamId>) -> Result<Self> {
        let stream = stream.into();
        let address = allocator.growing().reserve(capacity, stream)?;
        Ok(Self { allocator, address, last_use: LastUse::on(stream) })
    }

    /// Reserves addresses for an allocation of a private pool
    /// ([`GrowingAllocations::reserve_in`](crate::operations::GrowingAllocations::reserve_in)).
    ///
    /// # Errors
    /// The errors of [`GrowingAllocations::reserve_in`](crate::operations::GrowingAllocations::reserve_in).
    pub fn new_in(allocator: A, pool: PoolId, capacity: u64, stream: impl Into<StreamId>) -> Result<Self> {
        let stream = stream.into();
        let address = allocator.growing().reserve_in(pool, capacity, stream)?;
        Ok(Self { allocator, address, last_use: LastUse::on(stream) })
    }

    /// Returns the address of the first byte on the device: a multiple of 2 MiB, which never changes.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the address as a pointer, for C functions that take pointers. The CPU may not dereference a pointer to
    /// GPU memory.
    #[must_use]
    pub fn as_ptr<T>(&self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }

    /// Returns the bytes in use: the size that the last [`Self::grow`] or [`Self::shrink`] asked for.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.extent().len
    }

    /// Returns whether no bytes are in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that have memory, at least [`Self::len`]: up to this size the allocation grows without a
    /// driver call.
    #[must_use]
    pub fn mapped(&self) -> u64 {
        self.extent().mapped
    }

    /// Returns the bytes of reserved addresses, as asked for.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.extent().capacity
    }

    /// Returns the stream that the addresses were reserved for.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.last_use.own()
    }

    /// Returns the allocator of the addresses.
    #[must_use]
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Grows to at least `size` bytes; a size below the present size has no effect. The address and the contents stay.
    /// Within [`Self::mapped`] the driver is not called.
    ///
    /// # Errors
    /// The errors of [`GrowingAllocations::grow`](crate::operations::GrowingAllocations::grow); after an error the
    /// allocation is unchanged.
    pub fn grow(&mut self, size: u64) -> Result<()> {
        self.allocator.growing().grow(self.address, size)
    }

    /// Shrinks to `size` bytes; a size above the present size has no effect. Whole chunks of memory after these bytes
    /// become free for other requests. These requests get the memory once the GPU has passed the work queued so far on
    /// the allocation's streams, including the stream of [`Self::set_last_use`], or they wait for this work on the GPU.
    ///
    /// # Errors
    /// The errors of [`GrowingAllocations::shrink`](crate::operations::GrowingAllocations::shrink). [`Self::mapped`]
    /// returns the bytes that still have memory.
    pub fn shrink(&mut self, size: u64) -> Result<()> {
        if size >= self.len() {
            return Ok(());
        }
        self.last_use.record(&self.allocator, self.address)?;
        self.allocator.growing().shrink(self.address, size)
    }

    /// Returns the extent of the allocation, which is empty after a free.
    fn extent(&self) -> Extent {
        self.allocator.growing().extent(self.address).unwrap_or_default()
    }

    /// Sets the stream that uses the allocation last, as [`Block::set_last_use`](super::Block::set_last_use) does.
    pub fn set_last_use(&mut self, stream: impl Into<StreamId>) {
        self.last_use.set(stream.into());
    }

    /// Records that work on `stream` uses the allocation: memory that the allocation gives back waits for that stream
    /// too ([`Allocator::record_stream`]).
    ///
    /// # Errors
    /// The errors of [`Allocator::record_stream`].
    pub fn record_stream(&self, stream: impl Into<StreamId>) -> Result<()> {
        self.allocator.record_stream(self.address, stream.into())
    }

    /// Returns the address of the allocation, which no longer frees itself: use [`Allocator::free`]. A stream of
    /// [`Self::set_last_use`] is named to the allocator ([`Allocator::record_stream`]); if this fails, the error is
    /// logged.
    #[must_use = "the allocation leaks unless somebody frees it"]
    pub fn into_address(mut self) -> u64 {
        self.last_use.leave(&self.allocator, self.address);
        std::mem::take(&mut self.address)
    }

    /// Frees the allocation now. Afterwards the value has no memory and no addresses, and dropping it does nothing.
    ///
    /// # Errors
    /// The errors of [`Allocator::free_on`]. Parts that were not freed yet stay, and the call can be repeated.
    pub fn free(&mut self) -> Result<()> {
        self.give_back()?;
        self.address = 0;
        Ok(())
    }

    fn give_back(&self) -> Result<()> {
        self.last_use.free(&self.allocator, self.address)
    }
}

impl<A: Deref<Target = Allocator>> Drop for Growing<A> {
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            let (address, bytes) = (self.address, self.mapped());
            tracing::error!(%error, address, bytes, "an allocation that is dropped could not be freed; its memory leaks");
        }
    }
}

impl<A: Deref<Target = Allocator>> fmt::Debug for Growing<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut growing = f.debug_struct("Growing");
        growing
            .field("address", &format_args!("{:#x}", self.address))
            .field("extent", &self.extent())
            .field("stream", &self.stream());
        if let Some(other) = self.last_use.other() {
            growing.field("last_use", &other);
        }
        growing.finish_non_exhaustive()
    }
}
