//! The `memquilt` command.

fn main() {}
