//! The report of a request that could not be met: what was asked, what is free where, why that did not serve, and what
//! would have.
//!
//! Owns: [`OutOfMemory`] and its words. What is advised, and when that is true, is in `advice.rs`.

mod advice;

pub use advice::{Advice, Cause, Limit};

use crate::config::{Config, StrategyKind};
use crate::driver::{DeviceProperties, MemoryInfo};
use crate::fragmentation::{Fragmentation, Owner};
use crate::heap::{Heap, Request};
use crate::ids::StreamId;
use crate::rounding::segment_size;
use crate::strategy::{Strategy, segmented};
use crate::units::format_bytes;
use std::fmt;

/// How many other streams the words name; the figures have all.
const STREAMS_NAMED: usize = 4;

/// Who held what when a request could not be met. All sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The device's name.
    pub device: String,
    /// The strategy that could not meet it.
    pub strategy: StrategyKind,
    /// The stream that asked.
    pub stream: StreamId,
    /// What the program asked for.
    pub requested: u64,
    /// The same rounded up to what a block would have had.
    pub rounded: u64,
    /// What PyTorch's allocators would have taken from the driver for it.
    pub segment: u64,
    /// The device's memory.
    pub device_total: u64,
    /// What the device had free after all that could be given back was; 0 where the driver did not say.
    pub device_free: u64,
    /// What this allocator may hold at most, if it is limited.
    pub limit: Option<u64>,
    /// What it holds.
    pub reserved: u64,
    /// Of `reserved`, in blocks that the program has not freed.
    pub allocated: u64,
    /// Of `reserved`, in freed blocks that other streams still use.
    pub pending: u64,
    /// The largest free block that this request might have taken: of its stream, or everyone's.
    pub largest_free: u64,
    /// The largest request of this kind that the free memory could have met: by stitching, where the strategy does.
    pub reachable: u64,
    /// Free bytes in pools of other streams, small and large.
    pub free_on_other_streams: u64,
    /// Free bytes in other private pools, small and large: they serve only those, until the pools are released.
    pub free_in_private_pools: u64,
    /// How all of it is divided up.
    pub memory: Fragmentation,
    /// Why the free memory did not serve.
    pub cause: Cause,
    /// What would have helped, the least effort first. Each is true by the figures of this report: with it alone, the
    /// request would have been met.
    pub advice: Vec<Advice>,
}

/// What a report is made from: the allocator's state right after the failed request.
pub(crate) struct Facts<'a> {
    pub(crate) heap: &'a Heap,
    pub(crate) strategy: &'a dyn Strategy,
    pub(crate) config: &'a Config,
    /// The lowest of the limits, and that of `memory_fraction`.
    pub(crate) limit: Option<u64>,
    pub(crate) fraction_limit: Option<u64>,
    pub(crate) properties: &'a DeviceProperties,
    /// `None` where the driver did not say.
    pub(crate) device: Option<MemoryInfo>,
    pub(crate) request: &'a Request,
}

impl Facts<'_> {
    pub(crate) fn report(&self) -> OutOfMemory {
        let Self { heap, request, config, .. } = *self;
        let sharing = self.strategy.sharing(config);
        let across = sharing == crate::Sharing::Wait;
        let memory = heap.measure(sharing, |pool| self.strategy.reach(heap, config, pool, across));
        let (cause, advice) = self.judge(&memory);
        let stream = heap.pools[request.pool as usize].stream;
        let elsewhere = |owner: Owner| matches!(owner, Owner::Stream(other) if other != stream);
        OutOfMemory {
            device: self.properties.name.clone(),
            strategy: config.strategy,
            stream,
            requested: request.requested,
            rounded: request.size,
            segment: segment_size(request.size, config.large_segment_size),
            device_total: self.device.map_or(self.properties.total_memory, |info| info.total),
            device_free: self.device.map_or(0, |info| info.free),
            limit: self.limit,
            reserved: memory.reserved,
            allocated: memory.allocated,
            pending: memory.pending,
            largest_free: self.largest_free(),
            reachable: self.serves().reach(heap, config, request.pool, false),
            free_on_other_streams: memory.pools.iter().filter(|pool| elsewhere(pool.owner)).map(|pool| pool.free).sum(),
            free_in_private_pools: memory.free_in_private_pools(heap.owner_of(request.pool)),
            memory,
            cause,
            advice,
        }
    }
}

impl Facts<'_> {
    /// The strategy that serves the request.
    fn serves(&self) -> &dyn Strategy {
        if self.heap.is_segmented(self.request.pool) { segmented::LIKE } else { self.strategy }
    }

    /// The largest free block that the request might take.
    fn largest_free(&self) -> u64 {
        let Self { heap, request, .. } = *self;
        heap.largest_in(request.pool).max(heap.largest_in(heap.idle + request.class as u32))
    }
}

impl OutOfMemory {
    /// Bytes held but not handed out and not waiting.
    #[must_use]
    pub fn unallocated(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated.saturating_add(self.pending))
    }

    /// What is free where, in words; empty where nothing is.
    #[must_use]
    pub fn whereabouts(&self) -> String {
        let memory = &self.memory;
        let mut parts = Vec::new();
        let mut part = |bytes: u64, place: &str| {
            if bytes > 0 {
                parts.push(format!("{} {place}", format_bytes(bytes)));
            }
        };
        part(memory.free_of(Owner::Stream(self.stream), false), "on this stream");
        part(memory.free_of(Owner::Everyone, false), "that every stream has passed");
        let mut others: Vec<(u64, StreamId)> =
            memory.pools.iter().filter(|pool| !pool.small).fold(Vec::new(), |mut others, pool| {
                if let Owner::Stream(stream) = pool.owner
                    && stream != self.stream
                {
                    others.push((pool.free, stream));
                }
                others
            });
        others.sort_unstable_by_key(|(free, stream)| (std::cmp::Reverse(*free), *stream));
        for (free, stream) in others.iter().take(STREAMS_NAMED) {
            part(*free, &format!("on stream {stream}"));
        }
        let rest = others.get(STREAMS_NAMED..).unwrap_or_default();
        part(rest.iter().map(|(free, _)| free).sum(), &format!("on {} more streams", rest.len()));
        let private = memory.pools.iter().filter(|pool| matches!(pool.owner, Owner::Pool(_)) && !pool.small);
        part(private.map(|pool| pool.free).sum(), "in private pools");
        part(memory.pools.iter().filter(|pool| pool.small).map(|pool| pool.free).sum(), "among blocks of up to 1 MiB");
        part(memory.unsettled, "left behind by driver calls that failed");
        listed(&parts)
    }

    /// Why it did not serve and what would have helped, in sentences.
    #[must_use]
    pub fn explanation(&self) -> String {
        let mut out = self.cause.in_words(self);
        if !self.advice.is_empty() {
            let advice: Vec<String> = self.advice.iter().map(Advice::to_string).collect();
            let one_of =
                if advice.len() > 1 { "Any one of these would have helped: " } else { "What would have helped: " };
            out.push(' ');
            out.push_str(one_of);
            out.push_str(&advice.join("; "));
            out.push('.');
        }
        out
    }
}

/// `a, b and c`.
fn listed(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory: tried to allocate {}", format_bytes(self.requested))?;
        if format_bytes(self.rounded) != format_bytes(self.requested) && self.rounded > self.requested {
            write!(f, " (rounded up to {})", format_bytes(self.rounded))?;
        }
        write!(
            f,
            " on stream {}. {} has a total capacity of {} of which {} is free.",
            self.stream,
            self.device,
            format_bytes(self.device_total),
            format_bytes(self.device_free),
        )?;
        if let Some(limit) = self.limit {
            write!(f, " This allocator may hold {}.", format_bytes(limit))?;
        }
        write!(
            f,
            " It holds {}: {} allocated, {} freed but still used by other streams, {} unallocated",
            format_bytes(self.reserved),
            format_bytes(self.allocated),
            format_bytes(self.pending),
            format_bytes(self.unallocated()),
        )?;
        let whereabouts = self.whereabouts();
        if !whereabouts.is_empty() {
            write!(f, " ({whereabouts})")?;
        }
        write!(f, ". The largest free block for this request is {}", format_bytes(self.largest_free))?;
        if self.reachable > self.largest_free {
            write!(f, ", and {} could be joined", format_bytes(self.reachable))?;
        }
        write!(f, ". {}", self.explanation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::fragmentation::PoolMemory;
    use crate::ids::PoolId;

    fn pool(owner: Owner, small: bool, free: u64) -> PoolMemory {
        PoolMemory { owner, small, free, ranges: 1, largest: free, stranded: 0 }
    }

    fn on(stream: u64, small: bool, free: u64) -> PoolMemory {
        pool(Owner::Stream(StreamId(stream)), small, free)
    }

    #[test]
    fn the_report_names_every_figure() {
        let report = OutOfMemory {
            device: "sim:h200".into(),
            stream: StreamId(7),
            requested: 3 << 30,
            rounded: 4 << 30,
            device_total: 80 << 30,
            device_free: 1 << 30,
            limit: Some(79 << 30),
            reserved: 78 << 30,
            allocated: 60 << 30,
            pending: 2 << 30,
            largest_free: 2 << 30,
            reachable: 5 << 30,
            memory: Fragmentation {
                pools: vec![
                    on(7, false, 6 << 30),
                    pool(Owner::Everyone, false, 1 << 30),
                    on(0, true, 3 << 20),
                    pool(Owner::Pool(PoolId(0, 3)), false, 2 << 30),
                ],
                unsettled: 1 << 20,
                ..Fragmentation::default()
            },
            ..OutOfMemory::default()
        };
        assert_eq!(report.unallocated(), 16 << 30);
        let text = Error::OutOfMemory(Box::new(report)).to_string();
        for part in [
            "tried to allocate 3.00 GiB (rounded up to 4.00 GiB) on stream 0x7",
            "80.00 GiB",
            "1.00 GiB is free",
            "may hold 79.00 GiB",
            "16.00 GiB unallocated (6.00 GiB on this stream, 1.00 GiB that every stream has passed, 2.00 GiB \
             in private pools, 3.00 MiB among \
             blocks of up to 1 MiB and 1.00 MiB left behind by driver calls that failed)",
            "is 2.00 GiB, and 5.00 GiB could be joined. ",
        ] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }

    #[test]
    fn of_many_streams_the_fullest_are_named() {
        let pools = (1..=9).map(|stream| on(stream, false, stream << 30)).collect();
        let report =
            OutOfMemory { memory: Fragmentation { pools, ..Fragmentation::default() }, ..OutOfMemory::default() };
        let text = report.whereabouts();
        assert!(text.starts_with("9.00 GiB on stream 0x9, 8.00 GiB on stream 0x8, "), "{text}");
        assert!(text.ends_with("6.00 GiB on stream 0x6 and 15.00 GiB on 5 more streams"), "{text}");
    }
}
