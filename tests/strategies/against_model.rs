//! The allocator against an independent model of PyTorch's (`model/`): the same random operations to both, on two
//! simulated GPUs of the same kind, and everything that can be seen compared after every one of them.
//!
//! The model gets its addresses from its own GPU, so they agree only where both make the same driver calls in the same
//! order.

#![allow(unreachable_pub, reason = "the model is a module of this test alone")]
#![allow(clippy::print_stderr, reason = "a failed step says where it was before the panic goes on")]

mod model;

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Model, Refusal, Step};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Call, Driver, StreamId};
use seamalloc::snapshot::BlockState;
use seamalloc::{Allocator, Config, Error, StrategyKind};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const STREAMS: [StreamId; 3] = [StreamId::DEFAULT, StreamId(7), StreamId(9)];
/// Sizes at which a rule changes: rounding, small and large, shared and own segments, units.
const EDGES: [u64; 8] = [512, 1024, 4096, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 32 * MIB];

/// Options, and the device's memory in MiB. Where it is small, the ladder is climbed at every few requests.
const CASES: [(&str, u64); 16] = [
    ("", 300),
    ("", 2000),
    ("large_segment_size_mb:32,roundup_power2_divisions:[1:8,4:2,16:4,>:1]", 400),
    ("roundup_power2_divisions:4", 150),
    ("max_split_size_mb:20", 300),
    ("max_split_size_mb:33,max_non_split_rounding_mb:24", 500),
    ("per_process_memory_fraction:0.5", 600),
    ("per_process_memory_fraction:0.9,garbage_collection_threshold:0.6", 700),
    ("per_process_memory_fraction:0.8,garbage_collection_threshold:0.3,max_split_size_mb:24", 700),
    ("expandable_segments:True", 300),
    ("expandable_segments:True", 2000),
    ("expandable_segments:True,large_segment_size_mb:12", 130),
    ("expandable_segments:True,large_segment_size_mb:40,roundup_power2_divisions:8", 400),
    ("expandable_segments:True,per_process_memory_fraction:0.7", 500),
    ("expandable_segments:True,per_process_memory_fraction:0.9,garbage_collection_threshold:0.5", 600),
    ("expandable_segments:True,max_split_size_mb:20", 300),
];

#[derive(Clone, Debug)]
enum Op {
    Allocate {
        size: u64,
        stream: StreamId,
    },
    /// The nth live allocation, counted round.
    Free(usize),
    /// An address that was freed before.
    FreeAgain(usize),
    RecordStream(usize, StreamId),
    Hold(StreamId),
    Finish(StreamId),
    EmptyCache,
    SetMemoryFraction(f64),
    ResetPeakStats,
    ResetAccumulatedStats,
}

fn stream() -> impl Strategy<Value = StreamId> {
    prop_oneof![6 => Just(STREAMS[0]), 2 => Just(STREAMS[1]), 1 => Just(STREAMS[2])]
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        20 => (prop::sample::select(&EDGES[..]), 0u64..3).prop_map(|(edge, off)| edge + off - 1),
        15 => 1..4 * KIB,
        20 => 1..MIB + 2,
        20 => MIB..10 * MIB,
        20 => 10 * MIB..45 * MIB,
        6 => 45 * MIB..150 * MIB,
        1 => prop::sample::select(&[0, 3 << 30, (1 << 60) + 1, u64::MAX][..]),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4700 => (size(), stream()).prop_map(|(size, stream)| Op::Allocate { size, stream }),
        4450 => any::<usize>().prop_map(Op::Free),
        50 => any::<usize>().prop_map(Op::FreeAgain),
        700 => (any::<usize>(), stream()).prop_map(|(nth, stream)| Op::RecordStream(nth, stream)),
        100 => stream().prop_map(Op::Hold),
        120 => stream().prop_map(Op::Finish),
        150 => Just(Op::EmptyCache),
        1 => Just(Op::SetMemoryFraction(0.0)),
        20 => prop::sample::select(&[0.4, 0.6, 0.8, 0.95, 1.0, 1.0][..]).prop_map(Op::SetMemoryFraction),
        10 => Just(Op::ResetPeakStats),
        10 => Just(Op::ResetAccumulatedStats),
    ]
}

struct Pair {
    gpu: Arc<SimGpu>,
    model_gpu: Arc<SimGpu>,
    allocator: Allocator,
    model: Model,
    live: Vec<u64>,
    freed: Vec<u64>,
}

impl Pair {
    fn new(options: &str, capacity_mib: u64) -> Self {
        let device = SimConfig::parse(&format!("sim:h200,capacity={capacity_mib}MiB")).unwrap();
        let [gpu, model_gpu] = [(); 2].map(|()| Arc::new(SimGpu::new(device.clone()).unwrap()));
        let config = Config::with_strategy(StrategyKind::Caching).overlaid(options).unwrap();
        let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), config.clone()).unwrap();
        let model = Model::new(Arc::clone(&model_gpu), config);
        Self { gpu, model_gpu, allocator, model, live: Vec::new(), freed: Vec::new() }
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Allocate { size, stream } => {
                let ours = self.allocator.allocate(size, stream).map_err(refusal);
                assert_eq!(ours, self.model.allocate(size, stream));
                self.live.extend(ours.ok().filter(|address| *address != 0));
            }
            Op::Free(nth) if !self.live.is_empty() => {
                let address = self.live.swap_remove(nth % self.live.len());
                self.freed.push(address);
                assert_eq!(self.allocator.free(address).map_err(refusal), self.model.free(address));
            }
            Op::FreeAgain(nth) if !self.freed.is_empty() => {
                let address = self.freed[nth % self.freed.len()];
                let ours = self.allocator.free(address).map_err(refusal);
                assert_eq!(ours, self.model.free(address));
                if ours.is_ok() {
                    self.live.retain(|live| *live != address);
                }
            }
            Op::RecordStream(nth, stream) if !self.live.is_empty() => {
                let address = self.live[nth % self.live.len()];
                let ours = self.allocator.record_stream(address, stream).map_err(refusal);
                assert_eq!(ours, self.model.record_stream(address, stream));
            }
            Op::Free(_) | Op::FreeAgain(_) | Op::RecordStream(..) => {}
            Op::Hold(stream) => {
                self.gpu.hold(stream);
                self.model_gpu.hold(stream);
            }
            Op::Finish(stream) => assert_eq!(self.gpu.finish(stream), self.model_gpu.finish(stream)),
            Op::EmptyCache => assert_eq!(self.allocator.empty_cache().unwrap(), self.model.empty_cache()),
            Op::SetMemoryFraction(fraction) => {
                self.allocator.limits().set_fraction(fraction).unwrap();
                self.model.set_memory_fraction(fraction);
            }
            Op::ResetPeakStats => {
                self.allocator.reports().reset_peaks();
                self.model.reset_peak_stats();
            }
            Op::ResetAccumulatedStats => {
                self.allocator.reports().reset_accumulated();
                self.model.reset_accumulated_stats();
            }
        }
    }

    fn compare(&self) {
        let mut stats = self.allocator.stats();
        // Figures of this allocator's own, which PyTorch does not have.
        (stats.host_bytes, stats.stalls, stats.strategy) = Default::default();
        assert_eq!(stats, self.model.stats);
        let mut segments = self.allocator.reports().snapshot().segments;
        let blocks = segments.iter_mut().flat_map(|segment| &mut segment.blocks);
        blocks.filter(|block| block.state == BlockState::Inactive).for_each(|block| block.requested_size = 0);
        assert_eq!(segments, self.model.snapshot());
        self.allocator.reports().check().unwrap();
        // PyTorch does not ask which stream a handle is, nor, before it records an event, about captures of others.
        let asked_in_addition = [Call::StreamNumber, Call::IsCapturing];
        let calls = |gpu: &SimGpu| {
            let others = Call::ALL.into_iter().filter(|call| !asked_in_addition.contains(call));
            others.map(|call| (call, gpu.call_stats().get(call).count)).collect::<Vec<_>>()
        };
        assert_eq!(calls(&self.gpu), calls(&self.model_gpu));
    }
}

/// Returns the refusal that PyTorch would have given.
fn refusal(error: Error) -> Refusal {
    match error {
        Error::OutOfMemory(report) => Refusal::OutOfMemory {
            limit: report.limit,
            reserved: report.reserved,
            allocated: report.allocated,
            pending: report.pending,
            device_free: report.device_free,
        },
        Error::RequestTooLarge { .. } => Refusal::TooLarge,
        Error::InvalidAddress { .. } => Refusal::InvalidAddress,
        other => panic!("{other}"),
    }
}

fn agree(options: &str, capacity_mib: u64, ops: &[Op]) -> Pair {
    let mut pair = Pair::new(options, capacity_mib);
    for (nth, op) in ops.iter().enumerate() {
        let step = std::panic::AssertUnwindSafe(|| {
            pair.run(op);
            pair.compare();
        });
        if let Err(panic) = std::panic::catch_unwind(step) {
            eprintln!("`{options}` on {capacity_mib} MiB, operation {nth}: {op:?}");
            std::panic::resume_unwind(panic);
        }
    }
    assert!(pair.gpu.faults().is_empty() && pair.model_gpu.faults().is_empty());
    assert_eq!(pair.gpu.leaks(), pair.model_gpu.leaks());
    pair
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_operations_do_what_pytorch_does(
        (options, capacity) in prop::sample::select(&CASES[..]),
        ops in prop::collection::vec(op(), 1..300),
    ) {
        agree(options, capacity, &ops);
    }
}

/// Operations of a long run. Fewer where each of them checks all tables.
const LONG: usize = if cfg!(feature = "paranoid") { 8_000 } else { 20_000 };

/// Operations out of one seed. Without shrinking a cheap generator will do.
fn seeded(seed: u8, count: usize) -> Vec<Op> {
    let rng = TestRng::from_seed(RngAlgorithm::XorShift, &[seed; 16]);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let op = op();
    (0..count).map(|_| op.new_tree(&mut runner).unwrap().current()).collect()
}

/// Long runs of some cases; each of the steps named is to be taken in them, or they would show nothing of it.
fn long_runs(cases: &[(&str, u64)], ops: &[Op], steps: &[Step]) {
    let mut taken = BTreeMap::new();
    for (options, capacity) in cases {
        for (step, times) in agree(options, *capacity, ops).model.steps {
            *taken.entry(step).or_insert(0) += times;
        }
    }
    for step in steps {
        assert!(taken.get(step).is_some_and(|times| *times >= 50), "{step:?} is rare: {taken:?}");
    }
}

#[test]
fn long_runs_of_the_native_allocator() {
    let steps = [Step::CollectGarbage, Step::ReleaseOne, Step::ReleaseSeveral, Step::ReleaseCached, Step::OutOfMemory];
    long_runs(&CASES[..9], &seeded(1, LONG), &steps);
}

#[test]
fn long_runs_of_expandable_segments() {
    let steps = [Step::PassOverEdge, Step::ReleaseCached, Step::OutOfMemory];
    long_runs(&CASES[9..], &seeded(2, LONG), &steps);
}

#[test]
fn growth_at_two_places_and_its_undoing() {
    // 0 to 20 MiB are unmapped, 20 to 60 free, and the rest was never mapped: 75 MiB need memory before and behind.
    let allocate = |mib: u64| Op::Allocate { size: mib * MIB, stream: STREAMS[0] };
    let hole = [allocate(30), allocate(20), allocate(10), Op::Free(0), Op::EmptyCache, Op::Free(0), Op::Free(0)];
    let ops: Vec<Op> = hole.into_iter().chain([allocate(75), allocate(5), Op::EmptyCache]).collect();
    let met = agree("expandable_segments:True", 300, &ops).model.steps;
    assert_eq!(met, BTreeMap::from([(Step::FillHole, 1)]));
    let failed = agree("expandable_segments:True", 70, &ops).model.steps;
    assert_eq!(failed, BTreeMap::from([(Step::UndoGrowth, 1), (Step::OutOfMemory, 1)]));
}

/// Two blocks of one segment, of which one waits for another stream: it cannot go back when that has passed, but it fits.
#[test]
fn the_one_step_that_is_not_pytorchs() {
    let allocate = Op::Allocate { size: 8 * MIB, stream: STREAMS[0] };
    let used = [Op::RecordStream(1, STREAMS[1]), Op::Hold(STREAMS[1]), Op::Free(1)];
    let ops: Vec<Op> = [allocate.clone(), allocate.clone()].into_iter().chain(used).chain([allocate]).collect();
    let met = agree("", 20, &ops).model.steps;
    assert_eq!(met, BTreeMap::from([(Step::LookAgain, 1)]));
}
