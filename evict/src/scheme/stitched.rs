//! Ours.

use super::classes::Classes;
use super::regions::Regions;
use super::{Ask, Scheme};
use crate::graph::StorageId;
use crate::state::State;

/// Cost per byte.
#[derive(Debug)]
pub(super) struct Stitched {
    classes: Classes,
    regions: Regions,
    v: String,
}
impl Default for Stitched {
    fn default() -> Self {
        Self { classes: Classes::default(), regions: Regions::default(), v: std::env::var("V").unwrap_or_default() }
    }
}

impl Scheme for Stitched {
    fn choose(&mut self, ask: &Ask<'_>) -> Vec<StorageId> {
        let state = ask.state;
        let v = self.v.clone();
        let gains = if v.contains('p') { gains(ask) } else { Default::default() };
        let short = ask.bytes.saturating_sub(ask.memory.unused());
        let least = ask.least(|storage| {
            let around = if v.contains('e') { self.classes.around(state, storage) }
              else if v.contains('u') { self.regions.ancestors(state, storage) }
              else if v.contains('h') { self.regions.ancestors(state, storage) + self.regions.descendants(state, storage)/2 }
              else { self.regions.ancestors(state, storage) + self.regions.descendants(state, storage) };
            let cost = (state.cost(storage) + around) as f64;
            let bytes = if v.contains('m') && short > 0 { state.bytes(storage).min(short) } else { state.bytes(storage) } as f64;
            let bytes = if v.contains('p') { let g = state.address(storage).and_then(|a| gains.get(&a)).copied().unwrap_or(state.bytes(storage)) as f64; g.max(bytes / 8.0) } else { bytes };
            let bytes = if v.contains('q') && short > 0 && state.bytes(storage) > short { (short as f64 * bytes).sqrt() } else { bytes };
            let st = state.staleness(storage) as f64;
            let st = if v.contains('n') { 1.0 } else if v.contains('r') { st.sqrt() } else if v.contains('l') { st.ln_1p() } else if v.contains('c') { st.cbrt() } else {st};
            let dead = if v.contains('d') && !state.is_held(storage) { 0.5 } else { 1.0 };
            let remade = if v.contains('k') { 1.0 + state.remade(storage) as f64 } else { 1.0 };
            cost * dead * remade / (bytes * st)
        });
        least.into_iter().collect()
    }

    fn evicted(&mut self, state: &State<'_>, storage: StorageId) {
        self.classes.evicted(state, storage);
        self.regions.changed(state, storage);
    }

    fn made(&mut self, state: &State<'_>, storage: StorageId) {
        self.classes.made(state, storage);
        self.regions.changed(state, storage);
    }
    fn works_in_place(&self) -> bool { self.v.contains('i') }
}

fn gains(ask: &Ask<'_>) -> rustc_hash::FxHashMap<u64, u64> {
    const PAGE: u64 = 2 << 20;
    let pieces = ask.memory.pieces();
    let whole = |from: u64, to: u64| (to / PAGE * PAGE).saturating_sub(from.next_multiple_of(PAGE));
    let mut out = rustc_hash::FxHashMap::default();
    for (i, p) in pieces.iter().enumerate() {
        if p.is_free { continue; }
        let (mut from, mut to) = (p.address, p.address + p.bytes);
        let mut had = 0;
        if let Some(l) = i.checked_sub(1).map(|i| pieces[i]) && l.is_free && l.segment == p.segment { had += whole(l.address, from); from = l.address; }
        if let Some(r) = pieces.get(i + 1) && r.is_free && r.segment == p.segment { had += whole(to, to + r.bytes); to += r.bytes; }
        let gain = if ask.bytes > 1 << 20 { whole(from, to) - had } else { (to - from).min(ask.bytes) };
        out.insert(p.address, gain);
    }
    out
}
