//! Stub.

/// Stub.
pub fn run(_: &[u8]) {}
