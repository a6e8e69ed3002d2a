//! Splits on a machine without host memory for chunks: how long a refusal takes, and the room that is kept.

use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Call, Driver, DriverError, DriverResult, ForwardingDriver, Handle, Status, StreamId};
use seamalloc::{Allocator, Config, Error};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(7);

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

/// On such a machine the last 20 MiB of the device are kept for copies, while splits may gain what a request lacks.
#[test]
fn without_host_memory_room_is_kept_for_copies() {
    let reserved = |driver: Arc<dyn Driver>| {
        let allocator = Allocator::new(driver, Config::parse("sharing:never").unwrap()).unwrap();
        let [side, main] =
            [(60, SIDE), (20, MAIN)].map(|(size, stream)| allocator.allocate(size * MIB, stream).unwrap());
        allocator.free(side).unwrap();
        allocator.free(main).unwrap();
        allocator.allocate(60 * MIB, MAIN).unwrap();
        allocator.stats().reserved_bytes.all.current
    };
    let gpu = || SimGpu::new(SimConfig::parse("sim:h200,capacity=100MiB").unwrap()).unwrap();
    assert_eq!(reserved(Arc::new(gpu())), 100 * MIB);
    assert_eq!(reserved(Arc::new(WithoutHost(gpu()))), 80 * MIB);
}
