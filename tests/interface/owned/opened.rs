//! Allocators on devices that are named.

use super::MIB;
use seamalloc::driver::{Device, OpenError};
use seamalloc::{Allocator, Error, HostPool, StrategyKind, StreamId};

#[test]
fn a_device_and_options_make_an_allocator() {
    let allocator = Allocator::open("sim:h200,capacity=1GiB", "strategy:caching,memory_limit:512MiB").unwrap();
    let config = allocator.config();
    assert_eq!((config.strategy, config.memory_limit), (StrategyKind::Caching, Some(512 * MIB)));
    assert_eq!(allocator.driver().memory_info().unwrap().total, 1024 * MIB);
    assert!(matches!(allocator.allocate(600 * MIB, StreamId::DEFAULT), Err(Error::OutOfMemory(_))));
}

#[test]
fn host_memory_can_be_written() {
    let allocator = Allocator::open("host:64MiB", "").unwrap();
    let block = allocator.block(MIB, StreamId::DEFAULT).unwrap();
    // SAFETY: the block is live, its memory is the machine's, and nobody else uses it.
    unsafe { block.as_ptr::<u8>().write_bytes(7, 4096) };
    // SAFETY: as above.
    assert_eq!(unsafe { *block.as_ptr::<u8>().add(4095) }, 7);
}

#[test]
fn what_is_misspelt_is_said() {
    for (device, options, said) in [
        ("gpu:0", "", "`gpu:0` is no device; expected cuda:0"),
        ("sim:h20", "", "did you mean `h200`"),
        ("host:0", "", "it has no unit"),
        ("cuda:x", "", "cuda:x"),
        ("pinned:x", "", "pinned:x"),
        // An option is looked at first.
        ("gpu:0", "memory_limits:1GiB", "memory_limit"),
        ("pinned:0", "split:ungated", "split"),
    ] {
        let error = Allocator::open(device, options).err().unwrap();
        assert!(error.to_string().contains(said), "{device} {options}: {error}");
    }
    let error = Allocator::open("gpu:0", "").err().unwrap();
    assert!(matches!(&error, Error::Open(reason) if matches!(**reason, OpenError::Unknown { .. })), "{error:?}");
}

/// Where there is no GPU, or one without that number: an error that says so.
#[test]
fn a_gpu_that_is_not_there_is_an_error() {
    assert!(matches!(Allocator::open("cuda:4000", ""), Err(Error::Device(_))));
    assert!(matches!(HostPool::open("pinned:4000", ""), Err(Error::Device(_))));
    assert_eq!(Device::parse("cuda:4000").unwrap().to_string(), "cuda:4000");
}

#[test]
fn a_pool_of_memory_for_both_is_opened_by_name() {
    let pool = HostPool::open("host:64MiB", "").unwrap();
    let address = pool.allocate(MIB).unwrap();
    pool.record_use(address, StreamId::DEFAULT).unwrap();
    pool.free(address).unwrap();
    assert!(HostPool::open("host:64MiB", "guard:on").is_err_and(|error| matches!(error, Error::Config(_))));
}
