//! Converts a history of addresses to a [`Trace`]. A history names addresses, not blocks, and may have lost its
//! beginning.
//!
//! Owns: the completion of a history that has lost its beginning. Snapshots and the recorder both use it.

use serde_json::{Map, Value};

use crate::builder::TraceBuilder;
use crate::error::RuleError;
use crate::memory::{Memory, MemoryError, SeededSet, list_bytes};
use crate::refused::RefusedRequest;
use crate::trace::Trace;
use seamalloc::driver::StreamId;
use seamalloc::observer::{Action, Event};
use seamalloc::snapshot::{BlockState, Snapshot};

/// A block that was allocated before the history began.
struct Earlier {
    address: u64,
    size: u64,
    stream: StreamId,
    /// Whether the program freed the block before the history began, while the completion of the free is in the
    /// history.
    pending: bool,
    /// Whether the block is still allocated at the end.
    is_held: bool,
}

/// Makes a trace of a history in PyTorch's form, which keeps only the last entries. Blocks that were allocated earlier
/// are found by their frees, or in `held`, the blocks that the allocator holds at the end. The trace allocates these
/// blocks at its start, in the order of addresses, so that the peaks are right. In `history`, `None` stands for entries
/// that are no events. The trace takes no more host memory than `memory` still allows.
///
/// # Errors
/// The index of the first event that breaks a rule, and the rule. For errors in `held`, the index is the length of the
/// history.
pub(crate) fn trace_of_history(
    name: &str,
    meta: Map<String, Value>,
    history: impl Iterator<Item = Option<Event>> + Clone,
    held: Option<&Snapshot>,
    mut memory: Memory,
) -> Result<Trace, (usize, RuleError)> {
    let (count, earlier) = earlier_blocks(history.clone(), held, &mut memory).map_err(|error| (0, error.into()))?;
    let mut builder = TraceBuilder::within(memory, name);
    builder.set_meta(meta);
    for block in &earlier {
        let allocated = builder.stream(block.stream).and_then(|s| builder.alloc(block.address, block.size, s));
        allocated.map_err(|rule| (count, rule))?;
    }
    for block in earlier.iter().filter(|block| block.pending) {
        builder.free_requested(block.address).map_err(|rule| (count, rule))?;
    }
    let (mut refused, mut most) = (None, None);
    let mut live: u64 =
        earlier.iter().filter(|block| !block.pending).map(|block| block.size).fold(0, u64::saturating_add);
    for (index, event) in history.enumerate() {
        let Some(event) = event else { continue };
        if event.action == Action::Oom {
            let demand = live.saturating_add(event.size);
            // Of several refused requests, the one for which the most memory would have been live is kept, since a
            // program may retry with a smaller request.
            if most.is_none_or(|most| demand > most) {
                most = Some(demand);
                let (event, size, stream) = (builder.events(), event.size, event.stream);
                refused = Some(RefusedRequest { event, size, stream, is_made: false });
            }
        }
        let done = match event.action {
            Action::Alloc => {
                builder.stream(event.stream).and_then(|s| builder.alloc(event.address, event.size, s)).map(drop)
            }
            Action::FreeRequested => builder.free_requested(event.address),
            Action::FreeCompleted => builder.free_completed(event.address),
            // The other entries are segments and refusals.
            _ => Ok(()),
        };
        done.map_err(|rule| (index, rule))?;
        live = match event.action {
            Action::Alloc => live.saturating_add(event.size),
            Action::FreeRequested => live.saturating_sub(event.size),
            _ => live,
        };
    }
    let mut trace = builder.finish();
    if let Some(refused) = refused {
        trace.meta.insert(RefusedRequest::KEY.to_owned(), refused.to_json());
    }
    Ok(trace)
}

/// Returns the addresses of the blocks from before a history, in the order in which the trace allocates them. `None`
/// stands for a block that the history frees, since another block may have the same address at the end.
pub(crate) fn earlier_addresses(
    history: impl Iterator<Item = Option<Event>>,
    held: Option<&Snapshot>,
    memory: &mut Memory,
) -> Result<Vec<Option<u64>>, MemoryError> {
    let (_, earlier) = earlier_blocks(history, held, memory)?;
    Ok(earlier.iter().map(|block| block.is_held.then_some(block.address)).collect())
}

/// Returns the blocks from before the history, by address, and the history's length.
fn earlier_blocks(
    history: impl Iterator<Item = Option<Event>>,
    held: Option<&Snapshot>,
    memory: &mut Memory,
) -> Result<(usize, Vec<Earlier>), MemoryError> {
    let before = memory.held();
    let mut seen: SeededSet<u64> = SeededSet::default();
    let mut earlier = Vec::new();
    let mut count = 0usize;
    for event in history {
        count = count.saturating_add(1);
        let Some(Event { action, address, size, stream, .. }) = event else { continue };
        let pending = match action {
            Action::Alloc => None,
            Action::FreeRequested => Some(false),
            Action::FreeCompleted => Some(true),
            _ => continue,
        };
        memory.room_in_set(&mut seen)?;
        let first = seen.insert(address);
        if let Some(pending) = pending.filter(|_| first) {
            memory.push(&mut earlier, Earlier { address, size, stream, pending, is_held: false })?;
        }
    }
    for segment in held.map(|snapshot| snapshot.segments.as_slice()).unwrap_or_default() {
        for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
            memory.room_in_set(&mut seen)?;
            if seen.insert(block.address) {
                let size = if block.requested_size == 0 { block.size } else { block.requested_size };
                let pending = block.state == BlockState::ActivePendingFree;
                let earlier_block =
                    Earlier { address: block.address, size, stream: segment.stream, pending, is_held: true };
                memory.push(&mut earlier, earlier_block)?;
            }
        }
    }
    earlier.sort_unstable_by_key(|block| block.address);
    memory.settle(before, list_bytes::<Earlier>(earlier.capacity()));
    Ok((count, earlier))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceEvent;
    use seamalloc::PoolId;
    use seamalloc::snapshot::{BlockInfo, SegmentInfo};

    fn event(action: Action, address: u64) -> Option<Event> {
        Some(Event { action, address, size: address + 1, stream: StreamId(address % 2), pool: PoolId::NONE })
    }

    fn trace(history: &[Option<Event>], held: Option<&Snapshot>) -> Result<Trace, (usize, RuleError)> {
        trace_of_history("t", Map::new(), history.iter().copied(), held, Memory::default())
    }

    #[test]
    fn what_the_history_lost_comes_first_by_address() {
        let block = |address, state| BlockInfo {
            address,
            size: 512,
            requested_size: address / 2,
            state,
            ..BlockInfo::default()
        };
        let blocks = vec![
            block(0, BlockState::ActiveAllocated),
            block(40, BlockState::ActivePendingFree),
            block(50, BlockState::Inactive),
            block(60, BlockState::ActiveAllocated),
        ];
        let segment = SegmentInfo {
            address: 0,
            total_size: 2048,
            stream: StreamId(7),
            small: true,
            expandable: false,
            pool: seamalloc::PoolId::NONE,
            blocks,
        };
        let held = Snapshot { segments: vec![segment], ..Snapshot::default() };
        let history = [
            event(Action::FreeCompleted, 30),
            None,
            event(Action::FreeRequested, 20),
            event(Action::Alloc, 60),
            event(Action::SegmentAlloc, 99),
        ];
        let trace = trace(&history, Some(&held)).unwrap();
        assert_eq!(trace.streams, [StreamId(7), StreamId(0)]);
        let alloc = |size, stream| TraceEvent::Alloc { size, stream };
        assert_eq!(
            trace.events,
            [
                alloc(512, 0),
                alloc(21, 1),
                alloc(31, 1),
                alloc(20, 0),
                TraceEvent::FreeRequested { block: 2 },
                TraceEvent::FreeRequested { block: 3 },
                TraceEvent::FreeCompleted { block: 2 },
                TraceEvent::FreeRequested { block: 1 },
                alloc(61, 1),
            ]
        );
    }

    #[test]
    fn an_impossible_history_is_named_by_its_entry() {
        let twice = [event(Action::Alloc, 4), None, event(Action::Alloc, 4)];
        assert_eq!(trace(&twice, None), Err((2, RuleError::Reused(4))));
        let freed = [event(Action::FreeRequested, 4), event(Action::FreeRequested, 4)];
        assert_eq!(trace(&freed, None), Err((1, RuleError::DoubleFree(4))));
        let empty = [Some(Event {
            action: Action::FreeRequested,
            address: 4,
            size: 0,
            stream: StreamId(0),
            pool: PoolId::NONE,
        })];
        assert_eq!(trace(&empty, None), Err((1, RuleError::ZeroSize(4))));
    }
}
