//! The report of a refused request: the request, the free memory, the reason why that memory did not serve the request,
//! and the changes that would have helped.

mod cause;
mod report;

pub use cause::{Advice, Cause, Limit};
pub use report::{NEAR_PERCENT, OutOfMemory, OutOfMemoryReport};
