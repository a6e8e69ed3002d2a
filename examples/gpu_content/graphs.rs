//! The part of the program that captures graphs, replays them, and looks at what they have written.
//!
//! A graph has an input, which is filled outside of it; blocks that it allocates, fills, checks and frees while it is
//! captured; and outputs, which stay. Every replay checks the input and all that the graph writes; in between, input and
//! outputs are checked from other streams.
//!
//! Graphs of one private pool share its memory, and their order is the program's matter: all uses follow one another behind
//! one event, and a replay leaves nothing of the graphs that were captured after this one, whose input and outputs may lie
//! where this one had blocks in between. Nobody else may ever write there.

use crate::gpu::{GraphId, Kernel, Outcome, Words};
use crate::program::Program;
use crate::sabotage::Sabotage;
use seamalloc::driver::{CaptureMode, EventId, StreamId};
use seamalloc::{PoolId, Route};
use std::sync::atomic::Ordering;

const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
/// More would leave no memory to others.
const MOST_POOLS: usize = 3;
const MOST_GRAPHS: usize = 3;
/// Outputs of a graph, at most.
const MOST_OUTPUTS: usize = 3;

#[derive(Clone, Copy)]
struct Kept {
    words: Words,
    tag: u32,
}

struct Graph {
    id: GraphId,
    /// Outputs, then the input.
    kept: Vec<Kept>,
    /// Words that a replay checks.
    checks: u64,
    /// Whether what it keeps is there: not before the first replay, nor after one of an earlier graph.
    is_whole: bool,
}

struct Pool {
    id: PoolId,
    /// The last use of its memory outside of captures.
    last: EventId,
    /// In the order of their captures.
    graphs: Vec<Graph>,
}

/// A capture under way.
struct Capture {
    pool: usize,
    stream: StreamId,
    input: Kept,
    blocks: Vec<Kept>,
    steps_left: u64,
    checks: u64,
}

/// The pools of graphs, and what is being captured.
#[derive(Default)]
pub(crate) struct Graphs {
    pools: Vec<Pool>,
    capture: Option<Capture>,
}

impl Graphs {
    pub(crate) fn is_capturing(&self) -> bool {
        self.capture.is_some()
    }

    pub(crate) fn is_captured(&self, stream: StreamId) -> bool {
        self.capture.as_ref().is_some_and(|capture| capture.stream == stream)
    }
}

impl Program {
    /// Begins a capture, unless one is under way.
    pub(crate) fn begin_capture(&mut self) -> Outcome<()> {
        if self.shared.capturing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let begun = self.try_begin_capture()?;
        if !begun {
            self.shared.capturing.store(false, Ordering::Release);
        }
        Ok(())
    }

    fn try_begin_capture(&mut self) -> Outcome<bool> {
        let stream = self.stream();
        let at = self.random.below(MOST_POOLS as u64) as usize;
        let at = if at < self.graphs.pools.len() { at } else { self.new_pool(stream)? };
        let Pool { id, ref graphs, .. } = self.graphs.pools[at];
        if graphs.len() == MOST_GRAPHS {
            return Ok(false);
        }
        let size = self.graph_size();
        let allocated = self.shared.allocator.pools().allocate(id, size, stream);
        let Some(words) = self.obtained(allocated)? else { return Ok(false) };
        let input = Kept { words, tag: self.shared.tag() };
        self.shared.allocator.pools().begin(id, Route::stream(stream).capturing())?;
        let mode = MODES[self.random.below(3) as usize];
        self.shared.gpu.begin_capture(stream, mode)?;
        let steps_left = 4 + self.random.below(16);
        self.graphs.capture = Some(Capture { pool: at, stream, input, blocks: Vec::new(), steps_left, checks: 0 });
        self.capture_check(stream, input)?;
        self.tally.captures += 1;
        Ok(true)
    }

    fn new_pool(&mut self, stream: StreamId) -> Outcome<usize> {
        let last = self.driver.event_create()?;
        self.driver.event_record(last, stream)?;
        let id = self.shared.allocator.pools().create();
        self.graphs.pools.push(Pool { id, last, graphs: Vec::new() });
        Ok(self.graphs.pools.len() - 1)
    }

    fn graph_size(&mut self) -> u64 {
        // A graph has some ten blocks, and there are several.
        1 + self.size() / 4
    }

    fn capture_check(&mut self, stream: StreamId, kept: Kept) -> Outcome<()> {
        if let Some(capture) = &mut self.graphs.capture {
            capture.checks += kept.words.count;
        }
        // Counted at each replay, and not now.
        self.shared.gpu.launch(stream, Kernel::Check { of: kept.words, tag: kept.tag })
    }

    /// A step of the capture under way, or its end.
    pub(crate) fn capture_more(&mut self) -> Outcome<()> {
        let Some(capture) = &mut self.graphs.capture else { return Ok(()) };
        let (stream, count) = (capture.stream, capture.blocks.len() as u64);
        if capture.steps_left == 0 {
            return self.end_capture();
        }
        capture.steps_left -= 1;
        if count > 0 && self.random.below(3) == 0 {
            let at = self.random.below(count) as usize;
            return self.capture_free(at);
        }
        let size = self.graph_size();
        let allocated = self.shared.allocator.allocate(size, stream);
        let Some(words) = self.obtained(allocated)? else { return Ok(()) };
        let kept = Kept { words, tag: self.shared.tag() };
        self.shared.gpu.launch(stream, Kernel::Fill { to: words, tag: kept.tag })?;
        if self.random.below(4) == 0 {
            self.pause(stream)?;
        }
        if let Some(capture) = &mut self.graphs.capture {
            capture.blocks.push(kept);
        }
        Ok(())
    }

    fn capture_free(&mut self, at: usize) -> Outcome<()> {
        let Some(capture) = &mut self.graphs.capture else { return Ok(()) };
        let (stream, kept) = (capture.stream, capture.blocks.swap_remove(at));
        self.capture_check(stream, kept)?;
        Ok(self.shared.allocator.free(kept.words.address)?)
    }

    fn end_capture(&mut self) -> Outcome<()> {
        while self.graphs.capture.as_ref().is_some_and(|capture| capture.blocks.len() > MOST_OUTPUTS) {
            self.capture_free(0)?;
        }
        let (stream, outputs) = match &self.graphs.capture {
            Some(capture) => (capture.stream, capture.blocks.clone()),
            None => return Ok(()),
        };
        for output in outputs {
            self.capture_check(stream, output)?;
        }
        let id = self.shared.gpu.end_capture(stream)?;
        let Some(Capture { pool: at, input, mut blocks, checks, .. }) = self.graphs.capture.take() else {
            return Ok(());
        };
        self.shared.allocator.pools().end(self.graphs.pools[at].id)?;
        self.shared.capturing.store(false, Ordering::Release);
        if self.shared.sabotage == Some(Sabotage::FreedOutputs) {
            blocks.iter().try_for_each(|output| self.shared.allocator.free(output.words.address))?;
        }
        blocks.push(input);
        let graph = self.graphs.pools[at].graphs.len();
        self.graphs.pools[at].graphs.push(Graph { id, kept: blocks, checks, is_whole: false });
        self.replay(at, graph)
    }

    /// Replays some graph, looks at what one has written, or drops one.
    pub(crate) fn use_graphs(&mut self) -> Outcome<()> {
        let count = self.graphs.pools.len() as u64;
        let at = self.random.below(count) as usize;
        let Some(pool) = self.graphs.pools.get(at) else { return Ok(()) };
        if pool.graphs.is_empty() {
            return Ok(());
        }
        let graph = self.random.below(pool.graphs.len() as u64) as usize;
        match self.random.below(16) {
            0..9 => self.replay(at, graph),
            9..15 => self.inspect(at, graph),
            _ => self.drop_graph(at, graph),
        }
    }

    fn replay(&mut self, at: usize, graph: usize) -> Outcome<()> {
        let stream = self.stream();
        let pool = &mut self.graphs.pools[at];
        let Graph { id, checks, is_whole, ref kept } = pool.graphs[graph];
        let input = kept.last().copied().filter(|_| !is_whole);
        self.driver.stream_wait(stream, pool.last)?;
        let pauses = self.random.below(2) == 0;
        pool.graphs.iter_mut().skip(graph).for_each(|later| later.is_whole = false);
        pool.graphs[graph].is_whole = true;
        if pauses {
            self.pause(stream)?;
        }
        if let Some(Kept { words, tag }) = input {
            self.launch(stream, Kernel::Fill { to: words, tag })?;
        }
        self.shared.gpu.replay(id, stream)?;
        self.tally.words += checks;
        self.tally.replays += 1;
        self.used(at, graph, stream)
    }

    fn inspect(&mut self, at: usize, graph: usize) -> Outcome<()> {
        if !self.graphs.pools[at].graphs[graph].is_whole {
            return Ok(());
        }
        let stream = self.stream();
        self.driver.stream_wait(stream, self.graphs.pools[at].last)?;
        for kept in self.graphs.pools[at].graphs[graph].kept.clone() {
            self.launch(stream, Kernel::Check { of: kept.words, tag: kept.tag })?;
        }
        self.used(at, graph, stream)
    }

    /// A stream has been given work that uses what the graph keeps.
    fn used(&mut self, at: usize, graph: usize, stream: StreamId) -> Outcome<()> {
        let pool = &self.graphs.pools[at];
        self.driver.event_record(pool.last, stream)?;
        pool.graphs[graph]
            .still_live(self.shared.sabotage)
            .try_for_each(|kept| Ok(self.shared.allocator.record_stream(kept.words.address, stream)?))
    }

    fn drop_graph(&mut self, at: usize, graph: usize) -> Outcome<()> {
        if self.graphs.is_capturing() {
            return Ok(());
        }
        // Its blocks in between are no one's any more, while it may still run.
        match self.random.below(2) {
            0 => self.replay(at, graph)?,
            _ => self.inspect(at, graph)?,
        }
        let dropped = self.graphs.pools[at].graphs.remove(graph);
        let released = self.graphs.pools[at].graphs.is_empty().then(|| self.graphs.pools.swap_remove(at));
        // In either order: what a graph may still use waits for the device, and live blocks go on as any other.
        let releases_first = self.random.below(2) == 0;
        let release = |pool: &Pool| self.shared.allocator.pools().release(pool.id);
        if releases_first {
            released.as_ref().map_or(Ok(()), release)?;
        }
        for kept in dropped.still_live(self.shared.sabotage) {
            self.shared.allocator.free(kept.words.address)?;
        }
        if let Some(pool) = &released {
            if !releases_first {
                release(pool)?;
            }
            self.driver.event_destroy(pool.last)?;
        }
        Ok(())
    }

    /// Ends the capture under way, and drops every graph.
    pub(crate) fn drop_graphs(&mut self) -> Outcome<()> {
        self.end_capture()?;
        while let Some(pool) = self.graphs.pools.last() {
            let last = self.graphs.pools.len() - 1;
            if pool.graphs.is_empty() {
                self.shared.allocator.pools().release(pool.id)?;
                self.driver.event_destroy(pool.last)?;
                self.graphs.pools.pop();
            } else {
                self.drop_graph(last, 0)?;
            }
        }
        Ok(())
    }
}

impl Graph {
    /// Returns the kept blocks that are still allocated: all, but for a program that has freed its outputs.
    fn still_live(&self, sabotage: Option<Sabotage>) -> impl Iterator<Item = &Kept> {
        let freed = if sabotage == Some(Sabotage::FreedOutputs) { self.kept.len() - 1 } else { 0 };
        self.kept.iter().skip(freed)
    }
}
