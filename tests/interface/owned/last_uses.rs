//! Every way in which a program parts with memory that another stream than its own uses last: nobody has it before that stream is done.

use super::{MAIN, MIB, SIDE};
use crate::simulated;
use seamalloc::driver::sim::{Piece, Range, SimGpu};
use seamalloc::{Allocator, Block, Config, Growing, Pool, RawBlock, StreamId};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

const SIZE: u64 = 20 * MIB;
/// With room for one of them.
const DEVICE: &str = "sim:h200,capacity=36MiB";
/// How long a kernel runs, in nanoseconds: longer than all driver calls of a test.
const LONG: u64 = 1 << 40;

type Blocks = fn(&Allocator, Block<&Allocator>);
type Growings = fn(&Allocator, Growing<&Allocator>);

const OF_BLOCKS: [(&str, Blocks); 6] = [
    ("drop", |_, block| drop(block)),
    ("free", |_, mut block| block.free().unwrap()),
    ("into_raw and free", |allocator, block| allocator.free(block.into_raw().address).unwrap()),
    ("into_raw and from_raw", |allocator, block| drop(Block::from_raw(allocator, block.into_raw()))),
    ("into_raw and free_on", |allocator, block| {
        let raw = block.into_raw();
        allocator.free_on(raw.address, raw.stream).unwrap();
    }),
    ("unwinding", |_, block| unwind_with(block)),
];

const OF_GROWINGS: [(&str, Growings); 7] = [
    ("drop", |_, growing| drop(growing)),
    ("free", |_, mut growing| growing.free().unwrap()),
    ("into_address and free", |allocator, growing| allocator.free(growing.into_address()).unwrap()),
    ("into_address and shrink", |allocator, growing| {
        let address = growing.into_address();
        allocator.growing().shrink(address, 0).unwrap();
        allocator.free(address).unwrap();
    }),
    ("into_address and from_raw", |allocator, growing| {
        let raw = RawBlock { address: growing.into_address(), size: SIZE, stream: MAIN };
        drop(Block::from_raw(allocator, raw));
    }),
    ("shrink", |_, mut growing| growing.shrink(0).unwrap()),
    ("unwinding", |_, growing| unwind_with(growing)),
];

fn unwind_with<T>(owned: T) {
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _owned = owned;
        resume_unwind(Box::new(()))
    }));
    assert!(unwound.is_err());
}

/// Asks for as much memory on a stream, and looks whether it is that of `before` while `user` is not done with that.
fn is_early(gpu: &SimGpu, allocator: &Allocator, before: &[Piece], (next, user): (StreamId, StreamId)) -> bool {
    let new = allocator.block(SIZE, next).unwrap();
    let now = gpu.physical(Range { address: new.address(), size: SIZE });
    let same = now.iter().any(|piece| before.iter().any(|of| of.memory == piece.memory));
    let begins = gpu.done_at(next).unwrap().max(gpu.now_ns());
    same && begins < gpu.done_at(user).unwrap()
}

/// A program makes something, a stream uses it last and is named for that, and the program parts with it.
fn part_with<'a, T>(
    (gpu, allocator): (&'a SimGpu, &'a Allocator),
    make: impl FnOnce(&'a Allocator) -> (T, u64),
    last_use: (StreamId, impl FnOnce(&mut T)),
    part: impl FnOnce(&'a Allocator, T),
    forgets: bool,
) -> Vec<Piece> {
    let (mut owned, address) = make(allocator);
    if forgets {
        allocator.streams().forget(MAIN).unwrap();
        gpu.replace_stream(MAIN);
    }
    let (user, name) = last_use;
    let range = Range { address, size: SIZE };
    gpu.launch(user, &[range], LONG).unwrap();
    let before = gpu.physical(range);
    name(&mut owned);
    part(allocator, owned);
    before
}

fn all_ways(forgets: bool, user: StreamId, next: StreamId) {
    for (way, part) in OF_BLOCKS {
        for in_pool in [false, true] {
            let (gpu, allocator) = simulated::on(DEVICE, Config::default());
            let pool = Pool::create(&allocator).unwrap();
            let make = |allocator| {
                let block =
                    if in_pool { pool.block(SIZE, MAIN) } else { Allocator::block(allocator, SIZE, MAIN) }.unwrap();
                let address = block.address();
                (block, address)
            };
            let name = |block: &mut Block<&Allocator>| block.set_last_use(user);
            let before = part_with((&*gpu, &allocator), make, (user, name), part, forgets);
            drop(pool);
            assert!(!is_early(&gpu, &allocator, &before, (next, user)), "Block, {way}, in a pool {in_pool}");
            allocator.reports().check().unwrap();
        }
    }
    for (way, part) in OF_GROWINGS {
        let (gpu, allocator) = simulated::on(DEVICE, Config::default());
        let make = |allocator| {
            let mut growing = Growing::new(allocator, 2 * SIZE, MAIN).unwrap();
            growing.grow(SIZE / 2).unwrap();
            growing.grow(SIZE).unwrap();
            let address = growing.address();
            (growing, address)
        };
        let name = |growing: &mut Growing<&Allocator>| growing.set_last_use(user);
        let before = part_with((&*gpu, &allocator), make, (user, name), part, forgets);
        assert!(!is_early(&gpu, &allocator, &before, (next, user)), "Growing, {way}");
        assert_eq!(allocator.stats().allocated_bytes.all.current, 0, "Growing, {way}");
        allocator.reports().check().unwrap();
    }
}

#[test]
fn another_streams_last_use_is_waited_for_on_every_way() {
    all_ways(false, SIDE, MAIN);
    all_ways(false, SIDE, StreamId::DEFAULT);
}

/// The stream of the last use has the handle that the block's own stream had.
#[test]
fn the_last_use_of_a_new_stream_with_the_old_ones_handle_is_waited_for() {
    all_ways(true, MAIN, SIDE);
    all_ways(true, SIDE, MAIN);
}
