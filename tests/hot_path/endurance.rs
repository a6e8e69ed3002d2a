//! The memory of the allocator's tables does not grow, however long a program runs: the program of the example
//! `endurance`, in small. The checks of the feature `paranoid` take memory of their own, and are left out.

use crate::program::{Program, Scale, State};

const GIB: u64 = 1 << 30;
/// Bytes of the flight recorder's ring by default: 16,384 operations of 16 bytes.
const FLIGHT: u64 = 256 << 10;
/// Tables reach their size in the first half.
const SLICES: usize = 60;

#[test]
fn tables_stop_growing() {
    let scale = Scale { live: 5 * GIB, blocks: 1500, phase: 700, stream: 40, ahead: 200, pool: 300, fault: 97 };
    let mut program = Program::new("sim:h200,capacity=5300MiB", "max_view_mappings:3000,chunk_size_mb:16", scale);
    let states: Vec<State> = (0..SLICES)
        .map(|_| {
            program.run(2_000);
            program.check().unwrap();
            program.state()
        })
        .collect();
    let most = |of: fn(&State) -> u64, states: &[State]| states.iter().map(of).max().unwrap();
    let (warm, late) = states.split_at(SLICES / 2);
    for (name, of) in [
        ("bytes held", (|state| state.held as u64) as fn(&State) -> u64),
        ("bytes of tables", |state| state.host_bytes),
        ("events", |state| state.events as u64),
        ("reservations", |state| state.reservations as u64),
        ("addresses of views", |state| state.view_addresses),
        ("mappings", |state| state.mappings),
        ("handles", |state| state.handles as u64),
        ("private pools", |state| state.pools_known as u64),
        ("descriptors", |state| state.descriptors as u64),
        ("resident bytes", |state| state.resident),
    ] {
        let (before, after) = (most(of, warm), most(of, late));
        assert!(after * 2 <= before * 3, "{name}: {before} at most in the first half, {after} later");
    }
    for state in &states {
        // The flight recorder's ring is not among the tables.
        let (told, held) = (state.host_bytes + FLIGHT, state.held as u64);
        assert!(told * 5 >= held * 4 && told * 4 <= held * 5, "{told} bytes told, {held} held, after {}", state.ops);
        assert!(
            state.reserved < GIB || state.host_bytes * 1000 <= state.reserved,
            "{} bytes for {}",
            state.host_bytes,
            state.reserved
        );
    }
    // Else the program was too tame to show anything.
    let last = states.last().unwrap();
    let State { streams, stalls, shortages, driver_ms, pools, failures, .. } = *last;
    assert!(
        streams > 600 && stalls > 4_000 && shortages > 2 && pools > 100 && failures > 20,
        "{streams} streams, {stalls} misses, {shortages} shortages, {pools} pools, {failures} failures"
    );
    let (views, mappings) = (most(|state| state.views, &states), most(|state| state.mappings, &states));
    assert!(views > 100 && mappings > 2_000, "{views} views, {mappings} mappings");
    assert!(most(|state| state.live, &states) > 4 * GIB && driver_ms > 0);
}
