//! Free memory of other streams that needs no new view.
//!
//! Owns: the choice of such memory: one range at home, or an existing view, with memory of any streams. A wait on the
//! GPU costs the CPU a quarter of a microsecond, and a new view 23.5 us for each chunk. The memory that the GPU has
//! passed differs in every pass of a program that repeats itself, so a view over exactly this memory is seldom used
//! again.
//!
//! ```text
//! home  |aaaa|bbbb|YYYY|aaaa|     free for this stream: a; freed on another, in an ended epoch: b; live: Y
//!        ^^^^^^^                  a request for six waits for b's event and takes these; no view over the two a's
//! ```

use super::at_home::at_home;
use super::choose;
use crate::backing::StrategyContext;
use crate::error::Result;
use crate::fallible::TryCollect;
use crate::heap::{Request, Window};
use crate::ids::{BlockId, PoolIndex};
use crate::span::Span;
use crate::streams::most_of_a_range;

/// The most views that are searched for one request. With a limit of 100, the workload `serve-4t` built a fifth more
/// views (docs/decisions/0042).
const MAX_VIEWS: usize = 300;

/// Takes a block that includes free memory of other streams, after waits on the GPU for events recorded up to operation
/// `until`. Returns `None` if a view would have to be built, or memory would have to grow.
pub(super) fn take(context: &mut StrategyContext<'_>, request: &Request, until: u64) -> Result<Option<BlockId>> {
    // A request that extends a view takes whole chunks, which `StrategyContext::wait_on_gpu` hands over.
    if request.extends.is_some() || !context.may_wait_for_others(request)? {
        return Ok(None);
    }
    if let Some(run) = run(context, request, until)? {
        context.wait_for_spans(request, &[run])?;
        return at_home(context, request);
    }
    let Some(window) = window(context, request, until)? else { return Ok(None) };
    let spans = context.heap().spans_of(window, request.size)?;
    context.wait_for_spans(request, &spans)?;
    context.reuse_view(window, request, None).map(Some)
}

/// Of the contiguous ranges at home that are large enough, returns the one for which the request waits for the oldest
/// event; of equals, the smallest. `None` if there is none.
fn run(context: &StrategyContext<'_>, request: &Request, until: u64) -> Result<Option<Span>> {
    let heap = context.heap();
    let Request { size, pool, .. } = *request;
    let idle = heap.idle();
    // Slabs for small blocks are left out.
    let age = |id: BlockId| {
        if heap.is_large_and_open(id, pool) { Some(0) } else { context.recorded_at(pool, id).filter(|at| *at <= until) }
    };
    let mut best: Option<(u64, u64, u64)> = None;
    let others = heap.stream_pools().filter(|other| *other != pool);
    let pools: Vec<PoolIndex> = others.chain([pool, idle]).try_to_vec()?;
    for of in pools {
        heap.visit_free(of, 0, |id| {
            // Each range is examined once, at its first block.
            let mut blocks = choose::run(heap, id, age);
            let first = blocks.next().filter(|_| age(heap.block(id).prev).is_none());
            let Some((_, mut newest)) = first else { return Ok(()) };
            let (start, mut end) = (heap.block(id).address, heap.block(id).end());
            for (next, at) in blocks {
                if end - start < size {
                    newest = newest.max(at);
                }
                end = heap.block(next).end();
            }
            let run = (newest, end - start, start);
            if run.1 >= size && best.is_none_or(|best| run < best) {
                best = Some(run);
            }
            Ok(())
        })?;
    }
    Ok(best.map(|(_, whole, start)| Span::new(start, whole.min(most_of_a_range(size)))))
}

/// Of the places in views with room for the request, returns the one for which the request waits for the oldest event;
/// of equals, the one in the smallest view. `None` if there is none.
fn window(context: &StrategyContext<'_>, request: &Request, until: u64) -> Result<Option<Window>> {
    let heap = context.heap();
    let Request { size, pool, .. } = *request;
    let age = |id: BlockId| {
        if heap.is_open(id, pool) { Some(0) } else { context.recorded_at(pool, id).filter(|at| *at <= until) }
    };
    let mut best: Option<(u64, Window)> = None;
    for view in heap.views().of_size(size..=u64::MAX).take(MAX_VIEWS) {
        let Some(window) = heap.window(view, size, |id| age(id).is_some()) else { continue };
        let spans = heap.spans_of(window, size)?;
        let newest = spans.iter().flat_map(|span| heap.blocks_over(*span)).filter_map(age).max().unwrap_or(0);
        if best.is_none_or(|(best, _)| newest < best) {
            best = Some((newest, window));
        }
    }
    Ok(best.map(|(_, window)| window))
}
