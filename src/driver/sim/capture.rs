//! What a stream capture forbids.
//!
//! Owns: the captures that are on and their rules, as measured on an H200 (driver 580.159). It records no graph:
//! captured work is never run.
//!
//! | call | global | thread-local | relaxed |
//! |---|---|---|---|
//! | virtual-memory calls, memory info, event create and destroy | yes | yes | yes |
//! | malloc, free, event query and synchronize, synchronizing a stream | no | not in the thread that began it | yes |
//! | synchronizing the captured stream | no | no | no |
//! | in the captured stream, waiting for an event recorded outside | no | no | no |
//! | query or synchronize an event recorded in the captured stream | no | no | no |
//! | synchronizing the device | no | no | no |
//!
//! A call that is refused invalidates the capture. A thread may bind itself less than that (`exchange_mode`): in
//! thread-local mode by captures that it began itself, in relaxed mode by none. The last four rows stay.

use std::thread::{self, ThreadId};

use rustc_hash::FxHashMap;

use super::{Answer, refuse};
use crate::driver::{CaptureMode, Status, StreamId};

/// Beginning a capture of a stream that is captured, or ending one that was not begun.
const ILLEGAL_STATE: Status = Status(401);
/// Waiting inside of a capture for what is outside.
const STREAM_CAPTURE_ISOLATION: Status = Status(905);
/// Asking for the time of an event that stands for a place in a graph.
const CAPTURED_EVENT: Status = Status(907);
/// Ending a capture that is not relaxed from a thread that did not begin it.
const STREAM_CAPTURE_WRONG_THREAD: Status = Status(908);

#[derive(Debug)]
struct Capture {
    /// The stream it was begun of, then those that joined it by waiting for an event of the capture.
    streams: Vec<StreamId>,
    mode: CaptureMode,
    thread: ThreadId,
    invalid: bool,
}

impl Capture {
    /// Whether a thread in this mode may make no unsafe call.
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
pub(super) struct Captures {
    on: Vec<Capture>,
    /// Threads in another mode than the one that they begin with.
    modes: FxHashMap<ThreadId, CaptureMode>,
}

impl Captures {
    pub(super) fn begin(&mut self, stream: StreamId, mode: CaptureMode) -> Answer<()> {
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

    pub(super) fn end(&mut self, stream: StreamId) -> Answer<()> {
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

    /// Whether the stream is being captured, also where the capture is invalid already.
    pub(super) fn is_capturing(&self, stream: StreamId) -> bool {
        self.position(stream).is_some()
    }

    /// Refuses a call that the driver holds to be unsafe in a capture.
    pub(super) fn refuse_unsafe(&mut self) -> Answer<()> {
        if self.on.is_empty() {
            return Ok(());
        }
        let (thread, mode) = self.caller();
        self.invalidate(|capture| capture.forbids_unsafe(thread, mode))
    }

    /// Refuses to let the CPU wait for a stream: unsafe as such, and without end where the stream is being captured.
    pub(super) fn refuse_synchronize(&mut self, stream: StreamId) -> Answer<()> {
        if self.on.is_empty() {
            return Ok(());
        }
        let (thread, mode) = self.caller();
        self.invalidate(|capture| capture.forbids_unsafe(thread, mode) || capture.streams.contains(&stream))
    }

    /// Refuses to let the CPU wait for the device: that would be for captured streams too.
    pub(super) fn refuse_synchronize_all(&mut self) -> Answer<()> {
        self.invalidate(|_| true)
    }

    /// The calling thread is in this mode from now on; the one before.
    pub(super) fn exchange_mode(&mut self, mode: CaptureMode) -> CaptureMode {
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

    /// Whether work given to `stream` runs: in a capture it does not.
    pub(super) fn check_work(&self, stream: StreamId) -> Answer<bool> {
        match self.position(stream).and_then(|at| self.on.get(at)) {
            None => Ok(true),
            Some(capture) if capture.invalid => Err(invalidated(stream)),
            Some(_) => Ok(false),
        }
    }

    /// Refuses to ask for the time of an event that was recorded in a capture, of the stream `captured`.
    pub(super) fn check_event(&mut self, captured: Option<StreamId>) -> Answer<()> {
        let Some(stream) = captured else { return Ok(()) };
        let at = self.position(stream);
        if let Some(capture) = at.and_then(|at| self.on.get_mut(at)) {
            capture.invalid = true;
        }
        Err(refuse(CAPTURED_EVENT, format!("the event was recorded in a capture of stream {stream}")))
    }

    /// Whether the wait of `stream` for a recorded event is one in time. `captured` is the stream in whose capture the
    /// event was recorded; waiting for such an event draws a stream into the capture.
    pub(super) fn check_wait(&mut self, stream: StreamId, captured: Option<StreamId>) -> Answer<bool> {
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

fn invalidated(stream: StreamId) -> super::Refusal {
    let detail = format!("a call that was refused has invalidated the capture of stream {stream}");
    refuse(Status::STREAM_CAPTURE_INVALIDATED, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{Range, SimConfig, SimGpu};
    use crate::driver::{Driver, DriverResult, EventId};

    const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
    const S: StreamId = StreamId(1);
    const T: StreamId = StreamId(2);
    const CHUNK: u64 = 2 << 20;

    fn status<A>(result: &DriverResult<A>) -> Status {
        result.as_ref().err().map_or(Status::SUCCESS, |error| error.status)
    }

    /// What `call` and the end of the capture answer, with an event recorded outside and an allocation at hand.
    fn captured(mode: CaptureMode, call: impl Fn(&SimGpu, EventId, u64) -> Status) -> (Status, Status) {
        let gpu = SimGpu::new(SimConfig::default()).unwrap();
        let event = gpu.event_create().unwrap();
        gpu.event_record(event, T).unwrap();
        let memory = gpu.malloc(CHUNK).unwrap();
        gpu.begin_capture(S, mode).unwrap();
        assert!(gpu.is_capturing(S).unwrap() && !gpu.is_capturing(T).unwrap());
        let answer = call(&gpu, event, memory);
        let end = gpu.end_capture(S);
        assert!(!gpu.is_capturing(S).unwrap(), "the capture is over");
        assert!(gpu.malloc(CHUNK).is_ok(), "and forbids nothing any more");
        (answer, status(&end))
    }

    const LEGAL: (Status, Status) = (Status::SUCCESS, Status::SUCCESS);
    const REFUSED: (Status, Status) = (Status::STREAM_CAPTURE_UNSUPPORTED, Status::STREAM_CAPTURE_INVALIDATED);

    #[test]
    fn virtual_memory_calls_are_legal_in_every_mode() {
        for mode in MODES {
            let answers = captured(mode, |gpu, _, _| {
                let address = gpu.reserve(2 * CHUNK, 0).unwrap();
                let handle = gpu.create(CHUNK).unwrap();
                gpu.map(address, CHUNK, 0, handle).unwrap();
                gpu.set_access(address, CHUNK).unwrap();
                gpu.launch(S, &[Range { address, size: CHUNK }], 1_000_000).unwrap();
                gpu.unmap(address, CHUNK).unwrap();
                gpu.release(handle).unwrap();
                gpu.address_free(address, 2 * CHUNK).unwrap();
                gpu.memory_info().unwrap();
                let event = gpu.event_create().unwrap();
                gpu.event_record(event, T).unwrap();
                assert!(gpu.faults().is_empty(), "captured work does not run");
                status(&gpu.event_destroy(event))
            });
            assert_eq!(answers, LEGAL, "{mode:?}");
        }
    }

    #[test]
    fn unsafe_calls_are_refused_and_invalidate() {
        for mode in MODES {
            let expected = if mode == CaptureMode::Relaxed { LEGAL } else { REFUSED };
            assert_eq!(captured(mode, |gpu, _, _| status(&gpu.malloc(CHUNK))), expected, "{mode:?}");
            assert_eq!(captured(mode, |gpu, _, memory| status(&gpu.free(memory))), expected, "{mode:?}");
            assert_eq!(captured(mode, |gpu, event, _| status(&gpu.event_query(event))), expected, "{mode:?}");
            assert_eq!(captured(mode, |gpu, event, _| status(&gpu.event_synchronize(event))), expected, "{mode:?}");
            assert_eq!(captured(mode, |gpu, _, _| status(&gpu.stream_synchronize(T))), expected, "{mode:?}");
            assert_eq!(captured(mode, |gpu, _, _| status(&gpu.stream_synchronize(S))), REFUSED, "{mode:?}");
        }
    }

    #[test]
    fn a_refused_call_changes_nothing_and_is_refused_again() {
        let answers = captured(CaptureMode::Global, |gpu, _, memory| {
            let free = gpu.memory_info().unwrap().free;
            assert_eq!(status(&gpu.free(memory)), Status::STREAM_CAPTURE_UNSUPPORTED);
            assert_eq!(gpu.memory_info().unwrap().free, free);
            status(&gpu.free(memory))
        });
        assert_eq!(answers, REFUSED);
    }

    #[test]
    fn events_do_not_pass_the_border_of_a_capture() {
        for mode in MODES {
            let inside = captured(mode, |gpu, event, _| {
                gpu.event_record(event, S).unwrap();
                status(&gpu.event_query(event))
            });
            assert_eq!(inside, (CAPTURED_EVENT, Status::STREAM_CAPTURE_INVALIDATED), "{mode:?}");
            let outside = captured(mode, |gpu, event, _| {
                let wait = status(&gpu.stream_wait(S, event));
                assert_eq!(status(&gpu.stream_wait(S, event)), Status::STREAM_CAPTURE_INVALIDATED);
                assert_eq!(status(&gpu.event_record(event, S)), Status::STREAM_CAPTURE_INVALIDATED);
                assert_eq!(status(&gpu.launch(S, &[], 1)), Status::STREAM_CAPTURE_INVALIDATED);
                wait
            });
            assert_eq!(outside, (STREAM_CAPTURE_ISOLATION, Status::STREAM_CAPTURE_INVALIDATED), "{mode:?}");
            let never = captured(mode, |gpu, _, _| status(&gpu.stream_wait(S, gpu.event_create().unwrap())));
            assert_eq!(never, LEGAL, "{mode:?}: an event that was never recorded");
            let joined = captured(mode, |gpu, event, _| {
                gpu.event_record(event, S).unwrap();
                gpu.stream_wait(T, event).unwrap();
                assert!(gpu.is_capturing(T).unwrap());
                status(&gpu.stream_wait(S, event))
            });
            assert_eq!(joined, LEGAL, "{mode:?}");
        }
    }

    #[test]
    fn another_thread_is_bound_by_a_global_capture_only() {
        for (mode, expected) in [(MODES[0], REFUSED), (MODES[1], LEGAL), (MODES[2], LEGAL)] {
            let answers = captured(mode, |gpu, event, _| {
                std::thread::scope(|scope| {
                    let other = scope.spawn(|| (status(&gpu.malloc(CHUNK)), status(&gpu.event_query(event))));
                    let (malloc, query) = other.join().unwrap();
                    assert_eq!(malloc, query);
                    malloc
                })
            });
            assert_eq!(answers, expected, "{mode:?}");
        }
    }

    /// All 18 answers to each call are those of an H200.
    #[test]
    fn a_thread_in_another_mode_is_bound_as_it_wants() {
        for (mode, of_thread, other) in MODES
            .into_iter()
            .flat_map(|mode| MODES.map(|of_thread| (mode, of_thread)))
            .flat_map(|(mode, of_thread)| [(mode, of_thread, false), (mode, of_thread, true)])
        {
            let bound = match of_thread {
                CaptureMode::Global => mode == CaptureMode::Global || (!other && mode == CaptureMode::ThreadLocal),
                CaptureMode::ThreadLocal => !other && mode != CaptureMode::Relaxed,
                CaptureMode::Relaxed => false,
            };
            let asked = |call: &(dyn Fn(&SimGpu, EventId) -> Status + Sync)| {
                captured(mode, |gpu, event, _| {
                    let calls = || {
                        assert_eq!(gpu.exchange_capture_mode(of_thread), Ok(CaptureMode::Global));
                        let answer = call(gpu, event);
                        assert_eq!(gpu.exchange_capture_mode(CaptureMode::Global), Ok(of_thread));
                        answer
                    };
                    if other { std::thread::scope(|scope| scope.spawn(calls).join().unwrap()) } else { calls() }
                })
            };
            let expected = if bound { REFUSED } else { LEGAL };
            let case = format!("{mode:?}, {of_thread:?}, another thread: {other}");
            assert_eq!(asked(&|gpu, event| status(&gpu.event_query(event))), expected, "query: {case}");
            assert_eq!(asked(&|gpu, _| status(&gpu.malloc(CHUNK))), expected, "malloc: {case}");
            assert_eq!(asked(&|gpu, _| status(&gpu.stream_synchronize(T))), expected, "other stream: {case}");
            assert_eq!(asked(&|gpu, _| status(&gpu.stream_synchronize(S))), REFUSED, "its stream: {case}");
            assert_eq!(asked(&|gpu, _| status(&gpu.synchronize())), REFUSED, "device: {case}");
        }
    }

    #[test]
    fn captures_begin_and_end_in_pairs() {
        let gpu = SimGpu::new(SimConfig::default()).unwrap();
        assert_eq!(status(&gpu.end_capture(S)), ILLEGAL_STATE);
        let default = gpu.begin_capture(StreamId::DEFAULT, CaptureMode::Relaxed);
        assert_eq!(status(&default), Status::STREAM_CAPTURE_UNSUPPORTED);
        gpu.begin_capture(S, CaptureMode::Global).unwrap();
        assert_eq!(status(&gpu.begin_capture(S, CaptureMode::Global)), ILLEGAL_STATE);
        gpu.end_capture(S).unwrap();
        for (mode, expected) in [(MODES[1], STREAM_CAPTURE_WRONG_THREAD), (MODES[2], Status::SUCCESS)] {
            gpu.begin_capture(S, mode).unwrap();
            let end = std::thread::scope(|scope| scope.spawn(|| gpu.end_capture(S)).join().unwrap());
            assert_eq!(status(&end), expected);
            assert_eq!(status(&gpu.end_capture(S)), ILLEGAL_STATE, "it is over either way");
        }
    }

    #[test]
    fn an_event_of_a_capture_that_is_over_has_no_time() {
        let gpu = SimGpu::new(SimConfig::default()).unwrap();
        let event = gpu.event_create().unwrap();
        gpu.begin_capture(S, CaptureMode::Relaxed).unwrap();
        gpu.event_record(event, S).unwrap();
        gpu.end_capture(S).unwrap();
        assert_eq!(status(&gpu.event_query(event)), CAPTURED_EVENT);
        assert_eq!(status(&gpu.stream_wait(T, event)), CAPTURED_EVENT);
        gpu.event_record(event, T).unwrap();
        assert!(gpu.event_query(event).unwrap(), "recorded again, it is an event like any other");
    }
}
