//! `seamalloc replay`: traces through every strategy, side by side.

use crate::args::{Color, TraceArgs};
use crate::failure::Failure;
use crate::side_by_side::SideBySide;
use crate::source;

pub(crate) fn run(args: &TraceArgs, color: Color) -> Result<(), Failure> {
    let traces = source::load_all(&args.traces, args.generate)?;
    let mut runs = SideBySide::new(&args.run, color)?;
    let ran = traces.iter().try_for_each(|trace| runs.run(trace));
    runs.finish(ran)
}
