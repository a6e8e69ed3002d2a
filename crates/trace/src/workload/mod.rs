//! Generated workloads: allocation traces that resemble those of real jobs, made from model shapes and a seed.
//!
//! `catalogue.rs` lists the workloads. Each pattern has a file of its own, and all patterns write through `tape.rs`. No
//! code here allocates device memory.
//!
//! ```
//! use seamalloc_trace::workload::{self, Scale};
//!
//! let workload = workload::find("opt-1.3b-R")?;
//! let trace = workload.generate(0, Scale { steps: Some(1) })?;
//! assert_eq!(trace.name, "opt-1.3b-R");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adversarial;
mod catalogue;
mod error;
mod generator;
mod kv_cache;
mod layer;
pub mod models;
mod moe;
mod pattern;
mod recipe;
mod rematerialisation;
mod rlhf;
mod side_stream;
mod step;
mod tape;
mod transformer;
mod vision;

pub use catalogue::{UnknownWorkload, catalogue, find};
pub use error::{GenerateError, MAX_EVENTS, MAX_STEPS};
pub use generator::{Scale, Workload};

#[cfg(test)]
mod tests;
