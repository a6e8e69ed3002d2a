//! The next part of an allocation that grows in place.
//!
//! Owns: the choice of the part's memory: chunks that are still mapped after the last part, then free chunks from
//! anywhere, and new memory for the missing bytes.

use super::whole::whole_chunks;
use super::{Joined, Stitch};
use crate::backing::{Miss, MissResult, StrategyContext, map_part, settled_tail};
use crate::heap::Request;

impl Stitch {
    /// Extends a view by whole chunks that are free.
    pub(super) fn extend(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> MissResult<Joined> {
        let tail = settled_tail(context, request)?;
        let missing = request.size.saturating_sub(tail.bytes);
        let room =
            context.heap().views().get(request.extends).map_or(0, |view| view.addresses.saturating_sub(view.size));
        let chunks = match whole_chunks(context.heap(), request, missing, room, &tail.kept)? {
            Ok(chunks) => chunks,
            Err(missing) => return Ok(Joined::Missing(missing)),
        };
        map_part(context, request, &tail, &chunks).map(Joined::Block).inspect_err(|miss| {
            if let Miss::OutOfMemory { refused } = miss {
                self.refused = *refused;
            }
        })
    }
}
