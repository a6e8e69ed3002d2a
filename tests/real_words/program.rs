//! Random operations.

use crate::random::Random;
use crate::real_words::{MAIN, MIB, SIDE};
use crate::world::World;
use seamalloc::driver::{CaptureMode, Status, StreamId};
use seamalloc::{Advice, Backup, Error, PoolId, Route};

const OPERATIONS: u64 = if cfg!(feature = "paranoid") { 150 } else { 400 };
const THIRD: StreamId = StreamId(8);
const CAPTURED: StreamId = StreamId(9);

/// What programs have come to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) spilled: u64,
    pub(crate) returned: u64,
    pub(crate) grown: u64,
    pub(crate) slept: u64,
    pub(crate) captures: u64,
    pub(crate) failures: u64,
    refusals: u64,
}

struct Program<'a> {
    random: Random,
    world: World,
    /// Two tags, and a private pool.
    pools: [PoolId; 3],
    /// The pool of the capture that is under way.
    capture: Option<PoolId>,
    fails: bool,
    all: &'a mut Tally,
}

pub(crate) fn run(seed: u64, options: &str, fails: bool, all: &mut Tally) {
    let world = World::new(options);
    let tag = || world.allocator.create_tag().unwrap();
    let pools = [tag(), tag(), world.allocator.create_pool()];
    let mut program = Program { random: Random(seed), world, pools, capture: None, fails, all };
    for step in 0..OPERATIONS {
        if fails && program.random.below(4) == 0 {
            let status = [Status::UNKNOWN, Status::OUT_OF_MEMORY][program.random.below(2) as usize];
            let (nth, count) = (1 + program.random.below(12), 1 + program.random.below(3));
            program.world.device.fail(nth, count, status);
        }
        program.step();
        program.world.device.heal();
        program.make_whole();
        program.world.check_books();
        if step % 20 == 0 && program.capture.is_none() {
            program.world.check_all();
        }
    }
    program.end_capture();
    program.world.check_all();
    let spills = program.world.allocator.stats().spills;
    (program.all.spilled, program.all.returned) =
        (program.all.spilled + spills.chunks, program.all.returned + spills.returned_chunks);
    program.world.end(&pools);
}

impl Program<'_> {
    /// What could not be undone is, before kernels use the memory.
    fn make_whole(&mut self) {
        if self.fails {
            let small = self.world.allocator.allocate(512, THIRD);
            small.into_iter().for_each(|address| self.world.allocator.free(address).unwrap());
        }
    }

    /// Takes an answer. What may fail did, or it is a mistake.
    fn take<T>(&mut self, answer: Result<T, Error>) -> Option<T> {
        match answer {
            Ok(value) => return Some(value),
            Err(Error::OutOfMemory(_) | Error::HostMemory) => self.all.refusals += 1,
            Err(Error::Driver(_)) if self.fails => self.all.failures += 1,
            Err(Error::NotGrowable { .. } | Error::NotSleepable { .. }) if self.capture.is_some() => {}
            Err(Error::PoolAsleep { pool }) if self.world.allocator.is_asleep(pool) => {}
            Err(error) => panic!("{error}"),
        }
        None
    }

    fn pick(&mut self, grows: bool) -> Option<u64> {
        let of_kind = |(_, live): &(&u64, &crate::world::Live)| live.grows || !grows;
        let count = self.world.live.iter().filter(of_kind).count() as u64;
        let at = self.random.below(count) as usize;
        self.world.live.iter().filter(of_kind).nth(at).map(|(address, _)| *address)
    }

    fn stream(&mut self) -> StreamId {
        [MAIN, SIDE, THIRD][self.random.below(3) as usize]
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..22 => self.allocate(),
            22..26 => self.reserve(),
            26..44 => self.grow(),
            44..68 => self.free(),
            68..74 => self.advise(),
            74..79 => {
                if let Some((address, stream)) = self.pick(false).zip(Some(self.stream()))
                    && self.world.is_awake(address)
                {
                    let recorded = self.world.allocator.record_stream(address, stream);
                    if self.take(recorded).is_some() {
                        self.world.use_on(address, stream);
                    }
                }
            }
            79..83 => {
                let unspilled = self.world.allocator.unspill();
                self.take(unspilled);
            }
            83..92 => self.turn(),
            92..97 if self.capture.is_some() => self.end_capture(),
            92..94 => self.begin_capture(),
            94..98 => {
                let bytes = self.random.below(16) * MIB;
                let given = match self.random.below(3) {
                    0 => self.world.allocator.empty_cache(),
                    1 => self.world.allocator.trim(bytes),
                    _ => self.world.allocator.lend(bytes),
                };
                self.take(given);
            }
            _ => {
                let limit = [None, Some(30 * MIB), Some(44 * MIB)][self.random.below(3) as usize];
                let set = self.world.allocator.set_memory_limit(limit);
                self.take(set);
            }
        }
    }

    fn allocate(&mut self) {
        let size = match self.random.below(6) {
            0 => 8 * (1 + self.random.below(2_000)),
            1 => MIB * (8 + self.random.below(20)),
            _ => MIB + 4096 * self.random.below(2_000),
        };
        let at = self.random.below(9) as usize;
        let (pool, stream) = match (self.capture, self.pools.get(at)) {
            (Some(pool), _) if at < 4 => (pool, CAPTURED),
            (_, Some(pool)) => (*pool, self.stream()),
            _ => (PoolId::NONE, self.stream()),
        };
        let allocator = &self.world.allocator;
        let answer = match pool {
            PoolId::NONE => allocator.allocate(size, stream),
            pool => allocator.allocate_in(pool, size, stream),
        };
        if let Some(address) = self.take(answer) {
            // What a capture is given is noted for its graph, and never run.
            let size = if stream == CAPTURED { 0 } else { size };
            self.world.note(address, size, stream, pool, false);
        } else if self.capture.is_none() {
            self.world.device.heal();
            self.make_whole();
            (0..2).for_each(|_| self.free());
        }
    }

    fn reserve(&mut self) {
        let (capacity, stream) = (MIB * (1 + self.random.below(40)), self.stream());
        let pool = self.pools.get(self.random.below(9) as usize).copied().unwrap_or(PoolId::NONE);
        let allocator = &self.world.allocator;
        let answer = match pool {
            PoolId::NONE => allocator.reserve(capacity, stream),
            pool => allocator.reserve_in(pool, capacity, stream),
        };
        if let Some(address) = self.take(answer) {
            self.world.note(address, 0, stream, pool, true);
        }
    }

    fn grow(&mut self) {
        let Some(address) = self.pick(true).filter(|address| self.world.is_awake(*address)) else { return };
        let size = self.random.below(self.world.allocator.extent(address).unwrap().capacity + 1) / 8 * 8;
        let resized = self.world.allocator.resize(address, size);
        // A part of it may be given back though a call failed.
        let done = self.take(resized).is_some();
        self.world.device.heal();
        self.make_whole();
        self.world.look(address);
        self.all.grown += u64::from(done);
    }

    fn free(&mut self) {
        let Some(address) = self.pick(false) else { return };
        if self.capture.is_none() && self.random.below(3) == 0 {
            self.world.check(address);
        }
        let (way, stream) = (self.random.below(3), self.stream());
        if way > 0 && self.world.is_awake(address) {
            self.world.use_on(address, stream);
        }
        let freed = self.world.free(address, |allocator| match way {
            0 => allocator.free(address),
            1 => allocator.free_under(address, stream),
            _ => allocator.free_on(address, stream),
        });
        self.take(freed);
    }

    fn advise(&mut self) {
        let Some(address) = self.pick(false) else { return };
        let advice = Advice::ALL[self.random.below(3) as usize];
        let advised = self.world.allocator.advise(address, advice);
        self.take(advised);
    }

    /// A tag sleeps or wakes.
    fn turn(&mut self) {
        let tag = self.pools[self.random.below(2) as usize];
        let turned = if self.world.allocator.is_asleep(tag) {
            self.world.allocator.wake(tag)
        } else {
            let backup = [Backup::Host, Backup::Pinned][self.random.below(2) as usize].clone();
            self.world.allocator.sleep(tag, &backup)
        };
        let turned = self.take(turned);
        self.all.slept += u64::from(turned.is_some_and(|bytes| bytes > 0));
    }

    fn begin_capture(&mut self) {
        let pool = self.world.allocator.create_pool();
        let begun = self.world.allocator.begin_allocate_to_pool(pool, Route::stream(CAPTURED).capturing());
        if self.take(begun).is_none() {
            return self.world.allocator.release_pool(pool).unwrap();
        }
        self.world.device.host.begin_capture(CAPTURED, CaptureMode::Global).unwrap();
        self.capture = Some(pool);
    }

    fn end_capture(&mut self) {
        let Some(pool) = self.capture.take() else { return };
        self.world.device.heal();
        self.world.device.host.end_capture(CAPTURED).expect("no call of the allocator has ended it");
        self.world.allocator.end_allocate_to_pool(pool).unwrap();
        self.world.allocator.release_pool(pool).unwrap();
        self.all.captures += 1;
    }
}
