//! Short sequences of operations that random bytes would seldom make: each leads to a place where an allocator gets
//! something wrong if it forgets to wait.
//!
//! Owns: the sequences. Streams, sizes, ways to free and what is left out are of the input's bytes. All kernels in them run
//! without end, as the first one that is waited for shows nothing.

use super::bytes::Bytes;
use super::program::{How, Kernel, Op, Size, Until, Which};

/// The choices that all scenarios make: two streams, which are different, a pool, how long kernels run, and bits that
/// leave out an operation or choose between two.
struct Choice {
    a: u8,
    b: u8,
    pool: u8,
    kernel: Kernel,
    bits: u8,
}

impl Choice {
    fn bit(&self, at: u8) -> bool {
        self.bits >> at & 1 == 1
    }

    fn allocate(&self, size: Size, stream: u8) -> Op {
        Op::Allocate { size, stream, kernel: self.kernel }
    }

    fn use_last(&self, stream: u8) -> Op {
        Op::Launch { block: Which::Last, stream, kernel: self.kernel }
    }

    /// The memory of the last free is asked for.
    fn again(&self, stream: u8) -> Op {
        self.allocate(Size::Freed(0), stream)
    }

    fn capture(&self, stream: u8) -> Op {
        Op::BeginCapture { pool: self.pool, stream, mode: self.bits }
    }
}

const FREE_LAST: Op = Op::Free { block: Which::Last, how: How::Plainly };

/// The calls that make, map and release memory are the first of all.
const MEMORY_CALLS: u8 = 7;

type Scenario = fn(&mut Bytes<'_>, &Choice, &mut Vec<Op>);

/// How likely each scenario is, in 256ths.
const SCENARIOS: [(u16, Scenario); 18] = [
    (26, handed_over),
    (22, used_elsewhere),
    (24, joined),
    (10, view_is_shared),
    (8, view_of_a_pool),
    (20, given_back),
    (14, captured),
    (16, used_after_a_capture),
    (16, freed_around_a_capture),
    (22, stream_ends),
    (12, stream_is_borrowed),
    (14, pool_ends),
    (8, graph_ends),
    (10, squeezed),
    (10, call_fails),
    (10, gathered),
    (6, restored),
    (8, callback_helps),
];

pub(super) fn read(bytes: &mut Bytes<'_>, ops: &mut Vec<Op>) {
    let scenario = bytes.weighted(&SCENARIOS);
    let (a, bits) = (bytes.next(), bytes.next());
    let b = a.wrapping_add(1 + bits % 2);
    let choice = Choice { a, b, pool: bytes.next(), kernel: Kernel::Endless(bytes.next() % 16), bits: bits / 2 };
    scenario(bytes, &choice, ops);
}

/// A block is freed while its stream is far behind, and another stream asks for the memory.
fn handed_over(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    ops.push(c.allocate(Size::read_large(bytes), c.a));
    if c.bit(0) {
        ops.push(c.allocate(Size::read_large(bytes), c.b));
    }
    ops.push(Op::Free { block: Which::Newest(u8::from(c.bit(0))), how: How::read(bytes) });
    if c.bit(1) {
        ops.push(Op::Advance(Until::Done(c.a)));
    }
    ops.push(c.again(c.b));
}

/// A stream uses a block of another one; after the free both ask for the memory.
fn used_elsewhere(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    let short = Op::Allocate { size: Size::read_large(bytes), stream: c.a, kernel: Kernel::Short };
    ops.push(if c.bit(0) {
        Op::Launch { block: Which::InUse(bytes.next()), stream: c.a, kernel: c.kernel }
    } else {
        short
    });
    match c.bit(1) {
        true => ops.extend([c.use_last(c.b), Op::Free { block: Which::Last, how: How::read(bytes) }]),
        false => ops.push(Op::Free { block: Which::Last, how: How::Under(c.b, c.kernel) }),
    }
    if c.bit(2) {
        ops.push(Op::Advance(Until::Us(2_000)));
    }
    ops.extend([c.again(c.a), c.allocate(Size::Freed(0), c.a.wrapping_sub(1))]);
}

/// Every second of a few blocks of two streams is freed, and what was freed is asked for in one piece. That is used by
/// another stream, freed, and asked for again.
fn joined(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    let size = Size::Part(bytes.next() % 8);
    let count = 3 + c.bits % 4;
    for at in 0..count {
        ops.push(c.allocate(size, if at % 4 == 3 { c.b } else { c.a }));
    }
    for at in 0..count / 2 {
        // Newest counts those that are left.
        ops.push(Op::Free { block: Which::Newest(at), how: How::read(bytes) });
    }
    ops.push(c.allocate(Size::TwoFreed(0), if c.bit(3) { c.b } else { c.a }));
    if c.bit(4) {
        ops.push(c.use_last(c.b));
    }
    ops.push(Op::Free { block: Which::Last, how: How::read(bytes) });
    match bytes.next() % 8 {
        0 => ops.push(Op::EmptyCache),
        1 => ops.push(Op::Trim { part: bytes.next() }),
        2 => ops.push(c.allocate(Size::Rest(0), c.b)),
        3 => ops.extend([c.again(c.b), c.again(c.a)]),
        4 => ops.push(Op::ForgetStream { stream: c.a, destroy: c.bit(2) }),
        _ => ops.push(c.again(c.b)),
    }
}

/// Leaves four holes between blocks, which the GPU has passed.
fn holes(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    let size = Size::Part(bytes.next() % 8);
    ops.extend((0..8).map(|_| Op::Allocate { size, stream: c.a, kernel: Kernel::Short }));
    // Newest counts those that are left.
    ops.extend((0..4).map(|at| Op::Free { block: Which::Newest(at), how: How::Plainly }));
    ops.push(Op::Advance(Until::Us(5_000)));
}

/// Two blocks of two streams in one view, of which the GPU has passed one. Memory of it goes back, or to others.
fn view_is_shared(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    holes(bytes, c, ops);
    let kernel = Kernel::Short;
    ops.extend([Op::Allocate { size: Size::ManyFreed(2), stream: c.a, kernel }, FREE_LAST]);
    ops.extend([Op::Allocate { size: Size::HalfFreed, stream: c.a, kernel }, c.allocate(Size::HalfFreed, c.b)]);
    let first = u8::from(c.bit(0));
    ops.push(Op::Free { block: Which::Newest(first), how: How::Plainly });
    ops.push(Op::Free { block: Which::Newest(0), how: if c.bit(1) { How::Plainly } else { How::read(bytes) } });
    ops.push(Op::Advance(Until::Us(5_000)));
    match bytes.next() % 4 {
        0 => ops.push(c.allocate(Size::Rest(0), c.a)),
        1 => ops.push(c.allocate(Size::Chunks(bytes.next()), c.a)),
        _ => ops.push(Op::Trim { part: bytes.next() % 16 }),
    }
}

/// A private pool ends that used a view; then other views take its place.
fn view_of_a_pool(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    holes(bytes, c, ops);
    let (pool, kernel, only_held) = (c.pool, c.kernel, false);
    ops.extend([Op::EndCapture, Op::CreatePool]);
    ops.push(Op::AllocateIn { pool, size: Size::ManyFreed(2), stream: c.a, kernel, only_held });
    ops.extend(end_of_pool(bytes, pool, c.bit(0)));
    // Another hole, and a request that takes it and one of the others.
    ops.push(Op::Free { block: Which::Newest(bytes.next() % 4), how: How::Plainly });
    ops.push(match bytes.next() % 4 {
        0 => Op::Trim { part: bytes.next() % 16 },
        1 => c.allocate(Size::Rest(1), c.b),
        _ => c.allocate(Size::TwoFreed(0), if c.bit(1) { c.a } else { c.b }),
    });
}

/// Memory goes back to the device while kernels of its streams run.
fn given_back(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    ops.push(c.allocate(Size::read_large(bytes), c.a));
    if c.bit(0) {
        ops.push(c.use_last(c.b));
    }
    ops.push(Op::Free { block: Which::Last, how: How::read(bytes) });
    ops.push(match bytes.next() % 4 {
        0 => Op::EmptyCache,
        1 => Op::Trim { part: bytes.next() / 2 },
        2 => Op::Limit { part: Some(bytes.next()) },
        _ => c.allocate(Size::Rest(bytes.next() % 3), c.b),
    });
    ops.extend([Op::Limit { part: None }, c.again(c.b)]);
}

/// Blocks are freed while a stream is captured, which asks for memory meanwhile.
fn captured(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    if c.bit(0) {
        ops.push(Op::CreatePool);
    }
    if c.bit(1) {
        ops.push(c.allocate(Size::read_large(bytes), c.b));
    }
    ops.extend([c.capture(c.a), c.allocate(Size::read_large(bytes), c.a)]);
    let which = if c.bit(2) { Which::read(bytes) } else { Which::Newest(1) };
    ops.push(Op::Free { block: which, how: How::read(bytes) });
    ops.push(c.allocate(Size::Freed(0), if c.bit(3) { c.a } else { c.b }));
    if c.bit(4) {
        ops.extend([Op::Free { block: Which::Last, how: How::read(bytes) }, c.again(c.a)]);
    }
    if !bytes.next().is_multiple_of(4) {
        ops.extend([Op::EndCapture, Op::LaunchGraph { graph: 0, stream: c.b, kernel: c.kernel }, c.again(c.a)]);
    }
}

/// A block of a capture is used after it, and freed; another capture asks for the memory.
fn used_after_a_capture(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    if c.bit(0) {
        ops.extend([Op::EndCapture, Op::CreatePool]);
    }
    ops.extend([c.capture(c.a), c.allocate(Size::read_large(bytes), c.a), Op::EndCapture]);
    ops.push(c.use_last(if c.bit(1) { c.a } else { c.b }));
    if c.bit(2) {
        ops.extend([Op::Free { block: Which::Last, how: How::read(bytes) }, c.capture(c.a)]);
    } else {
        ops.extend([c.capture(c.a), Op::Free { block: Which::Last, how: How::read(bytes) }]);
    }
    ops.extend([c.again(c.a), Op::EndCapture]);
    ops.push(Op::LaunchGraph { graph: bytes.next(), stream: c.b, kernel: c.kernel });
}

/// A private pool's block is used and freed outside of captures, before a capture or during one, which asks for the memory.
fn freed_around_a_capture(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    if c.bit(0) {
        ops.extend([Op::EndCapture, Op::CreatePool]);
    }
    let (pool, kernel, only_held) = (c.pool, c.kernel, false);
    let block = |size, stream| Op::AllocateIn { pool, size, stream, kernel, only_held };
    ops.push(block(Size::read_large(bytes), c.a));
    if c.bit(1) {
        ops.push(block(Size::Freed(0), c.b));
    }
    let free = Op::Free { block: Which::Newest(u8::from(c.bit(1))), how: How::read(bytes) };
    if c.bit(2) {
        ops.extend([free, c.capture(c.a)])
    } else {
        ops.extend([c.capture(c.a), free])
    }
    ops.push(c.again(c.a));
    if c.bit(3) {
        ops.extend([FREE_LAST, block(Size::Freed(0), c.a)]);
    }
    ops.extend([Op::EndCapture, Op::LaunchGraph { graph: bytes.next(), stream: c.b, kernel }]);
}

/// A stream is forgotten, destroyed or replaced while its kernels run, and while blocks of it are live.
fn stream_ends(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    ops.push(c.allocate(Size::read_large(bytes), c.a));
    let free = Op::Free { block: Which::Last, how: How::read(bytes) };
    let free_first = c.bit(0);
    if free_first {
        ops.push(free);
    }
    let forget = Op::ForgetStream { stream: c.a, destroy: c.bit(1) };
    match bytes.next() % 4 {
        0 => ops.push(Op::ReplaceStream { stream: c.a }),
        1 => ops.extend([Op::ReplaceStream { stream: c.a }, forget]),
        2 => ops.extend([forget, Op::ReplaceStream { stream: c.a }]),
        _ => ops.push(forget),
    }
    if c.bit(2) {
        ops.push(c.allocate(Size::read_large(bytes), c.a));
    }
    if !free_first {
        let block = Which::Newest(u8::from(c.bit(2)));
        ops.push(Op::Free { block, how: if c.bit(3) { How::Under(c.b, c.kernel) } else { How::read(bytes) } });
    }
    if c.bit(4) {
        ops.push(if c.bit(5) { Op::EmptyCache } else { Op::Trim { part: 0 } });
    }
    // A third stream, since the two may have the memory in their own order.
    ops.extend([c.again(if c.bit(6) { c.b } else { c.a.wrapping_sub(1) }), c.again(c.a)]);
}

/// Blocks of a borrowed stream are freed while it is the current one, or not.
fn stream_is_borrowed(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    ops.extend([Op::BorrowStream { stream: c.a }, c.allocate(Size::read_large(bytes), c.a)]);
    let current = How::Under(c.a, c.kernel);
    ops.push(Op::Free { block: Which::Last, how: if c.bit(0) { current } else { How::read(bytes) } });
    if c.bit(1) {
        ops.push(Op::ReplaceStream { stream: c.a });
    }
    if c.bit(2) {
        ops.push(Op::EmptyCache);
    }
    ops.push(c.again(c.b));
}

/// The last use of a private pool ends while kernels use its memory.
fn pool_ends(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    if c.bit(0) {
        ops.push(Op::CreatePool);
    }
    let (pool, kernel) = (c.pool, c.kernel);
    ops.push(Op::AllocateIn { pool, size: Size::read_large(bytes), stream: c.a, kernel, only_held: false });
    ops.extend(end_of_pool(bytes, pool, c.bit(1)));
    match bytes.next() % 4 {
        0 => ops.push(Op::EmptyPool { pool: bytes.next() }),
        1 => ops.push(Op::EmptyCache),
        2 => ops.push(c.allocate(Size::Rest(0), c.b)),
        _ => {}
    }
    ops.extend([c.again(if c.bit(2) { c.a } else { c.b }), c.allocate(Size::Freed(0), c.a.wrapping_sub(1))]);
}

/// The last use of a private pool ends while a graph of it runs.
fn graph_ends(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    let pool = c.pool;
    ops.extend([Op::EndCapture, Op::CreatePool, c.capture(c.a), c.allocate(Size::read_large(bytes), c.a)]);
    let free = Op::Free { block: Which::Last, how: How::read(bytes) };
    if c.bit(0) {
        ops.push(free);
    }
    ops.extend([Op::EndCapture, Op::LaunchGraph { graph: 0, stream: c.b, kernel: c.kernel }]);
    if !c.bit(0) {
        ops.push(free);
    }
    ops.push(Op::ReleasePool { pool });
    ops.push(match bytes.next() % 4 {
        0 => Op::EmptyCache,
        1 => Op::Trim { part: 0 },
        _ => Op::EmptyPool { pool: bytes.next() },
    });
    ops.extend([c.again(c.a), c.allocate(Size::Freed(0), c.a.wrapping_sub(1))]);
}

/// All that is not live is asked for, by a stream that freed none of it.
fn squeezed(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    for _ in 0..1 + c.bits % 4 {
        ops.push(Op::Free { block: Which::read(bytes), how: How::read(bytes) });
    }
    ops.push(c.allocate(Size::Rest(0), c.b));
    if c.bit(3) {
        ops.extend([Op::Free { block: Which::Last, how: How::read(bytes) }, c.allocate(Size::Rest(1), c.a)]);
    }
}

/// A call fails in the middle of a request, or of memory that goes back.
fn call_fails(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    ops.push(Op::Free { block: Which::read(bytes), how: How::read(bytes) });
    // Of the calls for memory mostly; and another one, perhaps that by which the first is undone.
    for _ in 0..1 + u8::from(c.bit(1)) {
        let call = if c.bit(2) { bytes.next() } else { bytes.next() % MEMORY_CALLS };
        ops.push(Op::Fail { call, nth: bytes.next() % 4, status: bytes.next() });
    }
    ops.push(match bytes.next() % 8 {
        0 => Op::EmptyCache,
        1 => Op::Trim { part: bytes.next() },
        2 => Op::ForgetStream { stream: c.a, destroy: false },
        3 => c.capture(c.a),
        4 => Op::Free { block: Which::read(bytes), how: How::read(bytes) },
        _ => c.allocate(Size::read(bytes), c.a),
    });
    if c.bit(0) {
        ops.push(Op::FailNoMore);
    }
    ops.extend([c.again(c.b), Op::FailNoMore]);
}

/// Live memory falls low, so that what streams freed is gathered, while one of them is behind.
fn gathered(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    let size = Size::Part(bytes.next() % 4);
    for at in 0..4 {
        ops.push(c.allocate(size, if at % 2 == 0 { c.a } else { c.b }));
    }
    if c.bit(0) {
        ops.push(Op::Advance(Until::Done(c.b)));
    }
    for _ in 0..4 {
        ops.push(Op::Free { block: Which::Newest(0), how: if c.bit(1) { How::Plainly } else { How::read(bytes) } });
    }
    ops.extend([c.allocate(Size::TwoFreed(0), c.b), c.allocate(Size::TwoFreed(1), c.a)]);
}

/// A private pool goes back to what it had live before.
fn restored(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    let (pool, kernel, only_held) = (c.pool, c.kernel, false);
    let block = |size| Op::AllocateIn { pool, size, stream: c.a, kernel, only_held };
    ops.extend([Op::EndCapture, block(Size::read_large(bytes)), Op::TakeCheckpoint { pool }]);
    ops.push(if c.bit(0) { FREE_LAST } else { block(Size::Freed(0)) });
    ops.push(Op::Restore { checkpoint: bytes.next() });
    ops.extend([Op::Free { block: Which::Newest(0), how: How::read(bytes) }, block(Size::Freed(0))]);
}

/// A request finds no memory before the program frees some of its own.
fn callback_helps(bytes: &mut Bytes<'_>, c: &Choice, ops: &mut Vec<Op>) {
    ops.extend([c.allocate(Size::Rest(1), c.a), Op::LeaveToCallback { block: Which::Last }]);
    if c.bit(0) {
        ops.push(Op::LeaveToCallback { block: Which::read(bytes) });
    }
    ops.push(c.allocate(Size::Rest(0), c.b));
    ops.push(c.again(c.b));
}

/// The last block is freed and its pool released, in either order.
fn end_of_pool(bytes: &mut Bytes<'_>, pool: u8, released_first: bool) -> [Op; 2] {
    let free = Op::Free { block: Which::Last, how: How::read(bytes) };
    let release = Op::ReleasePool { pool };
    if released_first { [release, free] } else { [free, release] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weights_of_the_scenarios_leave_no_byte_without_one() {
        assert_eq!(SCENARIOS.iter().map(|(weight, _)| weight).sum::<u16>(), 256);
    }

    #[test]
    fn a_scenario_is_a_few_operations() {
        for first in 0..=255 {
            for rest in [0, 1, 77, 255] {
                let mut ops = Vec::new();
                read(&mut Bytes::new(&[&[first][..], &[rest; 30]].concat()), &mut ops);
                assert!((2..=24).contains(&ops.len()), "{first}, {rest}: {ops:?}");
            }
        }
    }
}
