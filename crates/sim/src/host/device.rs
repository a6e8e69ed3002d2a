//! A host device for programs: its memory, the work that a program gives it, and its reports.
//!
//! Owns: [`HostDriver`], and the timing and counting of calls.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::addresses::Reserved;
use super::chunk::DeviceFile;
use super::config::{HostConfig, HostConfigError};
use super::state::State;
use super::streams::{HostHold, Streams};
use super::work::HostWork;
use super::workers::Shared;
use crate::bookkeeping::{Answer, Fault, GRANULARITY, Leaks, Piece, Range, new_identity, refuse};
use seamalloc_driver::internal::CallCounters;
use seamalloc_driver::internal::memory;
use seamalloc_driver::{Call, CaptureMode, DeviceProperties, DriverError, DriverResult, Status, StreamId};

/// A device that hands out host memory, on Linux and without a GPU.
///
/// The device's addresses are ordinary pointers. A program that dereferences one must ensure that the memory stays
/// mapped with access meanwhile. Streams and other processes may write there at the same time. Work of streams is
/// checked, and never reaches unmapped memory.
///
/// Every number is a stream, as on the simulated GPU. Streams run behind the CPU, in threads of the device. Memory that
/// is never touched takes no host memory.
///
/// ```
/// use seamalloc::driver::host::{HostConfig, HostDriver, HostWork, Range};
/// use seamalloc::driver::prelude::*;
/// use seamalloc::driver::StreamId;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// let device = HostDriver::new(HostConfig::parse("host:64MiB")?)?;
/// let (handle, address) = (device.create(2 << 20)?, device.reserve(4 << 20, 0)?);
/// // The same memory is mapped at two addresses.
/// for at in [address, address + (2 << 20)] {
///     device.map(at, 2 << 20, 0, handle)?;
/// }
/// device.set_access(address, 4 << 20)?;
/// let stream = StreamId(1);
/// let first = Range { address, size: 2 << 20 };
/// device.launch(stream, HostWork::Fill { to: first, words: Arc::new(|_, words| words.fill(7)) })?;
/// let sum = Arc::new(AtomicU64::new(0));
/// let added = Arc::clone(&sum);
/// let second = Range { address: address + (2 << 20), size: 16 };
/// let see = Arc::new(move |_, words: &[u64]| {
///     added.fetch_add(words.iter().sum(), Ordering::Relaxed);
/// });
/// device.launch(stream, HostWork::Look { at: second, see })?;
/// device.stream_synchronize(stream)?;
/// assert_eq!(sum.load(Ordering::Relaxed), 14);
/// # device.unmap(address, 4 << 20)?;
/// # device.address_free(address, 4 << 20)?;
/// # device.release(handle)?;
/// # assert!(device.leaks().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HostDriver {
    pub(super) config: HostConfig,
    /// The number that distinguishes this device's memory from that of other devices, also of other processes.
    pub(super) identity: u64,
    pub(super) properties: DeviceProperties,
    pub(super) file: Arc<DeviceFile>,
    pub(super) shared: Arc<Shared>,
    /// The held streams, while the gate is closed.
    pub(super) gate: Mutex<Vec<HostHold>>,
    pub(super) calls: CallCounters,
}

/// The work that a stream was given in a capture, which can be launched again as a whole.
#[derive(Clone, Debug)]
pub struct HostGraph(Arc<[Arc<HostWork>]>);

impl HostDriver {
    /// Makes a device with no memory in use.
    ///
    /// # Errors
    /// [`HostConfigError::Capacity`] if the capacity has no room for a single chunk; [`HostConfigError::System`] if the
    /// system has no files in memory.
    pub fn new(config: HostConfig) -> Result<Self, HostConfigError> {
        config.check()?;
        let file = DeviceFile::new()
            .map_err(|refusal| HostConfigError::System { reason: refusal.into_error(Call::Create).detail })?;
        let properties = DeviceProperties {
            name: config.to_string(),
            ordinal: 0,
            identity: String::new(),
            total_memory: config.capacity,
            granularity: GRANULARITY,
            recommended_granularity: GRANULARITY,
            virtual_memory: true,
            memory_pools: false,
            stream_gates: true,
        };
        // The host memory for `create_on_host` is all memory that is available now. The device's own memory comes from
        // the same memory.
        let beside = memory().map_or(config.capacity, |memory| memory.free);
        let shared = Arc::new(Shared::new(State::new(config.capacity, beside)));
        let (gate, calls) = (Mutex::default(), CallCounters::default());
        Ok(Self { config, identity: new_identity(), properties, file, shared, gate, calls })
    }

    /// Returns the configuration from which the device was made.
    #[must_use]
    pub fn config(&self) -> &HostConfig {
        &self.config
    }

    /// Gives `stream` work, which runs after all earlier work of the stream. In a stream that is being captured, the
    /// work is noted for the graph and not carried out. The CPU waits while more than a thousand pieces of work are
    /// queued in the stream.
    ///
    /// The functions of the work run in the device's threads, and must not call the device. If a function panics, the
    /// context is lost.
    ///
    /// # Errors
    /// [`Status::ILLEGAL_ADDRESS`] if a byte that the work uses has no memory, or memory without access; the [`Fault`]
    /// is recorded. The memory is checked again before each step of the work; a failure of this check is only recorded
    /// as a fault. [`Status::INVALID_VALUE`] for ranges that are not whole words of 8 bytes where they must be,
    /// [`Status::INVALID_CONTEXT`] for a destroyed stream, [`Status::STREAM_CAPTURE_INVALIDATED`] in an invalid
    /// capture.
    pub fn launch(&self, stream: StreamId, work: HostWork) -> DriverResult<()> {
        self.give(stream, &Arc::new(work)).map_err(|refusal| refusal.into_error(Call::Launch))
    }

    pub(super) fn give(&self, stream: StreamId, work: &Arc<HostWork>) -> Answer<()> {
        work.check_words()?;
        let state = self.shared.state.read();
        state.check_context()?;
        let runs = state.captures.check_work(stream)?;
        // Work of a held stream is not checked now: the work waits until the gate opens, and its memory may be unmapped
        // until then. The memory is checked before each step of the work.
        let checked = !self.shared.streams.lock().is_at_gate(stream);
        let fault = work.ranges().filter(|_| checked).find_map(|range| state.memory.check_use(range, stream).err());
        drop(state);
        if let Some(fault) = fault {
            self.shared.state.write().report(fault);
            return Err(refuse(Status::ILLEGAL_ADDRESS, fault.to_string()));
        }
        if runs {
            return self.shared.give(stream, work);
        }
        let mut state = self.shared.state.write();
        if let Some(origin) = state.captures.origin(stream) {
            state.captured.entry(origin).or_default().push(Arc::clone(work));
        }
        Ok(())
    }

    /// Begins a capture, as by `cuStreamBeginCapture`. Later work of the stream is noted and not carried out.
    ///
    /// # Errors
    /// The errors of [`SimGpu::begin_capture`](crate::SimGpu::begin_capture).
    pub fn begin_capture(&self, stream: StreamId, mode: CaptureMode) -> DriverResult<()> {
        let mut state = self.shared.state.write();
        state.captures.begin(stream, mode).map_err(|refusal| refusal.into_error(Call::BeginCapture))
    }

    /// Ends a capture, as by `cuStreamEndCapture`. Returns the work given in the capture, in order.
    ///
    /// # Errors
    /// The errors of [`SimGpu::end_capture`](crate::SimGpu::end_capture).
    pub fn end_capture(&self, stream: StreamId) -> DriverResult<HostGraph> {
        let mut state = self.shared.state.write();
        let ended = state.captures.end(stream).map_err(|refusal| refusal.into_error(Call::EndCapture));
        let captured = state.captured.remove(&stream).unwrap_or_default();
        ended.map(|()| HostGraph(captured.into()))
    }

    /// Gives `stream` all work of a graph, as by `cuGraphLaunch`.
    ///
    /// # Errors
    /// The errors of [`Self::launch`].
    pub fn replay(&self, graph: &HostGraph, stream: StreamId) -> DriverResult<()> {
        graph.0.iter().try_for_each(|work| self.give(stream, work)).map_err(|refusal| refusal.into_error(Call::Launch))
    }

    /// Gives `stream` work that lasts until [`finish`](Self::finish) or [`finish_hold`](Self::finish_hold), or until
    /// the CPU waits for the work.
    ///
    /// # Errors
    /// [`Status::INVALID_CONTEXT`] for a destroyed stream.
    pub fn hold(&self, stream: StreamId) -> DriverResult<HostHold> {
        let held = self.shared.with_streams(|streams| streams.hold(stream));
        held.map_err(|refusal| refusal.into_error(Call::Launch))
    }

    /// Ends the oldest work of [`Self::hold`] in `stream`. Returns `false` if the stream has no such work.
    pub fn finish(&self, stream: StreamId) -> bool {
        self.shared.with_streams(|streams| streams.finish(stream))
    }

    /// Ends this work of [`Self::hold`], and all earlier work of that kind in its stream. Returns `false` if the work
    /// has ended already.
    pub fn finish_hold(&self, hold: HostHold) -> bool {
        self.shared.with_streams(|streams| streams.finish_hold(hold))
    }

    /// Returns whether this work of [`Self::hold`] has not ended.
    #[must_use]
    pub fn is_held(&self, hold: HostHold) -> bool {
        self.shared.streams.lock().is_held(hold)
    }

    /// Returns whether all work given to `stream` is done.
    #[must_use]
    pub fn is_idle(&self, stream: StreamId) -> bool {
        self.shared.with_streams(|streams| streams.mark(stream)).is_ok_and(|mark| mark.has_passed())
    }

    /// Makes a stream, as by `cuStreamCreate`.
    #[must_use]
    pub fn create_stream(&self) -> StreamId {
        self.shared.with_streams(Streams::make)
    }

    /// Destroys a stream, as by `cuStreamDestroy`. Work given to the stream before is still carried out. Later calls
    /// that name the stream are refused with [`Status::INVALID_CONTEXT`].
    pub fn destroy_stream(&self, stream: StreamId) {
        self.shared.with_streams(|streams| streams.destroy(stream));
    }

    /// Creates a stream with the handle of another stream. Destroys the other stream if it still exists.
    pub fn replace_stream(&self, stream: StreamId) {
        self.shared.with_streams(|streams| streams.replace(stream));
    }

    /// Makes every later call fail with `status`, for which [`Status::is_context_lost`] must hold, as after a failed
    /// kernel.
    pub fn lose_context(&self, status: Status) {
        self.shared.state.write().lost = Some(status);
    }

    /// Returns the physical memory of `range`, in the order of addresses. Addresses without memory are left out.
    #[must_use]
    pub fn physical(&self, range: Range) -> Vec<Piece> {
        self.shared.state.read().memory.physical_at(range)
    }

    /// Returns the number of waits of streams so far whose event was already complete.
    #[must_use]
    pub fn idle_waits(&self) -> u64 {
        self.shared.with_streams(|streams| streams.idle_waits())
    }

    /// Returns the first 10,000 faults, oldest first.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        self.shared.state.read().faults.clone()
    }

    /// Returns the resources that are held at present.
    #[must_use]
    pub fn leaks(&self) -> Leaks {
        let events = self.shared.streams.lock().events();
        let state = self.shared.state.read();
        Leaks { events, host_buffers: state.buffers.count(), ..state.memory.leaks() }
    }

    /// Makes one driver call, timed and counted.
    pub(super) fn call<T>(&self, call: Call, run: impl FnOnce(&Shared) -> Answer<T>) -> DriverResult<T> {
        let start = Instant::now();
        let context = self.shared.state.read().check_context();
        let answer = context.and_then(|()| run(&self.shared));
        self.calls.add(call, start);
        answer.map_err(|refusal| -> DriverError { refusal.into_error(call) })
    }

    /// Makes one driver call about memory, under the memory's lock.
    pub(super) fn locked<T>(&self, call: Call, run: impl FnOnce(&mut State) -> Answer<T>) -> DriverResult<T> {
        self.call(call, |shared| run(&mut shared.state.write()))
    }
}

impl fmt::Debug for HostDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostDriver").field("config", &self.config).field("leaks", &self.leaks()).finish_non_exhaustive()
    }
}

impl Drop for HostDriver {
    fn drop(&mut self) {
        let leaks = self.leaks();
        if !leaks.is_empty() {
            tracing::warn!(device = %self.config, "{leaks}");
        }
        self.shared.end();
        for (address, size) in self.shared.state.read().memory.all_addresses() {
            if let Err(refusal) = Reserved::known(address, size).give_back() {
                tracing::error!(error = %refusal.into_error(Call::AddressFree), "addresses were not given back");
            }
        }
    }
}
