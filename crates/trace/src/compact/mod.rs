//! The compact format of traces, `.seam`: columns compressed by zstd, with a version and a checksum
//! (docs/trace-format.md).

mod layout;
mod read;
mod write;

pub(crate) use layout::MAX_FILE;
pub use layout::{MAGIC, VERSION};
pub use read::read_compact;
pub use write::write_compact;

#[cfg(test)]
mod tests;
