//! The options of an allocator: the typed [`Config`], and the same in PyTorch's syntax.
//!
//! Owns: the options, their defaults and limits; how a request becomes a block size; how much may be held.

mod classic;
mod effect;
mod error;
mod guard;
mod host_pool;
mod limits;
mod names;
mod options;
mod paddle;
pub mod rounding;
mod spill;
mod strategy_kind;
mod strategy_names;
mod syntax;
#[cfg(test)]
mod tests;

pub use classic::ClassicOptions;
pub(crate) use effect::{has_effect, tell_without_effect};
pub use error::ConfigError;
pub use guard::GuardOptions;
pub use limits::Limit;
pub(crate) use limits::{Increase, Limits};
pub use options::{Config, Split, StreamSharing};
pub use paddle::PaddleFlags;
pub use spill::{Advice, ColdestFirst, SpillCandidate, SpillPolicy};
pub use strategy_kind::StrategyKind;
