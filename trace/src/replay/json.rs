//! The line that `--json` prints for a pass.

use super::report::PassReport;
use crate::fragmentation::{fragmentation_json, round_to};
use seamalloc::fragmentation::Fragmentation;
use serde_json::{Map, Value, json};

impl PassReport {
    /// The line that `--json` prints: the fields by their names, but times in microseconds, `driver_calls` a count and
    /// `driver_us_by_call` a time by [`Call::name`](seamalloc::driver::Call::name), `stall_histogram` as
    /// [`Stalls::by_us`](seamalloc::Stalls), of `oom` only whether, and its report in words (`oom_report`).
    /// `wait_age_ops_*` is `null` without a wait.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let by_call = |figure: &dyn Fn(seamalloc::driver::CallStat) -> Value| -> Map<String, Value> {
            self.driver.iter().map(|(call, stat)| (call.name().to_owned(), figure(stat))).collect()
        };
        let mean = (self.stream_waits > 0).then(|| self.waits.age_total as f64 / self.stream_waits as f64);
        json!({
            "trace": self.trace,
            "strategy": self.strategy,
            "device": self.device,
            "pass": self.pass,
            "ops": self.ops,
            "allocations": self.allocations,
            "peak_live": self.peak_live,
            "peak_active": self.peak_active,
            "peak_reserved": self.peak_reserved,
            "utilization": round_to(self.utilization(), 6),
            "ns_per_op": round_to(self.ns_per_op, 1),
            "driver_calls": by_call(&|stat| stat.count.into()),
            "driver_us_by_call": by_call(&|stat| microseconds(stat.total_ns).into()),
            "driver_time_us": microseconds(self.driver.total_ns()),
            "stalls": self.stalls.count,
            "stall_histogram": self.stalls.by_us,
            "stall_p50_us": microseconds(self.stalls.percentile_ns(0.5)),
            "stall_p99_us": microseconds(self.stalls.percentile_ns(0.99)),
            "worst_stall_us": microseconds(self.stalls.worst_ns),
            "views_built": self.views_built,
            "views_reused": self.views_reused,
            "views_dropped": self.views_dropped,
            "mappings": self.mappings,
            "view_mappings": self.view_mappings,
            "host_bytes": self.host_bytes,
            "stream_waits": self.stream_waits,
            "idle_waits": self.idle_waits,
            "wait_bytes": self.waits.bytes,
            "wait_age_ops_mean": mean.map(|mean| round_to(mean, 1)),
            "wait_age_ops_min": mean.and(self.waits.age_least),
            "wait_age_ops_max": mean.map(|_| self.waits.age_most),
            "cpu_syncs": self.cpu_syncs,
            "fragmentation": divided(self.peak_event, &self.fragmentation),
            "oom": self.oom.is_some(),
            "oom_report": self.oom.as_ref().map(|(_, report)| report.to_string()),
        })
    }
}

/// How the memory was divided up before an event.
fn divided(event: usize, memory: &Fragmentation) -> Value {
    let mut out = fragmentation_json(memory);
    if let Value::Object(fields) = &mut out {
        fields.insert("event".to_owned(), event.into());
    }
    out
}

fn microseconds(ns: u64) -> f64 {
    round_to(ns as f64 / 1e3, 1)
}
