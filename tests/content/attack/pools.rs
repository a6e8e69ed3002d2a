//! Private pools: with segments of their own, routes, captures and the graphs of them, checkpoints, and tags that sleep and wake.

use super::dice::Dice;
use super::oracle::Use;
use super::world::{Capture, FIRST_STREAM, Graph, Live, Pool, World, found};
use seamalloc::driver::sim::{CaptureMode, Range, SimGpu};
use seamalloc::driver::{PlainMemory, StreamId};
use seamalloc::{Backup, Error, PoolId, Route, SegmentSource, Segments, SourceError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const MAX_POOLS: usize = 5;
const MAX_TAGS: usize = 3;
const MAX_CHECKPOINTS: usize = 4;
const MAX_GRAPHS: usize = 6;
/// Pools that the program names itself are numbered from here, beyond those that the allocator numbers.
const FIRST_NAMED: u64 = 1_000_000;
/// Names of files that sleeping tags are kept in, among all programs of the process.
static FILES: AtomicU64 = AtomicU64::new(0);

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
    fn pool(&self, dice: &mut Dice) -> Option<PoolId> {
        dice.index(self.pools.len()).map(|at| self.pools[at].id)
    }

    pub(super) fn make_pool(&mut self, dice: &mut Dice) {
        if self.pools.len() >= MAX_POOLS {
            return self.use_pool(dice);
        }
        match dice.below(4) {
            0 | 1 => {
                let id = self.allocator.pools().create();
                self.log(|| format!("{}: pool {id}", self.operation));
                self.pools.push(Pool { id, uses: 1, tag: false });
            }
            2 => {
                self.pools_named += 1;
                let id = PoolId(0, FIRST_NAMED + self.pools_named);
                let own = dice.one_in(2);
                let segments = match own {
                    true => Segments::from_source(PlainSource(Arc::clone(&self.gpu))),
                    false => Segments::by_malloc(),
                };
                let segments = if dice.one_in(2) { segments.unsplit() } else { segments };
                self.log(|| format!("{}: pool {id} of segments of its own ({own})", self.operation));
                match self.allocator.pools().open_with(id, segments) {
                    Ok(()) => self.pools.push(Pool { id, uses: 1, tag: false }),
                    Err(error) => self.refused("open_pool_with", &error),
                }
            }
            _ => self.use_pool(dice),
        }
    }

    /// Adds a use to a pool, also to a released one, or gives its free memory back.
    fn use_pool(&mut self, dice: &mut Dice) {
        let known = self.allocator.pools().ids();
        let Some(id) = dice.index(known.len()).map(|at| known[at]) else { return };
        let used = self.pools.iter().position(|pool| pool.id == id);
        self.log(|| format!("{}: use or empty pool {id}", self.operation));
        match used {
            _ if dice.one_in(2) => self.judge("empty_pool", |world| world.allocator.pools().empty(id)),
            Some(at) => match self.allocator.pools().retain(id) {
                Ok(()) => self.pools[at].uses += 1,
                Err(error) => found!("a pool with a use cannot be retained: {error}"),
            },
            None if self.tags.contains(&id) || self.pools.len() >= MAX_POOLS => {}
            None => match self.allocator.pools().open(id) {
                Ok(()) => self.pools.push(Pool { id, uses: 1, tag: false }),
                Err(error) => self.refused("open_pool", &error),
            },
        }
    }

    pub(super) fn release_pool(&mut self, dice: &mut Dice) {
        let Some(id) = self.pool(dice) else { return };
        self.log(|| format!("{}: release pool {id}", self.operation));
        match self.allocator.pools().release(id) {
            Ok(()) => self.released(id),
            Err(error) => found!("a pool with a use cannot be released: {error}"),
        }
    }

    /// Ends a use of a pool in the book. Graphs of a pool without uses may not be launched any more.
    pub(super) fn released(&mut self, id: PoolId) {
        let Some(at) = self.pools.iter().position(|pool| pool.id == id) else { return };
        self.pools[at].uses -= 1;
        if self.pools[at].uses > 0 {
            return;
        }
        self.pools.remove(at);
        self.graphs.retain(|graph| graph.pool != id);
        if let Some(capture) = self.capture.as_mut().filter(|capture| capture.pool == id) {
            capture.ranges.clear();
        }
        if self.allocator.pools().release(id).is_ok() {
            found!("pool {id} is released too often");
        }
    }

    /// Begins or ends a route of a stream's requests to a pool.
    pub(super) fn route(&mut self, dice: &mut Dice) {
        if let Some(at) = dice.index(self.routes.len()).filter(|_| dice.one_in(2)) {
            let (pool, _) = self.routes[at];
            if self.capture.as_ref().is_none_or(|capture| capture.pool != pool) {
                self.log(|| format!("{}: end the route to {pool}", self.operation));
                if let Err(error) = self.allocator.pools().end(pool) {
                    found!("a route cannot be ended: {error}");
                }
                self.routes.remove(at);
            }
            return;
        }
        let Some(pool) = self.pool(dice) else { return };
        let stream = self.stream(dice);
        if self.is_captured(stream) {
            return;
        }
        self.log(|| format!("{}: route {stream} to {pool}", self.operation));
        match self.allocator.pools().begin(pool, Route::stream(stream)) {
            Ok(()) => self.routes.push((pool, stream)),
            Err(Error::PoolRouted { .. }) if self.routes.iter().any(|(other, _)| *other == pool) => {}
            Err(error) => self.refused("begin_allocate_to_pool", &error),
        }
    }

    pub(super) fn capture(&mut self, dice: &mut Dice) {
        if self.capture.is_some() {
            return self.end_capture();
        }
        let kept: Vec<PoolId> = self.pools.iter().filter(|pool| !pool.tag).map(|pool| pool.id).collect();
        let Some(pool) = dice.index(kept.len()).map(|at| kept[at]) else { return };
        let stream = StreamId(FIRST_STREAM + dice.below(self.setup.streams));
        if self.routes.iter().any(|(routed, of)| *routed == pool || *of == stream) {
            return;
        }
        self.disarm();
        let mode = dice.pick(&[CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed]);
        self.log(|| format!("{}: capture {stream} into {pool}, {mode:?}", self.operation));
        match self.allocator.pools().begin(pool, Route::stream(stream).capturing()) {
            Ok(()) => {
                if let Err(error) = self.gpu.begin_capture(stream, mode) {
                    found!("a capture cannot begin: {error}");
                }
                self.routes.push((pool, stream));
                self.capture = Some(Capture { stream, pool, ranges: Vec::new() });
            }
            Err(error) => self.refused("begin_allocate_to_pool", &error),
        }
    }

    /// Checks a block that is handed out in a capture: its graph may be launched on any stream at once.
    pub(super) fn captured(&mut self, address: u64, size: u64, stream: StreamId, pool: Option<PoolId>) {
        let (now, pieces) = (self.gpu.now_ns(), self.pieces(address, size));
        let early = |by: &Use| by.ends > now && by.untold != Some(stream) && by.graph_of != pool;
        if let Some(by) = self.uses.find(&pieces, early) {
            found!("a capture of stream {stream} gets {address:#x}, and it is still used: {by:?}");
        }
        self.count("blocks of graphs");
        let used = |id: PoolId| self.pools.iter().any(|pool| pool.id == id);
        if let (Some(capture), true) = (self.capture.as_mut(), pool.is_some_and(used)) {
            capture.ranges.push(Range { address, size });
        }
    }

    /// Ends a capture, which must be valid whatever the allocator did meanwhile.
    pub(super) fn end_capture(&mut self) {
        let Some(Capture { stream, pool, ranges }) = self.capture.take() else { return };
        self.log(|| format!("{}: end the capture", self.operation));
        self.gpu.fail_no_more();
        if let Err(error) = self.gpu.end_capture(stream) {
            found!("the capture was invalidated: {error}");
        }
        if let Err(error) = self.allocator.pools().end(pool) {
            found!("the route of a capture cannot be ended: {error}");
        }
        self.routes.retain(|(routed, _)| *routed != pool);
        self.disarm();
        self.count("captures");
        if !ranges.is_empty() {
            if self.graphs.len() == MAX_GRAPHS {
                self.graphs.remove(0);
            }
            self.graphs.push(Graph { pool, ranges });
        }
    }

    pub(super) fn replay(&mut self, dice: &mut Dice) {
        let Some(at) = dice.index(self.graphs.len()) else { return };
        let (stream, ns) = (self.stream(dice), dice.pick(&[2_000, 100_000, 1_000_000, 50_000_000]));
        if self.is_captured(stream) {
            return;
        }
        self.log(|| format!("{}: replay graph {at} on {stream}", self.operation));
        let (pool, ranges) = (self.graphs[at].pool, self.graphs[at].ranges.clone());
        for range in ranges {
            if !self.runs(stream, range, ns) {
                continue;
            }
            let ends = self.gpu.done_at(stream).unwrap_or(u64::MAX);
            let pieces = self.gpu.physical(range);
            self.uses.add(&pieces, Use { stream, ends, untold: None, graph_of: Some(pool) });
        }
        self.count("replays");
    }

    /// Takes a checkpoint of a pool, or brings one back: the blocks of the checkpoint, and no others, are live afterwards.
    pub(super) fn checkpoint(&mut self, dice: &mut Dice) {
        if self.capture.is_some() {
            return;
        }
        if dice.one_in(2) {
            let kept: Vec<PoolId> = self.pools.iter().filter(|pool| !pool.tag).map(|pool| pool.id).collect();
            let Some(id) = dice.index(kept.len()).map(|at| kept[at]) else { return };
            if let Ok(blocks) = self.allocator.pools().blocks(id) {
                self.log(|| format!("{}: a checkpoint of pool {id}", self.operation));
                self.checkpoints.truncate(MAX_CHECKPOINTS - 1);
                self.checkpoints.insert(0, (id, blocks));
            }
            return;
        }
        let Some(at) = dice.index(self.checkpoints.len()) else { return };
        let (id, blocks) = self.checkpoints[at].clone();
        let before = self.allocator.pools().blocks(id).unwrap_or_default();
        if before.iter().any(|block| self.live.get(&block.address).is_none_or(|live| live.grows)) {
            return;
        }
        if before.iter().any(|block| self.desk.lock().may_free.contains(&block.address)) {
            return;
        }
        self.log(|| format!("{}: restore {} blocks of pool {id}", self.operation, blocks.len()));
        let done = self.allocator.pools().restore(id, &blocks);
        if matches!(done, Err(Error::UnknownPool { .. } | Error::PoolAsleep { .. } | Error::NotGrowable { .. })) {
            return;
        }
        self.live.retain(|address, _| before.iter().all(|block| block.address != *address));
        let after = self.allocator.pools().blocks(id).unwrap_or_default();
        for block in &after {
            let old = before.iter().any(|other| other.address == block.address);
            let pool = Some(id);
            let size = self.allocator.reports().size_of(block.address).unwrap_or(0);
            let live = Live { size, stream: None, pool, grows: false, captured: false, restored: true };
            if self.live.insert(block.address, live).is_some() {
                found!("{:#x} is restored, and live (before as well: {old})", block.address);
            }
        }
        match done {
            Ok(()) => {
                let place = |block: &seamalloc::PoolBlock| (block.address, block.size);
                if after.iter().map(place).ne(blocks.iter().map(place)) {
                    found!("the checkpoint has {blocks:?}, and what is live is {after:?}");
                }
                self.count("checkpoints brought back");
            }
            Err(error) => self.refused("restore_pool", &error),
        }
    }

    /// Makes a tag, or lets one fall asleep or wake.
    pub(super) fn sleep_or_wake(&mut self, dice: &mut Dice) {
        let tags: Vec<PoolId> = self.pools.iter().filter(|pool| pool.tag).map(|pool| pool.id).collect();
        if tags.len() < MAX_TAGS && dice.one_in(4) {
            self.log(|| format!("{}: a tag", self.operation));
            match self.allocator.tags().create() {
                Ok(id) => {
                    self.pools.push(Pool { id, uses: 1, tag: true });
                    self.tags.push(id);
                }
                Err(error) => self.refused("create_tag", &error),
            }
            return;
        }
        let Some(tag) = dice.index(tags.len()).map(|at| tags[at]) else { return };
        if self.allocator.tags().is_asleep(tag) {
            self.log(|| format!("{}: wake {tag}", self.operation));
            return self.judge("wake", |world| world.allocator.tags().wake(tag));
        }
        let backup = match dice.below(8) {
            0 => Backup::Discard,
            1 => {
                let name = format!("seamalloc-attack-{}-{}", std::process::id(), FILES.fetch_add(1, Relaxed));
                Backup::File(std::env::temp_dir().join(name))
            }
            2..5 => Backup::Pinned,
            _ => Backup::Host,
        };
        self.log(|| format!("{}: {tag} sleeps, {backup:?}", self.operation));
        self.judge("sleep", |world| world.allocator.tags().sleep(tag, &backup));
    }
}
