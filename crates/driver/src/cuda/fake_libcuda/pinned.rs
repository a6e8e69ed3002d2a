//! Page-locked host memory: the arguments that libcuda receives for it.

use super::*;
use crate::prelude::*;
use crate::{Call, Status};

fn open_pinned(node: Option<u32>) -> CudaDriver {
    CudaDriver::open_pinned_with(CudaApi::of(entry_points()), 1, node).unwrap()
}

#[test]
fn it_is_of_a_node_and_for_both_cpu_and_device() {
    for (node, expected) in [(None, NEAREST_NODE), (Some(0), 0), (Some(3), 3)] {
        with(|state| *state = State::default());
        let driver = open_pinned(node);
        assert_eq!(driver.properties().name, "pinned:1");
        assert!(driver.properties().virtual_memory);
        driver.create(GRANULARITY as u64).unwrap();
        driver.set_access(0x20_0000, GRANULARITY as u64).unwrap();
        let (prop, access, nodes) =
            with(|state| (state.properties.unwrap(), state.access.clone(), state.nodes.clone()));
        assert_eq!((prop.location.kind, prop.location.id), (MEM_LOCATION_TYPE_HOST_NUMA, expected));
        assert_eq!(prop.requested_handle_types, MEM_HANDLE_TYPE_NONE);
        assert_eq!(access, [(0x20_0000, vec![(1, MEM_ACCESS_READ_WRITE)])]);
        assert_eq!(nodes, [(expected, MEM_ACCESS_READ_WRITE)]);
    }
}

#[test]
fn a_device_creates_memory_of_the_nearest_node_for_itself_alone() {
    let driver = open();
    let handle = driver.create_on_host(GRANULARITY as u64).unwrap();
    let prop = with(|state| state.properties.unwrap());
    assert_eq!((prop.location.kind, prop.location.id), (MEM_LOCATION_TYPE_HOST_NUMA, NEAREST_NODE));
    assert_eq!(prop.requested_handle_types, MEM_HANDLE_TYPE_NONE);
    driver.map(0x20_0000, GRANULARITY as u64, 0, handle).unwrap();
    driver.release(handle).unwrap();
    with(|state| state.lacks.push(ATTRIBUTE_HOST_VIRTUAL_MEMORY));
    let error = open().create_on_host(GRANULARITY as u64).unwrap_err();
    assert_eq!((error.call, error.status), (Call::CreateOnHost, Status::NOT_SUPPORTED));
}

#[test]
fn plain_memory_is_page_locked_too() {
    let driver = open_pinned(None);
    let address = driver.malloc(4096).unwrap();
    driver.free(address).unwrap();
    assert_eq!(with(|state| state.page_locked.clone()), (vec![(4096, HOST_ALLOC_PORTABLE)], 1));
}

#[test]
fn host_memory_is_what_is_told() {
    let driver = open_pinned(None);
    let info = driver.memory_info().unwrap();
    assert_eq!(info.total, driver.properties().total_memory);
    assert!(info.free <= info.total && info.total != MEMORY as u64, "{info:?}");
}

#[test]
fn it_is_not_exported() {
    let driver = open_pinned(None);
    let handle = driver.create(GRANULARITY as u64).unwrap();
    assert!(driver.export(handle).is_err());
}

#[test]
fn a_driver_without_it_has_plain_memory_alone() {
    with(|state| state.lacks.push(ATTRIBUTE_HOST_VIRTUAL_MEMORY));
    assert!(!open_pinned(None).properties().virtual_memory);
}

#[test]
fn every_device_may_use_it_whether_or_not_it_reaches_the_first() {
    let apart = EntryPoints { device_can_access_peer: Some(device_cannot_access_peer), ..entry_points() };
    let driver = CudaDriver::open_pinned_with(CudaApi::of(apart), 1, Some(0)).unwrap();
    driver.set_access(0x20_0000, GRANULARITY as u64).unwrap();
    driver.enable_peer_access(0, true).unwrap();
    let both = vec![(1, MEM_ACCESS_READ_WRITE), (0, MEM_ACCESS_READ_WRITE)];
    assert_eq!(with(|state| state.access.pop()), Some((0x20_0000, both)));
    assert!(with(|state| state.peers.is_empty()), "plain memory is every context's already");
}
