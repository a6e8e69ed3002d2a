//! What people read: tables, colours, pictures of them. The one place that prints.

use crate::args::{Color, RunArgs};
use crate::failure::Failure;
use comfy_table::{Attribute, Cell, CellAlignment, Color as Colour, LineStyle, Table, TableStyle};
use memquilt::driver::CallStats;
use std::io::{IsTerminal, Write};
use std::path::Path;

/// Utilization at or above which nothing is worth saying.
const GOOD: f64 = 0.97;
/// Utilization below which a job wastes much.
const BAD: f64 = 0.85;

/// A line under the header, and no other.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Prints text and tables, and keeps them for the picture.
pub(crate) struct Output {
    styled: bool,
    printed: String,
}

impl Output {
    pub(crate) fn new(color: Color) -> Self {
        let styled = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        };
        Self { styled, printed: String::new() }
    }

    /// Prints lines of plain text.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.printed.push_str(text);
        self.printed.push('\n');
        print(text)
    }

    /// Prints a table.
    pub(crate) fn table(&mut self, table: &Table) -> Result<(), Failure> {
        let styled = table.clone().enforce_styling().trim_fmt();
        let plain = table.clone().force_no_tty().trim_fmt();
        self.printed.push_str(&styled);
        self.printed.push('\n');
        print(if self.styled { &styled } else { &plain })
    }

    /// Saves all that was printed as a picture, if one was asked for.
    pub(crate) fn finish(&self, command: &str, args: &RunArgs) -> Result<(), Failure> {
        let Some(path) = &args.svg else { return Ok(()) };
        let text = format!("$ {command}\n{}", self.printed);
        save(path, &anstyle_svg::Term::new().render_svg(&text))
    }
}

/// A table with these columns; those marked `>` hold figures.
pub(crate) fn table(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    let name = |column: &str| column.trim_start_matches('>').to_owned();
    table.set_header(columns.iter().map(|column| Cell::new(name(column)).add_attribute(Attribute::Bold)));
    for (index, column) in columns.iter().enumerate() {
        if let Some(aligned) = table.column_mut(index).filter(|_| column.starts_with('>')) {
            aligned.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A part of a whole as a percentage, coloured by how good it is.
pub(crate) fn utilization(part: f64) -> Cell {
    let colour = match part {
        _ if part >= GOOD => Colour::Green,
        _ if part >= BAD => Colour::Yellow,
        _ => Colour::Red,
    };
    Cell::new(format!("{:.1}%", part * 100.0)).fg(colour)
}

/// A figure that stands for a failure.
pub(crate) fn failed(text: &str) -> Cell {
    Cell::new(text).fg(Colour::Red).add_attribute(Attribute::Bold)
}

/// Bytes in GiB with two digits behind the point.
pub(crate) fn gib(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / f64::from(1 << 30))
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

/// One line of standard output.
pub(crate) fn print(line: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout().lock(), "{line}").map_err(Failure::Output)
}

/// The one line that a failure prints.
pub(crate) fn complain(failure: &Failure) {
    // If standard error is closed, nobody is listening.
    let _ = writeln!(std::io::stderr().lock(), "memquilt: {failure}");
}

/// Writes a file.
pub(crate) fn save(path: &Path, contents: &str) -> Result<(), Failure> {
    std::fs::write(path, contents).map_err(|error| Failure::Write { path: path.to_owned(), error })
}
