//! The blocks that a request gets: addresses, sizes and bytes that are nobody else's.

use crate::physical::Taken;
use crate::random::Random;
use crate::{MAIN, MIB, SIDE, Subject, balanced, calls, on};
use seamalloc::Error;
use seamalloc::driver::sim::Range;
use seamalloc::driver::{Call, Driver, StreamId};

/// The alignment of addresses and sizes, in bytes.
const ALIGNMENT: u64 = 512;

pub(crate) fn zero_bytes_are_address_zero_and_take_nothing(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let (calls, stats) = (gpu.call_stats(), allocator.stats());
    assert_eq!(allocator.allocate(0, MAIN), Ok(0), "{kind}");
    assert_eq!(allocator.free(0), Ok(()), "{kind}");
    assert_eq!((gpu.call_stats(), allocator.stats()), (calls, stats), "{kind}");
}

pub(crate) fn addresses_and_sizes_are_aligned(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    for size in [1, 511, 512, 513, MIB - 1, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 33 * MIB + 1] {
        let address = allocator.allocate(size, MAIN).unwrap();
        let whole = allocator.reports().size_of(address).unwrap();
        assert!(address.is_multiple_of(ALIGNMENT) && whole.is_multiple_of(ALIGNMENT), "{kind}: {address:#x}, {whole}");
        assert!(whole >= size, "{kind}: {whole} bytes for {size}");
        let pieces = gpu.physical(Range { address, size: whole });
        assert_eq!(pieces.iter().map(|piece| piece.size).sum::<u64>(), whole, "{kind}: memory behind every byte");
    }
    balanced(&gpu, &allocator);
}

pub(crate) fn live_blocks_share_no_byte(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200,capacity=2GiB");
    let (mut random, mut taken, mut live) = (Random(1), Taken::default(), Vec::new());
    for step in 0..300 {
        if random.below(5) < 3 || live.is_empty() {
            let most = [900, 300 << 10, 9 * MIB, 40 * MIB][random.below(4) as usize];
            let address = allocator.allocate(1 + random.below(most), StreamId(random.below(3))).unwrap();
            let range = Range { address, size: allocator.reports().size_of(address).unwrap() };
            let pieces = gpu.physical(range);
            taken.take(&pieces);
            live.push((range, pieces));
        } else {
            let (range, pieces) = live.swap_remove(random.below(live.len() as u64) as usize);
            assert_eq!(gpu.physical(range), pieces, "{kind}, step {step}: a live block's memory stays where it is");
            taken.release(&pieces);
            allocator.free(range.address).unwrap();
        }
    }
    balanced(&gpu, &allocator);
}

pub(crate) fn a_freed_block_serves_its_stream_at_once(Subject { kind, .. }: Subject) {
    for size in [700, 3 * MIB, 40 * MIB] {
        let (gpu, allocator) = on(kind, "sim:h200");
        let address = allocator.allocate(size, SIDE).unwrap();
        gpu.launch(SIDE, &[Range { address, size }], 1_000_000).unwrap();
        let growth = || [Call::Malloc, Call::Reserve, Call::Create, Call::Map].map(|call| calls(&gpu, call));
        let before = growth();
        allocator.free(address).unwrap();
        assert_eq!(allocator.allocate(size, SIDE), Ok(address), "{kind}, {size}: in the order of its stream");
        assert_eq!(growth(), before, "{kind}, {size}");
        assert!(gpu.now_ns() < gpu.done_at(SIDE).unwrap(), "{kind}, {size}: nobody waits");
    }
}

pub(crate) fn what_is_not_a_live_allocation_is_an_error(Subject { kind, .. }: Subject) {
    let (_, allocator) = on(kind, "sim:h200");
    let a = allocator.allocate(1 << 20, MAIN).unwrap();
    allocator.free(a).unwrap();
    assert_eq!(allocator.free(a), Err(Error::InvalidAddress { address: a }), "freed twice");
    assert_eq!(allocator.free(a + 512), Err(Error::InvalidAddress { address: a + 512 }));
    assert_eq!(allocator.record_stream(a, SIDE), Err(Error::InvalidAddress { address: a }));
    assert_eq!(allocator.allocate(u64::MAX, MAIN), Err(Error::RequestTooLarge { size: u64::MAX }));
}
