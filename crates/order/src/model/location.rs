//! The choice of locations (addresses) as an integer program. The program's variables are an offset for each buffer
//! and, for each two buffers that are live together, a choice of the buffer with the lower address.
//!
//! Owns: the program, and the conversion of a solution to offsets. HiGHS solves within a tolerance, so its offsets give
//! only the order of the buffers. Each buffer is then placed as low as this order allows.

use super::{Columns, SCALE, minimise};
use seamalloc_plan::{Plan, Problem};
use std::time::Instant;

/// The most pairs of buffers that are live together.
const MAX_PAIRS: usize = 200_000;

/// Tries until `end` to improve a plan. The buffers must have no gaps, alignments or fixed offsets. Returns the plan,
/// and whether the plan is proven to be the best. Returns `None` if there are too many pairs, or if HiGHS has no
/// solution.
pub(crate) fn locate(problem: &Problem, plan: &Plan, bound: u64, end: Instant) -> Option<(Plan, bool)> {
    let buffers = problem.buffers();
    let mut pairs = Vec::new();
    for (first, one) in buffers.iter().enumerate() {
        for (second, other) in buffers.iter().enumerate().skip(first + 1) {
            if one.lower < other.upper && other.lower < one.upper {
                pairs.push((first, second));
                if pairs.len() > MAX_PAIRS {
                    return None;
                }
            }
        }
    }
    let unit = plan.peak.max(1) as f64 / SCALE;
    let figure = |bytes: u64| bytes as f64 / unit;
    let mut columns = Columns::default();
    let highest = columns.number(1.0, figure(bound), figure(plan.peak), figure(plan.peak));
    let mut offsets = Vec::with_capacity(buffers.len());
    for (buffer, offset) in buffers.iter().zip(&plan.offsets) {
        let most = figure(plan.peak - buffer.size);
        offsets.push(columns.number(0.0, 0.0, most, figure(*offset)));
    }
    let is_below: Vec<_> = pairs.iter().map(|(first, second)| plan.offsets[*first] < plan.offsets[*second]).collect();
    let choices: Vec<_> = is_below.iter().map(|is_below| columns.choice(*is_below)).collect();
    for (buffer, offset) in buffers.iter().zip(&offsets) {
        columns.program.add_row(..=-figure(buffer.size), [(*offset, 1.0), (highest, -1.0)]);
    }
    for ((first, second), choice) in pairs.iter().zip(&choices) {
        let (low, high) = (offsets[*first], offsets[*second]);
        let (size, other) = (figure(buffers[*first].size), figure(buffers[*second].size));
        // If the choice is 1, the first buffer ends before the second begins; otherwise the second ends before the
        // first begins.
        columns.program.add_row(..=SCALE - size, [(low, 1.0), (high, -1.0), (*choice, SCALE)]);
        columns.program.add_row(..=-other, [(high, 1.0), (low, -1.0), (*choice, -SCALE)]);
    }
    let Columns { program, first } = columns;
    let solved = minimise(program, &first, end)?;
    let values = solved.columns?;
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by(|one, other| values[offsets[*one].index()].total_cmp(&values[offsets[*other].index()]));
    let mut made = Plan { offsets: vec![0; buffers.len()], peak: 0 };
    let mut neighbours = vec![Vec::new(); buffers.len()];
    for (first, second) in pairs {
        neighbours[first].push(second);
        neighbours[second].push(first);
    }
    let mut is_placed = vec![false; buffers.len()];
    for buffer in order {
        let below = neighbours[buffer].iter().filter(|other| is_placed[**other]);
        let offset = below.map(|other| made.offsets[*other] + buffers[*other].size).max().unwrap_or(0);
        made.offsets[buffer] = offset;
        made.peak = made.peak.max(offset + buffers[buffer].size);
        is_placed[buffer] = true;
    }
    let best = if made.peak <= plan.peak { made } else { plan.clone() };
    let is_optimal = solved.is_optimal || best.peak == bound;
    Some((best, is_optimal))
}
