//! The report of a refused request: the request, the free memory, why that memory did not serve it, and which change
//! would have helped.

mod cause;
mod report;

pub use cause::{Advice, Cause, Limit};
pub use report::{NEAR_PERCENT, OutOfMemory, OutOfMemoryReport};
