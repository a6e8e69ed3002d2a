//! The gate for streams of a simulated GPU.
//!
//! Owns: the calls of [`StreamGate`], and what no thread may do while the gate is closed. On a real GPU a call that waits
//! for a held stream never returns. Here the thread that closed the gate is refused such a call, and every other thread
//! waits with its call until the gate opens.

use std::thread::{self, ThreadId};

use parking_lot::MutexGuard;

use super::gpu::SimGpu;
use super::state::State;
use crate::bookkeeping::{Answer, Range, refuse};
use seamalloc_driver::{Call, DriverResult, GateCopy, Status, StreamGate, StreamId};

/// The most streams that a device can hold, as on an H200.
const MOST_STREAMS: usize = 110;
/// The time for closing the gate, and for each stream: measured on an H200 (docs/measurements/2026-11-28-gate).
const CLOSE_NS: u64 = 20_000;
const STREAM_NS: u64 = 3_000;

/// A gate that may be closed.
#[derive(Debug, Default)]
pub(super) struct Gate {
    closed_by: Option<ThreadId>,
}

impl Gate {
    fn is_closed_by_another(&self) -> bool {
        self.closed_by.is_some_and(|thread| thread != thread::current().id())
    }

    /// Refuses a call of the thread that closed the gate, unless it is a call of virtual memory.
    pub(super) fn refuse(&self, call: Call) -> Answer<()> {
        let is_mapping = matches!(
            call,
            Call::Reserve
                | Call::AddressFree
                | Call::Create
                | Call::Release
                | Call::Map
                | Call::Unmap
                | Call::SetAccess
        );
        if self.closed_by.is_none() || is_mapping {
            return Ok(());
        }
        Err(refuse(Status::NOT_PERMITTED, "the call waits for streams that the gate holds, for ever".to_owned()))
    }
}

impl SimGpu {
    /// Returns the state, once no other thread has closed the gate.
    pub(super) fn past_the_gate(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while state.gate.is_closed_by_another() {
            self.opened.wait(&mut state);
        }
        state
    }
}

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
            state.gate.closed_by = Some(thread::current().id());
            let copying = if size > 0 { self.config.profile.copy(size, false) } else { 0 };
            Ok((true, calls + copying))
        })
    }

    fn open_gate(&self) {
        self.state.lock().gate.closed_by = None;
        self.opened.notify_all();
    }
}
