//! The data of the page: the operations of each job, and each strategy's course (its replay, operation by operation)
//! and optional memory map.
//!
//! Owns: the names of columns and keys, which `crates/page/assets/` reads.

use crate::course::{Course, Map};
use crate::pack::Pack;
use seamalloc::Fragmentation;
use seamalloc::driver::Call;
use seamalloc_trace::cliff::CliffReport;
use seamalloc_trace::owners::Lines;
use seamalloc_trace::pytorch::Origins;
use seamalloc_trace::replay::ReplayOptions;
use seamalloc_trace::verdict::Judgement;
use seamalloc_trace::whatif::WhatIf;
use seamalloc_trace::{Trace, TraceEvent, fragmentation_json};
use serde_json::{Value, json};

/// The largest number of owners of free memory that a sample names. The memory of further owners is added up.
const MOST_OWNERS: usize = 16;
/// Calls in which the CPU waits for the GPU, as `cpu_syncs` counts them.
const CPU_WAITS: [Call; 3] = [Call::EventSynchronize, Call::StreamSynchronize, Call::Free];

/// A trace with the courses of strategies (their replays, operation by operation).
#[derive(Debug)]
pub struct Job<'t> {
    trace: &'t Trace,
    device: String,
    capacity: u64,
    /// The course (the replay, operation by operation) of each strategy, in the order of the page.
    pub courses: Vec<Course>,
    /// The verdict on the job, if it was requested.
    pub verdict: Option<Judgement>,
    /// The memory of each strategy, and the largest steps, on the device of the courses; empty if not requested.
    pub whatif: Vec<WhatIf>,
    /// The costs on devices with hardly enough memory; empty if not requested.
    pub cliff: Vec<CliffReport>,
    /// The stacks of the program's requests, if the recording contains them.
    pub origins: Option<Origins>,
    /// Parts of file paths that mark libraries, in the form of [`Lines::of`].
    pub libraries: Vec<String>,
}

/// Data of the page, and the name of the HTML element that holds them.
pub(crate) struct Blob {
    pub(crate) id: String,
    pub(crate) text: String,
}

impl<'t> Job<'t> {
    /// Makes a job with the courses of strategies, all on the device of `options`.
    #[must_use]
    pub fn new(trace: &'t Trace, options: &ReplayOptions, courses: Vec<Course>) -> Self {
        Self {
            trace,
            device: options.device.to_string(),
            capacity: options.device.capacity,
            courses,
            verdict: None,
            whatif: Vec::new(),
            cliff: Vec::new(),
            origins: None,
            libraries: Vec::new(),
        }
    }

    /// Returns the trace's name.
    pub(crate) fn name(&self) -> &str {
        &self.trace.name
    }

    /// Returns all data of job `number`.
    pub(crate) fn blobs(&self, number: usize) -> Vec<Blob> {
        let mut blobs = vec![Blob { id: format!("job-{number}"), text: self.pack() }];
        for (index, course) in self.courses.iter().enumerate() {
            blobs.push(Blob { id: format!("course-{number}-{index}"), text: pack_course(course) });
            if let Some(map) = &course.map {
                blobs.push(Blob { id: format!("map-{number}-{index}"), text: pack_map(map) });
            }
        }
        blobs
    }

    /// Returns the operations of the trace and the figures of all strategies.
    fn pack(&self) -> String {
        let mut pack = Pack::default();
        let mut columns = Operations::default();
        self.trace.events.iter().for_each(|event| columns.add(event));
        let Operations { ops, sizes, streams, deferred, .. } = columns;
        let mut distinct: Vec<u64> = sizes.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let index_of = |size: &u64| distinct.binary_search(size).unwrap_or_default() as u64;
        pack.numbers("ops", ops.into_iter());
        pack.numbers("size", sizes.iter().map(index_of));
        pack.numbers("stream", streams.into_iter());
        pack.deltas("deferred_block", deferred.iter().map(|(block, _)| u64::from(*block)));
        pack.deltas("deferred_op", deferred.iter().map(|(_, op)| *op));
        pack.deltas("sizes", distinct.iter().copied());
        let mut about = json!({
            "name": self.trace.name,
            "device": self.device,
            "capacity": self.capacity,
            "peak_live": self.trace.summary().peak_live,
            "events": self.trace.events.len(),
            "streams": self.trace.streams.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "verdict": self.verdict.as_ref().map(Judgement::to_json),
            "whatif": self.whatif.iter().map(WhatIf::to_json).collect::<Vec<_>>(),
            "cliff": self.cliff.iter().map(CliffReport::to_json).collect::<Vec<_>>(),
            "strategies": self.courses.iter().map(|course| course.strategy).collect::<Vec<_>>(),
            "maps": self.courses.iter().map(|course| course.map.is_some()).collect::<Vec<_>>(),
        });
        if let (Some(origins), Value::Object(about)) = (&self.origins, &mut about) {
            let refusals = origins.refusals.iter();
            let refusals: Vec<_> = refusals.map(|at| json!([at.before_block, at.size, at.device_free])).collect();
            about.insert("recorded_refusals".to_owned(), refusals.into());
            if !origins.frames.is_empty() {
                let lines = Lines::of(origins, &self.libraries);
                let frames: Vec<_> = origins.frames.iter().map(ToString::to_string).collect();
                about.insert("frames".to_owned(), frames.into());
                about.insert("stacks".to_owned(), json!(origins.stacks));
                about.insert("lines".to_owned(), lines.names.into());
                about.insert("line_of_stack".to_owned(), json!(lines.of_stack));
                pack.numbers("stack", origins.of_block.iter().map(|stack| u64::from(*stack)));
            }
        }
        finish(pack, about)
    }
}

/// The operations of a trace, as the page carries them.
#[derive(Default)]
struct Operations {
    /// One number for each operation. 0 is an allocation. A number n above 0 frees the n-th last block allocated so
    /// far, where freed blocks count too.
    ops: Vec<u64>,
    sizes: Vec<u64>,
    streams: Vec<u64>,
    /// Blocks whose free completed later than it was requested, each with the first operation after the completion.
    deferred: Vec<(u32, u64)>,
    /// The block that the last event freed.
    freed: Option<u32>,
}

impl Operations {
    fn add(&mut self, event: &TraceEvent) {
        let freed = self.freed.take();
        match *event {
            TraceEvent::Alloc { size, stream } => {
                self.ops.push(0);
                self.sizes.push(size);
                self.streams.push(stream.into());
            }
            TraceEvent::FreeRequested { block } => {
                self.ops.push((self.sizes.len() as u64).saturating_sub(block.into()));
                self.freed = Some(block);
            }
            TraceEvent::FreeCompleted { block } if freed == Some(block) => {}
            TraceEvent::FreeCompleted { block } => self.deferred.push((block, self.ops.len() as u64)),
        }
    }
}

fn pack_course(course: &Course) -> String {
    let mut pack = Pack::default();
    for (name, figure) in [("reserved", &course.reserved), ("pending", &course.pending)] {
        pack.deltas(&format!("{name}_op"), figure.iter().map(|(op, _)| u64::from(*op)));
        pack.deltas(name, figure.iter().map(|(_, bytes)| *bytes));
    }
    pack.deltas("work_op", course.work.iter().map(|work| u64::from(work.op)));
    pack.numbers("work_ns", course.work.iter().map(|work| work.ns));
    pack.numbers("work_calls", course.work.iter().map(|work| u64::from(work.calls)));
    let last = course.passes.last();
    let api = |call: Call| call.api();
    let set = |calls: &Vec<(Call, u64)>| {
        let calls = calls.iter().map(|(call, count)| json!([api(*call), count, CPU_WAITS.contains(call)]));
        calls.collect::<Vec<_>>()
    };
    let calls = last.map(|pass| {
        let calls = pass.driver.iter().filter(|(_, stat)| stat.count > 0);
        calls.map(|(call, stat)| json!([call.api(), stat.count, stat.total_ns])).collect::<Vec<_>>()
    });
    let refusal = last.and_then(|pass| pass.oom.as_ref()).map(|(event, report)| {
        json!({
            "event": event,
            "requested": report.requested,
            "stream": report.stream.to_string(),
            "reserved": report.reserved,
            "device_free": report.device_free,
            "pending": report.pending,
            "largest_free": report.largest_free,
            "reachable": report.reachable,
            "explanation": report.explanation(),
            "text": report.to_string(),
        })
    });
    let about = json!({
        "strategy": course.strategy,
        "figures": last.map(|pass| pass.to_json()),
        "passes": course.passes.len(),
        "call_sets": course.call_sets.iter().map(set).collect::<Vec<_>>(),
        "calls": calls,
        "retries": course.retries,
        "refusal": refusal,
        "samples": course.samples.iter().map(|(op, memory)| sample(*op, memory)).collect::<Vec<_>>(),
    });
    finish(pack, about)
}

/// Returns the division of memory after an operation.
fn sample(op: u32, memory: &Fragmentation) -> Value {
    let mut shown = memory.clone();
    // The pools with the most stranded bytes are named first.
    shown.pools.sort_by_key(|pool| std::cmp::Reverse((pool.stranded, pool.free)));
    let rest = shown.pools.split_off(shown.pools.len().min(MOST_OWNERS));
    let mut value = fragmentation_json(&shown);
    if let Value::Object(figures) = &mut value {
        figures.remove("streams");
        // Figures computed from the pools must include all pools.
        figures.insert("stranded".to_owned(), memory.stranded().into());
        figures.insert("op".to_owned(), op.into());
        let free: u64 = rest.iter().map(|pool| pool.free).sum();
        let stranded: u64 = rest.iter().map(|pool| pool.stranded).sum();
        figures.insert("others".to_owned(), json!([rest.len(), free, stranded]));
    }
    value
}

fn pack_map(map: &Map) -> String {
    let mut pack = Pack::default();
    let numbers = map.places.iter().flat_map(|place| {
        let pieces = place.pieces.iter().flat_map(|piece| [piece.start, piece.size]);
        [place.address, place.size].into_iter().chain(pieces)
    });
    let chunks = map.memory.chunks.iter();
    let of_chunks = chunks.clone().flat_map(|chunk| [chunk.at.start, chunk.at.size]);
    let unit = numbers.chain(of_chunks).fold(0, gcd).max(1);
    let pieces = || map.places.iter().flat_map(|place| &place.pieces);
    pack.deltas("address", map.places.iter().map(|place| place.address / unit));
    pack.numbers("bytes", map.places.iter().map(|place| place.size / unit));
    pack.numbers("pieces", map.places.iter().map(|place| place.pieces.len() as u64));
    pack.deltas("piece_start", pieces().map(|piece| piece.start / unit));
    pack.numbers("piece_size", pieces().map(|piece| piece.size / unit));
    pack.numbers("first", map.first.iter().map(|place| u64::from(*place)));
    pack.deltas("later_block", map.later.iter().map(|(block, ..)| u64::from(*block)));
    pack.deltas("later_op", map.later.iter().map(|(_, op, _)| u64::from(*op)));
    pack.numbers("later_place", map.later.iter().map(|(.., place)| u64::from(*place)));
    pack.deltas("chunk_start", chunks.clone().map(|chunk| chunk.at.start / unit));
    pack.numbers("chunk_size", chunks.clone().map(|chunk| chunk.at.size / unit));
    pack.deltas("chunk_from", chunks.clone().map(|chunk| u64::from(chunk.from)));
    // 0 means that the chunk stays.
    pack.numbers("chunk_until", chunks.map(|chunk| chunk.until.map_or(0, |op| u64::from(op) + 1)));
    let mut ranges = map.memory.reservations.clone();
    ranges.sort_unstable();
    ranges.dedup();
    pack.deltas("range_start", ranges.iter().map(|(start, _)| start / unit));
    pack.numbers("range_size", ranges.iter().map(|(_, size)| size / unit));
    finish(pack, json!({ "unit": unit }))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn finish(pack: Pack, about: Value) -> String {
    match about {
        Value::Object(about) => pack.text(about),
        _ => pack.text(serde_json::Map::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::course;
    use crate::pack::tests::read;
    use seamalloc::driver::StreamId;
    use seamalloc::driver::sim::SimConfig;
    use seamalloc::{Config, StrategyKind};
    use seamalloc_trace::pytorch::{Frame, Refusal};
    use seamalloc_trace::workload::{self, Scale};

    const MIB: u64 = 1 << 20;

    fn alloc(size: u64, stream: u32) -> TraceEvent {
        TraceEvent::Alloc { size, stream }
    }

    fn freed(block: u32) -> [TraceEvent; 2] {
        [TraceEvent::FreeRequested { block }, TraceEvent::FreeCompleted { block }]
    }

    /// Three blocks of 20 MiB, of which two are freed, two smaller blocks, and a block of 40 MiB that only joined
    /// memory can serve.
    fn trace() -> Trace {
        let events = [
            vec![alloc(20 * MIB, 0), alloc(4 * MIB, 0), alloc(20 * MIB, 0), alloc(20 * MIB, 1)],
            freed(0).into(),
            vec![TraceEvent::FreeRequested { block: 2 }, alloc(5, 0), TraceEvent::FreeCompleted { block: 2 }],
            vec![alloc(40 * MIB, 0)],
        ];
        let streams = vec![StreamId::DEFAULT, StreamId(7)];
        Trace { name: "job".to_owned(), streams, events: events.concat(), ..Trace::default() }
    }

    fn job(trace: &Trace) -> Job<'_> {
        let options = ReplayOptions::new(Config::with_strategy(StrategyKind::Stitch), Default::default());
        let course = course(trace, &options, true, &mut |_, _| {}).unwrap();
        Job::new(trace, &options, vec![course])
    }

    #[test]
    fn the_operations_are_those_of_the_trace() {
        let trace = trace();
        let blobs = job(&trace).blobs(0);
        assert_eq!(blobs.iter().map(|blob| blob.id.as_str()).collect::<Vec<_>>(), ["job-0", "course-0-0", "map-0-0"]);
        let (about, columns) = read(&blobs[0].text);
        assert_eq!(columns["ops"], [0, 0, 0, 0, 4, 2, 0, 0]);
        let sizes: Vec<_> = columns["size"].iter().map(|index| columns["sizes"][*index as usize]).collect();
        assert_eq!(sizes, [20 * MIB, 4 * MIB, 20 * MIB, 20 * MIB, 5, 40 * MIB]);
        assert_eq!(columns["stream"], [0, 0, 0, 1, 0, 0]);
        assert_eq!((&columns["deferred_block"][..], &columns["deferred_op"][..]), (&[2][..], &[7][..]));
        assert_eq!(about["peak_live"], trace.summary().peak_live);
        assert_eq!(about["streams"], json!(["0x0", "0x7"]));
    }

    /// The pieces of a block contain each of its bytes. A stitched block has several pieces, and the pieces of two live
    /// blocks never overlap.
    #[test]
    fn pieces_are_whole_blocks() {
        let trace = trace();
        let (about, columns) = read(&job(&trace).blobs(0)[2].text);
        let unit = about["unit"].as_u64().unwrap();
        let mut next = 0;
        let mut places = Vec::new();
        for (count, bytes) in columns["pieces"].iter().zip(&columns["bytes"]) {
            let range = next..next + *count as usize;
            assert_eq!(columns["piece_size"][range.clone()].iter().sum::<u64>(), *bytes, "{columns:?}");
            next = range.end;
            places.push(range);
        }
        let pieces = |block: usize| places[columns["first"][block] as usize].clone();
        assert!(pieces(5).len() > 1, "40 MiB of 20 and 20: {columns:?}");
        let taken =
            |piece: usize| columns["piece_start"][piece]..columns["piece_start"][piece] + columns["piece_size"][piece];
        for (a, b) in pieces(5).flat_map(|a| [1, 3, 4].into_iter().flat_map(pieces).map(move |b| (a, b))) {
            let (a, b) = (taken(a), taken(b));
            assert!(a.end <= b.start || b.end <= a.start, "{a:?} {b:?}");
        }
        let held: u64 = columns["chunk_size"].iter().sum();
        assert!(held * unit >= trace.summary().peak_live, "{columns:?}");
    }

    /// Splitting exchanges the physical memory under live addresses, so a live block then lies in other chunks.
    #[test]
    fn memory_that_is_exchanged_has_new_places() {
        let chain = workload::catalogue().iter().find(|workload| workload.name == "dtr-chain").unwrap();
        let trace = chain.generate(0, Scale { steps: Some(4) }).unwrap();
        let live = trace.summary().peak_live;
        let device = SimConfig { capacity: (live + live / 500).next_multiple_of(2 * MIB), ..SimConfig::default() };
        let config = Config::parse("split:last_resort").unwrap();
        let course = course(&trace, &ReplayOptions::new(config, device), true, &mut |_, _| {}).unwrap();
        assert!(course.passes[0].splits.chunks > 0 && course.passes[0].oom.is_none());
        let map = course.map.unwrap();
        assert!(!map.later.is_empty());
        for (block, op, place) in map.later {
            let (before, after) = (&map.places[map.first[block as usize] as usize], &map.places[place as usize]);
            assert_eq!((before.address, before.size), (after.address, after.size), "block {block} from {op} on");
            assert_eq!(
                after.pieces.iter().map(|piece| piece.size).sum::<u64>(),
                after.size,
                "block {block} from {op} on"
            );
        }
    }

    #[test]
    fn origins_and_refusals_of_the_recording_are_told() {
        let trace = trace();
        let mut job = job(&trace);
        let frame = |function: &str, file: &str| Frame { function: function.into(), file: file.into(), line: Some(1) };
        let (frames, stacks) = (vec![frame("f", "torch/nn/a.py"), frame("g", "/me/b.py")], vec![vec![0, 1]]);
        let refusals = vec![Refusal { before_block: 3, size: 9, device_free: 4, stack: 0 }];
        job.origins = Some(Origins { frames, stacks, of_block: vec![1, 0, 1, 1, 0, 1], refusals });
        let (about, columns) = read(&job.blobs(4)[0].text);
        assert_eq!(columns["stack"], [1, 0, 1, 1, 0, 1]);
        assert_eq!((&about["frames"][0], &about["stacks"][0][0]), (&json!("f (torch/nn/a.py:1)"), &json!(0)));
        assert_eq!((&about["lines"], &about["line_of_stack"]), (&json!(["b.py:1 g"]), &json!([0])));
        assert_eq!(about["recorded_refusals"], json!([[3, 9, 4]]));
    }
}
