//! The gate for streams of a host device.
//!
//! Owns: the calls of [`StreamGate`]. Other threads can give held streams work while the gate is closed, as on a real
//! GPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::HostDriver;
use super::lane::Mark;
use super::streams::HostHold;
use super::work::copy_words;
use crate::bookkeeping::Range;
use seamalloc_driver::{Call, DriverResult, GateCopy, StreamGate, StreamId};

impl StreamGate for HostDriver {
    fn close_gate(&self, streams: &[StreamId], copies: &[GateCopy], patience_ns: u64) -> DriverResult<bool> {
        let mut closed = self.gate.lock();
        self.call(Call::CloseGate, |shared| {
            if !closed.is_empty() {
                return Ok(false);
            }
            let held = || streams.iter().filter(|stream| **stream != StreamId::DEFAULT).chain([&StreamId::DEFAULT]);
            if held().any(|stream| shared.state.read().captures.is_capturing(*stream)) {
                return Ok(false);
            }
            let given =
                shared.with_streams(|streams| held().map(|stream| streams.hold_at_gate(*stream)).collect::<Vec<_>>());
            let (mut holds, mut marks) = (Vec::new(), Vec::new());
            let mut refused = None;
            for answer in given {
                match answer {
                    Ok((hold, mark)) => {
                        holds.push(hold);
                        marks.push(mark);
                    }
                    Err(refusal) => refused = Some(refusal),
                }
            }
            let mut done = Ok(refused.is_none() && self.pass_in_time(&marks, Duration::from_nanos(patience_ns)));
            if matches!(done, Ok(true)) {
                let copy = |copy: &GateCopy| {
                    copy_words(&shared.state.read().memory, Range { address: copy.from, size: copy.size }, copy.to)
                };
                done = copies.iter().try_for_each(copy).map(|()| true);
            }
            if let (Ok(true), None) = (&done, &refused) {
                *closed = holds;
                return Ok(true);
            }
            self.let_go(holds);
            refused.map_or(done, Err)
        })
    }

    fn open_gate(&self) {
        let holds = std::mem::take(&mut *self.gate.lock());
        self.let_go(holds);
    }
}

impl HostDriver {
    /// Waits for at most `patience` until the streams have reached all marks, so that the work before the marks is
    /// done. Returns whether they have.
    fn pass_in_time(&self, marks: &[Arc<Mark>], patience: Duration) -> bool {
        let latest = Instant::now().checked_add(patience);
        let mut streams = self.shared.streams.lock();
        while marks.iter().any(|mark| !mark.has_passed()) {
            let left = latest.map_or(patience, |latest| latest.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            self.shared.done.wait_for(&mut streams, left);
        }
        true
    }

    fn let_go(&self, holds: Vec<HostHold>) {
        self.shared.with_streams(|streams| {
            for hold in holds {
                streams.finish_hold(hold);
            }
        });
    }
}
