//! The creation of a heap, without memory.

use super::blocks::table::Blocks;
use super::home::table::Home;
use super::journal::Journal;
use super::pools::table::Pools;
use super::tables::{Heap, HeapRules};
use crate::error::Result;

impl Heap {
    pub(crate) fn new(rules: HeapRules) -> Result<Self> {
        let mut heap = Self {
            rules,
            blocks: Blocks::new()?,
            pools: Pools::default(),
            journal: Journal::new(rules.flight, rules.oversize_from)?,
            home: Home::default(),
        };
        heap.add_first_pools()?;
        Ok(heap)
    }
}
