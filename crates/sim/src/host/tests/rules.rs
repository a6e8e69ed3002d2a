//! Makes the same calls on host memory and on the simulated GPU, and expects the same answers, including
//! refusals.

use super::MIB;
use crate::host::{HostConfig, HostDriver, Range};
use crate::{SimConfig, SimGpu};
use seamalloc_driver::prelude::*;
use seamalloc_driver::{CaptureMode, DriverResult, EventId, Handle, StreamId};

const CAPACITY: u64 = 64 * MIB;
const CHUNK: u64 = 2 * MIB;
const CALLS: u64 = 30_000;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed >> 31) % limit
    }

    fn of<T: Copy>(&mut self, some: &[T]) -> Option<T> {
        let at = self.below(some.len().max(1) as u64);
        some.get(at as usize).copied()
    }
}

/// The two devices and the objects that they returned. An address or a handle of one device has its counterpart at the
/// same index.
struct Both {
    host: HostDriver,
    sim: SimGpu,
    random: Random,
    reserved: Vec<[u64; 2]>,
    sizes: Vec<u64>,
    handles: Vec<[Handle; 2]>,
    events: Vec<[EventId; 2]>,
    plain: Vec<[u64; 2]>,
    refused: u64,
    /// The number of reads in which some bytes had been filled.
    marked: u64,
    copied: u64,
}

impl Both {
    /// Makes a call on both devices, each with its own address or handle of the object.
    fn call<T>(&mut self, name: &str, make: impl Fn(&dyn Driver, usize) -> DriverResult<T>) -> Option<[T; 2]> {
        match (make(&self.host, 0), make(&self.sim, 1)) {
            (Ok(host), Ok(sim)) => Some([host, sim]),
            (Err(host), Err(sim)) => {
                assert_eq!((host.call, host.status), (sim.call, sim.status), "{name}: {host}; {sim}");
                self.refused += 1;
                None
            }
            (host, sim) => panic!("{name}: {:?} and {:?}", host.err(), sim.err()),
        }
    }

    fn size(&mut self) -> u64 {
        [0, MIB, CHUNK, CHUNK, CHUNK, 2 * CHUNK, 3 * CHUNK][self.random.below(7) as usize]
    }

    fn place(&mut self) -> Option<([u64; 2], u64)> {
        let at = self.random.below(self.reserved.len().max(1) as u64) as usize;
        let (addresses, size) = (*self.reserved.get(at)?, *self.sizes.get(at)?);
        // Beyond the end of the reservation, one device may have another reservation, and the other device none.
        let offset = self.random.below(size / CHUNK) * CHUNK + MIB * u64::from(self.random.below(40) == 0);
        Some((addresses.map(|address| address + offset), size))
    }

    fn step(&mut self) {
        let size = self.size();
        let stream = StreamId(self.random.below(3));
        match self.random.below(31) {
            0 | 1 => {
                let (size, alignment) = (size * 3, [0, 0, 8 * MIB, 12][self.random.below(4) as usize]);
                if let Some(addresses) = self.call("reserve", |driver, _| driver.reserve(size, alignment)) {
                    self.reserved.push(addresses);
                    self.sizes.push(size);
                }
            }
            2 if !self.reserved.is_empty() => {
                let at = self.random.below(self.reserved.len() as u64) as usize;
                let (addresses, size) = (self.reserved[at], self.sizes[at] + CHUNK * (self.random.below(8) / 7));
                if self.call("address_free", |driver, of| driver.address_free(addresses[of], size)).is_some() {
                    self.reserved.swap_remove(at);
                    self.sizes.swap_remove(at);
                }
            }
            3..6 => {
                if let Some(handles) = self.call("create", |driver, _| driver.create(size)) {
                    self.handles.push(handles);
                }
            }
            6 | 7 => {
                // Released handles are sometimes named again.
                if let Some(handles) = self.random.of(&self.handles)
                    && self.call("release", |driver, of| driver.release(handles[of])).is_some()
                    && self.random.below(8) > 0
                {
                    self.handles.retain(|known| *known != handles);
                }
            }
            8..13 => {
                let offset = CHUNK * (self.random.below(12) / 11);
                if let (Some((addresses, _)), Some(handles)) = (self.place(), self.random.of(&self.handles)) {
                    self.call("map", |driver, of| driver.map(addresses[of], size, offset, handles[of]));
                }
            }
            13..15 => {
                if let Some((addresses, _)) = self.place() {
                    self.call("unmap", |driver, of| driver.unmap(addresses[of], size));
                }
            }
            15..17 => {
                if let Some((addresses, _)) = self.place() {
                    self.call("set_access", |driver, of| driver.set_access(addresses[of], size));
                }
            }
            17 => {
                let size = size + self.random.below(3) * 512;
                if let Some(addresses) = self.call("malloc", |driver, _| driver.malloc(size)) {
                    self.plain.push(addresses);
                }
            }
            18 => {
                let addresses = self.random.of(&self.plain).unwrap_or([0, 0]);
                if self.call("free", |driver, of| driver.free(addresses[of])).is_some() {
                    self.plain.retain(|known| *known != addresses);
                    // The address is freed again at once, since later it may belong to another allocation.
                    if self.random.below(4) == 0 {
                        self.call("free again", |driver, of| driver.free(addresses[of]));
                    }
                }
            }
            19 => {
                let event = self.call("event_create", |driver, _| driver.event_create());
                self.events.extend(event);
            }
            20 => self.event(|driver, event| driver.event_record(event, stream)),
            21 => self.event(|driver, event| driver.stream_wait(stream, event)),
            22 => match self.random.below(4) {
                0 => self.event(|driver, event| driver.event_destroy(event)),
                1 => self.event(|driver, event| driver.event_synchronize(event)),
                _ => self.event(|driver, event| driver.event_query(event).map(drop)),
            },
            23 => self.captures(stream),
            24 => {
                self.call("stream_synchronize", |driver, _| driver.stream_synchronize(stream));
            }
            25 | 26 => self.fill(stream),
            27 => self.read(),
            28 | 29 => self.copy(),
            _ => {
                let [host, sim] = self.call("memory_info", |driver, _| driver.memory_info()).unwrap();
                assert_eq!(host, sim);
                assert_eq!(self.host.leaks(), self.sim.leaks());
            }
        }
    }

    /// Returns addresses, mostly in reserved or plain memory.
    fn bytes(&mut self) -> ([u64; 2], u64) {
        let plain = self.random.of(&self.plain).filter(|_| self.random.below(2) == 0);
        let start = plain.or_else(|| self.place().map(|(addresses, _)| addresses)).unwrap_or([0, 0]);
        // The number of places is small, so that many of them were filled.
        let (offset, size) = (self.random.below(8) * 4_096 + self.random.below(16), self.random.below(5_000));
        (start.map(|address| address + offset), size)
    }

    fn fill(&mut self, stream: StreamId) {
        let ((addresses, size), value) = (self.bytes(), self.random.below(256) as u8);
        self.call("fill", |driver, of| driver.fill(addresses[of], size, value, stream));
        // The simulated GPU's bytes change at once, so the test waits for the host.
        while !self.host.is_idle(stream) {
            std::thread::yield_now();
        }
    }

    fn copy(&mut self) {
        // One copy in ten has sizes that are not whole words.
        let words = if self.random.below(10) > 0 { 8 } else { 1 };
        let [(from, size), (to, _)] = [(); 2].map(|()| self.bytes());
        let (from, to) = (from.map(|at| at / words * words), to.map(|at| at / words * words));
        self.copied +=
            u64::from(self.call("copy", |driver, of| driver.copy(from[of], to[of], size / words * words)).is_some());
    }

    fn read(&mut self) {
        let (addresses, size) = self.bytes();
        let read = |driver: &dyn Driver, of: usize| {
            let mut bytes = vec![9; size as usize];
            driver.read(addresses[of], &mut bytes).map(|()| bytes)
        };
        if let Some([host, sim]) = self.call("read", read) {
            assert!(host == sim, "other bytes at {addresses:x?}");
            self.marked += u64::from(host.iter().any(|byte| *byte != 0));
        }
    }

    fn event(&mut self, make: impl Fn(&dyn Driver, EventId) -> DriverResult<()>) {
        if let Some(events) = self.random.of(&self.events) {
            self.call("event", |driver, of| make(driver, events[of]));
        }
    }

    fn captures(&mut self, stream: StreamId) {
        let mode = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed][self.random.below(3) as usize];
        match self.random.below(8) {
            0 => assert_eq!(
                self.host.begin_capture(stream, mode).map_err(|error| error.status),
                self.sim.begin_capture(stream, mode).map_err(|error| error.status)
            ),
            1..4 => assert_eq!(
                self.host.end_capture(stream).map(drop).map_err(|error| error.status),
                self.sim.end_capture(stream).map_err(|error| error.status)
            ),
            4 => {
                let modes = self.call("mode", |driver, _| driver.exchange_capture_mode(mode)).unwrap();
                assert_eq!(modes[0], modes[1]);
            }
            _ => {
                let answers = self.call("is_capturing", |driver, _| driver.is_capturing(stream)).unwrap();
                assert_eq!(answers[0], answers[1]);
            }
        }
    }

    /// Checks that both devices have the same memory at the same places.
    fn compare_memory(&self) {
        for ([host, sim], size) in self.reserved.iter().zip(&self.sizes) {
            let [host, sim] = [
                self.host.physical(Range { address: *host, size: *size }),
                self.sim.physical(Range { address: *sim, size: *size }),
            ];
            assert_eq!(host, sim);
        }
    }
}

#[test]
fn the_host_answers_as_the_simulated_gpu_does() {
    let (mut refused, mut marked, mut copied) = (0, 0, 0);
    for seed in 0..3 {
        let mut both = Both {
            host: HostDriver::new(HostConfig { capacity: CAPACITY }).unwrap(),
            sim: SimGpu::new(SimConfig { capacity: CAPACITY, ..SimConfig::default() }).unwrap(),
            random: Random(seed),
            reserved: Vec::new(),
            sizes: Vec::new(),
            handles: Vec::new(),
            events: Vec::new(),
            plain: Vec::new(),
            refused: 0,
            marked: 0,
            copied: 0,
        };
        for step in 0..CALLS {
            both.step();
            if step % 100 == 0 {
                both.compare_memory();
            }
        }
        refused += both.refused;
        marked += both.marked;
        copied += both.copied;
        assert_eq!(
            both.host.call_stats().iter().map(|(call, stat)| (call, stat.count)).collect::<Vec<_>>(),
            both.sim.call_stats().iter().map(|(call, stat)| (call, stat.count)).collect::<Vec<_>>()
        );
    }
    assert!(refused > CALLS / 2, "{refused} calls were refused: too tame to show anything");
    assert!(marked > 0 && copied > 0, "no filled bytes were read, or none copied");
}
