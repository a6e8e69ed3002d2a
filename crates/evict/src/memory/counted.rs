//! Memory as simulators count it. A request is served if enough bytes are free, wherever they are.
//!
//! The rules are those of simrd (`_free` in `simrd/simrd/runtime/v2.py` of uwsampl/dtr-prototype).

use super::{End, Memory, Piece};
use rustc_hash::FxHashMap;

/// Bytes without addresses.
#[derive(Clone, Debug)]
pub struct Counted {
    budget: u64,
    used: u64,
    peak: u64,
    next: u64,
    blocks: FxHashMap<u64, u64>,
}

impl Counted {
    /// Makes a memory of `budget` bytes.
    #[must_use]
    pub fn new(budget: u64) -> Self {
        Self { budget, used: 0, peak: 0, next: 1, blocks: FxHashMap::default() }
    }
}

impl Memory for Counted {
    fn allocate(&mut self, bytes: u64, _end: End) -> Result<Option<u64>, seamalloc::Error> {
        if bytes > self.budget - self.used {
            return Ok(None);
        }
        self.used += bytes;
        self.peak = self.peak.max(self.used);
        let name = self.next;
        self.next += 1;
        self.blocks.insert(name, bytes);
        Ok(Some(name))
    }

    fn free(&mut self, address: u64) -> Result<(), seamalloc::Error> {
        self.used -= self.blocks.remove(&address).ok_or(seamalloc::Error::InvalidAddress { address })?;
        Ok(())
    }

    fn budget(&self) -> u64 {
        self.budget
    }

    fn used(&self) -> u64 {
        self.used
    }

    fn rounded(&self, bytes: u64) -> u64 {
        bytes
    }

    fn peak_reserved(&self) -> u64 {
        self.peak
    }

    fn pieces(&self) -> Vec<Piece> {
        Vec::new()
    }
}
