//! A page that shows the memory of a trace with each allocator: one self-contained HTML file.
//!
//! ```text
//! tap, memory     which memory the driver gave, and where it is mapped
//! course          one strategy's replay, operation by operation
//! pack            columns of numbers, as the page carries them
//! data            the data of a job, as the page carries it
//! html            the page: assets/ and vendor/ with the data
//! fleet           another page, of the ranks of a job
//! layout          another page, of memory at one moment
//! ```
//!
//! ```
//! use seamalloc::{Config, StrategyKind};
//! use seamalloc::driver::sim::SimConfig;
//! use seamalloc_page::{Job, course, html};
//! use seamalloc_trace::recorded;
//! use seamalloc_trace::replay::ReplayOptions;
//!
//! let trace = recorded::find("moe-R").ok_or("no such job")?.load()?;
//! let options = ReplayOptions::new(Config::with_strategy(StrategyKind::Stitch), SimConfig::default());
//! let stitch = course(&trace, &options, true, &mut |_, _| {})?;
//! let page = html("seamalloc report moe-R", &[Job::new(&trace, &options, vec![stitch])]);
//! assert!(page.starts_with("<!DOCTYPE html>"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

mod course;
mod data;
mod fleet;
mod html;
mod layout;
mod memory;
mod pack;
mod tap;

pub use course::{Course, Work, course};
pub use data::Job;
pub use fleet::fleet_html;
pub use html::html;
pub use layout::{LayoutWords, PageTable, layout_html};
