//! The C library as programs get it: its header, its symbols, its installation, and programs that are compiled with it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a panic fails the test")]

#[cfg(unix)]
mod compare;
mod header;
#[cfg(target_os = "linux")]
mod installed;
#[cfg(unix)]
mod programs;
#[cfg(target_os = "linux")]
mod symbols;
mod tools;
