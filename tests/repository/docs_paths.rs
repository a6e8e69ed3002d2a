//! The documentation names files, links and functions that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders of the repository by which a code span is known for a path.
const FOLDERS: [&str; 7] = ["src/", "crates/", "ffi/", "tests/", "benches/", "examples/", "docs/"];
/// Pages that say how the code is today. Pages of measurements name the files of their commit.
const TODAY: [&str; 31] = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/design.md",
    "docs/why.md",
    "docs/glossary.md",
    "docs/tuning.md",
    "docs/command.md",
    "docs/figures.md",
    "docs/rust.md",
    "docs/ARCHITECTURE.md",
    "docs/pytorch.md",
    "docs/python-libraries.md",
    "docs/cuda.md",
    "docs/c-api.md",
    "docs/guard.md",
    "docs/sleep.md",
    "docs/spill.md",
    "docs/broker.md",
    "docs/growing.md",
    "docs/layers.md",
    "docs/options.md",
    "docs/peers.md",
    "docs/faq.md",
    "docs/planning.md",
    "docs/ordering.md",
    "docs/eviction.md",
    "docs/report.md",
    "docs/fleet.md",
    "docs/live.md",
    "docs/metrics.md",
    "docs/measurements/README.md",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below a folder whose name has one of these endings.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, endings));
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
    found
}

/// A page without its fenced blocks.
fn prose(page: &Path) -> String {
    let text = fs::read_to_string(page).unwrap();
    text.split("```").step_by(2).collect()
}

fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Targets of `[…](target)`, without anchors.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.map(|target| target.split('#').next().unwrap_or_default()).filter(|target| !target.is_empty())
}

#[test]
fn links_lead_to_files() {
    let mut pages = files(&root().join("docs"), &[".md"]);
    pages.extend(
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "benches/gpu/compare/README.md"]
            .map(|page| root().join(page)),
    );
    let mut broken = Vec::new();
    for page in &pages {
        let text = prose(page);
        for link in links(&text).filter(|link| !link.contains("://")) {
            if !page.parent().unwrap().join(link).exists() {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

/// Returns the anchor that GitHub and mdBook make of a heading: lower case, without marks, `-` for blanks.
fn anchor(heading: &str) -> String {
    let mut text = String::new();
    // Of a link only its words.
    for (index, part) in heading.trim_start_matches('#').trim().split("](").enumerate() {
        let words = if index == 0 { part } else { part.split_once(')').map_or("", |(_, after)| after) };
        text.push_str(words);
    }
    let kept = text.to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn anchors_lead_to_headings() {
    let mut pages = files(&root().join("docs"), &[".md"]);
    pages.extend(["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"].map(|page| root().join(page)));
    let (mut broken, mut looked_at) = (Vec::new(), 0);
    for page in &pages {
        let text = prose(page);
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for (file, wanted) in targets.filter(|link| !link.contains("://")).filter_map(|link| link.split_once('#')) {
            let to = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            if to.extension().is_none_or(|ending| ending != "md") {
                continue;
            }
            looked_at += 1;
            let there = prose(&to);
            if !there.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line) == wanted) {
                broken.push(format!("{}: {file}#{wanted}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links to headings that are not there:\n{}", broken.join("\n"));
    assert!(looked_at > 50, "only {looked_at} links to headings were found");
}

/// The book has every page of the documentation once. In a folder of measurements that is its README.
#[test]
fn every_page_is_in_the_book() {
    let docs = root().join("docs");
    let text = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: Vec<&str> = links(&text).collect();
    let is_page = |page: &PathBuf| {
        let is_measurement = page.strip_prefix(&docs).unwrap().starts_with("measurements");
        !page.ends_with("SUMMARY.md") && (!is_measurement || page.ends_with("README.md"))
    };
    let pages: BTreeSet<PathBuf> = files(&docs, &[".md"]).into_iter().filter(is_page).collect();
    let in_book: BTreeSet<PathBuf> = listed.iter().map(|link| docs.join(link)).collect();
    let missing: Vec<_> = pages.difference(&in_book).collect();
    let unknown: Vec<_> = in_book.difference(&pages).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "docs/SUMMARY.md lacks {missing:?} and has {unknown:?}");
    assert_eq!(listed.len(), in_book.len(), "a page is listed twice");
}

#[test]
fn paths_of_today_exist() {
    let mut pages: Vec<PathBuf> = TODAY.iter().map(|page| root().join(page)).collect();
    pages.extend(files(&root().join("docs/decisions"), &[".md"]));
    let mut missing = Vec::new();
    for page in &pages {
        let text = prose(page);
        let is_path =
            |span: &&str| FOLDERS.iter().any(|folder| span.starts_with(folder)) && !span.contains(['*', '{', ' ', '…']);
        for path in code_spans(&text).filter(is_path) {
            if !root().join(path).exists() {
                missing.push(format!("{}: {path}", page.display()));
            }
        }
    }
    assert!(missing.is_empty(), "paths that are not there:\n{}", missing.join("\n"));
}

/// The words of all source files.
fn words() -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for folder in ["src", "crates", "ffi", "fuzz", "tests", "benches", "examples"] {
        for file in files(&root().join(folder), &[".rs", ".h", ".cpp", ".py", ".toml"]) {
            let text = fs::read_to_string(file).unwrap_or_default();
            words.extend(text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned));
        }
    }
    words
}

#[test]
fn names_in_the_architecture_exist() {
    let words = words();
    let text = prose(&root().join("docs/ARCHITECTURE.md"));
    let is_name = |span: &&str| span.chars().all(|c| c.is_alphanumeric() || "_:".contains(c));
    let unknown: Vec<&str> =
        code_spans(&text).filter(is_name).filter(|name| !name.split("::").all(|part| words.contains(part))).collect();
    assert!(unknown.is_empty(), "names that no source file has: {unknown:?}");
}

/// A row of docs/bugs-of-others.md names a file, and after `::` a function of it.
#[test]
fn tests_for_the_bugs_of_others_exist() {
    let text = prose(&root().join("docs/bugs-of-others.md"));
    let mut named = 0;
    for (path, test) in code_spans(&text).filter_map(|span| span.split_once(".rs::")) {
        let file = fs::read_to_string(root().join(format!("{path}.rs"))).unwrap_or_default();
        assert!(file.contains(&format!("fn {test}(")), "{path}.rs has no test {test}");
        named += 1;
    }
    assert!(named > 0, "the table names no test");
}
