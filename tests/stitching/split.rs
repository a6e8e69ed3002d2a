//! Chunks that are split: other physical memory comes under live addresses, and no word is lost.
//!
//! On host memory, where blocks hold real words. Each block is filled when it is handed out, and every word of every live
//! block is read after each operation that has split a chunk, and when the block is freed. Programs are random, and their memory
//! is so short that chunks are split again and again; then each call of the driver fails in turn, once or from then on.

#![allow(clippy::print_stderr, reason = "with `--nocapture` a test says what it came to")]

use crate::length::rounds;
use crate::random::Random;
use parking_lot::Mutex;
use seamalloc::driver::host::{HostConfig, HostDriver, HostWork, Piece, Range};
use seamalloc::driver::{Call, CaptureMode, Driver, DriverError, DriverResult, ForwardingDriver, Status, StreamId};
use seamalloc::out_of_memory::Advice;
use seamalloc::{Allocator, Config, Error, PoolId, Route};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4 << 10;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(7);
/// All that is free in the world of [`holes`], in bytes.
const ALL: u64 = 20 * MIB;
const SPLIT: &str = "split:last_resort,chunk_size_mb:16";

/// The calls of an exchange. What only looks, or belongs to the hits of others, is not made to fail.
const OF_MEMORY: [Call; 9] = [
    Call::Reserve,
    Call::AddressFree,
    Call::Create,
    Call::Release,
    Call::Map,
    Call::Unmap,
    Call::SetAccess,
    Call::CloseGate,
    Call::CreateOnHost,
];

/// Host memory, of which calls can be made to fail.
struct Device {
    host: HostDriver,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    /// Calls of [`OF_MEMORY`] so far.
    made: u64,
    /// The first call of [`OF_MEMORY`] that fails, and the number of calls that fail.
    failing: Option<(u64, u64)>,
    /// This one finds too little memory on the device.
    too_little: Option<u64>,
    /// Whether it does not say how much is free.
    tells_nothing: bool,
    /// The most bytes that were ever in use on the device.
    most: u64,
    failed: Vec<Call>,
}

impl ForwardingDriver for Device {
    fn inner(&self) -> &dyn Driver {
        &self.host
    }

    fn make_call<T>(&self, call: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        if call == Call::MemoryInfo && self.book.lock().tells_nothing {
            return Err(DriverError::new(call, Status::UNKNOWN, "made to fail"));
        }
        if OF_MEMORY.contains(&call) {
            let mut book = self.book.lock();
            book.made += 1;
            let made = book.made;
            if book.too_little == Some(made) {
                book.failed.push(call);
                return Err(DriverError::new(call, Status::OUT_OF_MEMORY, "made to fail"));
            }
            if book.failing.is_some_and(|(first, count)| (first..first.saturating_add(count)).contains(&made)) {
                book.failed.push(call);
                return Err(DriverError::new(call, Status::UNKNOWN, "made to fail"));
            }
        }
        let made = make(&self.host);
        if call == Call::Create {
            let info = Driver::memory_info(&self.host).unwrap();
            let mut book = self.book.lock();
            book.most = book.most.max(info.total - info.free);
        }
        made
    }
}

impl Device {
    /// Lets `count` calls fail from the nth on.
    fn fail(&self, nth: u64, count: u64) {
        let most = self.book.lock().most;
        *self.book.lock() = Book { failing: Some((nth, count)), most, ..Book::default() };
    }

    /// Lets the nth call find too little memory, and `count` calls fail from another one on.
    fn fail_short(&self, nth: u64, first: u64, count: u64) {
        let most = self.book.lock().most;
        *self.book.lock() = Book { too_little: Some(nth), failing: Some((first, count)), most, ..Book::default() };
    }

    /// Lets no more calls fail. Returns those that have.
    fn heal(&self) -> Vec<Call> {
        let mut book = self.book.lock();
        let most = book.most;
        std::mem::replace(&mut *book, Book { most, ..Book::default() }).failed
    }
}

/// A program: an allocator, its device, and what it has live: by address the bytes, and the number in the first word.
struct World {
    device: Arc<Device>,
    allocator: Allocator,
    live: BTreeMap<u64, (u64, u64)>,
    numbers: u64,
    words: u64,
    /// The chunks that had been split when all words were last read.
    seen: u64,
    /// Whether only some words of each MiB are written, for programs that run many times.
    sparse: bool,
}

impl World {
    fn new(capacity: u64, options: &str) -> Self {
        let device = Device { host: HostDriver::new(HostConfig { capacity }).unwrap(), book: Mutex::default() };
        let device = Arc::new(device);
        let allocator = Allocator::new(Arc::<Device>::clone(&device), Config::parse(options).unwrap()).unwrap();
        Self { device, allocator, live: BTreeMap::new(), numbers: 0, words: 0, seen: 0, sparse: false }
    }

    fn allocate(&mut self, size: u64, stream: StreamId) -> Result<u64, Error> {
        let address = self.allocator.allocate(size, stream)?;
        self.filled(address, size, stream);
        Ok(address)
    }

    /// Fills a new block, or the beginning and end of each MiB of it.
    fn filled(&mut self, address: u64, size: u64, stream: StreamId) {
        let size = size / 8 * 8;
        self.numbers += 1 << 40;
        let first = self.numbers;
        for (offset, size) in self.parts_of(size) {
            let first = first + offset / 8;
            let words =
                move |at: u64, words: &mut [u64]| words.iter_mut().zip(at..).for_each(|(word, at)| *word = first + at);
            let to = Range { address: address + offset, size };
            self.device.host.launch(stream, HostWork::Fill { to, words: Arc::new(words) }).unwrap();
        }
        assert!(self.live.insert(address, (size, first)).is_none());
    }

    /// Returns the offsets and bytes of the parts of a block that are filled.
    fn parts_of(&self, size: u64) -> Vec<(u64, u64)> {
        if !self.sparse || size <= 2 * PAGE {
            return vec![(0, size)];
        }
        let ends = (0..size).step_by(MIB as usize).chain((MIB..size).step_by(MIB as usize).map(|end| end - PAGE));
        ends.chain([size - PAGE]).map(|offset| (offset, PAGE.min(size - offset))).collect()
    }

    fn free(&mut self, address: u64) {
        self.check(address);
        self.live.remove(&address).unwrap();
        self.allocator.free(address).unwrap();
    }

    /// Reads every word of a live block that was filled.
    fn check(&mut self, address: u64) {
        let (size, first) = self.live[&address];
        let wrong = Arc::new(AtomicU64::new(0));
        Driver::synchronize(&self.device.host).unwrap();
        for (offset, size) in self.parts_of(size) {
            let (found, first) = (Arc::clone(&wrong), first + offset / 8);
            let see = move |at: u64, words: &[u64]| {
                let wrong = words.iter().zip(at..).filter(|(word, at)| **word != first + at).count();
                found.fetch_add(wrong as u64, Ordering::Relaxed);
            };
            let work = HostWork::Look { at: Range { address: address + offset, size }, see: Arc::new(see) };
            self.device.host.launch(MAIN, work).unwrap();
            self.words += size / 8;
        }
        Driver::synchronize(&self.device.host).unwrap();
        let wrong = wrong.load(Ordering::Relaxed);
        assert_eq!(wrong, 0, "{wrong} words of the block of {size} bytes at {address:#x} are not its own");
    }

    /// Reads every word of all live blocks, and looks whether the allocator, the device and this book agree.
    fn check_all(&mut self) {
        self.allocator.reports().check().unwrap();
        assert_eq!(self.device.host.faults(), []);
        let mut pieces: Vec<Piece> = Vec::new();
        for (address, (size, _)) in &self.live {
            let of = self.device.host.physical(Range { address: *address, size: *size });
            assert_eq!(of.iter().map(|piece| piece.size).sum::<u64>(), *size, "memory is missing at {address:#x}");
            pieces.extend(of);
        }
        pieces.sort_unstable_by_key(|piece| (piece.memory, piece.offset));
        for two in pieces.windows(2) {
            let apart = two[0].memory != two[1].memory || two[0].offset + two[0].size <= two[1].offset;
            assert!(apart, "two live blocks have the same memory: {two:?}");
        }
        let info = Driver::memory_info(&self.device.host).unwrap();
        assert_eq!(self.allocator.stats().reserved_bytes.all.current, info.total - info.free);
        let live: Vec<u64> = self.live.keys().copied().collect();
        live.into_iter().for_each(|address| self.check(address));
    }

    fn splits(&self) -> u64 {
        self.allocator.stats().splits.chunks
    }

    /// Reads all words if a chunk was split since the last time.
    fn check_if_split(&mut self) {
        if self.splits() > self.seen {
            self.seen = self.splits();
            self.check_all();
        }
    }

    /// Frees everything, and looks whether the device has it all back.
    fn end(mut self) {
        let live: Vec<u64> = self.live.keys().copied().collect();
        live.into_iter().for_each(|address| self.free(address));
        self.allocator.empty_cache().unwrap();
        assert_eq!(self.allocator.stats().reserved_bytes.all.current, 0);
        let Self { device, allocator, .. } = self;
        drop(allocator);
        let leaks = device.host.leaks();
        assert_eq!((leaks.handles, leaks.mappings, leaks.reservations), (0, 0, 0), "{leaks:?}");
    }
}

/// Three chunks of 8 MiB on a device of 32 MiB; in each of them 2 MiB in use, 4 free and 2 in use: views reach none of it.
fn holes(options: &str) -> World {
    holes_in(World::new(32 * MIB, &in_holes(options)))
}

fn in_holes(options: &str) -> String {
    format!("split:last_resort,chunk_size_mb:8,{options}")
}

fn holes_in(mut world: World) -> World {
    to_be_holes(&mut world, 3).into_iter().for_each(|hole| world.free(hole));
    world
}

/// Fills so many chunks of 8 MiB with blocks of 2, 4 and 2 MiB each. Returns the middle ones.
fn to_be_holes(world: &mut World, chunks: u64) -> Vec<u64> {
    let all = world.allocate(chunks * 8 * MIB, MAIN).unwrap();
    world.free(all);
    let mut fill = |_| [2, 4, 2].map(|size| world.allocate(size * MIB, MAIN).unwrap())[1];
    (0..chunks).map(&mut fill).collect()
}

#[test]
fn what_lies_free_inside_of_chunks_serves_a_request() {
    for options in ["", "sharing:wait", "sharing:never", "sharing:completed"] {
        let mut world = holes(options);
        let before: Vec<u64> = world.live.keys().copied().collect();
        // 8 MiB are left on the device, and 12 in the holes.
        let last = world.allocate(ALL, MAIN).unwrap();
        let splits = world.allocator.stats().splits;
        assert_eq!((splits.chunks, splits.parts, splits.copied_bytes), (3, 9, 12 * MIB), "{options}");
        world.check_all();
        world.free(last);
        assert_eq!(before, world.live.keys().copied().collect::<Vec<_>>(), "addresses have changed");
        // The free memory is where it was, only finer: it serves again, and no chunk is split for it.
        world.allocate(ALL, MAIN).unwrap();
        assert_eq!(world.allocator.stats().splits, splits, "{options}");
        world.check_all();
        world.end();
    }
}

#[test]
fn it_is_refused_where_nothing_may_be_exchanged() {
    let refused = |world: &mut World, why: &str| {
        let answer = world.allocate(ALL, MAIN);
        assert!(matches!(answer, Err(Error::OutOfMemory(_))), "{why}: {answer:?}");
        assert_eq!(world.splits(), 0, "{why}");
        world.check_all();
    };
    let mut world = holes("split:off");
    refused(&mut world, "off");
    world.end();
    let mut world = holes("");
    let live: Vec<u64> = world.live.keys().copied().collect();
    live.iter().for_each(|address| world.allocator.sharing().pin_physical(*address).unwrap());
    refused(&mut world, "fixed");
    world.end();
    let mut world = holes("");
    let shared: Vec<u64> = world.live.keys().copied().collect();
    shared.iter().for_each(|address| drop(world.allocator.sharing().export(*address).unwrap()));
    refused(&mut world, "shared with other processes");
    world.end();
    let mut world = holes("");
    let pool = world.allocator.pools().create();
    world.allocator.pools().begin(pool, Route::stream(SIDE).capturing()).unwrap();
    world.device.host.begin_capture(SIDE, CaptureMode::Global).unwrap();
    let answer = world.allocator.allocate(ALL, MAIN);
    assert!(matches!(answer, Err(Error::OutOfMemory(_))), "during a capture: {answer:?}");
    world.device.host.end_capture(SIDE).unwrap();
    world.allocator.pools().end(pool).unwrap();
    assert_eq!(world.splits(), 0);
    world.allocate(ALL, MAIN).unwrap();
    assert!(world.splits() > 0, "after it");
    world.check_all();
    world.end();
}

/// Views over the chunks that are split, one in use and one that is not, keep their addresses.
#[test]
fn views_keep_their_addresses_and_serve_again() {
    let mut world = World::new(112 * MIB, SPLIT);
    let small: Vec<u64> = (0..6).map(|_| world.allocate(16 * MIB, MAIN).unwrap()).collect();
    [0, 2, 4].iter().for_each(|at: &usize| world.free(small[*at]));
    // Stitched of three chunks, of which its last 8 MiB are left.
    let stitched = world.allocate(40 * MIB, MAIN).unwrap();
    assert_eq!(world.allocator.stats().views_built, 1);
    world.free(small[1]);
    let inside = [4, 6].map(|size| world.allocate(size * MIB, MAIN).unwrap());
    world.free(inside[0]);
    world.free(stitched);
    let first = world.allocate(38 * MIB, MAIN).unwrap();
    let built = world.allocator.stats().views_built;
    let mut more = Vec::new();
    while let Ok(address) = world.allocate(6 * MIB, MAIN) {
        world.check_if_split();
        more.push(address);
    }
    world.check_all();
    for address in more {
        world.free(address);
    }
    world.check(first);
    assert!(world.allocator.stats().views_built >= built);
    world.end();
}

/// Every call that a request with splits makes fails once, or it and all that follow.
#[test]
fn every_call_of_a_split_may_fail() {
    every_call_may_fail(8 * MIB, "");
}

#[test]
fn every_call_of_a_split_may_fail_where_streams_share_nothing() {
    every_call_may_fail(8 * MIB, "sharing:never");
}

/// With room for the copies of one chunk at a time. With 8 MiB two chunks share a gate.
#[test]
fn every_call_of_a_split_may_fail_with_little_room() {
    every_call_may_fail(4 * MIB, "");
}

/// Without room for any copy, the first chunk is split through host memory.
#[test]
fn every_call_of_a_split_may_fail_without_room() {
    every_call_may_fail(0, "");
}

/// Another process takes the memory that a split through host memory has given back: the parts stay in host memory with all words, and
/// come back when the program asks, or when live memory is low next.
#[test]
fn parts_of_a_split_that_stay_in_host_memory_come_back() {
    for asks in [true, false] {
        let mut stayed = 0;
        for nth in 1.. {
            let mut world = holes_in(World { sparse: true, ..World::new(24 * MIB, &in_holes("")) });
            // Memory does not count as low twice within a few operations.
            for _ in 0..4 {
                let address = world.allocate(2 * MIB, MAIN).unwrap();
                world.free(address);
            }
            world.device.fail_short(nth, u64::MAX, 1);
            let answer = world.allocator.allocate(12 * MIB, MAIN);
            let failed = world.device.heal();
            let spilled = world.allocator.stats().spilled_bytes.current;
            stayed += u64::from(spilled > 0);
            if let Ok(address) = answer {
                world.filled(address, 12 * MIB, MAIN);
                world.check_all();
                if asks {
                    assert_eq!(world.allocator.spill().restore().unwrap(), spilled);
                }
                // Half of what is live becomes free.
                world.free(address);
            }
            assert_eq!(world.allocator.stats().spilled_bytes.current, 0, "{asks}, {nth}: {failed:?}");
            world.check_all();
            world.end();
            if failed.is_empty() {
                break;
            }
        }
        assert!(stayed > 0, "too tame");
    }
}

/// Below a limit that is lower than what is held there is no room for parts that come back, so none goes to host memory.
#[test]
fn no_chunk_is_split_through_host_memory_beyond_a_limit() {
    let mut world = holes_in(World::new(24 * MIB, &in_holes("")));
    world.allocator.limits().set_bytes(Some(14 * MIB)).unwrap();
    assert!(world.allocate(12 * MIB, MAIN).is_err());
    let stats = world.allocator.stats();
    assert_eq!((stats.spilled_bytes.allocated, stats.splits.chunks), (0, 0));
    world.check_all();
    world.allocator.limits().set_bytes(None).unwrap();
    world.allocate(12 * MIB, MAIN).unwrap();
    assert!(world.allocator.stats().spilled_bytes.allocated > 0);
    world.check_all();
    world.end();
}

fn every_call_may_fail(room: u64, options: &str) {
    let all = ALL - 8 * MIB + room;
    for count in [1, 2, u64::MAX] {
        let (mut nth, mut met) = (1, Vec::new());
        // In the short form each call fails once, and every third one with others behind it.
        let step = if count == 1 { 1 } else { rounds(3, 1) };
        loop {
            let mut world = holes_in(World { sparse: true, ..World::new(24 * MIB + room, &in_holes(options)) });
            world.device.fail(nth, count);
            let answer = world.allocator.allocate(all, MAIN);
            let failed = world.device.heal();
            let when = format!("{options}, room for {room}: {count} from the {nth}th, {failed:?}");
            match &answer {
                Ok(address) => world.filled(*address, all, MAIN),
                Err(Error::Driver(_) | Error::OutOfMemory(_)) => assert!(!failed.is_empty(), "{when}"),
                Err(error) => panic!("{when}: {error}"),
            }
            // What could not be undone is, before anything else.
            if world.allocator.allocate(2 * MIB, SIDE).map(|address| world.filled(address, 2 * MIB, SIDE)).is_err() {
                world.allocator.empty_cache().unwrap();
            }
            world.check_all();
            if answer.is_err() {
                let again = world.allocate(all - 2 * MIB, MAIN);
                assert!(again.is_ok(), "{when}, then: {again:?}");
                world.check_all();
            }
            world.end();
            if failed.is_empty() {
                break;
            }
            met.extend(failed.first());
            nth += step;
        }
        for call in OF_MEMORY {
            let rare = call == Call::AddressFree || (call == Call::CreateOnHost && room > 0);
            assert!(met.contains(&call) || rare || step > 1, "{options}: {call} never failed");
        }
    }
}

/// The results of random programs.
#[derive(Debug, Default)]
struct Tally {
    splits: u64,
    refusals: u64,
    /// How often a word was read, and was right.
    words: u64,
}

/// A random program whose memory is short.
fn random_program(seed: u64, options: &str, operations: u64) -> Tally {
    let mut random = Random(seed);
    let mut world = World::new(160 * MIB, &format!("{SPLIT},{options}"));
    let mut refusals = 0;
    for _ in 0..operations {
        let stream = [MAIN, MAIN, SIDE, StreamId(8)][random.below(4) as usize];
        let pick = |world: &World, random: &mut Random| {
            world.live.keys().copied().nth(random.below(world.live.len() as u64) as usize)
        };
        if random.below(100) < 55 {
            let size = match random.below(10) {
                0..3 => 512 * (1 + random.below(2_000)),
                3..6 => 2 * MIB * (1 + random.below(5)),
                6..9 => MIB + 4096 * random.below(3_000),
                _ => MIB * (20 + random.below(40)),
            };
            match world.allocate(size, stream) {
                Ok(_) => {}
                Err(Error::OutOfMemory(_)) => {
                    refusals += 1;
                    for _ in 0..1 + world.live.len() / 4 {
                        pick(&world, &mut random).into_iter().for_each(|address| world.free(address));
                    }
                }
                Err(error) => panic!("seed {seed}, {options}: {error}"),
            }
        } else if let Some(address) = pick(&world, &mut random) {
            world.free(address);
        }
        if random.below(400) == 0 {
            world.allocator.empty_cache().unwrap();
        }
        world.check_if_split();
    }
    world.check_all();
    let tally = Tally { splits: world.splits(), refusals, words: world.words };
    world.end();
    tally
}

/// Operations of a random program; more for a long hunt with `SEAMALLOC_SPLIT_OPS`.
fn operations() -> u64 {
    let set = std::env::var("SEAMALLOC_SPLIT_OPS").ok().and_then(|text| text.parse().ok());
    set.unwrap_or(if cfg!(feature = "paranoid") { 100 } else { 250 })
}

#[test]
fn random_programs_lose_no_word() {
    let mut all = Tally::default();
    let options = ["", "sharing:never", "sharing:wait", "memory_limit:150MiB", "chunk_size_mb:64"];
    for (seed, options) in (0..).zip(options) {
        let done = random_program(seed, options, operations());
        all.splits += done.splits;
        all.refusals += done.refusals;
        all.words += done.words;
    }
    eprintln!("{all:?}");
    assert!(all.splits > 5 && all.refusals > 0, "{all:?}: too tame to show anything");
}

/// A capture waits for nothing and splits nothing, so it has all of the device.
#[test]
fn a_capture_may_take_the_last_of_the_device() {
    for options in ["split:off", "split:last_resort"] {
        let world = World::new(64 * MIB, &format!("{options},chunk_size_mb:8"));
        let pool = world.allocator.pools().create();
        world.allocator.pools().begin(pool, Route::stream(SIDE).capturing()).unwrap();
        world.device.host.begin_capture(SIDE, CaptureMode::Global).unwrap();
        let mut taken = 0;
        while world.allocator.allocate(8 * MIB, SIDE).is_ok() {
            taken += 8 * MIB;
        }
        world.device.host.end_capture(SIDE).unwrap();
        world.allocator.pools().end(pool).unwrap();
        assert_eq!(taken, 64 * MIB, "{options}");
    }
}

/// Two chunks of 16 MiB, in each of them a middle in use; a private pool has a block stitched of the end of the one and the
/// front of the other, and has freed it. Returns the pool, and the block.
fn stitched_in_a_pool(world: &mut World) -> (PoolId, u64) {
    let chunks = world.allocate(3 * 16 * MIB, MAIN).unwrap();
    world.free(chunks);
    // |4 live, 8 free, 4| |16 live| |4 free, 4 live, 4 free, 4 live|
    let all = [4, 8, 4, 16, 4, 4, 4, 4].map(|size| world.allocate(size * MIB, MAIN).unwrap());
    for at in [2, 4] {
        world.free(all[at]);
    }
    let pool = world.allocator.pools().create();
    let block = world.allocator.pools().allocate(pool, 8 * MIB, SIDE).unwrap();
    assert_eq!(world.allocator.stats().views_built, 1);
    world.filled(block, 8 * MIB, SIDE);
    for at in [1, 6] {
        world.free(all[at]);
    }
    (pool, block)
}

#[test]
fn a_checkpoint_is_restored_over_chunks_that_were_split() {
    for room in [8 * MIB, 16 * MIB] {
        let mut world = World::new(48 * MIB + room, "split:last_resort,chunk_size_mb:16");
        let (pool, block) = stitched_in_a_pool(&mut world);
        let saved = world.allocator.pools().blocks(pool).unwrap();
        world.check(block);
        let contents = world.live.remove(&block).unwrap();
        world.allocator.free(block).unwrap();
        let request = room + 8 * MIB;
        let more = world.allocate(request, MAIN).unwrap();
        assert!(world.splits() > 0, "{room}");
        world.check_all();
        world.allocator.pools().restore(pool, &saved).unwrap();
        world.live.insert(block, contents);
        world.check_all();
        world.free(more);
        world.allocator.free(block).unwrap();
        world.live.remove(&block);
        world.allocator.pools().release(pool).unwrap();
        world.end();
    }
}

/// Memory of one stream never serves another: what is split is given back, and taken anew, once.
#[test]
fn no_more_is_split_than_a_request_of_another_stream_needs() {
    for size in [512, 4 * MIB] {
        let mut world = World::new(12 * 8 * MIB, "split:last_resort,chunk_size_mb:8,sharing:never");
        let mut holes = to_be_holes(&mut world, 12);
        // One chunk is wholly free, to make room for copies.
        let last: Vec<u64> = world.live.keys().copied().skip(33).collect();
        last.into_iter().for_each(|address| world.free(address));
        holes.pop();
        holes.into_iter().for_each(|hole| world.free(hole));
        world.allocate(size, SIDE).unwrap();
        assert_eq!(world.splits(), 0, "{size}: {:?}", world.allocator.stats().splits);
        world.check_all();
        world.end();
    }
}

/// Where the bounds forbid views, free memory serves a request only where it grows in one piece.
#[test]
fn no_more_is_split_than_a_request_without_views_needs() {
    let mut world = World::new(13 * 8 * MIB, "split:last_resort,chunk_size_mb:8,max_views:0");
    to_be_holes(&mut world, 12).into_iter().for_each(|hole| world.free(hole));
    world.allocate(12 * MIB, MAIN).unwrap();
    assert_eq!(world.splits(), 3);
    world.check_all();
    world.end();
}

/// A private pool's hits do not go to addresses whose memory is missing.
#[test]
fn a_hit_of_a_private_pool_has_memory() {
    for held in [false, true] {
        let mut met = 0;
        for nth in 1.. {
            let mut world = World { sparse: true, ..World::new(32 * MIB, &in_holes("")) };
            let chunk = world.allocate(8 * MIB, MAIN).unwrap();
            world.free(chunk);
            let pool = world.allocator.pools().create();
            let [_, hole, _] = [2, 4, 2].map(|size| world.allocate(size * MIB, MAIN).unwrap());
            let of_pool = world.allocator.pools().allocate(pool, 2 * MIB, MAIN).unwrap();
            world.allocator.free(of_pool).unwrap();
            world.free(hole);
            world.device.fail(nth, u64::MAX);
            let answer = world.allocator.allocate(26 * MIB, MAIN);
            let hit = if held {
                world.allocator.pools().allocate_held(pool, 2 * MIB, MAIN)
            } else {
                world.allocator.pools().allocate(pool, 2 * MIB, MAIN).map(Some)
            };
            let failed = world.device.host.faults().len();
            assert_eq!(failed, 0);
            if let Ok(Some(address)) = hit {
                let of = world.device.host.physical(Range { address, size: 2 * MIB });
                let mapped = of.iter().map(|piece| piece.size).sum::<u64>();
                assert_eq!(mapped, 2 * MIB, "{nth}th call: a block without memory was handed out");
            } else {
                met += 1;
            }
            if world.device.heal().is_empty() {
                break;
            }
            drop(answer);
        }
        assert!(met > 0);
    }
}

/// A chunk that is to be split is in a view that nobody uses, beside a chunk that is given back to split another.
fn in_an_unused_view() -> World {
    let mut world = World { sparse: true, ..World::new(28 * MIB, "split:last_resort,chunk_size_mb:8") };
    let chunks = [6, 8, 8].map(|size| world.allocate(size * MIB, MAIN).unwrap());
    chunks.into_iter().for_each(|chunk| world.free(chunk));
    let [_, gap, _, hole, _] = [2, 4, 2, 2, 4].map(|size| world.allocate(size * MIB, MAIN).unwrap());
    world.free(gap);
    let stitched = world.allocate(12 * MIB, MAIN).unwrap();
    assert_eq!(world.allocator.stats().views_built, 1);
    world.free(stitched);
    world.free(hole);
    world
}

#[test]
fn a_failure_in_a_failure_is_healed() {
    in_an_unused_view().allocate(20 * MIB, MAIN).unwrap();
    let mut broken = Vec::new();
    for make in
        [in_an_unused_view as fn() -> World, || holes_in(World { sparse: true, ..World::new(32 * MIB, &in_holes("")) })]
    {
        for nth in 8..24 {
            for after in 1..8 {
                for count in [1, 3] {
                    let mut world = make();
                    world.device.fail_short(nth, nth + after, count);
                    let when = format!("too little at {nth}, {count} failures {after} later");
                    if let Ok(address) = world.allocator.allocate(20 * MIB, MAIN) {
                        world.filled(address, 20 * MIB, MAIN);
                    }
                    let info = Driver::memory_info(&world.device.host).unwrap();
                    let reserved = world.allocator.stats().reserved_bytes.all.current;
                    let failed = world.device.heal();
                    if reserved != info.total - info.free {
                        broken
                            .push(format!("{when}: {reserved} reserved, {} used; {failed:?}", info.total - info.free));
                    }
                    let healed = world.allocator.empty_cache();
                    if let Err(error) = healed {
                        broken.push(format!("{when}: {error}; {failed:?}"));
                        std::mem::forget(world);
                        continue;
                    }
                    world.check_all();
                    world.end();
                }
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Memory that a private pool has freed: a graph may still write and read it.
struct Ghost {
    pool: usize,
    address: u64,
    size: u64,
    first: u64,
}

/// Programs with private pools, checkpoints, waiting blocks and shared ones, while calls fail now and then.
fn hostile_program(seed: u64, options: &str, operations: u64) -> (u64, u64, u64) {
    let mut random = Random(seed);
    let mut world = World { sparse: true, ..World::new(160 * MIB, &format!("split:last_resort,{options}")) };
    let pools: Vec<PoolId> = (0..2).map(|_| world.allocator.pools().create()).collect();
    let mut ghosts: Vec<Ghost> = Vec::new();
    let mut of_pool: BTreeMap<u64, usize> = BTreeMap::new();
    let (mut refusals, mut failures) = (0, 0);
    let physical = |world: &World, address: u64, size: u64| world.device.host.physical(Range { address, size });
    for operation in 0..operations {
        let stream = [MAIN, MAIN, SIDE, StreamId(8)][random.below(4) as usize];
        let size = match random.below(10) {
            0..3 => 512 * (1 + random.below(2_000)),
            3..6 => 2 * MIB * (1 + random.below(5)),
            6..9 => MIB + 4096 * random.below(3_000),
            _ => MIB * (20 + random.below(40)),
        };
        let fails = random.below(4) == 0;
        if fails {
            let nth = 1 + random.below(30);
            if random.below(2) == 0 {
                world.device.fail(nth, 1 + random.below(4));
            } else {
                world.device.fail_short(nth, nth + 1 + random.below(6), random.below(3));
            }
        }
        let when = format!("seed {seed}, {options}, operation {operation}");
        let answer = match random.below(100) {
            0..45 => world.allocator.allocate(size, stream).map(|address| world.filled(address, size, stream)),
            45..58 => {
                let pool = random.below(2) as usize;
                let stream = [MAIN, SIDE][random.below(2) as usize];
                world.allocator.pools().allocate(pools[pool], size.min(24 * MIB), stream).map(|address| {
                    let size = size.min(24 * MIB);
                    let new = physical(&world, address, size);
                    let meets = |one: &Piece, other: &Piece| {
                        one.memory == other.memory
                            && one.offset < other.offset + other.size
                            && other.offset < one.offset + one.size
                    };
                    ghosts.retain(|ghost| {
                        let old = physical(&world, ghost.address, ghost.size);
                        let met = old.iter().any(|old| new.iter().any(|new| meets(old, new)));
                        assert!(!met || ghost.pool == pool, "{when}: a pool got memory of another");
                        !met
                    });
                    of_pool.insert(address, pool);
                    world.filled(address, size, stream);
                })
            }
            _ => {
                let nth = random.below(world.live.len() as u64) as usize;
                if let Some(address) = world.live.keys().copied().nth(nth) {
                    let (size, first) = world.live[&address];
                    if !of_pool.contains_key(&address) && random.below(4) == 0 {
                        world.allocator.record_stream(address, StreamId(9)).unwrap();
                    }
                    world.device.heal();
                    world.free(address);
                    if let Some(pool) = of_pool.remove(&address) {
                        ghosts.push(Ghost { pool, address, size, first });
                    }
                }
                Ok(())
            }
        };
        let info = Driver::memory_info(&world.device.host).unwrap();
        assert_eq!(world.allocator.stats().reserved_bytes.all.current, info.total - info.free, "{when}");
        let failed = world.device.heal();
        let config = world.allocator.config();
        let stats = world.allocator.stats();
        let limit = config.memory_limit.unwrap_or(u64::MAX);
        assert!(world.device.book.lock().most <= limit && stats.reserved_bytes.all.peak <= limit, "{when}");
        let within = stats.view_mappings <= config.max_view_mappings as u64 && stats.views <= config.max_views as u64;
        assert!(within, "{when}: {stats:?}");
        match answer {
            Ok(()) => {}
            Err(Error::OutOfMemory(report)) => {
                refusals += 1;
                if failed.is_empty()
                    && report.pool == PoolId::NONE
                    && let [Advice::AskLess { missing: 0, at_most }] = report.advice[..]
                    && at_most > 0
                {
                    let answer = world.allocator.allocate(at_most, report.stream);
                    assert!(answer.is_ok(), "{when}: {report:?} {answer:?}");
                    answer.into_iter().for_each(|address| world.allocator.free(address).unwrap());
                }
                for _ in 0..1 + world.live.len() / 4 {
                    let nth = random.below(world.live.len() as u64) as usize;
                    if let Some(address) = world.live.keys().copied().nth(nth).filter(|at| !of_pool.contains_key(at)) {
                        // Memory may be missing until the next request.
                        drop(world.allocator.allocate(512, MAIN).map(|address| world.allocator.free(address)));
                        world.free(address);
                    }
                }
            }
            Err(Error::Driver(_)) => {
                assert!(!failed.is_empty(), "{when}");
                failures += 1;
            }
            Err(error) => panic!("{when}: {error}"),
        }
        if !failed.is_empty() {
            // What is missing comes back.
            match world.allocator.allocate(512, MAIN) {
                Ok(address) => world.allocator.free(address).unwrap(),
                Err(Error::OutOfMemory(_)) => {}
                Err(error) => panic!("{when}, after {failed:?}: {error}"),
            }
        }
        if world.splits() > world.seen || !failed.is_empty() {
            world.seen = world.splits();
            world.check_all();
            for Ghost { address, size, first, .. } in &ghosts {
                let old = world.live.insert(*address, (*size, *first));
                world.check(*address);
                world.live.remove(address);
                old.map(|old| world.live.insert(*address, old));
            }
        }
        if random.below(60) == 0 {
            let pool = random.below(2) as usize;
            let mine: Vec<u64> = of_pool.iter().filter(|(_, of)| **of == pool).map(|(at, _)| *at).collect();
            // What is free of a stream may lie in the way of what is saved: as in a program, nothing is allocated between.
            let saved = world.allocator.pools().blocks(pools[pool]).unwrap();
            assert_eq!(saved.len(), mine.len());
            let big = world.allocator.allocate(MIB * (20 + random.below(60)), MAIN);
            world.allocator.pools().restore(pools[pool], &saved).unwrap();
            big.into_iter().for_each(|address| world.allocator.free(address).unwrap());
            world.check_all();
        }
        if random.below(300) == 0 {
            world.allocator.empty_cache().unwrap();
        }
    }
    world.check_all();
    let done = (world.splits(), refusals, failures);
    pools.into_iter().for_each(|pool| world.allocator.pools().release(pool).unwrap());
    world.end();
    done
}

#[test]
fn hostile_programs_lose_no_word() {
    let mut all = (0, 0, 0);
    for (seed, options) in (100..).zip([
        "chunk_size_mb:16",
        "chunk_size_mb:16,sharing:never",
        "chunk_size_mb:32,sharing:wait",
        "chunk_size_mb:16,max_view_mappings:40",
        "chunk_size_mb:32,memory_limit:120MiB,max_views:6",
        "chunk_size_mb:64,sharing:completed",
    ]) {
        for nth in 0..programs() {
            let done = hostile_program(seed + 10 * nth, options, operations());
            all = (all.0 + done.0, all.1 + done.1, all.2 + done.2);
        }
    }
    assert!(all.0 > 5 && all.1 > 0 && all.2 > 0, "{all:?}");
}

fn programs() -> u64 {
    std::env::var("SEAMALLOC_SPLIT_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// A device that does not tell how much is free has room until it refuses.
#[test]
fn a_device_that_does_not_tell_what_is_free_is_not_waited_for() {
    let world = World::new(64 * MIB, "split:last_resort,chunk_size_mb:8");
    world.device.book.lock().tells_nothing = true;
    world.allocator.allocate(8 * MIB, MAIN).unwrap();
    assert_eq!(world.allocator.stats().num_sync_all_streams, 0);
}
