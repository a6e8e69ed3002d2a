//! Virtual memory: address space, physical memory, and mappings of physical memory at addresses.
//!
//! Owns: the contract of [`VirtualMemory`].

use crate::error::DriverResult;
use crate::ids::Handle;

/// Address space, physical memory, and mappings between them (CUDA driver API, "Virtual Memory Management").
///
/// ```text
/// reserve -> addresses --+                                                       +-> address_free
///                        +-> map -> set_access -> kernels use them -> unmap -----+
/// create  -> handle -----+                                                       +-> release
/// ```
///
/// pre, for every call: sizes and addresses are multiples of
/// [`granularity`](crate::DeviceProperties::granularity), and sizes are not 0.
pub trait VirtualMemory {
    /// `cuMemAddressReserve`: reserves `size` addresses, at which no memory is mapped yet. Returns the first address.
    ///
    /// pre: `alignment` is 0 or a power of two.
    fn reserve(&self, size: u64, alignment: u64) -> DriverResult<u64>;

    /// `cuMemAddressFree`: gives a reservation back.
    ///
    /// pre: `address` and `size` are the address and the size of exactly one reservation.
    /// pre: no memory is mapped in the reservation.
    fn address_free(&self, address: u64, size: u64) -> DriverResult<()>;

    /// `cuMemCreate`: returns a handle of `size` bytes of physical memory on the device. Returns
    /// [`Status::OUT_OF_MEMORY`](crate::Status::OUT_OF_MEMORY) if the device has less than `size` free.
    fn create(&self, size: u64) -> DriverResult<Handle>;

    /// `cuMemCreate` on a NUMA node of the machine (`CU_MEM_LOCATION_TYPE_HOST_NUMA`, CUDA 12.2): returns a handle of
    /// `size` bytes of host memory, page-locked. This memory is mapped, used and released like memory of the device. It
    /// is slower, and takes no device memory. Returns [`Status::OUT_OF_MEMORY`](crate::Status::OUT_OF_MEMORY) if the
    /// machine has less than `size` free, and [`Status::NOT_SUPPORTED`](crate::Status::NOT_SUPPORTED) if the device
    /// cannot use such memory.
    fn create_on_host(&self, size: u64) -> DriverResult<Handle>;

    /// `cuMemRelease`: drops the handle. The memory goes back to the device once no mapping of the memory is left.
    ///
    /// pre: `handle` came from `create`, `create_on_host` or [`import`](super::ProcessSharing::import), and was not
    /// released.
    fn release(&self, handle: Handle) -> DriverResult<()>;

    /// `cuMemMap`: maps the whole of `handle` at `address`. A handle may be mapped at several addresses. The memory
    /// cannot be used before `set_access`.
    ///
    /// pre: `offset` is 0 and `size` is the size of the handle; otherwise the status is
    /// [`Status::NOT_SUPPORTED`](crate::Status::NOT_SUPPORTED).
    /// pre: the addresses lie in one reservation, and no memory is mapped at them.
    fn map(&self, address: u64, size: u64, offset: u64, handle: Handle) -> DriverResult<()>;

    /// `cuMemUnmap`: removes every mapping of a range. The call does not wait for the GPU.
    ///
    /// pre: the range consists of whole mappings without a gap.
    /// pre: no work of the GPU uses the range any more (unchecked).
    fn unmap(&self, address: u64, size: u64) -> DriverResult<()>;

    /// `cuMemSetAccess`: lets the device, and the peers of
    /// [`enable_peer_access`](super::PeerAccess::enable_peer_access), read and write a range.
    ///
    /// pre: the range consists of whole mappings without a gap.
    fn set_access(&self, address: u64, size: u64) -> DriverResult<()>;
}
