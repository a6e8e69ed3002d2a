//! The figures that a diagnosis is derived from.

use super::input::ReportInput;
use crate::config::rounding::segment_size;
use crate::config::{Config, StrategyKind};
use crate::heap::{Block, GRANULE, Heap, Request, ViewUsage};
use crate::ids::{Class, PoolId};
use crate::limits::Increase;
use crate::report::fragmentation::{Fragmentation, Owner};
use crate::report::out_of_memory::Limit;
use crate::strategy::{Assumption, Estimates, OWN_SEGMENTS_ESTIMATES, joins_free_memory};

/// An advice that depends on how memory would lie under another option is given only if this part (1/n) of the bytes in
/// use, and at least `LEAST_MARGIN`, would be left over: chunks that are partly in use may lose that much. The recorded
/// jobs run within 1.5% of their live bytes (docs/measurements, "smallest device"). If little memory is in use, the
/// margin covers three chunks of 20 MiB and a slab of 2 MiB.
const MARGIN: u64 = 64;
const LEAST_MARGIN: u64 = 64 << 20;

/// A failed request in figures. Sizes are bytes.
pub(super) struct Figures<'a> {
    pub(super) input: &'a ReportInput<'a>,
    pub(super) memory: &'a Fragmentation,
    /// The strategy that serves the request: the strategy of its private pool, or the allocator's.
    pub(super) strategy: &'a dyn Estimates,
    pub(super) segmented: bool,
    /// Whether views join free memory.
    pub(super) stitches: bool,
    pub(super) capturing: bool,
    /// The largest request that free memory could serve without the bounds on views (`max_views` and others):
    /// `servable` with the memory that the request's stream may take, `servable_across` with the memory of all streams.
    pub(super) servable: u64,
    pub(super) servable_across: u64,
    /// The bytes by which memory would have to grow.
    pub(super) growth: u64,
    /// The bytes that the driver could give and the limits allow; 0 if the driver did not report its free memory.
    pub(super) room: u64,
    /// The most bytes that may be held at present.
    pub(super) max_held: u64,
    /// The bytes in use plus the bytes of the request.
    pub(super) needed: u64,
    /// The free bytes of other private pools.
    pub(super) fenced: u64,
    /// An advice that depends on how memory would lie under another option is given only if this many bytes are left
    /// over.
    pub(super) margin: u64,
}

impl<'a> Figures<'a> {
    pub(super) fn new(input: &'a ReportInput<'a>, memory: &'a Fragmentation) -> Self {
        let ReportInput { heap, config, request, .. } = *input;
        let segmented = heap.is_segmented(request.pool);
        let strategy = if segmented { OWN_SEGMENTS_ESTIMATES } else { input.strategy };
        let assumption = if input.refused.is_some() { Assumption::NoMoreViews } else { Assumption::AsIs };
        let room = input.present.room;
        let awake = (memory.allocated + memory.pending).saturating_sub(memory.asleep + memory.spilled);
        let needed = (awake + memory.unsettled).saturating_add(request.size);
        let unbounded = Config {
            max_views: usize::MAX,
            max_view_mappings: usize::MAX,
            max_view_address_space: u64::MAX,
            ..config.clone()
        };
        Self {
            input,
            memory,
            strategy,
            segmented,
            stitches: joins_free_memory(config.strategy) && !segmented,
            capturing: heap.private().capturing(),
            servable: strategy.largest_servable(heap, &unbounded, request.pool, false),
            servable_across: strategy.largest_servable(heap, &unbounded, request.pool, true),
            growth: strategy.growth_needed(&input.present, request, assumption),
            room,
            max_held: memory.reserved.saturating_add(room),
            needed,
            fenced: free_in_private_pools(memory, heap.owner_of(request.pool)),
            margin: (needed / MARGIN).saturating_add(LEAST_MARGIN),
        }
    }

    /// Returns whether the request is larger than the device or the limits allow, whatever memory is held.
    pub(super) fn exceeds_all(&self) -> bool {
        let ReportInput { heap, request, limits, properties, device, .. } = *self.input;
        let total = device.map_or(properties.total_memory, |info| info.total);
        let most = limits.lowest().unwrap_or(u64::MAX).min(total.saturating_sub(limits.headroom()));
        // The program may give a private pool a source of segments, whose memory need not be the device's.
        request.size > most && !heap.has_source(request.pool)
    }

    /// Returns whether the request would have been served with the memory of other streams.
    pub(super) fn is_shared_by_streams(&self) -> bool {
        let grown = || self.growth_for(self.input.request, Assumption::AllStreams) <= self.room;
        self.servable_across > self.servable && (self.servable_across >= self.input.request.size || grown())
    }

    /// Returns whether even a somewhat larger request would have been served, since memory may lie differently under
    /// another option. Returns `false` during a capture: the memory that a wait would have freed is unknown.
    pub(super) fn has_plenty(&self, assumption: Assumption) -> bool {
        // The ends of the request's view might lie elsewhere in a chunk.
        let more = self.margin.max(largest_chunk(self.input.heap));
        let roomy = Request { size: self.input.request.size.saturating_add(more), ..*self.input.request };
        self.stitches && !self.capturing && self.growth_for(&roomy, assumption) <= self.room
    }

    /// Returns the bytes by which memory would have to grow for a request.
    fn growth_for(&self, request: &Request, assumption: Assumption) -> u64 {
        self.strategy.growth_needed(&self.input.present, request, assumption)
    }

    /// Returns the limits that forbid this growth, or `None` if none does.
    pub(super) fn exceeded(&self) -> Option<Limit> {
        self.exceeded_by(self.growth)
    }

    /// Returns the limits that forbid a growth by `growth` bytes for the request, or `None` if none does.
    pub(super) fn exceeded_by(&self, growth: u64) -> Option<Limit> {
        let ReportInput { heap, config, request, limits, .. } = *self.input;
        // `expandable` counts a whole segment against the fraction, as PyTorch does.
        let counted = match config.strategy {
            StrategyKind::Expandable => segment_size(request.size, config.large_segment_size),
            _ => growth,
        };
        let more = Increase { against_fraction: Some(counted), against_bytes: Some(growth) };
        limits.exceeded(heap.reserved(), more)
    }

    /// Returns whether the driver has refused memory that it reports as free, and that the limits allow.
    pub(super) fn is_refused_by_driver(&self) -> bool {
        self.growth <= self.room && self.exceeded().is_none()
    }

    /// Returns the usage that all views would have together with the refused view and the views that were refused
    /// earlier. The figure assumes that each live block is in a view of its own, and that views share only the chunks
    /// at their ends.
    pub(super) fn views_wanted(&self, refused: ViewUsage) -> ViewUsage {
        let live = self.input.heap.counters().allocation.current();
        let ends = 2 * live * largest_chunk(self.input.heap);
        ViewUsage {
            views: refused.views + live as usize,
            mappings: refused.mappings + self.memory.chunks as usize + 2 * live as usize,
            addresses: refused.addresses.saturating_add(self.memory.reserved).saturating_add(ends),
        }
    }

    /// Returns whether the bounds on views (`max_views` and others) allow one more view, over any chunks. `gmlake` has
    /// no such bounds.
    pub(super) fn has_room_for_views(&self) -> bool {
        if self.input.config.strategy == StrategyKind::Gmlake {
            return true;
        }
        let usage = self.input.heap.views().usage();
        let with_one_more = ViewUsage {
            views: usage.views + 1,
            mappings: usage.mappings + (self.memory.chunks + self.input.request.size / GRANULE) as usize,
            addresses: usage.addresses.saturating_add(self.memory.reserved).saturating_add(self.room),
        };
        with_one_more.is_within(self.input.config)
    }

    /// Returns about how many bytes `stitch` could have joined with chunks of this size, if memory lay as it does now.
    pub(super) fn joinable(&self, chunk: u64) -> u64 {
        self.free_large().map(|block| block.size.saturating_sub(chunk)).sum()
    }

    /// Returns the bytes of the request plus the bytes that must be left over if chunks are split for it: room for
    /// copies, and a margin because memory would lie at other places under another option.
    pub(super) fn with_copies(&self) -> u64 {
        let margin = self.margin.max(largest_chunk(self.input.heap).saturating_mul(2));
        self.input.request.size.saturating_add(margin)
    }

    /// Returns the bytes of whole granules that are free, wherever they lie.
    pub(super) fn whole_granules(&self) -> u64 {
        let granules = |block: &Block| (block.end() / GRANULE).saturating_sub(block.address.div_ceil(GRANULE));
        self.free_large().map(|block| granules(block) * GRANULE).sum()
    }

    /// Returns the free blocks of the streams' large pools and of idle memory.
    fn free_large(&self) -> impl Iterator<Item = &Block> {
        let heap = self.input.heap;
        // If the host has no memory for the list of a pool, the pool counts as full.
        let free = heap.public_pools(Class::Large).flat_map(|pool| heap.free_blocks(pool).unwrap_or_default());
        free.map(|id| heap.block(id))
    }

    /// Returns the free bytes of the request's stream plus the idle bytes.
    pub(super) fn free_for_request(&self) -> u64 {
        let own = self.input.heap.memory_owner(self.input.request.pool);
        let open = self.memory.pools.iter().filter(|pool| pool.owner == own || pool.owner == Owner::Everyone);
        open.map(|pool| pool.free).sum()
    }

    /// Returns the largest free block that the request might take.
    pub(super) fn largest_free(&self) -> u64 {
        let ReportInput { heap, request, .. } = *self.input;
        heap.largest_in(request.pool).max(heap.largest_in(heap.idle().of(request.class)))
    }

    /// Returns the largest request of the same class that would certainly be served at present; 0 if there is none.
    pub(super) fn at_most(&self) -> u64 {
        let ReportInput { heap, config, request, .. } = *self.input;
        let whole = |unit: u64| self.room - self.room % unit.max(1);
        // If the bounds on views (such as `max_views`) leave no room for another view, only memory in one piece is
        // certain to serve.
        let (assumption, servable) = match self.has_room_for_views() {
            true => (Assumption::AsIs, self.servable),
            false => (Assumption::NoMoreViews, self.largest_free()),
        };
        let growth = self.growth_for(request, assumption);
        let less = request.size.saturating_sub(growth.saturating_sub(self.room));
        let candidates = [less, whole(GRANULE), whole(config.large_segment_size), servable];
        let layout = heap.layout_of(request.pool);
        let divisions = &config.roundup_power2_divisions;
        let met = |requested: u64| {
            let size = layout.rounding.round(requested, divisions);
            let asked = Request { size, requested, ..*request };
            size <= servable || self.growth_for(&asked, assumption) <= self.room
        };
        candidates
            .into_iter()
            .map(|size| if request.class == Class::Small { size.min(layout.small_limit) } else { size })
            .map(|size| layout.rounding.largest_within(size, divisions))
            .filter(|size| *size > 0 && *size < request.size && layout.class_of(*size) == request.class && met(*size))
            .max()
            .unwrap_or(0)
    }
}

/// Returns the free bytes in all private pools except one.
fn free_in_private_pools(memory: &Fragmentation, except: PoolId) -> u64 {
    let fenced = |owner| matches!(owner, Owner::Pool(pool) if pool != except);
    memory.pools.iter().filter(|pool| fenced(pool.owner)).map(|pool| pool.free).sum()
}

/// Returns the bytes of the largest chunk.
fn largest_chunk(heap: &Heap) -> u64 {
    let chunks = heap.home().into_iter().flat_map(|home| home.chunks());
    chunks.map(|(_, chunk)| chunk.size).max().unwrap_or(0)
}
