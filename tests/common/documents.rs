//! The pages that say how the project is today, and the command lines in them.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the pages of the project in this folder that belong to no single day.
pub(crate) fn pages(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<_> = entries.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect();
    pages.extend(["README.md", "CONTRIBUTING.md", "docs/measurements/simulated/README.md"].map(|page| root.join(page)));
    pages
}

/// Lines of `sh` blocks, without comments, and code spans of prose.
pub(crate) fn command_lines(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, part) in text.split("```").enumerate() {
        if index % 2 == 0 {
            found.extend(part.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " ")));
        } else if let Some(lines) = part.strip_prefix("sh\n") {
            let lines = lines.replace("\\\n", " ");
            found.extend(lines.lines().filter_map(|line| line.split(" #").next()).map(str::to_owned));
        }
    }
    found
}
