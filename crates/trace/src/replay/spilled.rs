//! The figures of spilled memory in passes of a trace.

use super::report::PassReport;
use crate::columns::{Cell, gib, us};
use serde_json::Value;

/// Live memory that was spilled to host memory (`spill:host=SIZE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spilled {
    /// The most bytes that were spilled at any moment.
    pub peak: u64,
    /// The bytes that were moved, in both directions.
    pub moved_bytes: u64,
    /// The number of chunks that were spilled.
    pub pieces: u64,
    /// The driver time of all moves, in nanoseconds.
    pub total_ns: u64,
}

impl Spilled {
    pub(crate) const PEAK: &'static str = "peak_spilled";
    pub(crate) const MOVED: &'static str = "spill_moved_bytes";
    pub(crate) const PIECES: &'static str = "spill_pieces";
    pub(crate) const TIME: &'static str = "spill_us";

    /// Returns the figures of a pass.
    #[must_use]
    pub fn of(pass: &PassReport) -> Self {
        Self {
            peak: pass.peak_spilled,
            moved_bytes: pass.spilled_bytes + pass.spills.returned_bytes,
            pieces: pass.spills.chunks,
            total_ns: pass.spills.total_ns,
        }
    }

    /// Returns the figures of several passes: the highest peak, and the sum of all moves.
    #[must_use]
    pub fn of_all(passes: &[PassReport]) -> Self {
        passes.iter().map(Self::of).fold(Self::default(), |all, pass| Self {
            peak: all.peak.max(pass.peak),
            moved_bytes: all.moved_bytes + pass.moved_bytes,
            pieces: all.pieces + pass.pieces,
            total_ns: all.total_ns + pass.total_ns,
        })
    }

    /// Returns the time in microseconds.
    pub(crate) fn us(&self) -> Value {
        us(self.total_ns).into()
    }

    /// Returns the peak in GiB; empty if no memory was spilled.
    pub(crate) fn cell(&self) -> Cell {
        if self.peak == 0 { "".into() } else { gib(self.peak).into() }
    }
}
