//! What people read: tables, colours, pictures of them. The one place that prints.

use crate::args::Color;
use crate::failure::Failure;
use crate::picture::Picture;
use comfy_table::{
    Attribute, Cell, CellAlignment, Color as Colour, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle,
};
use seamalloc::driver::CallStats;
use seamalloc::units::format_bytes;
use std::io::{IsTerminal, Write};
use std::path::Path;

/// Utilization at or above which nothing is worth saying.
const GOOD: f64 = 0.97;
/// Utilization below which a job wastes much.
const BAD: f64 = 0.85;
/// Sentences are broken at this width, in characters, or at the terminal's: that of a table.
const TEXT_WIDTH: usize = 90;
/// Terminals that say they are narrower, in characters, do not know their width, or cannot be helped.
const NARROWEST: usize = 40;
/// Stands between a figure and its unit.
const NO_BREAK: char = '\u{a0}';

/// A line under the header, and no other.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─'));
/// Blanks between columns.
const GAP: u16 = 2;

/// A column of a table.
pub(crate) struct Column {
    name: &'static str,
    figure: bool,
    /// Which columns a narrow terminal does without: the largest first. 0: none.
    spare: u8,
}

impl Column {
    pub(crate) const fn text(name: &'static str) -> Self {
        Self { name, figure: false, spare: 0 }
    }

    pub(crate) const fn figure(name: &'static str) -> Self {
        Self { name, figure: true, spare: 0 }
    }

    pub(crate) const fn spare(self, spare: u8) -> Self {
        Self { spare, ..self }
    }
}

/// Prints text and tables, and keeps them for the picture.
pub(crate) struct Output {
    styled: bool,
    picture: Option<Picture>,
}

impl Output {
    /// Output that `svg` shows in the end, which must be a place that can be written.
    pub(crate) fn new(color: Color, svg: Option<&Path>) -> Result<Self, Failure> {
        let styled = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        };
        Ok(Self { styled, picture: svg.map(Picture::new).transpose()? })
    }

    /// Prints plain text, broken into lines where it is long.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Failure> {
        if let Some(picture) = &mut self.picture {
            picture.add(&broken(text, TEXT_WIDTH));
        }
        print(&broken(text, terminal_width().map_or(TEXT_WIDTH, |width| width.min(TEXT_WIDTH))))
    }

    /// Prints a table, on a narrow terminal without its least columns.
    pub(crate) fn table(&mut self, table: &Table, columns: &[Column]) -> Result<(), Failure> {
        if let Some(picture) = &mut self.picture {
            picture.add(&table.clone().enforce_styling().trim_fmt());
        }
        let mut table = table.clone();
        table.force_no_tty();
        if let Some(width) = terminal_width() {
            narrow(&mut table, columns, width);
        }
        if self.styled {
            table.enforce_styling();
        }
        print(&table.trim_fmt())
    }

    /// Saves all that was printed as a picture, if one was asked for.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        self.picture.as_ref().map_or(Ok(()), Picture::save)
    }
}

fn terminal_width() -> Option<usize> {
    Table::new().width().map(usize::from).filter(|width| *width >= NARROWEST)
}

/// A table with these columns.
pub(crate) fn table(columns: &[Column]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.style_text_only();
    table.set_header(columns.iter().map(|column| Cell::new(column.name).add_attribute(Attribute::Bold)));
    for (index, column) in columns.iter().enumerate() {
        let Some(aligned) = table.column_mut(index) else { continue };
        aligned.set_padding((0, if index + 1 < columns.len() { GAP } else { 0 }));
        if column.figure {
            aligned.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Hides what the table can do without until it fits into `width`. Where the last column is text, its lines are broken in
/// the end; figures are not.
fn narrow(table: &mut Table, columns: &[Column], width: usize) {
    let mut spare: Vec<_> = columns.iter().enumerate().filter(|(_, column)| column.spare > 0).collect();
    spare.sort_by_key(|(_, column)| std::cmp::Reverse(column.spare));
    for (index, _) in spare {
        if fits(table, width) {
            return;
        }
        if let Some(column) = table.column_mut(index) {
            column.set_constraint(ColumnConstraint::Hidden);
        }
    }
    if columns.last().is_some_and(|column| !column.figure) && !fits(table, width) {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
    }
}

fn fits(table: &Table, width: usize) -> bool {
    table.trim_fmt().lines().all(|line| line.chars().count() <= width)
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

/// A part of a whole as a percentage, coloured by how good it is.
pub(crate) fn utilization(part: f64) -> Cell {
    let colour = match part {
        _ if part >= GOOD => Colour::Green,
        _ if part >= BAD => Colour::Yellow,
        _ => Colour::Red,
    };
    Cell::new(format!("{:.2}%", part * 100.0)).fg(colour)
}

/// A figure that stands for a failure.
pub(crate) fn failed(text: &str) -> Cell {
    Cell::new(text).fg(Colour::Red).add_attribute(Attribute::Bold)
}

/// Bytes in GiB with two digits behind the point.
pub(crate) fn gib(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / f64::from(1 << 30))
}

/// Bytes with a unit, for a sentence.
pub(crate) fn bytes(bytes: u64) -> String {
    format_bytes(bytes).replace(' ', &NO_BREAK.to_string())
}

/// Nanoseconds in milliseconds.
pub(crate) fn ms(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    if ms >= 100.0 { format!("{ms:.0}") } else { format!("{ms:.1}") }
}

/// How many driver calls there were.
pub(crate) fn count(calls: &CallStats) -> u64 {
    calls.iter().map(|(_, stat)| stat.count).sum()
}

/// Lines of standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout().lock(), "{text}").map_err(Failure::Output)
}

/// The one line that a failure prints.
pub(crate) fn complain(failure: &Failure) {
    // If standard error is closed, nobody is listening.
    let _ = writeln!(std::io::stderr().lock(), "seamalloc: {failure}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::text("name"),
        Column::figure("needed"),
        Column::figure("less needed").spare(1),
        Column::figure("least needed").spare(2),
    ];

    fn lines(width: usize) -> String {
        let mut table = table(&COLUMNS);
        table.add_row(["a name", "1", "2", "3"]);
        table.force_no_tty();
        narrow(&mut table, &COLUMNS, width);
        table.trim_fmt()
    }

    #[test]
    fn narrow_terminals_lose_the_least_columns_first() {
        let whole = lines(100);
        assert!(whole.starts_with("name    needed  less needed  least needed\n──"), "{whole}");
        assert_eq!(lines(41), whole);
        assert!(lines(40).starts_with("name    needed  less needed\n"), "{}", lines(40));
        assert!(lines(20).starts_with("name    needed\n"), "{}", lines(20));
    }

    #[test]
    fn figures_are_never_broken_and_text_is() {
        assert!(lines(5).contains("a name       1\n") || lines(5).ends_with("a name       1"), "{}", lines(5));
        let columns = [Column::text("name"), Column::text("summary")];
        let mut table = table(&columns);
        table.add_row(["a name", "what it is and what it does"]).force_no_tty();
        narrow(&mut table, &columns, 30);
        assert!(table.trim_fmt().lines().all(|line| line.chars().count() <= 30), "{table}");
    }

    #[test]
    fn long_text_is_broken_at_blanks() {
        assert_eq!(broken("short text", 10), "short text");
        assert_eq!(broken("short texts", 10), "short\n  texts");
        assert_eq!(broken("", 10), "");
        assert_eq!(broken(&format!("there were {}", bytes(3 << 20)), 16), "there were\n  3.00 MiB");
    }
}
