//! Address space that runs out.

use super::{MIB, on, sound};
use seamalloc::StrategyKind;
use seamalloc::driver::StreamId;

/// PyTorch 192269: each stream's expandable segment reserves more than the device has, and keeps it. With many streams, and
/// devices, no addresses are left, though hardly any memory is in use.
#[test]
fn streams_that_come_and_go_do_not_use_up_the_addresses() {
    for kind in StrategyKind::MAIN {
        // A segment's addresses are nine eighths of the device, and there are 64 TiB of them: enough for seven segments.
        let (gpu, allocator) = on(kind, "sim:h200,capacity=8TiB");
        let mut kept = Vec::new();
        for number in 1..=100 {
            let stream = StreamId(number);
            let blocks = [3 * MIB, 700, 30 * MIB].map(|size| allocator.allocate(size, stream).unwrap());
            // One stream keeps what it has.
            match number {
                1 => kept.extend(blocks),
                _ => blocks.iter().for_each(|address| allocator.free(*address).unwrap()),
            }
        }
        sound(&gpu, &allocator);
        kept.iter().for_each(|address| allocator.free(*address).unwrap());
        allocator.empty_cache().unwrap();
        assert_eq!((allocator.reserved(), gpu.leaks().reservations), (0, 0), "{kind}");
    }
}
