//! Metrics as Prometheus reads them.
//!
//! Owns: their names, which follow its conventions (base units, `_total` for what only grows), and the text format, version 0.0.4.
//! docs/metrics.md lists them.

use crate::namespace::namespace;
use crate::sample::{Process, Sample};
use std::fmt::Write;

/// A metric.
#[derive(Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Whether it only grows while the process lives: a counter. Else it is a gauge.
    pub grows: bool,
    /// What it says.
    pub help: &'static str,
    value: fn(&Sample) -> f64,
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Sample) -> f64) -> Metric {
    Metric { name, grows: false, help, value }
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Sample) -> f64) -> Metric {
    Metric { name, grows: true, help, value }
}

/// Seconds of these nanoseconds.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Every metric.
pub const METRICS: &[Metric] = &[
    gauge("seamalloc_reserved_bytes", "Memory held from the driver.", |s| s.reserved_bytes as f64),
    gauge("seamalloc_reserved_peak_bytes", "The most memory held since the last reset of peaks.", |s| {
        s.reserved_peak_bytes as f64
    }),
    gauge("seamalloc_live_bytes", "Memory in blocks that the program has not freed, rounding included.", |s| {
        s.live_bytes as f64
    }),
    gauge("seamalloc_live_peak_bytes", "The most memory in live blocks since the last reset of peaks.", |s| {
        s.live_peak_bytes as f64
    }),
    gauge("seamalloc_rounding_bytes", "Memory lost to rounding.", |s| s.rounding_bytes as f64),
    gauge("seamalloc_pending_bytes", "Memory that was freed and that other streams still use.", |s| {
        s.pending_bytes as f64
    }),
    gauge("seamalloc_free_bytes", "Memory held and free.", |s| s.free_bytes as f64),
    gauge(
        "seamalloc_stranded_bytes",
        "Free memory of a stream or private pool that other streams of the program cannot take at present.",
        |s| s.stranded_bytes as f64,
    ),
    gauge(
        "seamalloc_largest_request_bytes",
        "The largest request above 1 MiB that some stream could be given without new memory.",
        |s| s.largest_request_bytes as f64,
    ),
    gauge("seamalloc_limit_bytes", "The most memory that may be held; 0 is no limit.", |s| s.limit_bytes as f64),
    gauge("seamalloc_host_bytes", "Memory of the host for the allocator's tables.", |s| s.host_bytes as f64),
    gauge("seamalloc_asleep_bytes", "Memory that waking all tags that sleep takes.", |s| s.asleep_bytes as f64),
    gauge("seamalloc_page_locked_bytes", "Page-locked memory of the host for backups of tags that sleep.", |s| {
        s.page_locked_bytes as f64
    }),
    gauge("seamalloc_live_blocks", "Live blocks.", |s| s.live_blocks as f64),
    gauge("seamalloc_views", "Stitched views that exist.", |s| s.views as f64),
    counter("seamalloc_allocations_total", "Requests that were served.", |s| s.allocations_total as f64),
    counter("seamalloc_frees_total", "Frees.", |s| s.frees_total as f64),
    counter("seamalloc_stalls_total", "Operations that called the driver.", |s| s.stalls_total as f64),
    counter("seamalloc_stall_seconds_total", "Time that operations spent in the driver.", |s| {
        seconds(s.stall_ns_total)
    }),
    counter("seamalloc_waits_total", "GPU-side waits of a stream for work of another on freed memory.", |s| {
        s.waits_total as f64
    }),
    counter("seamalloc_wait_bytes_total", "Memory that such waits passed on.", |s| s.wait_bytes_total as f64),
    counter("seamalloc_cpu_waits_total", "Waits of the CPU for freed memory before a refusal.", |s| {
        s.cpu_waits_total as f64
    }),
    counter("seamalloc_cpu_wait_seconds_total", "Time of such waits.", |s| seconds(s.cpu_wait_ns_total)),
    counter("seamalloc_driver_allocations_total", "How often memory was taken from the driver.", |s| {
        s.driver_allocations_total as f64
    }),
    counter("seamalloc_driver_frees_total", "How often memory was given back to the driver.", |s| {
        s.driver_frees_total as f64
    }),
    counter("seamalloc_retries_total", "Requests for which all cached memory was given back.", |s| {
        s.retries_total as f64
    }),
    counter("seamalloc_refusals_total", "Requests that were refused for want of memory.", |s| s.refusals_total as f64),
    counter("seamalloc_yields_total", "Times that memory went back for others, with a headroom.", |s| {
        s.yields_total as f64
    }),
    counter("seamalloc_yielded_bytes_total", "Memory that went back then.", |s| s.yielded_bytes_total as f64),
    gauge(
        "seamalloc_spilled_bytes",
        "Live memory that lies in the machine's memory, and is not held of the device.",
        |s| s.spilled_bytes as f64,
    ),
    counter("seamalloc_spills_total", "Pieces of live memory that were spilled to the machine's.", |s| {
        s.spills_total as f64
    }),
    counter("seamalloc_spill_returns_total", "Spilled pieces that came back to the device.", |s| {
        s.spill_returns_total as f64
    }),
    counter("seamalloc_spill_seconds_total", "Time in the driver that both took.", |s| seconds(s.spill_ns_total)),
];

/// Returns the metrics of processes as Prometheus reads them. Each has the labels `pid`, `device` and `allocator`, and
/// `pid_namespace` if the process is of another namespace than this one.
#[must_use]
pub fn prometheus(processes: &[Process]) -> String {
    let mut text = String::new();
    let own = namespace().unwrap_or(0);
    for metric in METRICS {
        let kind = if metric.grows { "counter" } else { "gauge" };
        // Writing to a text does not fail.
        let _ = writeln!(text, "# HELP {} {}\n# TYPE {} {kind}", metric.name, metric.help, metric.name);
        for process in processes {
            let of = process.pid_namespace;
            let of = if of == 0 || of == own { String::new() } else { format!("pid_namespace=\"{of}\",") };
            for sample in &process.allocators {
                let _ = writeln!(
                    text,
                    "{}{{pid=\"{}\",{of}device=\"{}\",allocator=\"{}\"}} {}",
                    metric.name,
                    process.pid,
                    escaped(&sample.device),
                    sample.allocator,
                    (metric.value)(sample)
                );
            }
        }
    }
    text
}

/// A label's value: backslashes, quotes and line ends are escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_as_prometheus_reads_it() {
        let sample = Sample {
            device: "a\"b\\".into(),
            reserved_bytes: (1 << 53) - 1,
            stall_ns_total: 1_500_000_000,
            ..Sample::default()
        };
        let process = Process { pid: 7, allocators: vec![sample], ..Process::default() };
        let text = prometheus(std::slice::from_ref(&process));
        for line in [
            "# TYPE seamalloc_reserved_bytes gauge",
            "seamalloc_reserved_bytes{pid=\"7\",device=\"a\\\"b\\\\\",allocator=\"0\"} 9007199254740991",
            "# TYPE seamalloc_stall_seconds_total counter",
            "seamalloc_stall_seconds_total{pid=\"7\",device=\"a\\\"b\\\\\",allocator=\"0\"} 1.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert_eq!(text.lines().count(), 3 * METRICS.len());
        // The first process of each of two containers.
        let processes = [1, 2].map(|pid_namespace| Process { pid: 1, pid_namespace, ..process.clone() });
        let text = prometheus(&processes);
        for namespace in [1, 2] {
            let line = format!("seamalloc_reserved_bytes{{pid=\"1\",pid_namespace=\"{namespace}\",device=");
            assert_eq!(text.lines().filter(|found| found.starts_with(&line)).count(), 1, "{text}");
        }
    }

    #[test]
    fn names_follow_the_conventions_and_the_page_has_them_all() {
        let page = include_str!("../../../docs/metrics.md");
        for metric in METRICS {
            assert_eq!(metric.name.ends_with("_total"), metric.grows, "{}", metric.name);
            assert!(metric.name.starts_with("seamalloc_") && metric.help.ends_with('.'), "{}", metric.name);
            assert!(!["_ns", "_us", "_ms", "_mb"].iter().any(|unit| metric.name.contains(unit)), "{}", metric.name);
            let row = format!("| `{}` |", metric.name);
            assert!(page.contains(&row), "docs/metrics.md has no {row}");
        }
        assert_eq!(page.matches("| `seamalloc_").count(), METRICS.len(), "docs/metrics.md has one that is not there");
    }
}
