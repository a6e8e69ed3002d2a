//! What became of live memory that did not fit the device, in passes of a trace.

use super::report::PassReport;
use crate::columns::{Cell, gib, us};
use serde_json::Value;

/// Live memory that was spilled to the machine's memory (`spill:host=SIZE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spilled {
    /// The most bytes that lay there at any moment.
    pub peak: u64,
    /// Bytes that were moved: there, and back.
    pub moved_bytes: u64,
    /// Pieces that were moved there.
    pub pieces: u64,
    /// The time in the driver that all of it took, in nanoseconds.
    pub total_ns: u64,
}

impl Spilled {
    pub(crate) const PEAK: &'static str = "peak_spilled";
    pub(crate) const MOVED: &'static str = "spill_moved_bytes";
    pub(crate) const PIECES: &'static str = "spill_pieces";
    pub(crate) const TIME: &'static str = "spill_us";

    /// Of a pass.
    #[must_use]
    pub fn of(pass: &PassReport) -> Self {
        Self {
            peak: pass.peak_spilled,
            moved_bytes: pass.spilled_bytes + pass.spills.returned_bytes,
            pieces: pass.spills.chunks,
            total_ns: pass.spills.total_ns,
        }
    }

    /// Of several passes: the highest peak, and all that was moved.
    #[must_use]
    pub fn of_all(passes: &[PassReport]) -> Self {
        passes.iter().map(Self::of).fold(Self::default(), |all, pass| Self {
            peak: all.peak.max(pass.peak),
            moved_bytes: all.moved_bytes + pass.moved_bytes,
            pieces: all.pieces + pass.pieces,
            total_ns: all.total_ns + pass.total_ns,
        })
    }

    /// The time in microseconds.
    pub(crate) fn us(&self) -> Value {
        us(self.total_ns).into()
    }

    /// The peak in GiB; empty where nothing was spilled.
    pub(crate) fn cell(&self) -> Cell {
        if self.peak == 0 { "".into() } else { gib(self.peak).into() }
    }
}
