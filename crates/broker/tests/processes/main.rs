//! A broker and its processes: they come and go, take turns on one device, are killed, and say what they should not.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a panic fails the test")]

#[cfg(unix)]
#[path = "../../../socket/tests/harness/mod.rs"]
mod harness;
#[cfg(unix)]
mod joining;
#[cfg(target_os = "linux")]
mod killed;
#[cfg(target_os = "linux")]
mod phases;
#[cfg(unix)]
mod serving;
#[cfg(target_os = "linux")]
mod shared_device;
