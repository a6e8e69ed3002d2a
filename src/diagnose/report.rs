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
    /// The host has no memory for the report.
    pub(crate) fn report(&self) -> Result<OutOfMemory> {
        let Self { heap, request, config, sharing, .. } = *self;
        let across = sharing == StreamSharing::Wait;
        let memory = heap.measure(sharing, |pool| self.strategy.largest_servable(heap, config, pool, across))?;
        let figures = Figures::new(self, &memory);
        let (cause, advice) = diagnose(self, &figures)?;
        let reachable = figures.strategy.largest_servable(heap, config, request.pool, false);
        let (largest_free, joinable, fenced) = (figures.largest_free(), figures.servable, figures.fenced);
        let stream = heap.pool(request.pool).stream;
        let elsewhere = |owner: Owner| matches!(owner, Owner::Stream(other) if other != stream);
        let mut report = OutOfMemory::default();
        report.device = copy_of(&self.properties.name)?;
        report.strategy = config.strategy;
        report.instead_of = self.instead_of;
        report.stream = stream;
        report.pool = heap.owner_of(request.pool);
        report.requested = request.requested;
        report.rounded = request.size;
        report.segment = segment_size(request.size, config.large_segment_size);
        report.device_total = self.device.map_or(self.properties.total_memory, |info| info.total);
        report.device_free = self.device.map_or(0, |info| info.free);
        report.limit = self.limits.lowest();
        report.headroom = self.limits.headroom();
        report.reserved = memory.reserved;
        report.allocated = memory.allocated.saturating_sub(memory.asleep + memory.spilled);
        report.pending = memory.pending;
        report.largest_free = largest_free;
        report.reachable = reachable;
        report.joinable = joinable;
        report.free_on_other_streams =
            memory.pools.iter().filter(|pool| elsewhere(pool.owner)).map(|pool| pool.free).sum();
        report.spilled = memory.spilled;
        report.spill_budget = config.spill;
        report.spill_policy = if config.spill.is_some() { self.spill_policy } else { "" };
        report.free_in_private_pools = fenced;
        report.memory = memory;
        report.cause = cause;
        report.advice = advice;
        report.lending = self.lending;
        Ok(report)
    }
}
