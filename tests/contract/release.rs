//! Memory goes back to the driver: all of it that can.

use crate::random::Random;
use crate::step::step;
use crate::{MAIN, MIB, SIDE, Subject, balanced, on, reserved};

pub(crate) fn once_all_is_freed_all_can_be_given_back(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let (mut random, mut live) = (Random(4), Vec::new());
    for _ in 0..200 {
        step(&allocator, &mut random, &mut live).unwrap();
    }
    let held = reserved(&allocator);
    let early = allocator.empty_cache().unwrap();
    assert_eq!(reserved(&allocator), held - early, "{kind}");
    assert!(reserved(&allocator) >= allocator.stats().allocated_bytes.all.current, "{kind}: what is live stays");
    balanced(&gpu, &allocator);
    live.iter().for_each(|address| allocator.free(*address).unwrap());
    assert_eq!(allocator.empty_cache(), Ok(held - early), "{kind}");
    assert_eq!(reserved(&allocator), 0, "{kind}");
    assert_eq!(allocator.empty_cache(), Ok(0), "{kind}");
    balanced(&gpu, &allocator);
}

pub(crate) fn dropping_an_allocator_gives_everything_back_but_live_blocks(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let a = allocator.allocate(100 * MIB, MAIN).unwrap();
    let b = allocator.allocate(100, SIDE).unwrap();
    allocator.record_stream(a, SIDE).unwrap();
    allocator.free(a).unwrap();
    allocator.free(b).unwrap();
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{kind}: {}", gpu.leaks());
}
