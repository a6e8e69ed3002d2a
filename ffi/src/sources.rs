//! Private pools with segments of their own: C functions as their source, and the calls for such a pool.

use crate::answers::bytes_of;
use crate::boundary::{User, call, has_flag, out_param, pointer, stream};
use crate::fork::in_callback;
use crate::ids::{AllocatorId, Pool, Stream};
use crate::registry::borrow;
use crate::status::{Failure, Status};
use seamalloc::{SegmentSource, Segments, SourceError};
use std::ffi::c_void;
use std::ptr;

/// For `flags` of `seam_pool_open_with`: each segment is one block, and the part of a segment that a request leaves
/// unused serves no other request. The flag is PyTorch's `no_split`.
pub const POOL_UNSPLIT: u32 = 2;

/// The return value of a source's functions after success.
const DONE: i32 = Status::Ok as i32;

/// Gives a private pool a segment of `bytes`: 2 MiB, the size in the option `large_segment_size_mb` (20 MiB by
/// default), or another multiple of 2 MiB. `*address` gets the address of the segment's first byte, a multiple of 512.
/// The segment must not overlap memory that the allocator already has. Returns 0 after success. If there is too little
/// memory, the function returns `SEAM_STATUS_OUT_OF_MEMORY`, or 0 with NULL; the allocator then gives back the memory
/// that it can and asks again. Any other number is a failure.
///
/// The thread that makes the request calls this function, under the allocator's lock. During a stream capture the
/// thread is in CUDA's relaxed capture mode. The function may call CUDA, but nothing of this library
/// (`SEAM_STATUS_REENTRANT`), and must not wait for a thread that may call this library. It must return (no exception,
/// no longjmp).
pub type SegmentAlloc = Option<unsafe extern "C" fn(bytes: usize, address: *mut *mut c_void, user: *mut c_void) -> i32>;

/// Takes back a whole segment that `seam_segment_alloc` gave and that nothing uses any more. Returns 0 after success.
/// After any other number the allocator keeps the segment, and offers it again when memory is next given back. The
/// function is called as `seam_segment_alloc` is.
pub type SegmentFree = Option<unsafe extern "C" fn(address: *mut c_void, bytes: usize, user: *mut c_void) -> i32>;

/// Says that the source's other functions are not called any more. The function is called as `seam_segment_alloc` is.
pub type SourceEnd = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// A source of segments that calls functions of C.
struct Functions {
    alloc: unsafe extern "C" fn(usize, *mut *mut c_void, *mut c_void) -> i32,
    free: unsafe extern "C" fn(*mut c_void, usize, *mut c_void) -> i32,
    user: User,
    /// The last field, so that `end` is called after all other calls.
    _end: End,
}

/// Calls C's `end`, once.
struct End(SourceEnd, User);

impl Drop for End {
    fn drop(&mut self) {
        if let Some(end) = self.0 {
            // SAFETY: the caller of `seam_pool_open_with` promised that this one call is allowed.
            in_callback(|| unsafe { end(self.1.get()) });
        }
    }
}

impl SegmentSource for Functions {
    fn malloc(&mut self, size: u64) -> Result<u64, SourceError> {
        let mut address = ptr::null_mut();
        // SAFETY: the caller of `seam_pool_open_with` promised that this call is allowed until `end` is called.
        let answer = in_callback(|| unsafe { (self.alloc)(size as usize, &raw mut address, self.user.get()) });
        match answer {
            DONE if !address.is_null() => Ok(address.addr() as u64),
            DONE => Err(SourceError::OutOfMemory),
            _ if answer == Status::OutOfMemory as i32 => Err(SourceError::OutOfMemory),
            _ => Err(SourceError::Failed(format!("its function for {size} bytes answered {answer}"))),
        }
    }

    fn free(&mut self, address: u64, size: u64) -> Result<(), SourceError> {
        // SAFETY: as above.
        let answer = in_callback(|| unsafe { (self.free)(pointer(address), size as usize, self.user.get()) });
        let failed = || SourceError::Failed(format!("its function that takes back {address:#x} answered {answer}"));
        if answer == DONE { Ok(()) } else { Err(failed()) }
    }
}

/// Adds one use to the private pool of this name, or creates the pool. The pool's segments come from `alloc` and go
/// back by `free`. If both are NULL, segments come from the device and go back to it. Segments are cached and split as
/// by the strategy `caching`, whatever the allocator's strategy is. `flags` is 0 or `SEAM_POOL_UNSPLIT`.
///
/// After the last use of the pool was released, its free memory goes back at the next `seam_pool_empty`,
/// `seam_empty_cache`, `seam_trim` or `seam_destroy`, or before a request would fail. Live memory goes back in the same
/// way once it was freed. `end`, which may be NULL, is called exactly once. `seam_pool_open_with` itself calls `end` if
/// it fails, or if `alloc` and `free` are NULL. Otherwise `end` is called when the last of the memory has gone back. If
/// an allocator is destroyed while blocks of the pool are live, `end` is never called. The call fails with
/// `SEAM_STATUS_POOL_IN_USE` if the pool has memory already, or segments of its own.
#[unsafe(no_mangle)]
pub extern "C" fn seam_pool_open_with(
    allocator: AllocatorId,
    pool: Pool,
    alloc: SegmentAlloc,
    free: SegmentFree,
    end: SourceEnd,
    user: *mut c_void,
    flags: u32,
) -> Status {
    let end = End(end, User::new(user));
    call(move || {
        let segments = match (alloc, free) {
            (Some(alloc), Some(free)) => {
                Segments::from_source(Functions { alloc, free, user: User::new(user), _end: end })
            }
            (None, None) => Segments::by_malloc(),
            _ => return Err(Failure::argument("alloc or free is NULL, and the other is not")),
        };
        let unsplit = has_flag(flags, POOL_UNSPLIT, "SEAM_POOL_UNSPLIT")?;
        let segments = if unsplit { segments.unsplit() } else { segments };
        Ok(borrow(allocator)?.allocator.pools().open_with(pool.id(), segments)?)
    })
}

/// Makes each segment of a private pool one block from now on, as `SEAM_POOL_UNSPLIT` says. If the pool has no segments
/// of its own yet, it gets them from the device from now on. Returns `SEAM_STATUS_POOL_IN_USE` if the pool has other
/// memory already.
#[unsafe(no_mangle)]
pub extern "C" fn seam_pool_set_unsplit(allocator: AllocatorId, pool: Pool) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.pools().set_unsplit(pool.id())?))
}

/// Gives back the free memory of a private pool that nobody uses any more, after a wait for the device. `given` gets
/// the number of bytes given back; it may be NULL. The call does nothing if the pool is in use or gone, or a stream is
/// being captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_empty(allocator: AllocatorId, pool: Pool, given: *mut u64) -> Status {
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { bytes_of(allocator, given, |allocator| allocator.pools().empty(pool.id())) }
}

/// Allocates as `seam_pool_malloc` does, but only from a free range that the pool already holds. `*address` is NULL if
/// there is no such range, which is no error. The call takes no new memory, and does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_malloc_held(
    allocator: AllocatorId,
    pool: Pool,
    size: usize,
    stream: Stream,
    address: *mut *mut c_void,
) -> Status {
    let allocate = || {
        let stream = self::stream(stream)?;
        let held = borrow(allocator)?.allocator.pools().allocate_held(pool.id(), size as u64, stream)?;
        Ok(held.map_or(ptr::null_mut(), pointer))
    };
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(address, ptr::null_mut(), "address", allocate) }
}
