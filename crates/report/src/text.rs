//! Figures in words, for a log or a terminal: one line for each subject, sizes with units.
//!
//! Owns: the `Display` of statistics, fragmentation and pools. Programs that read figures use the fields, or `serde`.

use super::fragmentation::{Fragmentation, Owner, PoolMemory, StreamMemory};
use super::pool::PoolStats;
use super::pressure::MemoryPressure;
use super::stats::{Stalls, Stat, StatByPool, Stats};
use seamalloc_driver::units::format_bytes;
use std::fmt;

const NS_PER_MS: f64 = 1e6;

/// Prints `current, peak peak`: plain numbers, since the type does not know whether they are bytes.
impl fmt::Display for Stat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, peak {}", self.current, self.peak)
    }
}

/// Prints the sum of all pools.
impl fmt::Display for StatByPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all.fmt(f)
    }
}

impl fmt::Display for Stalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, total_ns, worst_ns, .. } = self;
        let [total, worst] = [*total_ns, *worst_ns].map(|ns| ns as f64 / NS_PER_MS);
        write!(f, "{count} stalls of {total:.3} ms in all, the worst {worst:.3} ms")
    }
}

/// Prints several lines: memory, requests, driver, and views if there were any. [`Stats`] has more fields than are
/// printed.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [used, held] = [self.allocated_bytes.all, self.reserved_bytes.all];
        let blocks = self.allocation.all;
        writeln!(
            f,
            "memory: {} in {} blocks, peak {}; {} held, peak {}",
            format_bytes(used.current),
            blocks.current,
            format_bytes(used.peak),
            format_bytes(held.current),
            format_bytes(held.peak)
        )?;
        writeln!(f, "requests: {}, {} retried, {} refused", blocks.allocated, self.num_alloc_retries, self.num_ooms)?;
        write!(
            f,
            "driver: memory taken {} times, given back {} times; {}",
            self.num_device_alloc, self.num_device_free, self.stalls
        )?;
        if self.views_built > 0 {
            let Self { views, views_built, views_reused, .. } = self;
            write!(f, "\nviews: {views}, {views_built} built, {views_reused} used again")?;
        }
        Ok(())
    }
}

impl fmt::Display for PoolMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, small, free, largest, ranges, stranded } = self;
        let [free, largest] = [*free, *largest].map(format_bytes);
        let [of, blocks] = [
            if matches!(owner, Owner::Stream(_)) { "stream " } else { "" },
            if *small { ", for small blocks" } else { "" },
        ];
        let plural = if *ranges == 1 { "" } else { "s" };
        write!(f, "{of}{owner}: {free} free{blocks} in {ranges} range{plural}, the longest {largest}")?;
        if *stranded > 0 { write!(f, ", {} stranded", format_bytes(*stranded)) } else { Ok(()) }
    }
}

impl fmt::Display for StreamMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [largest, reachable] = [self.largest, self.reachable].map(format_bytes);
        write!(f, "stream {}: the longest free range is {largest}, the largest request {reachable}", self.stream)
    }
}

/// Prints several lines: the sums, then each pool with free memory, then each stream.
impl fmt::Display for Fragmentation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [reserved, allocated, pending, free] =
            [self.reserved, self.allocated, self.pending, self.free].map(format_bytes);
        let utilization = 100.0 * self.utilization();
        write!(
            f,
            "{reserved} held: {allocated} in use, {pending} pending, {free} free; utilization {utilization:.1}%"
        )?;
        for pool in &self.pools {
            write!(f, "\n{pool}")?;
        }
        for stream in &self.streams {
            write!(f, "\n{stream}")?;
        }
        Ok(())
    }
}

impl fmt::Display for PoolStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [allocated, reserved] = [self.allocated_bytes, self.reserved_bytes].map(format_bytes);
        let Self { uses, allocations, .. } = self;
        write!(f, "{allocated} in {allocations} blocks, {reserved} held, {uses} uses")?;
        f.write_str(if self.routed { ", routed" } else { "" })?;
        f.write_str(if self.captured { ", captured" } else { "" })
    }
}

impl fmt::Display for MemoryPressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [requested, allocated, reserved] = [self.requested, self.allocated, self.reserved].map(format_bytes);
        write!(f, "too little memory for {requested} on stream {}: {allocated} in use, {reserved} held", self.stream)?;
        match self.limit {
            Some(limit) => write!(f, " of at most {}", format_bytes(limit)),
            None => Ok(()),
        }
    }
}
