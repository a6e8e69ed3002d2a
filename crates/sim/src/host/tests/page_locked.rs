//! Page-locked memory, under the same rules on host memory and on the simulated GPU.

use super::*;
use crate::{Profile, SimConfig, SimGpu};
use seamalloc_driver::{Call, Driver, HostBuffer};

/// Runs a test on both devices, over mapped memory of two chunks.
fn on_both(test: impl Fn(&dyn Driver, u64)) {
    let (host, sim) = (device(), SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB").unwrap()).unwrap());
    let both: [&dyn Driver; 2] = [&host, &sim];
    for driver in both {
        let address = driver.reserve(2 * CHUNK, 0).unwrap();
        let handles = [0, CHUNK].map(|offset| {
            let handle = driver.create(CHUNK).unwrap();
            driver.map(address + offset, CHUNK, 0, handle).unwrap();
            handle
        });
        driver.set_access(address, 2 * CHUNK).unwrap();
        test(driver, address);
        driver.unmap(address, 2 * CHUNK).unwrap();
        driver.address_free(address, 2 * CHUNK).unwrap();
        handles.into_iter().for_each(|handle| driver.release(handle).unwrap());
    }
    assert_eq!((host.leaks(), sim.leaks()), Default::default());
}

fn status<T: std::fmt::Debug>(answer: seamalloc_driver::DriverResult<T>) -> Status {
    answer.unwrap_err().status
}

#[test]
fn bytes_go_out_and_come_back_across_chunks() {
    on_both(|driver, address| {
        let pattern: Vec<u8> = (0..5000_u32).map(|at| (at % 251) as u8).collect();
        driver.write(address + CHUNK - 1234, &pattern).unwrap();
        let buffer = driver.host_malloc(10_000).unwrap();
        driver.copy_out(address + CHUNK - 1234, buffer, 77, 5000).unwrap();
        driver.host_wait(buffer).unwrap();
        let mut seen = Vec::new();
        driver
            .host_bytes(buffer, 77, 5000, &mut |bytes| {
                seen = bytes.to_vec();
                bytes[0] = 99;
            })
            .unwrap();
        assert!(seen == pattern);
        driver.copy_in(buffer, 77, address + 10, 5000).unwrap();
        driver.host_wait(buffer).unwrap();
        let mut found = vec![0; 5002];
        driver.read(address + 9, &mut found).unwrap();
        assert!(found[1] == 99 && found[2..5001] == pattern[1..] && (found[0], found[5001]) == (0, 0));
        driver.host_free(buffer).unwrap();
    });
}

#[test]
fn what_is_wrong_is_refused_alike() {
    on_both(|driver, address| {
        assert_eq!(status(driver.host_malloc(0)), Status::INVALID_VALUE);
        let buffer = driver.host_malloc(4096).unwrap();
        for (at, buffer, offset, size) in [
            (address, HostBuffer(77), 0, 8),
            (address, buffer, 0, 0),
            (address, buffer, 4090, 7),
            (address, buffer, u64::MAX, 8),
            (address + 2 * CHUNK - 8, buffer, 0, 16),
        ] {
            assert_eq!(status(driver.copy_out(at, buffer, offset, size)), Status::INVALID_VALUE);
            assert_eq!(status(driver.copy_in(buffer, offset, at, size)), Status::INVALID_VALUE);
        }
        // A refused copy needs no wait.
        driver.host_bytes(buffer, 0, 4096, &mut |bytes| assert_eq!(bytes.len(), 4096)).unwrap();
        assert_eq!(status(driver.host_bytes(buffer, 1, 4096, &mut |_| panic!())), Status::INVALID_VALUE);
        driver.copy_out(address, buffer, 0, 8).unwrap();
        assert_eq!(status(driver.host_bytes(buffer, 8, 8, &mut |_| panic!())), Status::NOT_READY);
        driver.host_free(buffer).unwrap();
        assert_eq!(status(driver.host_free(buffer)), Status::INVALID_VALUE);
        assert_eq!(status(driver.host_wait(buffer)), Status::INVALID_VALUE);
    });
}

#[test]
fn a_capture_forbids_the_copies() {
    let sim = SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap();
    let address = sim.malloc(CHUNK).unwrap();
    let buffer = sim.host_malloc(4096).unwrap();
    let refused = |call: &dyn Fn() -> seamalloc_driver::DriverResult<()>| {
        sim.begin_capture(S, CaptureMode::Global).unwrap();
        assert_eq!(status(call()), Status::STREAM_CAPTURE_UNSUPPORTED);
        assert!(sim.end_capture(S).is_err());
    };
    refused(&|| sim.host_malloc(1).map(drop));
    refused(&|| sim.host_free(buffer));
    refused(&|| sim.copy_out(address, buffer, 0, 8));
    refused(&|| sim.copy_in(buffer, 0, address, 8));
    refused(&|| sim.host_wait(buffer));
}

#[test]
fn the_simulated_link_takes_its_time_beside_the_cpu() {
    let sim = SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap();
    const GIB: u64 = 1 << 30;
    let address = sim.malloc(2 * GIB).unwrap();
    let buffers = [(); 2].map(|()| sim.host_malloc(GIB).unwrap());
    let begin = sim.now_ns();
    buffers
        .iter()
        .enumerate()
        .for_each(|(at, buffer)| sim.copy_out(address + at as u64 * GIB, *buffer, 0, GIB).unwrap());
    assert!(sim.now_ns() - begin < 10_000, "the CPU goes on");
    let mut waited = buffers.map(|buffer| {
        sim.host_wait(buffer).unwrap();
        sim.now_ns() - begin
    });
    let gigabytes = |ns: u64| GIB as f64 / ns as f64;
    assert!((54.0..56.0).contains(&gigabytes(waited[0])), "{waited:?}");
    waited[1] -= waited[0];
    assert!((54.0..56.0).contains(&gigabytes(waited[1])), "one copy behind the other: {waited:?}");
    let begin = sim.now_ns();
    sim.host_free(buffers[0]).unwrap();
    assert_eq!(sim.now_ns() - begin, Profile::H200.cost(Call::HostFree, GIB), "it is charged by its size");
    assert!(Profile::H200.cost(Call::HostMalloc, GIB) > 8 * Profile::H200.cost(Call::HostFree, GIB));
}
