//! Tables of reports: columns with a heading and colours. A narrow terminal drops some columns.

use crate::explain::entries;
use crate::outside::printable;
use comfy_table::{
    Attribute, Cell as Drawn, CellAlignment, Color, ColumnConstraint, ContentArrangement, LineStyle, TableStyle,
};
use seamalloc_trace::columns::{Cell, Column, Kind, Shown};

/// The utilization from which a value is shown as good.
const GOOD: f64 = 0.97;
/// The utilization below which a value is shown as bad.
const BAD: f64 = 0.85;

/// The style, which has a line under the header and no other lines.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─'));
/// The number of spaces between columns.
const GAP: u16 = 2;

/// A table of reports of type `R`.
pub(crate) struct Table<R: 'static> {
    columns: Vec<(&'static Column<R>, &'static Shown<R>)>,
    /// Whether any cell of each column has content.
    said: Vec<bool>,
    table: comfy_table::Table,
}

impl<R> Table<R> {
    /// Makes an empty table of the columns that are shown.
    pub(crate) fn new(columns: &'static [Column<R>]) -> Self {
        let columns: Vec<_> = columns.iter().filter_map(|column| Some((column, column.shown.as_ref()?))).collect();
        let mut table = comfy_table::Table::new();
        table.load_style(STYLE);
        table.style_text_only();
        table.set_header(columns.iter().map(|(_, shown)| Drawn::new(shown.heading).add_attribute(Attribute::Bold)));
        for (index, (_, shown)) in columns.iter().enumerate() {
            let Some(aligned) = table.column_mut(index) else { continue };
            aligned.set_padding((0, if index + 1 < columns.len() { GAP } else { 0 }));
            if shown.is_figure {
                aligned.set_cell_alignment(CellAlignment::Right);
            }
        }
        let said = columns.iter().map(|(_, shown)| !shown.is_rare).collect();
        let mut new = Self { columns, said, table };
        new.set_rare_columns();
        new
    }

    /// Shows rare columns if one of their cells has content.
    fn set_rare_columns(&mut self) {
        for (index, said) in self.said.iter().enumerate() {
            if self.columns[index].1.is_rare
                && let Some(column) = self.table.column_mut(index)
            {
                if *said {
                    column.remove_constraint();
                } else {
                    column.set_constraint(ColumnConstraint::Hidden);
                }
            }
        }
    }

    /// Adds a report. The report's first `repeated` cells repeat the row above, and are left empty.
    pub(crate) fn add(&mut self, report: &R, repeated: usize) {
        let cells: Vec<_> = self.columns.iter().map(|(_, shown)| (shown.cell)(report)).collect();
        for (said, cell) in self.said.iter_mut().zip(&cells) {
            *said |= *cell != Cell::Text(String::new());
        }
        self.table.add_row(with_repeated(cells.into_iter(), repeated));
        self.set_rare_columns();
    }

    /// Adds a report without figures: the cells that identify the run, and the reason.
    pub(crate) fn add_failed(&mut self, report: &R, repeated: usize, why: &str) {
        let run = self.columns.iter().take_while(|(column, _)| column.kind == Kind::Run);
        let run: Vec<_> = run.map(|(_, shown)| (shown.cell)(report)).collect();
        self.add_cells(run.into_iter().chain([Cell::Failed(why.to_owned())]), repeated);
    }

    /// Adds a row with these cells. Cells after these are empty.
    pub(crate) fn add_cells(&mut self, cells: impl IntoIterator<Item = Cell>, repeated: usize) {
        self.table.add_row(with_repeated(cells.into_iter(), repeated));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.row_count() == 0
    }

    /// Leaves a column out.
    pub(crate) fn hide(&mut self, key: &str) {
        if let Some(index) = self.columns.iter().position(|(column, _)| column.key == key) {
            self.hide_at(index);
        }
    }

    /// Returns the legend of the table's columns, to be printed below it.
    pub(crate) fn legend(&self) -> String {
        let is_shown = |index| {
            self.table.column(index).is_some_and(|column| column.constraint() != Some(&ColumnConstraint::Hidden))
        };
        let shown = self.columns.iter().enumerate().filter(|(index, _)| is_shown(*index));
        let legend = entries(shown.filter_map(|(_, (_, shown))| shown.legend));
        legend.trim_start_matches('\n').to_owned()
    }

    /// Returns the table as text with colours.
    pub(crate) fn styled(&self) -> String {
        self.table.clone().enforce_styling().trim_fmt()
    }

    /// Returns the table as text for a terminal with this width; `None` is an unknown width.
    pub(crate) fn for_terminal(&self, width: Option<usize>, is_styled: bool) -> String {
        let mut table = Self { columns: self.columns.clone(), said: self.said.clone(), table: self.table.clone() };
        table.table.force_no_tty();
        if let Some(width) = width {
            table.narrow(width);
        }
        if is_styled {
            table.table.enforce_styling();
        }
        table.table.trim_fmt()
    }

    fn hide_at(&mut self, index: usize) {
        if let Some(column) = self.table.column_mut(index) {
            column.set_constraint(ColumnConstraint::Hidden);
        }
    }

    /// Hides optional columns until the table fits into `width`. If the last column is text, its lines are wrapped in
    /// the end. Figures are never wrapped.
    fn narrow(&mut self, width: usize) {
        let mut spare: Vec<_> = self.columns.iter().map(|(_, shown)| shown.spare).enumerate().collect();
        spare.retain(|(_, spare)| *spare > 0);
        spare.sort_by_key(|(_, spare)| std::cmp::Reverse(*spare));
        for (index, _) in spare {
            if self.fits(width) {
                return;
            }
            self.hide_at(index);
        }
        if self.columns.last().is_some_and(|(_, shown)| !shown.is_figure) && !self.fits(width) {
            self.table.set_content_arrangement(ContentArrangement::Dynamic);
            self.table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
        }
    }

    fn fits(&self, width: usize) -> bool {
        self.table.trim_fmt().lines().all(|line| line.chars().count() <= width)
    }
}

fn with_repeated(cells: impl Iterator<Item = Cell>, repeated: usize) -> Vec<Drawn> {
    cells.enumerate().map(|(index, cell)| if index < repeated { Drawn::new("") } else { drawn(cell) }).collect()
}

fn drawn(cell: Cell) -> Drawn {
    match cell {
        Cell::Text(text) => Drawn::new(printable(&text)),
        Cell::Used(part) => Drawn::new(format!("{:.2}%", part * 100.0)).fg(match part {
            _ if part >= GOOD => Color::Green,
            _ if part >= BAD => Color::Yellow,
            _ => Color::Red,
        }),
        Cell::Failed(text) => Drawn::new(printable(&text)).fg(Color::Red).add_attribute(Attribute::Bold),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Text = Column<[&'static str; 4]>;

    const FIGURES: &[Text] = &[
        Text::run("name", |row| row[0].into()).text("name", |row| row[0].into()),
        Text::result("needed", |row| row[1].into()).figure("needed", |row| row[1].into()),
        Text::result("less", |row| row[2].into()).figure("less needed", |row| row[2].into()).spare(1),
        Text::result("hidden", |row| row[0].into()),
        Text::result("least", |row| row[3].into()).figure("least needed", |row| row[3].into()).spare(2),
    ];
    const TEXT: &[Text] = &[
        Text::run("name", |row| row[0].into()).text("name", |row| row[0].into()),
        Text::result("summary", |row| row[1].into()).text("summary", |row| row[1].into()),
    ];

    fn lines(width: usize) -> String {
        let mut table = Table::new(FIGURES);
        table.add(&["a name", "1", "2", "3"], 0);
        table.for_terminal(Some(width), false)
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
        let mut table = Table::new(TEXT);
        table.add(&["a name", "what it is and what it does", "", ""], 0);
        let text = table.for_terminal(Some(30), false);
        assert!(text.lines().all(|line| line.chars().count() <= 30), "{text}");
    }

    #[test]
    fn what_repeats_or_failed_leaves_cells_empty() {
        let mut table = Table::new(FIGURES);
        assert!(table.is_empty());
        table.add(&["a name", "1", "2", "3"], 1);
        table.add_failed(&["another", "1", "2", "3"], 0, "no");
        table.hide("less");
        let text = table.for_terminal(None, false);
        let lines: Vec<_> = text.lines().skip(2).map(str::trim_end).collect();
        assert_eq!(lines, ["              1             3", "another      no"]);
    }
}
