//! A plan as a plot: time to the right, addresses upwards, and a rectangle for each buffer.

use crate::study::axis::Axis;
use crate::study::chart::{self, DrawError, Line, Mark, Panel, Point, Tile};
use seamalloc::units::format_bytes;
use seamalloc_plan::{Outcome, Problem};

/// Units of addresses and their bytes. The largest unit in which the peak is 1 or more is used.
const UNITS: [(&str, f64); 4] =
    [("GiB", (1_u64 << 30) as f64), ("MiB", (1_u64 << 20) as f64), ("KiB", (1_u64 << 10) as f64), ("bytes", 1.0)];

pub(super) fn draw(problem: &Problem, outcome: &Outcome) -> Result<String, DrawError> {
    let buffers = problem.buffers();
    let begin = buffers.iter().map(|buffer| buffer.lower).min().unwrap_or(0);
    let end = buffers.iter().map(|buffer| buffer.upper).max().unwrap_or(1);
    // The axis begins at the first moment.
    let at = |moment: i64| moment.abs_diff(begin) as f64;
    let peak = outcome.plan.peak as f64;
    let (unit, scale) = UNITS.into_iter().find(|(_, bytes)| peak >= *bytes).unwrap_or(("bytes", 1.0));
    let mut tiles = Vec::new();
    for (index, (buffer, offset)) in buffers.iter().zip(&outcome.plan.offsets).enumerate() {
        for piece in buffer.pieces() {
            let [low, high] = [piece.window.0, piece.window.1].map(|byte| (offset + byte) as f64 / scale);
            let colour = chart::colour(index);
            tiles.push(Tile { x: at(piece.lower)..at(piece.upper), y: low..high, colour });
        }
    }
    let level = |name: String, bytes: u64, index: usize, dashed: bool| {
        let point = |x: f64| Point { x, y: bytes as f64 / scale, label: None, mark: Mark::None };
        Line { name, colour: chart::colour(index), dashed, points: vec![point(0.0), point(at(end))], apart: Vec::new() }
    };
    let mut lines = vec![level("peak".to_owned(), outcome.plan.peak, 4, false)];
    if outcome.bound < outcome.plan.peak {
        lines.push(level("peak load".to_owned(), outcome.bound, 5, true));
    }
    let panel = Panel {
        title: format!("{} buffers, {} at most live", buffers.len(), format_bytes(outcome.bound)),
        x: Axis::measure("time, in the input's unit, from the first moment on", at(end)),
        y: Axis::measure(&format!("address in {unit}"), peak / scale),
        lines,
        bars: Vec::new(),
        tiles,
    };
    let proven = if outcome.is_optimal { "proven to be the least" } else { "not proven to be the least" };
    let heading = format!("{}: a plan of {} ({})", problem.name(), format_bytes(outcome.plan.peak), outcome.method);
    let legend = format!("a rectangle is a buffer  ·  the peak is {proven}");
    chart::draw(&heading, &legend, &[panel])
}
