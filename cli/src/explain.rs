//! What columns and keys say, for the help of a subcommand.

use seamalloc_trace::columns::Column;

/// Characters for names, before what they mean.
const NAMES: usize = 14;
/// Stands before what follows in another line.
const INDENT: &str = "\n                ";

/// Returns what the columns of a table say, a line each and more where it is long.
pub(crate) fn legend<R>(columns: &[Column<R>]) -> String {
    let legends = columns.iter().filter_map(|column| column.shown.as_ref()?.legend);
    legends.fold("What the columns say:".to_owned(), |text, (name, meaning)| text + &entry(name, meaning))
}

/// Returns what the keys of a line of JSON say. Those that are explained together stand in one line.
pub(crate) fn keys<R>(columns: &[Column<R>]) -> String {
    let (mut out, mut names) = (String::new(), Vec::new());
    for column in columns {
        names.push(column.key);
        if let Some(meaning) = column.meaning {
            out.push_str(&entry(&names.join(" "), meaning));
            names.clear();
        }
    }
    out
}

fn entry(names: &str, meaning: &str) -> String {
    let meaning = meaning.replace('\n', INDENT);
    if names.len() < NAMES { format!("\n  {names:NAMES$}{meaning}") } else { format!("\n  {names}{INDENT}{meaning}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Number = Column<u32>;

    const COLUMNS: [Number; 3] = [
        Number::run("n", |n| (*n).into()).text("number", |n| (*n).into()).legend("number", "which\none"),
        Number::result("a_half", |n| (n / 2).into()).meaning("it; half of it"),
        Number::time("how_long_it_took", |n| (*n).into()).meaning("us"),
    ];

    #[test]
    fn names_stand_before_what_they_mean() {
        assert_eq!(legend(&COLUMNS), "What the columns say:\n  number        which\n                one");
        assert_eq!(keys(&COLUMNS), "\n  n a_half      it; half of it\n  how_long_it_took\n                us");
    }
}
