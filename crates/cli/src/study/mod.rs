//! `seamalloc study`: the costs and gains of an option of `stitch`, over its values.
//!
//! ```text
//! chunks.rs, lag.rs   the studies: their options, columns and plots
//! options.rs          the options of every study
//! outcome.rs          the result of one setting in three passes, and its columns
//! chart.rs            plots; axis.rs and labels.rs place the parts of a plot
//! ```

pub(crate) mod axis;
pub(crate) mod chart;
mod chunks;
mod labels;
mod lag;
mod options;
mod outcome;

use crate::args::Color;
use crate::failure::Failure;
use clap::Subcommand;
use seamalloc_trace::columns::Kind;

/// The studied option.
#[derive(Debug, Subcommand)]
pub(crate) enum Study {
    /// The size of chunks (chunk_size_mb): memory against driver time and stalls.
    #[command(after_help = chunks::help())]
    Chunks(chunks::ChunksArgs),
    /// Sharing between streams (sharing), by how far the CPU runs ahead of the GPU.
    #[command(after_help = lag::help())]
    Lag(lag::LagArgs),
}

/// Returns the keys of the lines of all studies.
pub(crate) fn keys() -> impl Iterator<Item = (&'static str, Kind)> {
    let chunks = chunks::COLUMNS.iter().map(|column| (column.key, column.kind));
    chunks.chain(lag::COLUMNS.iter().map(|column| (column.key, column.kind)))
}

pub(crate) fn run(study: &Study, color: Color) -> Result<(), Failure> {
    match study {
        Study::Chunks(args) => chunks::run(args, color),
        Study::Lag(args) => lag::run(args, color),
    }
}
