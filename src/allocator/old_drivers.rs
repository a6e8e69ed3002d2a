//! Tests of the allocator on CUDA drivers and devices that lack features.

use std::sync::Arc;

use crate::driver::StreamId;
use crate::driver::cuda::CudaDriver;
use crate::driver::cuda::fake_libcuda::old_drivers::{
    misplaced_calls, of_cuda_10_1, warned, with_a_false_claim, with_coarse_granularity, without_virtual_memory,
};
use crate::{Allocator, Config, Error, StrategyKind};

fn allocator(driver: CudaDriver, strategy: StrategyKind) -> Result<Allocator, Error> {
    Allocator::new(Arc::new(driver), Config::with_strategy(strategy))
}

/// Checks that `caching` replaces the default strategy if the program names no strategy, and that reports and the log
/// say so.
fn plain_memory_takes_the_place_of_the_default(open: impl Fn() -> CudaDriver) {
    let mut made = Vec::new();
    let texts = warned(|| {
        for options in ["memory_limit:64MiB", "memory_limit:100MiB,expandable_segments:False"] {
            made.push(Allocator::new(Arc::new(open()), Config::parse(options).unwrap()).unwrap());
        }
    });
    let texts: Vec<_> = texts.into_iter().filter(|text| text.contains("takes its place")).collect();
    assert_eq!(texts.len(), made.len(), "{texts:?}");
    assert!(
        texts[0].contains("cuda:1 has no virtual memory management") && texts[0].contains("`caching`"),
        "{texts:?}"
    );
    for allocator in made {
        assert_eq!(allocator.reports().fallback_from(), Some(StrategyKind::Stitch));
        let (config, stats) = (allocator.config(), allocator.stats());
        assert_eq!(config.strategy, StrategyKind::Caching);
        assert_eq!((stats.strategy, stats.instead_of), (StrategyKind::Caching, Some(StrategyKind::Stitch)));
        assert!(config.to_string().contains("strategy:caching"), "{config}");
        let address = allocator.allocate(1 << 20, StreamId::DEFAULT).unwrap();
        let Err(Error::OutOfMemory(report)) = allocator.allocate(200 << 20, StreamId::DEFAULT) else {
            panic!("no such memory")
        };
        let words = "The strategy is `caching`, since the device has too few addresses or no virtual memory, which `stitch` needs.";
        assert!(report.to_string().ends_with(words), "{report}");
        allocator.free(address).unwrap();
        assert_eq!(allocator.empty_cache(), Ok(2 << 20));
    }
    // Page-wise guard mode needs virtual memory. The options name it, so it is refused, not replaced like the default
    // strategy.
    let error = Allocator::new(Arc::new(open()), Config::parse("guard:page").unwrap()).err().unwrap();
    assert!(matches!(error, Error::NoVirtualMemory { strategy: "guard:page", .. }), "{error}");
    assert_eq!(misplaced_calls(), 0);
}

/// Checks that `caching` needs nothing but `cudaMalloc` to allocate and give back, and that every strategy that needs
/// virtual memory is refused.
fn only_plain_memory_works(open: impl Fn() -> CudaDriver) {
    for strategy in StrategyKind::ALL.into_iter().filter(|strategy| strategy.needs_virtual_memory()) {
        let error = allocator(open(), strategy).err().unwrap();
        assert!(matches!(error, Error::NoVirtualMemory { .. }), "{error}");
        assert!(
            error.to_string().contains("which cuda:1 does not have; `caching` works without: give strategy:caching"),
            "{error}"
        );
    }
    let allocator = allocator(open(), StrategyKind::Caching).unwrap();
    assert_eq!(allocator.reports().fallback_from(), None, "it is meant");
    let address = allocator.allocate(1 << 20, StreamId::DEFAULT).unwrap();
    allocator.free(address).unwrap();
    assert_eq!(allocator.empty_cache(), Ok(2 << 20));
    assert_eq!(misplaced_calls(), 0);
}

#[test]
fn a_device_without_virtual_memory_has_plain_memory() {
    let texts = warned(|| only_plain_memory_works(without_virtual_memory));
    assert!(texts.is_empty(), "{texts:?}");
    plain_memory_takes_the_place_of_the_default(without_virtual_memory);
}

#[test]
fn a_driver_without_the_calls_has_plain_memory() {
    only_plain_memory_works(of_cuda_10_1);
    plain_memory_takes_the_place_of_the_default(of_cuda_10_1);
}

#[test]
fn a_device_that_only_claims_virtual_memory_has_plain_memory() {
    only_plain_memory_works(with_a_false_claim);
    plain_memory_takes_the_place_of_the_default(with_a_false_claim);
}

#[test]
fn memory_in_unknown_pieces_is_refused_where_it_matters() {
    let error = allocator(with_coarse_granularity(), StrategyKind::Stitch).err().unwrap();
    assert_eq!(error, Error::Granularity { device: "cuda:1".into(), granularity: 32 << 20 });
    assert!(allocator(with_coarse_granularity(), StrategyKind::Caching).is_ok());
}
