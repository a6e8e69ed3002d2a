//! The allocations that grow in place, and the parts of each.
//!
//! Owns: the table of these allocations. `allocator/growing.rs` has the operations.

use crate::config::Advice;
use crate::error::{Error, Result};
use crate::fallible::{Grown, TryPush, try_insert};
use crate::heap::GRANULE;
use crate::ids::{PoolId, StreamId, ViewId};
use rustc_hash::FxHashMap;

/// The extent of an allocation that grows: how many bytes are in use, have memory, and have reserved addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Extent {
    /// The bytes in use, as requested by the last
    /// [`GrowingAllocations::grow`](crate::operations::GrowingAllocations::grow) or
    /// [`GrowingAllocations::shrink`](crate::operations::GrowingAllocations::shrink).
    pub len: u64,
    /// The bytes with memory, from the address on. Up to this size the allocation grows without a driver call.
    pub mapped: u64,
    /// The bytes of reserved addresses, as requested.
    pub capacity: u64,
}

/// The most memory that an allocation takes ahead of need, as a part (1/n) of its bytes. An allocation that grows in
/// small steps then seldom calls the driver, and 99% of its memory is in use.
const AHEAD: u64 = 128;
/// The most bytes that an allocation takes ahead of need.
const MOST_AHEAD: u64 = 64 << 20;

/// The bytes of the next part of an allocation that grows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextBytes {
    pub(crate) exact: u64,
    /// The bytes of the next part including memory taken ahead; `None` if they are not more than `exact`.
    pub(crate) ahead: Option<u64>,
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
    /// Whether the stream was forgotten. No later part gets memory then, since the stream's handle may belong to
    /// another stream.
    pub(crate) ended: bool,
    pub(crate) owner: Option<PoolId>,
    pub(crate) len: u64,
    pub(crate) capacity: u64,
    pub(crate) parts: Vec<Part>,
    /// The bytes of all parts.
    pub(crate) mapped: u64,
    /// The other streams that use the allocation, including later parts.
    pub(crate) named: Vec<StreamId>,
    /// The access advice for the allocation, including later parts.
    pub(crate) advice: Advice,
    /// Whether the allocation is growing at this moment. The lock may be released meanwhile.
    pub(crate) busy: bool,
}

/// Every allocation that grows, by its address.
#[derive(Debug, Default)]
pub(crate) struct Growths(FxHashMap<u64, Growth>);

impl Growth {
    /// Returns an allocation without memory.
    pub(crate) fn new(view: ViewId, stream: StreamId, owner: Option<PoolId>, capacity: u64) -> Self {
        Self {
            view,
            stream,
            ended: false,
            owner,
            len: 0,
            capacity,
            parts: Vec::new(),
            mapped: 0,
            named: Vec::new(),
            advice: Advice::Normal,
            busy: false,
        }
    }
}

impl Growths {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        self.0.contains_key(&address)
    }

    /// Makes room for one more allocation.
    pub(crate) fn reserve(&mut self) -> Grown<()> {
        self.0.try_reserve(1)
    }

    /// Adds an allocation without memory. The table has room for it.
    pub(crate) fn add(&mut self, address: u64, growth: Growth) -> Grown<()> {
        try_insert(&mut self.0, address, growth).map(|_| ())
    }

    pub(crate) fn remove(&mut self, address: u64) -> Option<Growth> {
        self.0.remove(&address)
    }

    /// Returns the views of the allocations that have no memory.
    pub(crate) fn empty_views(&self) -> impl Iterator<Item = ViewId> {
        self.0.values().filter(|growth| growth.parts.is_empty()).map(|growth| growth.view)
    }

    /// Notes that `size` bytes of an allocation are in use, if the allocation has memory for them. Returns whether the
    /// allocation has this memory.
    pub(crate) fn grow_within(&mut self, address: u64, size: u64) -> Result<bool> {
        let growth = self.idle(address)?;
        if size > growth.capacity {
            return Err(Error::BeyondCapacity { address, size, capacity: growth.capacity });
        }
        let fits = size <= growth.mapped;
        if fits {
            growth.len = growth.len.max(size);
        }
        Ok(fits)
    }

    /// Marks an allocation as growing: the lock may be released while it grows, and no other thread may grow it then.
    pub(crate) fn begin(&mut self, address: u64) -> Result<()> {
        self.idle(address)?.busy = true;
        Ok(())
    }

    /// Marks an allocation as not growing any more. `size` bytes are in use if it has grown.
    pub(crate) fn end(&mut self, address: u64, size: u64, grown: bool) {
        if let Some(growth) = self.0.get_mut(&address) {
            growth.busy = false;
            if grown {
                growth.len = growth.len.max(size);
            }
        }
    }

    /// Returns the bytes of the next part if the allocation is to have `size` bytes; `None` if it has memory for them.
    pub(crate) fn next_bytes(&self, address: u64, size: u64) -> Result<Option<NextBytes>> {
        let Growth { ended, mapped, capacity, .. } = *self.get(address)?;
        if size > capacity {
            return Err(Error::BeyondCapacity { address, size, capacity });
        }
        if size <= mapped {
            return Ok(None);
        }
        if ended {
            return Err(Error::NotGrowable { address, why: "its stream was forgotten" });
        }
        let all = capacity.next_multiple_of(GRANULE) - mapped;
        let exact = (size - mapped).next_multiple_of(GRANULE).min(all);
        let ahead = (mapped / AHEAD).min(MOST_AHEAD).min(all) / GRANULE * GRANULE;
        Ok(Some(NextBytes { exact, ahead: (ahead > exact).then_some(ahead) }))
    }

    /// Adds a part after the other parts. Returns the access advice for the allocation.
    pub(crate) fn push_part(&mut self, address: u64, part: Part) -> Result<Advice> {
        let growth = self.0.get_mut(&address).ok_or(Error::Internal("an allocation that grows is gone"))?;
        growth.parts.try_push(part)?;
        growth.mapped += part.size;
        Ok(growth.advice)
    }

    /// Makes room for one more part.
    pub(crate) fn reserve_part(&mut self, address: u64) -> Grown<()> {
        self.0.get_mut(&address).map_or(Ok(()), |growth| growth.parts.try_reserve(1))
    }

    /// Splits the last part in two. The list has room for both parts.
    pub(crate) fn split_last(&mut self, address: u64, at: u64) {
        if let Some(growth) = self.0.get_mut(&address)
            && let Some(last) = growth.parts.last_mut()
        {
            let rest = Part { address: last.address + at, size: last.size - at };
            last.size = at;
            growth.parts.push(rest);
        }
    }

    /// Notes that fewer bytes are in use. Returns the view and the last part; `None` if the allocation has no memory.
    pub(crate) fn shorten(&mut self, address: u64, size: u64) -> Option<(ViewId, Part)> {
        let growth = self.0.get_mut(&address)?;
        growth.len = growth.len.min(size);
        Some((growth.view, *growth.parts.last()?))
    }

    /// Forgets the last part, which was freed.
    pub(crate) fn pop_part(&mut self, address: u64) {
        if let Some(growth) = self.0.get_mut(&address)
            && let Some(part) = growth.parts.pop()
        {
            growth.mapped -= part.size;
        }
    }

    /// Notes that a stream uses an allocation, and will use its later parts.
    pub(crate) fn name(&mut self, address: u64, stream: StreamId) -> Result<()> {
        let growth = self.0.get_mut(&address).ok_or(Error::InvalidAddress { address })?;
        // Once the allocation's own stream was forgotten, its handle may name another stream.
        if (growth.ended || growth.stream != stream) && !growth.named.contains(&stream) {
            growth.named.try_push(stream)?;
        }
        Ok(())
    }

    /// Removes a stream that [`Self::name`] noted.
    pub(crate) fn erase(&mut self, address: u64, stream: StreamId) {
        if let Some(growth) = self.0.get_mut(&address) {
            growth.named.retain(|of| *of != stream);
        }
    }

    /// Notes the access advice for an allocation.
    pub(crate) fn advise(&mut self, address: u64, advice: Advice) {
        if let Some(growth) = self.0.get_mut(&address) {
            growth.advice = advice;
        }
    }

    /// Forgets a stream whose work is done.
    pub(crate) fn forget_stream(&mut self, stream: StreamId) {
        for growth in self.0.values_mut() {
            growth.named.retain(|of| *of != stream);
            growth.ended |= growth.stream == stream;
        }
    }

    /// Returns an error if a growing allocation belongs to the private pool.
    pub(crate) fn none_of(&self, pool: PoolId) -> Result<()> {
        match self.0.iter().find(|(_, growth)| growth.owner == Some(pool)) {
            Some((address, _)) => Err(Error::NotGrowable { address: *address, why: "its pool cannot be restored" }),
            None => Ok(()),
        }
    }

    pub(crate) fn get(&self, address: u64) -> Result<&Growth> {
        self.0.get(&address).ok_or(Error::InvalidAddress { address })
    }

    /// Returns how many bytes of an allocation are in use, have memory, and have reserved addresses.
    pub(crate) fn extent(&self, address: u64) -> Result<Extent> {
        let Growth { len, mapped, capacity, .. } = *self.get(address)?;
        Ok(Extent { len, mapped, capacity })
    }

    /// Returns an allocation that is not growing at this moment. Returns an error if another thread is growing the
    /// allocation.
    pub(crate) fn idle(&mut self, address: u64) -> Result<&mut Growth> {
        match self.0.get_mut(&address).ok_or(Error::InvalidAddress { address })? {
            Growth { busy: true, .. } => Err(Error::NotGrowable { address, why: "another thread has it grow" }),
            growth => Ok(growth),
        }
    }
}
