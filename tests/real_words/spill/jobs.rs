//! Recorded jobs on a simulated device with less memory than they have live.

use seamalloc::Config;
use seamalloc::driver::sim::{Profile, SimConfig};
use seamalloc_trace::recorded;
use seamalloc_trace::replay::{PassReport, ReplayOptions, replay};

/// Replays a job on a device with this part of its live peak.
fn on_part(name: &str, part: f64, options: &str) -> PassReport {
    let job = recorded::find(name).unwrap();
    let capacity = (job.live as f64 * part) as u64;
    let device = SimConfig { capacity, ..SimConfig::new(Profile::H200) };
    let options = ReplayOptions::new(Config::parse(options).unwrap(), device);
    let mut reports = replay(&job.load().unwrap(), &options, &mut |_, _| {}).unwrap();
    reports.pop().unwrap()
}

#[test]
fn a_job_that_would_die_runs_to_its_end() {
    for (name, part) in [("llama1b-ppo", 0.9), ("llama1b-ppo", 0.8), ("opt13b-LR", 0.9), ("gpt2xl-N", 0.8)] {
        let refused = on_part(name, part, "split:last_resort");
        assert!(refused.oom.is_some(), "{name} at {part}: it runs without");
        let report = on_part(name, part, "spill:host=64GiB");
        assert!(report.oom.is_none(), "{name} at {part}: {:?}", report.oom);
        let missing = report.peak_live as f64 * (1.0 - part);
        println!(
            "{name} at {part}: {:.2} GiB missing, {:.2} GiB spilled at most, {:?}, {:.0} ms in the driver",
            missing / (1u64 << 30) as f64,
            report.peak_spilled as f64 / (1u64 << 30) as f64,
            report.spills,
            report.stalls.total_ns as f64 / 1e6,
        );
        assert!(report.peak_spilled as f64 >= missing, "{name} at {part}: {report:?}");
        if report.spills.returned_bytes > 0 && name.starts_with("llama") {
            assert!(
                report.spills.reused_bytes * 2 > report.spills.returned_bytes,
                "{name} at {part}: {:?}",
                report.spills
            );
        }
        // It spills what is missing, and hardly more: whole chunks, and a request finds its room at once.
        assert!((report.peak_spilled as f64) < missing * 1.25 + (1u64 << 30) as f64, "{name} at {part}");
    }
}
