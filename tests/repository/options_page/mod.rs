//! `docs/options.md` is what the code says: every option, its field, default and documentation, and the strategies that heed it.
//!
//! `SEAMALLOC_WRITE_OPTIONS=1 cargo test --test repository options_page` writes the page anew.

mod docs;
mod effects;
mod flags;
mod row;
mod rows;

use crate::random::Random;
use crate::simulated;
use docs::Source;
use row::{Group, Row};
use rows::GROUPS;
use seamalloc::driver::{Driver, StreamId};
use seamalloc::{Config, Error, Split, StrategyKind, StreamSharing};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const WRITE: &str = "SEAMALLOC_WRITE_OPTIONS";
/// As wide as lines of the documentation are.
const WIDTH: usize = 140;
const HEAD: &str = "\
# Options

Made of the code by `SEAMALLOC_WRITE_OPTIONS=1 cargo test --test repository options_page`; a test fails where it is stale. What an option means is the
documentation of its field in Rust.

**How they are given.** As text, `name:value,name:value`, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`: in `SEAMALLOC_CONF`, to
`seamalloc.enable(name=value)`, to `seam_create` in C, after `--conf` on the command line. In Rust as fields of `Config`, or
`Config::parse`, where sizes are bytes. Of an option that is given twice the last counts. `None` is an option that is not given. A name that
no option has is an error that names the nearest one.

**Which to touch.** Mostly none.

| you see | give |
|---|---|
| the job nearly fits, and one thread does the work | [`split:last_resort`](#stitching-and-streams) |
| the job does not fit, and may be slower | [`spill:host=64GiB`](#stitching-and-streams) |
| others need memory on the same GPU, as much as they like | [`memory_limit`](#how-much-may-be-held) |
| others need some memory on the same GPU, now and then | [`headroom`](#how-much-may-be-held) |
| other processes of yours on the same GPU need memory by turns | [`broker:auto`](#lending-between-processes) |
| a server holds memory while it idles | [`idle_release_s`](#stitching-and-streams) |
| a request should be refused rather than wait | [`wait_ms`](#stitching-and-streams) |
| the driver has no virtual memory | [`strategy:caching`](#which-allocator) |
| wrong results, illegal addresses | [`guard:on`](#guard-mode) |
| an out-of-memory report names an option | that option: the advice is given only where it alone would have met the request |
";

fn rows() -> impl Iterator<Item = &'static Row> {
    GROUPS.iter().flat_map(|group| group.rows)
}

/// The struct and the field that a row names.
fn owner(row: &Row) -> (&'static str, &'static str) {
    match row.field.split_once('.') {
        Some(("guard", field)) => ("GuardOptions", field),
        Some(("classic", field)) => ("ClassicOptions", field),
        Some(("paddle", field)) => ("PaddleFlags", field),
        Some(_) | None => ("Config", row.field),
    }
}

fn strategies(row: &Row) -> String {
    let kinds = effects::heeding(row);
    if kinds == StrategyKind::ALL {
        return "all".to_owned();
    }
    if kinds == StrategyKind::PADDLE {
        return "`paddle-…`".to_owned();
    }
    kinds.iter().map(|kind| format!("`{kind}`")).collect::<Vec<_>>().join(", ")
}

/// The text in lines that are as wide as lines may be; those after the first begin with `indent`.
fn wrap(text: &str, indent: &str) -> String {
    let mut out = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            out.push('\n');
            out.push_str(indent);
            width = indent.len();
        } else if width > 0 {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += length;
    }
    out
}

/// The names of the values of an option, and what the source says of each.
fn values(row: &Row, source: &Source) -> Vec<(String, String)> {
    let of = |owner: &str, names: Vec<&str>| {
        let texts = source.variants(owner);
        assert_eq!(texts.len(), names.len(), "{owner} has other values than `ALL`");
        names.into_iter().map(str::to_owned).zip(texts).collect()
    };
    match row.name {
        "strategy" => {
            let mut listed: Vec<(String, String)> =
                StrategyKind::ALL.map(|kind| (kind.to_string(), String::new())).to_vec();
            for ((_, text), found) in listed.iter_mut().zip(source.variants("StrategyKind")) {
                *text = found;
            }
            listed
        }
        "sharing" => of("StreamSharing", StreamSharing::ALL.map(StreamSharing::name).to_vec()),
        "split" => of("Split", Split::ALL.map(Split::name).to_vec()),
        _ => Vec::new(),
    }
}

/// The sentences of a field, without the name and unit that some begin with.
fn meaning(row: &Row, source: &Source) -> String {
    let (owner, field) = owner(row);
    let text = source.of_field(owner, field);
    let named = format!("`{}`", row.name);
    let text = text.strip_prefix(&named).unwrap_or(&text);
    let text = text.strip_prefix(", in bytes").unwrap_or(text);
    text.strip_prefix(": ").unwrap_or(text).to_owned()
}

fn group(group: &Group, source: &Source, page: &mut String) {
    write!(page, "\n## {}\n", group.title).unwrap();
    if !group.about.is_empty() {
        writeln!(page, "{}\n", wrap(group.about, "")).unwrap();
    }
    let has_when = group.rows.iter().any(|row| !row.when.is_empty());
    let (title, line) = if has_when { (" when to touch it |", "---|") } else { ("", "") };
    writeln!(page, "| option | field in Rust | value | default | strategies |{title}\n|---|---|---|---|---|{line}")
        .unwrap();
    let default = Config::default();
    for row in group.rows {
        let field = if row.field.is_empty() { "–".to_owned() } else { format!("`{}`", row.field) };
        let cells = [
            format!("`{}`", row.name),
            field,
            row.value.to_owned(),
            (row.default)(&default),
            strategies(row),
            row.when.to_owned(),
        ];
        let cells = if has_when { &cells[..] } else { &cells[..5] };
        writeln!(page, "| {} |", cells.join(" | ")).unwrap();
    }
    page.push('\n');
    let mut told = BTreeSet::new();
    for row in group.rows.iter().filter(|row| !row.field.is_empty()) {
        if !told.insert(row.field) {
            continue;
        }
        writeln!(page, "- {}", wrap(&format!("`{}`: {}", row.name, meaning(row, source)), "  ")).unwrap();
        for (value, text) in values(row, source) {
            writeln!(page, "  - {}", wrap(&format!("`{value}`: {text}"), "    ")).unwrap();
        }
    }
}

fn page() -> String {
    let source = Source::read();
    let mut page = HEAD.to_owned();
    GROUPS.iter().for_each(|one| group(one, &source, &mut page));
    let idle: Vec<_> = source.strings("WITHOUT_EFFECT").iter().map(|name| format!("`{name}`")).collect();
    let idle = format!("{}: options of PyTorch that are taken, with a warning, and change nothing.", idle.join(", "));
    page += &effects::section();
    write!(page, "\n## Without effect\n{}\n", wrap(&idle, "")).unwrap();
    page
}

#[test]
fn the_page_is_the_one_that_is_generated() {
    let generated = page();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/options.md");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let differing = written.lines().zip(generated.lines()).position(|(old, new)| old != new);
    assert!(
        written == generated,
        "docs/options.md is not what the code says (first at line {}): {WRITE}=1 cargo test --test repository options_page",
        differing.map_or(0, |line| line + 1)
    );
}

#[test]
fn every_option_and_every_field_has_a_row() {
    let known: BTreeSet<_> = Config::option_names().collect();
    let told: Vec<_> = rows().map(|row| row.name).collect();
    assert_eq!(told.iter().copied().collect::<BTreeSet<_>>(), known);
    assert_eq!(told.len(), known.len(), "an option has two rows");
    let source = Source::read();
    for struct_name in ["Config", "GuardOptions", "ClassicOptions", "PaddleFlags"] {
        for field in source.fields(struct_name) {
            let is_told = rows().any(|row| owner(row) == (struct_name, &field));
            // `strategy` says by itself that it was named.
            let is_part = struct_name == "Config" && ["classic", "paddle", "strategy_named"].contains(&field.as_str());
            // The values of `guard`, which its row names.
            let is_value =
                struct_name == "GuardOptions" && rows().any(|row| row.name == "guard" && row.value.contains(&field));
            assert!(is_told || is_part || is_value, "{struct_name}::{field} is no row's");
        }
    }
}

/// What is typed as the default is the default, and the example is another value.
#[test]
fn defaults_are_typed_as_they_are_told() {
    for row in rows() {
        let default = (row.default)(&Config::default());
        let read =
            Config::parse(&format!("{}:{default}", row.name)).unwrap_or_else(|error| panic!("{}: {error}", row.name));
        let read = Config { strategy_named: false, ..read };
        assert_eq!(read, Config::default(), "{}:{default}", row.name);
        assert_ne!(Config::parse(&typed(row)).unwrap(), Config::default(), "{}", row.name);
    }
}

/// What an option needs beside it to have an effect.
fn beside(row: &Row) -> &'static str {
    match row.name {
        "guard_sample" | "guard_min_size" | "guard_quarantine_mb" => "guard:page,",
        "max_non_split_rounding_mb" => "max_split_size_mb:20,",
        "garbage_collection_threshold" => "per_process_memory_fraction:0.9,",
        "broker_guarantee" | "broker_weight" | "broker_wait_ms" => "broker:auto,",
        "FLAGS_small_pool_auto_growth_chunk_size_in_mb" | "FLAGS_large_pool_auto_growth_chunk_size_in_mb" => {
            "FLAGS_small_pool_size_in_mb:1,"
        }
        _ => "",
    }
}

/// The row's example, with what it needs beside it.
fn typed(row: &Row) -> String {
    format!("{}{}:{}", beside(row), row.name, row.example)
}

/// All that shows what an allocator did: the driver's calls, its figures, and where its memory is.
fn what_happens(kind: StrategyKind, options: &str) -> String {
    let config = Config::with_strategy(kind).overlaid(options).unwrap();
    let (gpu, allocator) = simulated::on("sim:h200,capacity=400MiB", config);
    let mut random = Random(11);
    let mut live: Vec<u64> = Vec::new();
    let mut log = String::new();
    for _ in 0..1200 {
        let stream = StreamId(random.below(3));
        if live.len() > 24 || (!live.is_empty() && random.below(3) == 0) {
            let address = live.swap_remove(random.below(live.len() as u64) as usize);
            if random.below(4) == 0 {
                allocator.record_stream(address, StreamId(random.below(3))).unwrap();
            }
            allocator.free(address).unwrap();
            continue;
        }
        let most = 1 << (9 + random.below(18));
        let size = 1 + random.below(most);
        match allocator.allocate(size, stream) {
            Ok(address) => live.push(address),
            Err(Error::OutOfMemory(_)) => log.push('!'),
            Err(error) => panic!("{kind}, {options}: {error}"),
        }
        write!(log, "{} ", allocator.stats().reserved_bytes.all.current).unwrap();
    }
    let mut stats = allocator.stats();
    // The setting itself, and how much is above it, is told with every strategy.
    stats.max_split_size = None;
    (stats.oversize_allocations, stats.oversize_segments) = Default::default();
    format!("{log}{:?}{stats:?}", gpu.call_stats())
}

/// The page names the strategies that heed an option: all others do the same with it as without.
#[test]
fn other_strategies_do_not_heed_an_option() {
    let mut heeded = Vec::new();
    for kind in StrategyKind::ALL {
        let usual = what_happens(kind, "");
        assert!(usual == what_happens(kind, ""), "{kind} does not do the same twice");
        for row in rows() {
            if !effects::heeding(row).contains(&kind)
                && what_happens(kind, beside(row)) != what_happens(kind, &typed(row))
            {
                heeded.push(format!("{kind}: {}", typed(row)));
            }
        }
    }
    assert!(heeded.is_empty(), "the page says that these do not matter: {heeded:?}");
}

/// Those that are named do something else with the example, wherever this run is one that can show it.
#[test]
fn the_strategies_that_are_named_heed_it() {
    // What shows only while the GPU is behind, after seconds without a request, or under a fraction; and
    // where this run never comes.
    let unseen = ["wait_ms", "idle_release_s", "garbage_collection_threshold", "max_views", "split", "backup_cache"];
    let is_seen = |row: &&Row| {
        let kinds = effects::heeding(row);
        let differs = |kind: &StrategyKind| what_happens(*kind, beside(row)) != what_happens(*kind, &typed(row));
        kinds == StrategyKind::ALL || kinds.iter().any(differs)
    };
    let idle: Vec<_> =
        rows().filter(|row| !unseen.contains(&row.name)).filter(|row| !is_seen(row)).map(typed).collect();
    assert!(idle.is_empty(), "these change nothing: {idle:?}");
}
