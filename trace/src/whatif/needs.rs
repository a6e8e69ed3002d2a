//! What a job needs with any allocator: how much of it lives on through its steps, and what a plan of its heaviest step takes.
//!
//! Owns: these two figures. They bound what an allocator, a plan and eviction can save.

use crate::iteration::{Iteration, Likeness};
use crate::trace::{Trace, TraceEvent};
use seamalloc_plan::{Limits, Method, plan};
use std::time::Duration;

/// Methods of one pass, which take about a second for the most buffers. Those that search find the same on most recorded jobs.
const METHODS: [Method; 2] = [Method::Chainer, Method::DecreasingSize];
/// Of more buffers no plan is made.
const MAX_BUFFERS: usize = 200_000;
/// Longer than a method of one pass takes, so that figures do not depend on the clock.
const UNLIMITED: Duration = Duration::from_secs(3600);

/// What a job needs with any allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Bytes that live throughout the heaviest step (weights, the optimizer's state): no eviction makes them anew. Where nothing
    /// repeats, those of blocks that are never freed.
    pub throughout: u64,
    /// Bytes that hold these and a plan of that step, as quick methods find it. The step's other requests lie in each other's memory.
    pub planned: u64,
}

impl Needs {
    /// Plans the heaviest step. `None` where there are too many requests.
    #[must_use]
    pub fn of(trace: &Trace) -> Option<Self> {
        let iteration = Iteration::of(trace).ok()?;
        let (problem, beside) = (&iteration.problem, iteration.persistent.bytes);
        let throughout = if iteration.likeness == Likeness::None { never_freed(trace) } else { beside };
        if problem.buffers().is_empty() {
            return Some(Self { throughout, planned: beside });
        }
        if problem.buffers().len() > MAX_BUFFERS {
            return None;
        }
        let mut least: Option<u64> = None;
        for method in METHODS {
            let limits = Limits { time: UNLIMITED, ..Limits::default() };
            let found = plan(problem, method, &limits, &mut |_| {}).ok()?;
            least = Some(least.map_or(found.plan.peak, |least| least.min(found.plan.peak)));
            if found.is_optimal {
                break;
            }
        }
        Some(Self { throughout, planned: beside + least? })
    }
}

fn never_freed(trace: &Trace) -> u64 {
    let mut sizes = Vec::new();
    for event in &trace.events {
        match event {
            TraceEvent::Alloc { size, .. } => sizes.push(*size),
            TraceEvent::FreeRequested { block } => {
                if let Some(size) = sizes.get_mut(*block as usize) {
                    *size = 0;
                }
            }
            TraceEvent::FreeCompleted { .. } => {}
        }
    }
    sizes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded;
    use crate::whatif::tests::{MIB, training};

    #[test]
    fn weights_live_throughout_and_the_rest_is_planned() {
        let needs = Needs::of(&training(60)).unwrap();
        assert_eq!((needs.planned, needs.throughout), (160 * MIB, 100 * MIB));
    }

    #[test]
    fn a_recorded_step_is_planned_within_a_tenth_of_a_percent_of_what_is_live() {
        let trace = recorded::find("resnet-multi").unwrap().load().unwrap();
        let (needs, live) = (Needs::of(&trace).unwrap(), trace.summary().peak_live);
        assert!(needs.planned >= live && needs.planned - live < live / 500, "{needs:?}, live {live}");
        assert!(needs.throughout < live / 10, "{needs:?}");
    }
}
