//! What people read: tables, colours, pictures of them. The one place that prints, but for the
//! screen of `top`.

use crate::args::Color;
use crate::failure::Failure;
use crate::outside::{printable, printable_lines};
use crate::svg::Svg;
use crate::table::Table;
use seamalloc::units::format_bytes;
use std::io::{IsTerminal, Write};
use std::path::Path;

/// Sentences are broken at this width, in characters, or at the terminal's: that of a table.
const TEXT_WIDTH: usize = 90;
/// Lists are no wider, in characters.
const LIST_WIDTH: usize = 100;
/// Terminals that say they are narrower, in characters, do not know their width, or cannot be helped.
const NARROWEST: usize = 40;
/// Stands between a figure and its unit.
const NO_BREAK: char = '\u{a0}';

/// Prints text and tables, and keeps them for an SVG.
pub(crate) struct Output {
    styled: bool,
    svg: Option<Svg>,
}

impl Output {
    /// Output that `svg` shows in the end, which must be a place that can be written.
    pub(crate) fn new(color: Color, svg: Option<&Path>) -> Result<Self, Failure> {
        let styled = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        };
        Ok(Self { styled, svg: svg.map(Svg::new).transpose()? })
    }

    /// Prints plain text, broken into lines where it is long.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Failure> {
        let text = &printable_lines(text);
        if let Some(svg) = &mut self.svg {
            svg.add(&broken(text, TEXT_WIDTH));
        }
        write(&broken(text, terminal_width().map_or(TEXT_WIDTH, |width| width.min(TEXT_WIDTH))))
    }

    /// Prints lines as they are: they are short.
    pub(crate) fn lines(&mut self, text: &str) -> Result<(), Failure> {
        if let Some(svg) = &mut self.svg {
            svg.add(text);
        }
        write(text)
    }

    /// Prints a table, on a narrow terminal without its least columns.
    pub(crate) fn table<R>(&mut self, table: &Table<R>) -> Result<(), Failure> {
        if let Some(svg) = &mut self.svg {
            svg.add(&table.styled());
        }
        write(&table.for_terminal(terminal_width(), self.styled))
    }

    /// Prints a table of which a text is the last column, broken so that lines are no wider than a page.
    pub(crate) fn list<R>(&mut self, table: &Table<R>) -> Result<(), Failure> {
        let width = terminal_width().map_or(LIST_WIDTH, |width| width.min(LIST_WIDTH));
        if let Some(svg) = &mut self.svg {
            svg.add(&table.for_terminal(Some(LIST_WIDTH), true));
        }
        write(&table.for_terminal(Some(width), self.styled))
    }

    /// Saves all that was printed as a picture, if one was asked for.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        self.svg.as_ref().map_or(Ok(()), Svg::save)
    }
}

fn terminal_width() -> Option<usize> {
    comfy_table::Table::new().width().map(usize::from).filter(|width| *width >= NARROWEST)
}

/// Breaks a long line at blanks, not at no-break ones; the lines that follow are indented.
fn broken(text: &str, most: usize) -> String {
    let (mut out, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        let (gap, start) = match width {
            0 => ("", 0),
            _ if width + 1 + length > most => ("\n  ", 2),
            _ => (" ", width + 1),
        };
        out.push_str(gap);
        out.push_str(word);
        width = start + length;
    }
    out.replace(NO_BREAK, " ")
}

/// Bytes with a unit, for a sentence.
pub(crate) fn bytes(bytes: u64) -> String {
    without_breaks(&format_bytes(bytes))
}

/// Text that no line ends within.
pub(crate) fn without_breaks(text: &str) -> String {
    text.replace(' ', &NO_BREAK.to_string())
}

/// Returns a count with its thousands apart: 12,000 for 12000.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Lines of standard output. What a terminal would obey is escaped, as JSON has it.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    write(&printable_lines(text))
}

/// Lines as they are, for a terminal or for another program.
pub(crate) fn write(text: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout().lock(), "{text}").map_err(Failure::Output)
}

/// A line beside the output, of what may not be what was meant.
pub(crate) fn note(text: &str) {
    // If standard error is closed, nobody is listening.
    let _ = writeln!(std::io::stderr().lock(), "seamalloc: {}", printable(text));
}

/// The one line that a failure prints.
pub(crate) fn complain(failure: &Failure) {
    // If standard error is closed, nobody is listening.
    let _ = writeln!(std::io::stderr().lock(), "seamalloc: {}", printable(&failure.to_string()));
}

/// Prints the parser's own text: the error of a command line, or the help that it asks for. If an argument has characters that a terminal
/// obeys, they are escaped, and the text has no colours.
pub(crate) fn complain_of_arguments(error: &clap::Error) {
    let text = error.render().to_string();
    let shown = printable_lines(&text);
    // If it cannot be written, nobody is listening.
    let _ = if shown == text { error.print() } else { write!(std::io::stderr().lock(), "{shown}") };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_broken_at_blanks() {
        assert_eq!(broken("short text", 10), "short text");
        assert_eq!(broken("short texts", 10), "short\n  texts");
        assert_eq!(broken("", 10), "");
        assert_eq!(broken(&format!("there were {}", bytes(3 << 20)), 16), "there were\n  3.00 MiB");
    }
}
