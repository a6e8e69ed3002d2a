//! The options of every study, and the start of a study.

use super::outcome::PASSES;
use crate::args::{Color, GenerateArgs};
use crate::failure::Failure;
use crate::inputs::Inputs;
use crate::output::Output;
use crate::source;
use crate::svg::check_writable;
use crate::values;
use clap::{Args, ValueHint};
use seamalloc::driver::sim::SimConfig;
use seamalloc::{Config, StrategyKind};
use seamalloc_trace::replay::ReplayOptions;
use seamalloc_trace::{Trace, recorded};
use std::path::PathBuf;

/// The options that every study takes.
#[derive(Debug, Args)]
pub(crate) struct StudyArgs {
    #[command(flatten)]
    pub(super) generate: GenerateArgs,
    /// The other options of the allocator, in PyTorch's syntax.
    #[arg(long, value_name = "OPTIONS", default_value = "", value_parser = values::options, hide_default_value = true)]
    pub(super) conf: Config,
    #[arg(long, value_name = "DEVICE", default_value = "sim:h200", value_parser = values::device, help = values::device_help(""))]
    pub(super) device: SimConfig,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    pub(super) json: bool,
    /// Save a plot of the results.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, value_parser = values::picture)]
    pub(super) svg: Option<PathBuf>,
}

impl StudyArgs {
    /// Returns the traces of all files and names in `paths`; if there are none, the recorded jobs whose names `default`
    /// accepts.
    pub(super) fn traces(
        &self,
        paths: &[PathBuf],
        default: impl Fn(&str) -> bool,
    ) -> Result<(Vec<Trace>, Inputs), Failure> {
        if paths.is_empty() {
            let jobs = recorded::JOBS.iter().filter(|job| default(job.name));
            let traces = jobs.map(|job| Ok(job.load()?)).collect::<Result<Vec<_>, Failure>>()?;
            let inputs = Inputs::whole(traces.len());
            return Ok((traces, inputs));
        }
        source::load_all(paths, self.generate)
    }

    /// Begins a study. Returns the options of all runs, and the output. `studied` names the studied option, and tells
    /// whether the given options set it, which is an error.
    pub(super) fn begin(
        &self,
        studied: (&str, impl Fn(&Config) -> bool),
        color: Color,
    ) -> Result<(ReplayOptions, Output), Failure> {
        let kind = self.conf.strategy;
        if kind != StrategyKind::Stitch && kind != StrategyKind::default() {
            return Err(Failure::Usage(format!("a study is of the strategy `stitch`; --conf names `{kind}`")));
        }
        let (option, is_set) = studied;
        if is_set(&self.conf) {
            return Err(Failure::Usage(format!("the study sets `{option}` itself; leave it out of --conf")));
        }
        self.svg.as_deref().map_or(Ok(()), check_writable)?;
        let config = self.conf.clone().of_strategy(StrategyKind::Stitch);
        let options = ReplayOptions { passes: PASSES, ..ReplayOptions::new(config, self.device.clone()) };
        Ok((options, Output::new(color, None)?))
    }
}
