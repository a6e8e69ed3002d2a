//! Operations on private pools: uses, routes, segments of their own, captures and the graphs of them, checkpoints.

use super::book::{Live, Use};
use super::program::{Kernel, capture_mode};
use super::world::{Capture, Captured, Graph, Pool, World};
use seamalloc::driver::PlainMemory;
use seamalloc::driver::sim::{Range, SimGpu};
use seamalloc::{Error, PoolId, Route, SegmentSource, Segments, SourceError};
use std::sync::Arc;

/// Pools, checkpoints and graphs at a time.
const MAX_POOLS: usize = 6;
const MAX_CHECKPOINTS: usize = 5;
const MAX_GRAPHS: usize = 8;
/// Pools that the program names itself are numbered from here, beyond those that the allocator numbers.
const FIRST_NAMED: u64 = 1_000_000;

/// A program's own source of segments: the device's plain memory.
struct PlainSource(Arc<SimGpu>);

impl SegmentSource for PlainSource {
    fn malloc(&mut self, size: u64) -> Result<u64, SourceError> {
        self.0.malloc(size).map_err(|error| match error.is_out_of_memory() {
            true => SourceError::OutOfMemory,
            false => SourceError::Failed(error.to_string()),
        })
    }

    fn free(&mut self, address: u64, _: u64) -> Result<(), SourceError> {
        self.0.free(address).map_err(|error| SourceError::Failed(error.to_string()))
    }
}

impl World {
    pub(super) fn create_pool(&mut self) {
        if self.pools.len() < MAX_POOLS {
            let id = self.allocator.pools().create();
            self.pools.push(Pool { id, uses: 1 });
        }
    }

    pub(super) fn open_pool_with(&mut self, unsplit: bool, own_source: bool) {
        if self.pools.len() >= MAX_POOLS {
            return;
        }
        self.pools_made += 1;
        let id = PoolId(0, FIRST_NAMED + self.pools_made);
        let segments = match own_source {
            true => Segments::from_source(PlainSource(Arc::clone(&self.gpu))),
            false => Segments::by_malloc(),
        };
        match self.allocator.pools().open_with(id, if unsplit { segments.unsplit() } else { segments }) {
            Ok(()) => self.pools.push(Pool { id, uses: 1 }),
            Err(error) => self.refused(&error),
        }
    }

    /// A pool that was released comes back.
    pub(super) fn reopen_pool(&mut self, which: u8) {
        let known = self.allocator.pools().ids();
        let released: Vec<PoolId> =
            known.into_iter().filter(|id| self.pools.iter().all(|pool| pool.id != *id)).collect();
        if released.is_empty() || self.pools.len() >= MAX_POOLS {
            return;
        }
        let id = released[usize::from(which) % released.len()];
        self.allocator.pools().open(id).expect("any pool can be opened");
        self.pools.push(Pool { id, uses: 1 });
    }

    pub(super) fn keep_unsplit(&mut self, pool: u8) {
        let Some(at) = self.pool(pool) else { return };
        match self.allocator.pools().set_unsplit(self.pools[at].id) {
            Ok(()) | Err(Error::PoolInUse { .. }) => {}
            Err(error) => self.refused(&error),
        }
    }

    pub(super) fn retain_pool(&mut self, pool: u8) {
        let Some(at) = self.pool(pool) else { return };
        self.allocator.pools().retain(self.pools[at].id).expect("it has a use");
        self.pools[at].uses += 1;
    }

    pub(super) fn release_pool(&mut self, pool: u8) {
        let Some(at) = self.pool(pool) else { return };
        let id = self.pools[at].id;
        self.allocator.pools().release(id).expect("it has a use");
        self.pools[at].uses -= 1;
        if self.pools[at].uses == 0 {
            self.pools.remove(at);
            // No graph of it may be launched any more.
            self.graphs.retain(|graph| graph.0.iter().all(|captured| captured.pool != id));
            self.capturing.retain(|captured| captured.pool != id);
            assert_eq!(self.allocator.pools().release(id), Err(Error::UnknownPool { pool: id }), "released too often");
        }
    }

    pub(super) fn empty_pool(&mut self, pool: u8) {
        let known = self.allocator.pools().ids();
        let Some(&id) = known.get(usize::from(pool) % known.len().max(1)) else { return };
        let before = self.allocator.reports().reserved();
        match self.allocator.pools().empty(id) {
            Ok(given) => assert_eq!(before - given, self.allocator.reports().reserved(), "what was given back"),
            Err(error) => self.refused(&error),
        }
    }

    pub(super) fn begin_route(&mut self, pool: u8, stream: u8) {
        let Some(at) = self.pool(pool) else { return };
        let (id, stream) = (self.pools[at].id, self.stream(stream));
        match self.allocator.pools().begin(id, Route::stream(stream)) {
            Ok(()) => self.routed.push((id, stream)),
            Err(Error::PoolRouted { .. }) => {
                assert!(self.routed.iter().any(|(pool, _)| *pool == id), "{id} is not routed")
            }
            Err(error) => self.refused(&error),
        }
    }

    pub(super) fn end_route(&mut self, pool: u8) {
        let Some(&(id, _)) = self.routed.get(usize::from(pool) % self.routed.len().max(1)) else { return };
        if self.capture.is_none_or(|capture| capture.pool != id) {
            self.allocator.pools().end(id).expect("it is routed");
            self.routed.retain(|(pool, _)| *pool != id);
        }
    }

    pub(super) fn begin_capture(&mut self, pool: u8, stream: u8, mode: u8) {
        let Some(at) = self.pool(pool).filter(|_| self.capture.is_none()) else { return };
        let pool = self.pools[at].id;
        let stream = self.other_stream(stream);
        if self.destroyed.contains(&stream) || self.routed.iter().any(|(routed, _)| *routed == pool) {
            return;
        }
        match self.allocator.pools().begin(pool, Route::stream(stream).capturing()) {
            Ok(()) => {
                self.routed.push((pool, stream));
                self.gpu.begin_capture(stream, capture_mode(mode)).expect("no capture is under way");
                self.capture = Some(Capture { stream, pool });
                self.captures += 1;
            }
            Err(error) => self.refused(&error),
        }
    }

    /// A capture must be valid at its end, whatever the allocator did meanwhile.
    pub(super) fn end_capture(&mut self) {
        let Some(Capture { stream, pool }) = self.capture.take() else { return };
        self.gpu.end_capture(stream).unwrap_or_else(|error| panic!("the capture was invalidated: {error}"));
        self.allocator.pools().end(pool).expect("it is routed");
        self.routed.retain(|(routed, _)| *routed != pool);
        let mut memory = std::mem::take(&mut self.capturing);
        // A pool may have been routed to on after its last use.
        memory.retain(|captured| self.pools.iter().any(|pool| pool.id == captured.pool));
        if !memory.is_empty() {
            if self.graphs.len() == MAX_GRAPHS {
                self.graphs.remove(0);
            }
            self.graphs.push(Graph(memory));
        }
    }

    /// A graph finds its memory where the capture had it, for as long as its pools are used.
    pub(super) fn launch_graph(&mut self, graph: u8, stream: u8, kernel: Kernel) {
        let Some(last) = self.graphs.len().checked_sub(1) else { return };
        let at = last - usize::from(graph) % self.graphs.len();
        let stream = self.stream(stream);
        if self.capture.is_some_and(|capture| capture.stream == stream) {
            return;
        }
        for Captured { pool, range, pieces } in self.graphs[at].0.clone() {
            assert_eq!(self.gpu.physical(range), pieces, "a graph of {pool} finds its memory at {range}");
            let by = Use { stream, ends: 0, untold: None, graph_of: Some(pool), plain: false };
            self.launch_on(&pieces, &[range], by, kernel.ns());
        }
    }

    pub(super) fn take_checkpoint(&mut self, pool: u8) {
        let Some(at) = self.pool(pool) else { return };
        let id = self.pools[at].id;
        let blocks = self.allocator.pools().blocks(id).expect("the pool exists");
        if self.checkpoints.len() == MAX_CHECKPOINTS {
            self.checkpoints.remove(0);
        }
        self.checkpoints.push((id, blocks));
    }

    /// Restores a checkpoint of a pool. The live blocks of the pool afterwards are those that the allocator reports,
    /// over memory that nobody else has.
    pub(super) fn restore(&mut self, checkpoint: u8) {
        if self.capture.is_some() || self.checkpoints.is_empty() {
            return;
        }
        let (id, blocks) = self.checkpoints[usize::from(checkpoint) % self.checkpoints.len()].clone();
        let before = self.allocator.pools().blocks(id).unwrap_or_default();
        let done = self.allocator.pools().restore(id, &blocks);
        if matches!(done, Err(Error::UnknownPool { .. })) {
            return;
        }
        before.iter().for_each(|block| self.gone(block.address));
        let after = self.allocator.pools().blocks(id).unwrap_or_default();
        for block in &after {
            let pieces = self.gpu.physical(Range { address: block.address, size: block.size });
            self.taken.take(block.address, &pieces);
            let live = Live {
                size: block.size,
                stream: None,
                handle: None,
                pieces,
                pool: Some(id),
                captured: false,
                used_until: 0,
                used_by_other: false,
            };
            self.live.insert(block.address, live);
            self.order.push(block.address);
        }
        match done {
            Ok(()) => {
                let places = |blocks: &[seamalloc::PoolBlock]| -> Vec<(u64, u64)> {
                    blocks.iter().map(|block| (block.address, block.size)).collect()
                };
                assert_eq!(places(&after), places(&blocks), "what the checkpoint has");
            }
            Err(error) => self.refused(&error),
        }
    }
}
