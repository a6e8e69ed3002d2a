//! The figures of free memory say what is there: who may have it, and in which pieces it lies.

use crate::simulated;
use seamalloc::driver::StreamId;
use seamalloc::fragmentation::Owner;
use seamalloc::{Config, Fragmentation, StrategyKind};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(7);

/// Of each pool: whose it is, whether it is small, its free bytes, in how many ranges, the largest, and those that no other may
/// have.
fn pools(memory: &Fragmentation) -> Vec<(Owner, bool, u64, u64, u64, u64)> {
    let of = memory.pools.iter().filter(|pool| pool.free > 0);
    of.map(|pool| (pool.owner, pool.small, pool.free, pool.ranges, pool.largest, pool.stranded)).collect()
}

#[test]
fn every_free_byte_is_somewhere() {
    // Where streams wait for each other, a freed block joins the idle memory beside it.
    let by_wait = [(10 * MIB, 0), (2 * MIB, 0)];
    let once_passed = [(8 * MIB, 8 * MIB), (2 * MIB, 2 * MIB)];
    for (sharing, of_streams) in [("wait", by_wait), ("completed", once_passed)] {
        let options = Config::parse(&format!("sharing:{sharing}")).unwrap();
        let (_, allocator) = simulated::on("sim:h200", options);
        let chunks = [(); 5].map(|()| allocator.allocate(16 * MIB, MAIN).unwrap());
        [0, 2, 4].into_iter().for_each(|index: usize| allocator.free(chunks[index]).unwrap());
        let stitched = allocator.allocate(32 * MIB, MAIN).unwrap();
        allocator.free(stitched).unwrap();
        // In the first chunk four parts of 4 MiB: live, free, live, free.
        let parts = [(); 3].map(|()| allocator.allocate(4 * MIB - 100, MAIN).unwrap());
        allocator.free(parts[1]).unwrap();
        let small = allocator.allocate(1000, SIDE).unwrap();
        // In the third: 6 MiB that a private pool has free, 8 live, 2 free.
        let pool = allocator.pools().create();
        let own = allocator.pools().allocate(pool, 6 * MIB, SIDE).unwrap();
        allocator.free(own).unwrap();
        let block = allocator.allocate(8 * MIB, MAIN).unwrap();

        let memory = allocator.reports().fragmentation();
        let slab = 2 * MIB - KIB;
        let side = (Owner::Stream(SIDE), true, slab, 1, slab, slab);
        let private = (Owner::Pool(pool), false, 6 * MIB, 1, 6 * MIB, 6 * MIB);
        assert_eq!(pools(&memory), [(Owner::Everyone, false, 26 * MIB, 4, 16 * MIB, 0), side, private]);
        assert_eq!((memory.reserved, memory.free, memory.pending), (82 * MIB, 32 * MIB + slab, 0));
        assert_eq!((memory.allocated, memory.requested), (48 * MIB + KIB, 48 * MIB + 1000 - 200));
        assert_eq!((memory.chunks, memory.views, memory.view_mappings, memory.home_mappings), (6, 1, 2, 6));
        // The slab, the first chunk and the third; one part of the first has live memory on both sides.
        let partly = (memory.partly_free_chunks, memory.partly_free_bytes, memory.landlocked_bytes);
        assert_eq!(partly, (3, 16 * MIB + slab, 4 * MIB));

        // What a stream has just freed, others may have behind a wait; of a slab only the whole.
        allocator.free(block).unwrap();
        allocator.free(small).unwrap();
        let streams =
            pools(&allocator.reports().fragmentation()).into_iter().filter(|(of, ..)| matches!(of, Owner::Stream(_)));
        let freed: Vec<_> = streams.map(|(.., free, _, _, stranded)| (free, stranded)).collect();
        assert_eq!(freed, of_streams, "{sharing}");
    }
}

/// Memory that no other stream asks for is kept from nobody, whatever the strategy and the stream.
#[test]
fn free_memory_of_the_only_stream_is_not_stranded() {
    for strategy in StrategyKind::ALL {
        for (stream, other) in [(MAIN, SIDE), (SIDE, MAIN)] {
            let (_, allocator) = simulated::on("sim:h200", Config::with_strategy(strategy));
            let blocks = [16 * MIB, 1000, 600].map(|size| allocator.allocate(size, stream).unwrap());
            [blocks[0], blocks[1]].into_iter().for_each(|address| allocator.free(address).unwrap());
            let memory = allocator.reports().fragmentation();
            assert!(memory.free > 0, "{strategy}: {memory:?}");
            assert_eq!(memory.stranded(), 0, "{strategy} on {stream}: {memory}");
            // A stream that makes requests cannot have it where streams do not share.
            let asked = allocator.allocate(512, other).unwrap();
            let memory = allocator.reports().fragmentation();
            if matches!(strategy, StrategyKind::Caching | StrategyKind::Expandable) {
                assert!(memory.stranded_on(stream) >= 16 * MIB, "{strategy} on {stream}: {memory}");
                assert!(memory.to_string().contains(" stranded"), "{memory}");
            }
            allocator.free(asked).unwrap();
            // Nor is it kept from a stream that has ended.
            if other == SIDE {
                allocator.streams().forget(SIDE).unwrap();
                assert_eq!(allocator.reports().fragmentation().stranded_on(stream), 0, "{strategy}");
            }
        }
    }
}

#[test]
fn free_neighbours_of_two_streams_are_one_range_of_their_chunk() {
    let options = Config::parse("sharing:completed").unwrap();
    let (_, allocator) = simulated::on("sim:h200", options);
    let chunk = allocator.allocate(16 * MIB, MAIN).unwrap();
    allocator.free(chunk).unwrap();
    // The first miss of another stream makes it idle; then each has a part.
    let parts = [(SIDE, 4), (MAIN, 4), (MAIN, 8)].map(|(stream, size)| allocator.allocate(size * MIB, stream).unwrap());
    assert_eq!(parts, [chunk, chunk + 4 * MIB, chunk + 8 * MIB]);
    [parts[0], parts[1]].into_iter().for_each(|address| allocator.free(address).unwrap());
    let memory = allocator.reports().fragmentation();
    assert_eq!(memory.pools.iter().filter(|pool| pool.free > 0).count(), 2);
    let partly = (memory.partly_free_chunks, memory.partly_free_bytes, memory.landlocked_bytes);
    assert_eq!((memory.chunks, partly), (1, (1, 8 * MIB, 0)));
}
