//! A recorded job with the request that PyTorch's allocator refused.
//!
//! Owns: the place of the request's stack among those of the blocks.

use super::origins::Origins;
use crate::refused::RefusedRequest;
use crate::trace::Trace;

/// Makes the request that was refused while a job was recorded a part of the trace, as if it had been served where it was
/// refused and its block freed at once; `origins` has its stack then. Does nothing where there is none, or where that was done.
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

#[cfg(test)]
mod tests {
    use super::super::origins::Refusal;
    use super::*;
    use crate::trace::TraceEvent;
    use seamalloc::driver::StreamId;

    #[test]
    fn a_request_is_made_once_and_has_its_stack() {
        let refused = RefusedRequest { event: 3, size: 50, stream: StreamId(0), is_made: false };
        let alloc = |size| TraceEvent::Alloc { size, stream: 0 };
        let (requested, completed) = (TraceEvent::FreeRequested { block: 0 }, TraceEvent::FreeCompleted { block: 0 });
        let mut trace = Trace { streams: vec![StreamId(0)], ..Trace::default() };
        trace.events = [vec![alloc(5)], vec![requested, completed], vec![alloc(7)]].concat();
        trace.meta.insert(RefusedRequest::KEY.to_owned(), refused.to_json());
        let refusal = |before_block, size, stack| Refusal { before_block, size, device_free: 0, stack };
        let refusals = vec![refusal(1, 60, 8), refusal(1, 50, 9), refusal(2, 1, 7)];
        let mut origins = Origins { of_block: vec![1, 2], refusals, ..Origins::default() };
        assert_eq!(RefusedRequest::job(&trace).events.len(), 7);
        for _ in 0..2 {
            make_refused(&mut trace, Some(&mut origins));
            assert_eq!((origins.of_block.as_slice(), origins.refusals[2].before_block), (&[1, 9, 2][..], 3));
            assert_eq!((RefusedRequest::job(&trace).as_ref(), trace.events.len()), (&trace, 7));
        }
        assert_eq!(RefusedRequest::of(&trace), Some(RefusedRequest { is_made: true, ..refused }));
    }
}
