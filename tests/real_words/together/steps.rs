//! Steps, and random operations between their requests.

use crate::random::Random;
use crate::real_words::{MAIN, MIB, SIDE};
use crate::world::World;
use seamalloc::driver::{CaptureMode, Status, StreamId};
use seamalloc::{Advice, Backup, Error, PoolId, Route};

const STEPS: u64 = if cfg!(feature = "paranoid") { 12 } else { 24 };
/// Requests of a step.
const REQUESTS: u64 = 24;
const THIRD: StreamId = StreamId(8);
const CAPTURED: StreamId = StreamId(9);

/// What programs have come to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) placed: u64,
    /// Views that were built.
    pub(crate) pieces: u64,
    pub(crate) spilled: u64,
    pub(crate) grown: u64,
    pub(crate) slept: u64,
    pub(crate) captures: u64,
    pub(crate) failures: u64,
    refusals: u64,
}

/// An operation of a step.
#[derive(Clone, Copy)]
enum Operation {
    /// A request with this number.
    Allocate(usize, u64, StreamId),
    Free(usize),
}

/// Makes a step: requests up to a peak, and frees in another order.
fn step_of(seed: u64) -> Vec<Operation> {
    let mut random = Random(seed);
    let (mut operations, mut live) = (Vec::new(), Vec::new());
    let mut number = 0;
    while number < REQUESTS || !live.is_empty() {
        let rises = number < REQUESTS && (number < REQUESTS / 2 || random.below(2) == 0);
        if rises && (live.len() < 9 || random.below(2) == 0) {
            let size = [MIB + 4096 * random.below(800), MIB * (1 + random.below(7)), 512 * (2049 + random.below(9000))];
            let stream = [MAIN, MAIN, MAIN, SIDE][random.below(4) as usize];
            operations.push(Operation::Allocate(number as usize, size[random.below(3) as usize], stream));
            live.push(number as usize);
            number += 1;
        } else if !live.is_empty() {
            let at = random.below(live.len() as u64) as usize;
            operations.push(Operation::Free(live.swap_remove(at)));
        }
    }
    operations
}

struct Program<'a> {
    random: Random,
    world: World,
    tags: [PoolId; 2],
    /// Tags that were released. What lives of them lives on.
    released: Vec<PoolId>,
    /// The pool of the capture that is under way, and whether it is made for it.
    capture: Option<(PoolId, bool)>,
    /// What lives beside the steps.
    others: Vec<u64>,
    fails: bool,
    /// Whether the first request of a step is kept until the next step has its own, as an output is; and the one that is.
    keeps: bool,
    kept: Option<u64>,
    /// How many of a hundred gaps between two operations of a step have one of another kind.
    restless: u64,
    all: &'a mut Tally,
}

pub(crate) fn run(seed: u64, options: &str, fails: bool, all: &mut Tally) {
    let world = World::new(options, fails);
    let tags = [(); 2].map(|()| world.allocator.create_tag().unwrap());
    let (random, released, others) = (Random(seed), Vec::new(), Vec::new());
    let keeps = seed % 3 == 1;
    let kept = None;
    let mut program =
        Program { random, world, tags, released, capture: None, others, fails, keeps, kept, restless: 0, all };
    let steps = [step_of(seed), step_of(seed + 7)];
    // Of two steps that are planned as one, many have to come alike.
    let quiet = if keeps { 10 } else { 5 };
    for number in 0..STEPS {
        // Quiet at first, so that there are plans.
        program.restless = if number < quiet { 4 } else { [5, 15, 40][program.random.below(3) as usize] };
        program.step(&steps[usize::from(number % 7 == 3 && (!keeps || number > quiet))]);
    }
    program.end_capture();
    program.world.check_all();
    let stats = program.world.allocator.stats();
    program.all.placed += stats.plans.placed;
    program.all.pieces += stats.views_built;
    program.all.spilled += stats.spills.chunks;
    let tags = program.tags;
    program.world.end(&tags);
}

impl Program<'_> {
    fn step(&mut self, operations: &[Operation]) {
        let mut blocks: [Option<u64>; REQUESTS as usize] = [None; REQUESTS as usize];
        let kept = self.kept.take();
        for (at, operation) in operations.iter().enumerate() {
            if self.random.below(100) < self.restless {
                self.disturb();
                self.settle();
            }
            if self.fails && self.random.below(12) == 0 {
                self.let_fail();
            }
            match *operation {
                Operation::Allocate(number, size, stream) => {
                    let answer = self.world.allocator.allocate(size, stream);
                    blocks[number] = self.take(answer);
                    match blocks[number] {
                        Some(address) => {
                            self.settle();
                            self.world.note(address, size, stream, PoolId::NONE, false);
                        }
                        None => self.make_way(),
                    }
                }
                Operation::Free(0) if self.keeps => {}
                Operation::Free(number) => {
                    if let Some(address) = blocks[number] {
                        self.free(address);
                        if !self.world.live.contains_key(&address) {
                            blocks[number] = None;
                        }
                    }
                }
            }
            if at == 8
                && let Some(address) = kept
            {
                self.free(address);
            }
            self.settle();
            self.world.check_books();
            if at % 16 == 0 && self.capture.is_none() {
                self.world.check_all();
            }
        }
        if self.keeps {
            self.kept = blocks[0].take();
        }
        blocks.into_iter().flatten().for_each(|address| self.free(address));
        self.end_capture();
        self.world.check_all();
    }

    fn let_fail(&mut self) {
        let status = [Status::UNKNOWN, Status::OUT_OF_MEMORY][self.random.below(2) as usize];
        let (nth, count) = (1 + self.random.below(14), 1 + self.random.below(4));
        self.world.device.fail(nth, count, status);
    }

    /// Lets no more calls fail. What could not be undone is, before kernels use the memory.
    fn settle(&mut self) {
        self.world.device.heal();
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
            Err(Error::Driver(_)) if self.fails || self.capture.is_some() => self.all.failures += 1,
            Err(Error::NotGrowable { .. } | Error::NotSleepable { .. }) => {}
            Err(Error::PoolAsleep { pool }) if self.world.allocator.is_asleep(pool) => {}
            Err(error) => panic!("{error}"),
        }
        None
    }

    /// Some of what lives beside the steps ends.
    fn make_way(&mut self) {
        self.settle();
        for _ in 0..1 + self.others.len() / 3 {
            self.free_other();
        }
    }

    fn free(&mut self, address: u64) {
        let (way, stream) = (self.random.below(4), [MAIN, SIDE, THIRD][self.random.below(3) as usize]);
        if way > 1 && self.world.is_awake(address) {
            self.settle();
            self.world.use_on(address, stream);
        }
        let freed = self.world.free(address, |allocator| match way {
            0 | 1 => allocator.free(address),
            2 => allocator.free_under(address, stream),
            _ => allocator.free_on(address, stream),
        });
        self.take(freed);
    }

    fn free_other(&mut self) {
        if self.others.is_empty() {
            return;
        }
        let at = self.random.below(self.others.len() as u64) as usize;
        let address = self.others[at];
        self.free(address);
        if !self.world.live.contains_key(&address) {
            self.others.swap_remove(at);
        }
    }

    fn other(&mut self, grows: bool) -> Option<u64> {
        let live = &self.world.live;
        let of_kind: Vec<u64> = self.others.iter().copied().filter(|of| live[of].grows || !grows).collect();
        of_kind.get(self.random.below(of_kind.len() as u64) as usize).copied()
    }

    fn stream(&mut self) -> StreamId {
        [MAIN, SIDE, THIRD][self.random.below(3) as usize]
    }

    /// Something else than the step's own operations.
    fn disturb(&mut self) {
        if self.fails && self.random.below(3) == 0 {
            self.let_fail();
        }
        match self.random.below(100) {
            0..18 => self.allocate_other(),
            18..22 => self.reserve(),
            22..36 => self.grow(),
            36..52 => self.free_other(),
            52..58 => {
                let Some(address) = self.world.live.keys().copied().nth(self.random.below(12) as usize) else { return };
                let advice = Advice::ALL[self.random.below(3) as usize];
                let advised = self.world.allocator.advise(address, advice);
                self.take(advised);
            }
            58..62 => {
                let unspilled = self.world.allocator.unspill();
                self.take(unspilled);
            }
            62..74 => self.turn(),
            74..77 => self.renew_tag(),
            77..80 if self.capture.is_none() => self.begin_capture(),
            80..84 => self.end_capture(),
            84..90 => {
                let bytes = self.random.below(24) * MIB;
                let given = match self.random.below(3) {
                    0 => self.world.allocator.empty_cache(),
                    1 => self.world.allocator.trim(bytes),
                    _ => self.world.allocator.lend(bytes),
                };
                self.take(given);
            }
            90..94 => {
                let limit = [None, None, Some(40 * MIB), Some(52 * MIB)][self.random.below(4) as usize];
                let set = self.world.allocator.set_memory_limit(limit);
                self.take(set);
            }
            94..97 => {
                let stream = [SIDE, THIRD][self.random.below(2) as usize];
                let forgotten = self.world.allocator.forget_stream(stream);
                self.take(forgotten);
            }
            _ => {
                let Some((address, stream)) = self.other(false).zip(Some(self.stream())) else { return };
                if self.world.is_awake(address) {
                    let recorded = self.world.allocator.record_stream(address, stream);
                    if self.take(recorded).is_some() {
                        self.settle();
                        self.world.use_on(address, stream);
                    }
                }
            }
        }
    }

    fn allocate_other(&mut self) {
        let size =
            [8 * (1 + self.random.below(3000)), MIB + 4096 * self.random.below(900), MIB * (1 + self.random.below(6))]
                [self.random.below(3) as usize];
        let at = self.random.below(7) as usize;
        let (pool, stream) = match (self.capture, self.tags.get(at)) {
            (Some((pool, _)), _) if at < 4 => (pool, CAPTURED),
            (_, Some(pool)) => (*pool, self.stream()),
            _ => (PoolId::NONE, self.stream()),
        };
        let allocator = &self.world.allocator;
        let answer = match pool {
            PoolId::NONE => allocator.allocate(size, stream),
            pool => allocator.allocate_in(pool, size, stream),
        };
        if let Some(address) = self.take(answer) {
            self.settle();
            // What a capture is given is noted for its graph, and never run.
            let size = if stream == CAPTURED { 0 } else { size };
            self.world.note(address, size, stream, pool, false);
            self.others.push(address);
        }
    }

    fn reserve(&mut self) {
        let (capacity, stream) = (MIB * (1 + self.random.below(24)), self.stream());
        let pool = self.tags.get(self.random.below(6) as usize).copied().unwrap_or(PoolId::NONE);
        let allocator = &self.world.allocator;
        let answer = match pool {
            PoolId::NONE => allocator.reserve(capacity, stream),
            pool => allocator.reserve_in(pool, capacity, stream),
        };
        if let Some(address) = self.take(answer) {
            self.world.note(address, 0, stream, pool, true);
            self.others.push(address);
        }
    }

    fn grow(&mut self) {
        let Some(address) = self.other(true) else { return self.reserve() };
        if !self.world.is_awake(address) {
            return;
        }
        let size = self.random.below(self.world.allocator.extent(address).unwrap().capacity + 1) / 8 * 8;
        let resized = self.world.allocator.resize(address, size);
        // A part of it may be given back though a call failed.
        let done = self.take(resized).is_some();
        self.settle();
        self.world.look(address);
        self.all.grown += u64::from(done);
    }

    /// A tag sleeps or wakes.
    fn turn(&mut self) {
        let tag = self.tags[self.random.below(2) as usize];
        let turned = if self.world.allocator.is_asleep(tag) {
            self.world.allocator.wake(tag)
        } else {
            let backup = [Backup::Host, Backup::Pinned][self.random.below(2) as usize].clone();
            self.world.allocator.sleep(tag, &backup)
        };
        let turned = self.take(turned);
        self.all.slept += u64::from(turned.is_some_and(|bytes| bytes > 0));
    }

    /// A tag ends, awake or asleep, and another one begins: a new one, or one that was released before.
    fn renew_tag(&mut self) {
        let (at, allocator) = (self.random.below(2) as usize, &self.world.allocator);
        if self.capture.is_some_and(|(pool, _)| pool == self.tags[at]) {
            return;
        }
        self.world.device.heal();
        allocator.release_pool(self.tags[at]).unwrap();
        self.released.push(self.tags[at]);
        let again = self.random.below(2 * self.released.len() as u64) as usize;
        self.tags[at] = match self.released.get(again).copied() {
            Some(tag) => {
                allocator.open_tag(tag).unwrap();
                self.released.swap_remove(again)
            }
            None => allocator.create_tag().unwrap(),
        };
    }

    fn begin_capture(&mut self) {
        let allocator = &self.world.allocator;
        let own = self.random.below(3) > 0;
        let pool = if own { allocator.create_pool() } else { self.tags[self.random.below(2) as usize] };
        let begun = allocator.begin_allocate_to_pool(pool, Route::stream(CAPTURED).capturing());
        if self.take(begun).is_none() {
            self.world.device.heal();
            if own {
                self.world.allocator.release_pool(pool).unwrap();
            }
            return;
        }
        self.world.device.host.begin_capture(CAPTURED, CaptureMode::Global).unwrap();
        self.capture = Some((pool, own));
    }

    fn end_capture(&mut self) {
        let Some((pool, own)) = self.capture.take() else { return };
        self.world.device.heal();
        self.world.device.host.end_capture(CAPTURED).expect("no call of the allocator has ended it");
        self.world.allocator.end_allocate_to_pool(pool).unwrap();
        if own {
            self.world.allocator.release_pool(pool).unwrap();
        }
        self.all.captures += 1;
    }
}
