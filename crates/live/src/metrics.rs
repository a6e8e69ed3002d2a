//! Metrics in Prometheus' text format.
//!
//! Owns: the text format, version 0.0.4. `sample.rs` has the names of the metrics, which follow Prometheus' conventions
//! (base units, `_total` for counters). docs/metrics.md lists the metrics.

use crate::namespace::namespace;
use crate::sample::{METRICS, Process};
use std::fmt::Write;

/// Returns the metrics of processes in Prometheus' text format. Each metric has the labels `pid`, `device` and
/// `allocator`, and `pid_namespace` if the process is in another namespace than this one.
#[must_use]
pub fn prometheus(processes: &[Process]) -> String {
    let mut text = String::new();
    let own = namespace().unwrap_or(0);
    for metric in METRICS {
        let kind = if metric.grows { "counter" } else { "gauge" };
        // Writing to a string cannot fail.
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

/// Returns a label's value with backslashes, quotes and line ends escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

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
        // Each process is the first process of its container.
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
