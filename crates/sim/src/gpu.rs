//! The simulated GPU for programs: its configuration, the work that a program gives it, and its reports.
//!
//! Owns: [`SimGpu`], and the order in which a driver call is checked, carried out, charged and counted.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::config::{SimConfig, SimConfigError};
use super::contents::Writer;
use super::state::State;
use super::streams::Hold;
use crate::bookkeeping::{Answer, Fault, GRANULARITY, Leaks, Piece, Range, new_identity, refuse};
use seamalloc_driver::{Call, CaptureMode, DeviceProperties, DriverError, DriverResult, Status, StreamId};

/// A simulated GPU. Threads can share it in an `Arc`.
///
/// ```
/// use seamalloc::driver::prelude::*;
/// use seamalloc::driver::sim::{SimConfig, SimGpu};
///
/// let gpu = SimGpu::new(SimConfig::parse("sim:h200,capacity=4MiB")?)?;
/// let handle = gpu.create(4 << 20)?;
/// assert!(gpu.create(2 << 20).is_err_and(|error| error.is_out_of_memory()));
/// gpu.release(handle)?;
/// assert!(gpu.leaks().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SimGpu {
    pub(super) config: SimConfig,
    /// The number that distinguishes this GPU's memory from that of other simulated GPUs, also of other processes.
    pub(super) identity: u64,
    pub(super) properties: DeviceProperties,
    pub(super) state: Mutex<State>,
    /// Notified when the gate for streams opens.
    pub(super) opened: Condvar,
    /// The total time in calls. The time is written under the lock, and read without the lock.
    pub(super) busy_ns: AtomicU64,
}

impl SimGpu {
    /// Makes a simulated GPU with no memory in use.
    ///
    /// # Errors
    /// [`SimConfigError::Capacity`] if the capacity has no room for a single chunk.
    pub fn new(config: SimConfig) -> Result<Self, SimConfigError> {
        config.check()?;
        let properties = DeviceProperties {
            name: config.to_string(),
            total_memory: config.capacity,
            granularity: GRANULARITY,
            recommended_granularity: GRANULARITY,
            ordinal: 0,
            identity: String::new(),
            virtual_memory: config.virtual_memory,
            memory_pools: true,
            stream_gates: config.virtual_memory,
        };
        let state = State::new(config.capacity, config.host_capacity);
        let identity = new_identity();
        Ok(Self {
            config,
            identity,
            properties,
            state: Mutex::new(state),
            opened: Condvar::new(),
            busy_ns: AtomicU64::new(0),
        })
    }

    /// Returns the configuration from which the GPU was made.
    #[must_use]
    pub fn config(&self) -> &SimConfig {
        &self.config
    }

    /// Returns the clock: nanoseconds since the start, or the unit that [`advance`](Self::advance) counts.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.state.lock().timeline.now()
    }

    /// Moves the clock forward by `ns`.
    pub fn advance(&self, ns: u64) {
        self.state.lock().timeline.advance(ns);
    }

    /// Makes each later event complete at least `ns` after it is recorded, as if the CPU ran that far ahead of the GPU.
    /// Work that a stream is given after the event is delayed too.
    pub fn set_run_ahead(&self, ns: u64) {
        self.state.lock().timeline.set_run_ahead(ns);
    }

    /// Gives `stream` a kernel that uses `ranges` for `duration_ns`, after all earlier work of the stream. The program
    /// launches the kernel, not the allocator, so the launch costs no time and is not counted. In a stream that is
    /// being captured, the kernel does not run and uses no memory.
    ///
    /// # Errors
    /// [`Status::ILLEGAL_ADDRESS`] if a byte of `ranges` has no memory, or memory without access. The [`Fault`] is
    /// recorded, and the kernel does not run. A real GPU returns this status at a later call, and its context is lost.
    /// A use of memory that the allocator has filled is recorded too, and the kernel runs.
    /// [`Status::STREAM_CAPTURE_INVALIDATED`] in an invalid capture.
    pub fn launch(&self, stream: StreamId, ranges: &[Range], duration_ns: u64) -> DriverResult<()> {
        self.run(stream, ranges, duration_ns).map(drop)
    }

    /// Launches a kernel as [`Self::launch`] does, with one range. The kernel sets every byte of the range to `value`.
    /// The written bytes are kept, and can be read, only if the allocator has filled some of that physical memory
    /// ([`Contents::fill`](seamalloc_driver::Contents::fill)).
    ///
    /// # Errors
    /// The errors of [`Self::launch`].
    pub fn launch_write(&self, stream: StreamId, range: Range, value: u8, duration_ns: u64) -> DriverResult<()> {
        if self.run(stream, &[range], duration_ns)? {
            let mut state = self.state.lock();
            let State { memory, contents, .. } = &mut *state;
            contents.fill_range(range, value, Writer::Kernel, memory);
        }
        Ok(())
    }

    /// Gives `stream` a kernel. Returns whether the kernel runs; `false` in a capture.
    fn run(&self, stream: StreamId, ranges: &[Range], duration_ns: u64) -> DriverResult<bool> {
        let mut state = self.past_the_gate();
        state.gate.refuse(Call::Launch).map_err(|refusal| refusal.into_error(Call::Launch))?;
        if !state.captures.check_work(stream).map_err(|refusal| refusal.into_error(Call::Launch))? {
            return Ok(false);
        }
        let mut illegal = None;
        for &range in ranges {
            if let Err(fault) = state.memory.check_use(range, stream) {
                state.report(fault);
                illegal.get_or_insert(fault);
            } else if let Some(range) = state.contents.marked_in(range, &state.memory) {
                state.report(Fault::MarkedUse { range, stream });
            }
        }
        if let Some(fault) = illegal {
            return Err(DriverError::new(Call::Launch, Status::ILLEGAL_ADDRESS, fault.to_string()));
        }
        state.timeline.launch(stream, ranges, duration_ns);
        Ok(true)
    }

    /// Gives `stream` work that lasts until [`finish`](Self::finish) or [`finish_hold`](Self::finish_hold), or until
    /// the CPU waits for the work. Later events of the stream do not complete before the work ends.
    pub fn hold(&self, stream: StreamId) -> Hold {
        self.state.lock().timeline.hold(stream)
    }

    /// Ends the oldest work of [`Self::hold`] in `stream` now. Returns `false` if the stream has no such work.
    pub fn finish(&self, stream: StreamId) -> bool {
        self.state.lock().timeline.finish(stream)
    }

    /// Ends this work of [`Self::hold`] now, together with all earlier work of that kind in its stream, since a stream
    /// runs in order. Returns `false` if the work has ended already.
    pub fn finish_hold(&self, hold: Hold) -> bool {
        self.state.lock().timeline.finish_hold(hold)
    }

    /// Begins a capture, as by `cuStreamBeginCapture`. Later work of the stream does not run.
    ///
    /// # Errors
    /// CUDA's status 401 (illegal state) if the stream is being captured already, and
    /// [`Status::STREAM_CAPTURE_UNSUPPORTED`] for the default stream.
    pub fn begin_capture(&self, stream: StreamId, mode: CaptureMode) -> DriverResult<()> {
        self.state.lock().captures.begin(stream, mode).map_err(|refusal| refusal.into_error(Call::BeginCapture))
    }

    /// Ends a capture, as by `cuStreamEndCapture`. The stream's capture is over even after an error.
    ///
    /// # Errors
    /// [`Status::STREAM_CAPTURE_INVALIDATED`] after a call that the capture forbade; CUDA's status 401 (illegal state)
    /// if no capture of this stream was begun, and 908 (wrong thread) for another thread's capture that is not relaxed.
    pub fn end_capture(&self, stream: StreamId) -> DriverResult<()> {
        self.state.lock().captures.end(stream).map_err(|refusal| refusal.into_error(Call::EndCapture))
    }

    /// Makes the `nth` call of that kind from now (1 is the next) fail with `status` and change no state. Several
    /// failures may be pending. Calls that are not the driver's ([`launch`](Self::launch) and captures) cannot be made
    /// to fail.
    pub fn fail_nth(&self, call: Call, nth: u64, status: Status) {
        self.state.lock().fail_nth(call, nth, status);
    }

    /// Cancels the pending failures of [`fail_nth`](Self::fail_nth).
    pub fn fail_no_more(&self) {
        self.state.lock().fail_no_more();
    }

    /// Makes every later call fail with `status`, for which [`Status::is_context_lost`] must hold, as after a failed
    /// kernel.
    pub fn lose_context(&self, status: Status) {
        self.state.lock().lost = Some(status);
    }

    /// Destroys a stream, as by `cuStreamDestroy`. The stream's work goes on. Later calls that name the stream are
    /// refused with [`Status::INVALID_CONTEXT`]; a real driver would follow the dangling handle.
    pub fn destroy_stream(&self, stream: StreamId) {
        self.state.lock().timeline.destroy(stream);
    }

    /// Creates a stream, as by `cuStreamCreate`, with the handle of a destroyed stream. If the old stream still exists,
    /// it is destroyed.
    pub fn replace_stream(&self, stream: StreamId) {
        self.state.lock().timeline.replace(stream);
    }

    /// Adds a device with this ordinal. The device can use this device's memory once it has been given access.
    pub fn connect_peer(&self, ordinal: u32) {
        self.state.lock().peers.connect(ordinal);
    }

    /// Returns whether a kernel of the device with this ordinal may use `range` of this device's memory.
    #[must_use]
    pub fn can_peer_use(&self, ordinal: u32, range: Range) -> bool {
        let state = self.state.lock();
        state.peers.can_use(ordinal, range, &state.memory)
    }

    /// Returns the physical memory of `range`, in the order of addresses. The result shows where two addresses lead to
    /// the same memory. Addresses without memory are left out.
    #[must_use]
    pub fn physical(&self, range: Range) -> Vec<Piece> {
        self.state.lock().memory.physical_at(range)
    }

    /// Returns the clock's time at which all work given to `stream` so far is done; `None` while that depends on work
    /// of [`Self::hold`].
    #[must_use]
    pub fn done_at(&self, stream: StreamId) -> Option<u64> {
        self.state.lock().timeline.done_at(stream)
    }

    /// Returns the number of GPU-side waits so far that delayed no stream, because the event was already complete.
    #[must_use]
    pub fn idle_waits(&self) -> u64 {
        self.state.lock().timeline.idle_waits()
    }

    /// Returns the first 10,000 faults, oldest first.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        self.state.lock().faults.clone()
    }

    /// Returns the resources that are held on the device at present.
    #[must_use]
    pub fn leaks(&self) -> Leaks {
        self.state.lock().leaks()
    }

    /// Waits until no other thread keeps the gate closed, and returns the state.
    fn past_the_gate(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while state.gate.is_closed_by_another() {
            self.opened.wait(&mut state);
        }
        state
    }

    /// Refuses calls of virtual memory if the device does not support it.
    fn supports(&self, call: Call) -> Answer<()> {
        if call.is_of_virtual_memory() && !self.config.virtual_memory {
            return Err(refuse(Status::NOT_SUPPORTED, "the device has no virtual memory management".to_owned()));
        }
        Ok(())
    }

    /// Makes one driver call about `size` bytes, at the cost in the table.
    pub(super) fn call<T>(&self, call: Call, size: u64, run: impl FnOnce(&mut State) -> Answer<T>) -> DriverResult<T> {
        let profile = self.config.profile;
        self.charged(call, size, |state| Ok((run(state)?, profile.cost(call, size))))
    }

    /// Makes one driver call. The call fails if a failure is pending; otherwise it is carried out, charged and counted.
    /// `run` returns the answer and the cost of the call. Waiting time is added to the clock.
    pub(super) fn charged<T>(
        &self,
        call: Call,
        size: u64,
        run: impl FnOnce(&mut State) -> Answer<(T, u64)>,
    ) -> DriverResult<T> {
        let mut guard = self.past_the_gate();
        let state = &mut *guard;
        let before = state.timeline.now();
        let allowed = state.failure(call).and_then(|()| self.supports(call)).and_then(|()| state.gate.refuse(call));
        let answer = match allowed {
            Ok(()) => run(state),
            Err(refusal) => Err(refusal),
        };
        let cost = match &answer {
            Ok((_, cost)) => *cost,
            Err(refusal) => self.config.profile.refused(call, refusal.status, size),
        };
        let mut spent = cost;
        if self.config.calls_advance_clock {
            spent = spent.saturating_add(state.timeline.now() - before);
            state.timeline.advance(cost);
        }
        state.stats.add(call, spent);
        self.busy_ns.store(self.busy_ns.load(Ordering::Relaxed).saturating_add(spent), Ordering::Relaxed);
        drop(guard);
        answer.map(|(value, _)| value).map_err(|refusal| refusal.into_error(call))
    }
}

impl fmt::Debug for SimGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimGpu").field("config", &self.config).field("leaks", &self.leaks()).finish_non_exhaustive()
    }
}

impl Drop for SimGpu {
    fn drop(&mut self) {
        let leaks = self.state.get_mut().leaks();
        if !leaks.is_empty() {
            tracing::warn!(device = %self.config, "{leaks}");
        }
    }
}
