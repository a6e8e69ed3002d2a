//! The machine's own memory, with kernels that its threads carry out: words are really written, read and compared.
//!
//! Owns: the kernels as work of a [`HostDriver`], and what those that check have found.

use crate::gpu::{Findings, Gpu, GraphId, Kernel, Key, Outcome, Words, WrongWord};
use parking_lot::Mutex;
use seamalloc::driver::host::{HostConfig, HostDriver, HostGraph, HostWork, Range};
use seamalloc::driver::{CaptureMode, Driver, StreamId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A [`HostDriver`] and what checks have found on it.
pub(crate) struct HostWords {
    device: Arc<HostDriver>,
    found: Arc<Found>,
    graphs: Mutex<Vec<HostGraph>>,
}

#[derive(Default)]
struct Found {
    checked: AtomicU64,
    wrong: AtomicU64,
    first: Mutex<Option<WrongWord>>,
}

impl Found {
    /// Compares words with those of a tag, from this one on.
    fn compare(&self, tag: u32, at: u64, words: &[u64]) {
        let is_wrong = |(place, word): (u64, &u64)| *word != Key::new(tag, place).word();
        let wrong = (at..).zip(words).filter(|found| is_wrong(*found)).count();
        if wrong > 0 {
            self.wrong.fetch_add(wrong as u64, Ordering::Relaxed);
            if let Some((place, word)) = (at..).zip(words).find(|found| is_wrong(*found)) {
                let (expected, found) = (Key::new(tag, place), Key::of(*word));
                self.first.lock().get_or_insert(WrongWord { expected, found });
            }
        }
        self.checked.fetch_add(words.len() as u64, Ordering::Relaxed);
    }
}

impl HostWords {
    pub(crate) fn open(spec: &str) -> Outcome<Self> {
        let device = Arc::new(HostDriver::new(HostConfig::parse(spec)?)?);
        Ok(Self { device, found: Arc::default(), graphs: Mutex::default() })
    }

    fn work(&self, kernel: Kernel) -> HostWork {
        let range = |words: Words| Range { address: words.address, size: words.bytes() };
        match kernel {
            Kernel::Fill { to, tag } => {
                let fill = move |at, words: &mut [u64]| {
                    words.iter_mut().zip(at..).for_each(|(word, place)| *word = Key::new(tag, place).word());
                };
                HostWork::Fill { to: range(to), words: Arc::new(fill) }
            }
            Kernel::Check { of, tag } => {
                let found = Arc::clone(&self.found);
                let see = move |at, words: &[u64]| found.compare(tag, at, words);
                HostWork::Look { at: range(of), see: Arc::new(see) }
            }
            Kernel::Copy { from, to } => HostWork::Copy { from: range(from), to },
            Kernel::Spin { ns } => HostWork::Pause { ns },
        }
    }
}

impl Gpu for HostWords {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::<HostDriver>::clone(&self.device)
    }

    fn enter(&self) -> Outcome<()> {
        Ok(())
    }

    fn create_stream(&self) -> Outcome<StreamId> {
        Ok(self.device.create_stream())
    }

    fn launch(&self, stream: StreamId, kernel: Kernel) -> Outcome<()> {
        Ok(self.device.launch(stream, self.work(kernel))?)
    }

    fn begin_capture(&self, stream: StreamId, mode: CaptureMode) -> Outcome<()> {
        Ok(self.device.begin_capture(stream, mode)?)
    }

    fn end_capture(&self, stream: StreamId) -> Outcome<GraphId> {
        let graph = self.device.end_capture(stream)?;
        let graphs = &mut *self.graphs.lock();
        graphs.push(graph);
        Ok(GraphId(graphs.len() - 1))
    }

    fn replay(&self, GraphId(graph): GraphId, stream: StreamId) -> Outcome<()> {
        let graph = self.graphs.lock().get(graph).cloned().ok_or("no such graph")?;
        Ok(self.device.replay(&graph, stream)?)
    }

    fn glance(&self) -> Outcome<u64> {
        Ok(self.found.wrong.load(Ordering::Relaxed))
    }

    fn findings(&self) -> Outcome<Findings> {
        self.device.synchronize()?;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Ok(Findings {
            checked: count(&self.found.checked),
            wrong: count(&self.found.wrong),
            first: *self.found.first.lock(),
            faults: self.device.faults().iter().map(ToString::to_string).collect(),
        })
    }
}
