//! PyTorch's memory snapshots, as `torch.cuda.memory._dump_snapshot` writes them: read into traces and snapshots of
//! ours, and written so that PyTorch's own tools show them.
//!
//! `unpickle.rs` makes values from a pickle and `dicts.rs` a raw snapshot from them, `json.rs` makes one from JSON, and
//! `assemble.rs` checks it. Recognising and unpacking files is done by the folder above.

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
