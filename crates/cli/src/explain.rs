//! The meanings of columns, and lists of names with their meanings, for help and below tables.

use seamalloc_trace::columns::Column;

/// The page of the documentation that explains the keys of `--json`.
pub(crate) const KEYS: &str = "Keys of --json: docs/json.md.";
/// The width of the column of names, before their meanings, in characters.
const NAMES: usize = 14;
/// The longest line, in characters, so that a terminal of 80 does not wrap it.
const WIDTH: usize = 78;

/// Returns the legend of a table's columns, for the help of a subcommand.
pub(crate) fn legend<R>(columns: &[Column<R>]) -> String {
    let legends = columns.iter().filter_map(|column| column.shown.as_ref()?.legend);
    format!("What the columns say:{}", entries(legends))
}

/// Returns one or several lines for each name, with its meaning. Each line begins with a line break.
pub(crate) fn entries<'a>(named: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    named.into_iter().map(|(name, meaning)| entry(name, meaning)).collect()
}

fn entry(name: &str, meaning: &str) -> String {
    let indent = NAMES + 2;
    let mut lines: Vec<Vec<&str>> = vec![Vec::new()];
    let mut width = indent;
    for word in meaning.split_whitespace() {
        let length = word.chars().count() + 1;
        if width + length > WIDTH + 1 {
            lines.push(Vec::new());
            width = indent;
        }
        width += length;
        if let Some(line) = lines.last_mut() {
            line.push(word);
        }
    }
    // If the last line has one word, it gets a second word from the line above.
    if let [.., above, last] = lines.as_mut_slice()
        && last.len() == 1
    {
        last.splice(0..0, above.pop());
    }
    let lines: Vec<_> = lines.iter().map(|line| line.join(" ")).collect();
    let below = format!("\n{:indent$}", "");
    let gap = if name.len() < NAMES { "" } else { &below };
    format!("\n  {name:NAMES$}{gap}{}", lines.join(&below))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlanReport;
    use crate::study;
    use seamalloc_evict::EvictReport;
    use seamalloc_order::OrderReport;
    use seamalloc_trace::FRAGMENTATION_COLUMNS;
    use seamalloc_trace::cliff::CliffReport;
    use seamalloc_trace::fit::FitReport;
    use seamalloc_trace::pinned::PinnedReport;
    use seamalloc_trace::replay::{PEAK_EVENT, PassReport};
    use seamalloc_trace::timeline::TimelineReport;
    use seamalloc_trace::whatif::WhatIf;

    type Number = Column<u32>;

    const COLUMNS: [Number; 2] = [
        Number::run("n", |n| (*n).into()).text("number", |n| (*n).into()).legend("number", "which\none"),
        Number::result("a_half", |n| (n / 2).into()),
    ];
    const PAGE: &str = include_str!("../../../docs/json.md");

    #[test]
    fn names_stand_before_what_they_mean() {
        assert_eq!(legend(&COLUMNS), "What the columns say:\n  number        which one");
        let long = entries([("a name that is long", "meaning ".repeat(20).as_str())]);
        assert!(long.starts_with("\n  a name that is long\n                meaning meaning"), "{long}");
        assert!(long.lines().all(|line| line.len() <= WIDTH) && long.lines().count() == 5, "{long}");
    }

    /// Returns the keys that a section of docs/json.md explains: the code spans in the first column of its table.
    fn explained(section: &str) -> Vec<&'static str> {
        let heading = format!("\n## {section}\n");
        let text = PAGE.split_once(&heading).map(|(_, text)| text.split("\n## ").next().unwrap_or_default());
        let text = text.unwrap_or_else(|| panic!("the page has no section {section}"));
        let rows = text.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split('|').nth(1));
        rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
    }

    #[track_caller]
    fn agrees<R>(section: &str, columns: &[Column<R>]) {
        let mut keys: Vec<_> = columns.iter().map(|column| column.key).collect();
        let mut found = explained(section);
        keys.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, keys, "{section}: what docs/json.md explains, and what a line has");
    }

    #[test]
    fn the_page_of_keys_explains_those_of_studies() {
        let mut keys: Vec<_> = study::keys().map(|(key, _)| key).collect();
        let mut found = [explained("study chunks"), explained("study lag")].concat();
        keys.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, keys);
    }

    #[test]
    fn the_page_of_keys_explains_those_that_lines_have() {
        agrees("stress and replay", PassReport::COLUMNS);
        let mut divided = explained("fragmentation");
        divided.retain(|key| *key != PEAK_EVENT.key);
        let mut keys: Vec<_> = FRAGMENTATION_COLUMNS.iter().map(|column| column.key).collect();
        keys.sort_unstable();
        divided.sort_unstable();
        assert_eq!(divided, keys);
        assert!(explained("fragmentation").contains(&PEAK_EVENT.key));
        agrees("replay --timeline", TimelineReport::COLUMNS);
        agrees("fit", FitReport::COLUMNS);
        agrees("fit --times-live", CliffReport::COLUMNS);
        agrees("whatif", WhatIf::COLUMNS);
        agrees("pinned", PinnedReport::COLUMNS);
        agrees("plan", PlanReport::COLUMNS);
        agrees("order", OrderReport::COLUMNS);
        agrees("evict", EvictReport::COLUMNS);
    }
}
