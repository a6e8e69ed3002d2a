//! Which allocations grow in place, and the parts of each.
//!
//! Owns: the table of them. `growing.rs` has the operations.

use crate::config::Advice;
use crate::error::{Error, Result};
use crate::ids::{PoolId, StreamId, ViewId};
use rustc_hash::FxHashMap;

/// How much of an allocation that grows is in use, has memory, and is reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Extent {
    /// Bytes as asked for by the last [`GrowingAllocations::grow`](crate::operations::GrowingAllocations::grow) or [`GrowingAllocations::shrink`](crate::operations::GrowingAllocations::shrink).
    pub len: u64,
    /// Bytes from the address on that have memory: to here it grows without the driver.
    pub mapped: u64,
    /// Bytes of addresses, as asked for.
    pub capacity: u64,
}

/// A live block of an allocation that grows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) address: u64,
    pub(super) size: u64,
}

/// An allocation that grows.
#[derive(Debug)]
pub(super) struct Growth {
    pub(super) view: ViewId,
    pub(super) stream: StreamId,
    /// Whether that stream was forgotten: it has no memory for what is to come, and its handle means another stream.
    pub(super) ended: bool,
    pub(super) owner: Option<PoolId>,
    pub(super) len: u64,
    pub(super) capacity: u64,
    pub(super) parts: Vec<Part>,
    /// Bytes of all parts.
    pub(super) mapped: u64,
    /// Other streams that use it, and so will use what is to come.
    pub(super) named: Vec<StreamId>,
    /// What the program said of its use of it, and so of what is to come.
    pub(super) advice: Advice,
    /// Whether it is growing at this moment: the lock may not be held.
    pub(super) busy: bool,
}

/// Every allocation that grows, by its address.
#[derive(Debug, Default)]
pub(super) struct Growths(pub(super) FxHashMap<u64, Growth>);

impl Growths {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets a stream, all work of which is done.
    pub(super) fn forget_stream(&mut self, stream: StreamId) {
        for growth in self.0.values_mut() {
            growth.named.retain(|of| *of != stream);
            growth.ended |= growth.stream == stream;
        }
    }

    /// Refuses if an allocation of a private pool grows.
    pub(super) fn none_of(&self, pool: PoolId) -> Result<()> {
        match self.0.iter().find(|(_, growth)| growth.owner == Some(pool)) {
            Some((address, _)) => Err(Error::NotGrowable { address: *address, why: "its pool cannot be restored" }),
            None => Ok(()),
        }
    }

    pub(super) fn get(&self, address: u64) -> Result<&Growth> {
        self.0.get(&address).ok_or(Error::InvalidAddress { address })
    }

    /// Returns how much of an allocation is in use, has memory, and is reserved.
    pub(super) fn extent(&self, address: u64) -> Result<Extent> {
        let Growth { len, mapped, capacity, .. } = *self.get(address)?;
        Ok(Extent { len, mapped, capacity })
    }

    /// Returns an allocation that does not grow at this moment.
    pub(super) fn idle(&mut self, address: u64) -> Result<&mut Growth> {
        match self.0.get_mut(&address).ok_or(Error::InvalidAddress { address })? {
            Growth { busy: true, .. } => Err(Error::NotGrowable { address, why: "another thread has it grow" }),
            growth => Ok(growth),
        }
    }
}
