//! The repository agrees with itself: what the documentation names and tells its readers to run is there, its page of options is what the
//! code says, and imports go one way.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod comments;
mod docs_commands;
mod docs_paths;
mod layers;
mod options_page;
mod public_face;

#[path = "../common/documents.rs"]
mod documents;
#[path = "../common/log.rs"]
#[allow(dead_code, reason = "of errors and warnings, those that are asked for")]
mod log;
#[path = "../common/random.rs"]
mod random;
#[path = "../common/simulated.rs"]
mod simulated;
