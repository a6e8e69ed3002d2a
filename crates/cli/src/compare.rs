//! `seamalloc compare`: the differences between two files of JSON lines. Times are left out; with `--times`, only the
//! times of this machine's clock are left out.
//!
//! Owns: the pairing of rows, and the differences of two rows. The columns define which keys identify the run and which
//! are times.

use crate::args::{Color, CompareArgs, STDIN};
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::plan::PlanReport;
use crate::study;
use crate::table::Table;
use flate2::read::MultiGzDecoder;
use seamalloc_evict::EvictReport;
use seamalloc_order::OrderReport;
use seamalloc_trace::cliff::CliffReport;
use seamalloc_trace::columns::{Cell, Column, Kind, line};
use seamalloc_trace::fit::FitReport;
use seamalloc_trace::pinned::PinnedReport;
use seamalloc_trace::replay::PassReport;
use seamalloc_trace::timeline::TimelineReport;
use seamalloc_trace::whatif::WhatIf;
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Characters of a value that a table shows.
const SHOWN: usize = 40;
/// The number of characters shown before the first one that differs.
const BEFORE: usize = 10;

/// A line of JSON.
type Row = Map<String, Value>;

/// A key in which two rows differ, or a row that is missing on one side.
struct Difference {
    run: Row,
    /// The key in the row, such as `driver_calls.map`; `None` for the whole row.
    key: Option<String>,
    base: Option<Value>,
    new: Option<Value>,
}

type Figure = Column<Difference>;

const COLUMNS: &[Figure] = &[
    Figure::run("run", |found| found.run.clone().into()).text("run", |found| in_words(&found.run).into()),
    Figure::run("key", |found| found.key.clone().into())
        .text("key", |found| found.key.as_deref().unwrap_or("(the row)").into()),
    Figure::result("missing", |found| match (&found.base, &found.new) {
        (None, _) => "base".into(),
        (_, None) => "new".into(),
        _ => Value::Null,
    }),
    Figure::result("base", |found| found.base.clone().into())
        .text("base", |found| excerpt(found.base.as_ref(), found.new.as_ref())),
    Figure::result("new", |found| found.new.clone().into())
        .text("new", |found| excerpt(found.new.as_ref(), found.base.as_ref())),
];

pub(crate) fn run(args: &CompareArgs, color: Color) -> Result<(), Failure> {
    if args.base == args.new && args.base.as_os_str() == STDIN {
        return Err(Failure::Usage("standard input is one of the two at most; name a file for the other".to_owned()));
    }
    let kinds = Kinds::new();
    let (base, new) = (rows(&args.base)?, rows(&args.new)?);
    let left_out: &[Kind] = if args.times { &[Kind::Clock] } else { &[Kind::Clock, Kind::Time] };
    let compared = compare(&kinds, base, new, args.subset, left_out);
    if args.json {
        let mut lines = compared.differences.iter().map(|found| Value::from(line(COLUMNS, found)).to_string());
        lines.try_for_each(|line| output::print(&line))?;
    } else {
        let mut output = Output::new(color, None)?;
        if compared.differing > 0 {
            let mut table = Table::new(COLUMNS);
            let mut above = None;
            for found in &compared.differences {
                table.add(found, usize::from(above == Some(&found.run)));
                above = Some(&found.run);
            }
            output.table(&table)?;
        } else {
            let left_out = if args.times { "what this machine's clock says" } else { "times" };
            let be = if args.times { "was" } else { "were" };
            let rows =
                if compared.rows == 1 { "1 row agrees".to_owned() } else { format!("{} rows agree", compared.rows) };
            output.text(&format!("{rows}; {left_out} {be} left out."))?;
        }
    }
    if compared.differing > 0 { Err(Failure::Differ(compared.differing, compared.rows)) } else { Ok(()) }
}

/// The kinds of a row's keys.
struct Kinds(HashMap<&'static str, Kind>);

impl Kinds {
    fn new() -> Self {
        fn keys<R>(columns: &'static [Column<R>]) -> impl Iterator<Item = (&'static str, Kind)> {
            columns.iter().map(|column| (column.key, column.kind))
        }
        let reports = keys(PassReport::COLUMNS).chain(keys(FitReport::COLUMNS)).chain(keys(WhatIf::COLUMNS));
        let others = keys(TimelineReport::COLUMNS).chain(keys(PlanReport::COLUMNS)).chain(keys(CliffReport::COLUMNS));
        let others = others.chain(keys(PinnedReport::COLUMNS));
        let others = others.chain(keys(EvictReport::COLUMNS)).chain(keys(OrderReport::COLUMNS));
        Self(reports.chain(others).chain(study::keys()).collect())
    }

    /// Keys that are in no report count as results, so that their differences are not missed.
    fn of(&self, key: &str) -> Kind {
        self.0.get(key).copied().unwrap_or(Kind::Result)
    }

    /// Returns the keys of a row that identify the run.
    fn run(&self, row: &Row) -> Row {
        row.iter()
            .filter(|(key, _)| self.of(key) == Kind::Run)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }
}

/// Returns the rows of a file, or of standard input.
fn rows(path: &Path) -> Result<Vec<Row>, Failure> {
    let text = read(path).map_err(|error| Failure::ReadRows { path: path.to_owned(), error })?;
    let row = |(index, text): (usize, &str)| {
        serde_json::from_str(text).map_err(|error| Failure::NoRow {
            place: format!("{}, line {}", path.display(), index + 1),
            found: format!("not a JSON object ({error})"),
        })
    };
    let rows: Vec<Row> = text.lines().enumerate().map(row).collect::<Result<_, _>>()?;
    // Two empty files have no differences, but a comparison of no rows is an error.
    if rows.is_empty() {
        return Err(Failure::NoRow { place: path.display().to_string(), found: "no rows".to_owned() });
    }
    Ok(rows)
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    if path.as_os_str() == STDIN {
        std::io::stdin().lock().read_to_end(&mut bytes)?;
    } else {
        File::open(path)?.read_to_end(&mut bytes)?;
    }
    if bytes.starts_with(&GZIP) {
        let mut text = String::new();
        MultiGzDecoder::new(bytes.as_slice()).read_to_string(&mut text)?;
        return Ok(text);
    }
    String::from_utf8(bytes).map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))
}

/// The result of a comparison.
struct Compared {
    /// The number of rows, each pair counted once.
    rows: usize,
    /// The number of rows that differ or are missing on one side.
    differing: usize,
    differences: Vec<Difference>,
}

/// Compares the rows of two files. Rows of the same run are paired in their order.
fn compare(kinds: &Kinds, base: Vec<Row>, new: Vec<Row>, subset: bool, left_out: &[Kind]) -> Compared {
    let mut unmatched: HashMap<String, VecDeque<(usize, Row)>> = HashMap::new();
    for (index, row) in new.into_iter().enumerate() {
        unmatched.entry(Value::from(kinds.run(&row)).to_string()).or_default().push_back((index, row));
    }
    let mut compared = Compared { rows: 0, differing: 0, differences: Vec::new() };
    for row in base {
        let run = kinds.run(&row);
        let found = unmatched.get_mut(&Value::from(run.clone()).to_string()).and_then(|rows| rows.pop_front());
        match found {
            Some((_, new)) => compared.add(differences(kinds, &run, &row, &new, left_out)),
            None if subset => {}
            None => compared.add(vec![Difference { run, key: None, base: Some(row.into()), new: None }]),
        }
    }
    let mut left: Vec<_> = unmatched.into_values().flatten().collect();
    left.sort_by_key(|(index, _)| *index);
    for (_, row) in left {
        compared.add(vec![Difference { run: kinds.run(&row), key: None, base: None, new: Some(row.into()) }]);
    }
    compared
}

impl Compared {
    /// Counts a row, and adds its differences.
    fn add(&mut self, mut differences: Vec<Difference>) {
        self.rows += 1;
        self.differing += usize::from(!differences.is_empty());
        self.differences.append(&mut differences);
    }
}

/// Returns the keys in which two rows of a run differ, except keys of the kinds in `left_out`.
fn differences(kinds: &Kinds, run: &Row, base: &Row, new: &Row, left_out: &[Kind]) -> Vec<Difference> {
    let mut found = Vec::new();
    for key in base.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        if !left_out.contains(&kinds.of(key)) {
            walk(key.clone(), base.get(key), new.get(key), &mut |key, base, new| {
                found.push(Difference { run: run.clone(), key: Some(key), base: base.cloned(), new: new.cloned() });
            });
        }
    }
    found
}

/// Calls `differs` for the innermost values under a key that differ.
fn walk(
    key: String,
    base: Option<&Value>,
    new: Option<&Value>,
    differs: &mut impl FnMut(String, Option<&Value>, Option<&Value>),
) {
    match (base, new) {
        _ if base == new => {}
        (Some(Value::Object(base)), Some(Value::Object(new))) => {
            for inner in base.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
                walk(format!("{key}.{inner}"), base.get(inner), new.get(inner), differs);
            }
        }
        (Some(Value::Array(base)), Some(Value::Array(new))) => {
            for index in 0..base.len().max(new.len()) {
                walk(format!("{key}[{index}]"), base.get(index), new.get(index), differs);
            }
        }
        _ => differs(key, base, new),
    }
}

/// Returns a run in words, such as `comb, stitch, sim:h200, pass 2`.
fn in_words(run: &Row) -> String {
    let names = ["study", "trace", "strategy", "device"];
    let named = names.iter().filter_map(|name| run.get(*name));
    let numbered = run.iter().filter(|(key, _)| !names.contains(&key.as_str()));
    let words = named.map(text).chain(numbered.map(|(key, value)| format!("{key} {}", text(value))));
    words.collect::<Vec<_>>().join(", ")
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns a value as a cell. Of a long value, returns the part around the first difference from the other value.
fn excerpt(value: Option<&Value>, other: Option<&Value>) -> Cell {
    let Some(value) = value else { return Cell::Failed("missing".to_owned()) };
    let Some(other) = other else {
        return if value.is_object() { "there".into() } else { cut(&text(value), 0).into() };
    };
    let (value, other) = (text(value), text(other));
    let same = value.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    cut(&value, same.saturating_sub(BEFORE)).into()
}

/// Returns a text or, if it is too long for a table, its characters from number `from` on.
fn cut(text: &str, from: usize) -> String {
    let length = text.chars().count();
    if length <= SHOWN {
        return text.to_owned();
    }
    let shown: String = text.chars().skip(from).take(SHOWN).collect();
    let (before, after) = (if from > 0 { "…" } else { "" }, if from + SHOWN < length { "…" } else { "" });
    format!("{before}{shown}{after}").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_the_same_in_every_report() {
        let kinds = Kinds::new();
        fn all<R>(columns: &'static [Column<R>]) -> Vec<(&'static str, Kind)> {
            columns.iter().map(|column| (column.key, column.kind)).collect()
        }
        let timeline = all(TimelineReport::COLUMNS);
        let others = [
            all(PassReport::COLUMNS),
            all(FitReport::COLUMNS),
            all(CliffReport::COLUMNS),
            all(PinnedReport::COLUMNS),
            all(WhatIf::COLUMNS),
            all(PlanReport::COLUMNS),
            all(EvictReport::COLUMNS),
            all(OrderReport::COLUMNS),
            study::keys().collect(),
        ];
        for keys in others.into_iter().chain([timeline]) {
            for (key, kind) in keys {
                assert_eq!(kinds.of(key), kind, "{key}");
            }
        }
    }

    #[test]
    fn times_are_those_of_the_driver_the_stalls_the_steps_and_this_machine() {
        let times = Kinds::new().0.into_iter().filter(|(_, kind)| matches!(kind, Kind::Time | Kind::Clock));
        let times: BTreeSet<_> = times.map(|(key, _)| key).collect();
        assert_eq!(
            times.into_iter().collect::<Vec<_>>(),
            [
                "bare_step_ns",
                "beside_bare",
                "driver_ns",
                "driver_share",
                "driver_time_us",
                "driver_time_us_all",
                "driver_time_us_first",
                "driver_time_us_last",
                "driver_time_us_third",
                "driver_us_by_call",
                "driver_us_per_gib",
                "effective_waits",
                "held_share",
                "launch_share",
                "layout_seconds",
                "ns_per_op",
                "program_share",
                "recorded_step_ns",
                "seconds",
                "spill_us",
                "stall_histogram",
                "stall_p50_us",
                "stall_p99_us",
                "step_ns",
                "steps_ns",
                "work_share",
                "worst_stall_us",
                "worst_stall_us_last",
            ]
        );
    }

    #[test]
    fn long_values_are_shown_from_where_they_differ() {
        let long = |end: &str| Value::from(format!("{}{end}", "x".repeat(60)));
        let (one, two) = (long("one"), long("two"));
        assert_eq!(excerpt(Some(&one), Some(&two)), "…xxxxxxxxxxone".into());
        assert_eq!(excerpt(Some(&two), Some(&one)), "…xxxxxxxxxxtwo".into());
        assert_eq!(excerpt(Some(&one), None), format!("{}…", "x".repeat(SHOWN)).into());
        assert_eq!(excerpt(None, Some(&one)), Cell::Failed("missing".to_owned()));
    }
}
