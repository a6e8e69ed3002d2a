//! Memory of one process in another process: CUDA IPC, for stitched memory too. Linux only.

use crate::boundary::{call, out_param, pointer};
use crate::ids::AllocatorId;
use crate::registry::borrow;
use crate::status::{Failure, Outcome, Status};
use std::ffi::c_void;
use std::ptr;

/// Names a live allocation so that another process can open it with `seam_open_shared`. The handle is bytes, to be sent as
/// they are: some dozens, and 16 for each chunk of the memory; at most `capacity` are written to `handle`, or none where
/// they do not suffice (`SEAM_STATUS_BUFFER_TOO_SMALL`). `*length` gets how many there are. `*offset` gets where in the
/// opened memory the allocation begins, in bytes. With a capacity of 0, `handle` may be NULL.
///
/// The allocation must stay live until everyone who got the handle has closed it. The first time, a thread is started that
/// gives the memory away, to processes of the same user (and root) which have the handle. A shared allocation costs an open
/// file descriptor for each chunk that it touches (allocations in one chunk have one between them), until the last of them
/// is freed. A call that fails costs none.
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
        // SAFETY: as for every function (see the header).
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
        // SAFETY: as above: the buffer is for as many.
        unsafe { handle.cast::<u8>().copy_from_nonoverlapping(shared.handle.as_ptr(), shared.handle.len()) };
        Ok(())
    })
}

/// Keeps the physical memory of a live allocation as long as it is held: with the option `split:last_resort`, it is not
/// exchanged for other memory under the same addresses. For memory that is registered by more than its addresses, as with NCCL
/// or for RDMA. What is shared with other processes is kept anyway.
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

/// Opens memory that a process shares, by the handle of `seam_share`: the address at which it begins here. The device
/// may read and write it, on any stream; the order of that with the other process is the program's to see to. Opening
/// it twice gives two addresses, or the same one twice (memory of `cudaMalloc`); either way it is closed twice.
/// `SEAM_STATUS_IPC` for a bad handle, a process that is gone or has not sent everything within 10 seconds of the call,
/// whatever it does instead, or memory that it has freed.
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
        // SAFETY: as for every function (see the header): as many bytes lie there.
        let handle = unsafe { std::slice::from_raw_parts(handle.cast::<u8>(), length) };
        Ok(pointer(borrow(allocator)?.allocator.sharing().open(handle)?))
    };
    // SAFETY: as above.
    unsafe { out_param(address, ptr::null_mut(), "address", open) }
}

/// Closes what `seam_open_shared` opened at this address, once the device has done all its work: the CPU waits for it.
/// While a stream is being captured, it is closed later.
#[unsafe(no_mangle)]
pub extern "C" fn seam_close_shared(allocator: AllocatorId, address: *mut c_void) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.sharing().close(address.addr() as u64)?))
}
