//! `docs/options.md` is what the code says: every option, its field, default and documentation, and the strategies that heed it.
//!
//! `SEAMALLOC_WRITE_OPTIONS=1 cargo test --test repository options_page` writes the page anew.

mod docs;
mod effects;
mod rows;

use crate::random::Random;
use crate::simulated;
use docs::{Source, text_of_lines};
use rows::{FIELDS, Field, Row};
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

Made of the code by `SEAMALLOC_WRITE_OPTIONS=1 cargo test --test repository options_page`; a test fails if the page is stale. Each
description is the documentation of the option's field in Rust.

**How they are given.** As text, `name:value,name:value`, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`: in `SEAMALLOC_CONF`, to
`seamalloc.enable(name=value)`, to `seam_create` in C, after `--conf` on the command line. In Rust as fields of `Config`, whose sizes are
bytes, or as the same text to `Config::parse`. Of an option that is given twice the last value counts. `None`: the option is not given. An
unknown name is an error that names the nearest option.

**Which to touch.** Mostly none.

| you see | give |
|---|---|
| RDMA, NCCL or a disk reaches its memory | [`split:off`](#stitching-and-streams) |
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

/// The sections in their order.
const SECTIONS: [&str; 10] = [
    "Which allocator",
    "How much may be held",
    "Stitching and streams",
    "PyTorch's own",
    "Guard mode",
    "Lending between processes",
    "The last operations",
    "GMLake's",
    "Classic strategies",
    "Flags of Paddle",
];

fn rows() -> impl Iterator<Item = &'static Row> {
    FIELDS.iter().flat_map(|field| field.rows)
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
            let texts = docs::strategies();
            assert_eq!(texts.len(), StrategyKind::ALL.len(), "a strategy has no text");
            StrategyKind::ALL.into_iter().map(|kind| kind.to_string()).zip(texts).collect()
        }
        "sharing" => of("StreamSharing", StreamSharing::ALL.map(StreamSharing::name).to_vec()),
        "split" => of("Split", Split::ALL.map(Split::name).to_vec()),
        _ => Vec::new(),
    }
}

/// The sentences of a field, without the name and unit that some begin with.
fn meaning(field: &Field) -> String {
    let text = text_of_lines(field.doc);
    let named = format!("`{}`", field.rows[0].name);
    let text = text.strip_prefix(&named).unwrap_or(&text);
    let text = text.strip_prefix(", in bytes").unwrap_or(text);
    text.strip_prefix(": ").unwrap_or(text).to_owned()
}

fn section(title: &str, source: &Source, page: &mut String) {
    let fields: Vec<&Field> = FIELDS.iter().filter(|field| field.title == title && !field.rows.is_empty()).collect();
    write!(page, "\n## {title}\n").unwrap();
    if !fields[0].introduction.is_empty() {
        writeln!(page, "{}\n", wrap(fields[0].introduction, "")).unwrap();
    }
    let has_when = fields.iter().flat_map(|field| field.rows).any(|row| !row.when.is_empty());
    let (head, line) = if has_when { (" when to touch it |", "---|") } else { ("", "") };
    writeln!(page, "| option | field in Rust | value | default | strategies |{head}\n|---|---|---|---|---|{line}")
        .unwrap();
    for field in &fields {
        let place = if field.place == "whole" { String::new() } else { format!("{}.", field.place) };
        for (at, row) in field.rows.iter().enumerate() {
            let own = if at == 0 { format!("`{place}{}`", field.name) } else { "–".to_owned() };
            let strategies = strategies(row);
            let cells = [&format!("`{}`", row.name), &own, row.typed, row.default, &strategies, row.when];
            writeln!(page, "| {} |", cells[..if has_when { 6 } else { 5 }].join(" | ")).unwrap();
        }
    }
    page.push('\n');
    for field in fields {
        let option = field.rows[0].name;
        writeln!(page, "- {}", wrap(&format!("`{option}`: {}", meaning(field)), "  ")).unwrap();
        for (value, text) in values(&field.rows[0], source) {
            writeln!(page, "  - {}", wrap(&format!("`{value}`: {text}"), "    ")).unwrap();
        }
    }
}

fn page() -> String {
    let source = Source::read();
    let mut page = HEAD.to_owned();
    SECTIONS.iter().for_each(|title| section(title, &source, &mut page));
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

/// Each option of the library is one row in a section of the page, and each field has an option.
#[test]
fn every_option_and_every_field_has_a_row() {
    let told: Vec<_> = rows().map(|row| row.name).collect();
    assert_eq!(told, Config::option_names().collect::<Vec<_>>());
    assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), told.len(), "an option has two rows");
    let guard = rows().find(|row| row.name == "guard").unwrap();
    for Field { title, owner, name, rows, .. } in FIELDS {
        assert!(SECTIONS.contains(title), "{owner}::{name}: the page has no section {title}");
        // `strategy` says by itself that it was named.
        let is_part = *owner == "Config" && ["classic", "paddle", "strategy_named"].contains(name);
        // The values of `guard`, which its row names.
        let is_value = *owner == "GuardOptions" && guard.typed.contains(name);
        assert!(!rows.is_empty() || is_part || is_value, "{owner}::{name} is no row's");
    }
}

/// The value that is typed as the default is the default, and the example is another value.
#[test]
fn defaults_are_typed_as_they_are_told() {
    for row in rows() {
        let text = format!("{}:{}", row.name, row.default);
        let read = Config::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(Config { strategy_named: false, ..read }, Config::default(), "{text}");
        assert_ne!(Config::parse(&typed(row)).unwrap(), Config::default(), "{}", row.name);
    }
}

/// Each option alone, and all at once.
#[test]
fn every_option_is_printed_and_read_back() {
    // A segment as large as its example excludes the example of `max_split_size_mb`.
    let examples = rows().filter(|row| row.name != "large_segment_size_mb").map(typed);
    let all = examples.collect::<Vec<_>>().join(",");
    for text in rows().map(typed).chain([all, String::new()]) {
        let config = Config::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let printed = config.to_string();
        assert_eq!(Config::parse(&printed).as_ref(), Ok(&config), "{text}: {printed}");
        assert_eq!(printed.is_empty(), text.is_empty(), "{text}: {printed}");
    }
}

/// The row's example, with what it needs beside it.
fn typed(row: &Row) -> String {
    format!("{}{}:{}", row.beside, row.name, row.example)
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
                && what_happens(kind, row.beside) != what_happens(kind, &typed(row))
            {
                heeded.push(format!("{kind}: {}", typed(row)));
            }
        }
    }
    assert!(heeded.is_empty(), "the page says that these do not matter: {heeded:?}");
}

/// The strategies that are named do something else with the example, wherever this run is one that can show it.
#[test]
fn the_strategies_that_are_named_heed_it() {
    // What shows only while the GPU is behind, after seconds without a request, or under a fraction; and
    // where this run never comes.
    let unseen = ["wait_ms", "idle_release_s", "garbage_collection_threshold", "max_views", "split", "backup_cache"];
    let is_seen = |row: &&Row| {
        let kinds = effects::heeding(row);
        let differs = |kind: &StrategyKind| what_happens(*kind, row.beside) != what_happens(*kind, &typed(row));
        kinds == StrategyKind::ALL || kinds.iter().any(differs)
    };
    let idle: Vec<_> =
        rows().filter(|row| !unseen.contains(&row.name)).filter(|row| !is_seen(row)).map(typed).collect();
    assert!(idle.is_empty(), "these change nothing: {idle:?}");
}
