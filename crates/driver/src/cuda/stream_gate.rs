//! The calls of a gate on the streams of a real GPU.
//!
//! Owns: which streams are held, how long the CPU waits for them, and how the gate's parts are made and given back.
//! `gate.rs` launches the kernels.

use super::api::CudaApi;
use super::device::CudaDriver;
use super::error::CudaOpenError;
use super::ffi::{self, CUstream};
use super::gate::{Gate, Hold, WORDS};
use crate::{Call, DriverError, DriverResult, GateCopy, Status, StreamCapture, StreamGate, StreamId};
use std::ffi::CStr;
use std::ptr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// The text of the kernels, for every device from compute capability 7.0 on. The text ends with a 0 byte, as the driver
/// expects.
const KERNELS: &str = concat!(include_str!("gate.ptx"), "\0");
const HOLD: &CStr = c"seamalloc_hold";
const COPY: &CStr = c"seamalloc_copy";

/// The most streams that are held: a device runs 128 kernels at a time, among them the kernel that waits for the CPU to
/// open the gate, the copies and the program's running kernels.
const MOST_STREAMS: usize = 110;

/// The time that each launch of a kernel may take, in addition to the time that the caller allows (`patience_ns`).
const LAUNCH: Duration = Duration::from_micros(20);
/// The time that copies may take once all streams are held, unless the caller allows more (`patience_ns`), and 1 ns
/// more for each `BYTES_PER_NS` bytes.
const COPYING: Duration = Duration::from_millis(20);
const BYTES_PER_NS: u64 = 8;

impl StreamGate for CudaDriver {
    fn close_gate(&self, streams: &[StreamId], copies: &[GateCopy], patience_ns: u64) -> DriverResult<bool> {
        let patience = Duration::from_nanos(patience_ns);
        let mut slot = self.gate.lock();
        let Some(gate) = &mut *slot else {
            let why = "the device has no gates for streams";
            return Err(DriverError::new(Call::CloseGate, Status::NOT_SUPPORTED, why));
        };
        if gate.is_closed {
            return Ok(false);
        }
        let Some(held) = self.streams_to_hold(streams)? else { return Ok(false) };
        let own = [gate.relay, gate.copies].map(|stream| ptr::with_exposed_provenance_mut(stream.0 as usize));
        gate.epoch = gate.epoch.wrapping_add(1);
        let gate = &*gate;
        let arguments = || format!("{} streams, {} copies", held.len(), copies.len());
        let mut given_in_time = false;
        let given = self.demand(Call::CloseGate, arguments, |api| {
            let launching = patience + LAUNCH * (held.len() + copies.len()) as u32;
            let given = unless_late(launching, || gate.open(), || gate.give(api, &held, copies, own));
            given_in_time = given.as_ref().is_some_and(|(_, late)| !late);
            given.map_or(Ok(Status::SUCCESS), |(status, _)| status)
        });
        let copied = copies.iter().map(|copy| copy.size).sum::<u64>();
        let copying = patience.max(COPYING) + Duration::from_nanos(copied / BYTES_PER_NS);
        let is_closed = given.is_ok()
            && given_in_time
            && gate.wait_for_streams(held.len(), patience)
            && gate.wait_for_copies(copying);
        if !is_closed {
            gate.open();
            // The CPU waits until the copies have ended, since the caller may unmap their targets once this call has
            // returned.
            self.wait_for_own(own[1])?;
        }
        given?;
        if let Some(gate) = &mut *slot {
            gate.is_closed = is_closed;
        }
        Ok(is_closed)
    }

    fn open_gate(&self) {
        if let Some(gate) = &mut *self.gate.lock() {
            gate.open();
            gate.is_closed = false;
        }
    }
}

impl CudaDriver {
    /// Returns the streams that need a kernel, or `None` if not all can be held. The default stream's kernel holds all
    /// streams that wait for the default stream.
    ///
    /// Streams without work come first. Work that other threads launch behind a kernel blocks a hardware channel, and
    /// with it the kernels that come later in this channel. So streams with work, which other threads may be using, get
    /// their kernels last.
    fn streams_to_hold(&self, streams: &[StreamId]) -> DriverResult<Option<Vec<CUstream>>> {
        let (mut held, mut busy) = (Vec::new(), Vec::new());
        if held.try_reserve_exact(streams.len() + 1).and_then(|()| busy.try_reserve_exact(streams.len())).is_err() {
            return Ok(None);
        }
        for &stream in streams.iter().filter(|stream| **stream != StreamId::DEFAULT) {
            if self.is_capturing(stream)? {
                return Ok(None);
            }
            let raw = self.raw_stream(Call::CloseGate, stream)?;
            let mut flags = 0;
            // SAFETY: the pointer is to a live integer; the stream is alive (`raw_stream`).
            let ask = |api: &CudaApi| unsafe { api.stream_get_flags(raw, &mut flags) };
            self.demand(Call::CloseGate, || format!("flags of stream {stream}"), ask)?;
            if flags & ffi::STREAM_NON_BLOCKING == 0 {
                continue;
            }
            // SAFETY: the stream is alive (`raw_stream`).
            let state = self.ask(Call::CloseGate, String::new, |api| unsafe { api.stream_query(raw) })?;
            if state == Status::SUCCESS { held.push(raw) } else { busy.push(raw) }
        }
        held.append(&mut busy);
        held.push(ptr::null_mut());
        Ok((held.len() <= MOST_STREAMS).then_some(held))
    }

    /// Waits on the CPU for all work of a stream that the gate made for itself.
    fn wait_for_own(&self, stream: CUstream) -> DriverResult<()> {
        // SAFETY: the stream was made here, and lives as long as the gate.
        self.demand(Call::CloseGate, String::new, |api| unsafe { api.stream_synchronize(stream) })
    }

    /// Makes the gate, and runs each kernel once: a kernel's first launch may load it, and loading waits for the
    /// device. Returns whether the device has a gate.
    pub(super) fn make_gate(&self) -> bool {
        if !self.properties.stream_gates {
            return false;
        }
        match self.new_gate() {
            Ok(gate) => {
                *self.gate.lock() = Some(gate);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "streams cannot stand at a gate on this device: no chunk in use is split by default");
                false
            }
        }
    }

    fn new_gate(&self) -> Result<Gate, CudaOpenError> {
        let relay = self.create_stream()?;
        let copies = self.create_stream().inspect_err(|_| self.drop_stream(relay))?;
        let mut gate = Gate {
            module: 0,
            hold: 0,
            copy: 0,
            words: 0,
            words_on_device: 0,
            opened: 0,
            relay,
            copies,
            epoch: 1,
            is_closed: false,
        };
        let made = self.fill_gate(&mut gate);
        if made.is_err() {
            self.drop_gate(&gate);
        }
        made.map(|()| gate)
    }

    /// Loads the kernels, takes memory for the words that the kernels read and write, and runs the kernels.
    fn fill_gate(&self, gate: &mut Gate) -> Result<(), CudaOpenError> {
        let (mut module, mut hold, mut copy) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: the pointer is to a live pointer; the image is a text with a 0 at its end.
        self.make("cuModuleLoadData", |api| unsafe { api.module_load_data(&mut module, KERNELS.as_ptr().cast()) })?;
        gate.module = module.expose_provenance();
        for (function, name) in [(&mut hold, HOLD), (&mut copy, COPY)] {
            // SAFETY: the module is loaded; the name is a text with a 0 at its end.
            self.make("cuModuleGetFunction", |api| unsafe {
                api.module_get_function(function, module, name.as_ptr())
            })?;
        }
        (gate.hold, gate.copy) = (hold.expose_provenance(), copy.expose_provenance());
        let (mut host, flags) = (ptr::null_mut(), ffi::HOST_ALLOC_PORTABLE | ffi::HOST_ALLOC_DEVICE_MAP);
        // SAFETY: the pointer is to a live pointer.
        self.make("cuMemHostAlloc", |api| unsafe { api.mem_host_alloc(&mut host, WORDS, flags) })?;
        gate.words = host.expose_provenance();
        // SAFETY: the memory has `WORDS` bytes, and nothing else uses it yet.
        unsafe { host.cast::<u8>().write_bytes(0, WORDS) };
        let on_device = &mut gate.words_on_device;
        // SAFETY: the pointer is to a live integer; the memory was allocated above.
        self.make("cuMemHostGetDevicePointer", |api| unsafe { api.mem_host_get_device_pointer(on_device, host, 0) })?;
        // SAFETY: the pointer is to a live integer.
        self.make("cuMemAlloc", |api| unsafe { api.mem_alloc(&mut gate.opened, WORDS) })?;
        gate.open();
        let own = ptr::with_exposed_provenance_mut(gate.copies.0 as usize);
        let hold = Hold { mark: gate.opened, words: gate.opened, count: 0, open: gate.opened, passed_on: 0 };
        let nothing = GateCopy { from: gate.opened, to: gate.opened, size: 0 };
        self.make("cuLaunchKernel", |api| gate.launch_hold(api, own, hold))?;
        self.make("cuLaunchKernel", |api| gate.launch_copy(api, own, nothing))?;
        // SAFETY: the stream was made for this gate, and is alive.
        self.make("cuStreamSynchronize", |api| unsafe { api.stream_synchronize(own) })
    }

    /// Gives back the parts of the gate, if the device has one.
    pub(super) fn release_gate(&self) {
        if let Some(gate) = self.gate.lock().take() {
            gate.open();
            self.drop_gate(&gate);
        }
    }

    fn drop_gate(&self, gate: &Gate) {
        [gate.relay, gate.copies].into_iter().for_each(|stream| self.drop_stream(stream));
        let dropped = [
            // SAFETY: the memory came from `mem_alloc`, and is freed once. The driver waits for the device, and with it
            // for kernels that use the words.
            (gate.opened != 0).then(|| self.make("cuMemFree", |api| unsafe { api.mem_free(gate.opened) })),
            (gate.words != 0).then(|| {
                let words = ptr::with_exposed_provenance_mut(gate.words);
                // SAFETY: the memory came from `mem_host_alloc`, and is freed once.
                self.make("cuMemFreeHost", |api| unsafe { api.mem_free_host(words) })
            }),
            (gate.module != 0).then(|| {
                let module = ptr::with_exposed_provenance_mut(gate.module);
                // SAFETY: the module was loaded here, and none of its kernels runs.
                self.make("cuModuleUnload", |api| unsafe { api.module_unload(module) })
            }),
        ];
        for error in dropped.into_iter().flatten().filter_map(Result::err) {
            tracing::warn!(%error, "a part of a gate was not given back");
        }
    }

    fn drop_stream(&self, stream: StreamId) {
        if let Err(error) = self.destroy_stream(stream) {
            tracing::warn!(%error, "a stream of a gate was not destroyed");
        }
    }
}

/// Calls `run`. If `run` takes longer than `patience`, another thread calls `give_up` meanwhile. Returns the result of
/// `run`, and whether `run` was late. Returns `None` without calling `run` if the other thread could not be started.
fn unless_late<T>(patience: Duration, give_up: impl FnOnce() + Send, run: impl FnOnce() -> T) -> Option<(T, bool)> {
    thread::scope(|scope| {
        let (done, is_done) = channel::<()>();
        let watch = move || match is_done.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => {
                give_up();
                true
            }
            _ => false,
        };
        let watchdog = thread::Builder::new().name("seamalloc-gate".to_owned()).spawn_scoped(scope, watch).ok()?;
        let result = run();
        drop(done);
        Some((result, watchdog.join().unwrap_or(true)))
    })
}
