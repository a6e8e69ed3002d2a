//! Tests of the allocator on CUDA drivers and devices that lack something.

use std::sync::Arc;

use crate::driver::StreamId;
use crate::driver::cuda::CudaDriver;
use crate::driver::cuda::fake_libcuda::old_drivers::{
    misplaced_calls, of_cuda_10_1, warned, with_coarse_granularity, without_virtual_memory,
};
use crate::{Allocator, Config, Error, StrategyKind};

fn allocator(driver: CudaDriver, strategy: StrategyKind) -> Result<Allocator, Error> {
    Allocator::new(Arc::new(driver), Config::with_strategy(strategy))
}

/// Opens, allocates and gives back by `cudaMalloc` alone; every other strategy is refused.
fn only_plain_memory_works(open: impl Fn() -> CudaDriver) {
    for strategy in StrategyKind::ALL.into_iter().filter(|strategy| strategy.needs_virtual_memory()) {
        let error = allocator(open(), strategy).err().unwrap();
        assert!(matches!(error, Error::NoVirtualMemory { .. }), "{error}");
        assert!(error.to_string().contains("which cuda:1 does not have; `caching` works without"), "{error}");
    }
    let allocator = allocator(open(), StrategyKind::Caching).unwrap();
    let address = allocator.allocate(1 << 20, StreamId::DEFAULT).unwrap();
    allocator.free(address).unwrap();
    assert_eq!(allocator.empty_cache(), Ok(2 << 20));
    assert_eq!(misplaced_calls(), 0);
}

#[test]
fn a_device_without_virtual_memory_has_plain_memory() {
    let texts = warned(|| only_plain_memory_works(without_virtual_memory));
    assert!(texts.is_empty(), "{texts:?}");
}

#[test]
fn a_driver_without_the_calls_has_plain_memory() {
    only_plain_memory_works(of_cuda_10_1);
}

#[test]
fn memory_in_unknown_pieces_is_refused_where_it_matters() {
    let error = allocator(with_coarse_granularity(), StrategyKind::Stitch).err().unwrap();
    assert_eq!(error, Error::Granularity { device: "cuda:1".into(), granularity: 32 << 20 });
    assert!(allocator(with_coarse_granularity(), StrategyKind::Caching).is_ok());
}
