//! Files with many ids, addresses or streams, chosen so that something takes a time that grows with their square. There are so
//! many that it would take hours, so a test that ends has passed.

use std::fmt::Write as _;

use seamalloc::Config;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::SimConfig;
use seamalloc_trace::replay::{ReplayOptions, replay};
use seamalloc_trace::{Trace, TraceEvent, read_bytes, read_snapshot};

/// Numbers that rustc-hash's function, of one multiplication and one rotation, puts into one place of a table with the same tag:
/// the lowest 24 and the highest 7 bits of their hashes are the same.
fn of_one_place(count: u64) -> impl Iterator<Item = u64> {
    const FACTOR: u64 = 0xf135_7aea_2e62_a9c5;
    const ROTATION: u32 = 26;
    // Newton's iteration: each step doubles the bits that are right, from three on.
    let inverse = (0..5).fold(FACTOR, |x, _| x.wrapping_mul(2u64.wrapping_sub(FACTOR.wrapping_mul(x))));
    assert_eq!(inverse.wrapping_mul(FACTOR), 1);
    (0..count).map(move |number| {
        let hash = (number << 24) & ((1 << 57) - 1);
        hash.rotate_right(ROTATION).wrapping_mul(inverse)
    })
}

#[test]
fn ids_and_streams_of_a_text() {
    let mut text = String::new();
    for id in of_one_place(300_000) {
        writeln!(text, "a,{id},512,{id:x}").unwrap();
    }
    let traces = read_bytes("flood.csv", text.as_bytes()).unwrap();
    assert_eq!((traces[0].events.len(), traces[0].streams.len()), (300_000, 300_000));
}

#[test]
fn addresses_of_a_pickle() {
    let mut pickle = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](](".to_vec();
    for address in of_one_place(200_000) {
        pickle.extend(b"}(\x8c\x06action\x8c\x05alloc\x8c\x04sizeK\x07\x8c\x06streamK\x00\x8c\x04addr\x8a\x09");
        pickle.extend(address.to_le_bytes());
        pickle.extend(b"\0u");
    }
    pickle.extend(b"eeu.");
    assert_eq!(read_snapshot(&pickle).unwrap().traces[0].events.len(), 200_000);
}

/// A million streams, of which a replay must know which are free to hold blocks back that other streams still use.
#[test]
fn streams_beside_frees_that_do_not_complete() {
    let held = 500;
    for stream in [|_| StreamId(1 << 62), |number: u64| StreamId((1 << 62) + number)] {
        let streams = (0..1_000_000).map(stream).collect();
        let allocated = (0..held).map(|_| TraceEvent::Alloc { size: 512, stream: 0 });
        let freed = (0..held).map(|block| TraceEvent::FreeRequested { block });
        let trace = Trace { name: "t".into(), streams, events: allocated.chain(freed).collect(), ..Trace::default() };
        let options = ReplayOptions::new(Config::default(), SimConfig::default());
        let report = replay(&trace, &options, &mut |_, _| {}).unwrap().remove(0);
        assert_eq!((report.ops, report.peak_live), (1000, 512 * 500));
    }
}
