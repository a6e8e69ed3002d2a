//! Timelines: the work that a program's threads gave to its streams, with times. A replay computes how long the
//! program's steps take with another allocator.
//!
//! ```text
//! recording                        a Timeline in memory
//! read                             its text form
//! clock                            threads, streams and events in time, and the critical path of a step
//! driver                           a simulated GPU whose calls take their time on that clock
//! run                              a timeline through an allocator
//! report                           the result of a run
//! ```

mod clock;
mod driver;
mod read;
mod recording;
mod report;
mod run;
#[cfg(test)]
mod tests;

pub use read::{read_timeline, read_timeline_path};
pub use recording::{Line, StartBlock, Synchronized, Timeline, What};
pub use report::{CriticalPath, StepReport, TimelineReport};
pub use run::{Policy, replay_timeline};
