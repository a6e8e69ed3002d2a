//! Which calls a stream capture forbids.
//!
//! Owns: the captures that are on and their rules. It records no graph: captured work is never run.

use std::thread::{self, ThreadId};

use super::{Answer, refuse};
use crate::driver::{Status, StreamId};

/// CUDA's answer to beginning a capture of a stream that is captured, or ending one of a stream that is not.
const ILLEGAL_STATE: Status = Status(401);
/// CUDA's answer to ending a capture that is not relaxed from a thread that did not begin it.
const STREAM_CAPTURE_WRONG_THREAD: Status = Status(908);

/// Which calls of which threads a capture forbids (`CUstreamCaptureMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureMode {
    /// Unsafe calls of any thread.
    Global,
    /// Unsafe calls of the thread that began the capture.
    ThreadLocal,
    /// None.
    Relaxed,
}

#[derive(Debug)]
struct Capture {
    stream: StreamId,
    mode: CaptureMode,
    thread: ThreadId,
    invalid: bool,
}

#[derive(Debug, Default)]
pub(super) struct Captures(Vec<Capture>);

impl Captures {
    pub(super) fn begin(&mut self, stream: StreamId, mode: CaptureMode) -> Answer<()> {
        if self.is_capturing(stream) {
            return Err(refuse(ILLEGAL_STATE, format!("stream {stream} is being captured already")));
        }
        self.0.push(Capture { stream, mode, thread: thread::current().id(), invalid: false });
        Ok(())
    }

    pub(super) fn end(&mut self, stream: StreamId) -> Answer<()> {
        let Some(at) = self.0.iter().position(|capture| capture.stream == stream) else {
            return Err(refuse(ILLEGAL_STATE, format!("stream {stream} is not being captured")));
        };
        let ended_elsewhere =
            |capture: &Capture| capture.mode != CaptureMode::Relaxed && capture.thread != thread::current().id();
        if self.0.get(at).is_some_and(ended_elsewhere) {
            let detail = format!("the capture of stream {stream} was begun by another thread");
            return Err(refuse(STREAM_CAPTURE_WRONG_THREAD, detail));
        }
        if self.0.swap_remove(at).invalid {
            let detail = format!("a call that was refused has invalidated the capture of stream {stream}");
            return Err(refuse(Status::STREAM_CAPTURE_INVALIDATED, detail));
        }
        Ok(())
    }

    pub(super) fn is_capturing(&self, stream: StreamId) -> bool {
        self.0.iter().any(|capture| capture.stream == stream)
    }

    /// Refuses a call that the driver holds to be unsafe in a capture, and invalidates the captures that forbid it.
    pub(super) fn refuse_unsafe(&mut self) -> Answer<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let thread = thread::current().id();
        self.invalidate(|capture| match capture.mode {
            CaptureMode::Global => true,
            CaptureMode::ThreadLocal => capture.thread == thread,
            CaptureMode::Relaxed => false,
        })
    }

    /// Refuses a call that waits for a stream which is being captured: its work never runs.
    pub(super) fn refuse_captured(&mut self, stream: StreamId) -> Answer<()> {
        self.invalidate(|capture| capture.stream == stream)
    }

    fn invalidate(&mut self, forbids: impl Fn(&Capture) -> bool) -> Answer<()> {
        let mut refused = None;
        for capture in self.0.iter_mut().filter(|capture| forbids(capture)) {
            capture.invalid = true;
            refused = Some(capture.stream);
        }
        match refused {
            Some(stream) => Err(refuse(
                Status::STREAM_CAPTURE_UNSUPPORTED,
                format!("stream {stream} is being captured; its capture is invalid now"),
            )),
            None => Ok(()),
        }
    }
}
