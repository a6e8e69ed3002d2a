//! A gate on the streams of a real GPU: a kernel of one thread in each stream, which waits for a word.
//!
//! Owns: the kernels (`gate.ptx`), the words that they read and write, and the order of their launches. Measured on an
//! H200 (docs/measurements/2026-11-28-gate):
//!
//! - A kernel marks that all earlier work of its stream is over, and waits. Both are one item of the stream, so no thread
//!   can launch work between them. Stream memory operations would hold the hardware channel that the stream shares with
//!   others, so that marks of the others would never be written.
//! - A device runs 128 kernels at once, so about as many streams can be held.
//! - While another thread is in `cudaFree`, which waits for the device, launches wait too. So the launches have a watchdog,
//!   which opens the gate after a while. Maps, unmaps and changes of access do not wait, in any case that was tried.
//! - Many kernels that read a word of the host slow the device down. So one, the relay, watches the host's word and passes
//!   it on in the device's memory.

use super::api::CudaApi;
use super::device::CudaDriver;
use super::error::{CudaOpenError, MissingEntryPoint};
use super::ffi::{self, CUdeviceptr, CUfunction, CUstream};
use crate::{Call, DriverError, DriverResult, GateCopy, Status, StreamCapture, StreamGate, StreamId};
use std::ffi::{CStr, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The kernels, for every device from compute capability 7.0 on: with a 0 at the end, as the driver expects texts.
const KERNELS: &str = concat!(include_str!("gate.ptx"), "\0");
const HOLD: &CStr = c"seamalloc_hold";
const COPY: &CStr = c"seamalloc_copy";

/// The most streams that are held: a device runs 128 kernels at once, and the relay, the copies and kernels that still
/// run take a part of them.
const MOST_STREAMS: usize = 110;
/// Bytes of the words, on the host and on the device.
const WORDS: usize = 512;
/// The words of the host: the gate is open for every epoch up to this; the copies of this epoch are done; marks of the
/// relay and of the stream for copies; and from here on the marks of the held streams.
const OPEN: u64 = 0;
const COPIED: u64 = 1;
const RELAY: u64 = 2;
const COPIES: u64 = 3;
const MARKS: u64 = 4;
/// Blocks and threads of a copy.
const COPY_GRID: (c_uint, c_uint) = (264, 512);
/// How long the CPU watches a word without giving up its core.
const SPIN: Duration = Duration::from_millis(2);

/// The parts of a gate that a device keeps.
#[derive(Debug)]
pub(super) struct Gate {
    module: usize,
    hold: usize,
    copy: usize,
    /// The words of the host, for the CPU and for the device.
    words: usize,
    words_on_device: CUdeviceptr,
    /// The word in device memory that tells the held streams.
    opened: CUdeviceptr,
    relay: StreamId,
    copies: StreamId,
    /// The number of the present or last closing.
    epoch: u32,
    is_closed: bool,
}

impl Gate {
    fn word(&self, number: u64) -> &AtomicU32 {
        let word: *mut u32 = ptr::with_exposed_provenance_mut(self.words + 4 * number as usize);
        // SAFETY: the words are page-locked memory of so many bytes, aligned, which lives as long as the gate. The GPU writes
        // whole words.
        unsafe { AtomicU32::from_ptr(word) }
    }

    fn on_device(&self, number: u64) -> CUdeviceptr {
        self.words_on_device + 4 * number
    }

    /// Lets all streams go on that wait for an epoch so far.
    fn open(&self) {
        self.word(OPEN).store(self.epoch, Ordering::Release);
    }

    /// Returns whether the copies of this epoch are done, at the end of the wait.
    fn wait_for_copies(&self, patience: Duration) -> bool {
        let start = Instant::now();
        while self.word(COPIED).load(Ordering::Acquire) != self.epoch {
            match start.elapsed() {
                waited if waited > patience => return false,
                waited if waited < SPIN => std::hint::spin_loop(),
                _ => thread::sleep(Duration::from_micros(50)),
            }
        }
        true
    }

    /// Launches the kernel that holds a stream: writes `mark` once all earlier work is over, and waits until `count` words from
    /// `words` on have this epoch, or `open` has. Then writes `passed_on`, unless it is 0.
    fn launch_hold(&self, api: &CudaApi, stream: CUstream, hold: Hold) -> Result<Status, MissingEntryPoint> {
        let Hold { mut mark, mut words, mut count, mut open, mut passed_on } = hold;
        let mut epoch = self.epoch;
        let mut arguments: [*mut c_void; 6] = [
            (&raw mut mark).cast(),
            (&raw mut epoch).cast(),
            (&raw mut words).cast(),
            (&raw mut count).cast(),
            (&raw mut open).cast(),
            (&raw mut passed_on).cast(),
        ];
        self.launch(api, self.hold, (1, 1), stream, &mut arguments)
    }

    fn launch_copy(&self, api: &CudaApi, stream: CUstream, copy: GateCopy) -> Result<Status, MissingEntryPoint> {
        let (mut to, mut from, mut count) = (copy.to, copy.from, copy.size / 16);
        let mut arguments: [*mut c_void; 3] = [(&raw mut to).cast(), (&raw mut from).cast(), (&raw mut count).cast()];
        self.launch(api, self.copy, COPY_GRID, stream, &mut arguments)
    }

    fn launch(
        &self,
        api: &CudaApi,
        function: usize,
        (blocks, threads): (c_uint, c_uint),
        stream: CUstream,
        arguments: &mut [*mut c_void],
    ) -> Result<Status, MissingEntryPoint> {
        let function: CUfunction = ptr::with_exposed_provenance_mut(function);
        let arguments = arguments.as_mut_ptr();
        // SAFETY: the function is of this gate's module; the arguments are those of its declaration, and are read during the
        // call; the stream is alive.
        unsafe { api.launch_kernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, ptr::null_mut()) }
    }

    /// Gives the streams their kernels, and the stream for copies its copies.
    fn give(
        &self,
        api: &CudaApi,
        streams: &[CUstream],
        copies: &[GateCopy],
        [relay, own]: [CUstream; 2],
    ) -> Result<Status, MissingEntryPoint> {
        let count = streams.len() as u32;
        let of_host = Hold { words: self.on_device(OPEN), count: 1, open: self.on_device(OPEN), mark: 0, passed_on: 0 };
        let of_device = Hold { words: self.opened, open: self.opened, ..of_host };
        // The relay comes first: nothing of a stream that is held already may stand before it in a hardware channel.
        let mut status =
            self.launch_hold(api, relay, Hold { mark: self.on_device(RELAY), passed_on: self.opened, ..of_host })?;
        for (stream, number) in streams.iter().zip(MARKS..) {
            if status != Status::SUCCESS {
                return Ok(status);
            }
            status = self.launch_hold(api, *stream, Hold { mark: self.on_device(number), ..of_device })?;
        }
        // All copies are given at once: what other threads give a held stream meanwhile may hold up what comes later.
        let marks = Hold { mark: self.on_device(COPIES), words: self.on_device(MARKS), count, ..of_device };
        if status == Status::SUCCESS {
            status = self.launch_hold(api, own, marks)?;
        }
        for copy in copies {
            if status == Status::SUCCESS {
                status = self.launch_copy(api, own, *copy)?;
            }
        }
        if status == Status::SUCCESS {
            status = self.launch_hold(api, own, Hold { mark: self.on_device(COPIED), count: 0, ..of_device })?;
        }
        Ok(status)
    }
}

/// The arguments of the kernel that holds a stream, without the epoch.
#[derive(Clone, Copy)]
struct Hold {
    mark: CUdeviceptr,
    words: CUdeviceptr,
    count: u32,
    open: CUdeviceptr,
    passed_on: CUdeviceptr,
}

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
            let given = unless_late(patience, || gate.open(), || gate.give(api, &held, copies, own));
            given_in_time = given.as_ref().is_some_and(|(_, late)| !late);
            given.map_or(Ok(Status::SUCCESS), |(status, _)| status)
        });
        let is_closed = given.is_ok() && given_in_time && gate.wait_for_copies(patience);
        if !is_closed {
            gate.open();
            // The caller may unmap the copies' targets from now on.
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
    /// Returns the streams that need a kernel, or `None` if not all can be held. The default stream's kernel holds all streams
    /// that wait for the default stream.
    fn streams_to_hold(&self, streams: &[StreamId]) -> DriverResult<Option<Vec<CUstream>>> {
        let mut held = Vec::new();
        if held.try_reserve_exact(streams.len() + 1).is_err() {
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
            if flags & ffi::STREAM_NON_BLOCKING != 0 {
                held.push(raw);
            }
        }
        held.push(ptr::null_mut());
        Ok((held.len() <= MOST_STREAMS).then_some(held))
    }

    /// Lets the CPU wait for a stream of the gate's own.
    fn wait_for_own(&self, stream: CUstream) -> DriverResult<()> {
        // SAFETY: the stream was made here, and lives as long as the gate.
        self.demand(Call::CloseGate, String::new, |api| unsafe { api.stream_synchronize(stream) })
    }

    /// Makes the gate, and runs each kernel once: the first launch of a kernel may load it, which waits for the device. Returns
    /// whether the device has one.
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

    /// Loads the kernels, takes memory for the words, and runs the kernels.
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
        // SAFETY: the memory has so many bytes, and nothing else uses it yet.
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

    /// Gives back the parts of the gate, if it was ever closed.
    pub(super) fn release_gate(&self) {
        if let Some(gate) = self.gate.lock().take() {
            gate.open();
            self.drop_gate(&gate);
        }
    }

    fn drop_gate(&self, gate: &Gate) {
        [gate.relay, gate.copies].into_iter().for_each(|stream| self.drop_stream(stream));
        let dropped = [
            // SAFETY: the memory came from `mem_alloc`, and is freed once. The driver waits for the device, and with it for
            // kernels that use the words.
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

/// Runs `run`, and `give_up` on another thread if `run` takes longer than `patience`. Returns the result, and whether it was
/// late; `None` if there is no thread for that, and then nothing was run.
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
