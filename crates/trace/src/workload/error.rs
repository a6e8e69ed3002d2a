//! The reasons why a trace could not be generated, and the limits on a trace.

use thiserror::Error;

/// The most events of a generated trace, which take 512 MiB of host memory.
pub const MAX_EVENTS: usize = 32 << 20;
/// The most steps that a [`Scale`](super::Scale) may ask for.
pub const MAX_STEPS: u32 = 100_000;

/// The reason why a trace could not be generated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The scale asks for no step, or for more than [`MAX_STEPS`].
    #[error("{steps} steps asked for, 1 to {MAX_STEPS} possible")]
    Steps {
        /// The requested steps.
        steps: u32,
    },
    /// The trace would have more than [`MAX_EVENTS`] events. Fewer steps make it shorter.
    #[error("the trace would hold more than {limit} events: ask for fewer steps")]
    TooLong {
        /// The bound.
        limit: usize,
    },
    /// The workload's pattern cannot run this model.
    #[error("the pattern cannot run a model like `{model}`")]
    WrongArchitecture {
        /// The model.
        model: &'static str,
    },
}
