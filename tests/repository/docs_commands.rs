//! The commands that the documentation tells its readers to run exist, and a command makes each of its pictures.
//!
//! Command lines of `seamalloc` itself are looked at, and run, by `crates/cli/tests/command/documented.rs`.

use crate::documents::{command_lines, pages};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders with a package of their own.
const PACKAGES: [&str; 15] = [
    ".",
    "crates/layers",
    "crates/trace",
    "crates/live",
    "crates/broker",
    "crates/plan",
    "crates/order",
    "crates/evict",
    "crates/page",
    "crates/cli",
    "ffi",
    "benches",
    "fuzz",
    "fuzz/targets",
    "examples",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text_of(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// Every manifest of the project, as one text.
fn manifests() -> String {
    let mut all = String::new();
    let mut folders: Vec<PathBuf> = PACKAGES.map(|package| root().join(package)).into();
    while let Some(folder) = folders.pop() {
        all += &fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        if !["examples", "fuzz", "benches"].iter().any(|name| folder.starts_with(root().join(name))) {
            continue;
        }
        let below = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        folders.extend(below.filter(|path| path.is_dir() && !path.ends_with("target")));
    }
    all
}

/// Whether a package has a target of this kind (`tests`, `benches`, `examples`) and name.
fn has_target(kind: &str, name: &str, manifests: &str) -> bool {
    let is_file = |package: &str| {
        // The benchmarks lie in the folder of their package itself.
        let folders = [root().join(package).join(kind), root().join(package)];
        folders
            .iter()
            .any(|folder| folder.join(format!("{name}.rs")).is_file() || folder.join(name).join("main.rs").is_file())
    };
    PACKAGES.iter().any(|package| is_file(package)) || manifests.contains(&format!("name = \"{name}\""))
}

/// Returns the error in a command line of cargo.
fn wrong_in_cargo(words: &[&str], manifests: &str) -> Option<String> {
    if words.get(1) == Some(&"install") && words.len() > 2 && !words.contains(&"--locked") {
        return Some("without --locked it ignores Cargo.lock".to_owned());
    }
    let pairs = words.iter().take_while(|word| **word != "--").zip(words.iter().skip(1));
    for (option, value) in pairs {
        let is_there = match *option {
            "--test" => has_target("tests", value, manifests),
            "--bench" => has_target("benches", value, manifests),
            "--example" => has_target("examples", value, manifests),
            "-p" => manifests.contains(&format!("name = \"{value}\"")),
            "--bin" => manifests.contains(&format!("name = \"{value}\"")) || is_binary(value),
            "--path" => root().join(value).join("Cargo.toml").is_file(),
            "--profile" => manifests.contains(&format!("[profile.{value}]")),
            _ => true,
        };
        if !is_there {
            return Some(format!("there is no {value} for {option}"));
        }
    }
    None
}

/// Whether a package has a binary of this name that its manifest does not name.
fn is_binary(name: &str) -> bool {
    ["src/bin", "crates/cli/src/bin", "examples/cudarc/src/bin"]
        .iter()
        .any(|folder| root().join(folder).join(name).with_extension("rs").is_file())
}

/// Returns the error in a step of `.ci/run`, in a script of `.ci`, or in a recipe of `just`.
fn wrong_in_scripts(words: &[&str], steps: &str, recipes: &str) -> Option<String> {
    let (first, rest) = words.split_first()?;
    let script = first.strip_prefix(".ci/")?;
    if !root().join(".ci").join(script).exists() {
        return Some(format!("there is no {first}"));
    }
    let is_step = |word: &&&str| !steps.contains(&format!("step_{word}()"));
    let unknown = rest.iter().filter(|word| !word.starts_with('-')).find(is_step);
    let unknown = unknown.filter(|_| script == "run").map(|word| format!("{first} has no step {word}"));
    unknown.or_else(|| wrong_in_just(words, recipes))
}

fn wrong_in_just(words: &[&str], recipes: &str) -> Option<String> {
    let ["just", recipe, ..] = words else { return None };
    let begins = |line: &str| line.split([' ', ':']).next() == Some(*recipe);
    (!recipes.lines().any(begins)).then(|| format!("just has no recipe {recipe}"))
}

#[test]
fn commands_name_what_exists() {
    let (manifests, steps, recipes) =
        (manifests(), text_of(&root().join(".ci/run")), text_of(&root().join("justfile")));
    let (mut wrong, mut looked_at) = (Vec::new(), 0);
    for page in pages(&root()) {
        for line in command_lines(&text_of(&page)) {
            // Environment variables stand before the command.
            let is_variable = |word: &&str| {
                word.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_uppercase() || c == '_'))
            };
            let words: Vec<&str> = line.split_whitespace().skip_while(is_variable).collect();
            let found = match words.first() {
                Some(&"cargo") if words.get(1).is_some_and(|word| *word != "fuzz") => {
                    wrong_in_cargo(&words, &manifests)
                }
                Some(&"just") => wrong_in_just(&words, &recipes),
                Some(first) if first.starts_with(".ci/") => wrong_in_scripts(&words, &steps, &recipes),
                _ => continue,
            };
            looked_at += 1;
            wrong.extend(found.map(|what| format!("{}: `{line}`: {what}", page.display())));
        }
    }
    assert!(wrong.is_empty(), "commands of what is not there:\n{}", wrong.join("\n"));
    assert!(looked_at > 60, "only {looked_at} commands were found");
    let cargo = |line: &str| wrong_in_cargo(&line.split(' ').collect::<Vec<_>>(), &manifests);
    for mistake in [
        "cargo test --test no_such",
        "cargo bench -p seamalloc-nothing",
        "cargo run --example hallo",
        "cargo install --path crates/cli",
    ] {
        assert!(cargo(mistake).is_some(), "{mistake} is taken");
    }
    assert!(wrong_in_scripts(&[".ci/run", "lints"], &steps, &recipes).is_some());
    assert!(wrong_in_just(&["just", "wheels"], &recipes).is_some());
}

/// Text that does not fit is for a page of the book.
#[test]
fn the_readme_is_short() {
    let lines = text_of(&root().join("README.md")).lines().count();
    assert!(lines <= 120, "README.md has {lines} lines, where 120 are the most");
}

/// `.ci/tables` makes pictures of what the command prints and plots, and `.ci/page` those of pages: both compare them.
#[test]
fn a_command_makes_every_picture() {
    let [by_tables, runs, by_page] =
        [".ci/tabulation/pictures.py", ".ci/tabulation/runs.py", "crates/page/tests/browser/drawings.py"]
            .map(|path| text_of(&root().join(path)));
    let mut shown = Vec::new();
    for page in pages(&root()) {
        let text = text_of(&page);
        for target in text.split("![").skip(1).filter_map(|rest| rest.split("](").nth(1)?.split(')').next()) {
            let file = page.parent().unwrap().join(target);
            assert!(file.is_file(), "{}: no picture {target}", page.display());
            let name = file.file_name().unwrap().to_str().unwrap().to_owned();
            let (stem, ending) = name.split_once('.').unwrap();
            let is_made = match ending {
                "svg" => by_tables.contains(&format!("\"{name}\"")) || runs.contains(&format!("    \"{stem}\": [")),
                _ => by_page.contains(&format!("\"docs/{name}\"")),
            };
            assert!(is_made, "{}: no command of CI makes {name}", page.display());
            shown.push(name);
        }
    }
    // And none lies about unseen.
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_picture = name.ends_with(".svg") || name.ends_with(".png");
        assert!(!is_picture || shown.contains(&name), "no page shows docs/{name}");
    }
    assert!(shown.len() > 10, "{shown:?}");
}
