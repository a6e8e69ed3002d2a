//! Output for users: tables, colours, and pictures of both. All printing is here, except the screen of `top`.

use crate::args::Color;
use crate::failure::Failure;
use crate::outside::{printable, printable_lines};
use crate::svg::Svg;
use crate::table::Table;
use seamalloc::units::format_bytes;
use std::io::{IsTerminal, Write};
use std::path::Path;

/// The width at which sentences are wrapped, in characters, unless the terminal is narrower: the width of a table.
const TEXT_WIDTH: usize = 90;
/// The greatest width of lists, in characters.
const LIST_WIDTH: usize = 100;
/// The least width of a terminal that is used, in characters. A terminal that reports less does not know its width, or
/// is too narrow for any table.
const NARROWEST: usize = 40;
/// The character between a figure and its unit.
const NO_BREAK: char = '\u{a0}';

/// Prints text and tables, and keeps them for an SVG.
pub(crate) struct Output {
    styled: bool,
    svg: Option<Svg>,
}

impl Output {
    /// Makes output that is saved to `svg` at the end. First checks that the file can be written.
    pub(crate) fn new(color: Color, svg: Option<&Path>) -> Result<Self, Failure> {
        let styled = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        };
        Ok(Self { styled, svg: svg.map(Svg::new).transpose()? })
    }

    /// Prints plain text, wrapped into lines.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Failure> {
        let text = &printable_lines(text);
        if let Some(svg) = &mut self.svg {
            svg.add(&broken(text, TEXT_WIDTH));
        }
        write(&broken(text, terminal_width().map_or(TEXT_WIDTH, |width| width.min(TEXT_WIDTH))))
    }

    /// Prints short lines without wrapping.
    pub(crate) fn lines(&mut self, text: &str) -> Result<(), Failure> {
        if let Some(svg) = &mut self.svg {
            svg.add(text);
        }
        write(text)
    }

    /// Prints a table, without its least important columns on a narrow terminal.
    pub(crate) fn table<R>(&mut self, table: &Table<R>) -> Result<(), Failure> {
        if let Some(svg) = &mut self.svg {
            svg.add(&table.styled());
        }
        write(&table.for_terminal(terminal_width(), self.styled))
    }

    /// Prints a table whose last column is text, wrapped to the width of a page.
    pub(crate) fn list<R>(&mut self, table: &Table<R>) -> Result<(), Failure> {
        let width = terminal_width().map_or(LIST_WIDTH, |width| width.min(LIST_WIDTH));
        if let Some(svg) = &mut self.svg {
            svg.add(&table.for_terminal(Some(LIST_WIDTH), true));
        }
        write(&table.for_terminal(Some(width), self.styled))
    }

    /// Saves the printed output as a picture, if one was requested.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        self.svg.as_ref().map_or(Ok(()), Svg::save)
    }
}

fn terminal_width() -> Option<usize> {
    comfy_table::Table::new().width().map(usize::from).filter(|width| *width >= NARROWEST)
}

/// Wraps a long line at spaces, except no-break spaces. The following lines are indented.
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

/// Returns bytes with a unit, for a sentence.
pub(crate) fn bytes(bytes: u64) -> String {
    without_breaks(&format_bytes(bytes))
}

/// Returns text with no-break spaces, at which no line is broken.
pub(crate) fn without_breaks(text: &str) -> String {
    text.replace(' ', &NO_BREAK.to_string())
}

/// Returns a count with separated thousands: 12,000 for 12000.
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

/// Prints lines on standard output. Control characters are escaped as in JSON.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    write(&printable_lines(text))
}

/// Writes lines unchanged, for a terminal or for another program.
pub(crate) fn write(text: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout().lock(), "{text}").map_err(Failure::Output)
}

/// Writes a line on standard error about a command line that may not mean what the user intended.
pub(crate) fn note(text: &str) {
    // A closed standard error is ignored.
    let _ = writeln!(std::io::stderr().lock(), "seamalloc: {}", printable(text));
}

/// Prints the line of a failure.
pub(crate) fn complain(failure: &Failure) {
    // A closed standard error is ignored.
    let _ = writeln!(std::io::stderr().lock(), "seamalloc: {}", printable(&failure.to_string()));
}

/// Prints the parser's own text: the error of a command line, or the help. Control characters of an argument are
/// escaped; the text then has no colours.
pub(crate) fn complain_of_arguments(error: &clap::Error) {
    let text = error.render().to_string();
    let shown = printable_lines(&text);
    // A failed write is ignored.
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
