//! The simulated pool is judged by a real one: what PyTorch's backend `cudaMallocAsync` reserved on an H200 for the same jobs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

use seamalloc::driver::sim::{Profile, SimConfig};
use seamalloc::{Config, StrategyKind};
use seamalloc_trace::recorded;
use seamalloc_trace::replay::{ReplayOptions, replay};

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH` at the end of each job, in bytes (H200, driver 580.159, PyTorch 2.11).
const MEASURED: [(&str, u64); 5] = [
    ("gpt2xl-N", 52_546_240_512),
    ("resnet-multi", 15_904_800_768),
    ("moe-R", 46_070_235_136),
    ("opt1.3b-R", 34_493_956_096),
    ("opt13b-LR", 52_445_577_216),
];

#[test]
fn a_simulated_pool_holds_what_a_real_one_held_within_two_percent() {
    for (name, measured) in MEASURED {
        let trace = recorded::find(name).unwrap().load().unwrap();
        let config = Config::with_strategy(StrategyKind::MallocAsync);
        let options = ReplayOptions::new(config, SimConfig::new(Profile::H200));
        let reports = replay(&trace, &options, &mut |_, _| {}).unwrap();
        let [report] = reports.as_slice() else { panic!("one pass was asked for") };
        let off = report.peak_reserved as f64 / measured as f64 - 1.0;
        assert!(off.abs() < 0.02, "{name}: {} held, {measured} measured: {:+.2}%", report.peak_reserved, off * 100.0);
    }
}
