//! The options of an allocator: the typed [`Config`], and the same in PyTorch's syntax.
//!
//! Owns: the options, their defaults and limits; how a request becomes a block size; how much may be held.

mod guard;
mod limits;
mod options;
pub mod rounding;
mod syntax;

pub use guard::GuardOptions;
pub use limits::Limit;
pub(crate) use limits::{Increase, Limits};
pub use options::{Arenas, Config, ConfigError, Split, StrategyKind, StreamSharing};
