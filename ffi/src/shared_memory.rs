//! Memory of one process in another process: CUDA IPC, for stitched memory too. Linux only.

use crate::boundary::{call, out_param, pointer};
use crate::ids::AllocatorId;
use crate::registry::borrow;
use crate::status::{Failure, Outcome, Status};
use std::ffi::c_void;
use std::ptr;

/// Names a live allocation so that another process can open it with `seam_open_shared`. The handle is a sequence of
/// some dozens of bytes, and 16 more for each chunk of the memory; send it unchanged. At most `capacity` bytes are
/// written to `handle`, or none if the handle is longer (`SEAM_STATUS_BUFFER_TOO_SMALL`). `*length` gets the length of
/// the handle. `*offset` gets the offset in bytes of the allocation in the opened memory. With a capacity of 0,
/// `handle` may be NULL.
///
/// The allocation must stay live until everyone who got the handle has closed it. The first call starts a thread that
/// sends the memory to processes of the same user (and of root) that have the handle. Each chunk that shared
/// allocations touch costs one open file descriptor, until the last of these allocations is freed. A call that fails
/// leaves no new descriptor open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_share(
    allocator: AllocatorId,
    address: *mut c_void,
    handle: *mut c_void,
    capacity: usize,
    length: *mut usize,
    offset: *mut u64,
) -> Status {
    call(|| {
        // SAFETY: as for every function (see the top of `seamalloc.h`).
        let (Some(length), Some(offset)) = (unsafe { length.as_mut() }, unsafe { offset.as_mut() }) else {
            return Err(Failure::argument("length or offset is NULL"));
        };
        (*length, *offset) = (0, 0);
        let instance = borrow(allocator)?;
        // The length is checked before anything is shared.
        *length = instance.allocator.sharing().handle_len(address.addr() as u64)?;
        fits(*length, capacity)?;
        if handle.is_null() {
            return Err(Failure::argument("handle is NULL"));
        }
        let shared = instance.allocator.sharing().export(address.addr() as u64)?;
        (*length, *offset) = (shared.handle.len(), shared.offset);
        // Another thread may have freed the allocation meanwhile, and allocated a larger one at its address.
        fits(*length, capacity)?;
        // SAFETY: as above. The handle fits in the `capacity` bytes of the buffer.
        unsafe { handle.cast::<u8>().copy_from_nonoverlapping(shared.handle.as_ptr(), shared.handle.len()) };
        Ok(())
    })
}

/// Keeps the physical memory of a live allocation in place as long as the allocator holds this memory: with the option
/// `split:last_resort`, it is not exchanged for other memory under the same addresses. Call this function for memory
/// that is registered by more than its addresses, as with NCCL or for RDMA. Memory that is shared with other processes
/// is kept without this call.
#[unsafe(no_mangle)]
pub extern "C" fn seam_fix_memory(allocator: AllocatorId, address: *mut c_void) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.sharing().pin_physical(address.addr() as u64)?))
}

fn fits(length: usize, capacity: usize) -> Outcome<()> {
    if length <= capacity {
        return Ok(());
    }
    Err(Failure::new(
        Status::BufferTooSmall,
        format_args!("the handle has {length} bytes; the buffer is for {capacity}"),
    ))
}

/// Opens memory that a process shares, by the handle of `seam_share`. `*address` gets the address at which the memory
/// begins in this process. The device may read and write the memory, on any stream; the program must order this work
/// with that of the other process. Opening a handle twice gives two addresses, or the same address twice (memory of
/// `cudaMalloc`); in both cases the memory must be closed twice. Returns `SEAM_STATUS_IPC` for a bad handle, for memory
/// that the process has freed, and for a process that is gone or has not sent everything within 10 seconds of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_open_shared(
    allocator: AllocatorId,
    handle: *const c_void,
    length: usize,
    address: *mut *mut c_void,
) -> Status {
    let open = || {
        if handle.is_null() {
            return Err(Failure::argument("handle is NULL"));
        }
        // SAFETY: as for every function (see the top of `seamalloc.h`): as many bytes lie there.
        let handle = unsafe { std::slice::from_raw_parts(handle.cast::<u8>(), length) };
        Ok(pointer(borrow(allocator)?.allocator.sharing().open(handle)?))
    };
    // SAFETY: as above.
    unsafe { out_param(address, ptr::null_mut(), "address", open) }
}

/// Closes the memory that `seam_open_shared` opened at this address, once the device has done all its work: the CPU
/// waits for the device. While a stream is being captured, the memory is closed later.
#[unsafe(no_mangle)]
pub extern "C" fn seam_close_shared(allocator: AllocatorId, address: *mut c_void) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.sharing().close(address.addr() as u64)?))
}
