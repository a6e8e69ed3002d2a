//! The cells of tables: each is what the line of JSON of the same run says, to the digits that it shows. `known.rs` has values
//! that follow from arithmetic, in which a mistake of both would show.

use super::{Folder, has, lines, stdout};
use serde_json::Value;

const GIB: f64 = (1_u64 << 30) as f64;

/// A column of figures: its value in a line of JSON, and the digits behind the point that its cells have. `None`: its cells are
/// empty.
type Figure = fn(&Value) -> Option<(f64, i32)>;

fn number(line: &Value, key: &str) -> f64 {
    line[key].as_f64().unwrap_or_else(|| panic!("no {key} in {line}"))
}

fn gib(line: &Value, key: &str) -> Option<(f64, i32)> {
    Some((number(line, key) / GIB, 2))
}

fn percent(line: &Value, key: &str) -> Option<(f64, i32)> {
    Some((number(line, key) * 100.0, 2))
}

/// From 100 ms on without digits behind the point.
fn ms(line: &Value, key: &str) -> Option<(f64, i32)> {
    let ms = number(line, key) / 1e3;
    Some((ms, i32::from(ms < 99.95)))
}

fn whole(line: &Value, key: &str) -> Option<(f64, i32)> {
    Some((number(line, key), 0))
}

fn sum_of_calls(line: &Value) -> Option<(f64, i32)> {
    Some((line["driver_calls"].as_object().unwrap().values().map(|count| count.as_f64().unwrap()).sum(), 0))
}

/// The figures that `replay` shows.
const PASS: &[Figure] = &[
    |line| gib(line, "peak_live"),
    |line| gib(line, "peak_reserved"),
    |line| percent(line, "utilization"),
    sum_of_calls,
    |line| ms(line, "driver_time_us"),
    |line| whole(line, "stalls"),
    |line| ms(line, "worst_stall_us"),
];
/// The five figures that `stress` shows.
const STRESS: &[Figure] = &[
    |line| gib(line, "peak_live"),
    |line| gib(line, "peak_reserved"),
    |line| percent(line, "utilization"),
    |line| ms(line, "driver_time_us"),
    |line| ms(line, "worst_stall_us"),
];
const FIT: &[Figure] = &[
    |line| gib(line, "peak_live"),
    |line| gib(line, "capacity"),
    |line| Some((number(line, "overhead") * 100.0, 1)),
    |line| gib(line, "peak_reserved"),
    |line| ms(line, "driver_time_us_first"),
    |line| ms(line, "driver_time_us_last"),
    |line| whole(line, "cpu_syncs_last"),
    |line| whole(line, "tries"),
];
const CLIFF: &[Figure] = &[
    |line| gib(line, "capacity"),
    |line| gib(line, "peak_reserved"),
    |line| ms(line, "driver_time_us_first"),
    |line| ms(line, "driver_time_us_last"),
    |line| whole(line, "cpu_syncs_last"),
    |line| ms(line, "worst_stall_us_last"),
];
const WHATIF: &[Figure] = &[
    |line| gib(line, "peak_live"),
    |line| gib(line, "peak_reserved"),
    |line| percent(line, "utilization"),
    |line| Some((number(line, "largest_step"), if number(line, "largest_step") < 8.0 { 2 } else { 0 })),
    |line| whole(line, "tries"),
];
const CHUNKS: &[Figure] = &[
    |line| gib(line, "peak_live"),
    |line| percent(line, "utilization_first"),
    |line| percent(line, "utilization_third"),
    |line| ms(line, "driver_time_us_first"),
    |line| ms(line, "driver_time_us_third"),
    |line| Some((number(line, "driver_us_per_gib") / 1e3, 2)),
    |line| ms(line, "worst_stall_us"),
];
const LAG: &[Figure] = &[
    |line| whole(line, "lag"),
    |line| percent(line, "utilization_first"),
    |line| percent(line, "utilization_third"),
    |line| whole(line, "stream_waits_first"),
    |line| whole(line, "stream_waits_third"),
    |line| line["wait_age_ops_mean_third"].as_f64().map(|age| (age, 0)),
    |line| ms(line, "driver_time_us_first"),
    |line| ms(line, "driver_time_us_third"),
    |line| ms(line, "worst_stall_us"),
];

/// The rows of all tables, word by word.
fn rows(out: &str) -> Vec<Vec<&str>> {
    let mut rows = Vec::new();
    let mut inside = false;
    for line in out.lines() {
        if line.starts_with('─') {
            inside = true;
        } else if line.trim().is_empty() {
            inside = false;
        } else if inside {
            rows.push(line.split_whitespace().collect());
        }
    }
    rows
}

/// Runs a command with and without `--json`, and holds each cell of `figures` against the line, with so many more behind them.
/// Returns the cells before the figures, and those behind them.
#[track_caller]
fn agree(args: &[&str], figures: &[Figure], behind: usize) -> Vec<(Vec<String>, Vec<String>, Value)> {
    let (out, lines) = (stdout(args, 0), lines(&[args, &["--json"]].concat(), 0));
    let rows = rows(&out);
    assert_eq!(rows.len(), lines.len(), "{out}");
    let mut others = Vec::new();
    for (row, line) in rows.into_iter().zip(lines) {
        let expected: Vec<_> = figures.iter().filter_map(|figure| figure(&line)).collect();
        let before = row.len().checked_sub(expected.len() + behind).unwrap_or_else(|| panic!("{row:?} in {out}"));
        let (before, cells) = row.split_at(before);
        for ((value, digits), cell) in expected.iter().zip(cells) {
            let shown = cell.trim_start_matches(['+', 'x']).trim_end_matches(['%', '+']);
            let behind_point = shown.split_once('.').map_or(0, |(_, digits)| digits.len());
            assert_eq!(behind_point as i32, *digits, "{cell}, of {value}: {row:?}");
            let shown: f64 = shown.parse().unwrap_or_else(|_| panic!("{cell} is no figure: {row:?} in {out}"));
            // Half a unit of the last digit, and what the line itself is rounded by.
            let most = 0.5 * 10f64.powi(-digits) + 1e-4;
            assert!((shown - value).abs() <= most, "{cell} is not {value}: {row:?} of {line}");
        }
        let text = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        others.push((text(before), text(&cells[expected.len()..]), line));
    }
    others
}

/// Checks the cells that say which run it was: the trace and the strategy, each where it is not that of the row above.
#[track_caller]
fn named(rows: &[(Vec<String>, Vec<String>, Value)], keys: &[&str]) {
    let mut above = vec![Value::Null; keys.len()];
    for (before, _, line) in rows {
        let names: Vec<_> = keys.iter().map(|key| line[key].clone()).collect();
        // A cell is left empty as long as those before it are too.
        let same = names.iter().zip(&above).take_while(|(name, above)| name == above).count();
        let shown: Vec<_> =
            names[same..].iter().map(|name| name.as_str().map_or(name.to_string(), str::to_owned)).collect();
        assert_eq!(*before, shown, "{line}");
        above = names;
    }
}

#[test]
fn stress() {
    // A recorded job, a generated workload of several streams, and one that stitches: three tables.
    let args = ["stress", "moe-R", "prefetch", "comb", "--steps", "2"];
    let rows = agree(&args, STRESS, 0);
    assert_eq!(rows.len(), 12);
    named(&rows, &["trace", "strategy"]);
    for (_, _, line) in &rows {
        let ns = number(line, "ns_per_op");
        assert!(ns > 0.0, "{line}");
        assert_ne!(
            (&line["stalls"], &line["worst_stall_us"]),
            (&0.into(), &0.0.into()),
            "nothing to be seen in {line}"
        );
    }
}

#[test]
fn passes_of_a_replay() {
    let rows = agree(&["replay", "prefetch", "--steps", "2", "--passes", "3", "--lag", "40"], PASS, 0);
    assert_eq!(rows.len(), 12);
    named(&rows, &["trace", "strategy", "pass"]);
}

#[test]
fn a_pass_that_runs_out_of_memory() {
    let args = ["replay", "comb", "--steps", "1", "--device", "sim:h200,capacity=1GiB"];
    let out = stdout(&args, 3);
    let all = lines(&[&args[..], &["--json"]].concat(), 3);
    let rows = rows(&out);
    for (row, line) in rows.iter().zip(&all) {
        assert_eq!(line["oom"], row.contains(&"OOM"), "{out}");
    }
    assert!(all.iter().any(|line| line["oom"] == true), "{out}");
}

#[test]
fn fit() {
    let rows = agree(&["fit", "comb", "prefetch", "--steps", "1"], FIT, 0);
    assert_eq!(rows.len(), 8);
    named(&rows, &["trace", "strategy"]);
}

#[test]
fn cliff() {
    let rows = agree(&["fit", "comb", "--steps", "1", "--times-live", "2,3"], CLIFF, 0);
    assert_eq!(rows.len(), 8);
}

/// Small jobs, since each is replayed several times: the holes of one cannot be joined by every strategy, and the steps of
/// the other fit more than eight times.
#[test]
fn whatif() {
    let folder = Folder::new();
    let allocated = (1..=20).map(|id| format!("a,{id},9437184,0\n"));
    let freed = (1..=20).step_by(2).map(|id| format!("r,{id}\nf,{id}\n"));
    let step = ["a,21,62914560,0\nr,21\nf,21\n".to_owned()];
    let holes = folder.file("holes.csv", allocated.chain(freed).chain(step).collect::<String>().as_bytes());
    let small = folder.file("small.csv", b"a,1,1048576,0\na,2,3145728,0\nr,2\nf,2\n");
    let rows = agree(&["whatif", &holes, &small, "--device", "sim:h200,capacity=400MiB"], WHATIF, 0);
    assert_eq!(rows.len(), 8);
    named(&rows, &["trace", "strategy"]);
    let steps: Vec<_> = rows.iter().map(|(_, _, line)| number(line, "largest_step")).collect();
    assert!(steps[..4].iter().all(|step| *step < 8.0) && steps[4..].iter().all(|step| *step == 8.0), "{steps:?}");
}

#[test]
fn study_of_chunks() {
    let mut rows = agree(&["study", "chunks", "comb", "prefetch", "--steps", "1", "--sizes", "4,32"], CHUNKS, 0);
    assert_eq!(rows.len(), 6);
    for (_, _, line) in &mut rows {
        if line["chunk_size_mb"].is_null() {
            line["chunk_size_mb"] = "default".into();
        }
    }
    named(&rows, &["trace", "chunk_size_mb"]);
}

#[test]
fn study_of_lag() {
    let rows = agree(&["study", "lag", "prefetch", "--steps", "2", "--lags", "50,0"], LAG, 0);
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().any(|(_, _, line)| line["wait_age_ops_mean_third"].is_number()), "an age is seen");
    named(&rows, &["trace", "sharing"]);
}

#[test]
fn compare() {
    let folder = Folder::new();
    let base =
        folder.file("base.jsonl", b"{\"trace\":\"a\",\"pass\":1,\"ops\":7,\"stalls\":3}\n{\"trace\":\"gone\"}\n");
    let new = folder.file("new.jsonl", b"{\"trace\":\"a\",\"pass\":1,\"ops\":8,\"stalls\":4}\n");
    let out = stdout(&["compare", &base, &new], 1);
    let found = lines(&["compare", &base, &new, "--json"], 1);
    assert_eq!(found.len(), 3);
    let expected = [
        &["a,", "pass", "1", "ops", "7", "8"][..],
        &["stalls", "3", "4"],
        &["gone", "(the", "row)", "there", "missing"],
    ];
    assert_eq!(rows(&out), expected, "{out}");
    has(&out, &["run", "base", "new"]);
}
