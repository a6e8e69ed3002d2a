//! Allocations that grow in place.

use crate::answers::resized;
use crate::boundary::{self, call, out_param};
use crate::ids::{AllocatorId, Pool, Stream};
use crate::registry::borrow;
use crate::status::Status;
use std::ffi::c_void;
use std::ptr;

/// Reserves `capacity` bytes of addresses for an allocation that grows in place, for work on `stream`. The allocation
/// has no memory yet: `seam_grow` gives it some, `seam_shrink` takes some back, and `seam_free`, or another function
/// that frees, ends the allocation. `seam_record_stream` works as for any allocation, and holds for memory that the
/// allocation gets later too. Only the strategy `stitch` outside of guard mode can do this (`SEAM_STATUS_NOT_GROWABLE`
/// otherwise). After a failure `*address` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_reserve(
    allocator: AllocatorId,
    capacity: usize,
    stream: Stream,
    address: *mut *mut c_void,
) -> Status {
    let reserve = || {
        let instance = borrow(allocator)?;
        let stream = boundary::stream(stream)?;
        instance.served_at(instance.allocator.growing().reserve(capacity as u64, stream))
    };
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(address, ptr::null_mut(), "address", reserve) }
}

/// Reserves as `seam_reserve` does, in a private pool, such as a tag that sleeps and wakes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_reserve(
    allocator: AllocatorId,
    pool: Pool,
    capacity: usize,
    stream: Stream,
    address: *mut *mut c_void,
) -> Status {
    let reserve = || {
        let instance = borrow(allocator)?;
        let stream = boundary::stream(stream)?;
        instance.served_at(instance.allocator.growing().reserve_in(pool.id(), capacity as u64, stream))
    };
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(address, ptr::null_mut(), "address", reserve) }
}

/// Grows an allocation of `seam_reserve`, so that later work on its stream can use at least its first `size` bytes. The
/// address and the contents stay. A `size` below the present size changes nothing. Once the stream was forgotten, the
/// allocation cannot grow. If the allocation already has that much memory, the device is not called. After
/// `SEAM_STATUS_OUT_OF_MEMORY` and `SEAM_STATUS_BEYOND_CAPACITY` the allocation is as it was.
#[unsafe(no_mangle)]
pub extern "C" fn seam_grow(allocator: AllocatorId, address: *mut c_void, size: usize) -> Status {
    resized(allocator, address, size, |allocator, address, size| allocator.growing().grow(address, size))
}

/// Gives back the memory of an allocation of `seam_reserve` beyond its first `size` bytes, as `seam_free` does, in
/// whole chunks. The first `size` bytes keep their address and contents. A `size` above the present size changes
/// nothing.
#[unsafe(no_mangle)]
pub extern "C" fn seam_shrink(allocator: AllocatorId, address: *mut c_void, size: usize) -> Status {
    resized(allocator, address, size, |allocator, address, size| allocator.growing().shrink(address, size))
}

/// Grows or shrinks an allocation of `seam_reserve` to `size` bytes: what TensorRT asks of `IGpuAllocator::reallocate`
/// for memory that it allocated as `kRESIZABLE`.
#[unsafe(no_mangle)]
pub extern "C" fn seam_resize(allocator: AllocatorId, address: *mut c_void, size: usize) -> Status {
    resized(allocator, address, size, |allocator, address, size| allocator.growing().resize(address, size))
}

/// Returns three sizes of an allocation of `seam_reserve` in bytes: the size that was last requested (`len`), the part
/// with memory (`mapped`), and the reserved addresses (`capacity`). Each pointer may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_extent(
    allocator: AllocatorId,
    address: *mut c_void,
    len: *mut usize,
    mapped: *mut usize,
    capacity: *mut usize,
) -> Status {
    call(|| {
        let extent = borrow(allocator)?.allocator.growing().extent(address.addr() as u64)?;
        for (place, bytes) in [(len, extent.len), (mapped, extent.mapped), (capacity, extent.capacity)] {
            // SAFETY: as for every function (see the top of `seamalloc.h`).
            if let Some(place) = unsafe { place.as_mut() } {
                *place = bytes as usize;
            }
        }
        Ok(())
    })
}
