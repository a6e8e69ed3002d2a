//! The device, the allocator and the program's book, and what must hold of them.
//!
//! Owns: the state of a program, the checks after each operation, which errors may come, and the end.

use super::book::{Live, Taken, Use, Uses};
use super::program::{MIB, Op, Setup};
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{Piece, Range, SimConfig, SimGpu};
use seamalloc::{Allocator, Config, Error, PoolBlock, PoolId, StrategyKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Operations after which the whole book is compared.
const THOROUGH: u64 = 16;
/// The last operations, which a finding is told with; more with `SEAMALLOC_FUZZ_TRAIL`.
const TRAIL: usize = 30;
/// Handles of the program's streams begin here. The default stream is 0, and 1 and 2 are names for it or for a thread's.
const FIRST_STREAM: u64 = 7;

/// A private pool with uses.
pub(super) struct Pool {
    pub(super) id: PoolId,
    pub(super) uses: u32,
}

/// A stream that is being captured, to a private pool.
#[derive(Clone, Copy)]
pub(super) struct Capture {
    pub(super) stream: StreamId,
    pub(super) pool: PoolId,
}

/// Memory that a capture used, of a private pool.
#[derive(Clone)]
pub(super) struct Captured {
    pub(super) pool: PoolId,
    pub(super) range: Range,
    pub(super) pieces: Vec<Piece>,
}

/// What a capture used, as long as every pool of it has a use.
pub(super) struct Graph(pub(super) Vec<Captured>);

/// Blocks that the callback may free, and those that it freed.
#[derive(Default)]
pub(super) struct Left {
    pub(super) may_free: Vec<u64>,
    pub(super) freed: Vec<u64>,
}

pub(super) struct World {
    pub(super) gpu: Arc<SimGpu>,
    pub(super) allocator: Arc<Allocator>,
    pub(super) capacity: u64,
    pub(super) config: Config,
    pub(super) live: BTreeMap<u64, Live>,
    pub(super) taken: Taken,
    pub(super) uses: Uses,
    pub(super) pools: Vec<Pool>,
    /// Private pools that requests of a stream go to.
    pub(super) routed: Vec<(PoolId, StreamId)>,
    pub(super) pools_made: u64,
    pub(super) capture: Option<Capture>,
    /// Captures so far.
    pub(super) captures: u64,
    /// What the capture under way has used.
    pub(super) capturing: Vec<Captured>,
    pub(super) graphs: Vec<Graph>,
    pub(super) checkpoints: Vec<(PoolId, Vec<PoolBlock>)>,
    pub(super) left: Arc<Mutex<Left>>,
    /// Streams that were destroyed, and have to be made anew before they are used.
    pub(super) destroyed: BTreeSet<StreamId>,
    /// Devices that may use all of the memory.
    pub(super) peers: BTreeSet<u32>,
    /// Calls may be failing.
    pub(super) faulty: bool,
    pub(super) lost: bool,
    /// The program's limits may refuse what the device has.
    pub(super) limited: bool,
    streams: u64,
    ops: u64,
    trail: Trail,
}

impl World {
    /// `None` where the options contradict each other.
    pub(super) fn new(setup: &Setup) -> Option<Self> {
        let config = Config::parse(&setup.options()).ok()?;
        let capacity = setup.capacity();
        let gpu = Arc::new(SimGpu::new(SimConfig { capacity, ..SimConfig::default() }).expect("a device"));
        let allocator = Arc::new(Allocator::new(Arc::<SimGpu>::clone(&gpu), config.clone()).expect("no call fails"));
        let limited = config.memory_fraction.is_some();
        let trail = Trail::new(format!("{setup:?}: {}", setup.options()));
        let mut world = Self {
            gpu,
            allocator,
            capacity,
            config,
            live: BTreeMap::new(),
            taken: Taken::default(),
            uses: Uses::default(),
            pools: Vec::new(),
            routed: Vec::new(),
            pools_made: 0,
            capture: None,
            captures: 0,
            capturing: Vec::new(),
            graphs: Vec::new(),
            checkpoints: Vec::new(),
            left: Arc::default(),
            destroyed: BTreeSet::new(),
            peers: BTreeSet::new(),
            faulty: false,
            lost: false,
            limited,
            streams: setup.streams(),
            ops: 0,
            trail,
        };
        if setup.callback {
            world.add_callback();
        }
        Some(world)
    }

    pub(super) fn step(&mut self, op: Op) {
        self.ops += 1;
        self.trail.note(format!("{}: {op:?}", self.ops));
        self.carry_out(op);
        self.callback_freed();
        self.check(self.ops.is_multiple_of(THOROUGH));
    }

    pub(super) fn note(&mut self, what: String) {
        self.trail.note(what);
    }

    /// A stream of the program: the default one, or one that is live from here on.
    pub(super) fn stream(&mut self, at: u8) -> StreamId {
        let stream = match at % 4 {
            0 => StreamId::DEFAULT,
            _ => self.other_stream(at),
        };
        if self.destroyed.remove(&stream) {
            self.gpu.replace_stream(stream);
        }
        stream
    }

    /// A stream that can be captured and destroyed.
    pub(super) fn other_stream(&self, at: u8) -> StreamId {
        StreamId(FIRST_STREAM + u64::from(at) / 4 % self.streams)
    }

    pub(super) fn block(&self, at: u8) -> Option<u64> {
        self.live.keys().nth(usize::from(at) % self.live.len().max(1)).copied()
    }

    pub(super) fn pool(&self, at: u8) -> Option<usize> {
        (!self.pools.is_empty()).then(|| usize::from(at) % self.pools.len())
    }

    pub(super) fn strategy(&self) -> StrategyKind {
        self.config.strategy
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.live.values().map(|live| live.size).sum()
    }

    /// Looks at an error: is it one that may come?
    pub(super) fn refused(&self, error: &Error) {
        assert!(!error.to_string().is_empty());
        match error {
            Error::Internal(_) => panic!("{error}; {:?}", self.allocator.check()),
            Error::Driver(_) | Error::Source { .. } => {
                assert!(self.faulty || self.lost || self.capture.is_some(), "{error}, although no call fails")
            }
            _ => {}
        }
    }

    /// Notes a use of memory by a kernel, from now on until the stream has passed it.
    pub(super) fn launch_on(&mut self, pieces: &[Piece], ranges: &[Range], by: Use, ns: u64) {
        if self.lost {
            return;
        }
        self.gpu.launch(by.stream, ranges, ns).unwrap_or_else(|error| panic!("a kernel: {error}"));
        let ends = self.gpu.done_at(by.stream).expect("no work is held");
        self.uses.add(pieces, Use { ends, ..by });
    }

    pub(super) fn check(&mut self, thorough: bool) {
        self.allocator.check().unwrap_or_else(|broken| panic!("{broken}"));
        let stats = self.allocator.stats();
        assert_eq!(stats.allocated_bytes.all.current, self.live_bytes(), "bytes allocated");
        assert_eq!(stats.allocation.all.current, self.live.len() as u64, "blocks allocated");
        assert_eq!(
            stats.reserved_bytes.all.current,
            self.gpu.leaks().bytes,
            "bytes held, and those that the device gave"
        );
        let faults = self.gpu.faults();
        assert!(faults.is_empty(), "{}", faults[0]);
        if thorough {
            self.check_thoroughly();
        }
    }

    fn check_thoroughly(&self) {
        let free = self.allocator.fragmentation();
        assert_eq!(free.allocated + free.pending + free.free + free.unsettled, free.reserved, "{free:?}");
        assert_eq!(free.pools.iter().map(|pool| pool.free).sum::<u64>(), free.free, "{free:?}");
        let snapshot = self.allocator.snapshot();
        let allocated: u64 = snapshot.segments.iter().map(|segment| segment.allocated_size()).sum();
        assert_eq!(allocated, free.allocated, "the snapshot's blocks");
        let held: u64 = snapshot.segments.iter().map(|segment| segment.total_size).sum();
        assert!(held == free.reserved || free.unsettled > 0, "the snapshot has {held} bytes of {}", free.reserved);
        for (&address, live) in &self.live {
            let pieces = self.gpu.physical(Range { address, size: live.size });
            assert_eq!(pieces, live.pieces, "the memory of {address:#x} stays where it is");
            let usable = |peer: &u32| self.gpu.can_peer_use(*peer, Range { address, size: live.size });
            assert!(self.peers.iter().all(usable), "{address:#x} can be used by {:?}", self.peers);
        }
    }

    /// Ends everything that is under way, frees all, and gives all back.
    pub(super) fn finish(mut self) {
        self.trail.note("the end".into());
        self.gpu.fail_no_more();
        self.faulty = false;
        if self.lost {
            return self.finish_lost();
        }
        self.end_capture();
        for (pool, _) in std::mem::take(&mut self.routed) {
            self.allocator.end_allocate_to_pool(pool).expect("it is routed");
        }
        for Pool { id, uses } in std::mem::take(&mut self.pools) {
            (0..uses).for_each(|_| self.allocator.release_pool(id).expect("it has a use"));
        }
        self.graphs.clear();
        for address in self.live.keys() {
            self.allocator.free(*address).expect("it is live");
        }
        self.live.clear();
        self.taken.clear();
        self.allocator.empty_cache().expect("no call fails");
        self.check(true);
        assert_eq!(self.allocator.reserved(), 0, "all was freed; {:?}", self.allocator.private_pools());
        let Self { gpu, allocator, .. } = self;
        drop(Arc::into_inner(allocator).expect("nobody else has it"));
        assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
    }

    /// Without a context nothing can be given back.
    fn finish_lost(mut self) {
        for address in std::mem::take(&mut self.live).into_keys() {
            match self.allocator.free(address) {
                Ok(()) => {}
                Err(error) => assert!(error.is_context_lost(), "{error}"),
            }
        }
        self.allocator.check().unwrap_or_else(|broken| panic!("{broken}"));
    }

    /// Whether the device has so much more than was asked for that a refusal is wrong, whatever lies where.
    pub(super) fn refusal_is_wrong(&self, size: u64) -> bool {
        let plain = self.capture.is_none() && self.pools.is_empty() && self.routed.is_empty() && !self.limited;
        let rounding = self.config.roundup_power2_divisions.iter().all(|divisions| *divisions == 0);
        let spare = size + self.config.large_segment_size.max(self.config.chunk_size.unwrap_or(0)) + 2 * MIB;
        plain
            && rounding
            && !self.faulty
            && !self.lost
            && self.strategy() == StrategyKind::Stitch
            && self.allocator.memory_info().is_ok_and(|memory| memory.free >= spare)
    }
}

/// The last operations, printed where one of them panics.
struct Trail {
    lines: Vec<String>,
    most: usize,
}

impl Trail {
    fn new(first: String) -> Self {
        let most = std::env::var("SEAMALLOC_FUZZ_TRAIL").ok().and_then(|lines| lines.parse().ok()).unwrap_or(TRAIL);
        Self { lines: vec![first], most }
    }

    fn note(&mut self, what: String) {
        if self.lines.len() > self.most {
            // The first one has the options.
            self.lines.remove(1);
        }
        self.lines.push(what);
    }
}

impl Drop for Trail {
    #[allow(clippy::print_stderr, reason = "a finding is told by its operations")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.lines.iter().for_each(|line| eprintln!("{line}"));
        }
    }
}
