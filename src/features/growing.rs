//! Which allocations grow in place, and the parts of each.
//!
//! Owns: the table of them. `allocator/growing.rs` has the operations.

use crate::config::Advice;
use crate::error::{Error, Result};
use crate::ids::{PoolId, StreamId, ViewId};
use rustc_hash::FxHashMap;

/// How much of an allocation that grows is in use, has memory, and is reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Extent {
    /// Bytes as asked for by the last [`Allocator::grow`](crate::Allocator::grow) or [`Allocator::shrink`](crate::Allocator::shrink).
    pub len: u64,
    /// Bytes from the address on that have memory: to here it grows without the driver.
    pub mapped: u64,
    /// Bytes of addresses, as asked for.
    pub capacity: u64,
}

/// A live block of an allocation that grows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) address: u64,
    pub(crate) size: u64,
}

/// An allocation that grows.
#[derive(Debug)]
pub(crate) struct Growth {
    pub(crate) view: ViewId,
    pub(crate) stream: StreamId,
    /// Whether that stream was forgotten: it has no memory for what is to come, and its handle means another stream.
    pub(crate) ended: bool,
    pub(crate) owner: Option<PoolId>,
    pub(crate) len: u64,
    pub(crate) capacity: u64,
    pub(crate) parts: Vec<Part>,
    /// Bytes of all parts.
    pub(crate) mapped: u64,
    /// Other streams that use it, and so will use what is to come.
    pub(crate) named: Vec<StreamId>,
    /// What the program said of its use of it, and so of what is to come.
    pub(crate) advice: Advice,
    /// Whether it is growing at this moment: the lock may not be held.
    pub(crate) busy: bool,
}

/// Every allocation that grows, by its address.
#[derive(Debug, Default)]
pub(crate) struct Growths(pub(crate) FxHashMap<u64, Growth>);

impl Growths {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets a stream, all work of which is done.
    pub(crate) fn forget_stream(&mut self, stream: StreamId) {
        for growth in self.0.values_mut() {
            growth.named.retain(|of| *of != stream);
            growth.ended |= growth.stream == stream;
        }
    }

    /// Refuses if an allocation of a private pool grows.
    pub(crate) fn none_of(&self, pool: PoolId) -> Result<()> {
        match self.0.iter().find(|(_, growth)| growth.owner == Some(pool)) {
            Some((address, _)) => Err(Error::NotGrowable { address: *address, why: "its pool cannot be restored" }),
            None => Ok(()),
        }
    }

    pub(crate) fn get(&self, address: u64) -> Result<&Growth> {
        self.0.get(&address).ok_or(Error::InvalidAddress { address })
    }

    /// Returns how much of an allocation is in use, has memory, and is reserved.
    pub(crate) fn extent(&self, address: u64) -> Result<Extent> {
        let Growth { len, mapped, capacity, .. } = *self.get(address)?;
        Ok(Extent { len, mapped, capacity })
    }

    /// Returns an allocation that does not grow at this moment.
    pub(crate) fn idle(&mut self, address: u64) -> Result<&mut Growth> {
        match self.0.get_mut(&address).ok_or(Error::InvalidAddress { address })? {
            Growth { busy: true, .. } => Err(Error::NotGrowable { address, why: "another thread has it grow" }),
            growth => Ok(growth),
        }
    }
}
