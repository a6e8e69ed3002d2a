//! A gate on the streams of a real GPU: a kernel of one thread in each stream, which waits for a word.
//!
//! Owns: the words that the kernels (`gate.ptx`) read and write, and the order of their launches. `stream_gate.rs` has
//! the calls. Measured on an H200 (docs/measurements/2026-11-28-gate):
//!
//! - A kernel marks that all earlier work of its stream is over, and waits. The mark and the wait are one item of the
//!   stream, so no thread can launch work between them. Stream memory operations would block the hardware channel that
//!   the stream shares with other streams, whose marks would then never be written.
//! - A device runs 128 kernels at a time, so about as many streams can be held.
//! - While another thread is in `cudaFree`, which waits for the device, launches wait too. Therefore a watchdog opens
//!   the gate if the launches take too long. Maps, unmaps and changes of access did not wait in any case that was
//!   measured.
//! - Many kernels that read a word of the host slow the device down. So one kernel, the relay, watches the host's word
//!   and copies it to the device's memory.

use super::api::CudaApi;
use super::error::MissingEntryPoint;
use super::ffi::{CUdeviceptr, CUfunction, CUstream};
use crate::{GateCopy, Status, StreamId};
use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The bytes of all words (numbers of 4 bytes) together: as many on the host as on the device.
pub(super) const WORDS: usize = 512;
/// The indexes of the host's words. Epochs number the closings of the gate. The words hold: the newest epoch for which
/// the gate is open; the epoch whose copies are done; the newest epoch in which the kernel of the relay (which copies
/// `OPEN` to the device), of the stream for copies, or (from `MARKS` on) of each held stream has begun.
const OPEN: u64 = 0;
const COPIED: u64 = 1;
const RELAY: u64 = 2;
const COPIES: u64 = 3;
const MARKS: u64 = 4;
/// The number of thread blocks of a copy, and of threads in each.
const COPY_GRID: (c_uint, c_uint) = (264, 512);
/// The time for which the CPU spins on a word before it yields its core.
const SPIN: Duration = Duration::from_millis(2);

/// The module, words and streams of a gate, which a device keeps from one closing to the next.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) module: usize,
    pub(super) hold: usize,
    pub(super) copy: usize,
    /// The address of the words in host memory, for the CPU and for the device.
    pub(super) words: usize,
    pub(super) words_on_device: CUdeviceptr,
    /// The word in device memory that the held streams watch.
    pub(super) opened: CUdeviceptr,
    pub(super) relay: StreamId,
    pub(super) copies: StreamId,
    /// The number of the present closing, or of the last one if the gate is open.
    pub(super) epoch: u32,
    pub(super) is_closed: bool,
}

impl Gate {
    fn word(&self, number: u64) -> &AtomicU32 {
        let word: *mut u32 = ptr::with_exposed_provenance_mut(self.words + 4 * number as usize);
        // SAFETY: the words are aligned, page-locked memory that lives as long as the gate, and `number` is the index
        // of one of them. The GPU writes whole words.
        unsafe { AtomicU32::from_ptr(word) }
    }

    fn on_device(&self, number: u64) -> CUdeviceptr {
        self.words_on_device + 4 * number
    }

    /// Releases all streams that this closing of the gate (this epoch) or an earlier one holds.
    pub(super) fn open(&self) {
        self.word(OPEN).store(self.epoch, Ordering::Release);
    }

    /// Waits on the CPU until `count` streams are held, for at most `patience`. Returns whether they are held.
    pub(super) fn wait_for_streams(&self, count: usize, patience: Duration) -> bool {
        let mut marks = (MARKS..MARKS + count as u64).peekable();
        // The marks are read in their order, each one until it is written.
        watch(patience, || {
            while marks.next_if(|number| self.is_at(*number)).is_some() {}
            marks.peek().is_none()
        })
    }

    /// Waits on the CPU until the copies of the present closing are done, for at most `patience`. Returns whether they
    /// are done.
    pub(super) fn wait_for_copies(&self, patience: Duration) -> bool {
        watch(patience, || self.is_at(COPIED))
    }

    /// Returns whether a word has the number of the present closing.
    fn is_at(&self, number: u64) -> bool {
        self.word(number).load(Ordering::Acquire) == self.epoch
    }

    /// Launches the kernel that holds a stream. The kernel writes `mark` once all earlier work is over, and waits until
    /// `count` words from `words` on, or the word `open`, have the number of the present closing. Then the kernel
    /// writes the word `passed_on`, unless that address is 0.
    pub(super) fn launch_hold(&self, api: &CudaApi, stream: CUstream, hold: Hold) -> Result<Status, MissingEntryPoint> {
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

    pub(super) fn launch_copy(
        &self,
        api: &CudaApi,
        stream: CUstream,
        copy: GateCopy,
    ) -> Result<Status, MissingEntryPoint> {
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
        // SAFETY: the function is of this gate's module; the arguments are those of its declaration, and are read
        // during the call; the stream is alive.
        unsafe { api.launch_kernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, ptr::null_mut()) }
    }

    /// Gives the streams their kernels, and the stream for copies its copies.
    pub(super) fn give(
        &self,
        api: &CudaApi,
        streams: &[CUstream],
        copies: &[GateCopy],
        [relay, own]: [CUstream; 2],
    ) -> Result<Status, MissingEntryPoint> {
        let count = streams.len() as u32;
        let of_host = Hold { words: self.on_device(OPEN), count: 1, open: self.on_device(OPEN), mark: 0, passed_on: 0 };
        let of_device = Hold { words: self.opened, open: self.opened, ..of_host };
        // The relay, which tells the device when the gate opens, is launched first: work of a held stream that lies
        // before it in a hardware channel would block it.
        let mut status =
            self.launch_hold(api, relay, Hold { mark: self.on_device(RELAY), passed_on: self.opened, ..of_host })?;
        for (stream, number) in streams.iter().zip(MARKS..) {
            if status != Status::SUCCESS {
                return Ok(status);
            }
            status = self.launch_hold(api, *stream, Hold { mark: self.on_device(number), ..of_device })?;
        }
        // All copies are launched in one go. Work that other threads give to a held stream blocks hardware channels,
        // and could block copies that are launched later.
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

/// Waits on the CPU until `is_done` returns true, for at most `patience`. Returns whether `is_done` returned true.
fn watch(patience: Duration, mut is_done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !is_done() {
        match start.elapsed() {
            waited if waited > patience => return false,
            waited if waited < SPIN => std::hint::spin_loop(),
            _ => thread::sleep(Duration::from_micros(50)),
        }
    }
    true
}

/// The arguments of the kernel that holds a stream, without the number of the closing (the epoch).
#[derive(Clone, Copy)]
pub(super) struct Hold {
    pub(super) mark: CUdeviceptr,
    pub(super) words: CUdeviceptr,
    pub(super) count: u32,
    pub(super) open: CUdeviceptr,
    pub(super) passed_on: CUdeviceptr,
}
