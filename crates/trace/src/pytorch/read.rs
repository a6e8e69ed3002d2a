//! Reads a snapshot file, pickle or JSON.

use super::contents::PyTorchSnapshot;
use super::{assemble, dicts, json};
use crate::error::{Place, TraceError, excerpt};
use crate::memory::Memory;
use crate::unpack::read_whole;

/// The first byte of a pickle of protocol 2 or later (PROTO).
pub(crate) const PICKLE_MAGIC: u8 = 0x80;

/// Reads a snapshot file's content: pickle or JSON, plain or gzip. A snapshot without a recorded history has no traces.
///
/// # Errors
/// The content is no snapshot, is damaged, holds objects that are not plain data (which are not executed), or an event
/// breaks a rule.
pub fn read_snapshot(bytes: &[u8]) -> Result<PyTorchSnapshot, TraceError> {
    let file = "snapshot";
    let (whole, memory) = read_whole(file, bytes)?;
    read_snapshot_named(file, file, &whole, memory)
}

/// Reads unpacked content. Errors name `file`, and the traces are named `name`. The result takes no more memory than
/// the account allows.
pub(crate) fn read_snapshot_named(
    file: &str,
    name: &str,
    bytes: &[u8],
    mut memory: Memory,
) -> Result<PyTorchSnapshot, TraceError> {
    let raw = match bytes {
        [PICKLE_MAGIC, ..] => dicts::from_pickle(file, bytes, &mut memory)?,
        [b'{', ..] => json::from_json(file, bytes, &mut memory)?,
        [] => return Err(TraceError::Empty { file: file.to_owned() }),
        _ => return Err(TraceError::malformed(file, Place::Byte(0), excerpt(bytes), "a pickle or a JSON object")),
    };
    assemble::assemble(file, name, raw, memory)
}
