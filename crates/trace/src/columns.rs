//! Columns: the figures of a report, for tables and for lines of JSON.
//!
//! Owns: the form of a column. Each report type has one list of columns. A line of JSON has the keys of all columns. A
//! table shows the columns with a heading. Programs that compare reports leave out times.

use seamalloc::units::format_bytes;
use serde_json::{Map, Value};

/// The kind of a column: an identification of the run, a result, or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Identifies the run.
    Run,
    /// A result of the run, which is the same in each run on any machine.
    Result,
    /// A time in the driver: a real time, or a time by the model of a simulated device.
    Time,
    /// A time by this machine's clock, which differs between runs.
    Clock,
}

/// A figure of a report of type `R`.
#[derive(Debug)]
pub struct Column<R> {
    /// The key in a line of JSON.
    pub key: &'static str,
    /// The kind of the column.
    pub kind: Kind,
    /// Reads the column's value from a report.
    pub value: fn(&R) -> Value,
    /// The presentation of the column in a table; `None` if no table shows it.
    pub shown: Option<Shown<R>>,
}

/// The presentation of a column in a table.
#[derive(Debug)]
pub struct Shown<R> {
    /// The heading above the column, in lines.
    pub heading: &'static str,
    /// Whether the column shows figures, which a table aligns at the right.
    pub is_figure: bool,
    /// The order in which a narrow table drops columns, the largest number first. A column with 0 is never dropped.
    pub spare: u8,
    /// Whether a table drops the column if all of its cells are empty.
    pub is_rare: bool,
    /// Returns the column's cell for a report.
    pub cell: fn(&R) -> Cell,
    /// An entry of the table's legend: a name, and the meaning of the column.
    pub legend: Option<(&'static str, &'static str)>,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Text, or a figure as text.
    Text(String),
    /// A used part of a whole, where 1 is the whole.
    Used(f64),
    /// A text in place of a figure that is missing after a failure.
    Failed(String),
}

impl<R> Column<R> {
    /// Makes a column that identifies the run.
    pub const fn run(key: &'static str, value: fn(&R) -> Value) -> Self {
        Self { key, kind: Kind::Run, value, shown: None }
    }

    /// Makes a column of a run's result.
    pub const fn result(key: &'static str, value: fn(&R) -> Value) -> Self {
        Self { key, kind: Kind::Result, value, shown: None }
    }

    /// Makes a column of a time in the driver.
    pub const fn time(key: &'static str, value: fn(&R) -> Value) -> Self {
        Self { key, kind: Kind::Time, value, shown: None }
    }

    /// Makes a column of a time by this machine's clock.
    pub const fn clock(key: &'static str, value: fn(&R) -> Value) -> Self {
        Self { key, kind: Kind::Clock, value, shown: None }
    }

    /// Shows the column as text.
    #[must_use]
    pub const fn text(self, heading: &'static str, cell: fn(&R) -> Cell) -> Self {
        Self { shown: Some(Shown { heading, is_figure: false, spare: 0, is_rare: false, cell, legend: None }), ..self }
    }

    /// Shows the column as a figure.
    #[must_use]
    pub const fn figure(self, heading: &'static str, cell: fn(&R) -> Cell) -> Self {
        Self { shown: Some(Shown { heading, is_figure: true, spare: 0, is_rare: false, cell, legend: None }), ..self }
    }

    /// Lets narrow tables drop the column: of such columns, first the one with the largest `spare`.
    #[must_use]
    pub const fn spare(self, spare: u8) -> Self {
        let shown = match self.shown {
            Some(shown) => Some(Shown { spare, ..shown }),
            None => None,
        };
        Self { shown, ..self }
    }

    /// Shows the column only in tables in which some cell is not empty.
    #[must_use]
    pub const fn rare(self) -> Self {
        let shown = match self.shown {
            Some(shown) => Some(Shown { is_rare: true, ..shown }),
            None => None,
        };
        Self { shown, ..self }
    }

    /// Adds an entry to the table's legend: a name, and the meaning of the column.
    #[must_use]
    pub const fn legend(self, name: &'static str, meaning: &'static str) -> Self {
        let shown = match self.shown {
            Some(shown) => Some(Shown { legend: Some((name, meaning)), ..shown }),
            None => None,
        };
        Self { shown, ..self }
    }
}

/// Returns the line of JSON of a report: the values of all columns by their keys.
pub fn line<R>(columns: &[Column<R>], report: &R) -> Map<String, Value> {
    columns.iter().map(|column| (column.key.to_owned(), (column.value)(report))).collect()
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self::Text(number.to_string())
    }
}

impl From<u32> for Cell {
    fn from(number: u32) -> Self {
        Self::Text(number.to_string())
    }
}

/// Returns bytes in GiB, with two digits after the decimal point.
#[must_use]
pub fn gib(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / f64::from(1 << 30))
}

/// Returns bytes in the unit of `largest`, the largest size of the same sentence, so that figures are easy to compare:
/// 0.07 GiB beside 6.09 GiB. The figure has two digits after the decimal point, and more if these two would be zeros.
#[must_use]
pub fn bytes_beside(bytes: u64, largest: u64) -> String {
    const DIGITS: [usize; 4] = [2, 3, 4, 5];
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let Some((name, unit)) = UNITS.into_iter().find(|(_, unit)| largest.max(bytes) >= *unit) else {
        return format_bytes(bytes);
    };
    let value = bytes as f64 / unit as f64;
    let says = |digits: &usize| value * 10f64.powi(*digits as i32) >= 0.95;
    match DIGITS.into_iter().find(says) {
        Some(digits) => format!("{value:.digits$} {name}"),
        None => format_bytes(bytes),
    }
}

/// Returns nanoseconds in milliseconds.
#[must_use]
pub fn ms(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    if ms >= 100.0 { format!("{ms:.0}") } else { format!("{ms:.1}") }
}

/// Returns nanoseconds in microseconds, with one digit after the decimal point.
#[must_use]
pub fn us(ns: u64) -> f64 {
    round_to(ns as f64 / 1e3, 1)
}

/// Returns `value` rounded to `digits` digits after the decimal point.
#[must_use]
pub fn round_to(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    type Number = Column<u32>;

    const COLUMNS: [Number; 2] = [
        Number::run("n", |n| (*n).into()).text("number", |n| (*n).into()),
        Number::time("half", |n| (f64::from(*n) / 2.0).into()).spare(1),
    ];

    #[test]
    fn a_line_has_the_keys_of_all_columns() {
        let line = line(&COLUMNS, &3);
        assert_eq!(Value::from(line), serde_json::json!({"n": 3, "half": 1.5}));
    }

    #[test]
    fn what_is_not_shown_has_nothing_to_spare() {
        let [number, half] = COLUMNS;
        assert_eq!(number.shown.map(|shown| ((shown.cell)(&7), shown.spare)), Some((Cell::from(7_u32), 0)));
        assert!(half.shown.is_none());
    }

    #[test]
    fn figures_have_few_digits() {
        assert_eq!(
            (gib(3 << 29), ms(1_250_000), ms(123_456_789)),
            ("1.50".to_owned(), "1.2".to_owned(), "123".to_owned())
        );
        assert_eq!((us(1_250), round_to(0.123_456_78, 6)), (1.3, 0.123_457));
    }

    #[test]
    fn sizes_of_one_sentence_have_one_unit() {
        const MIB: u64 = 1 << 20;
        for (bytes, largest, text) in [
            (70 * MIB, 6 << 30, "0.07 GiB"),
            (4 * MIB, 6 << 30, "0.004 GiB"),
            (70 * MIB, 500 * MIB, "70.00 MiB"),
            (5 << 30, 500 * MIB, "5.00 GiB"),
            (512, 6 << 30, "512 B"),
            (0, 6 << 30, "0 B"),
            (7, 9, "7 B"),
        ] {
            assert_eq!(bytes_beside(bytes, largest), text);
        }
    }
}
