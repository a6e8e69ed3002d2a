//! Timelines whose correct result is known: waits that cost their length or no time, driver calls that cost their time
//! or no time, and errors in files.

use super::*;
use crate::error::TraceError;
use seamalloc::Config;
use seamalloc::driver::Call;
use seamalloc::driver::sim::{Profile, SimConfig};

const MIB: u64 = 1 << 20;

fn read(lines: &str) -> Timeline {
    read_timeline("t", "t", format!("# {{\"timeline\": 1}}\n{lines}").as_bytes()).unwrap()
}

/// Returns the reports of all passes.
fn passes(timeline: &Timeline, options: Option<&str>, passes: u32) -> Vec<TimelineReport> {
    let config = options.map(|options| Config::parse(options).unwrap());
    let policy = Policy { name: options.unwrap_or("none").to_owned(), config };
    replay_timeline(timeline, &policy, &SimConfig::default(), passes, &mut |_, _| ()).unwrap()
}

/// Returns the lengths of the steps in the last pass.
fn steps(timeline: &Timeline, options: Option<&str>, times: u32) -> Vec<u64> {
    passes(timeline, options, times).pop().unwrap().steps.iter().map(|step| step.ns).collect()
}

fn bare(lines: &str) -> u64 {
    steps(&read(lines), None, 1)[0]
}

#[test]
fn the_cpu_and_the_gpu_run_side_by_side() {
    // The CPU takes 10 + 5, then the kernel takes 100. The second kernel is launched during the first.
    assert_eq!(bare("p,1,0,0\nk,1,10,5,0,100\nk,1,10,5,0,50\ns,1,0,7,d\nq,1,3,0"), 15 + 100 + 50 + 7 + 3);
    // The second launch comes after the end of the first kernel.
    assert_eq!(bare("p,1,0,0\nk,1,10,5,0,100\nk,1,900,5,0,50\ns,1,0,0,s,0\nq,1,0,0"), 15 + 905 + 50);
    // No thread waits for the GPU.
    assert_eq!(bare("p,1,0,0\nk,1,10,5,0,100\nq,1,0,0"), 15);
}

#[test]
fn streams_run_side_by_side_and_wait_for_events() {
    let side_by_side = "p,1,0,0\nk,1,0,0,0,100\nk,1,0,0,a,70\ns,1,0,0,d\nq,1,0,0";
    assert_eq!(bare(side_by_side), 100);
    let behind = "p,1,0,0\nk,1,0,0,0,100\ne,1,0,0,0,1\nk,1,0,0,0,5\nw,1,0,0,a,1\nk,1,0,0,a,70\ns,1,0,0,d\nq,1,0,0";
    assert_eq!(bare(behind), 170);
    let event = "p,1,0,0\nk,1,0,0,0,100\ne,1,0,0,0,1\nk,1,0,0,0,500\ns,1,0,2,e,1\nq,1,0,0";
    assert_eq!(bare(event), 102);
}

#[test]
fn launches_take_time_to_arrive_and_kernels_have_gaps() {
    let text = "# {\"timeline\": 1, \"latency_ns\": 1000, \"gap_ns\": 10}\n\
                p,1,0,0\nk,1,0,0,0,100\nk,1,0,0,0,100\ns,1,0,0,d\nq,1,0,0";
    let timeline = read_timeline("t", "t", text.as_bytes()).unwrap();
    let report = passes(&timeline, None, 1).pop().unwrap();
    assert_eq!(report.step_ns(), 1000 + 100 + 10 + 100);
    let path = report.steps[0].path;
    assert_eq!((path.work_ns, path.launch_ns, path.program_ns, path.held_ns), (200, 1010, 0, 0));
}

#[test]
fn threads_run_side_by_side_and_wait_for_each_other() {
    let text = "p,1,0,0\nk,1,10,0,0,1\nj,2,0,1\nk,2,500,0,0,1\nk,1,20,0,0,1\nj,1,0,2\nq,1,5,0";
    assert_eq!(bare(text), 10 + 500 + 5);
    // Blocks and events of another thread must exist before they are used.
    assert_eq!(bare("p,1,0,0\na,1,100,7,512,0\nr,2,3,7\nj,1,0,2\nq,1,0,0"), 100);
    assert_eq!(bare("p,1,0,0\ne,1,100,0,0,7\ns,2,3,9,e,7\nj,1,0,2\nq,1,0,0"), 109);
}

/// Returns a timeline in which one stream frees memory while its work goes on, and another stream gets the memory. If
/// 100 ms of work precede the free, a wait for this work makes the step 10 ms longer, since the other stream's last
/// kernel (10 ms) then runs after it.
fn handed_on(work_before: u64) -> String {
    let ms = 1_000_000;
    format!(
        "p,1,0,0\na,1,0,1,{size},a\nk,1,0,0,a,{before}\nr,1,0,1\nk,1,0,0,b,{own}\na,1,0,2,{size},b\nk,1,0,0,b,{after}\n\
         r,1,0,2\ns,1,0,0,d\nq,1,0,0",
        size = 512 * MIB,
        before = work_before * ms,
        own = 40 * ms,
        after = 10 * ms,
    )
}

#[test]
fn a_wait_costs_its_length_or_nothing() {
    let ms = 1_000_000;
    for (before, free, never) in [(100, 110, 100), (30, 50, 50)] {
        let timeline = read(&handed_on(before));
        let never_waits = passes(&timeline, Some("strategy:stitch,sharing:never"), 4).pop().unwrap();
        assert_eq!((never_waits.stream_waits, never_waits.peak_reserved), (0, 1024 * MIB), "two blocks");
        assert_eq!(never_waits.step_ns() / ms, never);
        let waits = passes(&timeline, Some("strategy:stitch,sharing:wait"), 4).pop().unwrap();
        assert!(waits.stream_waits >= 1, "{waits:?}");
        assert_eq!(waits.step_ns() / ms, free, "{:?}", waits.steps);
        // After 100 ms of work the whole wait (60 ms) counts as `held_ns`, except the driver calls between the
        // launches.
        let held = waits.steps[0].path.held_ns;
        assert!(before < 40 && held == 0 || (60 * ms - held) < ms / 10, "{held}");
        assert_eq!(waits.effective_waits > 0, before > 40);
    }
}

/// A request for 1 GiB. A pass frees its blocks at its end, so each pass makes the request anew.
const GROWS: &str = "a,1,0,1,1073741824,0";

#[test]
fn driver_calls_cost_their_time_where_the_cpu_decides() {
    let device = Profile::H200;
    // A request of 20 MiB or more gets a segment of its own size, and no memory was reserved before.
    let malloc = device.cost(Call::Malloc, 1 << 30);
    let bound_by_cpu = read(&format!("p,1,0,0\nk,1,1000,0,0,10\n{GROWS}\nk,1,0,0,0,10\ns,1,0,0,d\nq,1,0,0"));
    let report = passes(&bound_by_cpu, Some("strategy:caching"), 2);
    assert_eq!(report[0].step_ns(), 1010 + malloc);
    assert_eq!((report[0].bare_ns, report[0].steps[0].path.driver_ns), (1020, malloc));
    assert_eq!(report[1].step_ns(), 1020, "a hit calls no driver");
    let bound_by_gpu = read(&format!("p,1,0,0\nk,1,1000,0,0,10000000\n{GROWS}\nk,1,0,0,0,10\ns,1,0,0,d\nq,1,0,0"));
    let report = passes(&bound_by_gpu, Some("strategy:caching"), 1).pop().unwrap();
    assert_eq!((report.step_ns(), report.steps[0].path.driver_ns), (10_001_010, 0));
    assert_eq!(report.driver.total_ns(), malloc);
}

#[test]
fn a_path_is_as_long_as_its_step() {
    for options in ["strategy:stitch,sharing:wait", "strategy:expandable", "strategy:caching"] {
        for before in [3, 30, 300] {
            for report in passes(&read(&handed_on(before)), Some(options), 3) {
                let step = report.steps[0];
                let path = step.path;
                assert_eq!(
                    path.work_ns + path.program_ns + path.driver_ns + path.launch_ns,
                    step.ns,
                    "{options} {path:?}"
                );
            }
        }
    }
}

#[test]
fn memory_that_does_not_suffice_ends_the_pass() {
    let timeline = read(&format!("p,1,0,0\n{GROWS}\nq,1,0,0"));
    let device = SimConfig { capacity: 512 * MIB, ..SimConfig::default() };
    let policy = Policy { name: "caching".to_owned(), config: Some(Config::parse("strategy:caching").unwrap()) };
    let reports = replay_timeline(&timeline, &policy, &device, 3, &mut |_, _| ()).unwrap();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].oom.as_ref().map(|(line, _)| *line), Some(1));
}

#[test]
fn every_pass_begins_with_the_same_blocks() {
    let text = "b,1,512,0\nb,2,1024,a\np,1,0,0\nr,1,0,1\na,1,0,3,2048,0\nq,1,0,0";
    for report in passes(&read(text), Some("strategy:stitch"), 3) {
        assert_eq!(report.peak_live, 1024 + 2048, "{report:?}");
    }
}

#[test]
fn the_same_timeline_takes_the_same_time() {
    let timeline = read(&handed_on(100));
    let once = passes(&timeline, Some("strategy:stitch,sharing:wait"), 4);
    assert_eq!(passes(&timeline, Some("strategy:stitch,sharing:wait"), 4), once);
}

#[test]
fn wrong_lines_are_named() {
    for (text, line) in [
        ("x,1,0", 2),
        ("p,1", 2),
        ("p,1,0,0,0", 2),
        ("p,1,0,0\np,1,0,1", 3),
        ("q,1,0,0", 2),
        ("p,1,0,0\nq,2,0,0", 3),
        ("p,1,0,0\nk,1,0,0,0", 3),
        ("p,1,0,0\nk,1,0,0,x,1", 3),
        ("p,1,0,0\nk,1,-1,0,0,1", 3),
        ("p,1,0,0\nk,1,0,0,0,86400000000001", 3),
        ("p,1,0,0\nw,1,0,0,0,5", 3),
        ("p,1,0,0\ns,1,0,0,x", 3),
        ("p,1,0,0\ns,1,0,0,e,5", 3),
        ("p,1,0,0\nb,1,512,0", 3),
        ("p,1,0,0\na,1,0,1,0,0", 3),
        ("p,1,0,0\nr,1,0,1", 3),
        ("b,1,512,0\nb,1,512,0", 3),
        ("p,1,0,0\na,1,0,1,512,0\nr,1,0,1\nu,1,0,1,a", 5),
    ] {
        let error = read_timeline("t", "t.txt", format!("# {{\"timeline\": 1}}\n{text}").as_bytes()).unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("t.txt, line ") || text.starts_with('b'), "{text:?}: {message}");
        assert!(message.contains(&format!("line {line}:")), "{text:?}: {message}");
    }
}

#[test]
fn threads_and_streams_are_few() {
    let threads: String = (0..257).map(|thread| format!("k,{thread},0,0,0,1\n")).collect();
    let streams: String = (0..257).map(|stream| format!("k,0,0,0,{stream:x},1\n")).collect();
    for (text, what) in [(threads, "256 threads"), (streams, "256 streams")] {
        let error =
            read_timeline("t", "t", format!("# {{\"timeline\": 1}}\n{text}").as_bytes()).unwrap_err().to_string();
        assert!(error.contains("line 258: ") && error.contains(what), "{error}");
    }
}

#[test]
fn the_longest_times_do_not_overflow() {
    let day = 86_400_000_000_000u64;
    let lines = format!("k,0,{day},{day},0,{day}\nw,0,{day},{day},a,0\ns,0,{day},{day},d\n").repeat(300);
    let timeline = read(&format!("p,0,0,0\ne,0,0,0,0,0\n{lines}q,0,0,0"));
    assert!(steps(&timeline, Some("strategy:stitch"), 2)[0] > 300 * day);
}

#[test]
fn what_is_no_timeline_is_refused() {
    for text in ["p,1,0,0", "# {}", "# {\"timeline\": 2}", "#", "a,1,5,0", "# {\"timeline\": 1, \"gap_ns\": -1}"] {
        let error = read_timeline("t", "t.txt", text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("t.txt, line 1: "), "{text:?}: {error}");
    }
    assert!(matches!(read_timeline("t", "t.txt", "".as_bytes()), Err(TraceError::Empty { .. })));
    for text in ["", "p,1,0,0", "k,1,0,0,0,1"] {
        let error = read_timeline("t", "t.txt", format!("# {{\"timeline\": 1}}\n{text}").as_bytes()).unwrap_err();
        assert!(error.to_string().contains("expected at least one step"), "{error}");
    }
}
