//! How long a request takes that cannot split chunks, where there are many.

use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Call, Driver, DriverError, DriverResult, ForwardingDriver, Handle, Status, StreamId};
use seamalloc::{Allocator, Config, Error};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;

/// A simulated GPU on a machine without host memory for chunks.
struct WithoutHost(SimGpu);

impl ForwardingDriver for WithoutHost {
    fn inner(&self) -> &dyn Driver {
        &self.0
    }
    fn create_on_host(&self, _: u64) -> DriverResult<Handle> {
        Err(DriverError::new(Call::CreateOnHost, Status::NOT_SUPPORTED, "made to fail"))
    }
}

/// The refusal took 70 s, when the chunks that could be given back were searched for each chunk that could be split.
#[test]
fn a_request_is_refused_at_once_where_no_chunk_has_room_to_be_split() {
    const CHUNKS: usize = 32_000;
    let gpu = Arc::new(WithoutHost(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap()));
    let allocator = Allocator::new(gpu, Config::parse("split:last_resort,chunk_size_mb:4").unwrap()).unwrap();
    let chunks: Vec<u64> = (0..CHUNKS).map(|_| allocator.allocate(4 * MIB, MAIN).unwrap()).collect();
    chunks.into_iter().for_each(|chunk| allocator.free(chunk).unwrap());
    let mut halves: Vec<u64> = (0..2 * CHUNKS).map(|_| allocator.allocate(2 * MIB, MAIN).unwrap()).collect();
    halves.sort_unstable();
    halves.chunks(2).for_each(|two| allocator.free(two[1]).unwrap());
    allocator.limits().set_bytes(Some(allocator.stats().reserved_bytes.all.current)).unwrap();
    let begin = Instant::now();
    let refused = allocator.allocate(1 << 30, MAIN);
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}
