//! PyTorch's memory snapshots, as `torch.cuda.memory._dump_snapshot` writes them: read into traces and snapshots of
//! ours, and written so that PyTorch's own tools show them.
//!
//! Owns: the public face of both. Read: `unpickle.rs` makes values of a pickle and `dicts.rs` a raw snapshot of them,
//! `json.rs` one of JSON, and `read.rs` checks it. Recognising and unpacking files is the folder above's.

mod dicts;
mod json;
mod opcode;
mod pickle;
mod read;
mod unpickle;
mod write;

pub use write::{write_snapshot_json, write_snapshot_pickle};

use super::Trace;
use super::error::{Place, TraceError, excerpt};
use seamalloc::snapshot::Snapshot;

/// How a pickle of protocol 2 or later begins (PROTO).
pub(super) const PICKLE_MAGIC: u8 = 0x80;

/// What a snapshot file holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PyTorchSnapshot {
    /// What the allocator held at the end: one for each device that has segments or a history, by ordinal.
    pub snapshots: Vec<Snapshot>,
    /// The history of each device that has one, by ordinal; what was allocated before it is allocated at its start.
    pub traces: Vec<Trace>,
}

impl PyTorchSnapshot {
    /// Bytes that the allocator held, of all devices together.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.snapshots.iter().map(reserved).fold(0, u64::saturating_add)
    }
}

/// Bytes that the allocator held on one device.
fn reserved(snapshot: &Snapshot) -> u64 {
    snapshot.segments.iter().map(|segment| segment.total_size).fold(0, u64::saturating_add)
}

/// Reads a snapshot file's content: pickle or JSON, plain or gzip. A snapshot in which no history was recorded has no
/// traces.
///
/// # Errors
/// The content is no snapshot, is damaged, holds objects that are not plain data (which are not executed), or tells
/// what cannot have happened.
pub fn read_snapshot(bytes: &[u8]) -> Result<PyTorchSnapshot, TraceError> {
    let file = "snapshot";
    let whole = super::read::read_whole(file, bytes)?;
    read_snapshot_named(file, file, &whole)
}

/// Reads unpacked content; `file` stands in errors, `name` is that of the traces.
pub(super) fn read_snapshot_named(file: &str, name: &str, bytes: &[u8]) -> Result<PyTorchSnapshot, TraceError> {
    let raw = match bytes {
        [PICKLE_MAGIC, ..] => dicts::from_pickle(file, bytes)?,
        [b'{', ..] => json::from_json(file, bytes)?,
        [] => return Err(TraceError::Empty { file: file.to_owned() }),
        _ => return Err(TraceError::malformed(file, Place::Byte(0), excerpt(bytes), "a pickle or a JSON object")),
    };
    read::assemble(file, name, raw)
}
