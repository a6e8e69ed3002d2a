//! Why free memory did not serve a request, and what would have helped: derived from figures, never guessed.
//!
//! Owns: [`Cause`], [`Advice`], and the conditions under which each is true (`judge`).

use super::{Facts, OutOfMemory};
use crate::config::{Sharing, StrategyKind};
use crate::fragmentation::Fragmentation;
use crate::heap::{Heap, Request};
use crate::home::GRANULE;
use crate::rounding::{SMALL_LIMIT, round_size, segment_size};
use crate::stats::Class;
use crate::strategy::Premise;
use crate::units::{format_bytes, format_bytes_exactly};
use crate::views::Taken;
use std::fmt;

/// What depends on how memory would have come to lie under another option is advised where this part (1/n) of what is in
/// use, and so many bytes, would be left over: chunks that are partly in use may lose them. The recorded jobs run within
/// 1.5% of their live bytes (docs/design.md, "smallest device"); three chunks of 20 MiB and a slab count where there is
/// little.
const MARGIN: u64 = 64;
const LEAST_MARGIN: u64 = 64 << 20;
/// Chunk sizes of `stitch`, in bytes, that are tried for an advice: its default, and smaller ones. A free range loses
/// about one chunk, half at each end, when it is joined to others.
const CHUNK_SIZES: [(u64, Option<u64>); 4] =
    [(20 << 20, None), (8 << 20, Some(8 << 20)), (4 << 20, Some(4 << 20)), (2 << 20, Some(2 << 20))];

/// Why the free memory did not serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// What is in use and the request together are more than this allocator may or can hold: no arrangement would help.
    #[default]
    TooLittle,
    /// A stream capture is under way: until it is over, nothing is waited for or given back.
    Capture,
    /// The rest is free in private pools, which keep it until they are released.
    PrivatePools,
    /// The strategy serves a request from one contiguous free range of its stream (`gmlake`: from several, if it is large
    /// enough), or from new memory, and there is neither.
    OneRange,
    /// The request is of a private pool with segments of its own: none has enough free in one range, and there is no new one.
    OwnSegments,
    /// The rest is free on other streams, from which this one may not take it: never, or not yet.
    OtherStreams {
        /// When it may.
        sharing: Sharing,
    },
    /// Joining takes a view more than `max_views`, `max_view_mappings` or `max_view_address_space` allows.
    ViewBounds,
    /// The rest lies in parts of chunks that are partly in use, more than the two that a view can have at its ends.
    PartsOfChunks,
    /// There was enough by these figures: the driver refused a call for another reason, or there were no addresses in one
    /// piece.
    Refused,
}

/// What limits how much an allocator may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// The option `per_process_memory_fraction`, or
    /// [`Allocator::set_memory_fraction`](crate::Allocator::set_memory_fraction).
    Fraction,
    /// The option `memory_limit`, or [`Allocator::set_memory_limit`](crate::Allocator::set_memory_limit).
    Bytes,
    /// Both: each alone would have been too low.
    Both,
}

/// What would have met the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// The option `sharing:wait`.
    ShareStreams {
        /// Bytes that lie free on other streams.
        free: u64,
    },
    /// Higher bounds on views, all that are named: with one alone, another would have been met.
    MoreViews {
        /// The option `max_views`: at least so many.
        views: Option<usize>,
        /// The option `max_view_mappings`: at least so many.
        mappings: Option<usize>,
        /// The option `max_view_address_space`: at least so many bytes.
        address_space: Option<u64>,
    },
    /// The option `strategy:stitch`.
    Stitch {
        /// The option `chunk_size_mb`, in bytes, where what is free lies in such small ranges that it takes smaller chunks
        /// than usual to join them.
        chunk_size: Option<u64>,
    },
    /// A higher limit.
    RaiseLimit {
        /// Which one was in the way.
        limit: Limit,
        /// At least so many bytes.
        to: u64,
        /// The device's memory in bytes, of which a fraction is one.
        total: u64,
    },
    /// Memory of the device that others hold: other processes, other allocators, libraries.
    FreeDevice {
        /// At least so many bytes must come free.
        missing: u64,
        /// How many are held outside of this allocator, the driver's own context among them.
        elsewhere: u64,
    },
    /// A smaller request, or less that is live: a smaller batch, recomputation.
    AskLess {
        /// How many live bytes too many there are; 0 where they alone are not the cause.
        missing: u64,
        /// A request of up to so many bytes could be met now; 0 where none could.
        at_most: u64,
    },
}

impl Facts<'_> {
    /// Why the request failed, and all that would have met it.
    pub(super) fn judge(&self, memory: &Fragmentation) -> (Cause, Vec<Advice>) {
        let Self { heap, config, request, .. } = *self;
        let strategy = self.serves();
        let segmented = heap.is_segmented(request.pool);
        let size = request.size;
        let reach = strategy.reach(heap, config, request.pool, false);
        let across = strategy.reach(heap, config, request.pool, true);
        let refused = heap.counters.views_refused;
        let premise = if refused.is_some() { Premise::NoMoreViews } else { Premise::AsIs };
        let growth = strategy.growth(heap, config, request, premise);
        let room = self.room();
        let most = memory.reserved.saturating_add(room);
        let used = memory.allocated + memory.pending + memory.unsettled;
        let needed = used.saturating_add(size);
        let stitches = config.strategy == StrategyKind::Stitch && !segmented;
        let capturing = heap.private.capturing();
        let fenced = memory.free_in_private_pools(heap.owner_of(request.pool));
        let grown_by = |request: &Request, premise| strategy.growth(heap, config, request, premise);
        let shared = across > reach && (across >= size || grown_by(request, Premise::AllStreams) <= room);

        let cause = match () {
            () if heap.has_source(request.pool) && self.exceeded(growth).is_none() => Cause::OwnSegments,
            // Where the driver did not say what is free, nobody knows whether all of it would have been enough.
            () if needed > most && (self.device.is_some() || self.limit.is_some()) => Cause::TooLittle,
            () if capturing => Cause::Capture,
            () if needed.saturating_add(fenced) > most => Cause::PrivatePools,
            () if segmented => Cause::OwnSegments,
            () if !stitches => Cause::OneRange,
            // Where the last resort has moved memory since, there may be nothing left to join.
            () if refused.is_some() && reach >= size => Cause::ViewBounds,
            () if reach >= size || growth <= room => Cause::Refused,
            () if shared => Cause::OtherStreams { sharing: config.sharing },
            () => Cause::PartsOfChunks,
        };

        if heap.has_source(request.pool) {
            // Nobody knows what the source would have given under other figures.
            return (cause, Vec::new());
        }
        let mut advice = Vec::new();
        let margin = (needed / MARGIN).saturating_add(LEAST_MARGIN);
        // The ends of the view might lie elsewhere in a chunk.
        let roomy = Request { size: size.saturating_add(margin.max(largest_chunk(heap))), ..*request };
        // In a capture nobody knows what could have been had after a wait.
        let plenty = |premise| stitches && !capturing && grown_by(&roomy, premise) <= room;
        if let Some(refused) = refused
            && reach >= size
            && plenty(Premise::AsIs)
        {
            advice.push(self.more_views(refused, memory));
        }
        let viewable = self.has_room_for_views(memory, room);
        if config.sharing == Sharing::Never && shared && viewable && plenty(Premise::AllStreams) {
            let others = memory.free.saturating_sub(self.free_for_request(memory)).saturating_sub(fenced);
            advice.push(Advice::ShareStreams { free: others });
        }
        let joinable = self.properties.virtual_memory && needed.saturating_add(margin).saturating_add(fenced) <= most;
        if !stitches && !segmented && !capturing && joinable {
            let enough = |(chunk, _): &&(u64, Option<u64>)| self.joinable(*chunk).saturating_add(room) >= size;
            if let Some((_, chunk_size)) = CHUNK_SIZES.iter().find(enough) {
                advice.push(Advice::Stitch { chunk_size: *chunk_size });
            }
        }
        if let Some(info) = self.device {
            let grown = memory.reserved.saturating_add(growth);
            let limit = self.exceeded(growth);
            let elsewhere = info.total.saturating_sub(info.free).saturating_sub(memory.reserved);
            let missing = growth.saturating_sub(info.free);
            if let Some(limit) = limit.filter(|_| missing == 0) {
                advice.push(Advice::RaiseLimit { limit, to: grown, total: self.properties.total_memory });
            }
            if limit.is_none() && missing > 0 && missing <= elsewhere {
                advice.push(Advice::FreeDevice { missing, elsewhere });
            }
        }
        if advice.is_empty() && cause != Cause::Refused {
            let missing = match cause {
                Cause::TooLittle => needed.saturating_add(fenced).saturating_sub(most),
                _ => 0,
            };
            let at_most = self.at_most(reach, room, memory);
            if missing > 0 || at_most > 0 {
                advice.push(Advice::AskLess { missing, at_most });
            }
        }
        (cause, advice)
    }

    /// Which limits forbid to grow by so much.
    fn exceeded(&self, growth: u64) -> Option<Limit> {
        let Self { heap, config, request, .. } = *self;
        let exceeds =
            |limit: Option<u64>, more| limit.is_some_and(|limit| heap.reserved().saturating_add(more) > limit);
        // Against the fraction, `expandable` counts as PyTorch does.
        let counted = match config.strategy {
            StrategyKind::Expandable => segment_size(request.size, config.large_segment_size),
            _ => growth,
        };
        match (exceeds(self.fraction_limit, counted), exceeds(config.memory_limit, growth)) {
            (false, false) => None,
            (true, false) => Some(Limit::Fraction),
            (false, true) => Some(Limit::Bytes),
            (true, true) => Some(Limit::Both),
        }
    }

    /// The bounds with which a view that was refused would have been built. Views that were refused before it are there as
    /// well then: each live block may be in one, whose chunks are its own but for the two at its ends.
    fn more_views(&self, refused: Taken, memory: &Fragmentation) -> Advice {
        let Self { heap, config, .. } = *self;
        let live = heap.counters.allocation.current();
        let ends = 2 * live * largest_chunk(heap);
        let most = Taken {
            views: refused.views + live as usize,
            mappings: refused.mappings + memory.chunks as usize + 2 * live as usize,
            addresses: refused.addresses.saturating_add(memory.reserved).saturating_add(ends),
        };
        let raised = |most: usize, bound: usize| (most > bound).then(|| most.next_power_of_two());
        Advice::MoreViews {
            views: raised(most.views, config.max_views),
            mappings: raised(most.mappings, config.max_view_mappings),
            address_space: (most.addresses > config.max_view_address_space)
                .then(|| most.addresses.checked_next_power_of_two().unwrap_or(u64::MAX)),
        }
    }

    /// Whether one more view keeps within the bounds, whatever it is over.
    fn has_room_for_views(&self, memory: &Fragmentation, room: u64) -> bool {
        let taken = self.heap.views.taken();
        let most = Taken {
            views: taken.views + 1,
            mappings: taken.mappings + (memory.chunks + self.request.size / GRANULE) as usize,
            addresses: taken.addresses.saturating_add(memory.reserved).saturating_add(room),
        };
        most.is_within(self.config)
    }

    /// Bytes that the driver could give and the limit allows; 0 where the driver did not say.
    fn room(&self) -> u64 {
        let allowed = self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.heap.reserved()));
        self.device.map_or(0, |info| info.free).min(allowed)
    }

    /// What `stitch` would about have joined with chunks of a size, had memory come to lie under it as it lies here.
    fn joinable(&self, chunk: u64) -> u64 {
        let shared = self.heap.shared_pools(Class::Large).into_iter().map(|pool| &self.heap.pools[pool]);
        let ranges = shared.flat_map(|pool| pool.free.in_order(&self.heap.blocks));
        ranges.map(|id| self.heap.blocks[id].size.saturating_sub(chunk)).sum()
    }

    /// Free bytes of the request's stream, and everyone's.
    fn free_for_request(&self, memory: &Fragmentation) -> u64 {
        use crate::fragmentation::Owner;
        let own = self.heap.memory_owner(self.request.pool);
        let open = memory.pools.iter().filter(|pool| pool.owner == own || pool.owner == Owner::Everyone);
        open.map(|pool| pool.free).sum()
    }

    /// The largest request of the same kind that could be met now, 0 if none: the largest of those that are sure to be.
    fn at_most(&self, reach: u64, room: u64, memory: &Fragmentation) -> u64 {
        let Self { heap, config, request, .. } = *self;
        let strategy = self.serves();
        let whole = |unit: u64| room - room % unit.max(1);
        // Near a bound on views only what lies in one piece is sure.
        let premise = if self.has_room_for_views(memory, room) { Premise::AsIs } else { Premise::NoMoreViews };
        let reach = if premise == Premise::AsIs { reach } else { self.largest_free() };
        let growth = strategy.growth(heap, config, request, premise);
        let less = request.size.saturating_sub(growth.saturating_sub(room));
        let candidates = [less, whole(GRANULE), whole(config.large_segment_size), reach];
        let rounds_to_itself = |size: u64| match round_size(size, &config.roundup_power2_divisions) {
            _ if size == 0 => 0,
            rounded if rounded == size => size,
            // Powers of two are never rounded up, from 512 on.
            _ => 1 << size.ilog2(),
        };
        let met = |size: u64| {
            let asked = Request { size, requested: size, ..*request };
            size <= reach || strategy.growth(heap, config, &asked, premise) <= room
        };
        candidates
            .into_iter()
            .map(|size| if request.class == Class::Small { size.min(SMALL_LIMIT) } else { size })
            .map(rounds_to_itself)
            .filter(|size| *size < request.size && Class::of(*size <= SMALL_LIMIT) == request.class && met(*size))
            .max()
            .unwrap_or(0)
    }
}

/// Bytes of the largest chunk.
fn largest_chunk(heap: &Heap) -> u64 {
    let chunks = heap.home.iter().flat_map(|home| home.chunks());
    chunks.map(|(_, chunk)| chunk.size).max().unwrap_or(0)
}

impl Cause {
    /// A sentence.
    pub(super) fn in_words(self, report: &OutOfMemory) -> String {
        let strategy = report.strategy;
        match self {
            Self::TooLittle => {
                let most = report.limit.unwrap_or(u64::MAX).min(report.reserved.saturating_add(report.device_free));
                let used = report.allocated.saturating_add(report.pending);
                format!(
                    "What is in use and the request together are {}, and this allocator can hold no more than {}.",
                    format_bytes(used.saturating_add(report.rounded)),
                    format_bytes(most),
                )
            }
            Self::Capture => {
                "A stream capture is under way: until it is over, nothing can be waited for or given back.".to_owned()
            }
            Self::PrivatePools => format!(
                "Enough is free, but {} of it in other private pools, which keep it until they are released.",
                format_bytes(report.free_in_private_pools),
            ),
            Self::OneRange if strategy == StrategyKind::Gmlake => {
                "`gmlake` serves a request from free blocks of its stream, of which it joins several only from `fragLimit` \
                 on, or from new memory, and neither is enough."
                    .to_owned()
            }
            Self::OneRange => format!(
                "`{strategy}` serves a request from one free range of its stream or from new memory ({} for this one), \
                 and there is neither.",
                format_bytes(report.segment),
            ),
            Self::OwnSegments => format!(
                "This private pool has segments of its own: none has enough free in one range, and no new one was to be had \
                 ({} for this request).",
                format_bytes(report.segment),
            ),
            Self::OtherStreams { sharing } => {
                let why = match sharing {
                    Sharing::Never => "which `sharing:never` keeps for themselves",
                    Sharing::Completed | Sharing::Wait => "whose work the GPU has not finished",
                };
                format!("Enough is free, but a part of it on other streams, {why}.")
            }
            Self::ViewBounds => {
                "Enough is free, but joining it takes a view more than `max_views`, `max_view_mappings` or \
                 `max_view_address_space` allows."
                    .to_owned()
            }
            Self::Refused => {
                "There was enough by these figures, but the driver refused a call for it, or there were no addresses in \
                 one piece."
                    .to_owned()
            }
            Self::PartsOfChunks => format!(
                "The rest of what is free lies in chunks of which other parts are in use ({} in {} chunks): a view can \
                 have one such part at each end.",
                format_bytes(report.memory.partly_free_bytes),
                report.memory.partly_free_chunks,
            ),
        }
    }
}

impl Advice {
    /// The value of `per_process_memory_fraction` that a raised limit comes to, with four digits, rounded up; 1 is no
    /// limit.
    #[must_use]
    pub fn fraction(to: u64, total: u64) -> f64 {
        const DIGITS: f64 = 1e4;
        // One digit more, should rounding have brought the product below a whole byte.
        let part = (to as f64 / total.max(1) as f64 * DIGITS).ceil() / DIGITS;
        let enough = (total as f64 * part) as u64 >= to;
        (if enough { part } else { part + 1.0 / DIGITS }).min(1.0)
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ShareStreams { free } => {
                write!(
                    f,
                    "the option sharing:wait, which passes on what other streams have free ({})",
                    format_bytes(free)
                )
            }
            Self::MoreViews { views, mappings, address_space } => {
                let named = [
                    views.map(|to| format!("max_views:{to}")),
                    mappings.map(|to| format!("max_view_mappings:{to}")),
                    address_space.map(|to| format!("max_view_address_space:{}", format_bytes_exactly(to))),
                ];
                let named: Vec<String> = named.into_iter().flatten().collect();
                let options = if named.len() > 1 { "options" } else { "option" };
                write!(f, "the {options} {}, or more", named.join(","))
            }
            Self::Stitch { chunk_size } => {
                f.write_str("the option strategy:stitch, which joins free memory wherever it lies")?;
                chunk_size.map_or(Ok(()), |size| write!(f, ", with chunk_size_mb:{}", size >> 20))
            }
            Self::RaiseLimit { limit, to, total } => {
                let fraction = format!("per_process_memory_fraction:{}", Self::fraction(to, total));
                let bytes = format!("memory_limit:{}", format_bytes_exactly(to));
                let options = match limit {
                    Limit::Fraction => fraction,
                    Limit::Bytes => bytes,
                    Limit::Both => format!("{bytes},{fraction}"),
                };
                write!(f, "a higher limit, {} at least ({options}), for which the device has room", format_bytes(to))
            }
            Self::FreeDevice { missing, elsewhere } => write!(
                f,
                "{} less in the hands of others, who hold {} of the device outside of this allocator (other processes \
                 and their caches, which empty_cache there gives back; libraries; the CUDA context)",
                format_bytes(missing),
                format_bytes(elsewhere),
            ),
            Self::AskLess { missing, at_most } => {
                if missing > 0 {
                    write!(
                        f,
                        "{} less that is live at this point, by a smaller batch for example",
                        format_bytes(missing)
                    )?;
                }
                if at_most > 0 {
                    let or = if missing > 0 { ", or " } else { "" };
                    write!(f, "{or}a smaller request: up to {} could be met now", format_bytes(at_most))?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_never_too_small() {
        for (to, total) in [(1, 3), (2 << 20, 100 << 20), (150_109_880_319, 150_109_880_320), (7, 0), (u64::MAX, 9)] {
            let fraction = Advice::fraction(to, total);
            assert!(fraction <= 1.0 && (fraction == 1.0 || (total as f64 * fraction) as u64 >= to), "{to} of {total}");
        }
        assert_eq!(Advice::fraction(1, 2), 0.5);
    }
}
