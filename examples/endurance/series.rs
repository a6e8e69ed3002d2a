//! The figures that are followed over a run.
//!
//! Owns: their names and units, which of them must stay flat, and what flat means.

use super::program::State;
use serde_json::{Value, json};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// One figure.
pub(crate) struct Series {
    pub(crate) key: &'static str,
    /// The column's heading, and the panel's title.
    pub(crate) heading: &'static str,
    /// The divisor of the values when they are shown.
    unit: u64,
    of: fn(&State) -> u64,
    /// Whether it must not grow once the program has been through all that it does.
    pub(crate) flat: bool,
}

const fn flat(key: &'static str, heading: &'static str, unit: u64, of: fn(&State) -> u64) -> Series {
    Series { key, heading, unit, of, flat: true }
}

const fn counted(key: &'static str, heading: &'static str, of: fn(&State) -> u64) -> Series {
    Series { key, heading, unit: 1, of, flat: false }
}

pub(crate) const SERIES: [Series; 19] = [
    Series { key: "live", heading: "live MiB", unit: MIB, of: |state| state.live, flat: false },
    flat("reserved", "reserved MiB", MIB, |state| state.reserved),
    flat("host_bytes", "tables KiB", KIB, |state| state.host_bytes),
    flat("held", "held KiB", KIB, |state| state.held as u64),
    flat("resident", "resident KiB", KIB, |state| state.resident),
    flat("descriptors", "descriptors", 1, |state| state.descriptors as u64),
    flat("views", "views", 1, |state| state.views),
    flat("mappings", "mappings", 1, |state| state.mappings),
    flat("handles", "handles", 1, |state| state.handles as u64),
    flat("reservations", "reservations", 1, |state| state.reservations as u64),
    flat("view_addresses", "view addresses MiB", MIB, |state| state.view_addresses),
    flat("events", "events", 1, |state| state.events as u64),
    flat("pools_known", "private pools", 1, |state| state.pools_known as u64),
    counted("streams", "streams made", |state| state.streams),
    counted("pools", "pools made", |state| state.pools),
    counted("misses", "misses", |state| state.stalls),
    counted("shortages", "shortages", |state| state.shortages),
    counted("failures", "failures", |state| state.failures),
    counted("driver_ms", "driver ms", |state| state.driver_ms),
];

/// Samples of the beginning that do not count: tables grow to their size, and the program goes through its phases.
const WARM: usize = 4;
/// Of the samples that count, the most of the last half may be this much beyond the most of the first half, in percent.
const MAX_GROWTH: u64 = 25;

impl Series {
    pub(crate) fn value(&self, state: &State) -> u64 {
        (self.of)(state)
    }

    /// In its unit.
    pub(crate) fn shown(&self, state: &State) -> u64 {
        self.value(state) / self.unit
    }

    /// Returns the message for a figure that grew.
    pub(crate) fn grown(&self, states: &[State]) -> Option<String> {
        let counted = states.get(states.len() / WARM..).filter(|_| self.flat)?;
        let (first, last) = counted.split_at(counted.len() / 2);
        let most = |of: &[State]| of.iter().map(|state| self.value(state)).max();
        let (before, after) = (most(first)?, most(last)?);
        (after * 100 > before * (100 + MAX_GROWTH)).then(|| format!("{} grew from {before} to {after}", self.heading))
    }
}

/// A sample as a line of JSON.
pub(crate) fn json(state: &State, ns_per_op: u64) -> Value {
    let mut line = json!({ "operations": state.ops, "ns_per_op": ns_per_op });
    SERIES.iter().for_each(|series| line[series.key] = series.value(state).into());
    line
}
