//! Much is reserved, little is used, and a small request fails.

use super::{MAIN, MIB, sound};
use crate::simulated;
use seamalloc::out_of_memory::Cause;
use seamalloc::{Config, Error};

/// RMM 1245, on a GPU of 80 GB: 53.51 GB used of 84.49 GB reserved, and a request of 132,870,728 bytes failed.
///
/// It depends on how blocks lie in what memory is taken in. In chunks of 2 MiB `stitch` always finds it; in larger ones only
/// if the pieces are whole chunks. `expandable`, as in PyTorch, keeps every unit of 20 MiB in which a byte is used.
#[test]
fn a_request_of_133_mb_is_served_while_31_gb_are_free_in_pieces() {
    const DEVICE: &str = "sim:h200,capacity=84490000000B";
    const USED: u64 = 53_510_000_000;
    const REQUEST: u64 = 132_870_728;
    const EXACT: u64 = 12 * MIB;
    const ODD: u64 = 12_000_000;
    for (options, block, refused) in [
        ("strategy:stitch", EXACT, None),
        ("strategy:stitch,chunk_size_mb:2", ODD, None),
        ("strategy:stitch", ODD, None),
        ("strategy:stitch,split:off", ODD, Some(Cause::PartsOfChunks)),
        ("strategy:gmlake", ODD, None),
        ("strategy:caching", ODD, None),
        ("strategy:expandable", EXACT, Some(Cause::OneRange)),
    ] {
        let (gpu, allocator) = simulated::on(DEVICE, Config::parse(options).unwrap());
        let blocks: Vec<u64> = std::iter::from_fn(|| allocator.allocate(block, MAIN).ok()).collect();
        // Three in eight are freed, no two of them beside each other.
        let freed = blocks.iter().enumerate().filter(|(nth, _)| matches!(nth % 8, 0 | 3 | 6));
        freed.for_each(|(_, address)| allocator.free(*address).unwrap());
        let (used, reserved) = (allocator.stats().allocated_bytes.all.current, allocator.reports().reserved());
        let memory = allocator.reports().fragmentation();
        assert!(used <= USED && memory.largest_free() < REQUEST && memory.free > 25_000_000_000, "{options}");
        match allocator.allocate(REQUEST, MAIN) {
            Ok(_) => assert!(refused.is_none() && allocator.reports().reserved() <= reserved, "{options}"),
            Err(Error::OutOfMemory(report)) => assert_eq!(Some(report.cause), refused, "{report}"),
            Err(error) => panic!("{options}: {error}"),
        }
        sound(&gpu, &allocator);
    }
}
