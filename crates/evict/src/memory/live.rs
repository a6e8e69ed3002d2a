//! An allocator of seamalloc on a simulated GPU whose memory is the budget.

use super::{End, Memory, Piece};
use rustc_hash::FxHashMap;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{SimConfig, SimConfigError, SimGpu};
use seamalloc::snapshot::BlockState;
use seamalloc::{Allocator, Config, Error};
use std::sync::Arc;

/// The stream on which all work runs. One stream is enough, since recomputation runs in the program's order.
const STREAM: StreamId = StreamId(0);

/// An allocator of seamalloc as the memory of a run.
pub struct Live {
    allocator: Allocator,
    budget: u64,
    used: u64,
    blocks: FxHashMap<u64, u64>,
}

/// The error of an allocator that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// No device can have a memory of that size.
    #[error(transparent)]
    Device(#[from] SimConfigError),
    /// The options contradict each other.
    #[error(transparent)]
    Allocator(#[from] Error),
}

impl Live {
    /// Makes an allocator with these options on a device of `budget` bytes.
    ///
    /// # Errors
    /// [`LiveError`].
    pub fn new(config: Config, budget: u64) -> Result<Self, LiveError> {
        let gpu = SimGpu::new(SimConfig { capacity: budget, ..SimConfig::default() })?;
        let allocator = Allocator::new(Arc::new(gpu), config)?;
        Ok(Self { allocator, budget, used: 0, blocks: FxHashMap::default() })
    }

    /// Returns the allocator.
    #[must_use]
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }
}

impl Memory for Live {
    fn allocate(&mut self, bytes: u64, _end: End) -> Result<Option<u64>, Error> {
        match self.allocator.allocate(bytes, STREAM) {
            Ok(address) => {
                let rounded = self.rounded(bytes);
                self.used += rounded;
                self.blocks.insert(address, rounded);
                Ok(Some(address))
            }
            Err(error) if error.is_out_of_memory() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn free(&mut self, address: u64) -> Result<(), Error> {
        self.allocator.free(address)?;
        self.used -= self.blocks.remove(&address).unwrap_or(0);
        Ok(())
    }

    fn budget(&self) -> u64 {
        self.budget
    }

    fn used(&self) -> u64 {
        self.used
    }

    fn peak_reserved(&self) -> u64 {
        self.allocator.stats().reserved_bytes.all.peak
    }

    fn granule(&self) -> Option<u64> {
        Some(self.allocator.driver().properties().granularity)
    }

    fn pieces(&self) -> Vec<Piece> {
        let segments = self.allocator.reports().snapshot().segments;
        let pieces = segments.iter().enumerate().flat_map(|(segment, held)| {
            held.blocks.iter().map(move |block| Piece {
                address: block.address,
                bytes: block.size,
                segment,
                is_free: block.state == BlockState::Inactive,
            })
        });
        pieces.collect()
    }
}
