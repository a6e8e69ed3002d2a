//! Blocks for cudarc: cudarc's streams as [`StreamId`](crate::StreamId)s, and typed memory that cudarc's copies and
//! kernels take.
//!
//! Owns: the order between cudarc's events and the allocator's free.

use super::block::Block;
use super::stream::Stream;
use crate::allocator::Allocator;
use crate::error::Error;
use crate::ids::StreamId;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, DriverError,
    LaunchArgs, PushKernelArg, SyncOnDrop, ValidAsZeroBits, sys,
};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

impl<A: Deref<Target = Allocator>> Stream<A, Arc<CudaStream>> {
    /// Names a stream of cudarc and keeps the stream alive until the allocator has forgotten it.
    pub fn of_cudarc(allocator: A, stream: Arc<CudaStream>) -> Self {
        Self::holding(allocator, stream, |stream| StreamId::from(stream))
    }
}

/// The reason why memory for cudarc could not be allocated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaBlockError {
    /// The allocator refused the request.
    #[error(transparent)]
    Allocator(#[from] Error),
    /// A call of cudarc failed. The memory was freed.
    #[error("cudarc: {0:?}")]
    Cuda(DriverError),
    /// The stream is of another device than the allocator.
    #[error("the stream is of cuda:{stream}, and the allocator's memory of {allocator}")]
    OtherDevice {
        /// The ordinal of the stream's device.
        stream: usize,
        /// The name of the allocator's device.
        allocator: String,
    },
    /// The values take more bytes than there are addresses.
    #[error("{len} values of {size} bytes are more than there are addresses")]
    TooLarge {
        /// The number of values.
        len: usize,
        /// The bytes of one value.
        size: usize,
    },
}

/// A [`Block`] of values of one type, which cudarc's copies and kernels take like a [`CudaSlice`], and which goes back
/// to its allocator when it is dropped.
///
/// A `CudaBlock` dereferences to a `&CudaSlice<T>`, and gives views ([`Self::as_view`], [`Self::as_view_mut`]). It
/// gives no `&mut CudaSlice<T>`, because cudarc could then be made to free memory of the allocator.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use seamalloc::{Allocator, CudaBlock, Stream};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = CudaContext::new(0)?;
/// // SAFETY: all streams are held by a `Stream`, which makes the allocator forget them before they end.
/// let allocator = unsafe { Allocator::open_trusting("cuda:0", "") }?;
/// let stream = Stream::of_cudarc(&allocator, context.new_stream()?);
/// let mut block = CudaBlock::<f32, _>::zeroed(&allocator, stream.held(), 1 << 20)?;
/// stream.held().memcpy_htod(&vec![1.0; 1 << 20], &mut block)?;
/// assert_eq!(stream.held().clone_dtoh(&block)?[7], 1.0);
/// # Ok(())
/// # }
/// ```
///
/// **Several streams.** While cudarc tracks events (`CudaContext::is_managing_stream_synchronization`, the default of a
/// context that has made a stream), the block's stream waits on the GPU for all uses through cudarc before the block is
/// freed, so no stream need be named. Otherwise name other streams with [`Block::record_stream`] of [`Self::block`].
/// While cudarc tracks events, it creates two events for each block, and panics if an event cannot be created. So a
/// program with many short-lived blocks should turn tracking off (`disable_event_tracking`), or keep the blocks.
#[must_use = "a block that is not kept is freed at once"]
pub struct CudaBlock<T, A: Deref<Target = Allocator> = Arc<Allocator>> {
    /// The slice, which is taken only when the block is dropped.
    slice: ManuallyDrop<CudaSlice<T>>,
    /// The memory, which is dropped after `slice`.
    block: Block<A>,
}

impl<T: DeviceRepr, A: Deref<Target = Allocator>> CudaBlock<T, A> {
    /// Allocates memory for `len` values for work on `stream`.
    ///
    /// # Safety
    /// No value may be read before it was written: the memory holds bytes of earlier allocations.
    ///
    /// # Errors
    /// [`CudaBlockError`].
    #[allow(unsafe_code, reason = "the caller promises not to read what was not written")]
    pub unsafe fn uninit(allocator: A, stream: &Arc<CudaStream>, len: usize) -> Result<Self, CudaBlockError> {
        let too_large = || CudaBlockError::TooLarge { len, size: size_of::<T>() };
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(too_large)?;
        let block = Block::new(allocator, bytes as u64, stream)?;
        // SAFETY: the block has room for `len` values, and the caller promises to read none before it is written.
        unsafe { Self::from_block(block, stream) }
    }

    /// Makes a typed block of as many values as the block has room for. `stream` is the stream that the block was
    /// allocated for.
    ///
    /// # Safety
    /// The bytes of the block are values of `T`, or no value is read before it was written.
    ///
    /// # Errors
    /// [`CudaBlockError::OtherDevice`], and the block is freed.
    #[allow(unsafe_code, reason = "the caller vouches for the bytes")]
    pub unsafe fn from_block(block: Block<A>, stream: &Arc<CudaStream>) -> Result<Self, CudaBlockError> {
        let device = block.allocator().driver().properties();
        let of_stream = stream.context().ordinal();
        if device.ordinal as usize != of_stream || !device.name.starts_with("cuda") {
            return Err(CudaBlockError::OtherDevice { stream: of_stream, allocator: device.name.clone() });
        }
        let len = (block.len() as usize).checked_div(size_of::<T>()).unwrap_or(0);
        // SAFETY: the block is live, has room for `len` values, and is dropped after the slice was taken by `leak`.
        let slice = unsafe { stream.upgrade_device_ptr(block.address(), len) };
        Ok(Self { slice: ManuallyDrop::new(slice), block })
    }

    /// Allocates memory for `len` values that are zero, for work on `stream`, which writes them.
    ///
    /// # Errors
    /// [`CudaBlockError`].
    #[allow(unsafe_code, reason = "the stream writes every byte before it can read one")]
    pub fn zeroed(allocator: A, stream: &Arc<CudaStream>, len: usize) -> Result<Self, CudaBlockError>
    where
        T: ValidAsZeroBits,
    {
        // SAFETY: all bytes are written next, in the order of the stream, and zeros are values.
        let mut zeroed = unsafe { Self::uninit(allocator, stream, len) }?;
        stream.memset_zeros(&mut zeroed).map_err(CudaBlockError::Cuda)?;
        Ok(zeroed)
    }

    /// Allocates memory for the values of `host`, which `stream` copies to the device.
    ///
    /// # Errors
    /// [`CudaBlockError`].
    #[allow(unsafe_code, reason = "the stream writes every byte before it can read one")]
    pub fn from_host(allocator: A, stream: &Arc<CudaStream>, host: &[T]) -> Result<Self, CudaBlockError> {
        // SAFETY: all values are written next, in the order of the stream.
        let mut copy = unsafe { Self::uninit(allocator, stream, host.len()) }?;
        stream.memcpy_htod(host, &mut copy).map_err(CudaBlockError::Cuda)?;
        Ok(copy)
    }
}

impl<T, A: Deref<Target = Allocator>> CudaBlock<T, A> {
    /// Returns the memory as a block.
    pub fn block(&self) -> &Block<A> {
        &self.block
    }

    /// Returns a view of all values for reading, as [`CudaSlice::as_view`] does.
    #[must_use]
    pub fn as_view(&self) -> CudaView<'_, T> {
        self.slice.as_view()
    }

    /// Returns a view of all values for writing, as [`CudaSlice::as_view_mut`] does.
    #[must_use]
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.as_view_mut()
    }
}

impl<T, A: Deref<Target = Allocator>> Drop for CudaBlock<T, A> {
    #[allow(unsafe_code, reason = "the slice leaves before the block is freed")]
    fn drop(&mut self) {
        // SAFETY: the slice is taken only here, at the end of the block. The slice's stream waits on the GPU for the
        // uses that cudarc knows.
        let _address = unsafe { ManuallyDrop::take(&mut self.slice) }.leak();
    }
}

impl<T, A: Deref<Target = Allocator>> Deref for CudaBlock<T, A> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T, A: Deref<Target = Allocator>> DeviceSlice<T> for CudaBlock<T, A> {
    fn len(&self) -> usize {
        self.slice.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.slice.stream()
    }
}

impl<T, A: Deref<Target = Allocator>> DevicePtr<T> for CudaBlock<T, A> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.slice.device_ptr(stream)
    }
}

impl<T, A: Deref<Target = Allocator>> DevicePtrMut<T> for CudaBlock<T, A> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.slice.device_ptr_mut(stream)
    }
}

// SAFETY: the slice in the block is passed on to its own implementation.
#[allow(unsafe_code, reason = "the trait is unsafe, since what it takes goes to a kernel")]
unsafe impl<'a, 'b: 'a, T, A: Deref<Target = Allocator>> PushKernelArg<&'b CudaBlock<T, A>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b CudaBlock<T, A>) -> &mut Self {
        let slice: &'b CudaSlice<T> = &arg.slice;
        self.arg(slice)
    }
}

// SAFETY: the slice in the block is passed on to its own implementation, as for `&CudaBlock`.
#[allow(unsafe_code, reason = "the trait is unsafe, since what it takes goes to a kernel")]
unsafe impl<'a, 'b: 'a, T, A: Deref<Target = Allocator>> PushKernelArg<&'b mut CudaBlock<T, A>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut CudaBlock<T, A>) -> &mut Self {
        let slice: &'b mut CudaSlice<T> = &mut arg.slice;
        self.arg(slice)
    }
}

impl<T, A: Deref<Target = Allocator>> fmt::Debug for CudaBlock<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBlock").field("block", &self.block).field("len", &self.slice.len()).finish_non_exhaustive()
    }
}
