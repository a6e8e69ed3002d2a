//! Colours, pictures, completions, and who reads the output or stops doing so.

use super::{Folder, has, run, seamalloc, stdout};
use std::process::{Command, Stdio};

const ESCAPE: char = '\x1b';
const SHORT: [&str; 4] = ["stress", "comb", "--steps", "1"];

fn short(more: &[&'static str]) -> Vec<&'static str> {
    [&SHORT, more].concat()
}

#[test]
fn colours_only_where_they_are_wanted() {
    assert!(!stdout(&SHORT, 0).contains(ESCAPE), "a pipe has no colours");
    assert!(!stdout(&short(&["--color", "never"]), 0).contains(ESCAPE));
    let coloured = stdout(&short(&["--color", "always"]), 0);
    assert!(coloured.contains(ESCAPE));
    assert!(stdout(&["--color", "always", "stress", "--list"], 0).contains(ESCAPE));
    let no_color = |value: &str, args: &[&str]| {
        let output = seamalloc(args).env("NO_COLOR", value).output().unwrap();
        String::from_utf8(output.stdout).unwrap().contains(ESCAPE)
    };
    assert!(!no_color("1", &SHORT));
    assert!(no_color("1", &short(&["--color", "always"])), "what is asked for on the command line wins");
}

/// On a terminal, if the system has a command that makes one.
#[test]
#[cfg(target_os = "linux")]
fn on_a_terminal_no_color_is_honoured() {
    let script = |no_color: &str| {
        let line = format!("{} {}", env!("CARGO_BIN_EXE_seamalloc"), SHORT.join(" "));
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env("NO_COLOR", no_color).env("TERM", "xterm");
        let output = command.stdin(Stdio::null()).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (Some(plain), Some(coloured)) = (script("1"), script("")) else { return };
    let row = |text: &str| text.lines().find(|line| line.contains("expandable")).unwrap_or_default().to_owned();
    // Progress bars move the cursor; only the table must be plain.
    let last = |text: &str| row(text.rsplit("──").next().unwrap_or_default());
    assert!(last(&plain).contains('%') && !last(&plain).contains(ESCAPE), "{plain:?}");
    assert!(last(&coloured).contains(ESCAPE), "{coloured:?}");
}

#[test]
fn logs_have_no_escape_codes_either() {
    let args = short(&["--conf", "pinned_use_background_threads:True"]);
    let ended = seamalloc(&args).assert().code(0);
    let errors = String::from_utf8(ended.get_output().stderr.clone()).unwrap();
    has(&errors, &["WARN", "no effect", "pinned_use_background_threads"]);
    assert!(!errors.contains(ESCAPE), "{errors}");
}

/// A command makes many allocators with the same options, and says once with which strategy an option has no effect.
#[test]
fn an_option_without_effect_is_told_of_once() {
    let ended = run(&["fit", "comb", "--steps", "1", "--conf", "chunk_size_mb:4"], 0);
    let errors = String::from_utf8(ended.get_output().stderr.clone()).unwrap();
    let told: Vec<_> = errors.lines().filter(|line| line.contains("`chunk_size_mb` has no effect")).collect();
    let [line] = told[..] else { panic!("{errors}") };
    has(line, &["with `caching`, `expandable`, `gmlake`; it has with `stitch`"]);
    assert!(!errors.contains("WARN"), "{errors}");
}

#[test]
fn figures_stand_under_their_names() {
    let out = stdout(&SHORT, 0);
    assert!(out.lines().all(|line| line.chars().count() <= 100 && line.trim_end() == line), "{out}");
    has(&out, &["trace", "strategy", "utilization", "comb", "caching", "expandable"]);
    assert!(!out.contains("pass"), "with one pass there is nothing to number: {out}");
    has(&stdout(&short(&["--passes", "2"]), 0), &["pass"]);
}

#[test]
fn pictures_show_what_was_printed_and_how() {
    let folder = Folder::new();
    let place = folder.name("out.svg");
    let printed = stdout(&["stress", "moe-R", "creeping", "--steps", "1", "--svg", &place], 0);
    let svg = std::fs::read_to_string(&place).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    has(&svg, &["moe-R", "creeping", "caching", "expandable", "$ seamalloc stress moe-R creeping --steps 1<", "%"]);
    assert!(!svg.contains("out.svg") && !svg.contains(ESCAPE));
    assert!(!printed.contains(ESCAPE), "the picture has colours, the pipe has none");
    for command in ["replay", "fit"] {
        run(&[command, "comb", "--steps", "1", "--svg", &place], 0);
        has(&std::fs::read_to_string(&place).unwrap(), &[&format!("$ seamalloc {command} comb"), "expandable"]);
    }
    assert_eq!(folder.content(), ["out.svg"]);
}

#[test]
fn man_pages_say_what_help_says() {
    let folder = Folder::new();
    let pages = folder.name("man1");
    run(&["man", &pages], 0).stdout("").stderr("");
    let page = |name: &str| std::fs::read_to_string(folder.path("man1").join(name)).unwrap();
    has(&page("seamalloc.1"), &[".TH", "seamalloc", "Exit codes", "stress", "convert"]);
    has(&page("seamalloc-replay.1"), &["SYNOPSIS", "timeline", "rtx4090"]);
    has(&page("seamalloc-study-chunks.1"), &["sizes"]);
    let taken = folder.file("taken", b"");
    has(&super::complaint(&["man", &taken], 1), &["cannot write", &taken]);
}

#[test]
fn completions_know_the_subcommands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&["completions", shell], 0);
        has(&script, &["seamalloc", "stress", "replay", "fit", "convert", "completions", "json"]);
    }
}

/// As in `seamalloc … | head -1`.
#[test]
fn a_reader_that_goes_away_is_no_error() {
    let all: [&[&str]; 6] = [
        &["stress", "--list"],
        &["stress", "--list", "--json"],
        &["stress", "comb", "--steps", "1", "--passes", "20", "--json"],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["--help"],
    ];
    for args in all {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seamalloc"));
        let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let ended = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && errors.is_empty(), "{args:?}: {} {errors}", ended.status);
    }
}
