//! The operations that memory of the driver's pools does not support, and devices that have no pools.

use super::{MAIN, MIB, on};
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{DeviceProperties, Driver, ForwardingDriver};
use seamalloc::{Allocator, Config, Error, StrategyKind};
use std::sync::Arc;

#[test]
fn it_is_shared_with_nobody() {
    let (gpu, allocator) = on("sim:h200", "");
    gpu.connect_peer(1);
    let address = allocator.allocate(MIB, MAIN).unwrap();
    let refusals = [
        allocator.sharing().export(address).map(drop),
        allocator.sharing().handle_len(address).map(drop),
        allocator.sharing().pin_physical(address),
        allocator.sharing().enable_peer_access(1),
    ];
    for refusal in refusals {
        let error = refusal.unwrap_err();
        assert!(matches!(error, Error::NotOfPools { .. }), "{error}");
        assert!(error.to_string().ends_with("memory of the driver's pools is not exportable"), "{error}");
    }
    assert_eq!(allocator.sharing().export(address + 1).unwrap_err(), Error::InvalidAddress { address: address + 1 });
    allocator.free(address).unwrap();
}

/// A device of another time.
struct Old(SimGpu, DeviceProperties);

impl ForwardingDriver for Old {
    fn inner(&self) -> &dyn Driver {
        &self.0
    }
    fn properties(&self) -> &DeviceProperties {
        &self.1
    }
}

#[test]
fn a_device_without_pools_is_refused_by_name() {
    let gpu = SimGpu::new(SimConfig::default()).unwrap();
    let properties = DeviceProperties { memory_pools: false, ..Driver::properties(&gpu).clone() };
    let old = Arc::new(Old(gpu, properties));
    let made = Allocator::new(Arc::<Old>::clone(&old), Config::with_strategy(StrategyKind::MallocAsync));
    let error = made.err().unwrap();
    assert_eq!(error, Error::NoMemoryPools { strategy: "malloc-async", device: "sim:h200".into() });
    assert!(error.to_string().contains("CUDA 11.2 and newer"), "{error}");
    assert!(Allocator::new(old, Config::with_strategy(StrategyKind::Caching)).is_ok());
}

#[test]
fn pytorchs_name_of_it_and_paddles_flag_are_read() {
    assert_eq!(Config::parse("backend:cudaMallocAsync").unwrap().strategy, StrategyKind::MallocAsync);
    let flag = "FLAGS_cuda_malloc_async_pool_memory_throttle_ratio";
    let config = Config::parse(&format!("strategy:malloc-async,{flag}:0.25")).unwrap();
    assert_eq!(config.paddle.cuda_malloc_async_pool_memory_throttle_ratio, 0.25);
    assert_eq!(config.to_string(), format!("strategy:malloc-async,{flag}:0.25"));
    let error = Config::parse(&format!("{flag}:1.5")).unwrap_err();
    assert!(error.to_string().contains("a number from 0 to 1"), "{error}");
}
