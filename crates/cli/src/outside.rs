//! Text from outside, made safe to print. Names of files, devices, programs, categories and frames may contain any
//! character.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Returns text in which each control character, and each character that ends or reorders a line, is escaped as in
/// JSON: `\u001b`.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_obeyed)
}

/// Returns text of several lines, each of them escaped as by [`printable`].
pub(crate) fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |ch| ch != '\n' && is_obeyed(ch))
}

/// Returns whether a terminal interprets a character instead of showing it: control characters, line ends and direction
/// marks.
fn is_obeyed(ch: char) -> bool {
    ch.is_control()
        || matches!(ch, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for ch in text.chars() {
        match ch {
            '\n' if is_escaped(ch) => out.push_str("\\n"),
            '\t' if is_escaped(ch) => out.push_str("\\t"),
            _ if is_escaped(ch) => {
                // Writing to a `String` cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(ch));
            }
            _ => out.push(ch),
        }
    }
    Cow::Owned(out)
}

/// Standard error for the log, whose lines may contain any character.
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().lock().write_all(printable_lines(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_all_else_is_not() {
        assert!(matches!(printable("größer, 大, x\u{a0}y \\ \"z\""), Cow::Borrowed(_)));
        let title = "a\u{1b}]0;b\u{7}c\rd\ne\tf\u{9b}31m\u{7f}\u{202e}g\u{2028}h";
        let shown = "a\\u001b]0;b\\u0007c\\u000dd\\ne\\tf\\u009b31m\\u007f\\u202eg\\u2028h";
        assert_eq!(printable(title), shown);
        assert_eq!(printable_lines(title), shown.replace("\\n", "\n"));
        // Escaping keeps the meaning of a line of JSON.
        let name = serde_json::Value::from("x\u{9b}\u{2028}\u{7f}y");
        let line = name.to_string();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&printable_lines(&line)).unwrap(), name);
    }
}
