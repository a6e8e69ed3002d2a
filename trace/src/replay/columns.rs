//! The columns of a pass: what `stress` and `replay` print of it.

use super::report::PassReport;
use super::spilled::Spilled;
use crate::columns::{Cell, Column, gib, line, ms, round_to, us};
use crate::fragmentation::fragmentation_json;
use seamalloc::driver::CallStat;
use serde_json::{Map, Value};

type Pass = Column<PassReport>;

/// The key that the event of `fragmentation` stands under in it.
pub const PEAK_EVENT: Pass =
    Pass::result("event", |pass| pass.peak_event.into()).meaning("at which event of the trace");

impl PassReport {
    /// Its figures. `fragmentation` has keys of its own: [`PEAK_EVENT`] and
    /// [`FRAGMENTATION_COLUMNS`](crate::FRAGMENTATION_COLUMNS).
    pub const COLUMNS: &'static [Pass] = &[
        Pass::run("trace", |pass| pass.trace.as_str().into()).text("trace", |pass| pass.trace.as_str().into()),
        Pass::run("strategy", |pass| pass.strategy.into()).text("strategy", |pass| pass.strategy.into()),
        Pass::run("device", |pass| pass.device.as_str().into()),
        Pass::run("pass", |pass| pass.pass.into()).meaning("which run").figure("pass", |pass| pass.pass.into()),
        Pass::result("ops", |pass| pass.ops.into()),
        Pass::result("allocations", |pass| pass.allocations.into())
            .meaning("operations carried out, and those of them that are allocations"),
        Pass::result("peak_live", |pass| pass.peak_live.into())
            .figure("live\nGiB", |pass| gib(pass.peak_live).into())
            .legend("live", "the most bytes requested and not freed: no strategy can do with less"),
        Pass::result("peak_active", |pass| pass.peak_active.into())
            .meaning("the most requested and not freed; the same with freed blocks that are still in use"),
        Pass::result("peak_reserved", |pass| pass.peak_reserved.into())
            .figure("reserved\nGiB", |pass| gib(pass.peak_reserved).into())
            .legend("reserved", "the most bytes held of the device"),
        Pass::result("utilization", |pass| round_to(pass.utilization(), 6).into())
            .meaning("the most held of the device; peak_live / peak_reserved")
            .figure("utilization", |pass| match &pass.oom {
                None => Cell::Used(pass.utilization()),
                Some(_) => Cell::Failed("OOM".to_owned()),
            })
            .legend("utilization", "live / reserved: 100% is perfect"),
        Pass::result("driver_calls", |pass| by_call(pass, |stat| stat.count.into()))
            .figure("driver\ncalls", |pass| pass.driver.iter().map(|(_, stat)| stat.count).sum::<u64>().into())
            .spare(1)
            .legend("driver calls", "calls to the GPU's driver, and the time in them"),
        Pass::time("driver_us_by_call", |pass| by_call(pass, |stat| us(stat.total_ns).into())),
        Pass::time("driver_time_us", |pass| us(pass.driver.total_ns()).into())
            .meaning("how often each call was made, and the time in it; in all of them")
            .figure("driver\nms", |pass| ms(pass.driver.total_ns()).into())
            .spare(3),
        Pass::result("stalls", |pass| pass.stalls.count.into())
            .figure("stalls", |pass| pass.stalls.count.into())
            .spare(4)
            .legend("stalls", "allocations and frees that had to call the driver, and the worst of them"),
        Pass::time("worst_stall_us", |pass| us(pass.stalls.worst_ns).into())
            .meaning("operations that called the driver, and the longest of them")
            .figure("worst\nms", |pass| ms(pass.stalls.worst_ns).into())
            .spare(2),
        Pass::time("stall_histogram", |pass| pass.stalls.by_us.as_slice().into())
            .meaning("how many took less than 1 us, less than 2 us, less than 4 us ..."),
        Pass::time("stall_p50_us", |pass| us(pass.stalls.percentile_ns(0.5)).into()),
        Pass::time("stall_p99_us", |pass| us(pass.stalls.percentile_ns(0.99)).into())
            .meaning("what half of them, and 99%, did not exceed: the upper edge of a bucket"),
        Pass::result("views_built", |pass| pass.views_built.into()),
        Pass::result("views_reused", |pass| pass.views_reused.into()),
        Pass::result("views_dropped", |pass| pass.views_dropped.into())
            .meaning("views made; requests served by one that was there; views unmapped"),
        Pass::result("splits", |pass| pass.splits.chunks.into()),
        Pass::result("split_parts", |pass| pass.splits.parts.into()),
        Pass::result("split_bytes", |pass| pass.splits.copied_bytes.into())
            .meaning("chunks that were split, with split:last_resort; what they became; bytes copied for that"),
        Pass::result(Spilled::PEAK, |pass| Spilled::of(pass).peak.into())
            .figure("spilled\nGiB", |pass| Spilled::of(pass).cell())
            .rare()
            .legend("spilled", "the most live memory that lay in the machine's (spill:host=SIZE), where any did"),
        Pass::result(Spilled::MOVED, |pass| Spilled::of(pass).moved_bytes.into()),
        Pass::result(Spilled::PIECES, |pass| Spilled::of(pass).pieces.into()),
        Pass::time(Spilled::TIME, |pass| Spilled::of(pass).us()).meaning(Spilled::MEANING),
        Pass::result("pending_waits", |pass| pass.pending_waits.requests.into()),
        Pass::result("pending_wait_events", |pass| pass.pending_waits.events.into()),
        Pass::result("pending_wait_device", |pass| pass.pending_waits.device.into()),
        Pass::result("pending_wait_clock", |pass| pass.pending_waits.total_ns.into()).meaning(
            "requests for which the CPU waited until freed memory was no longer in use; for how many events; how\n\
                 often for the whole device; how long: in operations on a simulated device, else in nanoseconds",
        ),
        Pass::result("mappings", |pass| pass.mappings.into()),
        Pass::result("view_mappings", |pass| pass.view_mappings.into())
            .meaning("mappings at the end, and those of them in views"),
        Pass::result("held_after", |pass| pass.held_after.into())
            .meaning("bytes held after the pass, when all was freed; with idle_release_s after a long pause"),
        Pass::result("host_bytes", |pass| pass.host_bytes.into())
            .meaning("host memory of the allocator's own tables at the end"),
        Pass::result("stream_waits", |pass| pass.stream_waits.into()),
        Pass::result("wait_bytes", |pass| pass.waits.bytes.into()),
        Pass::result("idle_waits", |pass| pass.idle_waits.into()).meaning(
            "GPU-side waits of streams for one another; what they passed on; waits for an event\n\
             that was complete already",
        ),
        Pass::result("wait_age_ops_min", |pass| pass.least_wait_age().into()),
        Pass::result("wait_age_ops_mean", |pass| pass.mean_wait_age().map(|mean| round_to(mean, 1)).into()),
        Pass::result("wait_age_ops_max", |pass| (pass.stream_waits > 0).then_some(pass.waits.age_most).into())
            .meaning("how many operations before the wait its event was recorded; null without a wait"),
        Pass::result("cpu_syncs", |pass| pass.cpu_syncs.into()).meaning("how often the CPU waited for the GPU"),
        Pass::result("oom", |pass| pass.oom.is_some().into()),
        Pass::result("oom_report", |pass| pass.oom.as_ref().map(|(_, report)| report.to_string()).into())
            .meaning("whether memory ran out, and who held what then"),
        Pass::clock("ns_per_op", |pass| round_to(pass.ns_per_op, 1).into())
            .meaning("as above")
            .figure("ns/op", |pass| format!("{:.0}", pass.ns_per_op).into())
            .spare(5)
            .legend("ns/op", "time of one operation on this machine, the simulation, or the real driver, included"),
        Pass::result("fragmentation", fragmentation),
    ];

    /// Returns the line that `--json` prints: the values of all columns by their keys.
    #[must_use]
    pub fn to_json(&self) -> Value {
        line(Self::COLUMNS, self).into()
    }

    /// Returns how many operations before its wait the event was recorded that a stream waited for, in the mean.
    #[must_use]
    pub fn mean_wait_age(&self) -> Option<f64> {
        (self.stream_waits > 0).then(|| self.waits.age_total as f64 / self.stream_waits as f64)
    }

    /// Returns the least of these ages.
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

/// Returns how the memory was divided up at the peak, and at which event that was.
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

    /// The one figure that differs from run to run, so that no two outputs of the command can be held against each other.
    #[test]
    fn the_time_of_an_operation_is_shown_as_it_is() {
        let events = vec![TraceEvent::Alloc { size: 1, stream: 0 }];
        let trace = Trace { streams: vec![StreamId::DEFAULT], events, ..Trace::default() };
        let options = ReplayOptions::new(Config::default(), SimConfig::default());
        let mut pass = replay(&trace, &options, &mut |_, _| {}).unwrap().remove(0);
        pass.ns_per_op = 1234.56;
        let column = PassReport::COLUMNS.iter().find(|column| column.key == "ns_per_op").unwrap();
        assert_eq!((column.value)(&pass), 1234.6);
        assert_eq!((column.shown.as_ref().unwrap().cell)(&pass), Cell::Text("1235".to_owned()));
    }
}
