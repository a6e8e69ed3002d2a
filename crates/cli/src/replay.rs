//! `seamalloc replay`: compares strategies on traces, or on a timeline.

use crate::args::{Color, ReplayArgs};
use crate::failure::Failure;
use crate::side_by_side::SideBySide;
use crate::{source, timeline};

pub(crate) fn run(args: &ReplayArgs, color: Color) -> Result<(), Failure> {
    if let Some(file) = &args.timeline {
        return timeline::run(file, &args.traces.run, &args.also, color);
    }
    if !args.also.is_empty() {
        return Err(Failure::Usage("--also is for timelines: --timeline FILE".to_owned()));
    }
    let (traces, mut inputs) = source::load_all(&args.traces.traces, args.traces.generate)?;
    let mut runs = SideBySide::new(&args.traces.run, color)?;
    let ran = inputs.each(&traces, |trace| runs.run(trace));
    inputs.finish(runs.finish(ran))
}
