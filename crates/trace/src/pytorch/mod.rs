//! PyTorch's memory snapshots, in the form of `torch.cuda.memory._dump_snapshot`. The module reads them into traces and
//! snapshots, and writes snapshots for PyTorch's own tools.
//!
//! `unpickle.rs` decodes a pickle. `dicts.rs` (pickle) and `json.rs` (JSON) make a raw snapshot. `assemble.rs` checks
//! the raw snapshot and converts it to snapshots and traces. The folder above recognizes and unpacks files.

mod assemble;
mod contents;
mod dicts;
mod json;
mod opcode;
mod origins;
mod pickle;
mod raw;
mod read;
mod unpickle;
mod write;

pub use contents::PyTorchSnapshot;
pub use origins::{Frame, HeldOrigins, Origins, Refusal, read_held_origins, read_origins, read_with_origins};
pub use read::read_snapshot;
pub(crate) use read::{PICKLE_MAGIC, read_snapshot_named};
pub use write::{write_flight_pickle, write_snapshot_json, write_snapshot_pickle};
