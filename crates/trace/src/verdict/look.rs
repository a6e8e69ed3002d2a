//! The memory that an allocator holds and does not use while a job is replayed.
//!
//! Owns: the choice of the moments at which memory is measured, and the resulting need of an allocator.

use super::figures::Need;
use crate::replay::{PassReport, Step, Watcher, simulated};
use crate::trace::{Trace, TraceEvent};
use seamalloc::driver::StreamId;
use seamalloc::fragmentation::Owner;
use seamalloc::{Allocator, Fragmentation};

/// Memory is measured again once the reserved bytes have grown by this part (1/n) since the last measurement.
const LOOK_PART: u64 = 100;

/// The last measurement of memory: how the held memory was used when nearly the most was held.
#[derive(Default)]
pub(crate) struct Look {
    reserved: u64,
    event: usize,
    memory: Fragmentation,
}

impl Watcher for Look {
    fn step(&mut self, step: &Step<'_>) {
        if !matches!(step.what, TraceEvent::Alloc { .. }) {
            return;
        }
        let reserved = step.allocator.reports().reserved();
        if reserved > self.reserved.saturating_add(self.reserved / LOOK_PART) {
            (self.reserved, self.event, self.memory) = (reserved, step.event, step.allocator.reports().fragmentation());
        }
    }

    fn end(&mut self, _: &Allocator) {}
}

impl Look {
    /// Returns the need of an allocator at the moment at which the most was held, or at the refusal.
    pub(crate) fn need(&self, job: &Trace, passes: &[PassReport]) -> Need {
        let waits = passes.iter().map(|pass| pass.cpu_syncs).fold(0, u64::saturating_add);
        if let Some(refused) = passes.last().filter(|pass| pass.oom.is_some()) {
            return Need { waits, ..refused_need(refused) };
        }
        Need {
            reserved: passes.iter().map(|pass| pass.peak_reserved).max(),
            idle: self.memory.free.saturating_add(self.memory.pending),
            elsewhere: free_elsewhere(&self.memory, asking(job, self.event)),
            pending: self.memory.pending,
            waits,
        }
    }
}

/// Returns the need of an allocator that ran out of memory.
fn refused_need(report: &PassReport) -> Need {
    let Some((_, report)) = &report.oom else { return Need::default() };
    Need {
        idle: report.unallocated().saturating_add(report.pending),
        elsewhere: free_elsewhere(&report.memory, report.stream),
        pending: report.pending,
        ..Need::default()
    }
}

/// Returns the stream of the last request up to an event.
fn asking(trace: &Trace, event: usize) -> StreamId {
    let before = trace.events.iter().take(event.saturating_add(1)).rev();
    let last = before.copied().find_map(|event| match event {
        TraceEvent::Alloc { stream, .. } => Some(stream as usize),
        _ => None,
    });
    last.and_then(|stream| simulated(&trace.streams).get(stream).copied()).unwrap_or(StreamId::DEFAULT)
}

/// Returns the free bytes of streams other than the requesting one, without the free bytes among small blocks.
fn free_elsewhere(memory: &Fragmentation, asking: StreamId) -> u64 {
    let others = memory.pools.iter().filter(|pool| match pool.owner {
        Owner::Stream(stream) => stream != asking && !pool.small,
        _ => false,
    });
    others.map(|pool| pool.free).sum()
}
