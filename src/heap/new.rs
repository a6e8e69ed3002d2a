//! The creation of a heap, without memory.

use super::blocks::block::BlockTable;
use super::home::pool_bytes::DriverPoolBytes;
use super::home::spilling::Spilling;
use super::home::views::Views;
use super::journal::counters::Counters;
use super::journal::flight::FlightRecorder;
use super::journal::observers::Observers;
use super::pools::pool::Pools;
use super::pools::private_pools::PrivatePools;
use super::tables::{FEW_STREAMS, Heap, HeapRules};
use crate::error::Result;
use crate::ids::{BlockId, PoolIndex, StreamId};
use rustc_hash::{FxHashMap, FxHashSet};

/// The stream id of idle memory, which belongs to no stream.
const IDLE: StreamId = StreamId(u64::MAX);

impl Heap {
    pub(crate) fn new(rules: HeapRules) -> Result<Self> {
        let mut heap = Self {
            rules,
            blocks: BlockTable::new()?,
            pools: Pools::default(),
            segments: Vec::new(),
            vacant_from: 0,
            counters: Counters::default(),
            observers: Observers::default(),
            flight: FlightRecorder::new(rules.flight)?,
            searches: [0; 2],
            addresses: FxHashMap::default(),
            unlisted: BlockId::NONE,
            pool_of: FxHashMap::default(),
            last_pool: (StreamId::DEFAULT, PoolIndex::DEFAULT),
            default_stream_asks: false,
            borrowed: FxHashSet::default(),
            home: None,
            views: Views::default(),
            idle: PoolIndex::DEFAULT,
            private: PrivatePools::default(),
            private_pairs: Vec::new(),
            vacant_pools: Vec::new(),
            vacate_from: 2 * FEW_STREAMS,
            retired: Vec::new(),
            pending_rollback: [0; 2],
            asleep: [0; 2],
            spilling: Spilling::default(),
            gives_back: false,
            driver_pool: DriverPoolBytes::default(),
        };
        heap.add_pools(StreamId::DEFAULT)?;
        heap.idle = heap.add_pools(IDLE)?;
        // `IDLE` is no stream of a program, so no request may find this pool.
        heap.pool_of.remove(&IDLE);
        Ok(heap)
    }
}
