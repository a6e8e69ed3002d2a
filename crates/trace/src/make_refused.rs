//! Adds to a trace the request that was refused while the job was recorded, with the request's stack.

use crate::pytorch::Origins;
use crate::refused::RefusedRequest;
use crate::trace::Trace;

/// Adds to `trace` the request that was refused while the job was recorded. The trace then shows the request as served
/// at that moment, and its block as freed by the next event. Adds the request's stack to `origins`. Does nothing if no
/// request was refused, or if the request was added already.
pub fn make_refused(trace: &mut Trace, origins: Option<&mut Origins>) {
    let Some(refused) = RefusedRequest::of(trace).filter(|refused| !refused.is_made) else { return };
    *trace = refused.made_in(trace);
    if let Some(origins) = origins {
        let new = refused.block_of(trace);
        let refusals = origins.refusals.iter().filter(|refusal| refusal.before_block as usize == new);
        let stack = refusals.filter(|refusal| refusal.size == refused.size).map(|refusal| refusal.stack).next();
        origins.of_block.insert(new.min(origins.of_block.len()), stack.unwrap_or(0));
        for later in origins.refusals.iter_mut().filter(|refusal| refusal.before_block as usize > new) {
            later.before_block = later.before_block.saturating_add(1);
        }
    }
}
