//! The report of a request that could not be met: what was asked, what is free where, why that did not serve, and what
//! would have.

mod cause;
mod report;

pub use crate::config::Limit;
pub use cause::{Advice, Cause};
pub use report::OutOfMemory;
