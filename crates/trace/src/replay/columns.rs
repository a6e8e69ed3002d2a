//! The columns of a pass, which `stress` and `replay` print.

use super::report::PassReport;
use super::spilled::Spilled;
use crate::columns::{Cell, Column, gib, line, ms, round_to, us};
use crate::fragmentation::fragmentation_json;
use seamalloc::driver::CallStat;
use serde_json::{Map, Value};

type Pass = Column<PassReport>;

/// The event of the peak, a key of `fragmentation` in a line of JSON.
pub const PEAK_EVENT: Pass = Pass::result("event", |pass| pass.peak_event.into());

impl PassReport {
    /// The figures of a pass. `fragmentation` has keys of its own: [`PEAK_EVENT`] and
    /// [`FRAGMENTATION_COLUMNS`](crate::FRAGMENTATION_COLUMNS).
    pub const COLUMNS: &'static [Pass] = &[
        Pass::run("trace", |pass| pass.trace.as_str().into()).text("trace", |pass| pass.trace.as_str().into()),
        Pass::run("strategy", |pass| pass.strategy.into()).text("strategy", |pass| pass.strategy.into()),
        Pass::run("device", |pass| pass.device.as_str().into()),
        Pass::run("pass", |pass| pass.pass.into()).figure("pass", |pass| pass.pass.into()),
        Pass::result("ops", |pass| pass.ops.into()),
        Pass::result("allocations", |pass| pass.allocations.into()),
        Pass::result("peak_live", |pass| pass.peak_live.into())
            .figure("live\nGiB", |pass| gib(pass.peak_live).into())
            .legend("live", "the most bytes requested and not freed: no strategy can do with less"),
        Pass::result("peak_active", |pass| pass.peak_active.into()),
        Pass::result("peak_reserved", |pass| pass.peak_reserved.into())
            .figure("reserved\nGiB", |pass| gib(pass.peak_reserved).into())
            .legend("reserved", "the most bytes held of the device"),
        Pass::result("utilization", |pass| round_to(pass.utilization(), 6).into())
            .figure("utilization", |pass| match &pass.oom {
                None => Cell::Used(pass.utilization()),
                Some(_) => Cell::Failed("OOM".to_owned()),
            })
            .legend("utilization", "live / reserved: 100% is perfect"),
        Pass::result("driver_calls", |pass| by_call(pass, |stat| stat.count.into()))
            .figure("driver\ncalls", |pass| pass.driver.iter().map(|(_, stat)| stat.count).sum::<u64>().into())
            .spare(1)
            .legend("driver calls", "calls to the GPU's driver"),
        Pass::time("driver_us_by_call", |pass| by_call(pass, |stat| us(stat.total_ns).into())),
        Pass::time("driver_time_us", |pass| us(pass.driver.total_ns()).into())
            .figure("driver\nms", |pass| ms(pass.driver.total_ns()).into())
            .spare(3)
            .legend("driver ms", "time in the GPU's driver, all calls together"),
        Pass::result("stalls", |pass| pass.stalls.count.into())
            .figure("stalls", |pass| pass.stalls.count.into())
            .spare(4)
            .legend("stalls", "allocations and frees that had to call the driver"),
        Pass::time("worst_stall_us", |pass| us(pass.stalls.worst_ns).into())
            .figure("worst\nms", |pass| ms(pass.stalls.worst_ns).into())
            .spare(2)
            .legend("worst ms", "the longest allocation or free that had to call the driver"),
        Pass::time("stall_histogram", |pass| pass.stalls.by_us.as_slice().into()),
        Pass::time("stall_p50_us", |pass| us(pass.stalls.percentile_ns(0.5)).into()),
        Pass::time("stall_p99_us", |pass| us(pass.stalls.percentile_ns(0.99)).into()),
        Pass::result("views_built", |pass| pass.views_built.into()),
        Pass::result("views_reused", |pass| pass.views_reused.into()),
        Pass::result("views_dropped", |pass| pass.views_dropped.into()),
        Pass::result("splits", |pass| pass.splits.chunks.into()),
        Pass::result("split_parts", |pass| pass.splits.parts.into()),
        Pass::result("split_bytes", |pass| pass.splits.copied_bytes.into()),
        Pass::result(Spilled::PEAK, |pass| Spilled::of(pass).peak.into())
            .figure("spilled\nGiB", |pass| Spilled::of(pass).cell())
            .rare()
            .legend("spilled", "the most live memory that lay in host memory (spill:host=SIZE), where any did"),
        Pass::result(Spilled::MOVED, |pass| Spilled::of(pass).moved_bytes.into()),
        Pass::result(Spilled::PIECES, |pass| Spilled::of(pass).pieces.into()),
        Pass::time(Spilled::TIME, |pass| Spilled::of(pass).us()),
        Pass::result("pending_waits", |pass| pass.pending_waits.requests.into()),
        Pass::result("pending_wait_events", |pass| pass.pending_waits.events.into()),
        Pass::result("pending_wait_device", |pass| pass.pending_waits.device.into()),
        Pass::result("pending_wait_clock", |pass| pass.pending_waits.total_ns.into()),
        Pass::result("mappings", |pass| pass.mappings.into()),
        Pass::result("view_mappings", |pass| pass.view_mappings.into()),
        Pass::result("held_after", |pass| pass.held_after.into()),
        Pass::result("host_bytes", |pass| pass.host_bytes.into()),
        Pass::result("stream_waits", |pass| pass.stream_waits.into()),
        Pass::result("wait_bytes", |pass| pass.waits.bytes.into()),
        Pass::result("idle_waits", |pass| pass.idle_waits.into()),
        Pass::result("wait_age_ops_min", |pass| pass.least_wait_age().into()),
        Pass::result("wait_age_ops_mean", |pass| pass.mean_wait_age().map(|mean| round_to(mean, 1)).into()),
        Pass::result("wait_age_ops_max", |pass| (pass.stream_waits > 0).then_some(pass.waits.age_most).into()),
        Pass::result("cpu_syncs", |pass| pass.cpu_syncs.into()),
        Pass::result("oom", |pass| pass.oom.is_some().into()),
        Pass::result("oom_report", |pass| pass.oom.as_ref().map(|(_, report)| report.to_string()).into()),
        Pass::clock("ns_per_op", |pass| round_to(pass.ns_per_op, 1).into()),
        Pass::result("fragmentation", fragmentation),
    ];

    /// Returns the line that `--json` prints: the values of all columns by their keys.
    #[must_use]
    pub fn to_json(&self) -> Value {
        line(Self::COLUMNS, self).into()
    }

    /// Returns the mean age of the events that streams waited for: the number of operations between the record and the
    /// wait. `None` if no stream waited.
    #[must_use]
    pub fn mean_wait_age(&self) -> Option<f64> {
        (self.stream_waits > 0).then(|| self.waits.age_total as f64 / self.stream_waits as f64)
    }

    /// Returns the least of the ages that [`Self::mean_wait_age`] averages; `None` if no stream waited.
    #[must_use]
    pub fn least_wait_age(&self) -> Option<u64> {
        self.waits.age_least.filter(|_| self.stream_waits > 0)
    }
}

/// Returns a figure of each driver call, by its name.
fn by_call(pass: &PassReport, figure: fn(CallStat) -> Value) -> Value {
    let figures: Map<String, Value> =
        pass.driver.iter().map(|(call, stat)| (call.name().to_owned(), figure(stat))).collect();
    figures.into()
}

/// Returns the memory by its use at the peak, and the event of the peak.
fn fragmentation(pass: &PassReport) -> Value {
    let mut memory = fragmentation_json(&pass.fragmentation);
    if let Value::Object(figures) = &mut memory {
        figures.insert(PEAK_EVENT.key.to_owned(), (PEAK_EVENT.value)(pass));
    }
    memory
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{ReplayOptions, replay};
    use crate::trace::{Trace, TraceEvent};
    use seamalloc::Config;
    use seamalloc::driver::StreamId;
    use seamalloc::driver::sim::SimConfig;

    /// The only figure that differs from run to run appears only in lines of JSON, so that the tables of two runs can
    /// be compared.
    #[test]
    fn the_time_of_an_operation_is_in_json_alone() {
        let events = vec![TraceEvent::Alloc { size: 1, stream: 0 }];
        let trace = Trace { streams: vec![StreamId::DEFAULT], events, ..Trace::default() };
        let options = ReplayOptions::new(Config::default(), SimConfig::default());
        let mut pass = replay(&trace, &options, &mut |_, _| {}).unwrap().remove(0);
        pass.ns_per_op = 1234.56;
        let column = PassReport::COLUMNS.iter().find(|column| column.key == "ns_per_op").unwrap();
        assert_eq!((column.value)(&pass), 1234.6);
        assert!(column.shown.is_none());
    }
}
