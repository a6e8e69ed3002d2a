//! Scripts that end in a shortage, and what follows the advice of its report.

#![allow(dead_code, reason = "the contract's scripts have fewer kinds of steps")]

use crate::simulated;
use crate::simulated::Device;
use seamalloc::driver::StreamId;
use seamalloc::fragmentation::Owner;
use seamalloc::out_of_memory::{Advice, Limit};
use seamalloc::{Allocator, Config, Error, Fragmentation, OutOfMemory, OutOfMemoryReport};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const READER: StreamId = StreamId(9);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Allocate(u64, StreamId),
    /// The nth allocation of the script.
    Free(usize),
    /// Another stream uses the nth allocation, and is busy.
    Use(usize),
    /// The other stream has finished with the oldest of the allocations that it uses.
    Finish,
    EmptyCache,
}
use Step::{Allocate, EmptyCache, Finish, Free, Use};

/// A script on its way through an allocator.
pub(crate) struct Run {
    pub(crate) gpu: Arc<Device>,
    pub(crate) allocator: Allocator,
    pub(crate) addresses: Vec<u64>,
}

impl Run {
    pub(crate) fn on(device: &str, options: &str) -> Self {
        let (gpu, allocator) = simulated::on(device, Config::parse(options).unwrap());
        Self { gpu, allocator, addresses: Vec::new() }
    }

    pub(crate) fn step(&mut self, step: Step) -> Result<(), Error> {
        match step {
            Allocate(size, stream) => self.addresses.push(self.allocator.allocate(size, stream)?),
            Free(nth) => self.allocator.free(self.addresses[nth])?,
            Use(nth) => {
                self.allocator.record_stream(self.addresses[nth], READER)?;
                self.gpu.hold(READER);
            }
            Finish => drop(self.gpu.finish(READER)),
            EmptyCache => drop(self.allocator.empty_cache()?),
        }
        Ok(())
    }

    /// All of a script but its last step succeeds; the last runs out of memory.
    pub(crate) fn short(device: &str, options: &str, script: &[Step]) -> (Self, OutOfMemoryReport) {
        let mut run = Self::on(device, options);
        let (last, before) = script.split_last().unwrap();
        before.iter().for_each(|step| run.step(*step).unwrap());
        match run.step(*last) {
            Err(Error::OutOfMemory(report)) => (run, report),
            other => panic!("{options} on {device}: {other:?}"),
        }
    }

    /// All of a script succeeds. `false` where a step before the last runs out of memory: what was there before it lies
    /// otherwise under other options, and near the edge that may be worse.
    pub(crate) fn all(device: &str, options: &str, script: &[Step]) -> bool {
        let mut run = Self::on(device, options);
        for (nth, step) in script.iter().enumerate() {
            match run.step(*step) {
                Ok(()) => {}
                Err(Error::OutOfMemory(_)) if nth + 1 < script.len() => return false,
                Err(error) => panic!("{options} on {device}, step {nth}, {step:?}: {error}"),
            }
        }
        true
    }
}

pub(crate) fn balanced(memory: &Fragmentation) {
    let pools: u64 = memory.pools.iter().map(|pool| pool.free).sum();
    assert_eq!(memory.free, pools, "{memory:?}");
    assert_eq!(memory.reserved, memory.allocated + memory.pending + memory.free + memory.unsettled, "{memory:?}");
    assert!(memory.requested <= memory.allocated + memory.pending);
    assert!(memory.stranded() <= memory.free && memory.landlocked_bytes <= memory.partly_free_bytes);
    assert!(memory.partly_free_chunks <= memory.chunks && memory.partly_free_bytes <= memory.free);
    for pool in &memory.pools {
        assert!(pool.largest <= pool.free && pool.free <= pool.ranges * pool.largest && pool.ranges > 0, "{pool:?}");
        assert!(pool.stranded <= pool.free && !(pool.owner == Owner::Everyone && pool.stranded > 0), "{pool:?}");
    }
    for stream in &memory.streams {
        assert!(stream.largest <= stream.reachable && stream.reachable <= memory.free, "{stream:?} of {memory:?}");
    }
    assert!((0.0..=1.0).contains(&memory.external_after_stitching()) && memory.external() <= 1.0);
    assert!(memory.external_after_stitching() <= memory.external());
}

/// Follows a piece of advice after a script whose last step failed: that step must succeed now. `false` where another
/// one fails before it.
pub(crate) fn follow(advice: Advice, run: Run, device: &str, options: &str, script: &[Step]) -> bool {
    let Some(Allocate(size, stream)) = script.last().copied() else { panic!("only requests run out of memory") };
    let again = |option: &str| Run::all(device, format!("{options},{option}").trim_start_matches(','), script);
    match advice {
        Advice::ShareStreams { .. } => again("sharing:wait"),
        Advice::WaitLonger { .. } => again("wait_ms:60000"),
        Advice::SplitChunks { split, .. } => again(&format!("split:{}", split.name())),
        Advice::MoreViews { views, mappings, address_space } => {
            let views = views.map(|to| format!("max_views:{to}"));
            let mappings = mappings.map(|to| format!("max_view_mappings:{to}"));
            let addresses = address_space.map(|to| format!("max_view_address_space:{to}B"));
            again(&[views, mappings, addresses].into_iter().flatten().collect::<Vec<_>>().join(","))
        }
        Advice::Stitch { chunk_size: None } => again("strategy:stitch"),
        Advice::Stitch { chunk_size: Some(size) } => again(&format!("strategy:stitch,chunk_size_mb:{}", size / MIB)),
        Advice::LowerHeadroom { to } => again(&format!("headroom:{to}B")),
        Advice::RaiseLimit { limit, to, total } => {
            if limit != Limit::Bytes {
                run.allocator.limits().set_fraction(Advice::fraction(to, total)).unwrap();
            }
            if limit != Limit::Fraction {
                run.allocator.limits().set_bytes(Some(to)).unwrap();
            }
            run.allocator.allocate(size, stream).unwrap();
            true
        }
        Advice::AskLess { missing, at_most } => {
            assert!(at_most < size && (missing > 0 || at_most > 0), "{advice:?}");
            let met = run.allocator.allocate(at_most, stream);
            met.unwrap_or_else(|error| panic!("{options}: {advice:?}: {error}"));
            true
        }
        other => panic!("no test follows {other:?}"),
    }
}

pub(crate) fn advised(report: &OutOfMemory, wanted: fn(&Advice) -> bool) -> Advice {
    *report.advice.iter().find(|advice| wanted(advice)).unwrap_or_else(|| panic!("{report}"))
}
