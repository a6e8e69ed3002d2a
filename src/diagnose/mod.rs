//! The cause of a refusal, and the changes with which the request would have been served: derived from figures, never
//! guessed.
//!
//! Owns: the diagnosis. The resulting report is a plain value (`report/out_of_memory`).

mod advice;
mod figures;
mod input;
mod report;

pub(crate) use input::ReportInput;
