//! The rules of stream captures.
//!
//! Owns: the captures under way and their rules, as measured on an H200 (driver 580.159). No graph is recorded, since
//! captured work is never run. The table shows, for each mode of a capture, whether the driver allows a call while the
//! capture is under way.
//!
//! | call | global | thread-local | relaxed |
//! |---|---|---|---|
//! | virtual-memory calls, memory info, event create and destroy | yes | yes | yes |
//! | malloc, free, event query and synchronize, synchronizing a stream | no | in other threads | yes |
//! | synchronizing the captured stream, asking for its number | no | no | no |
//! | in the captured stream, waiting for an event recorded outside | no | no | no |
//! | query or synchronize an event recorded in the captured stream | no | no | no |
//! | synchronizing the device | no | no | no |
//!
//! Other threads are threads that did not begin the capture. A refused call invalidates the capture. A thread can
//! loosen these rules for itself (`exchange_mode`). A thread in thread-local mode is bound only by captures that it
//! began, and a thread in relaxed mode by none. The last four rows hold in every mode of the calling thread.

use std::thread::{self, ThreadId};

use rustc_hash::FxHashMap;

use super::refusal::{Answer, Refusal, refuse};
use seamalloc_driver::{CaptureMode, Status, StreamId};

/// The status if a capture is begun of a stream that is captured already, or ended without a begin.
pub(crate) const ILLEGAL_STATE: Status = Status(401);
/// The status if a captured stream waits for work outside of the capture.
pub(crate) const STREAM_CAPTURE_ISOLATION: Status = Status(905);
/// The status of a query whose event marks a place in a graph.
pub(crate) const CAPTURED_EVENT: Status = Status(907);
/// The status if a capture that is not relaxed is ended by a thread that did not begin it.
pub(crate) const STREAM_CAPTURE_WRONG_THREAD: Status = Status(908);

#[derive(Debug)]
struct Capture {
    /// The stream with which the capture was begun, then the streams that joined by waiting for an event of the
    /// capture.
    streams: Vec<StreamId>,
    mode: CaptureMode,
    thread: ThreadId,
    invalid: bool,
}

impl Capture {
    /// Returns whether the capture forbids unsafe calls (the second row of this file's table) to a thread that is in
    /// this mode.
    fn forbids_unsafe(&self, thread: ThreadId, mode: CaptureMode) -> bool {
        let own = self.thread == thread;
        match (mode, self.mode) {
            (CaptureMode::Relaxed, _) | (_, CaptureMode::Relaxed) => false,
            (CaptureMode::Global, CaptureMode::Global) => true,
            _ => own,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Captures {
    on: Vec<Capture>,
    /// The modes of threads that are not in the initial mode.
    modes: FxHashMap<ThreadId, CaptureMode>,
}

impl Captures {
    pub(crate) fn begin(&mut self, stream: StreamId, mode: CaptureMode) -> Answer<()> {
        if stream == StreamId::DEFAULT {
            let detail = "the default stream cannot be captured".to_owned();
            return Err(refuse(Status::STREAM_CAPTURE_UNSUPPORTED, detail));
        }
        if self.is_capturing(stream) {
            return Err(refuse(ILLEGAL_STATE, format!("stream {stream} is being captured already")));
        }
        self.on.push(Capture { streams: vec![stream], mode, thread: thread::current().id(), invalid: false });
        Ok(())
    }

    pub(crate) fn end(&mut self, stream: StreamId) -> Answer<()> {
        let Some(at) = self.on.iter().position(|capture| capture.streams.first() == Some(&stream)) else {
            return Err(refuse(ILLEGAL_STATE, format!("no capture of stream {stream} was begun")));
        };
        let capture = self.on.swap_remove(at);
        if capture.mode != CaptureMode::Relaxed && capture.thread != thread::current().id() {
            let detail = format!("the capture of stream {stream} was begun by another thread");
            return Err(refuse(STREAM_CAPTURE_WRONG_THREAD, detail));
        }
        if capture.invalid {
            return Err(invalidated(stream));
        }
        Ok(())
    }

    /// Returns whether the stream is being captured, even if the capture is invalid already.
    pub(crate) fn is_capturing(&self, stream: StreamId) -> bool {
        self.position(stream).is_some()
    }

    /// Returns the stream with which the capture that includes this stream was begun; `None` if the stream is not
    /// captured.
    pub(crate) fn origin(&self, stream: StreamId) -> Option<StreamId> {
        self.on.get(self.position(stream)?)?.streams.first().copied()
    }

    /// Refuses a call that the driver considers unsafe during a capture.
    pub(crate) fn refuse_unsafe(&mut self) -> Answer<()> {
        if self.on.is_empty() {
            return Ok(());
        }
        let (thread, mode) = self.caller();
        self.invalidate(|capture| capture.forbids_unsafe(thread, mode))
    }

    /// Refuses a call about a stream that is being captured, in any mode.
    pub(crate) fn refuse_of_captured(&mut self, stream: StreamId) -> Answer<()> {
        self.invalidate(|capture| capture.streams.contains(&stream))
    }

    /// Refuses a wait of the CPU for a stream. The call is unsafe, and would never end if the stream is being captured.
    pub(crate) fn refuse_synchronize(&mut self, stream: StreamId) -> Answer<()> {
        if self.on.is_empty() {
            return Ok(());
        }
        let (thread, mode) = self.caller();
        self.invalidate(|capture| capture.forbids_unsafe(thread, mode) || capture.streams.contains(&stream))
    }

    /// Refuses a wait of the CPU for the device, which would include captured streams.
    pub(crate) fn refuse_synchronize_all(&mut self) -> Answer<()> {
        self.invalidate(|_| true)
    }

    /// Sets the mode of the calling thread. Returns the previous mode.
    pub(crate) fn exchange_mode(&mut self, mode: CaptureMode) -> CaptureMode {
        let thread = thread::current().id();
        let before = match mode {
            CaptureMode::Global => self.modes.remove(&thread),
            other => self.modes.insert(thread, other),
        };
        before.unwrap_or_default()
    }

    fn caller(&self) -> (ThreadId, CaptureMode) {
        let thread = thread::current().id();
        (thread, self.modes.get(&thread).copied().unwrap_or_default())
    }

    /// Returns whether work given to `stream` runs; `false` during a capture.
    pub(crate) fn check_work(&self, stream: StreamId) -> Answer<bool> {
        match self.position(stream).and_then(|at| self.on.get(at)) {
            None => Ok(true),
            Some(capture) if capture.invalid => Err(invalidated(stream)),
            Some(_) => Ok(false),
        }
    }

    /// Refuses a query of an event that was recorded in a capture, in the stream `captured`.
    pub(crate) fn check_event(&mut self, captured: Option<StreamId>) -> Answer<()> {
        let Some(stream) = captured else { return Ok(()) };
        let at = self.position(stream);
        if let Some(capture) = at.and_then(|at| self.on.get_mut(at)) {
            capture.invalid = true;
        }
        Err(refuse(CAPTURED_EVENT, format!("the event was recorded in a capture of stream {stream}")))
    }

    /// Returns whether the wait of `stream` for a recorded event takes effect on the stream. `captured` is the stream
    /// in whose capture the event was recorded. A wait for such an event makes `stream` join the capture.
    pub(crate) fn check_wait(&mut self, stream: StreamId, captured: Option<StreamId>) -> Answer<bool> {
        let (own, other) = (self.position(stream), captured.and_then(|stream| self.position(stream)));
        match (own, captured) {
            (None, None) => Ok(true),
            (None, Some(origin)) => match other.and_then(|at| self.on.get_mut(at)) {
                Some(capture) => {
                    capture.streams.push(stream);
                    Ok(false)
                }
                None => Err(refuse(CAPTURED_EVENT, format!("the capture of stream {origin} is over"))),
            },
            (Some(_), Some(_)) if own == other => self.check_work(stream),
            (Some(at), _) => {
                self.check_work(stream)?;
                if let Some(capture) = self.on.get_mut(at) {
                    capture.invalid = true;
                }
                let detail = format!("the capture of stream {stream} cannot wait for what is outside of it");
                Err(refuse(STREAM_CAPTURE_ISOLATION, detail))
            }
        }
    }

    fn position(&self, stream: StreamId) -> Option<usize> {
        self.on.iter().position(|capture| capture.streams.contains(&stream))
    }

    fn invalidate(&mut self, forbids: impl Fn(&Capture) -> bool) -> Answer<()> {
        let mut refused = false;
        for capture in self.on.iter_mut().filter(|capture| forbids(capture)) {
            capture.invalid = true;
            refused = true;
        }
        if refused {
            let detail = "a stream is being captured; its capture is invalid now".to_owned();
            return Err(refuse(Status::STREAM_CAPTURE_UNSUPPORTED, detail));
        }
        Ok(())
    }
}

fn invalidated(stream: StreamId) -> Refusal {
    let detail = format!("a call that was refused has invalidated the capture of stream {stream}");
    refuse(Status::STREAM_CAPTURE_INVALIDATED, detail)
}
