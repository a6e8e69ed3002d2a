//! The fuzz targets: functions of bytes that panic where something is wrong. libFuzzer runs them for hours, and the tests run
//! them over the stored corpus.
//!
//! ```text
//! traces        trace files and snapshots of every format
//! compact       bodies of compact traces, packed here, so that no checksum keeps wrong ones out
//! options       the options of allocators and simulated devices, as text
//! operations    programs of an allocator's operations, with a book of physical memory beside it
//! c_library     calls of the C library
//! broker        what is said to a broker, by processes of which none is honest
//! exercise      what is done with a trace that was read
//! ```

#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used, reason = "a finding is a panic")]

pub mod broker;
pub mod c_library;
pub mod compact;
mod exercise;
pub mod operations;
pub mod options;
pub mod traces;

/// A target: its name, and what runs it.
pub type Target = (&'static str, fn(&[u8]));

/// Every target. Its corpus is the folder of this name.
pub const TARGETS: [Target; 6] = [
    ("traces", traces::run),
    ("compact", compact::run),
    ("options", options::run),
    ("operations", operations::run),
    ("c_library", c_library::run),
    ("broker", broker::run),
];
