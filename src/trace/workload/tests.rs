//! Tests over the whole catalogue.

use std::collections::HashSet;

use super::*;
use crate::trace::TraceEvent;

const GIB: u64 = 1 << 30;

/// Peak of live bytes; panics where the trace is not valid.
fn peak_of(trace: &Trace) -> u64 {
    let mut sizes = Vec::new();
    let mut states = Vec::new();
    let (mut live, mut peak) = (0_u64, 0);
    for event in &trace.events {
        match *event {
            TraceEvent::Alloc { size, stream } => {
                assert!(size > 0 && (stream as usize) < trace.streams.len(), "{}", trace.name);
                sizes.push(size);
                states.push(0);
                live += size;
                peak = peak.max(live);
            }
            TraceEvent::FreeRequested { block } => {
                assert_eq!(states[block as usize], 0, "{}: block {block} freed twice", trace.name);
                states[block as usize] = 1;
            }
            TraceEvent::FreeCompleted { block } => {
                assert_eq!(states[block as usize], 1, "{}: block {block} completed", trace.name);
                states[block as usize] = 2;
                live -= sizes[block as usize];
            }
        }
    }
    peak
}

#[test]
#[ignore = "prints the table of workloads"]
fn table() {
    let mut total = 0;
    for workload in catalogue() {
        let start = std::time::Instant::now();
        let trace = workload.generate(0, Scale::default()).unwrap();
        let took = start.elapsed();
        let peak = peak_of(&trace);
        let sizes: Vec<u64> = trace
            .events
            .iter()
            .filter_map(|e| if let TraceEvent::Alloc { size, .. } = e { Some(*size) } else { None })
            .collect();
        let distinct: HashSet<u64> = sizes.iter().copied().collect();
        let small = sizes.iter().filter(|s| **s <= 1 << 20).count() * 100 / sizes.len();
        if workload.in_default_set {
            total += trace.events.len();
        }
        println!(
            "| {} | {} | {} | {:.1} | {} | {small}% | {} | {:.1} |",
            workload.name,
            if workload.in_default_set { "yes" } else { "" },
            trace.events.len(),
            peak as f64 / GIB as f64,
            distinct.len(),
            sizes.len() / workload.default_steps as usize,
            took.as_secs_f64() * 1e3
        );
    }
    println!("default set: {total} events");
}
