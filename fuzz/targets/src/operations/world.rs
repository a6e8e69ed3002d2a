//! The device, the allocator and the program's book, and what must hold of them.
//!
//! Owns: the state of a program, the checks after each operation, and which errors may come.

use super::book::{Live, Taken, Use, Uses};
use super::program::{MIB, Which};
use super::setup::Setup;
use super::trail::{Line, Trail};
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{Piece, Range, SimConfig, SimGpu};
use seamalloc::{Allocator, Config, Error, PoolBlock, PoolId, StrategyKind};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

/// Operations after which the whole book is compared.
pub(super) const THOROUGH: u64 = 16;
/// Sizes of freed blocks that are remembered, for requests of the same size.
pub(super) const FREED: usize = 8;
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

/// The memory that a capture used, as long as every pool of it has a use.
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
    /// Live blocks in the order in which they were handed out.
    pub(super) order: Vec<u64>,
    /// The block of the last operation.
    pub(super) last: Option<u64>,
    /// Sizes of the blocks that were freed last, the newest first.
    pub(super) freed: VecDeque<u64>,
    pub(super) taken: Taken,
    pub(super) uses: Uses,
    pub(super) pools: Vec<Pool>,
    /// Private pools that requests of a stream go to.
    pub(super) routed: Vec<(PoolId, StreamId)>,
    pub(super) pools_made: u64,
    pub(super) capture: Option<Capture>,
    /// Captures so far.
    pub(super) captures: u64,
    /// The memory that the capture under way has used.
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
    pub(super) ops: u64,
    trail: Trail,
}

impl World {
    /// `None` where the options contradict each other.
    pub(super) fn new(setup: &Setup) -> Option<Self> {
        let config = Config::parse(&setup.options).ok()?;
        let capacity = setup.capacity;
        let gpu = Arc::new(SimGpu::new(SimConfig { capacity, ..SimConfig::default() }).expect("a device"));
        let allocator = Arc::new(Allocator::new(Arc::<SimGpu>::clone(&gpu), config.clone()).expect("no call fails"));
        let limited = config.memory_fraction.is_some();
        let trail = Trail::new(format!("{setup:?}"));
        Some(Self {
            gpu,
            allocator,
            capacity,
            config,
            live: BTreeMap::new(),
            order: Vec::new(),
            last: None,
            freed: VecDeque::new(),
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
            streams: setup.streams,
            ops: 0,
            trail,
        })
    }

    pub(super) fn note(&mut self, line: Line) {
        self.trail.note(line);
    }

    /// A stream of the program: the default one, or one that is live from here on.
    pub(super) fn stream(&mut self, at: u8) -> StreamId {
        let stream = match u64::from(at) % (self.streams + 1) {
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
        StreamId(FIRST_STREAM + (u64::from(at) % (self.streams + 1)).saturating_sub(1))
    }

    /// A live block, which is the last one from here on.
    pub(super) fn block(&mut self, which: Which) -> Option<u64> {
        let nth = |from: &[u64], at: u8| from.get(usize::from(at) % from.len().max(1)).copied();
        let newest = |at: u8| self.order.iter().rev().nth(usize::from(at)).copied();
        let found = match which {
            Which::Any(at) => nth(&self.order, at),
            Which::Newest(at) => newest(at),
            Which::Last => self.last.filter(|last| self.live.contains_key(last)),
            Which::InUse(at) => {
                let now = self.gpu.now_ns();
                let used = |by_other: bool| -> Vec<u64> {
                    let in_use = |address: &&u64| {
                        let live = &self.live[*address];
                        live.used_until > now && (live.used_by_other || !by_other)
                    };
                    self.order.iter().filter(in_use).copied().collect()
                };
                nth(&used(true), at).or_else(|| nth(&used(false), at))
            }
        };
        self.last = found.or_else(|| newest(0));
        self.last
    }

    pub(super) fn pool(&self, at: u8) -> Option<usize> {
        (!self.pools.is_empty()).then(|| usize::from(at) % self.pools.len())
    }

    /// The private pool that requests of a stream go to.
    pub(super) fn routed_to(&self, stream: StreamId) -> Option<PoolId> {
        self.routed.iter().rev().find(|(_, of)| *of == stream).map(|(pool, _)| *pool)
    }

    pub(super) fn strategy(&self) -> StrategyKind {
        self.config.strategy
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.live.values().map(|live| live.size).sum()
    }

    /// Looks at an error: is it one that may come?
    pub(super) fn refused(&self, error: &Error) {
        // A report takes longer to print than a request takes.
        assert!(!self.ops.is_multiple_of(THOROUGH) || !error.to_string().is_empty());
        match error {
            Error::Internal(_) => panic!("{error}; {:?}", self.allocator.reports().check()),
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
        self.allocator.reports().check().unwrap_or_else(|broken| panic!("{broken}"));
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
        let free = self.allocator.reports().fragmentation();
        assert_eq!(free.allocated + free.pending + free.free + free.unsettled, free.reserved, "{free:?}");
        assert_eq!(free.pools.iter().map(|pool| pool.free).sum::<u64>(), free.free, "{free:?}");
        let snapshot = self.allocator.reports().snapshot();
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
            && self.allocator.driver().memory_info().is_ok_and(|memory| memory.free >= spare)
    }
}
