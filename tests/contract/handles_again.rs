//! Handles that name another stream after `streams().forget`, and blocks that are older than it: they belong to no stream, whatever
//! streams the program names for them.

use crate::long_kernels::{A, B, LONG, clean};
use crate::random::Random;
use crate::{MIB, Subject, length, on};
use seamalloc::Allocator;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{Piece, Range, SimGpu};

const DEVICE: &str = "sim:h200,capacity=1GiB";
const SIZE: u64 = 20 * MIB;

/// The program destroys a stream, and makes another one with the same handle.
fn replace(gpu: &SimGpu, allocator: &Allocator, stream: StreamId) {
    allocator.streams().forget(stream).unwrap();
    gpu.replace_stream(stream);
}

/// Whether memory is in both.
fn overlap(some: &[Piece], others: &[Piece]) -> bool {
    some.iter().any(|a| {
        let meets = |b: &Piece| a.memory == b.memory && a.offset < b.offset + b.size && b.offset < a.offset + a.size;
        others.iter().any(meets)
    })
}

/// When a kernel would begin that the stream is given now.
fn begins(gpu: &SimGpu, stream: StreamId) -> u64 {
    gpu.done_at(stream).unwrap().max(gpu.now_ns())
}

/// Frees a block of the stream that A was, while B uses it, and the new stream A is known to the allocator. Nobody has its memory
/// before B is done.
pub(crate) fn the_new_stream_of_a_handle_does_not_own_what_the_old_one_left(Subject { kind, .. }: Subject) {
    type Free = fn(&Allocator, u64);
    let ways: [(&str, Free); 4] = [
        ("free_under", |allocator, old| allocator.free_with_current_stream(old, B).unwrap()),
        ("free_on", |allocator, old| allocator.free_on(old, B).unwrap()),
        ("erase_stream", |allocator, old| {
            allocator.record_stream(old, B).unwrap();
            allocator.streams().unrecord(old, B).unwrap();
            allocator.free_with_current_stream(old, B).unwrap();
        }),
        ("record_stream", |allocator, old| {
            allocator.record_stream(old, B).unwrap();
            allocator.free_with_current_stream(old, A).unwrap();
        }),
    ];
    for (way, free) in ways {
        for next in [A, B, StreamId::DEFAULT] {
            let (gpu, allocator) = on(kind, DEVICE);
            let old = allocator.allocate(SIZE, A).unwrap();
            replace(&gpu, &allocator, A);
            let known = allocator.allocate(4 * MIB, A).unwrap();
            gpu.launch(B, &[Range { address: old, size: SIZE }], LONG).unwrap();
            let before = gpu.physical(Range { address: old, size: SIZE });
            free(&allocator, old);
            let new = allocator.allocate(SIZE, next).unwrap();
            let early = begins(&gpu, next) < gpu.done_at(B).unwrap();
            let same = overlap(&before, &gpu.physical(Range { address: new, size: SIZE }));
            assert!(!(same && early), "{kind}, {way}: {next} has memory that {B} uses");
            [known, new].into_iter().for_each(|address| allocator.free(address).unwrap());
            clean(&gpu, allocator);
        }
    }
}

/// The new stream A uses a block of the old one, which it has to be named for like any other.
pub(crate) fn the_new_stream_of_a_handle_is_waited_for_where_it_is_named(Subject { kind, .. }: Subject) {
    for is_known in [false, true] {
        for in_pool in [false, true] {
            let (gpu, allocator) = on(kind, DEVICE);
            let pool = allocator.pools().create();
            let allocate = |size| {
                if in_pool { allocator.pools().allocate(pool, size, A) } else { allocator.allocate(size, A) }.unwrap()
            };
            let old = allocate(SIZE);
            replace(&gpu, &allocator, A);
            let known = if is_known { allocate(4 * MIB) } else { 0 };
            gpu.launch(A, &[Range { address: old, size: SIZE }], LONG).unwrap();
            allocator.record_stream(old, A).unwrap();
            allocator.free(old).unwrap();
            allocator.reports().check().unwrap();
            let active = allocator.stats().active.all.current;
            // The driver's pool is told of the streams at the free.
            let waits = u64::from(in_pool || !kind.needs_memory_pools());
            assert_eq!(active, waits + u64::from(is_known), "{kind}, known {is_known}, in a pool {in_pool}");
            allocator.free(known).unwrap();
            allocator.pools().release(pool).unwrap();
            clean(&gpu, allocator);
        }
    }
}

/// A block that is live.
struct Live {
    address: u64,
    size: u64,
    stream: StreamId,
    /// How often its stream's handle had been replaced when it was allocated.
    generation: u64,
    named: Vec<StreamId>,
    /// Who has used it last, and until when.
    uses: Vec<(StreamId, u64)>,
}

/// Memory that was freed while streams used it.
struct Busy {
    pieces: Vec<Piece>,
    by: StreamId,
    until: u64,
    /// The stream that may have it nevertheless: that of the block, where it was freed under another one that nobody named.
    but: Option<(StreamId, u64)>,
}

struct World<'a> {
    gpu: &'a SimGpu,
    allocator: &'a Allocator,
    pool: seamalloc::PoolId,
    random: Random,
    generations: [u64; 3],
    live: Vec<Live>,
    busy: Vec<Busy>,
}

fn handle(at: usize) -> StreamId {
    StreamId(0x100 + at as u64)
}

impl World<'_> {
    fn generation(&self, stream: StreamId) -> u64 {
        self.generations[(stream.0 - 0x100) as usize]
    }

    fn any_stream(&mut self) -> StreamId {
        handle(self.random.below(3) as usize)
    }

    fn launch(&mut self, at: usize, stream: StreamId) {
        let Live { address, size, .. } = self.live[at];
        self.gpu.launch(stream, &[Range { address, size }], self.random.below(3_000_000)).unwrap();
        let until = self.gpu.done_at(stream).unwrap();
        self.live[at].uses.push((stream, until));
    }

    /// Allocates, and looks whether anybody but the stream may still use what it got.
    fn allocate(&mut self, context: &str) {
        let stream = self.any_stream();
        let size = 1 + self.random.below(24 * MIB);
        let allocated = match self.random.below(5) {
            0 => self.allocator.pools().allocate(self.pool, size, stream),
            _ => self.allocator.allocate(size, stream),
        };
        let Ok(address) = allocated else {
            assert!(allocated.unwrap_err().is_out_of_memory(), "{context}");
            return;
        };
        let (pieces, begins) = (self.gpu.physical(Range { address, size }), begins(self.gpu, stream));
        let now = self.gpu.now_ns();
        self.busy.retain(|busy| busy.until > now);
        let generation = self.generation(stream);
        for busy in self.busy.iter().filter(|busy| overlap(&busy.pieces, &pieces)) {
            let in_order = busy.by == stream || busy.until <= begins || busy.but == Some((stream, generation));
            assert!(in_order, "{context}: {stream} has memory that {} uses", busy.by);
        }
        self.live.push(Live { address, size, stream, generation, named: Vec::new(), uses: Vec::new() });
        self.launch(self.live.len() - 1, stream);
    }

    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.random.below(self.live.len() as u64) as usize;
        let (other, way) = (self.any_stream(), self.random.below(3));
        if way > 0 {
            self.launch(at, other);
        }
        let Live { address, size, stream, generation, named, uses } = self.live.swap_remove(at);
        let pieces = self.gpu.physical(Range { address, size });
        match way {
            0 => self.allocator.free(address),
            1 => self.allocator.free_on(address, other),
            _ => self.allocator.free_with_current_stream(address, other),
        }
        .unwrap();
        let is_own = self.generation(stream) == generation;
        for (by, until) in uses {
            // The work that the stream was given as one that is named, or as the block's own, is waited for.
            let is_under = way == 2 && by == other && !named.contains(&by);
            let but = (is_under && is_own).then_some((stream, generation));
            self.busy.push(Busy { pieces: pieces.clone(), by, until, but });
        }
    }

    fn step(&mut self, context: &str) {
        match self.random.below(16) {
            0 => {
                let at = self.random.below(3) as usize;
                replace(self.gpu, self.allocator, handle(at));
                self.generations[at] += 1;
                self.live.iter_mut().for_each(|block| block.named.retain(|of| *of != handle(at)));
            }
            1..4 if !self.live.is_empty() => {
                let (at, stream) = (self.random.below(self.live.len() as u64) as usize, self.any_stream());
                self.allocator.record_stream(self.live[at].address, stream).unwrap();
                self.live[at].named.push(stream);
                self.launch(at, stream);
            }
            4..9 => self.free(),
            9 => self.gpu.advance(self.random.below(4_000_000)),
            10 => drop(self.allocator.trim(self.random.below(64 * MIB)).unwrap()),
            _ => self.allocate(context),
        }
    }
}

/// Random programs that replace streams all the time, and free what the old ones left under any stream.
pub(crate) fn no_memory_is_used_too_early_whoever_has_the_handle(Subject { kind, .. }: Subject) {
    for seed in 0..length::rounds(24, 2000) {
        let (gpu, allocator) = on(kind, "sim:h200,capacity=300MiB");
        let pool = allocator.pools().create();
        let mut world = World {
            gpu: &gpu,
            allocator: &allocator,
            pool,
            random: Random(seed),
            generations: [0; 3],
            live: Vec::new(),
            busy: Vec::new(),
        };
        for step in 0..400 {
            world.step(&format!("{kind}, seed {seed}, step {step}"));
        }
        for block in std::mem::take(&mut world.live) {
            allocator.free(block.address).unwrap();
        }
        allocator.pools().release(pool).unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.reports().reserved(), 0, "{kind}, seed {seed}");
        clean(&gpu, allocator);
    }
}
