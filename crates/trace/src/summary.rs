//! The figures of a trace that no allocator influences.
//!
//! No allocator can reserve less than the peak of the live bytes.

use crate::trace::{Trace, TraceEvent};

/// Figures of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The number of allocations.
    pub allocations: u64,
    /// The number of blocks that the program freed.
    pub frees: u64,
    /// The number of frees that completed later than they were requested, since another stream still used the block.
    pub deferred_frees: u64,
    /// The most bytes requested and not freed at any time.
    pub peak_live: u64,
    /// The most bytes in use at any time: bytes that were requested and whose free has not completed.
    pub peak_active: u64,
    /// Bytes requested and not freed at the end.
    pub live_at_end: u64,
}

impl Trace {
    /// Returns the figures of the trace.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary::of(&self.events)
    }
}

impl Summary {
    /// Returns the figures of a trace's first events.
    pub(crate) fn of(events: &[TraceEvent]) -> Self {
        let mut out = Summary::default();
        let mut sizes = Vec::new();
        let (mut live, mut active) = (0u64, 0u64);
        let size_of = |sizes: &[u64], block: u32| sizes.get(block as usize).copied().unwrap_or(0);
        let mut last_request = None;
        for event in events {
            match *event {
                TraceEvent::Alloc { size, .. } => {
                    out.allocations += 1;
                    sizes.push(size);
                    live = live.saturating_add(size);
                    active = active.saturating_add(size);
                    out.peak_live = out.peak_live.max(live);
                    out.peak_active = out.peak_active.max(active);
                }
                TraceEvent::FreeRequested { block } => {
                    out.frees += 1;
                    out.deferred_frees += 1;
                    live = live.saturating_sub(size_of(&sizes, block));
                    last_request = Some(block);
                    continue;
                }
                TraceEvent::FreeCompleted { block } => {
                    active = active.saturating_sub(size_of(&sizes, block));
                    out.deferred_frees -= u64::from(last_request == Some(block));
                }
            }
            last_request = None;
        }
        out.live_at_end = live;
        out
    }
}

/// Returns the event after which most bytes are live; of several, the first.
pub(crate) fn fullest(events: &[TraceEvent]) -> usize {
    let mut sizes = Vec::new();
    let (mut live, mut most, mut at) = (0u64, 0, 0);
    for (index, event) in events.iter().enumerate() {
        match *event {
            TraceEvent::Alloc { size, .. } => {
                sizes.push(size);
                live = live.saturating_add(size);
            }
            TraceEvent::FreeRequested { block } => {
                live = live.saturating_sub(sizes.get(block as usize).copied().unwrap_or(0));
            }
            TraceEvent::FreeCompleted { .. } => {}
        }
        if live > most {
            (most, at) = (live, index);
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use seamalloc::driver::StreamId;

    #[test]
    fn a_deferred_free_keeps_memory_active() {
        use TraceEvent::{Alloc, FreeCompleted, FreeRequested};
        let trace = Trace {
            streams: vec![StreamId::DEFAULT],
            events: vec![
                Alloc { size: 100, stream: 0 },
                FreeRequested { block: 0 },
                Alloc { size: 50, stream: 0 },
                FreeCompleted { block: 0 },
                FreeRequested { block: 1 },
                FreeCompleted { block: 1 },
                Alloc { size: 7, stream: 0 },
            ],
            ..Trace::default()
        };
        let want =
            Summary { allocations: 3, frees: 2, deferred_frees: 1, peak_live: 100, peak_active: 150, live_at_end: 7 };
        assert_eq!(trace.summary(), want);
    }

    #[test]
    fn the_fullest_moment_is_the_first_at_which_most_is_live() {
        let alloc = |size| TraceEvent::Alloc { size, stream: 0 };
        let freed = |block| [TraceEvent::FreeRequested { block }, TraceEvent::FreeCompleted { block }];
        let events = [&[alloc(5), alloc(7)][..], &freed(0), &[alloc(3), alloc(2)], &freed(1)].concat();
        assert_eq!(fullest(&events), 1);
        let events = [&[alloc(5), alloc(7)][..], &freed(0), &[alloc(6)]].concat();
        assert_eq!(fullest(&events), 4);
        assert_eq!(fullest(&[]), 0);
    }
}
