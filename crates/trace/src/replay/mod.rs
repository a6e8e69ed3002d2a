//! Replays a trace through an allocator, on the simulated GPU, on host memory or on a real GPU, and reports the
//! result.
//!
//! Every comparison uses this replay. The replay makes only the requests and frees of the trace. The result is read
//! from the allocator's own statistics and the driver's own counters.

mod columns;
mod device;
mod passes;
mod peak;
mod replayer;
mod report;
mod spilled;
mod streams;
mod watch;

pub use columns::PEAK_EVENT;
pub(crate) use passes::watched_replay;
pub use passes::{replay, replay_on_cuda, replay_on_host, replay_on_pinned};
pub use replayer::Replayer;
pub use report::{PassReport, ReplayError, ReplayOptions};
pub use spilled::Spilled;
pub(crate) use streams::simulated;
pub use watch::{Step, Watcher};
