//! The row of one allocator: its figures, and the rates of its counters.

use seamalloc::units::format_bytes;
use seamalloc_live::{Process, Sample};
use seamalloc_trace::columns::{Cell, Column, line, round_to};
use serde_json::{Map, Value};

/// An allocator of a process at one moment.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pid: u32,
    pid_namespace: u64,
    command: String,
    sample: Sample,
    /// The previous sample, if any.
    earlier: Option<Sample>,
}

/// The text for an unknown rate.
const UNKNOWN: &str = "-";

impl Row {
    /// The shown values: keys for JSON in addition to those of the sample, and columns for a table.
    pub(super) const COLUMNS: &[Column<Self>] = &[
        Self::run("pid", |row| row.pid.into()).text("pid", |row| row.pid.into()),
        Self::run("pid_namespace", |row| row.pid_namespace.into()),
        Self::run("command", |row| row.command.as_str().into()),
        Self::run("device", |row| row.sample.device.as_str().into())
            .text("device", |row| row.sample.device.as_str().into()),
        Self::run("strategy", |row| row.sample.strategy.as_str().into())
            .text("strategy", |row| row.sample.strategy.as_str().into())
            .spare(5),
        Self::result("reserved_bytes", |row| row.sample.reserved_bytes.into())
            .figure("reserved", |row| format_bytes(row.sample.reserved_bytes).into())
            .legend("reserved", "memory held from the driver"),
        Self::result("live_bytes", |row| row.sample.live_bytes.into())
            .figure("live", |row| format_bytes(row.sample.live_bytes).into())
            .legend("live", "memory in blocks that the program has not freed"),
        Self::result("used", |row| row.used().map_or(Value::Null, |used| round_to(used, 4).into()))
            .figure("used", |row| row.used().map_or_else(|| UNKNOWN.into(), Cell::Used))
            .legend("used", "live / reserved")
            .spare(4),
        Self::result("stranded_bytes", |row| row.sample.stranded_bytes.into())
            .figure("stranded", |row| format_bytes(row.sample.stranded_bytes).into())
            .legend(
                "stranded",
                "free memory of a stream or private pool that other streams of the program cannot take at present",
            ),
        Self::result("largest_request_bytes", |row| row.sample.largest_request_bytes.into())
            .figure("largest", |row| format_bytes(row.sample.largest_request_bytes).into())
            .legend("largest", "the largest request that some stream could be given without new memory")
            .spare(6),
        Self::time("allocations_per_second", |row| row.json_rate(|sample| sample.allocations_total))
            .figure("allocs/s", |row| row.rate(|sample| sample.allocations_total))
            .legend("allocs/s", "requests that were served, a second")
            .spare(3),
        Self::time("waits_per_second", |row| row.json_rate(Row::waits))
            .figure("waits/s", |row| row.rate(Row::waits))
            .legend(
                "waits/s",
                "waits for memory of other streams, a second: on the GPU, and of the CPU before a refusal",
            ),
        Self::time("stalls_per_second", |row| row.json_rate(|sample| sample.stalls_total))
            .figure("stalls/s", |row| row.rate(|sample| sample.stalls_total))
            .legend("stalls/s", "operations that called the driver, a second"),
        Self::time("stalled", |row| row.stalled().map_or(Value::Null, |part| round_to(part, 6).into()))
            .figure("stalled", |row| {
                row.stalled().map_or_else(|| UNKNOWN.into(), |part| format!("{:.1}%", part * 100.0).into())
            })
            .legend("stalled", "the part of the time that operations spent in the driver, all threads together"),
        Self::result("refusals_total", |row| row.sample.refusals_total.into())
            .figure("refused", |row| row.sample.refusals_total.into())
            .legend("refused", "requests that were refused for want of memory, since the program began"),
        Self::run("program", |row| row.command.as_str().into())
            .text("program", |row| shortened(&row.command).into())
            .spare(7),
    ];

    const fn run(key: &'static str, value: fn(&Self) -> Value) -> Column<Self> {
        Column::run(key, value)
    }

    const fn result(key: &'static str, value: fn(&Self) -> Value) -> Column<Self> {
        Column::result(key, value)
    }

    const fn time(key: &'static str, value: fn(&Self) -> Value) -> Column<Self> {
        Column::clock(key, value)
    }

    /// Returns the rows of processes, with rates since the earlier rows. Rows with the most held memory come first.
    pub(super) fn of(processes: Vec<Process>, earlier: &[Self]) -> Vec<Self> {
        let mut rows = Vec::new();
        for Process { pid, pid_namespace, command, allocators, .. } in processes {
            for sample in allocators {
                let same = |row: &&Self| {
                    (row.pid_namespace, row.pid, row.sample.allocator) == (pid_namespace, pid, sample.allocator)
                };
                let earlier = earlier.iter().find(same).map(|row| row.sample.clone());
                rows.push(Self { pid, pid_namespace, command: command.clone(), sample, earlier });
            }
        }
        rows.sort_by_key(|row| (std::cmp::Reverse(row.sample.reserved_bytes), row.pid, row.sample.allocator));
        rows
    }

    /// Returns the line of JSON: the figures of the sample, and the rates.
    pub(super) fn to_json(&self) -> Value {
        let mut all = match serde_json::to_value(&self.sample) {
            Ok(Value::Object(figures)) => figures,
            _ => Map::new(),
        };
        all.extend(line(Self::COLUMNS, self));
        all.remove("program");
        Value::Object(all)
    }

    fn used(&self) -> Option<f64> {
        (self.sample.reserved_bytes > 0).then(|| self.sample.live_bytes as f64 / self.sample.reserved_bytes as f64)
    }

    fn stalled(&self) -> Option<f64> {
        let ns = self.sample.per_second(self.earlier.as_ref()?, |sample| sample.stall_ns_total)?;
        Some(ns / 1e9)
    }

    fn waits(sample: &Sample) -> u64 {
        sample.waits_total.saturating_add(sample.cpu_waits_total)
    }

    fn per_second(&self, figure: fn(&Sample) -> u64) -> Option<f64> {
        self.sample.per_second(self.earlier.as_ref()?, figure)
    }

    fn json_rate(&self, figure: fn(&Sample) -> u64) -> Value {
        self.per_second(figure).map_or(Value::Null, |rate| round_to(rate, 3).into())
    }

    fn rate(&self, figure: fn(&Sample) -> u64) -> Cell {
        match self.per_second(figure) {
            None => UNKNOWN.into(),
            Some(rate) if rate >= 100.0 => format!("{rate:.0}").into(),
            Some(rate) => format!("{rate:.1}").into(),
        }
    }
}

/// Returns the beginning of a command line, with the program's name in place of its path.
fn shortened(command: &str) -> String {
    const MOST: usize = 40;
    let (program, rest) = command.split_once(' ').unwrap_or((command, ""));
    let program = program.rsplit('/').next().unwrap_or(program);
    format!("{program} {rest}").trim_end().chars().take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_since_the_time_before() {
        let sample = |time_us, stalls_total, stall_ns_total| Sample {
            allocator: 3,
            time_us,
            stalls_total,
            stall_ns_total,
            reserved_bytes: 4,
            live_bytes: 3,
            ..Sample::default()
        };
        let process = |sample| Process {
            pid: 7,
            command: "/usr/bin/python train.py".into(),
            allocators: vec![sample],
            ..Process::default()
        };
        let first = Row::of(vec![process(sample(1_000_000, 5, 0))], &[]);
        assert_eq!(first[0].to_json()["stalls_per_second"], Value::Null);
        let second = Row::of(vec![process(sample(3_000_000, 9, 500_000_000))], &first)[0].to_json();
        assert_eq!((&second["stalls_per_second"], &second["stalled"]), (&2.0.into(), &0.25.into()));
        assert_eq!((&second["used"], &second["pid"], &second["allocator"]), (&0.75.into(), &7.into(), &3.into()));
        assert_eq!((shortened("/usr/bin/python train.py"), shortened("")), ("python train.py".into(), String::new()));
    }
}
