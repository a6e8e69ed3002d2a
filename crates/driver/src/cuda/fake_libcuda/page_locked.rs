//! Page-locked host memory: which calls of libcuda its copies make.

use super::*;
use crate::prelude::*;

#[test]
fn copies_run_on_one_stream_with_an_event_behind_each() {
    let driver = open();
    let buffer = driver.host_malloc(4096).unwrap();
    driver.copy_out(RESERVED, buffer, 96, 1000).unwrap();
    assert_eq!(driver.host_bytes(buffer, 0, 1, &mut |_| ()).unwrap_err().status, Status::NOT_READY);
    driver.host_wait(buffer).unwrap();
    let mut sum = 0;
    driver
        .host_bytes(buffer, 0, 4096, &mut |bytes| {
            sum = bytes.iter().map(|byte| u64::from(*byte)).sum();
            bytes.fill(3);
        })
        .unwrap();
    assert_eq!(sum, 1000 * 0x5a);
    driver.copy_in(buffer, 4000, RESERVED, 96).unwrap();
    assert_eq!(with(|state| state.written.clone()), [(RESERVED, vec![3; 96])]);
    let (copies, made, synchronized) = with(|state| (state.copies.clone(), state.streams.clone(), state.synchronized));
    assert_eq!((copies, made.len(), synchronized), (vec![made[0]; 2], 1, 0), "the CPU waits for none");
    driver.host_free(buffer).unwrap();
    assert_eq!(with(|state| (state.behind, state.registrations, state.events.len())), ((2, 2), (1, 1), 0));
    drop(driver);
    assert_eq!(with(|state| (state.misplaced, state.streams.len())), (0, 0));
}

#[test]
fn a_buffer_that_is_gone_and_bytes_that_it_has_not_never_reach_libcuda() {
    let driver = open();
    let buffer = driver.host_malloc(4096).unwrap();
    for (offset, size) in [(0, 0), (0, 4097), (4096, 1), (u64::MAX, 2)] {
        assert!(driver.copy_out(RESERVED, buffer, offset, size).is_err());
        assert!(driver.copy_in(buffer, offset, RESERVED, size).is_err());
        assert!(driver.host_bytes(buffer, offset, size, &mut |_| panic!("no such bytes")).is_err());
    }
    driver.host_free(buffer).unwrap();
    assert!(driver.host_free(buffer).is_err() && driver.host_wait(buffer).is_err());
    assert!(driver.copy_out(RESERVED, buffer, 0, 8).is_err());
    assert_eq!(with(|state| (state.copies.len(), state.registrations)), (0, (1, 1)));
}

#[test]
fn without_an_event_there_is_no_memory() {
    let without = EntryPoints { event_create: None, ..entry_points() };
    let driver = CudaDriver::open_with(CudaApi::of(without), 1).unwrap();
    assert_eq!(driver.host_malloc(4096).unwrap_err().status, Status::NOT_FOUND);
    assert_eq!(with(|state| (state.registrations, state.page_locked.0.len())), ((0, 0), 0));
}
