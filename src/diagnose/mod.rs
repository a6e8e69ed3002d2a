//! Why a request was refused, and how it would have been served: derived from figures, never guessed.
//!
//! Owns: the judgement. The report that it fills in is a plain value (`report/out_of_memory`).

mod advice;
mod figures;
mod input;
mod report;

pub(crate) use input::ReportInput;
