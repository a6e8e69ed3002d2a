//! The blocks of a trace by number, and the live bytes after each event.
//!
//! Owns: the rounding of sizes, and the tokens for the comparison of operations.

use crate::trace::{Trace, TraceEvent};
use std::ops::Range;

/// The unit to which sizes are rounded up, in bytes, so that every offset is a multiple of the unit too. The unit is
/// PyTorch's least block (`kMinBlockSize`), which suits every kernel.
pub const ALIGNMENT: u64 = 512;
/// The value of `freed` for a block that is never freed.
const NEVER: usize = usize::MAX;

/// The blocks of a trace, and its live bytes.
pub(super) struct Blocks {
    pub(super) sizes: Vec<u64>,
    pub(super) streams: Vec<u32>,
    /// The event that made each block, and the event that ended its use; `NEVER` if no event did.
    pub(super) made: Vec<usize>,
    pub(super) freed: Vec<usize>,
    /// The live bytes after each event.
    pub(super) live: Vec<u64>,
    /// Allocations and requested frees: the event's index, the block's index, and `true` for a free.
    pub(super) operations: Vec<(usize, u32, bool)>,
}

impl Blocks {
    pub(super) fn new(trace: &Trace) -> Self {
        let events = trace.events.len();
        let mut out = Self {
            sizes: Vec::new(),
            streams: Vec::new(),
            made: Vec::new(),
            freed: Vec::new(),
            live: Vec::with_capacity(events),
            operations: Vec::with_capacity(events),
        };
        let mut live = 0_u64;
        for (index, event) in trace.events.iter().enumerate() {
            match *event {
                TraceEvent::Alloc { size, stream } => {
                    let size = size.next_multiple_of(ALIGNMENT);
                    out.operations.push((index, out.sizes.len() as u32, false));
                    out.sizes.push(size);
                    out.streams.push(stream);
                    out.made.push(index);
                    out.freed.push(NEVER);
                    live = live.saturating_add(size);
                }
                TraceEvent::FreeRequested { block } => out.operations.push((index, block, true)),
                TraceEvent::FreeCompleted { block } => {
                    if let Some(freed) = out.freed.get_mut(block as usize) {
                        *freed = index;
                        live = live.saturating_sub(out.sizes.get(block as usize).copied().unwrap_or(0));
                    }
                }
            }
            out.live.push(live);
        }
        out
    }

    pub(super) fn size(&self, block: u32) -> u64 {
        self.sizes.get(block as usize).copied().unwrap_or(0)
    }

    pub(super) fn stream(&self, block: u32) -> u64 {
        self.streams.get(block as usize).copied().unwrap_or(0).into()
    }

    /// Returns a token of each operation, for comparisons. The token contains the size of the operation's block.
    pub(super) fn equal_tokens(&self) -> Vec<u64> {
        let token = |&(_, block, is_freed): &(usize, u32, bool)| {
            (self.size(block) / ALIGNMENT) << 17 | (self.stream(block) & 0xffff) << 1 | u64::from(is_freed)
        };
        self.operations.iter().map(token).collect()
    }

    /// Returns a token of each operation, for comparisons, without the size of the block. The token of a free is the
    /// number of requests since the block was made.
    pub(super) fn shape_tokens(&self) -> Vec<u64> {
        let mut made = 0;
        let token = |&(_, block, is_freed): &(usize, u32, bool)| {
            if is_freed {
                return (made - u64::from(block)) << 1 | 1;
            }
            made = u64::from(block) + 1;
            self.stream(block) << 1
        };
        self.operations.iter().map(token).collect()
    }

    /// Returns the most live bytes after any event of a range.
    pub(super) fn most(&self, events: Range<usize>) -> u64 {
        self.live.get(events).and_then(|live| live.iter().max()).copied().unwrap_or(0)
    }

    /// Returns the operations of a range of events.
    pub(super) fn operations(&self, events: Range<usize>) -> Range<usize> {
        let operation = |event: usize| self.operations.partition_point(|(at, _, _)| *at < event);
        operation(events.start)..operation(events.end)
    }

    /// Returns the event of the operation with this index; the end of the trace for an index after the last operation.
    pub(super) fn event(&self, operation: usize) -> usize {
        self.operations.get(operation).map_or(self.live.len(), |(event, _, _)| *event)
    }

    /// Returns the event after which the fewest bytes are live, among the events from operation `from` to before
    /// operation `to`.
    pub(super) fn least_live(&self, from: usize, to: usize) -> usize {
        let (from, to) = (self.event(from), self.event(to));
        (from..to).min_by_key(|event| self.live[*event]).unwrap_or(from)
    }
}
