//! The creation of a heap, without memory.

use super::blocks::table::Blocks;
use super::home::pool_bytes::DriverPoolBytes;
use super::home::spilling::Spilling;
use super::home::views::Views;
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
            segments: Vec::new(),
            vacant_from: 0,
            journal: Journal::new(rules.flight, rules.oversize_from)?,
            home: None,
            views: Views::default(),
            retired: Vec::new(),
            pending_rollback: [0; 2],
            asleep: [0; 2],
            spilling: Spilling::default(),
            gives_back: false,
            driver_pool: DriverPoolBytes::default(),
        };
        heap.add_first_pools()?;
        Ok(heap)
    }
}
