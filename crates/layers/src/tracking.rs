//! A layer that knows every live block, and where it was allocated.
//!
//! Owns: the table of live blocks. The rule is that of RMM's `tracking_resource_adaptor`
//! (`tracking_resource_adaptor_impl.cpp` lines 57 to 98: a table of blocks by address, a stack for each block on
//! request, a text that lists the live blocks). RMM logs a free of an unknown block or with a wrong size, and then
//! calls the resource below. This layer returns an error, and does not call the resource below.

use crate::contract::{Layer, MemoryResource};
use crate::error::{ResourceError, Result};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use seamalloc::RawBlock;
use seamalloc::StreamId;
use seamalloc_driver::fallible::{TryCollect, try_insert};
use std::backtrace::Backtrace;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::thread::{self, ThreadId};

/// Whether a [`Tracking`] layer keeps the stack of each allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stacks {
    /// The layer keeps no stacks.
    #[default]
    Off,
    /// The layer keeps stacks: [`Backtrace::force_capture`] costs some microseconds and kilobytes of host memory for
    /// each allocation. Without that memory the process ends.
    On,
}

/// A live block.
#[derive(Clone, Debug)]
pub struct Outstanding {
    /// The block.
    pub block: RawBlock,
    /// The thread that allocated the block.
    pub thread: ThreadId,
    /// The number of blocks that the layer had handed out before this one.
    pub number: u64,
    /// The stack of the request, with [`Stacks::On`].
    pub stack: Option<Arc<Backtrace>>,
}

impl fmt::Display for Outstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RawBlock { address, size, stream } = self.block;
        write!(f, "{address:#x}: {size} B, stream {stream}, {:?}, allocation {}", self.thread, self.number)?;
        if let Some(stack) = &self.stack {
            write!(f, ", allocated at:\n{stack}")?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Entry {
    of: Outstanding,
    /// Whether a free of the block is under way in the resource below.
    leaving: bool,
}

#[derive(Debug, Default)]
struct Table {
    live: FxHashMap<u64, Entry>,
    /// The number of blocks handed out.
    count: u64,
    /// The bytes of the live blocks.
    bytes: u64,
}

/// Keeps a table of live blocks, and refuses to free other blocks.
#[derive(Debug)]
pub struct Tracking<R> {
    upstream: R,
    stacks: Stacks,
    table: Mutex<Table>,
}

impl<R> Tracking<R> {
    /// Makes a layer with an empty table.
    pub fn new(upstream: R, stacks: Stacks) -> Self {
        Self { upstream, stacks, table: Mutex::default() }
    }

    /// Returns the bytes of all live blocks.
    pub fn allocated(&self) -> u64 {
        self.table.lock().bytes
    }

    /// Returns the live blocks, in the order of their addresses.
    ///
    /// # Errors
    /// [`Error::HostMemory`](seamalloc::Error::HostMemory).
    pub fn outstanding(&self) -> Result<Vec<Outstanding>> {
        let table = self.table.lock();
        let live = table.live.values().filter(|entry| !entry.leaving);
        let mut blocks = live.map(|entry| entry.of.clone()).try_to_vec()?;
        drop(table);
        blocks.sort_unstable_by_key(|of| of.block.address);
        Ok(blocks)
    }

    /// Returns a text with a line for each live block, and its stack if there is one. The text is empty if no block is
    /// live.
    ///
    /// # Errors
    /// [`Error::HostMemory`](seamalloc::Error::HostMemory).
    pub fn report(&self) -> Result<String> {
        let mut text = String::new();
        for of in self.outstanding()? {
            // Writing to a text in memory does not fail.
            let _ = writeln!(text, "{of}");
        }
        Ok(text)
    }
}

impl<R> Drop for Tracking<R> {
    /// Logs the blocks that are still live.
    fn drop(&mut self) {
        let table = self.table.get_mut();
        if !table.live.is_empty() {
            tracing::warn!(blocks = table.live.len(), bytes = table.bytes, "a tracking layer ends before its blocks");
        }
    }
}

impl Table {
    /// Makes room for one more block.
    fn reserve(&mut self) -> Result<()> {
        Ok(self.live.try_reserve(1)?)
    }

    fn insert(&mut self, block: RawBlock, stack: Option<Arc<Backtrace>>) -> Result<()> {
        let of = Outstanding { block, thread: thread::current().id(), number: self.count, stack };
        // A new block takes the entry of a block at the same address that is just being freed.
        let before = try_insert(&mut self.live, block.address, Entry { of, leaving: false })?;
        self.count += 1;
        self.bytes = self.bytes.saturating_add(block.size);
        if before.is_some_and(|before| !before.leaving) {
            tracing::error!(address = block.address, "the resource below handed out a live block");
        }
        Ok(())
    }

    /// Begins to free a block. Returns the number of its allocation.
    fn begin_free(&mut self, block: &RawBlock) -> Result<u64> {
        let address = block.address;
        let entry = self.live.get_mut(&address).filter(|entry| !entry.leaving);
        let entry = entry.ok_or(ResourceError::UnknownBlock { address })?;
        let allocated = entry.of.block.size;
        if allocated != block.size {
            return Err(ResourceError::SizeMismatch { address, allocated, freed: block.size });
        }
        entry.leaving = true;
        self.bytes = self.bytes.saturating_sub(block.size);
        Ok(entry.of.number)
    }

    /// Ends the free of the allocation of this number. Another block may have the address by now.
    fn end_free(&mut self, block: &RawBlock, number: u64, freed: bool) {
        let Some(entry) = self.live.get_mut(&block.address).filter(|entry| entry.of.number == number) else { return };
        if freed {
            self.live.remove(&block.address);
        } else {
            entry.leaving = false;
            self.bytes = self.bytes.saturating_add(block.size);
        }
    }
}

impl<R: MemoryResource> Layer for Tracking<R> {
    type Upstream = R;

    fn upstream(&self) -> &R {
        &self.upstream
    }

    fn name(&self) -> &str {
        "tracking"
    }

    fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock> {
        self.table.lock().reserve()?;
        let block = self.upstream.allocate(size, stream)?;
        if block.is_empty() {
            return Ok(block);
        }
        let stack = match self.stacks {
            Stacks::Off => None,
            Stacks::On => Some(Arc::new(Backtrace::force_capture())),
        };
        // Another thread may have taken the room for the entry.
        let noted = self.table.lock().insert(block, stack);
        if let Err(error) = noted {
            self.upstream.deallocate(block, stream)?;
            return Err(error);
        }
        Ok(block)
    }

    fn deallocate(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        if block.is_empty() && block.address == 0 {
            return self.upstream.deallocate(block, stream);
        }
        let number = self.table.lock().begin_free(&block)?;
        let freed = self.upstream.deallocate(block, stream);
        self.table.lock().end_free(&block, number, freed.is_ok());
        freed
    }
}
