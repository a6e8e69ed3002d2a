//! Random programs that allocate and free.

use crate::random::Random;
use seamalloc::driver::StreamId;
use seamalloc::{Allocator, Error};

const MIB: u64 = 1 << 20;

/// One operation of a random program that keeps its blocks in `live`. Errors are the caller's to judge.
pub(crate) fn step(allocator: &Allocator, random: &mut Random, live: &mut Vec<u64>) -> Result<(), Error> {
    let stream = StreamId(random.below(3));
    if random.below(5) < 3 || live.is_empty() {
        let most = [2000, 900 << 10, 9 * MIB, 60 * MIB][random.below(4) as usize];
        live.push(allocator.allocate(1 + random.below(most), stream)?);
    } else {
        let at = random.below(live.len() as u64) as usize;
        if random.below(4) == 0 {
            allocator.record_stream(live[at], stream)?;
        }
        allocator.free(live[at])?;
        live.swap_remove(at);
    }
    Ok(())
}
