//! Private pools, as CUDA graphs need them, and the routes of requests to them.

use crate::boundary::{self, User, call, fill, has_flag, out_param, stream};
use crate::fork::in_callback;
use crate::ids::{AllocatorId, Pool, Stream};
use crate::registry::borrow;
use crate::status::{Failure, Outcome, Status};
use seamalloc::{PoolBlock as Live, PoolStats as Figures, Route};
use std::ffi::c_void;
use std::ptr;

/// For `flags` of `seam_pool_begin_*`: a stream capture is under way while the route exists, so that the allocator
/// makes no call that a capture forbids, in any thread. Begin the route before the capture begins, and end it after the
/// capture has ended.
pub const POOL_CAPTURING: u32 = 1;

/// Returns whether requests of the calling thread on `stream` go to the pool. The function is called for every request
/// while the route exists, by any thread, under the allocator's lock: it must be quick, call nothing of this library
/// (`SEAM_STATUS_REENTRANT`), and return (no exception, no longjmp).
pub type PoolFilter = Option<unsafe extern "C" fn(stream: Stream, user: *mut c_void) -> bool>;

/// Creates a private pool with one use, which `seam_pool_release` ends. The pool's memory serves only requests made for
/// the pool, and the addresses that the pool handed out stay mapped until its last use has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_create(allocator: AllocatorId, pool: *mut Pool) -> Status {
    let create = || match borrow(allocator)?.allocator.pools().create() {
        seamalloc::PoolId::NONE => Err(seamalloc::Error::HostMemory.into()),
        pool => Ok(pool.into()),
    };
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(pool, Pool { first: 0, second: 0 }, "pool", create) }
}

/// Adds one use to the private pool of this name, or creates the pool: for programs that name pools themselves, as
/// PyTorch does.
#[unsafe(no_mangle)]
pub extern "C" fn seam_pool_open(allocator: AllocatorId, pool: Pool) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.pools().open(pool.id())?))
}

/// Adds one use to a private pool.
#[unsafe(no_mangle)]
pub extern "C" fn seam_pool_retain(allocator: AllocatorId, pool: Pool) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.pools().retain(pool.id())?))
}

/// Ends one use of a private pool. With the last use the pool's memory becomes free for all requests; memory that a
/// graph may use becomes free once the device has completed all work that it was given so far. Live allocations stay
/// valid. No graph that was captured with the pool may be launched afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn seam_pool_release(allocator: AllocatorId, pool: Pool) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.pools().release(pool.id())?))
}

/// Allocates as `seam_malloc` does, from a private pool, even while requests are routed to another pool. `seam_free`
/// frees the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_malloc(
    allocator: AllocatorId,
    pool: Pool,
    size: usize,
    stream: Stream,
    address: *mut *mut c_void,
) -> Status {
    let allocate = || {
        let stream = self::stream(stream)?;
        let instance = borrow(allocator)?;
        instance.served_at(instance.allocator.pools().allocate(pool.id(), size as u64, stream))
    };
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { out_param(address, ptr::null_mut(), "address", allocate) }
}

/// Routes requests on these streams to a private pool from now on, until `seam_pool_end`. Of several routes that cover
/// a request, the one begun last takes it. `flags` is 0 or `SEAM_POOL_CAPTURING`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_begin_streams(
    allocator: AllocatorId,
    pool: Pool,
    streams: *const Stream,
    count: usize,
    flags: u32,
) -> Status {
    call(|| {
        if streams.is_null() && count > 0 {
            return Err(Failure::argument("streams is NULL"));
        }
        // SAFETY: as for every function (see the top of `seamalloc.h`): as many handles lie there.
        let handles = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(streams, count) } };
        let streams = handles.iter().map(|handle| stream(*handle)).collect::<Outcome<Vec<_>>>()?;
        begin(allocator, pool, Route::when(move |stream| streams.contains(&stream)), flags)
    })
}

/// Routes all requests of the calling thread to a private pool, whatever their stream, as `seam_pool_begin_streams`
/// does for streams.
#[unsafe(no_mangle)]
pub extern "C" fn seam_pool_begin_thread(allocator: AllocatorId, pool: Pool, flags: u32) -> Status {
    call(|| begin(allocator, pool, Route::this_thread(), flags))
}

/// Routes to a private pool, as `seam_pool_begin_streams` does, all requests of all threads that no other route covers.
/// Other routes go first, whether they were begun before or after this one. PyTorch's backward passes run in threads of
/// their own, which this route covers.
#[unsafe(no_mangle)]
pub extern "C" fn seam_pool_begin_other_threads(allocator: AllocatorId, pool: Pool) -> Status {
    call(|| begin(allocator, pool, Route::other_threads(), 0))
}

/// Routes to a private pool, as `seam_pool_begin_streams` does, the requests for which `filter` returns true.
#[unsafe(no_mangle)]
pub extern "C" fn seam_pool_begin_filter(
    allocator: AllocatorId,
    pool: Pool,
    filter: PoolFilter,
    user: *mut c_void,
    flags: u32,
) -> Status {
    call(|| {
        let filter = filter.ok_or_else(|| Failure::argument("filter is NULL"))?;
        let user = User::new(user);
        let covers = move |stream: seamalloc::driver::StreamId| {
            // SAFETY: the caller promised that this call is allowed until `seam_pool_end` ends the route.
            in_callback(|| unsafe { filter(boundary::handle(stream), user.get()) })
        };
        begin(allocator, pool, Route::when(covers), flags)
    })
}

fn begin(allocator: AllocatorId, pool: Pool, route: Route, flags: u32) -> Outcome<()> {
    let route = if has_flag(flags, POOL_CAPTURING, "SEAM_POOL_CAPTURING")? { route.capturing() } else { route };
    Ok(borrow(allocator)?.allocator.pools().begin(pool.id(), route)?)
}

/// Ends one route to a private pool (a call of `seam_pool_begin_*`): the newest one of `seam_pool_begin_thread` in the
/// calling thread, or else the newest one of `seam_pool_begin_other_threads`. If there is neither, ends the pool's only
/// route, and fails if the pool has several.
#[unsafe(no_mangle)]
pub extern "C" fn seam_pool_end(allocator: AllocatorId, pool: Pool) -> Status {
    call(|| Ok(borrow(allocator)?.allocator.pools().end(pool.id())?))
}

/// The statistics of a private pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolStats {
    /// The size of this struct: set it to `sizeof(seam_pool_stats)` before the call. After the call it is the size that
    /// was filled in.
    pub size: usize,
    /// The number of uses (calls that created or opened the pool) that were not released; 0 while the pool's memory
    /// waits for the device.
    pub uses: u64,
    /// 1 while requests are routed to the pool.
    pub routed: u64,
    /// 1 if a block of the pool was handed out in a stream capture, so that a graph may use its memory.
    pub captured: u64,
    /// Blocks handed out and not freed by the program.
    pub allocations: u64,
    /// Bytes of these blocks, rounding included.
    pub allocated_bytes: u64,
    /// Bytes of blocks that are handed out, or freed and waiting for other streams.
    pub active_bytes: u64,
    /// Bytes held for the pool: active blocks, and free blocks that serve only the pool.
    pub reserved_bytes: u64,
    /// Bytes that the pool holds again when it wakes; 0 while it is awake.
    pub asleep_bytes: u64,
}

/// A live block of a private pool. Sizes are bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolBlock {
    /// The address of the first byte.
    pub address: u64,
    /// The size with rounding.
    pub size: u64,
    /// The size as requested.
    pub requested: u64,
}

/// Writes the live blocks of a private pool, in the order of addresses: a checkpoint of the pool. At most `capacity`
/// blocks are written to `blocks`, or none if the pool has more (`SEAM_STATUS_BUFFER_TOO_SMALL`). `*count` gets the
/// number of live blocks; `count` may be NULL. With a capacity of 0, `blocks` may be NULL too. The call walks all
/// blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_blocks(
    allocator: AllocatorId,
    pool: Pool,
    blocks: *mut PoolBlock,
    capacity: usize,
    count: *mut usize,
) -> Status {
    call(|| {
        let live = borrow(allocator)?.allocator.pools().blocks(pool.id())?;
        // SAFETY: as for every function (see the top of `seamalloc.h`).
        if let Some(count) = unsafe { count.as_mut() } {
            *count = live.len();
        }
        if live.len() > capacity {
            return Err(Failure::new(
                Status::BufferTooSmall,
                format_args!("the pool has {} live blocks; the buffer is for {capacity}", live.len()),
            ));
        }
        if live.is_empty() {
            return Ok(());
        }
        if blocks.is_null() {
            return Err(Failure::argument("blocks is NULL"));
        }
        for (index, Live { address, size, requested }) in live.into_iter().enumerate() {
            // SAFETY: as above: the buffer has room for as many blocks.
            unsafe { blocks.add(index).write(PoolBlock { address, size, requested }) };
        }
        Ok(())
    })
}

/// Frees every live block of a private pool, then hands out the blocks of a checkpoint (`seam_pool_blocks`) again, at
/// the same addresses and over the same memory. This is for memory that a launch of a graph has filled, although the
/// program freed it while the graph was captured. Returns `SEAM_STATUS_NOT_RESTORABLE` if a block cannot be had, and
/// always with a strategy other than `stitch`. Large blocks are restored first; the blocks that were restored before
/// the failure stay live. The call may wait for the streams on which the pool's memory was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_restore(
    allocator: AllocatorId,
    pool: Pool,
    blocks: *const PoolBlock,
    count: usize,
) -> Status {
    call(|| {
        if blocks.is_null() && count > 0 {
            return Err(Failure::argument("blocks is NULL"));
        }
        // SAFETY: as for every function (see the top of `seamalloc.h`): as many blocks lie there.
        let blocks = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(blocks, count) } };
        let live = |block: &PoolBlock| Live { address: block.address, size: block.size, requested: block.requested };
        let blocks: Vec<_> = blocks.iter().map(live).collect();
        Ok(borrow(allocator)?.allocator.pools().restore(pool.id(), &blocks)?)
    })
}

/// Fills in the statistics of a private pool. The call walks all blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_pool_get_stats(allocator: AllocatorId, pool: Pool, stats: *mut PoolStats) -> Status {
    let look = || {
        let found = borrow(allocator)?.allocator.pools().stats(pool.id())?;
        let Figures { uses, allocations, allocated_bytes, active_bytes, reserved_bytes, asleep_bytes, .. } = found;
        let (routed, captured) = (found.routed.into(), found.captured.into());
        Ok(PoolStats {
            size: size_of::<PoolStats>(),
            uses,
            routed,
            captured,
            allocations,
            allocated_bytes,
            active_bytes,
            reserved_bytes,
            asleep_bytes,
        })
    };
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { fill(stats, look) }
}
