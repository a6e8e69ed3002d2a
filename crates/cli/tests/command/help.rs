//! The text of `--help`: its order, its length, and lines that are wrapped once.

use super::{has, seamalloc, stdout};

/// Every subcommand, with those of subcommands.
const ALL: [&str; 20] = [
    "whatif",
    "report",
    "replay",
    "fit",
    "stress",
    "study",
    "study chunks",
    "study lag",
    "order",
    "evict",
    "pinned",
    "plan",
    "top",
    "broker",
    "broker status",
    "convert",
    "compare",
    "man",
    "completions",
    "",
];

fn help(command: &str, width: usize) -> String {
    let args: Vec<_> = command.split_whitespace().chain(["--help"]).collect();
    let ended = seamalloc(&args).env("COLUMNS", width.to_string()).assert().code(0);
    String::from_utf8(ended.get_output().stdout.clone()).unwrap()
}

/// Text that was wrapped twice has lines of one word with room for the next one. Lines of code end in a parenthesis.
#[test]
fn lines_are_wrapped_once() {
    for width in [80, 100] {
        for command in ALL {
            let text = help(command, width);
            let indent = |line: &str| line.len() - line.trim_start().len();
            let lines: Vec<_> = text.lines().collect();
            for pair in lines.windows(2) {
                let [above, below] = [pair[0], pair[1]];
                assert!(above.chars().count() <= width, "{command} at {width}: {above}");
                let next = below.split_whitespace().next().unwrap_or_default();
                let fits = above.chars().count() + 1 + next.chars().count() <= width;
                let is_word = above.split_whitespace().count() == 1 && !above.ends_with([':', '.', ')']);
                let goes_on = !next.is_empty() && indent(below) == indent(above) && fits;
                assert!(!is_word || !goes_on, "{command} at {width}:\n{above}\n{below}");
            }
        }
    }
}

#[test]
fn help_is_short() {
    for command in ALL {
        let lines = help(command, 80).lines().count();
        assert!(lines < 60, "{command}: {lines} lines");
    }
}

#[test]
fn subcommands_stand_under_what_they_are_for() {
    let text = stdout(&["--help"], 0);
    assert!(text.starts_with("Compare GPU memory allocators on recorded and generated workloads\n"), "{text}");
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is missing in {text}"));
    let order =
        ["Your job:", "  whatif", "  fit", "Experiments:", "  stress", "  plan", "Running programs:", "  top", "Files"];
    assert!(order.windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{text}");
    for name in ALL.iter().filter(|name| !name.is_empty() && !name.contains(' ')) {
        has(&text, &[&format!("\n  {name}")]);
    }
}
