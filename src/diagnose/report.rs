//! Fills in the report of a request that was refused.

use super::advice::diagnose;
use super::figures::Figures;
use super::input::ReportInput;
use crate::config::StreamSharing;
use crate::config::rounding::segment_size;
use crate::error::Result;
use crate::fallible::copy_of;
use crate::report::fragmentation::Owner;
use crate::report::out_of_memory::OutOfMemory;

impl ReportInput<'_> {
    /// Returns the report of the refused request.
    ///
    /// # Errors
    /// The host has no memory for it.
    pub(crate) fn report(&self) -> Result<OutOfMemory> {
        let Self { heap, request, config, sharing, .. } = *self;
        let across = sharing == StreamSharing::Wait;
        let memory = heap.measure(sharing, |pool| self.strategy.largest_servable(heap, config, pool, across))?;
        let figures = Figures::new(self, &memory);
        let (cause, advice) = diagnose(self, &figures)?;
        let reachable = figures.strategy.largest_servable(heap, config, request.pool, false);
        let (largest_free, joinable) = (figures.largest_free(), figures.servable);
        let stream = heap.pool(request.pool).stream;
        let elsewhere = |owner: Owner| matches!(owner, Owner::Stream(other) if other != stream);
        Ok(OutOfMemory {
            device: copy_of(&self.properties.name)?,
            strategy: config.strategy,
            instead_of: self.instead_of,
            stream,
            pool: heap.owner_of(request.pool),
            requested: request.requested,
            rounded: request.size,
            segment: segment_size(request.size, config.large_segment_size),
            device_total: self.device.map_or(self.properties.total_memory, |info| info.total),
            device_free: self.device.map_or(0, |info| info.free),
            limit: self.limits.lowest(),
            headroom: self.limits.headroom(),
            reserved: memory.reserved,
            allocated: memory.allocated.saturating_sub(memory.asleep + memory.spilled),
            pending: memory.pending,
            largest_free,
            reachable,
            joinable,
            free_on_other_streams: memory.pools.iter().filter(|pool| elsewhere(pool.owner)).map(|pool| pool.free).sum(),
            spilled: memory.spilled,
            spill_budget: config.spill,
            spill_policy: if config.spill.is_some() { self.spill_policy } else { "" },
            free_in_private_pools: memory.free_in_private_pools(heap.owner_of(request.pool)),
            memory,
            cause,
            advice,
            lending: self.lending,
        })
    }
}
