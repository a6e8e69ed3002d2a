//! Imports go one way: each layer of the library knows those below it, and no two files need each other.

mod arithmetic;
mod checker;
mod circles;
mod imports;
mod modules;
mod order;

use imports::{Arrow, arrows};
use modules::{Crate, Files};
use std::fs;
use std::path::Path;

/// A crate of few files.
const SMALLEST: &str = "crates/socket/src";

/// The files under a folder of this repository, named from its root.
fn files_under(folder: &str) -> Files {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut files, mut folders) = (Files::new(), vec![root.join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
                files.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    files
}

/// The crate in a folder of this repository.
fn crate_in(folder: &str) -> Crate {
    let files = files_under(folder);
    let roots = ["lib.rs", "main.rs"].map(|name| format!("{folder}/{name}"));
    let root = roots.iter().find(|root| files.contains_key(*root)).unwrap();
    Crate::read(&files, root).unwrap()
}

fn arrows_in(folder: &str) -> Vec<Arrow> {
    let arrows = arrows(&crate_in(folder));
    // The smallest crate has few files.
    let least = if folder == SMALLEST { 3 } else { 11 };
    assert!(arrows.len() >= least, "{folder}: {} imports; the test does not see them", arrows.len());
    arrows
}

fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} in all:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn no_import_goes_up() {
    let objections: Vec<String> = arrows_in("src").iter().filter_map(order::objection).collect();
    none(&objections);
}

#[test]
fn no_files_of_the_library_need_each_other() {
    no_circles("src");
}

#[test]
fn no_files_of_the_command_need_each_other() {
    no_circles("crates/cli/src");
}

#[test]
fn no_files_of_the_c_library_need_each_other() {
    no_circles("ffi/src");
}

#[test]
fn no_files_of_the_traces_need_each_other() {
    no_circles("crates/trace/src");
}

#[test]
fn no_files_of_the_live_statistics_need_each_other() {
    no_circles("crates/live/src");
}

#[test]
fn no_files_of_the_broker_need_each_other() {
    no_circles("crates/broker/src");
}

#[test]
fn no_files_of_the_sockets_need_each_other() {
    no_circles(SMALLEST);
}

#[test]
fn the_sockets_need_no_other_crate_of_this_repository() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/socket/Cargo.toml")).unwrap();
    let needed: Vec<String> = manifest.lines().filter(|line| line.contains("path = ")).map(str::to_owned).collect();
    none(&needed);
}

fn no_circles(folder: &str) {
    let circles: Vec<String> = circles::circles(&arrows_in(folder)).iter().map(|circle| circles::say(circle)).collect();
    none(&circles);
}

/// Where pools lie in their table, and which of a stream's two pools is which, is the heap's own affair.
#[test]
fn only_the_heap_computes_with_pool_indices() {
    let places = arithmetic::found(&crate_in("src")).into_iter();
    let elsewhere = places.filter(|(file, ..)| !(file.starts_with("src/heap/") || file == "src/ids.rs"));
    let places: Vec<String> = elsewhere.map(|(file, line, words)| format!("{file}:{line} has `{words}`")).collect();
    none(&places);
}
