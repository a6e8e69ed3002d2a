//! The `seamalloc` command as its users meet it: what it accepts, what it prints, how it ends.

#![allow(clippy::unwrap_used, clippy::panic)]

mod bad_input;
#[cfg(unix)]
mod broker;
mod cliff;
mod compare;
mod documented;
mod evict;
mod figures;
mod fit;
mod formats;
mod help;
mod json;
mod known;
#[path = "../../../../tests/common/length.rs"]
mod length;
mod look;
mod memory;
mod options;
mod order;
mod pinned;
mod plan;
mod report;
mod stress;
mod study;
mod tables;
mod timeline;
#[cfg(unix)]
mod top;
mod whatif;

use assert_cmd::Command;
use assert_cmd::assert::Assert;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Every strategy, in the order of the output.
const STRATEGIES: [&str; 4] = ["caching", "expandable", "gmlake", "stitch"];

/// The command in an empty environment of its own.
fn seamalloc(args: &[&str]) -> Command {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("seamalloc");
    command.env_remove("NO_COLOR").env_remove("SEAMALLOC_LOG").args(args);
    command
}

/// Runs the command and looks at its exit code; whatever happens, it must not panic.
#[track_caller]
fn run(args: &[&str], code: i32) -> Assert {
    let ended = seamalloc(args).assert();
    let errors = String::from_utf8_lossy(&ended.get_output().stderr).into_owned();
    assert!(!errors.contains("panicked"), "{args:?}: {errors}");
    ended.code(code)
}

/// Standard output of a run.
#[track_caller]
fn stdout(args: &[&str], code: i32) -> String {
    String::from_utf8(run(args, code).get_output().stdout.clone()).unwrap()
}

/// Standard error of a run that prints nothing else.
#[track_caller]
fn complaint(args: &[&str], code: i32) -> String {
    let ended = run(args, code).stdout("");
    String::from_utf8(ended.get_output().stderr.clone()).unwrap()
}

/// The JSON lines of a run.
#[track_caller]
fn lines(args: &[&str], code: i32) -> Vec<Value> {
    stdout(args, code).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
}

/// A snapshot of a real job.
fn snapshot(name: &str) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/data/snapshots");
    data.join(name).to_str().unwrap().to_owned()
}

/// A folder for a test, removed at its end.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn file(&self, name: &str, content: &[u8]) -> String {
        std::fs::write(self.path(name), content).unwrap();
        self.name(name)
    }

    /// The names of what is in it.
    fn content(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}
