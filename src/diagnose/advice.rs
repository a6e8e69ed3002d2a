//! The cause of a refusal, and the advice with which the request would have been served: one function for each.
//!
//! Owns: the conditions under which a [`Cause`] or an [`Advice`] is true.

use super::figures::Figures;
use super::input::ReportInput;
use crate::config::StreamSharing;
use crate::config::rounding::segment_size;
use crate::fallible::{Grown, TryCollect};
use crate::report::out_of_memory::{Advice, Cause};
use crate::strategy::Assumption;

/// Chunk sizes of `stitch`, in bytes, that are tried for an advice: the default size, and smaller ones. A free range
/// that is joined to others loses about the bytes of one chunk, half at each end, since chunks are mapped whole.
const CHUNK_SIZES: [(u64, Option<u64>); 4] =
    [(20 << 20, None), (8 << 20, Some(8 << 20)), (4 << 20, Some(4 << 20)), (2 << 20, Some(2 << 20))];

/// Returns why the request failed, and every advice with which it would have been served, the least effort first.
pub(super) fn diagnose(input: &ReportInput<'_>, figures: &Figures<'_>) -> Grown<(Cause, Vec<Advice>)> {
    let cause = cause(input, figures);
    if input.heap.has_source(input.request.pool) {
        // It is unknown what the source of the pool's segments would answer under another option.
        return Ok((cause, Vec::new()));
    }
    let advice = [
        wait_longer(input, figures),
        more_views(input, figures),
        share_streams(input, figures),
        split_chunks(input, figures),
        stitch(input, figures),
        plain_memory(input, figures),
        raise_limit(input, figures),
        lower_headroom(input, figures),
        free_device(input, figures),
    ];
    let mut advice = advice.into_iter().flatten().try_to_vec()?;
    if advice.is_empty() && cause != Cause::Refused {
        advice = ask_less(input, cause, figures).into_iter().try_to_vec()?;
    }
    Ok((cause, advice))
}

fn cause(input: &ReportInput<'_>, figures: &Figures<'_>) -> Cause {
    let Figures { servable, needed, max_held, growth, room, fenced, .. } = *figures;
    let size = input.request.size;
    match () {
        () if input.heap.has_source(input.request.pool) && figures.exceeded().is_none() => Cause::OwnSegments,
        () if figures.exceeds_all() => Cause::RequestTooLarge,
        () if wait_longer(input, figures).is_some() => {
            Cause::StillUsed { most_ms: input.config.wait_ms.unwrap_or_default() }
        }
        // If the driver did not report its free memory, it is unknown whether the whole device would have been enough.
        () if needed > max_held && (input.device.is_some() || input.limits.lowest().is_some()) => Cause::TooLittle,
        // A refusal because of the bounds on views (such as `max_views`) does not come from the driver.
        () if figures.is_refused_by_driver() && input.refused.is_none() => Cause::Refused,
        () if figures.capturing => Cause::Capture,
        () if needed.saturating_add(fenced) > max_held => Cause::PrivatePools,
        () if figures.segmented => Cause::OwnSegments,
        () if !figures.stitches => Cause::OneRange,
        // After the bounds on views (such as `max_views`) have refused a view, all means are tried. These may move
        // memory, so that no free ranges are left to join.
        () if input.refused.is_some() && servable >= size => Cause::ViewBounds,
        () if servable >= size || growth <= room => Cause::Refused,
        () if figures.is_shared_by_streams() => Cause::OtherStreams { sharing: input.config.sharing },
        () => Cause::PartsOfChunks,
    }
}

/// Advises a longer wait, if the freed memory that is still used would be enough.
fn wait_longer(input: &ReportInput<'_>, figures: &Figures<'_>) -> Option<Advice> {
    let pending = figures.memory.pending;
    let bounded = input.config.wait_ms.is_some() && figures.stitches && !figures.capturing;
    let kept = figures.needed.saturating_sub(pending).saturating_add(figures.fenced).saturating_add(figures.margin);
    let helps = bounded && pending > 0 && kept <= figures.max_held && figures.has_room_for_views();
    helps.then_some(Advice::WaitLonger { pending })
}

/// Advises higher bounds on views (`max_views` and others), with which the refused view would have been built.
fn more_views(input: &ReportInput<'_>, figures: &Figures<'_>) -> Option<Advice> {
    let refused = input.refused.filter(|_| figures.servable >= input.request.size)?;
    if !figures.has_plenty(Assumption::AsIs) {
        return None;
    }
    let (most, config) = (figures.views_wanted(refused), input.config);
    let raised = |most: usize, bound: usize| (most > bound).then(|| most.next_power_of_two());
    Some(Advice::MoreViews {
        views: raised(most.views, config.max_views),
        mappings: raised(most.mappings, config.max_view_mappings),
        address_space: (most.addresses > config.max_view_address_space)
            .then(|| most.addresses.checked_next_power_of_two().unwrap_or(u64::MAX)),
    })
}

/// Advises to share memory between streams, if other streams have enough free.
fn share_streams(input: &ReportInput<'_>, figures: &Figures<'_>) -> Option<Advice> {
    let helps = input.config.sharing == StreamSharing::Never
        && figures.is_shared_by_streams()
        && figures.has_room_for_views()
        && figures.has_plenty(Assumption::AllStreams);
    let others = || figures.memory.free.saturating_sub(figures.free_for_request()).saturating_sub(figures.fenced);
    helps.then(|| Advice::ShareStreams { free: others() })
}

/// Advises to split chunks, if enough memory lies in free granules, wherever they are.
fn split_chunks(input: &ReportInput<'_>, figures: &Figures<'_>) -> Option<Advice> {
    let split = input.split?;
    let enough = figures.whole_granules().saturating_add(figures.room) >= figures.with_copies();
    let helps =
        figures.stitches && !figures.capturing && figures.servable < input.request.size && figures.has_room_for_views();
    let free = || figures.strategy.splittable(input.heap);
    (helps && enough).then(free).filter(|free| *free > 0).map(|free| Advice::SplitChunks { free, split })
}

/// Advises the strategy that joins free memory, if another strategy refused the request.
fn stitch(input: &ReportInput<'_>, figures: &Figures<'_>) -> Option<Advice> {
    let kept = figures.needed.saturating_add(figures.margin).saturating_add(figures.fenced);
    let joins = input.properties.virtual_memory && kept <= figures.max_held;
    // If the driver has refused memory to this strategy, it would refuse memory to `stitch` too.
    if figures.stitches || figures.segmented || figures.capturing || !joins || figures.is_refused_by_driver() {
        return None;
    }
    let enough = |chunk: u64| figures.joinable(chunk).saturating_add(figures.room) >= input.request.size;
    let (_, chunk_size) = CHUNK_SIZES.iter().find(|(chunk, _)| enough(*chunk))?;
    Some(Advice::Stitch { chunk_size: *chunk_size })
}

/// Advises plain memory, which needs no ranges of addresses, if the driver has refused such ranges and the device has
/// room.
fn plain_memory(input: &ReportInput<'_>, figures: &Figures<'_>) -> Option<Advice> {
    let ReportInput { heap, config, request, .. } = *input;
    let segment = segment_size(request.size, config.large_segment_size);
    let helps = input.no_addresses && !figures.segmented && !heap.is_private(request.pool) && segment <= figures.room;
    (helps && figures.exceeded_by(segment).is_none()).then_some(Advice::PlainMemory)
}

/// Advises a higher limit, if the device has room for the growth.
fn raise_limit(input: &ReportInput<'_>, figures: &Figures<'_>) -> Option<Advice> {
    let info = input.device.filter(|info| figures.growth <= info.free.saturating_sub(input.limits.headroom()));
    let limit = info.and_then(|_| figures.exceeded())?;
    let to = figures.memory.reserved.saturating_add(figures.growth);
    Some(Advice::RaiseLimit { limit, to, total: input.properties.total_memory })
}

/// Advises a smaller headroom, if the device has room for the growth, and no limit forbids it.
fn lower_headroom(input: &ReportInput<'_>, figures: &Figures<'_>) -> Option<Advice> {
    let info = input.device.filter(|_| figures.exceeded().is_none())?;
    let to = info.free.checked_sub(figures.growth)?;
    (to < input.limits.headroom()).then_some(Advice::LowerHeadroom { to })
}

/// Advises to free memory of the device that others hold.
fn free_device(input: &ReportInput<'_>, figures: &Figures<'_>) -> Option<Advice> {
    let info = input.device.filter(|_| figures.exceeded().is_none())?;
    let elsewhere = info.total.saturating_sub(info.free).saturating_sub(figures.memory.reserved);
    let missing = figures.growth.saturating_sub(info.free.saturating_sub(input.limits.headroom()));
    (missing > 0 && missing <= elsewhere).then_some(Advice::FreeDevice { missing, elsewhere })
}

/// Advises a smaller request, or less live memory if freeing live memory can be enough.
fn ask_less(input: &ReportInput<'_>, cause: Cause, figures: &Figures<'_>) -> Option<Advice> {
    let missing = match cause {
        Cause::TooLittle => figures.needed.saturating_add(figures.fenced).saturating_sub(figures.max_held),
        _ => 0,
    };
    let alone = input.request.size.saturating_add(figures.fenced);
    let missing = if missing <= figures.memory.allocated && alone <= figures.max_held { missing } else { 0 };
    let at_most = figures.at_most();
    (missing > 0 || at_most > 0).then_some(Advice::AskLess { missing, at_most })
}
