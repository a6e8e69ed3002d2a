//! The programs where there is no GPU: faults on a simulated one, and a clear end without one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

use std::process::Command;

use seamalloc::driver::cuda::CudaDriver;

#[test]
fn every_fault_of_a_simulated_device_goes_well() {
    let output = Command::new(env!("CARGO_BIN_EXE_driver_faults")).arg("sim:h200").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let cases: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(output.status.success(), "{text}");
    assert_eq!(cases.len(), 8, "two cases, four strategies: {text}");
    assert!(cases.iter().all(|case| case["ok"] == true), "{text}");
}

#[test]
fn without_a_gpu_they_say_so_and_exit_with_2() {
    // With one they would run.
    let Err(error) = CudaDriver::open(0) else { return };
    for program in
        [env!("CARGO_BIN_EXE_driver_faults"), env!("CARGO_BIN_EXE_seamalloc-cudarc"), env!("CARGO_BIN_EXE_graph")]
    {
        let output = Command::new(program).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{program}");
        assert_eq!(String::from_utf8(output.stderr).unwrap().trim(), error.to_string(), "{program}");
        assert!(output.stdout.is_empty(), "{program}");
    }
}
