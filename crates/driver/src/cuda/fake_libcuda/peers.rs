//! Tests of other devices' access to memory: all mapped memory has one access list, whether a peer was added before or
//! after the mapping.

use super::*;
use crate::Call;
use crate::prelude::*;

const G: u64 = GRANULARITY as u64;
const ALONE: [(CUdevice, u32); 1] = [(1, MEM_ACCESS_READ_WRITE)];
const BOTH: [(CUdevice, u32); 2] = [(1, MEM_ACCESS_READ_WRITE), (0, MEM_ACCESS_READ_WRITE)];

fn accesses() -> Vec<(CUdeviceptr, Vec<(CUdevice, u32)>)> {
    with(|state| std::mem::take(&mut state.access))
}

#[test]
fn a_peer_gets_what_is_mapped_and_what_will_be() {
    let driver = open();
    for address in [G, 4 * G, 9 * G] {
        driver.set_access(address, 2 * G).unwrap();
    }
    driver.unmap(5 * G, G).unwrap();
    driver.unmap(9 * G, 2 * G).unwrap();
    accesses();
    driver.enable_peer_access(0, false).unwrap();
    assert_eq!(accesses(), [(G, BOTH.to_vec()), (4 * G, BOTH.to_vec())]);
    driver.set_access(20 * G, G).unwrap();
    assert_eq!(accesses(), [(20 * G, BOTH.to_vec())], "one call with both");
    driver.enable_peer_access(0, false).unwrap();
    driver.enable_peer_access(1, true).unwrap();
    assert!(accesses().is_empty(), "nothing new for a peer that is known, nor for the device itself");
    assert_eq!(with(|state| (state.peers.len(), state.misplaced)), (0, 0));
}

#[test]
fn a_peer_that_fails_halfway_has_nothing() {
    let driver = open();
    for address in [G, 4 * G, 9 * G] {
        driver.set_access(address, 2 * G).unwrap();
    }
    accesses();
    with(|state| state.access_fails_from = Some(9 * G));
    let error = driver.enable_peer_access(0, true).unwrap_err();
    assert_eq!((error.call, error.status), (Call::SetAccess, Status::OUT_OF_MEMORY));
    let nobody = vec![(0, MEM_ACCESS_NONE)];
    let tried = [(G, BOTH.to_vec()), (4 * G, BOTH.to_vec()), (G, nobody.clone()), (4 * G, nobody)];
    assert_eq!(accesses(), tried);
    assert_eq!(with(|state| (state.peers.len(), state.releases)), (0, 1), "plain memory and the peer's context too");
    with(|state| state.access_fails_from = None);
    driver.set_access(20 * G, G).unwrap();
    assert_eq!(accesses(), [(20 * G, ALONE.to_vec())]);
    driver.enable_peer_access(0, true).unwrap();
    assert_eq!(accesses().len(), 4);
}

#[test]
fn plain_memory_is_for_contexts() {
    let driver = open();
    driver.enable_peer_access(0, true).unwrap();
    assert_eq!(with(|state| state.peers.clone()), [context_of(1)]);
    drop(driver);
    assert_eq!(with(|state| state.releases), 2, "the device's context and its peer's");
    // The peer's context can use plain memory (of `cuMemAlloc`) already, as if another library had enabled that. A peer
    // with access to mapped memory gets access to plain memory too.
    let driver = open();
    driver.enable_peer_access(0, false).unwrap();
    driver.enable_peer_access(0, true).unwrap();
    drop(driver);
    assert_eq!(with(|state| (state.peers.len(), state.releases, state.misplaced)), (1, 4, 0));
}

#[test]
fn devices_that_cannot_be_peers_are_refused() {
    let apart = EntryPoints { device_can_access_peer: Some(device_cannot_access_peer), ..entry_points() };
    let driver = CudaDriver::open_with(CudaApi::of(apart), 1).unwrap();
    let error = driver.enable_peer_access(0, false).unwrap_err();
    assert_eq!(error.status, Status::PEER_ACCESS_UNSUPPORTED);
    assert!(error.to_string().contains("cuda:0 cannot use memory of cuda:1"), "{error}");
    let error = driver.enable_peer_access(7, false).unwrap_err();
    assert_eq!(error.status, Status::INVALID_DEVICE);
    assert!(error.to_string().contains("there is no cuda:7: there are 2 devices"), "{error}");
    let old = EntryPoints { ctx_enable_peer_access: None, ..entry_points() };
    let driver = CudaDriver::open_with(CudaApi::of(old), 1).unwrap();
    let error = driver.enable_peer_access(0, true).unwrap_err();
    assert_eq!(error.status, Status::NOT_FOUND);
    assert_eq!(driver.enable_peer_access(0, false), Ok(()), "mapped memory needs no such call");
}

/// Maps two chunks at adjacent addresses from `G` on. The second chunk was mapped at another address before, and then
/// unmapped from that address.
fn open_with_a_closed_chunk() -> CudaDriver {
    let driver = open();
    let chunks = [driver.create(2 * G).unwrap(), driver.create(2 * G).unwrap()];
    driver.map(50 * G, 2 * G, 0, chunks[1]).unwrap();
    for (address, chunk) in [G, 3 * G].into_iter().zip(chunks) {
        driver.map(address, 2 * G, 0, chunk).unwrap();
    }
    driver.set_access(G, 4 * G).unwrap();
    driver.unmap(50 * G, 2 * G).unwrap();
    driver.set_access(70 * G, G).unwrap();
    accesses();
    assert_eq!(with(|state| state.closed.len()), 1);
    driver
}

/// Returns how many mappings, temporary handles and temporary reservations are left.
fn kept() -> (usize, usize, usize) {
    with(|state| (state.maps.len(), state.retained.len(), state.reservations))
}

#[test]
fn a_peer_gets_memory_that_was_mapped_first_where_it_is_no_more() {
    let driver = open_with_a_closed_chunk();
    let before = kept();
    driver.enable_peer_access(0, false).unwrap();
    assert_eq!(accesses(), [(G, BOTH.to_vec()), (3 * G, BOTH.to_vec()), (70 * G, BOTH.to_vec())], "mapping by mapping");
    assert_eq!((kept(), with(|state| state.misplaced)), (before, 0), "what was mapped for a moment is gone");
}

#[test]
fn a_peer_that_such_memory_refuses_has_nothing() {
    let driver = open_with_a_closed_chunk();
    let before = kept();
    with(|state| state.no_more_maps = true);
    let error = driver.enable_peer_access(0, false).unwrap_err();
    assert_eq!((error.call, error.status), (Call::Map, Status::OUT_OF_MEMORY));
    let nobody = vec![(0, MEM_ACCESS_NONE)];
    assert_eq!(accesses(), [(G, BOTH.to_vec()), (G, nobody)], "what it had by then is taken back");
    assert_eq!((kept(), with(|state| state.misplaced)), (before, 0));
    with(|state| state.no_more_maps = false);
    driver.enable_peer_access(0, false).unwrap();
    assert_eq!(accesses().len(), 3);
}

#[test]
fn a_driver_that_cannot_say_what_is_mapped_refuses_as_before() {
    for without in [
        EntryPoints { mem_get_address_range: None, ..entry_points() },
        EntryPoints { mem_retain_allocation_handle: None, ..entry_points() },
    ] {
        with(|state| *state = State::default());
        let driver = CudaDriver::open_with(CudaApi::of(without), 1).unwrap();
        let chunk = driver.create(2 * G).unwrap();
        driver.map(50 * G, 2 * G, 0, chunk).unwrap();
        driver.map(G, 2 * G, 0, chunk).unwrap();
        driver.set_access(G, 2 * G).unwrap();
        driver.unmap(50 * G, 2 * G).unwrap();
        let error = driver.enable_peer_access(0, false).unwrap_err();
        assert!([Status::INVALID_VALUE, Status::NOT_FOUND].contains(&error.status), "{error}");
        assert_eq!(kept(), (1, 0, 0));
    }
}
