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

/// For `flags` of `seam_pool_open_with`: each segment is one block, and what a request leaves of it serves no other. PyTorch's
/// `no_split`.
pub const POOL_UNSPLIT: u32 = 2;

/// The return value of a source's functions after success.
const DONE: i32 = Status::Ok as i32;

/// Gives a private pool a segment of `bytes`: 2 MiB, the option `large_segment_size_mb` (20 MiB), or a multiple of 2 MiB.
/// `*address` gets its first byte, a multiple of 512, where no memory lies that the allocator has already. Answers 0; where
/// it has too little memory `SEAM_STATUS_OUT_OF_MEMORY`, or 0 with NULL, upon which the allocator gives back what it can and
/// asks again; any other number where it failed.
///
/// Called by the thread whose request it is, under the allocator's lock, during a stream capture in relaxed mode: it may
/// call CUDA, but nothing of this library (`SEAM_STATUS_REENTRANT`), and must not wait for a thread that may. It must return
/// (no exception, no longjmp).
pub type SegmentAlloc = Option<unsafe extern "C" fn(bytes: usize, address: *mut *mut c_void, user: *mut c_void) -> i32>;

/// Takes back a whole segment that it gave, and that nothing uses any more. Answers 0, or any other number where it failed:
/// the segment is kept then, and offered again when memory is next given back. Called as `seam_segment_alloc` is.
pub type SegmentFree = Option<unsafe extern "C" fn(address: *mut c_void, bytes: usize, user: *mut c_void) -> i32>;

/// The source is called no more. Called as `seam_segment_alloc` is.
pub type SourceEnd = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// C's functions as a source.
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

/// Uses the private pool of that name once more, or makes it. Its segments come from `alloc` and go back by `free`;
/// with NULL for both, from the device and to it. They are cached and split as the strategy `caching` does, whatever
/// the allocator's. `flags` is 0 or `SEAM_POOL_UNSPLIT`.
///
/// When the pool's last use was released, what lies free goes back by `seam_pool_empty`, `seam_empty_cache`, `seam_trim`,
/// before a request would fail and in `seam_destroy`, after a wait for the device; what is live once it was freed.
/// `end`, which may be NULL, is called exactly once: with the last of the memory, or by this call where it fails
/// (`SEAM_STATUS_POOL_IN_USE`: the pool has memory already, or segments of its own) or has no functions. Where an
/// allocator is destroyed while blocks of the pool are live, it is never called.
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

/// From now on a private pool's segments are one block each, as `SEAM_POOL_UNSPLIT` says; it gets segments of the device's if
/// it has none of its own. `SEAM_STATUS_POOL_IN_USE` where it has other memory already.
#[unsafe(no_mangle)]
pub extern "C" fn seam_pool_set_unsplit(allocator: AllocatorId, pool: Pool) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.pools().set_unsplit(pool.id())?))
}

/// Gives back what a private pool holds free that nobody uses any more, after a wait for the device. `given` gets the bytes
/// given back; it may be NULL. Nothing where the pool is used or gone, or a stream is being captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_empty(allocator: AllocatorId, pool: Pool, given: *mut u64) -> Status {
    // SAFETY: as for every function (see the header).
    unsafe { bytes_of(allocator, given, |allocator| allocator.pools().empty(pool.id())) }
}

/// As `seam_pool_malloc`, of what the pool holds free in one range: `*address` is NULL where there is no such range, which is
/// no error. No new memory is taken, and nothing waited for.
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
    // SAFETY: as for every function (see the header).
    unsafe { out_param(address, ptr::null_mut(), "address", allocate) }
}
