//! The options of an allocator: the typed [`Config`], and the text of the options in PyTorch's syntax.
//!
//! Owns: the options, their defaults and ranges; the names of strategies; how a request becomes a block size. Programs
//! find the types of this crate in `seamalloc`, such as `seamalloc::Config`.

#![deny(unsafe_code)]

mod choices;
mod effect;
mod error;
mod headroom;
mod host_pool;
mod names;
mod options;
pub mod rounding;
mod row;
mod spill;
mod strategy_kind;
mod strategy_names;
mod syntax;
#[cfg(test)]
mod tests;
mod values;

pub use choices::{Split, StreamSharing};
pub use effect::{has_effect, tell_without_effect};
pub use error::ConfigError;
pub use headroom::Headroom;
pub use options::{ClassicOptions, Config, GuardOptions, PaddleFlags};
pub use spill::{Advice, ColdestFirst, SpillCandidate, SpillPolicy};
pub use strategy_kind::StrategyKind;
