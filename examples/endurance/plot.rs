//! The run as a plot: a small panel for each figure, over operations.

use super::program::State;
use super::series::SERIES;
use plotters::prelude::*;
use std::error::Error;

const COLUMNS: usize = 4;
/// Pixels of a panel.
const PANEL: (u32, u32) = (300, 190);
const MARGIN: u32 = 10;
const LABELS: u32 = 56;
const BELOW: u32 = 28;
const TITLE: u32 = 16;
const TEXT: u32 = 11;
/// The background and the text of the documentation's other plots, which read the same on light and dark pages.
const BACKGROUND: RGBColor = RGBColor(0x0d, 0x11, 0x17);
const WRITING: RGBColor = RGBColor(0xd0, 0xd7, 0xde);
const GRID: RGBColor = RGBColor(0x26, 0x2d, 0x36);
const FLAT: RGBColor = RGBColor(0x58, 0xa6, 0xff);
const COUNTED: RGBColor = RGBColor(0x9a, 0xa4, 0xae);

/// Writes it as SVG.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(path: &str, states: &[State]) -> Result<(), Box<dyn Error>> {
    let rows = SERIES.len().div_ceil(COLUMNS);
    let size = (PANEL.0 * COLUMNS as u32, PANEL.1 * rows as u32);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&BACKGROUND)?;
    let million = |state: &State| state.ops as f64 / 1e6;
    let end = states.last().map_or(1.0, million);
    for (series, area) in SERIES.iter().zip(root.split_evenly((rows, COLUMNS))) {
        let top = states.iter().map(|state| series.shown(state)).max().unwrap_or(0).max(1) as f64;
        let mut chart = ChartBuilder::on(&area)
            .margin(MARGIN)
            .caption(series.heading, ("sans-serif", TITLE).into_font().color(&WRITING))
            .x_label_area_size(BELOW)
            .y_label_area_size(LABELS)
            .build_cartesian_2d(0.0..end, 0.0..top * 1.1)?;
        chart
            .configure_mesh()
            .x_labels(5)
            .y_labels(4)
            .x_desc("million operations")
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(BACKGROUND)
            .label_style(("sans-serif", TEXT).into_font().color(&WRITING))
            .draw()?;
        let colour = if series.flat { FLAT } else { COUNTED };
        let points = states.iter().map(|state| (million(state), series.shown(state) as f64));
        chart.draw_series(LineSeries::new(points, &colour))?;
    }
    root.present()?;
    Ok(())
}
