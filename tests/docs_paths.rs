//! The documentation names files, links and functions that exist.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders of the repository by which a code span is known for a path.
const FOLDERS: [&str; 11] =
    ["src/", "trace/", "plan/", "order/", "evict/", "cli/", "ffi/", "tests/", "benches/", "examples/", "docs/"];
/// Pages that say how the code is today. Pages of measurements name the files of their commit.
const TODAY: [&str; 11] = [
    "README.md",
    "docs/ARCHITECTURE.md",
    "docs/pytorch.md",
    "docs/cuda.md",
    "docs/c-api.md",
    "docs/guard.md",
    "docs/layers.md",
    "docs/planning.md",
    "docs/ordering.md",
    "docs/eviction.md",
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
    for folder in ["src", "trace", "plan", "order", "cli", "ffi", "fuzz", "tests", "benches", "examples"] {
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
