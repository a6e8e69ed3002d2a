//! A random program: operations of an allocator in any order, with calls of the driver that fail. Every word is read, and the
//! allocator and the device agree to the byte after each operation.

use crate::device::{Fault, MAIN, MIB, SIDE, THIRD};
use crate::length::rounds;
use crate::random::Random;
use crate::sleep::file;
use crate::world::{Live, World};
use parking_lot::Mutex;
use seamalloc::driver::{Call, CaptureMode, Status, StreamId};
use seamalloc::{Advice, Backup, Error, PoolId, Route, SpillCandidate, SpillPolicy};
use std::collections::BTreeSet;

const CAPTURED: StreamId = StreamId(9);

/// A kind of operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Allocate,
    Reserve,
    /// An allocation that grows gets another size.
    Resize,
    Free,
    Advise,
    /// A stream is recorded for an allocation, and uses it.
    Record,
    /// An allocation is written with other words.
    Rewrite,
    Unspill,
    /// A tag sleeps or wakes.
    Turn,
    /// A tag is released, awake or asleep, and another one begins.
    RenewTag,
    /// A capture begins or ends.
    Capture,
    /// Cached memory goes back to the driver.
    Release,
    /// Another memory limit is set.
    Limit,
    /// A stream is forgotten.
    Forget,
}

/// The kind of program.
pub(crate) struct Mix {
    /// Bytes of the device.
    pub(crate) capacity: u64,
    /// Options beside those of a program.
    pub(crate) options: &'static str,
    /// How many operations a program has, in the short form and in the long one.
    pub(crate) operations: (u64, u64),
    /// How often each kind of operation comes.
    pub(crate) weights: &'static [(Operation, u64)],
    pub(crate) tags: usize,
    /// Private pools that share chunks.
    pub(crate) pools: usize,
    /// One of so many requests goes to each tag and pool.
    pub(crate) share: u64,
    /// The bytes of a request.
    pub(crate) size: fn(&mut Random) -> u64,
    /// All words are read after one of so many operations.
    pub(crate) reads: u64,
    /// Whether memory to spill is chosen at random.
    pub(crate) spills_at_random: bool,
}

impl Mix {
    /// Returns how many operations a program has.
    pub(crate) fn operations(&self) -> u64 {
        let (short, long) = self.operations;
        if cfg!(feature = "paranoid") { long * 2 / 5 } else { rounds(short, long) }
    }

    fn draw(&self, random: &mut Random) -> Operation {
        let mut left = random.below(self.weights.iter().map(|(_, weight)| weight).sum());
        for (operation, weight) in self.weights {
            if left < *weight {
                return *operation;
            }
            left -= weight;
        }
        unreachable!("a number below the sum of all weights is below one of them")
    }
}

/// How often programs did what a test is about.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) words: u64,
    pub(crate) views: u64,
    /// Chunks that were spilled, and that came back.
    pub(crate) spilled: u64,
    pub(crate) returned: u64,
    pub(crate) grown: u64,
    pub(crate) slept: u64,
    pub(crate) woken: u64,
    pub(crate) captures: u64,
    pub(crate) failures: u64,
    pub(crate) refusals: u64,
}

/// Chooses at random.
struct AtRandom(Mutex<Random>);

impl SpillPolicy for AtRandom {
    fn name(&self) -> &'static str {
        "at random"
    }

    fn coldness(&self, _: &SpillCandidate) -> Option<u64> {
        let mut random = self.0.lock();
        let never = random.below(6) == 0;
        (!never).then(|| random.below(1 << 30))
    }
}

pub(crate) struct Program<'a> {
    mix: &'static Mix,
    pub(crate) random: Random,
    pub(crate) world: World,
    /// The tags, and behind them the private pools.
    pools: Vec<PoolId>,
    /// Tags that were released. Their blocks may live on.
    released: Vec<PoolId>,
    /// The pool of the capture that is under way, and whether it is made for it.
    pub(crate) capture: Option<(PoolId, bool)>,
    /// Allocations that only a part of the program frees, and not a random operation.
    pub(crate) own: BTreeSet<u64>,
    has_forgotten: bool,
    pub(crate) fails: bool,
    /// Chunks that were spilled and that came back by the time of the last look.
    seen: (u64, u64),
    tally: &'a mut Tally,
}

/// Runs a program of random operations.
pub(crate) fn run(mix: &'static Mix, seed: u64, options: &str, fails: bool, tally: &mut Tally) {
    let mut program = Program::new(mix, seed, options, fails, tally);
    for operation in 0..mix.operations() {
        if fails && program.random.below(4) == 0 {
            program.let_fail();
        }
        program.operate();
        program.check(operation % mix.reads == 0);
    }
    program.end();
}

/// Runs a program for each seed with its options. Returns their tally together.
pub(crate) fn run_all<'o>(mix: &'static Mix, programs: impl IntoIterator<Item = (u64, &'o str)>, fails: bool) -> Tally {
    let mut all = Tally::default();
    for (seed, options) in programs {
        run(mix, seed, options, fails, &mut all);
    }
    println!("{all:?}");
    all
}

impl<'a> Program<'a> {
    pub(crate) fn new(mix: &'static Mix, seed: u64, options: &str, fails: bool, tally: &'a mut Tally) -> Self {
        let world = World::new(mix.capacity, &format!("{},{options}", mix.options));
        if mix.spills_at_random {
            world.allocator.spill().set_policy(AtRandom(Mutex::new(Random(seed + 1000))));
        }
        let tags = (0..mix.tags).map(|_| world.allocator.tags().create().unwrap());
        let pools = tags.chain((0..mix.pools).map(|_| world.allocator.pools().create())).collect();
        Self {
            mix,
            random: Random(seed),
            world,
            pools,
            released: Vec::new(),
            capture: None,
            own: BTreeSet::new(),
            has_forgotten: false,
            fails,
            seen: (0, 0),
            tally,
        }
    }

    /// Checks the books after an operation; reads all words too where `reads` or where memory was spilled or came back.
    pub(crate) fn check(&mut self, reads: bool) {
        self.mend();
        let spills = self.world.stats().spills;
        let seen = (spills.chunks, spills.returned_chunks);
        if self.capture.is_none() && (reads || seen != self.seen) {
            self.seen = seen;
            self.world.check_all();
        } else {
            self.world.check_books();
            self.world.check_apart();
        }
    }

    /// Checks everything a last time, and ends the program.
    pub(crate) fn end(mut self) {
        self.end_capture();
        self.check(true);
        let stats = self.world.stats();
        self.tally.words += self.world.device.words_read();
        self.tally.views += stats.views_built;
        self.tally.spilled += stats.spills.chunks;
        self.tally.returned += stats.spills.returned_chunks;
        self.world.end_empty(&self.pools);
    }

    /// Lets some of the next calls fail.
    pub(crate) fn let_fail(&mut self) {
        let status = [Status::UNKNOWN, Status::OUT_OF_MEMORY][self.random.below(2) as usize];
        let most = [6, 12, 30][self.random.below(3) as usize];
        let fault = Fault { nth: 1 + self.random.below(most), count: 1 + self.random.below(3), status };
        self.world.device.fail(&Call::ALL, fault);
    }

    /// Lets no more calls fail, and makes a request, which undoes what could not be undone before.
    pub(crate) fn mend(&mut self) {
        self.world.device.heal();
        if self.fails {
            let small = self.world.allocator.allocate(512, THIRD);
            small.into_iter().for_each(|address| self.world.allocator.free(address).unwrap());
        }
    }

    /// Takes an answer. An error must be one that the program has brought about.
    pub(crate) fn take<T>(&mut self, answer: Result<T, Error>) -> Option<T> {
        match answer {
            Ok(value) => return Some(value),
            Err(Error::OutOfMemory(_) | Error::HostMemory) => self.tally.refusals += 1,
            Err(Error::Driver(_)) if self.fails => self.tally.failures += 1,
            // A call that failed may leave a pool that has ended with blocks that wait, so that its graph counts.
            Err(Error::NotGrowable { .. } | Error::NotSleepable { .. })
                if self.capture.is_some() || self.has_forgotten || self.fails => {}
            Err(Error::PoolAsleep { pool }) if self.world.allocator.tags().is_asleep(pool) => {}
            Err(error) => panic!("{error}"),
        }
        None
    }

    /// Returns an allocation that a random operation may use, if there is one; only one that grows where `grows`.
    fn pick(&mut self, grows: bool) -> Option<u64> {
        let live =
            self.world.live.iter().filter(|(address, live)| (live.grows || !grows) && !self.own.contains(address));
        let addresses: Vec<u64> = live.map(|(address, _)| *address).collect();
        addresses.get(self.random.below(addresses.len() as u64) as usize).copied()
    }

    /// Returns an allocation whose pool is awake, as [`Self::pick`] does.
    fn pick_awake(&mut self, grows: bool) -> Option<u64> {
        self.pick(grows).filter(|address| self.world.is_awake(*address))
    }

    fn stream(&mut self) -> StreamId {
        [MAIN, MAIN, SIDE, THIRD][self.random.below(4) as usize]
    }

    /// Returns the place of a tag in the pools.
    fn tag(&mut self) -> usize {
        self.random.below(self.mix.tags as u64) as usize
    }

    /// Makes a random operation.
    pub(crate) fn operate(&mut self) {
        match self.mix.draw(&mut self.random) {
            Operation::Allocate => self.allocate(),
            Operation::Reserve => self.reserve(),
            Operation::Resize => self.resize(),
            Operation::Free => self.free_any(),
            Operation::Advise => self.advise(),
            Operation::Record => self.record(),
            Operation::Rewrite => self.rewrite(),
            Operation::Unspill => {
                let unspilled = self.world.allocator.spill().restore();
                self.take(unspilled);
            }
            Operation::Turn => self.turn(),
            Operation::RenewTag => self.renew_tag(),
            Operation::Capture if self.capture.is_some() => self.end_capture(),
            Operation::Capture => self.begin_capture(),
            Operation::Release => self.release(),
            Operation::Limit => {
                let most = self.mix.capacity;
                let limit = [None, Some(most / 8 * 5), Some(most / 12 * 11)][self.random.below(3) as usize];
                let set = self.world.allocator.limits().set_bytes(limit);
                self.take(set);
            }
            Operation::Forget => {
                let stream = [SIDE, THIRD][self.random.below(2) as usize];
                match self.world.allocator.streams().forget(stream) {
                    // The wait for the stream would end the capture.
                    Err(Error::Driver(_)) if self.capture.is_some() => {}
                    forgotten => self.has_forgotten |= self.take(forgotten).is_some(),
                }
            }
        }
    }

    fn allocate(&mut self) {
        let size = (self.mix.size)(&mut self.random);
        let at = self.random.below(self.mix.share) as usize;
        let (pool, stream) = match (self.capture, self.pools.get(at)) {
            (Some((pool, _)), _) if at < 4 => (pool, CAPTURED),
            (_, Some(pool)) => (*pool, self.stream()),
            _ => (PoolId::NONE, self.stream()),
        };
        self.allocate_in(pool, size, stream);
    }

    /// Allocates a block and fills it. A refusal frees some of the others.
    pub(crate) fn allocate_in(&mut self, pool: PoolId, size: u64, stream: StreamId) -> Option<u64> {
        let asleep = self.world.allocator.tags().is_asleep(pool);
        let answer = self.world.request(pool, size, stream);
        assert!(!asleep || answer.is_err(), "a tag that sleeps has served a request");
        let is_refused = matches!(answer, Err(Error::OutOfMemory(_)));
        let address = self.take(answer);
        self.mend();
        if let Some(address) = address {
            let block = Live::block(pool, size, stream);
            self.world.note(address, Live { is_used: stream != CAPTURED, ..block });
        } else if is_refused && self.capture.is_none() {
            (0..=self.world.live.len() / 4).for_each(|_| self.free_any());
        }
        address
    }

    fn reserve(&mut self) {
        let (capacity, stream) = (MIB + self.random.below(40 * MIB), self.stream());
        let pool = self.pools.get(self.random.below(self.mix.share) as usize).copied().unwrap_or(PoolId::NONE);
        let answer = self.world.reserve_in(pool, capacity, stream);
        self.take(answer);
    }

    fn resize(&mut self) {
        let Some(address) = self.pick_awake(true) else { return };
        let before = self.world.allocator.growing().extent(address).unwrap();
        let size = match self.random.below(5) {
            0 => self.random.below(before.capacity + 1),
            1..=2 => before.len + self.random.below(4 * MIB),
            3 => before.len + self.random.below(20 * MIB),
            _ => self.random.below(before.len + 1),
        };
        let size = size.min(before.capacity) / 8 * 8;
        let answer = self.world.allocator.growing().resize(address, size);
        let done = self.take(answer).is_some();
        let len = self.world.allocator.growing().extent(address).unwrap().len;
        // A part of a tail may be given back though a call has failed.
        let possible = if done { size..=size } else { size.min(before.len)..=before.len };
        assert!(possible.contains(&len), "{len} bytes after {done} {size} of {before:?}");
        self.mend();
        self.world.take_len(address);
        self.tally.grown += u64::from(done && size > before.len);
    }

    fn free_any(&mut self) {
        if let Some(address) = self.pick(false) {
            self.free(address);
        }
    }

    /// Frees an allocation in one of the ways that there are.
    pub(crate) fn free(&mut self, address: u64) {
        let (way, stream, is_awake) = (self.random.below(4), self.stream(), self.world.is_awake(address));
        if is_awake && self.capture.is_none() && self.random.below(2) == 0 {
            self.world.check(address);
        }
        if way > 1 && is_awake {
            self.mend();
            self.world.use_on(address, stream);
        }
        let freed = self.world.free_by(address, |allocator| match way {
            0 | 1 => allocator.free(address),
            2 => allocator.free_with_current_stream(address, stream),
            _ => allocator.free_on(address, stream),
        });
        self.take(freed);
    }

    fn advise(&mut self) {
        let Some(address) = self.pick(false) else { return };
        let advised = self.world.allocator.spill().advise(address, Advice::ALL[self.random.below(3) as usize]);
        self.take(advised);
    }

    fn record(&mut self) {
        let stream = self.stream();
        let Some(address) = self.pick_awake(false) else { return };
        let recorded = self.world.allocator.record_stream(address, stream);
        if self.take(recorded).is_some() {
            self.mend();
            self.world.use_on(address, stream);
        }
    }

    fn rewrite(&mut self) {
        if let Some(address) = self.pick_awake(false)
            && self.capture.is_none()
        {
            self.world.device.settle();
            self.world.rewrite(address, MAIN);
            self.world.device.settle();
        }
    }

    fn release(&mut self) {
        let bytes = self.random.below(self.mix.capacity / 3);
        let given = match self.random.below(3) {
            0 => self.world.allocator.empty_cache(),
            1 => self.world.allocator.trim(bytes),
            _ => self.world.allocator.lending().lend(bytes),
        };
        self.take(given);
    }

    fn turn(&mut self) {
        let at = self.tag();
        let tag = self.pools[at];
        if self.world.allocator.tags().is_asleep(tag) {
            let answer = self.world.allocator.tags().wake(tag);
            self.tally.woken += u64::from(self.take(answer).is_some_and(|bytes| bytes > 0));
        } else {
            let backup = match self.random.below(3) {
                0 => Backup::Host,
                1 => Backup::Pinned,
                _ => Backup::File(file("program")),
            };
            let answer = self.world.allocator.tags().sleep(tag, &backup);
            self.tally.slept += u64::from(self.take(answer).is_some_and(|bytes| bytes > 0));
        }
    }

    /// Releases a tag. The next one is new, or was released before.
    fn renew_tag(&mut self) {
        let (at, allocator) = (self.tag(), &self.world.allocator);
        if self.capture.is_some_and(|(pool, _)| pool == self.pools[at]) {
            return;
        }
        self.world.device.heal();
        allocator.pools().release(self.pools[at]).unwrap();
        self.released.push(self.pools[at]);
        let again = self.random.below(2 * self.released.len() as u64) as usize;
        self.pools[at] = match self.released.get(again).copied() {
            Some(tag) => {
                allocator.tags().open(tag).unwrap();
                self.released.swap_remove(again)
            }
            None => allocator.tags().create().unwrap(),
        };
    }

    fn begin_capture(&mut self) {
        let is_new = self.random.below(3) > 0;
        let tag = self.tag();
        let allocator = &self.world.allocator;
        let pool = if is_new { allocator.pools().create() } else { self.pools[tag] };
        let begun = allocator.pools().begin(pool, Route::stream(CAPTURED).capturing());
        if self.take(begun).is_none() {
            self.world.device.heal();
            if is_new {
                self.world.allocator.pools().release(pool).unwrap();
            }
            return;
        }
        self.world.device.host.begin_capture(CAPTURED, CaptureMode::Global).unwrap();
        self.capture = Some((pool, is_new));
    }

    pub(crate) fn end_capture(&mut self) {
        let Some((pool, is_new)) = self.capture.take() else { return };
        self.world.device.heal();
        self.world.device.host.end_capture(CAPTURED).expect("no call of the allocator has ended it");
        self.world.allocator.pools().end(pool).unwrap();
        if is_new {
            self.world.allocator.pools().release(pool).unwrap();
        }
        self.tally.captures += 1;
    }
}
