//! The simulated GPU with words in its memory: the same program and the same mistakes as on a real one.
//!
//! Owns: what physical memory holds. A kernel takes effect at the moment at which the simulated GPU's clock says that it
//! ends, so that one that runs too early finds, or leaves, wrong words.

use crate::gpu::{Findings, Gpu, GraphId, Kernel, Key, Outcome, WORD, Words, WrongWord};
use parking_lot::Mutex;
use seamalloc::driver::sim::{Piece, Range, SimConfig, SimGpu};
use seamalloc::driver::{
    CaptureMode, Contents as _, Driver, DriverResult, ForwardingDriver, GateCopy, StreamGate as _, StreamId,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

/// Bytes that a kernel reads or writes in a nanosecond: an H200, about.
const BYTES_PER_NS: u64 = 3_000;
/// A kernel takes no less, in nanoseconds, nor does the CPU to launch it: an H200 and its host, about.
const LEAST_NS: u64 = 2_000;
/// So many kernels may wait; then the CPU waits for the oldest: the driver of an H200 did so, about.
const MOST_WAITING: usize = 1_024;
/// Streams are numbers; the default stream is 0.
const FIRST_STREAM: u64 = 1;

/// A [`SimGpu`] that knows which words its memory holds.
pub(crate) struct SimWords {
    gpu: Arc<SimGpu>,
    state: Arc<Mutex<State>>,
}

/// The driver that the allocator gets: a copy of its own takes the words along.
struct WithWords {
    gpu: Arc<SimGpu>,
    state: Arc<Mutex<State>>,
}

impl ForwardingDriver for WithWords {
    fn inner(&self) -> &dyn Driver {
        &*self.gpu
    }

    fn copy(&self, from: u64, to: u64, size: u64) -> DriverResult<()> {
        let state = &mut *self.state.lock();
        self.gpu.copy(from, to, size)?;
        state.run_until(self.gpu.now_ns());
        state.copy(&self.gpu, GateCopy { from, to, size });
        Ok(())
    }

    fn close_gate(&self, streams: &[StreamId], copies: &[GateCopy], patience_ns: u64) -> DriverResult<bool> {
        let state = &mut *self.state.lock();
        let closed = self.gpu.close_gate(streams, copies, patience_ns)?;
        state.run_until(self.gpu.now_ns());
        if closed {
            copies.iter().for_each(|copy| state.copy(&self.gpu, *copy));
        }
        Ok(closed)
    }
}

#[derive(Default)]
struct State {
    streams: u64,
    /// Kernels that have not ended, by the time of their end and then in the order in which they were given.
    waiting: BinaryHeap<Reverse<(u64, u64)>>,
    kernels: HashMap<u64, Effect>,
    given: u64,
    contents: Contents,
    capturing: HashMap<StreamId, Vec<Kernel>>,
    graphs: Vec<Vec<Kernel>>,
    findings: Findings,
}

/// A kernel, and the physical memory that its addresses led to when it was given.
struct Effect {
    kernel: Kernel,
    from: Vec<Piece>,
    to: Vec<Piece>,
}

impl SimWords {
    pub(crate) fn open(spec: &str) -> Outcome<Self> {
        Ok(Self { gpu: Arc::new(SimGpu::new(SimConfig::parse(spec)?)?), state: Arc::default() })
    }

    fn give(&self, state: &mut State, stream: StreamId, kernel: Kernel) -> Outcome<()> {
        let range = |words: Words| Range { address: words.address, size: words.bytes() };
        let (from, to) = match kernel {
            Kernel::Fill { to, .. } => (None, Some(range(to))),
            Kernel::Check { of, .. } => (Some(range(of)), None),
            Kernel::Copy { from, to } => (Some(range(from)), Some(Range { address: to, size: from.bytes() })),
            Kernel::Spin { .. } => (None, None),
        };
        let ranges: Vec<_> = from.into_iter().chain(to).collect();
        let ns = match kernel {
            Kernel::Spin { ns } => ns,
            _ => LEAST_NS + ranges.iter().map(|range| range.size).sum::<u64>() / BYTES_PER_NS,
        };
        self.gpu.advance(LEAST_NS);
        self.gpu.launch(stream, &ranges, ns)?;
        if let Some(captured) = state.capturing.get_mut(&stream) {
            captured.push(kernel);
            return Ok(());
        }
        let ends = self.gpu.done_at(stream).ok_or("a stream does not know when it ends")?;
        let pieces = |range: Option<Range>| range.map(|range| self.gpu.physical(range)).unwrap_or_default();
        state.kernels.insert(state.given, Effect { kernel, from: pieces(from), to: pieces(to) });
        state.waiting.push(Reverse((ends, state.given)));
        state.given += 1;
        if state.waiting.len() > MOST_WAITING
            && let Some(Reverse((oldest, _))) = state.waiting.peek()
        {
            self.gpu.advance(oldest.saturating_sub(self.gpu.now_ns()));
        }
        // Whatever is given later ends later than now.
        state.run_until(self.gpu.now_ns());
        Ok(())
    }
}

impl Gpu for SimWords {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::new(WithWords { gpu: Arc::clone(&self.gpu), state: Arc::clone(&self.state) })
    }

    fn enter(&self) -> Outcome<()> {
        Ok(())
    }

    fn create_stream(&self) -> Outcome<StreamId> {
        let state = &mut *self.state.lock();
        state.streams += 1;
        Ok(StreamId(FIRST_STREAM + state.streams))
    }

    fn launch(&self, stream: StreamId, kernel: Kernel) -> Outcome<()> {
        self.give(&mut self.state.lock(), stream, kernel)
    }

    fn begin_capture(&self, stream: StreamId, mode: CaptureMode) -> Outcome<()> {
        self.gpu.begin_capture(stream, mode)?;
        self.state.lock().capturing.insert(stream, Vec::new());
        Ok(())
    }

    fn end_capture(&self, stream: StreamId) -> Outcome<GraphId> {
        self.gpu.end_capture(stream)?;
        let state = &mut *self.state.lock();
        let captured = state.capturing.remove(&stream).ok_or("no capture was begun")?;
        state.graphs.push(captured);
        Ok(GraphId(state.graphs.len() - 1))
    }

    fn replay(&self, GraphId(graph): GraphId, stream: StreamId) -> Outcome<()> {
        let state = &mut *self.state.lock();
        let kernels = state.graphs.get(graph).cloned().ok_or("no such graph")?;
        kernels.into_iter().try_for_each(|kernel| self.give(state, stream, kernel))
    }

    fn glance(&self) -> Outcome<u64> {
        Ok(self.state.lock().findings.wrong)
    }

    fn findings(&self) -> Outcome<Findings> {
        self.gpu.synchronize()?;
        let state = &mut *self.state.lock();
        state.run_until(u64::MAX);
        state.findings.faults = self.gpu.faults().iter().map(ToString::to_string).collect();
        Ok(state.findings.clone())
    }
}

impl State {
    /// Copies words that the device has just copied.
    fn copy(&mut self, gpu: &SimGpu, GateCopy { from, to, size }: GateCopy) {
        let [from, to] = [from, to].map(|address| gpu.physical(Range { address, size }));
        let words = self.contents.read(&from);
        self.contents.write(&to, &words);
    }

    fn run_until(&mut self, now: u64) {
        while let Some(&Reverse((ends, number))) = self.waiting.peek()
            && ends <= now
        {
            self.waiting.pop();
            if let Some(effect) = self.kernels.remove(&number) {
                self.run(&effect);
            }
        }
    }

    fn run(&mut self, effect: &Effect) {
        match effect.kernel {
            Kernel::Fill { tag, .. } => {
                self.contents.write(&effect.to, &[Run { key: Some(Key::new(tag, 0)), words: u64::MAX }])
            }
            Kernel::Copy { .. } => {
                let runs = self.contents.read(&effect.from);
                self.contents.write(&effect.to, &runs);
            }
            Kernel::Check { tag, .. } => {
                let mut at = 0;
                for run in self.contents.read(&effect.from) {
                    let expected = Key::new(tag, at);
                    at += run.words;
                    if run.key != Some(expected) {
                        self.findings.wrong += run.words;
                        // What nobody wrote is 0 on a fresh GPU.
                        let found = run.key.unwrap_or(Key::of(0));
                        self.findings.first.get_or_insert(WrongWord { expected, found });
                    }
                }
                self.findings.checked += at;
            }
            Kernel::Spin { .. } => {}
        }
    }
}

/// Words whose keys count up; without a key nobody wrote them.
#[derive(Clone, Copy)]
struct Run {
    key: Option<Key>,
    words: u64,
}

/// The contents of physical memory: by memory and offset, where the run ends and its first key.
#[derive(Default)]
struct Contents(BTreeMap<(u64, u64), (u64, Key)>);

impl Contents {
    fn read(&self, pieces: &[Piece]) -> Vec<Run> {
        let mut runs = Vec::new();
        for piece in pieces {
            let (memory, end) = (piece.memory, piece.offset + piece.size);
            let mut at = piece.offset;
            let before = self.0.range(..=(memory, at)).next_back().filter(|((of, _), _)| *of == memory);
            let first = before.map_or(at, |((_, from), _)| *from);
            for (&(_, from), &(to, key)) in self.0.range((memory, first)..(memory, end)) {
                if to <= at {
                    continue;
                }
                let begin = from.max(at);
                if begin > at {
                    runs.push(Run { key: None, words: (begin - at) / WORD });
                }
                at = to.min(end);
                runs.push(Run { key: Some(Key(key.0 + (begin - from) / WORD)), words: (at - begin) / WORD });
            }
            if at < end {
                runs.push(Run { key: None, words: (end - at) / WORD });
            }
        }
        runs
    }

    fn write(&mut self, pieces: &[Piece], runs: &[Run]) {
        let mut runs = runs.iter().copied();
        let mut run = Run { key: None, words: 0 };
        for piece in pieces {
            self.clear(piece);
            let (mut at, end) = (piece.offset, piece.offset + piece.size);
            while at < end {
                if run.words == 0 {
                    match runs.next() {
                        Some(next) => run = next,
                        None => return,
                    }
                }
                let words = run.words.min((end - at) / WORD);
                if let Some(key) = run.key {
                    self.0.insert((piece.memory, at), (at + words * WORD, key));
                }
                run = Run { key: run.key.map(|Key(key)| Key(key + words)), words: run.words - words };
                at += words * WORD;
            }
        }
    }

    /// Forgets what a piece holds; what reaches beyond it stays.
    fn clear(&mut self, piece: &Piece) {
        let (memory, from, to) = (piece.memory, piece.offset, piece.offset + piece.size);
        let before = self.0.range(..(memory, to)).next_back();
        let mut last = before.map(|(&at, &run)| (at, run));
        while let Some(((of, begin), (end, key))) = last {
            if of != memory || end <= from {
                break;
            }
            self.0.remove(&(of, begin));
            if end > to {
                self.0.insert((memory, to), (end, Key(key.0 + (to - begin) / WORD)));
            }
            if begin < from {
                self.0.insert((memory, begin), (from, key));
                break;
            }
            last = self.0.range(..(memory, begin)).next_back().map(|(&at, &run)| (at, run));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(memory: u64, from: u64, words: u64) -> Piece {
        Piece { memory, offset: from * WORD, size: words * WORD }
    }

    fn runs(contents: &Contents, pieces: &[Piece]) -> Vec<(Option<u64>, u64)> {
        contents.read(pieces).iter().map(|run| (run.key.map(|key| key.0), run.words)).collect()
    }

    #[test]
    fn memory_holds_what_was_written_there_last() {
        let filled = |key| [Run { key: Some(Key(key)), words: u64::MAX }];
        let mut contents = Contents::default();
        // A block of two pieces, then another in the midst of the first, and over the beginning of the second.
        contents.write(&[piece(1, 0, 100), piece(2, 50, 20)], &filled(1000));
        contents.write(&[piece(1, 40, 10), piece(2, 40, 15)], &filled(5000));
        assert_eq!(runs(&contents, &[piece(1, 0, 100)]), [(Some(1000), 40), (Some(5000), 10), (Some(1050), 50)]);
        assert_eq!(runs(&contents, &[piece(2, 38, 40)]), [(None, 2), (Some(5010), 15), (Some(1105), 15), (None, 8)]);
        assert_eq!(runs(&contents, &[piece(1, 45, 1)]), [(Some(5005), 1)]);
        let copied = contents.read(&[piece(1, 30, 30)]);
        contents.write(&[piece(3, 0, 15), piece(2, 0, 15)], &copied);
        assert_eq!(runs(&contents, &[piece(3, 0, 16)]), [(Some(1030), 10), (Some(5000), 5), (None, 1)]);
        assert_eq!(runs(&contents, &[piece(2, 0, 16)]), [(Some(5005), 5), (Some(1050), 10), (None, 1)]);
    }
}
