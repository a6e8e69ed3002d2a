//! Imports go one way: each layer of the library knows those below it, and no two files need each other.

mod arithmetic;
mod calls;
mod checker;
mod circles;
mod imports;
mod modules;
mod order;
mod types;

use calls::calls;
use circles::{circles, say};
use imports::{Arrow, arrows};
use modules::{Crate, Files};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files under a folder of this repository, named from its root.
fn files_under(folder: &str) -> Files {
    let root = root();
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

/// The crates that the library is made of besides its own, by name, with their folders.
const BELOW_THE_LIBRARY: [(&str, &str); 5] = [
    ("seamalloc_config", "crates/config/src"),
    ("seamalloc_driver", "crates/driver/src"),
    ("seamalloc_ipc", "crates/ipc/src"),
    ("seamalloc_report", "crates/report/src"),
    ("seamalloc_sim", "crates/sim/src"),
];

/// The crate in a folder of this repository; the library together with the crates that it is made of.
fn crate_in(folder: &str) -> Crate {
    let mut files = files_under(folder);
    let below: &[_] = if folder == "src" { &BELOW_THE_LIBRARY } else { &[] };
    let below: Vec<_> =
        below.iter().map(|(name, folder)| (*name, format!("{folder}/lib.rs"), files_under(folder))).collect();
    files.extend(below.iter().flat_map(|(.., files)| files.clone()));
    let below: Vec<_> = below.iter().map(|(name, root, _)| (*name, root.as_str())).collect();
    let roots = ["lib.rs", "main.rs"].map(|name| format!("{folder}/{name}"));
    let root = roots.iter().find(|root| files.contains_key(*root)).unwrap();
    Crate::read(&files, root, &below).unwrap()
}

/// The crates of this repository that have code of their own, by the folders of that.
fn crates() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest.split("members = [").nth(1).unwrap().split(']').next().unwrap();
    let mut folders: Vec<PathBuf> = Vec::new();
    for member in members.split(',').map(|member| member.trim().trim_matches('"')).filter(|member| !member.is_empty()) {
        match member.strip_suffix("/*") {
            Some(above) => folders.extend(fs::read_dir(root().join(above)).unwrap().map(|entry| entry.unwrap().path())),
            None => folders.push(root().join(member)),
        }
    }
    let sources = folders.into_iter().map(|folder| folder.join("src"));
    let sources = sources.filter(|folder| folder.join("lib.rs").exists() || folder.join("main.rs").exists());
    let named =
        |folder: PathBuf| folder.strip_prefix(root()).unwrap().to_str().unwrap().trim_start_matches("./").to_owned();
    let mut all: Vec<String> = sources.map(named).collect();
    all.sort_unstable();
    assert!(all.len() >= 12 && all.iter().any(|folder| folder == "src"), "the test does not see them: {all:?}");
    all
}

fn arrows_of(folder: &str, of: &Crate) -> Vec<Arrow> {
    let arrows = arrows(of);
    // The smallest crates have few files.
    let least = match of.modules.len() {
        0 | 1 => 0,
        2..10 => 3,
        _ => 11,
    };
    assert!(arrows.len() >= least, "{folder}: {} imports; the test does not see them", arrows.len());
    arrows
}

fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} in all:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn no_import_goes_up() {
    let of = crate_in("src");
    let arrows = arrows_of("src", &of).into_iter().chain(calls(&of));
    none(&arrows.filter_map(|arrow| order::objection(&arrow)).collect::<Vec<_>>());
}

#[test]
fn no_files_need_each_other() {
    let mut wrong = Vec::new();
    for folder in crates() {
        let of = crate_in(&folder);
        let mut all = arrows_of(&folder, &of);
        all.extend(calls(&of));
        wrong.extend(circles(&all).iter().map(|circle| say(circle)));
    }
    none(&wrong);
}

/// The crates of this repository that each crate may depend on, lowest first; tests may have others.
const MAY_NEED: [(&str, &[&str]); 15] = [
    ("crates/driver", &[]),
    ("crates/plan", &[]),
    ("crates/socket", &[]),
    ("crates/sim", &["driver"]),
    ("crates/config", &["driver"]),
    ("crates/report", &["config", "driver"]),
    ("crates/ipc", &["driver"]),
    (".", &["config", "driver", "ipc", "report", "sim"]),
    ("crates/layers", &["", "driver"]),
    ("crates/trace", &["", "plan"]),
    ("crates/evict", &["", "trace"]),
    ("crates/live", &["", "socket", "trace"]),
    ("crates/order", &["", "plan", "trace"]),
    ("crates/page", &["", "trace"]),
    ("crates/broker", &["", "socket"]),
];

#[test]
fn crates_depend_on_those_of_a_list_alone() {
    let listed = |folder: &str| MAY_NEED.iter().any(|(of, _)| *of == folder);
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().file_name());
    let unlisted = crates.map(|name| format!("crates/{}", name.display())).filter(|folder| !listed(folder));
    assert_eq!(unlisted.collect::<Vec<_>>(), ["crates/cli"], "the command depends on all of them");
    let mut wrong = Vec::new();
    for (folder, may) in MAY_NEED {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let mut section = "";
        for line in manifest.lines() {
            if line.starts_with('[') {
                section = line;
            } else if section.ends_with("dependencies]") && !section.contains("dev-") && line.contains("path = ") {
                let name = line.split(' ').next().unwrap();
                let short = name.trim_start_matches("seamalloc").trim_start_matches('-');
                if !may.contains(&short) {
                    wrong.push(format!("{folder} depends on {name}"));
                }
            }
        }
    }
    none(&wrong);
}

/// Where pools lie in their table, and which of a stream's two pools is which, is the heap's own affair.
#[test]
fn only_the_heap_computes_with_pool_indices() {
    let places = arithmetic::found(&crate_in("src")).into_iter();
    let elsewhere = places.filter(|(file, ..)| !(file.starts_with("src/heap/") || file == "src/ids.rs"));
    let places: Vec<String> = elsewhere.map(|(file, line, words)| format!("{file}:{line} has `{words}`")).collect();
    none(&places);
}
