//! Tests that each rule notices a breach: a table is changed behind the allocator's back, and the check names the rule.

use crate::config::Config;
use crate::config::rounding::MIN_BLOCK;
use crate::driver::sim::{SimConfig, SimGpu};
use crate::driver::{Handle, StreamId};
use crate::heap::blocks::block::{Block, Freeing, Kind, State};
use crate::heap::home::chunk_map::Chunk;
use crate::heap::pools::segment_source::Segments;
use crate::heap::{GRANULE, Heap};
use crate::ids::{BlockId, Class, PoolId, PoolIndex, SegmentId, ViewId};
use crate::{Allocator, span::Span};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(7);
/// The id of a private pool that does not exist.
const NOBODY: PoolId = PoolId(99, 0);
/// The private pools of the program below: `STITCHED` has stitched memory, `OWN` has segments of its own.
const STITCHED: PoolId = PoolId(5, 0);
const OWN: PoolId = PoolId(6, 0);

/// Returns an allocator with blocks of every kind, live, free and pending, in streams and in private pools.
fn program() -> Allocator {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
    let allocator =
        Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::parse("strategy:stitch,chunk_size_mb:16").unwrap()).unwrap();
    let stitch = |take: &dyn Fn(u64) -> u64| {
        let held: Vec<u64> = (0..5).map(|_| take(16 * MIB)).collect();
        [1, 3].iter().for_each(|index: &usize| allocator.free(held[*index]).unwrap());
        take(32 * MIB);
    };
    stitch(&|size| allocator.allocate(size, MAIN).unwrap());
    allocator.pools().open(STITCHED).unwrap();
    stitch(&|size| allocator.pools().allocate(STITCHED, size, SIDE).unwrap());
    allocator.pools().open_with(OWN, Segments::by_malloc()).unwrap();
    allocator.pools().allocate(OWN, 3 * MIB, MAIN).unwrap();
    let small = [(); 2].map(|()| allocator.allocate(512, MAIN).unwrap());
    allocator.free(small[0]).unwrap();
    let pending = allocator.allocate(16 * MIB, SIDE).unwrap();
    allocator.record_stream(pending, MAIN).unwrap();
    gpu.hold(MAIN);
    allocator.free(pending).unwrap();
    allocator
}

fn find(heap: &Heap, is_it: impl Fn(&Block) -> bool) -> BlockId {
    heap.blocks.iter().find(|(_, block)| is_it(block)).unwrap().0
}

/// Returns a live block of 16 MiB of the first stream at home, between two other blocks.
fn at_home(heap: &Heap) -> BlockId {
    let large = |id: BlockId| heap.blocks[id].size == 16 * MIB && heap.blocks[id].state != State::Free;
    find(heap, |block| {
        let between = block.prev.is_some() && block.next.is_some() && large(block.prev) && large(block.next);
        let live = block.kind == Kind::Home && block.state == State::Allocated && block.size == 16 * MIB;
        live && between && block.pool.large() == PoolIndex::DEFAULT
    })
}

fn stitched(heap: &Heap, owner: PoolId) -> BlockId {
    find(heap, |block| block.kind == Kind::View && heap.owner_of(block.pool) == owner)
}

fn view_of(heap: &Heap, owner: PoolId) -> ViewId {
    heap.blocks[stitched(heap, owner)].view()
}

fn home_end(heap: &Heap) -> u64 {
    heap.home.map().unwrap().span.end()
}

/// A change to a table: its name, the change, and a part of the error text of the check.
type Break = (&'static str, fn(&mut Heap), &'static str);

fn change(heap: &mut Heap, id: BlockId, change: impl FnOnce(&mut Block)) {
    change(&mut heap.blocks[id]);
}

fn change_at_home(heap: &mut Heap, what: impl FnOnce(&mut Block)) {
    let id = at_home(heap);
    change(heap, id, what);
}

const OF_BLOCKS: &[Break] = &[
    ("half a unit", |h| change_at_home(h, |block| block.size -= MIN_BLOCK / 2), "an odd size"),
    ("no bytes", |h| change_at_home(h, |block| block.size = 0), "an odd size"),
    ("the block before", |h| change_at_home(h, |block| block.prev = BlockId::NONE), "linked or assigned"),
    ("the segment", |h| change_at_home(h, |block| block.segment = SegmentId(77)), "linked or assigned"),
    (
        "the pool of a segment",
        |h| {
            let id = find(h, |block| block.kind == Kind::Malloc && block.state == State::Free);
            change(h, id, |block| block.pool = PoolIndex::DEFAULT);
        },
        "linked or assigned",
    ),
    ("a hole between two", |h| change_at_home(h, |block| block.address += MIN_BLOCK), "where the last one ends"),
    (
        "the end",
        |h| {
            let id = find(h, |block| block.kind == Kind::Malloc && block.next == BlockId::NONE);
            change(h, id, |block| block.size += MIN_BLOCK);
        },
        "do not fill it",
    ),
    (
        "two free neighbours",
        |h| {
            let free = |id: BlockId| id.is_some() && h.blocks[id].state == State::Free;
            let id = find(h, |block| block.pool.is_small() && block.state == State::Allocated && free(block.prev));
            let Block { pool, freed_at, .. } = h.blocks[h.blocks[id].prev];
            change(h, id, |block| (block.state, block.pool, block.freed_at) = (State::Free, pool, freed_at));
        },
        "not merged",
    ),
    ("a free block in no index", |h| change_at_home(h, |block| block.state = State::Free), "not in the index"),
    ("an unmapped one in no set", |h| change_at_home(h, |block| block.state = State::Unmapped), "not in its set"),
    ("a vacant one", |h| change_at_home(h, |block| block.state = State::Vacant), "a vacant slot is linked"),
    ("one as if it were guarded", |h| change_at_home(h, |block| block.state = State::Slack), "not guarded"),
    (
        "a live one in no table",
        |h| {
            let id = at_home(h);
            h.take_live(h.blocks[id].address).unwrap();
        },
        "not in the address table",
    ),
    (
        "home's own table",
        |h| {
            let id = at_home(h);
            let (address, other) = (h.blocks[id].address, h.blocks[id].next);
            h.blocks.misplace(other, address + GRANULE);
        },
        "home does not find",
    ),
];

const OF_STITCHED_BLOCKS: &[Break] = &[
    (
        "no pieces",
        |h| {
            let id = stitched(h, PoolId::NONE);
            change(h, id, |block| block.left = BlockId::NONE)
        },
        "are 0 bytes",
    ),
    (
        "a piece of another pool",
        |h| {
            let piece = h.blocks[stitched(h, PoolId::NONE)].left;
            change(h, piece, |block| block.pool = block.pool.small());
        },
        "is not one",
    ),
    (
        "one in no table",
        |h| {
            let id = stitched(h, PoolId::NONE);
            h.take_live(h.blocks[id].address).unwrap();
        },
        "neither live nor pending",
    ),
    (
        "a user too many",
        |h| {
            let view = view_of(h, PoolId::NONE);
            h.home.views_mut().used(view)
        },
        "users",
    ),
    (
        "a view with a chunk twice",
        |h| {
            let chunk = h.home.views().get(view_of(h, PoolId::NONE)).unwrap().chunks[0];
            h.home.views_mut().reserve_splice(chunk, 1).unwrap();
            h.home.views_mut().splice(chunk, &[(Span::default(), chunk); 2], |_| Some(0))
        },
        "twice",
    ),
];

const OF_PRIVATE_POOLS: &[Break] = &[
    (
        "a pair as if it were public",
        |h| {
            let large = h.pools.pairs()[0].large;
            h.pools[large].private = false
        },
        "is not its own",
    ),
    ("a pair of another stream", |h| h.pools.pair_mut().stream = StreamId(1234), "is not its own"),
    ("a pair of nobody", |h| h.pools.pair_mut().owner = NOBODY, "is not its own"),
    ("a vacant pool with blocks", |h| h.pools.vacate(PoolIndex::DEFAULT), "part of vacant pool"),
    ("a view without its pin", |h| h.home.views_mut().unpin(STITCHED), "is not pinned"),
    (
        "a pin of nobody",
        |h| {
            let view = view_of(h, PoolId::NONE);
            h.home.views_mut().reserve_pin(view).unwrap();
            h.home.views_mut().pin(view, NOBODY)
        },
        "which is no more",
    ),
    (
        "a block that takes the fast path",
        |h| {
            let id = find(h, |block| {
                block.kind == Kind::Home && block.state == State::Allocated && h.is_private(block.pool)
            });
            change(h, id, |block| block.freeing = Freeing::AtOnce);
        },
        "freed as any other",
    ),
    (
        "a stream that ends and keeps its blocks",
        |h| h.pools[PoolIndex::DEFAULT].ended = true,
        "a stream that has ended",
    ),
    (
        "a block outside of its pool's segments",
        |h| {
            let id = find(h, |block| block.kind == Kind::Malloc && block.state == State::Allocated);
            change(h, id, |block| block.kind = Kind::Expandable);
        },
        "no segment of its own",
    ),
];

const OF_SUMS: &[Break] = &[
    (
        "a chunk that sleeps and belongs to nobody who does",
        |h| {
            let home = h.home.map_mut();
            let (id, _) = home.chunks().next().unwrap();
            home.set_handle(id, None);
        },
        "which does not",
    ),
    ("bytes that sleep in no chunk", |h| h.home.count_asleep(GRANULE), "bytes sleep"),
    (
        "a chunk with no blocks",
        |h| {
            let address = home_end(h) - GRANULE;
            h.home.map_mut().add_chunk(Chunk {
                address,
                size: GRANULE,
                handle: Handle(1),
                slab: false,
                pinned: false,
                asleep: false,
                spilled: false,
            });
        },
        "bytes in chunks",
    ),
    (
        "a block in no segment",
        |h| {
            let span = Span::new(home_end(h) - GRANULE, MIN_BLOCK);
            h.blocks.insert(Block::new(span, PoolIndex::DEFAULT, SegmentId(0), Kind::Home, State::Pending)).unwrap();
        },
        "blocks seen of",
    ),
    ("an allocation too many", |h| h.journal.counters_mut().allocation.add(Class::Large, 1), "allocations: "),
    (
        "a byte too many",
        |h| h.journal.counters_mut().reserved_bytes.add(Class::Small, MIN_BLOCK),
        "small reserved bytes: ",
    ),
];

#[test]
fn every_rule_is_found_broken() {
    for (what, break_it, said) in [OF_BLOCKS, OF_STITCHED_BLOCKS, OF_PRIVATE_POOLS, OF_SUMS].into_iter().flatten() {
        let allocator = program();
        allocator.with_heap(|heap| {
            assert_eq!(heap.check(), Ok(()), "before: {what}");
            break_it(heap);
            let found = heap.check();
            assert!(found.as_ref().is_err_and(|found| found.contains(said)), "{what}: {found:?}, not {said}");
        });
        // The tables are wrong, so the allocator must not give memory back.
        std::mem::forget(allocator);
    }
}

#[test]
fn a_live_block_that_is_listed_apart_breaks_no_rule() {
    let allocator = program();
    allocator.with_heap(|heap| {
        let id = at_home(heap);
        heap.blocks.list_apart(heap.blocks[id].address);
        assert_eq!((heap.live(heap.block(id).address), heap.check()), (Ok(id), Ok(())));
    });
}
