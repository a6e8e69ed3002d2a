//! The output for jobs whose figures follow from arithmetic: tables, words, lines of JSON.

use super::{Folder, has, lines, stdout};
use seamalloc::driver::Call;
use seamalloc::driver::sim::Profile;

const GIB: u64 = 1 << 30;
const SMALL: u64 = GIB;
const LARGE: u64 = 3 * GIB / 2;

/// A hundred blocks of 1 GiB, and once they are freed, twenty of 1.5 GiB: PyTorch's native allocator takes a segment for each
/// block, and none of the first fits one of the second. It holds 130 GiB, of which 100 are live at most.
fn two_sizes(folder: &Folder) -> String {
    let blocks = |ids: std::ops::Range<u64>, size: u64| {
        let allocated = ids.clone().map(move |id| format!("a,{id},{size},0\n"));
        allocated.chain(ids.map(|id| format!("r,{id}\nf,{id}\n")))
    };
    folder.file("two.csv", blocks(0..100, SMALL).chain(blocks(100..120, LARGE)).collect::<String>().as_bytes())
}

/// The cells of a strategy's row.
fn row(out: &str, strategy: &str) -> Vec<String> {
    let line = out.lines().find(|line| line.split_whitespace().any(|word| word == strategy));
    let line = line.unwrap_or_else(|| panic!("no {strategy} in {out}"));
    line.split_whitespace().map(str::to_owned).collect()
}

/// Milliseconds as tables have them: from 100 on without digits behind the point.
fn ms(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    if ms < 100.0 { format!("{ms:.1}") } else { format!("{ms:.0}") }
}

#[test]
fn the_table_of_a_replay_shows_what_follows_from_arithmetic() {
    let folder = Folder::new();
    let file = two_sizes(&folder);
    let args = ["replay", &file, "--strategy", "caching"];
    let [small, large] = [SMALL, LARGE].map(|size| Profile::H200.cost(Call::Malloc, size));
    let time = 100 * small + 20 * large;
    assert!(time > 2_000_000, "milliseconds, so that a tenth is another figure");
    let out = stdout(&args, 0);
    let cells = row(&out, "caching");
    let expected = ["two", "caching", "100.00", "130.00", "76.92%", "120", &ms(time), "120", &ms(large)];
    assert_eq!(cells[..9], expected, "{out}");
    let line = lines(&[&args[..], &["--json"]].concat(), 0).remove(0);
    for (key, value) in [
        ("ops", 240),
        ("allocations", 120),
        ("peak_live", 100 * GIB),
        ("peak_reserved", 130 * GIB),
        ("stalls", 120),
        ("cpu_syncs", 0),
    ] {
        assert_eq!(line[key], value, "{key}");
    }
    assert_eq!(line["utilization"], 0.769231);
    assert_eq!(line["driver_calls"]["malloc"], 120);
    let us = |key: &str| line[key].as_f64().unwrap();
    assert!((us("driver_time_us") - time as f64 / 1e3).abs() < 0.1, "{line}");
    assert!((us("worst_stall_us") - large as f64 / 1e3).abs() < 0.1, "{line}");
}

/// One block, of which nothing is lost, beside the two sizes: 110 of 140 GiB, and the worst is that of the two sizes.
#[test]
fn the_sums_below_the_table_are_those_of_its_rows() {
    let folder = Folder::new();
    let one = folder.file("one.csv", format!("a,1,{},0\n", 10 * GIB).as_bytes());
    let out = stdout(&["replay", &two_sizes(&folder), &one, "--strategy", "caching"], 0);
    has(&out, &["caching    uses 78.6% of what it reserves, 76.9% at worst (two)"]);
    let out = stdout(&["replay", &two_sizes(&folder), &one, "--strategy", "caching", "--passes", "2"], 0);
    has(&out, &["caching    uses 78.6% of what it reserves in first passes, 76.9% at worst (two)"]);
}

/// A second pass finds the segments of both sizes there: it makes no call.
#[test]
fn a_row_of_a_pass_is_of_that_pass() {
    let folder = Folder::new();
    let out = stdout(&["replay", &two_sizes(&folder), "--strategy", "caching", "--passes", "2"], 0);
    let second = out.lines().find(|line| line.split_whitespace().next() == Some("2"));
    let cells: Vec<_> = second.unwrap_or_else(|| panic!("no second pass in {out}")).split_whitespace().collect();
    assert_eq!(cells[..8], ["2", "100.00", "130.00", "76.92%", "0", "0.0", "0", "0.0"], "{out}");
}

/// Where memory is short, native gives back the segments that are free: the live bytes suffice.
#[test]
fn the_table_of_the_smallest_device_shows_what_follows_from_arithmetic() {
    let folder = Folder::new();
    let out = stdout(&["fit", &two_sizes(&folder), "--strategy", "caching"], 0);
    let cells = row(&out, "caching");
    assert_eq!(cells[..6], ["two", "caching", "100.00", "100.00", "+0.0%", "130.00"], "{out}");
}

/// Everything grows with the step: 139.8 of 100 GiB.
#[test]
fn the_table_of_whatif_shows_what_follows_from_arithmetic() {
    let folder = Folder::new();
    let out = stdout(&["whatif", &two_sizes(&folder), "--strategy", "caching", "--device", "sim:h200"], 0);
    let cells = row(&out, "caching");
    assert_eq!(cells[..6], ["two", "caching", "100.00", "130.00", "76.92%", "x1.39"], "{out}");
}
