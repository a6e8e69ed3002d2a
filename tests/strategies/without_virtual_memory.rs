//! Devices without virtual memory management, as some vGPUs and virtual machines have none: what works there, and what says so.

use crate::simulated;
use seamalloc::driver::prelude::*;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Call, Status, StreamId};
use seamalloc::{Allocator, Config, Error, HostPool, StrategyKind};

const MIB: u64 = 1 << 20;
const WITHOUT: &str = "sim:h200,capacity=400MiB,vmm=no";

fn device() -> SimGpu {
    SimGpu::new(SimConfig::parse(WITHOUT).unwrap()).unwrap()
}

#[test]
fn the_device_refuses_every_call_of_virtual_memory_and_no_other() {
    let gpu = device();
    assert!(!gpu.properties().virtual_memory && gpu.properties().memory_pools);
    assert_eq!(gpu.properties().name, WITHOUT);
    let refused = [
        gpu.reserve(2 * MIB, 0).map(drop).unwrap_err(),
        gpu.create(2 * MIB).map(drop).unwrap_err(),
        gpu.map(2 * MIB, 2 * MIB, 0, seamalloc::driver::Handle(1)).unwrap_err(),
        gpu.set_access(2 * MIB, 2 * MIB).unwrap_err(),
        gpu.unmap(2 * MIB, 2 * MIB).unwrap_err(),
        gpu.release(seamalloc::driver::Handle(1)).unwrap_err(),
        gpu.address_free(2 * MIB, 2 * MIB).unwrap_err(),
    ];
    assert!(refused.iter().all(|error| error.status == Status::NOT_SUPPORTED), "{refused:?}");
    let address = gpu.malloc(MIB).unwrap();
    gpu.free(address).unwrap();
    assert!(gpu.leaks().is_empty());
}

#[test]
fn without_a_name_caching_takes_the_place_and_says_so() {
    let allocator = Allocator::open(WITHOUT, "").unwrap();
    assert_eq!(allocator.reports().fallback_from(), Some(StrategyKind::Stitch));
    let stats = allocator.stats();
    assert_eq!((stats.strategy, stats.instead_of), (StrategyKind::Caching, Some(StrategyKind::Stitch)));
    let address = allocator.allocate(30 * MIB, StreamId::DEFAULT).unwrap();
    let Err(Error::OutOfMemory(report)) = allocator.allocate(500 * MIB, StreamId::DEFAULT) else { panic!("400 MiB") };
    assert_eq!((report.strategy, report.instead_of), (StrategyKind::Caching, Some(StrategyKind::Stitch)));
    assert!(report.to_string().contains("no virtual memory, which `stitch` needs"), "{report}");
    allocator.free(address).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.reports().reserved(), 0);
    // Options that are given later leave it so.
    allocator.limits().set_fraction(0.5).unwrap();
    assert_eq!(
        (allocator.config().strategy, allocator.reports().fallback_from()),
        (StrategyKind::Caching, Some(StrategyKind::Stitch))
    );
    assert_eq!(allocator.driver().call_stats().get(Call::Reserve).count, 0, "nothing is tried that cannot be");
}

#[test]
fn a_strategy_that_was_named_is_refused_with_the_remedy() {
    let named = [
        Config::parse("strategy:stitch"),
        Config::parse("expandable_segments:True"),
        Ok(Config::with_strategy(StrategyKind::Stitch)),
        Ok(Config { strategy: StrategyKind::Gmlake, ..Config::default() }),
        Ok(Config { strategy_named: true, ..Config::default() }),
    ];
    for config in named.map(Result::unwrap) {
        let error = Allocator::new(std::sync::Arc::new(device()), config.clone()).err().unwrap();
        assert!(
            matches!(&error, Error::NoVirtualMemory { strategy, .. } if *strategy == config.strategy.name()),
            "{error}"
        );
        assert!(error.to_string().contains("give strategy:caching, or no strategy"), "{error}");
    }
    for kind in StrategyKind::ALL.into_iter().filter(|kind| !kind.needs_virtual_memory()) {
        let allocator = Allocator::open(WITHOUT, &format!("strategy:{kind}")).unwrap();
        assert_eq!((allocator.config().strategy, allocator.reports().fallback_from()), (kind, None));
        allocator.allocate(MIB, StreamId::DEFAULT).unwrap();
    }
}

/// Whatever else the default has, it is refused by its own error, or does nothing.
#[test]
fn what_needs_stitching_says_so() {
    let allocator = Allocator::open(WITHOUT, "split:last_resort,headroom:100MiB").unwrap();
    assert!(matches!(allocator.tags().create(), Err(Error::NotSleepable { .. })));
    assert_eq!(allocator.lending().release_passed(), Ok(0));
    assert!(allocator.allocate(350 * MIB, StreamId::DEFAULT).is_err(), "the headroom holds");
    assert!(HostPool::open(WITHOUT, "").unwrap().allocator().reports().fallback_from().is_some());
}

#[test]
fn whether_a_strategy_was_named_survives_its_text() {
    for (text, named) in [
        ("", false),
        ("memory_limit:1GiB", false),
        ("strategy:stitch", true),
        ("strategy:caching", true),
        ("expandable_segments:True", true),
        ("expandable_segments:True,expandable_segments:False", false),
        ("backend:cudaMallocAsync", true),
    ] {
        let config = Config::parse(text).unwrap();
        assert_eq!(config.strategy_named, named, "{text}");
        assert_eq!(Config::parse(&config.to_string()), Ok(config), "{text}");
    }
    assert_eq!(Config::parse("strategy:stitch").unwrap().to_string(), "strategy:stitch");
    // With virtual memory both are the same allocator.
    let (_, allocator) = simulated::on("sim:h200", Config::default());
    assert_eq!((allocator.config().strategy, allocator.reports().fallback_from()), (StrategyKind::Stitch, None));
}
