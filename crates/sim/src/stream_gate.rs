//! The calls of a simulated GPU's gate for streams.
//!
//! Owns: the rule that decides whether the gate closes, and the cost of closing the gate.

use super::gpu::SimGpu;
use crate::bookkeeping::Range;
use seamalloc_driver::{Call, DriverResult, GateCopy, StreamGate, StreamId};

/// The most streams that the gate can hold, as on an H200.
const MOST_STREAMS: usize = 110;
/// The time for closing the gate, and the time that each held stream adds, measured on an H200
/// (docs/measurements/2026-11-28-gate).
const CLOSE_NS: u64 = 20_000;
const STREAM_NS: u64 = 3_000;

impl StreamGate for SimGpu {
    fn close_gate(&self, streams: &[StreamId], copies: &[GateCopy], patience_ns: u64) -> DriverResult<bool> {
        let held = || streams.iter().copied().filter(|stream| *stream != StreamId::DEFAULT).chain([StreamId::DEFAULT]);
        let size = copies.iter().map(|copy| copy.size).sum();
        self.charged(Call::CloseGate, size, |state| {
            let calls = CLOSE_NS + STREAM_NS * held().count() as u64;
            for stream in held() {
                state.timeline.check_stream(stream)?;
            }
            if held().count() > MOST_STREAMS || held().any(|stream| state.captures.is_capturing(stream)) {
                return Ok((false, 0));
            }
            let latest = state.timeline.now().saturating_add(patience_ns);
            if held().any(|stream| state.timeline.done_at(stream).is_none_or(|done| done > latest)) {
                state.timeline.advance(patience_ns);
                return Ok((false, calls));
            }
            held().for_each(|stream| state.timeline.wait_for_stream(stream));
            for copy in copies {
                let [from, to] = [copy.from, copy.to].map(|address| Range { address, size: copy.size });
                state.memory.check_copy(from, to)?;
                state.contents.copy(from, to, &state.memory);
            }
            state.gate.set_closed(true);
            let copying = if size > 0 { self.config.profile.copy(size, false) } else { 0 };
            Ok((true, calls + copying))
        })
    }

    fn open_gate(&self) {
        self.state.lock().gate.set_closed(false);
        self.opened.notify_all();
    }
}
