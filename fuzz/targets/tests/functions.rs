//! The target `c_library` calls every function of the C library's header.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn every_function_of_the_header_is_called() {
    let header = read("../../ffi/seamalloc.h");
    let code = header.lines().filter(|line| !line.trim_start().starts_with(['*', '/']));
    let declared: BTreeSet<String> = code
        .filter_map(|line| line.split_once('(').map(|(before, _)| before))
        .filter_map(|before| before.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("seam"))
        .map(str::to_owned)
        .collect();
    assert!(declared.len() > 60, "{declared:?}");
    let calls = read("src/c_library/calls.rs");
    let list = calls.split_once("functions! {").unwrap().1;
    let called = |name: &String| {
        list.lines().any(|line| line.strip_prefix("    ").is_some_and(|line| line.starts_with(&format!("{name} |"))))
    };
    let missing: Vec<&String> = declared.iter().filter(|name| !called(name)).collect();
    assert!(missing.is_empty(), "not called: {missing:?}");
}
