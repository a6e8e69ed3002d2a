//! Doc comments begin with their subject or with a verb: who reads one in a list has not read the line before it.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders with code of the project.
const FOLDERS: [&str; 7] = ["src", "ffi/src", "crates", "examples", "benches", "fuzz/targets/src", "tests"];

/// Words with which no doc comment begins, and with which no line of an `# Errors` section does.
const FIRST: [&str; 10] =
    ["What", "It", "That", "Those", "These", "Nothing", "They", "Its", "Does the same", "The same"];
const IN_BETWEEN: [&str; 2] = ["Those of", "The same as"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns whether the text begins with one of these words.
fn begins(text: &str, words: &[&str]) -> bool {
    let ends = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
    words.iter().any(|word| text.strip_prefix(word).is_some_and(ends))
}

/// Returns the text of a line that is a doc comment.
fn doc(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
    Some(text.strip_prefix(' ').unwrap_or(text))
}

/// Returns the lines of a source, by number, on which a comment breaks the rule.
fn broken(source: &str) -> Vec<usize> {
    let mut before = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(source.lines()) {
        let text = doc(line);
        if text.is_some_and(|text| begins(text, if before { &IN_BETWEEN } else { &FIRST })) {
            lines.push(number);
        }
        before = text.is_some();
    }
    lines
}

#[test]
fn doc_comments_name_their_subject() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|folder| sources(&root.join(folder), &mut files));
    assert!(files.len() > 500, "{} sources", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let name = file.strip_prefix(root).unwrap().display().to_string();
        wrong.extend(broken(&fs::read_to_string(&file).unwrap()).iter().map(|line| format!("{name}:{line}")));
    }
    assert!(wrong.is_empty(), "begin with the subject, or with a verb:\n{}", wrong.join("\n"));
}

#[test]
fn a_pronoun_is_found_at_the_beginning_alone() {
    let source = "/// Returns it.\n/// It is here.\nfn a();\n    /// It is here.\nfn b();\n/// Items.\n///\n/// Those of c.\nfn d();\n//! What.\n";
    assert_eq!(broken(source), [4, 8, 10]);
}
