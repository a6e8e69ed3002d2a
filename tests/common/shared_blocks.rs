//! Blocks that are shared between processes.

use seamalloc::Allocator;
use seamalloc::driver::StreamId;

const MIB: u64 = 1 << 20;

/// Live blocks of many sizes between free ones; with the strategies that stitch, one of them lies in a view.
pub(crate) fn blocks(allocator: &Allocator) -> Vec<u64> {
    let sizes = [700, 3 * MIB, 20 * MIB, 33 * MIB, 21 * MIB, 5 * MIB, 40 * MIB, 2 * MIB + 512];
    let mut live: Vec<u64> = sizes.iter().map(|size| allocator.allocate(*size, StreamId::DEFAULT).unwrap()).collect();
    for index in [6, 4, 2] {
        allocator.free(live.remove(index)).unwrap();
    }
    live.push(allocator.allocate(70 * MIB, StreamId::DEFAULT).unwrap());
    live.push(allocator.allocate(MIB, StreamId::DEFAULT).unwrap());
    live
}
