//! The request that was refused while a job was recorded.
//!
//! Owns: how a trace's description stores the request, and the making of a trace with the request added.
//! `make_refused.rs` adds the request to a given trace.

use crate::trace::{MAX_BLOCK_SIZE, Trace, TraceEvent};
use seamalloc::driver::StreamId;
use serde_json::{Value, json};
use std::borrow::Cow;

/// A request that was refused while a job was recorded. If several were refused, the one for which the most memory
/// would have been live is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefusedRequest {
    /// The number of the trace's events before the request.
    pub(crate) event: usize,
    /// The requested bytes.
    pub(crate) size: u64,
    /// The stream, as the driver's handle.
    pub(crate) stream: StreamId,
    /// Whether [`make_refused`](crate::make_refused) has added the request to the trace's events.
    pub(crate) is_made: bool,
}

impl RefusedRequest {
    /// The key of the refused request in a trace's description.
    pub(crate) const KEY: &str = "refused_request";

    /// Returns the value under [`Self::KEY`].
    pub(crate) fn to_json(self) -> Value {
        json!({"event": self.event, "size": self.size, "stream": self.stream.0, "made": self.is_made})
    }

    /// Returns the refused request of a trace; `None` if there was none, or if its description is invalid.
    pub(crate) fn of(trace: &Trace) -> Option<Self> {
        let refused = trace.meta.get(Self::KEY)?;
        let number = |key: &str| refused.get(key)?.as_u64();
        let event = usize::try_from(number("event")?).ok().filter(|event| *event <= trace.events.len())?;
        let size = number("size").filter(|size| (1..=MAX_BLOCK_SIZE).contains(size))?;
        let is_made = refused.get("made").and_then(Value::as_bool).unwrap_or(false);
        Some(Self { event, size, stream: StreamId(number("stream")?), is_made })
    }

    /// Returns the job with the refused request. Returns the trace itself if no request was refused, or if the trace
    /// already contains the request.
    pub(crate) fn job(trace: &Trace) -> Cow<'_, Trace> {
        match Self::of(trace) {
            Some(refused) if !refused.is_made => Cow::Owned(refused.made_in(trace)),
            _ => Cow::Borrowed(trace),
        }
    }

    /// Returns the number of the request's block in a trace that contains the request.
    pub(crate) fn block_of(self, trace: &Trace) -> usize {
        let before = trace.events.iter().take(self.event);
        before.filter(|event| matches!(event, TraceEvent::Alloc { .. })).count()
    }

    /// Returns the trace with the request, as if it had been served and its block freed by the next event.
    pub(crate) fn made_in(self, trace: &Trace) -> Trace {
        let (before, after) = trace.events.split_at(self.event.min(trace.events.len()));
        let new = u32::try_from(self.block_of(trace)).unwrap_or(u32::MAX);
        let later = |block: u32| if block >= new { block.saturating_add(1) } else { block };
        let mut streams = trace.streams.clone();
        let stream = streams.iter().position(|stream| *stream == self.stream).unwrap_or_else(|| {
            streams.push(self.stream);
            streams.len() - 1
        });
        let request = [
            TraceEvent::Alloc { size: self.size, stream: u32::try_from(stream).unwrap_or(0) },
            TraceEvent::FreeRequested { block: new },
            TraceEvent::FreeCompleted { block: new },
        ];
        let after = after.iter().map(|event| match *event {
            alloc @ TraceEvent::Alloc { .. } => alloc,
            TraceEvent::FreeRequested { block } => TraceEvent::FreeRequested { block: later(block) },
            TraceEvent::FreeCompleted { block } => TraceEvent::FreeCompleted { block: later(block) },
        });
        let events = before.iter().copied().chain(request).chain(after).collect();
        let mut meta = trace.meta.clone();
        meta.insert(Self::KEY.to_owned(), Self { is_made: true, ..self }.to_json());
        Trace { name: trace.name.clone(), meta, streams, events }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::check;
    use crate::make_refused;
    use crate::pytorch::{Origins, Refusal};

    fn alloc(size: u64) -> TraceEvent {
        TraceEvent::Alloc { size, stream: 0 }
    }

    fn freed(block: u32) -> [TraceEvent; 2] {
        [TraceEvent::FreeRequested { block }, TraceEvent::FreeCompleted { block }]
    }

    #[test]
    fn the_request_is_made_where_it_was_refused() {
        let events = [vec![alloc(5), alloc(7)], freed(0).into(), vec![alloc(9)], freed(2).into(), freed(1).into()];
        let trace = Trace { streams: vec![StreamId(3)], events: events.concat(), ..Trace::default() };
        let refused = RefusedRequest { event: 4, size: 50, stream: StreamId(8), is_made: false };
        let made = refused.made_in(&trace);
        check(&made).unwrap();
        assert_eq!(made.streams, [StreamId(3), StreamId(8)]);
        assert_eq!(made.events[4..7], [vec![TraceEvent::Alloc { size: 50, stream: 1 }], freed(2).into()].concat());
        assert_eq!(made.events[7..], [vec![alloc(9)], freed(3).into(), freed(1).into()].concat());
        assert_eq!(made.summary().peak_live, 57);
    }

    #[test]
    fn a_request_is_made_once_and_has_its_stack() {
        let refused = RefusedRequest { event: 3, size: 50, stream: StreamId(0), is_made: false };
        let mut trace = Trace { streams: vec![StreamId(0)], ..Trace::default() };
        trace.events = [vec![alloc(5)], freed(0).into(), vec![alloc(7)]].concat();
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

    #[test]
    fn a_description_without_sense_is_none() {
        let mut trace = Trace { events: vec![alloc(5)], ..Trace::default() };
        assert_eq!(RefusedRequest::of(&trace), None);
        let refused = RefusedRequest { event: 1, size: 9, stream: StreamId(0), is_made: false };
        trace.meta.insert(RefusedRequest::KEY.to_owned(), refused.to_json());
        assert_eq!(RefusedRequest::of(&trace), Some(refused));
        for wrong in
            [json!({"event": 2, "size": 9, "stream": 0}), json!({"event": 1, "size": 0, "stream": 0}), json!(7)]
        {
            trace.meta.insert(RefusedRequest::KEY.to_owned(), wrong);
            assert_eq!(RefusedRequest::of(&trace), None);
        }
    }
}
