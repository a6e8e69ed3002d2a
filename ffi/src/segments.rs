//! The memory of an allocator, segment by segment, for programs that show it.

use crate::boundary::{User, call, handle};
use crate::ids::{AllocatorId, Pool, Stream};
use crate::registry::borrow;
use crate::status::{Failure, Status};
use seamalloc::snapshot::{BlockInfo, BlockState as State};
use std::ffi::c_void;

/// The state of a block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub enum BlockState {
    /// Free.
    Inactive = 0,
    /// Handed out.
    ActiveAllocated = 1,
    /// Freed by the program, still used by other streams.
    ActivePendingFree = 2,
}

/// A block of a segment. Sizes are bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// The address of the first byte.
    pub address: u64,
    /// The size with rounding.
    pub size: u64,
    /// The size as requested; for a free block, the size of its last use, or 0.
    pub requested: u64,
    /// The state of the block.
    pub state: BlockState,
    /// Whether the block is part of a private pool that sleeps: the block has no memory at present.
    pub is_asleep: bool,
    /// Bytes of the block that are spilled to host memory.
    pub spilled: u64,
}

/// A contiguous range of memory that an allocator holds. A stitched block is a segment of its own, and its bytes are
/// part of no other segment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// The size of this struct in the library: fields beyond this size do not exist.
    pub size: usize,
    /// The address of the first byte.
    pub address: u64,
    /// The size in bytes.
    pub total_size: u64,
    /// The stream whose requests the segment serves; the default stream if the memory serves all streams.
    pub stream: Stream,
    /// The private pool that the segment serves; both numbers are 0 if it serves all requests.
    pub pool: Pool,
    /// Whether the segment serves requests of up to 1 MiB.
    pub is_small: bool,
    /// Whether the segment is mapped memory, not one `cudaMalloc`.
    pub is_expandable: bool,
}

/// Receives a segment and its blocks, which tile the segment in the order of addresses. The segment and the blocks are
/// valid during the call only. The function must return (no exception, no longjmp).
pub type SegmentVisitor =
    Option<unsafe extern "C" fn(segment: *const Segment, blocks: *const Block, count: usize, user: *mut c_void)>;

/// Passes each segment that the allocator holds at this moment to the visitor, in the order of addresses. The visitor
/// is called without a lock of the library.
#[unsafe(no_mangle)]
pub extern "C" fn seam_visit_segments(allocator: AllocatorId, visitor: SegmentVisitor, user: *mut c_void) -> Status {
    call(|| {
        let visitor = visitor.ok_or_else(|| Failure::argument("visitor is NULL"))?;
        let user = User::new(user);
        for held in borrow(allocator)?.allocator.reports().snapshot().segments {
            let blocks: Vec<Block> = held.blocks.iter().map(block).collect();
            let segment = Segment {
                size: size_of::<Segment>(),
                address: held.address,
                total_size: held.total_size,
                stream: handle(held.stream),
                pool: held.pool.into(),
                is_small: held.small,
                is_expandable: held.expandable,
            };
            // SAFETY: the caller promised that this call of the visitor is allowed.
            unsafe { visitor(&raw const segment, blocks.as_ptr(), blocks.len(), user.get()) };
        }
        Ok(())
    })
}

fn block(info: &BlockInfo) -> Block {
    let state = match info.state {
        State::Inactive => BlockState::Inactive,
        State::ActiveAllocated => BlockState::ActiveAllocated,
        State::ActivePendingFree => BlockState::ActivePendingFree,
    };
    Block {
        address: info.address,
        size: info.size,
        requested: info.requested_size,
        state,
        is_asleep: info.asleep,
        spilled: info.spilled,
    }
}
