//! The report of a refused request.
//!
//! Owns: [`OutOfMemory`] and its text.

use super::cause::{Advice, Cause};
use crate::fragmentation::{Fragmentation, Owner};
use crate::lending::Lending;
use crate::pool::PoolId;
use seamalloc_config::{StrategyKind, StreamSharing};
use seamalloc_driver::StreamId;
use seamalloc_driver::fallible::{Grown, with_room};
use seamalloc_driver::units::format_bytes;
use std::fmt;
use std::ops::Deref;

/// The most streams beside the request's own that the text names; the figures have all streams.
const STREAMS_NAMED: usize = 4;

/// A job is near its limit if less than this part of the memory, in percent, stays free: holes and rounding take 0.5 to
/// 4.8% beyond live memory, and a CUDA context and libraries about 1 GiB. If others hold less than this part of a
/// device, their memory counts as such contexts and libraries, which stay.
pub const NEAR_PERCENT: u64 = 5;

/// The state of memory when a request was refused. All sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The device's name.
    pub device: String,
    /// The strategy that refused the request.
    pub strategy: StrategyKind,
    /// The strategy that `strategy` replaces, because the device has no virtual memory, or the driver refused all
    /// addresses.
    pub instead_of: Option<StrategyKind>,
    /// The stream of the request.
    pub stream: StreamId,
    /// The private pool that the request named or was routed to; [`PoolId::NONE`] if there is none.
    pub pool: PoolId,
    /// The size that the program asked for.
    pub requested: u64,
    /// The block size for `requested`.
    pub rounded: u64,
    /// The segment that PyTorch's allocators would have taken from the driver for the request.
    pub segment: u64,
    /// The device's memory.
    pub device_total: u64,
    /// The free memory of the device, after all memory that could go back was given back; 0 if the driver did not
    /// report it.
    pub device_free: u64,
    /// The most that this allocator may hold, if it is limited.
    pub limit: Option<u64>,
    /// The bytes of the device that must stay free for others (the option `headroom`); 0 for none.
    pub headroom: u64,
    /// The bytes that the allocator holds.
    pub reserved: u64,
    /// The part of `reserved` in blocks that the program has not freed.
    pub allocated: u64,
    /// The part of `reserved` in freed blocks that other streams still use.
    pub pending: u64,
    /// The largest free block that this request might have taken, of its stream or pool, or idle.
    pub largest_free: u64,
    /// The largest request of this kind that free memory could have served: by stitching, if the strategy stitches,
    /// within the limits on views.
    pub reachable: u64,
    /// The figure `reachable` if there were no limits on views (their number, mappings and addresses); never less than
    /// `reachable`.
    pub joinable: u64,
    /// Free bytes in pools of other streams, small and large.
    pub free_on_other_streams: u64,
    /// Free bytes in other private pools, small and large: these bytes serve only their own pools until these pools are
    /// released.
    pub free_in_private_pools: u64,
    /// Bytes of live memory that are spilled to host memory, and no part of `reserved` and `allocated`.
    pub spilled: u64,
    /// The most bytes that may be spilled ([`Config::spill`](seamalloc_config::Config::spill)).
    pub spill_budget: Option<u64>,
    /// The name of the policy that chose the spilled memory; empty if none may be spilled.
    pub spill_policy: &'static str,
    /// The division of all memory of the allocator.
    pub memory: Fragmentation,
    /// The reason why the free memory did not serve the request.
    pub cause: Cause,
    /// Changes that would have helped, the least effort first. By the figures of this report, each change alone would
    /// have been enough to serve the request.
    pub advice: Vec<Advice>,
    /// The requests to other processes before the refusal; `None` if no process could be asked.
    pub lending: Option<Lending>,
}

/// A report behind a pointer, so that errors stay small. An infallible `Box` would end the process if the host is out
/// of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemoryReport(Box<[OutOfMemory; 1]>);

/// Serializes the report behind the pointer.
#[cfg(feature = "serde")]
impl serde::Serialize for OutOfMemoryReport {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl OutOfMemoryReport {
    /// Puts a report behind a pointer, or returns an error if the host has no memory for the report.
    #[doc(hidden)]
    pub fn new(report: OutOfMemory) -> Grown<Self> {
        let mut one = with_room(1)?;
        one.push(report);
        // The list has room for exactly one report, so it becomes the array without a new allocation.
        Ok(Self(one.try_into().unwrap_or_default()))
    }
}

impl From<OutOfMemory> for OutOfMemoryReport {
    fn from(report: OutOfMemory) -> Self {
        Self(Box::new([report]))
    }
}

impl Deref for OutOfMemoryReport {
    type Target = OutOfMemory;

    fn deref(&self) -> &OutOfMemory {
        let [report] = &*self.0;
        report
    }
}

impl fmt::Display for OutOfMemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl OutOfMemory {
    /// Returns a sentence that says why the free memory did not serve the request.
    #[must_use]
    pub fn cause_in_words(&self) -> String {
        let strategy = self.strategy;
        match self.cause {
            Cause::TooLittle => {
                let figures = |what: &str| {
                    format!(
                        "{what} is in use and the request together are {}, and this allocator can hold no more than {}{}.",
                        format_bytes(self.demand()),
                        format_bytes(self.most_held()),
                        if self.headroom > 0 { " beside the headroom" } else { "" },
                    )
                };
                match self.advice.first() {
                    Some(Advice::FreeDevice { elsewhere, .. }) if *elsewhere >= near(self.device_total) => format!(
                        "Others hold the memory: {} of {}. {}",
                        format_bytes(*elsewhere),
                        format_bytes(self.device_total),
                        figures("What")
                    ),
                    None | Some(Advice::AskLess { .. } | Advice::FreeDevice { .. }) => {
                        format!("Too much is live: {} No allocator helps.", figures("what"))
                    }
                    Some(Advice::RaiseLimit { .. }) => format!("A limit is too low: {}", figures("what")),
                    Some(_) => figures("What"),
                }
            }
            Cause::RequestTooLarge => {
                let shared = self.device_total.saturating_sub(self.headroom);
                let most = match self.limit.filter(|limit| *limit < shared) {
                    Some(limit) => format!("the {} that this allocator may hold", format_bytes(limit)),
                    None if self.headroom > 0 => format!("the {} that the device has beside the headroom", format_bytes(shared)),
                    None => format!("the {} that the device has", format_bytes(self.device_total)),
                };
                format!("The request alone is {}, more than {most}.", format_bytes(self.rounded))
            }
            Cause::Capture => {
                "A stream capture is under way: until it is over, nothing can be waited for or given back.".to_owned()
            }
            Cause::PrivatePools => format!(
                "Enough is free, but {} of it in other private pools, which keep it until they are released.",
                format_bytes(self.free_in_private_pools),
            ),
            Cause::OneRange if strategy == StrategyKind::Gmlake => {
                "Memory is fragmented: `gmlake` serves a request from free blocks of its stream, of which it joins several only from `fragLimit` \
                 on, or from new memory, and neither is enough."
                    .to_owned()
            }
            Cause::OneRange => format!(
                "Memory is fragmented: `{strategy}` serves a request from one free range of its {} or from new memory ({} for this one), and \
                 there is neither.",
                if self.pool == PoolId::NONE { "stream" } else { "private pool" },
                format_bytes(self.segment),
            ),
            Cause::OwnSegments => format!(
                "This private pool has segments of its own: none has enough free in one range, and no new one was to be had \
                 ({} for this request).",
                format_bytes(self.segment),
            ),
            Cause::OtherStreams { sharing } => {
                let why = match sharing {
                    StreamSharing::Never => "which `sharing:never` keeps for themselves",
                    _ => "whose work the GPU has not finished",
                };
                format!("Streams keep memory apart: enough is free, but a part of it on other streams, {why}.")
            }
            Cause::StillUsed { most_ms } => format!(
                "Streams keep memory apart: enough was freed, but work on the GPU still uses it, and the request may wait \
                 {most_ms} ms at most."
            ),
            Cause::ViewBounds => {
                "Enough is free, but joining it takes a view more than `max_views`, `max_view_mappings` or \
                 `max_view_address_space` allows."
                    .to_owned()
            }
            Cause::Refused => {
                "There was enough by these figures, but the driver refused a call for it, or there were no addresses in \
                 one piece."
                    .to_owned()
            }
            Cause::PartsOfChunks => format!(
                "Memory is fragmented: the rest of what is free lies in chunks of which other parts are in use ({} in {} chunks): a view can \
                 have one such part at each end.",
                format_bytes(self.memory.partly_free_bytes),
                self.memory.partly_free_chunks,
            ),
        }
    }
}

impl OutOfMemory {
    /// Returns the bytes that are held, but neither handed out nor pending.
    #[must_use]
    pub fn unallocated(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated.saturating_add(self.pending))
    }

    /// Returns the bytes in use and the request together.
    fn demand(&self) -> u64 {
        self.allocated.saturating_add(self.pending).saturating_add(self.rounded)
    }

    /// Returns the most bytes that this allocator could hold.
    fn most_held(&self) -> u64 {
        let left = self.device_free.saturating_sub(self.headroom);
        self.limit.unwrap_or(u64::MAX).min(self.reserved.saturating_add(left))
    }

    /// Returns by how many bytes live memory must fall for [`NEAR_PERCENT`] percent of the memory to stay free, if
    /// memory is fragmented and only a smaller request would be served: the next request would then be refused.
    fn nearly_too_much(&self) -> Option<u64> {
        let is_fragmented = matches!(self.cause, Cause::OneRange | Cause::PartsOfChunks | Cause::ViewBounds);
        let is_alone = matches!(self.advice[..], [Advice::AskLess { missing: 0, .. }]);
        Some(self.beyond_enough()).filter(|less| *less > 0 && is_fragmented && is_alone)
    }

    /// Returns by how many bytes live memory must fall for [`NEAR_PERCENT`] percent of the memory to stay free.
    fn beyond_enough(&self) -> u64 {
        let most = self.most_held();
        self.demand().saturating_sub(most.saturating_sub(near(most)))
    }

    /// Returns in words how much memory is free, and where. The text is empty if no memory is free.
    #[must_use]
    pub fn whereabouts(&self) -> String {
        let memory = &self.memory;
        let mut parts = Vec::new();
        let mut part = |bytes: u64, place: &str| {
            if bytes > 0 {
                parts.push(format!("{} {place}", format_bytes(bytes)));
            }
        };
        let public = if self.pool == PoolId::NONE { "on this stream" } else { "on this stream outside of its pool" };
        part(memory.free_of(Owner::Pool(self.pool), false), "in this private pool");
        part(memory.free_of(Owner::Stream(self.stream), false), public);
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
        let other = |owner: Owner| matches!(owner, Owner::Pool(pool) if pool != self.pool);
        let private = memory.pools.iter().filter(|pool| other(pool.owner) && !pool.small);
        let which = if self.pool == PoolId::NONE { "in private pools" } else { "in other private pools" };
        part(private.map(|pool| pool.free).sum(), which);
        part(memory.pools.iter().filter(|pool| pool.small).map(|pool| pool.free).sum(), "among blocks of up to 1 MiB");
        part(memory.unsettled, "left behind by driver calls that failed");
        listed(&parts)
    }

    /// Returns sentences that say why the request was refused and what would have helped.
    #[must_use]
    pub fn explanation(&self) -> String {
        let mut out = self.cause_in_words();
        if let Some(less) = self.nearly_too_much() {
            let (demand, most) = (format_bytes(self.demand()), format_bytes(self.most_held()));
            out.push_str(&format!(
                " Nearly too much is live: with this request {demand} of the {most} that can be held. What would have \
                 helped: {} less that is live, by a smaller batch for example, so that {NEAR_PERCENT}% stay free.",
                format_bytes(less)
            ));
            return out;
        }
        if !self.advice.is_empty() {
            let advice: Vec<String> = self.advice.iter().map(Advice::to_string).collect();
            let one_of =
                if advice.len() > 1 { "Any one of these would have helped: " } else { "What would have helped: " };
            out.push(' ');
            out.push_str(one_of);
            out.push_str(&advice.join("; "));
            out.push('.');
        }
        if let ([Advice::AskLess { missing, .. }], Cause::TooLittle) = (&self.advice[..], self.cause)
            && *missing > 0
        {
            let less = format_bytes(self.beyond_enough());
            out.push_str(&format!(" With {less} less, {NEAR_PERCENT}% stay free, which rounding and holes may take."));
        }
        out
    }
}

/// Returns [`NEAR_PERCENT`] of the memory, which must stay free.
fn near(bytes: u64) -> u64 {
    bytes / 100 * NEAR_PERCENT
}

/// Returns `a, b and c`.
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
        write!(f, " on stream {}", self.stream)?;
        if self.pool != PoolId::NONE {
            write!(f, " in private pool {}", self.pool)?;
        }
        write!(
            f,
            ". {} has a total capacity of {} of which {} is free.",
            self.device,
            format_bytes(self.device_total),
            format_bytes(self.device_free),
        )?;
        if self.headroom > 0 {
            write!(f, " Of that, {} are to stay free for others (headroom).", format_bytes(self.headroom))?;
        }
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
        if let Some(budget) = self.spill_budget {
            let (spilled, budget) = (format_bytes(self.spilled), format_bytes(budget));
            write!(f, ". Besides, {spilled} are spilled to host memory, of {budget}, {} first", self.spill_policy)?;
        }
        write!(f, ". The largest free block for this request is {}", format_bytes(self.largest_free))?;
        if self.reachable > self.largest_free {
            write!(f, ", and {} could be joined", format_bytes(self.reachable))?;
        }
        if self.joinable > self.reachable {
            write!(f, ", {} but for the bounds on views", format_bytes(self.joinable))?;
        }
        write!(f, ". {}", self.explanation())?;
        if let Some(wanted) = self.instead_of {
            write!(
                f,
                " The strategy is `{}`, since the device has too few addresses or no virtual memory, which `{wanted}` needs.",
                self.strategy
            )?;
        }
        self.lending.as_ref().map_or(Ok(()), |lending| write!(f, " {lending}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fragmentation::PoolMemory;
    use crate::out_of_memory::Limit;

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
            joinable: 5 << 30,
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
        let text = OutOfMemoryReport::from(report).to_string();
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
    fn a_private_pools_request_says_so() {
        let report = OutOfMemory {
            strategy: StrategyKind::Caching,
            stream: StreamId(7),
            pool: PoolId(0, 3),
            reachable: 1 << 30,
            joinable: 2 << 30,
            cause: Cause::OneRange,
            memory: Fragmentation {
                pools: vec![
                    on(7, false, 6 << 30),
                    pool(Owner::Pool(PoolId(0, 3)), false, 2 << 30),
                    pool(Owner::Pool(PoolId(0, 4)), false, 1 << 30),
                ],
                ..Fragmentation::default()
            },
            ..OutOfMemory::default()
        };
        let text = report.to_string();
        for part in [
            "on stream 0x7 in private pool (0, 3). ",
            "(2.00 GiB in this private pool, 6.00 GiB on this stream outside of its pool and 1.00 GiB in other private \
             pools)",
            "and 1.00 GiB could be joined, 2.00 GiB but for the bounds on views. ",
            "one free range of its private pool or from new memory",
        ] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }

    #[test]
    fn where_nearly_too_much_is_live_a_smaller_batch_is_advised() {
        let mut report = OutOfMemory {
            requested: 1 << 30,
            rounded: 1 << 30,
            reserved: 48 << 30,
            allocated: 46 << 30,
            strategy: StrategyKind::Caching,
            cause: Cause::OneRange,
            advice: vec![Advice::AskLess { missing: 0, at_most: 23 << 20 }],
            ..OutOfMemory::default()
        };
        let text = report.to_string();
        for part in ["Memory is fragmented: ", "47.00 GiB of the 48.00 GiB that can be held", "helped: 1.40 GiB less"] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
        assert!(!text.contains("a smaller request"), "{text}");
        report.allocated = 30 << 30;
        assert!(report.to_string().contains("a smaller request: up to 23.00 MiB could be met now"), "{report}");
    }

    #[test]
    fn a_limit_that_refused_is_named_first() {
        let to = 3 << 30;
        let advice = vec![Advice::RaiseLimit { limit: Limit::Bytes, to, total: 8 << 30 }];
        let report = OutOfMemory { cause: Cause::TooLittle, advice, limit: Some(2 << 30), ..OutOfMemory::default() };
        let text = report.explanation();
        assert!(text.starts_with("A limit is too low: what is in use") && text.contains("memory_limit:3GiB"), "{text}");
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
