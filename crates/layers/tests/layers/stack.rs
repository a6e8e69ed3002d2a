//! A stack of layers, and a model of it: what each layer counts of the blocks that the program has, and how it answers.

use crate::fake::refused;
use seamalloc_layers::{
    Counter, FailureCallback, LOG_HEADER, Limit, Logging, MemoryResource, RawBlock, ResourceError, Retry, Stacks,
    Statistics, Tracking,
};
use seamalloc_trace::read_rmm;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) type Shared = Arc<dyn MemoryResource>;

/// A layer as the test draws it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Limit { limit: u64, alignment: u64 },
    Tracking,
    Statistics,
    Logging,
    FailureCallback,
    Retry,
}

/// A layer of the stack, and what the model knows of it.
pub(crate) enum Made {
    Limit(Arc<Limit<Shared>>, u64, u64),
    Tracking(Arc<Tracking<Shared>>),
    Statistics(Arc<Statistics<Shared>>, Expected),
    Logging(Arc<Logging<Shared, Vec<u8>>>, Lines),
    FailureCallback(Arc<AtomicU64>, u64),
    Retry(Arc<Retry<Shared>>),
}

/// Counters as they should be.
#[derive(Default)]
pub(crate) struct Expected {
    pub(crate) bytes: Counter,
    pub(crate) blocks: Counter,
}

/// How many lines there should be.
#[derive(Default)]
pub(crate) struct Lines {
    pub(crate) allocations: usize,
    pub(crate) failures: usize,
    pub(crate) frees: usize,
}

pub(crate) struct Stack {
    /// The outermost layer.
    pub(crate) top: Shared,
    /// The outermost first.
    pub(crate) layers: Vec<Made>,
}

pub(crate) fn stack(kinds: &[Kind], bottom: Shared) -> Stack {
    let (mut top, mut layers) = (bottom, Vec::new());
    for kind in kinds {
        let (over, made): (Shared, Made) = match *kind {
            Kind::Limit { limit, alignment } => {
                let layer = Arc::new(Limit::with_alignment(top, limit, alignment));
                (Arc::clone(&layer) as Shared, Made::Limit(layer, limit, alignment))
            }
            Kind::Tracking => {
                let layer = Arc::new(Tracking::new(top, Stacks::Off));
                (Arc::clone(&layer) as Shared, Made::Tracking(layer))
            }
            Kind::Statistics => {
                let layer = Arc::new(Statistics::new(top));
                (Arc::clone(&layer) as Shared, Made::Statistics(layer, Expected::default()))
            }
            Kind::Logging => {
                let layer = Arc::new(Logging::new(top, Vec::new()).unwrap());
                (Arc::clone(&layer) as Shared, Made::Logging(layer, Lines::default()))
            }
            Kind::FailureCallback => {
                let asked = Arc::new(AtomicU64::new(0));
                let count = Arc::clone(&asked);
                let layer = FailureCallback::new(top, move |_, _| {
                    count.fetch_add(1, Ordering::Relaxed);
                    false
                });
                (Arc::new(layer) as Shared, Made::FailureCallback(asked, 0))
            }
            Kind::Retry => {
                let layer = Arc::new(Retry::new(top, 0));
                (Arc::clone(&layer) as Shared, Made::Retry(layer))
            }
        };
        top = over;
        layers.push(made);
    }
    layers.reverse();
    Stack { top, layers }
}

fn rounded(size: u64, alignment: u64) -> u64 {
    size.next_multiple_of(alignment)
}

/// The program's blocks by address; and how many of 0 bytes.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) live: BTreeMap<u64, RawBlock>,
    pub(crate) empty: Vec<RawBlock>,
}

impl Program {
    pub(crate) fn bytes(&self) -> u64 {
        self.live.values().map(|block| block.size).sum()
    }

    pub(crate) fn counted(&self, alignment: u64) -> u64 {
        self.live.values().map(|block| rounded(block.size, alignment)).sum()
    }

    pub(crate) fn nth(&self, nth: usize) -> Option<RawBlock> {
        let all: Vec<RawBlock> = self.live.values().chain(&self.empty).copied().collect();
        (!all.is_empty()).then(|| all[nth % all.len()])
    }

    pub(crate) fn insert(&mut self, block: RawBlock) {
        if block.is_empty() {
            self.empty.push(block);
        } else {
            assert!(self.live.insert(block.address, block).is_none(), "a live address was handed out");
        }
    }

    pub(crate) fn remove(&mut self, block: RawBlock) {
        if block.is_empty() {
            self.empty.pop();
        } else {
            self.live.remove(&block.address);
        }
    }
}

impl Stack {
    /// Returns the expected outcome of a request, by the rules of each layer from the outermost on. `below`: what the
    /// resource below all would say. Notes in the model what each layer counts of it.
    pub(crate) fn expect_allocation(
        &mut self,
        program: &Program,
        size: u64,
        below: Option<ResourceError>,
    ) -> Option<ResourceError> {
        let limits = self.layers.iter().enumerate().find_map(|(at, layer)| match layer {
            Made::Limit(_, limit, alignment) => {
                let (requested, allocated) = (rounded(size, *alignment), program.counted(*alignment));
                (allocated + requested > *limit).then(|| (at, refused(requested, allocated, *limit)))
            }
            _ => None,
        });
        // Layers from here on are not asked.
        let (end, error) = match limits {
            Some((at, error)) => (at, Some(error)),
            None => (self.layers.len(), below),
        };
        for layer in &mut self.layers[..end] {
            match layer {
                Made::Statistics(_, expected) if error.is_none() => {
                    for (counter, more) in [(&mut expected.bytes, size as i64), (&mut expected.blocks, 1)] {
                        counter.value += more;
                        counter.total += more;
                        counter.peak = counter.peak.max(counter.value);
                    }
                }
                Made::Logging(_, lines) => match error {
                    None => lines.allocations += 1,
                    Some(_) => lines.failures += 1,
                },
                Made::FailureCallback(_, asked) => {
                    *asked += u64::from(error.as_ref().is_some_and(ResourceError::is_out_of_memory));
                }
                _ => {}
            }
        }
        error
    }

    /// Notes in the model that a block was freed.
    pub(crate) fn expect_free(&mut self, block: RawBlock) {
        for layer in &mut self.layers {
            match layer {
                Made::Statistics(_, expected) => {
                    expected.bytes.value -= block.size as i64;
                    expected.blocks.value -= 1;
                }
                Made::Logging(_, lines) => lines.frees += 1,
                _ => {}
            }
        }
    }

    pub(crate) fn has_tracking(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer, Made::Tracking(_)))
    }

    /// Compares what each layer says with the model.
    pub(crate) fn check(&self, program: &Program) {
        let live: Vec<RawBlock> = program.live.values().copied().collect();
        for layer in &self.layers {
            match layer {
                Made::Limit(layer, limit, alignment) => {
                    assert_eq!(layer.allocated(), program.counted(*alignment));
                    assert!(layer.allocated() <= *limit);
                }
                Made::Tracking(layer) => {
                    let blocks: Vec<RawBlock> = layer.outstanding().unwrap().iter().map(|of| of.block).collect();
                    assert_eq!(blocks, live);
                    assert_eq!(layer.allocated(), program.bytes());
                }
                Made::Statistics(layer, expected) => {
                    let found = layer.counters();
                    assert_eq!((found.bytes, found.blocks), (expected.bytes, expected.blocks));
                    assert_eq!(found.bytes.value as u64, program.bytes());
                }
                Made::Logging(layer, lines) => {
                    let text = layer.with_writer(|out| String::from_utf8(out.clone()).unwrap());
                    let count = |action: &str| text.matches(&format!(",{action},")).count();
                    let found = (count("allocate"), count("allocate failure"), count("free"));
                    assert_eq!(found, (lines.allocations, lines.failures, lines.frees));
                    assert_eq!((text.lines().next(), layer.lost()), (Some(LOG_HEADER), 0));
                }
                Made::FailureCallback(asked, expected) => assert_eq!(asked.load(Ordering::Relaxed), *expected),
                Made::Retry(layer) => assert_eq!((layer.waiting(), layer.figures()), (0, Default::default())),
            }
        }
    }

    /// Replays every log, and compares what it leaves live with the program.
    pub(crate) fn check_logs(&self, program: &Program) {
        for layer in &self.layers {
            let Made::Logging(layer, lines) = layer else { continue };
            let text = layer.with_writer(|out| String::from_utf8(out.clone()).unwrap());
            let Ok(trace) = read_rmm("log", "log.csv", text.as_bytes()) else {
                // Nothing but requests for 0 bytes.
                assert!(program.live.is_empty() && !text.contains("allocate,0x"), "{} lines", lines.allocations);
                continue;
            };
            let mut sizes: Vec<u64> = trace.live_sizes();
            sizes.sort_unstable();
            let mut expected: Vec<u64> = program.live.values().map(|block| block.size).collect();
            expected.sort_unstable();
            assert_eq!(sizes, expected);
        }
    }
}

trait LiveSizes {
    fn live_sizes(&self) -> Vec<u64>;
}

impl LiveSizes for seamalloc_trace::Trace {
    fn live_sizes(&self) -> Vec<u64> {
        use seamalloc_trace::TraceEvent::{Alloc, FreeCompleted, FreeRequested};
        let mut sizes = Vec::new();
        for event in &self.events {
            match *event {
                Alloc { size, .. } => sizes.push(size),
                FreeRequested { .. } => {}
                FreeCompleted { block } => sizes[block as usize] = 0,
            }
        }
        sizes.retain(|size| *size > 0);
        sizes
    }
}
