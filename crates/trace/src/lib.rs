//! Allocation traces: the requests and frees of a program, in order.
//!
//! ```text
//! builder                          the rules that make a Trace valid
//! csv, compact, pytorch, rmm       the formats; read and write choose one
//! memory                           the limit on the memory that reading a file may take
//! recorder, history                traces of a running allocator
//! recorded, workload               traces of real jobs, and generated ones
//! owners                           live bytes by line of the program
//! iteration                        the repeated part of a program, for planners
//! persistent                       weights and optimizer state: the memory that no step frees
//! layout                           the figures of a snapshot without a history
//! columns                          the figures of reports, for tables and lines of JSON
//! timeline                         a job's kernels, waits and allocations in time, and its replay
//! pinned                           caches of page-locked memory: a model of PyTorch's, and a host pool
//! verdict                          the reason why a job is short of memory, and one next step
//! replay, fit, whatif              a trace through an allocator, on a simulated GPU or a real one
//! ```
//!
//! The example below shows the memory that a recorded job reserves on a simulated H200:
//!
//! ```
//! use seamalloc::driver::sim::{Profile, SimConfig};
//! use seamalloc::{Config, StrategyKind};
//! use seamalloc_trace::recorded;
//! use seamalloc_trace::replay::{ReplayOptions, replay};
//!
//! let trace = recorded::find("gpt2xl-N").ok_or("no such job")?.load()?;
//! let options = ReplayOptions::new(Config::with_strategy(StrategyKind::Stitch), SimConfig::new(Profile::H200));
//! let passes = replay(&trace, &options, &mut |_, _| {})?;
//! assert!(passes[0].utilization() > 0.98);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

pub mod builder;
pub mod cliff;
pub mod columns;
pub mod compact;
pub mod csv;
mod error;
mod event_lines;
pub mod fit;
pub mod flight;
mod fragmentation;
mod history;
pub mod iteration;
pub mod layout;
mod lines;
mod make_refused;
mod memory;
pub mod owners;
mod persistent;
pub mod pinned;
pub mod price;
pub mod pytorch;
pub mod read;
pub mod recorded;
mod recorder;
mod refused;
pub mod replay;
pub mod rmm;
mod summary;
pub mod timeline;
mod trace;
mod unpack;
pub mod verdict;
pub mod whatif;
pub mod workload;
mod write;

pub use builder::TraceBuilder;
pub use compact::{read_compact, write_compact};
pub use csv::{read_csv, write_csv};
pub use error::{Place, RuleError, TraceError};
pub use flight::{FlightDump, write_flight};
pub use fragmentation::{FRAGMENTATION_COLUMNS, fragmentation_json};
pub use layout::Layout;
pub use make_refused::make_refused;
pub use memory::MemoryError;
pub use persistent::persistent;
pub use pytorch::{PyTorchSnapshot, read_snapshot, write_flight_pickle, write_snapshot_json, write_snapshot_pickle};
pub use read::{read_bytes, read_path};
pub use recorder::Recorder;
pub use rmm::read_rmm;
pub use seamalloc::flight::TimedEvent;
pub use summary::Summary;
pub use trace::{MAX_BLOCK_SIZE, Trace, TraceEvent};
pub use unpack::unpacked_text;
pub use write::{ENDINGS, SNAPSHOT_ENDING, can_write, write_path, write_snapshot_path, write_trace_as_snapshot};

/// Runs the examples on the page about traces as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/trace-format.md")]
struct TracePage;
