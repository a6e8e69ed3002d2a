//! Pools of stream-ordered memory: the fake's calls, and tests of what reaches libcuda.

use super::*;
use crate::prelude::*;
use crate::{Call, MemoryPool, PoolAttribute, StreamId};

pub(super) unsafe extern "C" fn mem_pool_create(pool: *mut CUmemoryPool, props: *const MemPoolProps) -> RawStatus {
    in_context(|state| {
        // SAFETY: the driver under test passes a pointer to its own live value.
        state.pool_props = Some(unsafe { props.read() });
        state.created += 1;
        state.pools.push((state.created, 0));
        put(pool, ptr::without_provenance_mut(state.created))
    })
}
pub(super) unsafe extern "C" fn mem_pool_destroy(pool: CUmemoryPool) -> RawStatus {
    in_context(|state| {
        state.pools.retain(|(live, _)| *live != pool.addr());
        Status::SUCCESS.0
    })
}
pub(super) unsafe extern "C" fn mem_pool_set_attribute(
    pool: CUmemoryPool,
    attribute: u32,
    value: *mut c_void,
) -> RawStatus {
    assert_eq!(attribute, POOL_RELEASE_THRESHOLD);
    in_context(|state| {
        if state.no_thresholds {
            return NEWER_STATUS;
        }
        // SAFETY: the driver under test passes a pointer to a live integer of 64 bits.
        let threshold = unsafe { value.cast::<u64>().read() };
        state.pools.iter_mut().filter(|(live, _)| *live == pool.addr()).for_each(|(_, set)| *set = threshold);
        Status::SUCCESS.0
    })
}
pub(super) unsafe extern "C" fn mem_pool_get_attribute(
    _: CUmemoryPool,
    attribute: u32,
    value: *mut c_void,
) -> RawStatus {
    in_context(|_| put(value.cast::<u64>(), 1000 + u64::from(attribute)))
}
pub(super) unsafe extern "C" fn mem_pool_trim_to(pool: CUmemoryPool, keep: usize) -> RawStatus {
    in_context(|state| {
        state.trims.push((pool.addr(), keep));
        Status::SUCCESS.0
    })
}
pub(super) unsafe extern "C" fn mem_alloc_from_pool_async(
    address: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> RawStatus {
    in_context(|state| {
        state.pooled.push((pool.addr(), size, stream.addr()));
        put(address, (state.pooled.len() * MEMORY) as CUdeviceptr)
    })
}
pub(super) unsafe extern "C" fn mem_free_async(address: CUdeviceptr, stream: CUstream) -> RawStatus {
    in_context(|state| {
        state.pool_frees.push((address, stream.addr()));
        Status::SUCCESS.0
    })
}

#[test]
fn a_pool_is_made_on_the_device_and_keeps_what_it_is_told_to() {
    let driver = open();
    assert!(driver.properties().memory_pools);
    let pool = driver.pool_create(u64::MAX).unwrap();
    let props = with(|state| state.pool_props).unwrap();
    assert_eq!((props.kind, props.handle_types, props.location.id), (MEM_ALLOCATION_TYPE_PINNED, 0, 1));
    assert_eq!(with(|state| state.pools.clone()), [(pool.0 as usize, u64::MAX)]);
    let own = driver.stream_create().unwrap();
    let address = driver.pool_malloc(pool, 700, own).unwrap();
    driver.pool_free(address, StreamId::DEFAULT).unwrap();
    driver.pool_trim(pool, 77).unwrap();
    let figures = PoolAttribute::ALL.map(|attribute| driver.pool_attribute(pool, attribute).unwrap());
    assert_eq!(figures, [1005, 1006, 1007, 1008]);
    with(|state| {
        assert_eq!(state.pooled, [(pool.0 as usize, 700, own.0 as usize)]);
        assert_eq!(
            (state.pool_frees.as_slice(), state.trims.as_slice()),
            (&[(address, 0)][..], &[(pool.0 as usize, 77)][..])
        );
    });
    driver.pool_destroy(pool).unwrap();
    driver.stream_destroy(own).unwrap();
    let live = with(|state| (state.pools.len(), state.streams.len(), state.misplaced));
    assert_eq!(live, (0, 0, 0));
    for call in [Call::PoolCreate, Call::PoolMalloc, Call::PoolFree, Call::PoolTrim, Call::PoolDestroy] {
        assert_eq!(driver.call_stats().get(call).count, 1, "{call}");
    }
}

#[test]
fn no_pool_or_stream_of_others_reaches_libcuda() {
    let driver = open();
    let pool = driver.pool_create(0).unwrap();
    driver.pool_destroy(pool).unwrap();
    for gone in [pool, MemoryPool(0xdead)] {
        let errors = [
            driver.pool_destroy(gone).unwrap_err(),
            driver.pool_malloc(gone, 1, StreamId::DEFAULT).unwrap_err(),
            driver.pool_trim(gone, 0).unwrap_err(),
            driver.pool_attribute(gone, PoolAttribute::Used).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.status == Status::INVALID_VALUE), "{errors:?}");
    }
    let foreign = StreamId(0xdead_0000);
    assert_eq!(driver.pool_free(7, foreign).unwrap_err().status, Status::INVALID_HANDLE);
    assert_eq!(driver.stream_destroy(foreign).unwrap_err().status, Status::INVALID_HANDLE);
    with(|state| assert!(state.pooled.is_empty() && state.pool_frees.is_empty() && state.trims.is_empty()));
}

#[test]
fn a_pool_whose_threshold_cannot_be_set_is_none() {
    let driver = open();
    with(|state| state.no_thresholds = true);
    let error = driver.pool_create(u64::MAX).unwrap_err();
    assert_eq!((error.call, error.status.0), (Call::PoolCreate, NEWER_STATUS));
    assert_eq!(with(|state| state.pools.len()), 0, "it was destroyed again");
}

#[test]
fn without_pools_it_says_why() {
    with(|state| state.lacks.push(ATTRIBUTE_MEMORY_POOLS));
    let driver = open();
    assert!(!driver.properties().memory_pools);
    let error = driver.pool_create(0).unwrap_err();
    assert_eq!(error.status, Status::NOT_SUPPORTED);
    assert!(error.to_string().contains("cuda:1 has no pools of stream-ordered memory"), "{error}");
    with(|state| state.lacks.clear());
    // A driver of CUDA 11.1.
    let old = EntryPoints { mem_pool_create: None, mem_free_async: None, ..entry_points() };
    let driver = CudaDriver::open_with(CudaApi::of(old), 1).unwrap();
    assert!(!driver.properties().memory_pools);
    let error = driver.pool_create(0).unwrap_err();
    assert!(error.to_string().contains("libcuda has no cuMemPoolCreate (CUDA 11.2 or newer is needed)"), "{error}");
}
