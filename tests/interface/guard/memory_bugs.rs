//! Planted mistakes with memory: beyond its end, before its beginning, after its free, and frees that are none.

use super::*;

#[test]
fn an_overrun_beyond_the_rounding_is_an_illegal_address() {
    each_strategy("guard:on", |gpu, allocator| {
        if !StrategyKind::MAIN.contains(&allocator.config().strategy) {
            // Others round to other sizes, up to which a use is none beyond the end.
            return;
        }
        for size in [1, 1000, 2 * MIB, 3 * MIB + 5] {
            let address = allocator.allocate(size, S).unwrap();
            assert_eq!(allocator.reports().size_of(address).unwrap(), size, "the rounding is not to be used");
            let rounded = size.next_multiple_of(512);
            gpu.launch(S, &[range(address, size)], 10).unwrap();
            let text = illegal(gpu, &allocator, S, range(address, rounded + 1));
            let behind = match rounded - size {
                0 => "is the first byte behind".to_owned(),
                1 => "is 1 byte behind the end of".to_owned(),
                bytes => format!("is {bytes} bytes behind the end of"),
            };
            assert!(text.contains(&behind) && text.contains("of stream 0x1, live)"), "{text}");
            // As far as the next megabytes.
            let text = illegal(gpu, &allocator, S, range(address + rounded + 2 * MIB - 1, 1));
            assert!(text.contains("behind the end of allocation #"), "{text}");
            allocator.free(address).unwrap();
        }
        assert!(allocator.guard().findings().is_empty());
        ends_clean(gpu, allocator);
    });
}

#[test]
fn a_write_into_the_rounding_is_found_at_the_free() {
    let (gpu, allocator) = guarded("guard:on");
    let address = allocator.allocate(1000, S).unwrap();
    gpu.launch_write(S, range(address, 1003), 7, 10).unwrap();
    let faults = gpu.faults();
    assert_eq!(
        faults,
        [Fault::MarkedUse { range: range(address + 1000, 3), stream: S }],
        "the simulation sees it at once"
    );
    allocator.free(address).unwrap();
    gpu.advance(100);
    allocator.allocate(1, S).unwrap();
    let found = allocator.guard().findings();
    let [finding @ Finding::Overrun(at)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((at.address, at.allocation.size, at.allocation.number), (address + 1000, 1000, 1));
    assert!(finding.to_string().starts_with("written beyond the end: "), "{finding}");
}

#[test]
fn a_write_before_the_beginning_is_found_at_the_free_and_far_before_at_once() {
    let (gpu, allocator) = guarded("guard:on");
    let address = allocator.allocate(1000, S).unwrap();
    gpu.launch_write(S, range(address - 8, 8), 7, 10).unwrap();
    allocator.free(address).unwrap();
    gpu.advance(100);
    allocator.guard().check().unwrap();
    let found = allocator.guard().findings();
    let [Finding::Underrun(at)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((at.address, at.allocation.address), (address - 1, address));
    // 2 MiB fill their memory, so that the byte before is nobody's.
    let whole = allocator.allocate(2 * MIB, S).unwrap();
    let text = illegal(&gpu, &allocator, S, range(whole - 1, 2));
    assert!(text.contains("is 1 byte before allocation #2"), "{text}");
}

#[test]
fn live_allocations_are_looked_at_when_asked() {
    let (gpu, allocator) = guarded("guard:on");
    let address = allocator.allocate(1000, S).unwrap();
    assert_eq!(allocator.guard().check(), Ok(0));
    gpu.launch_write(S, range(address + 1000, 1), 7, 10).unwrap();
    assert_eq!(allocator.guard().check(), Ok(1));
    assert_eq!(allocator.guard().check(), Ok(1), "told once");
    allocator.free(address).unwrap();
    assert_eq!(allocator.guard().check(), Ok(1), "told once");
    assert_eq!(names(&allocator), ["overrun"]);
}

#[test]
fn a_use_after_the_free_is_seen_while_the_memory_is_mapped_and_illegal_afterwards() {
    each_strategy("guard:on", |gpu, allocator| {
        let address = allocator.allocate(3 * MIB, S).unwrap();
        gpu.launch(S, &[range(address, 3 * MIB)], 10).unwrap();
        let hold = gpu.hold(S);
        allocator.free(address).unwrap();
        gpu.launch(S, &[range(address, 16)], 10).unwrap();
        assert!(matches!(gpu.faults().as_slice(), [Fault::MarkedUse { .. }]), "poisoned: {:?}", gpu.faults());
        let text = allocator.guard().explain(address).unwrap().to_string();
        assert!(text.contains("freed on stream 0x1 after allocation #1, still mapped)"), "{text}");
        gpu.finish_hold(hold);
        gpu.advance(100);
        let other = allocator.allocate(10, S).unwrap();
        let text = illegal(gpu, &allocator, S, range(address + 100, 16));
        assert!(text.contains("100 bytes into allocation #1 (3.00 MiB (3145728 bytes) at"), "{text}");
        assert!(text.contains("freed on stream 0x1 after allocation #1, unmapped since)"), "{text}");
        allocator.free(other).unwrap();
        ends_clean(gpu, allocator);
    });
}

#[test]
fn a_use_after_the_memory_serves_others_is_illegal_too() {
    // Memory for two of the allocations, so that each takes what another has freed.
    let (gpu, allocator) = simulated::on("sim:h200,capacity=128MiB", Config::parse("guard:on").unwrap());
    let first = allocator.allocate(60 * MIB, S).unwrap();
    allocator.free(first).unwrap();
    for _ in 0..20 {
        let address = allocator.allocate(60 * MIB, S).unwrap();
        assert_ne!(address, first, "its addresses are in quarantine");
        gpu.launch(S, &[range(address, 60 * MIB)], 10).unwrap();
        allocator.free(address).unwrap();
        let text = illegal(&gpu, &allocator, S, range(first + 5, 1));
        assert!(text.contains("5 bytes into allocation #1"), "{text}");
    }
    assert_eq!(names(&allocator), [""; 0]);
    assert_eq!(allocator.stats().guard.unguarded, 0, "what was freed makes room");
    ends_clean(&gpu, allocator);
}

#[test]
fn a_write_after_the_free_is_found_when_the_memory_goes() {
    for (offset, size) in [(700, 1000), (MIB - 1, MIB)] {
        let (gpu, allocator) = guarded("guard:on");
        let address = allocator.allocate(size, S).unwrap();
        let hold = gpu.hold(S);
        allocator.free(address).unwrap();
        gpu.launch_write(S, range(address + offset, 1), 0, 10).unwrap();
        gpu.finish_hold(hold);
        gpu.advance(100);
        allocator.guard().check().unwrap();
        let found = allocator.guard().findings();
        let [Finding::WriteAfterFree(at)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((at.address, at.allocation.number), (address + offset, 1));
    }
}

#[test]
fn a_second_free_is_told_with_the_first() {
    each_strategy("guard:on", |gpu, allocator| {
        let address = allocator.allocate(4096, StreamId(7)).unwrap();
        let kept = allocator.allocate(10, S).unwrap();
        allocator.free(address).unwrap();
        for _ in 0..2 {
            let text = allocator.free(address).unwrap_err().to_string();
            assert!(text.contains("freed twice") && text.contains("allocation #1 (4096 bytes at"), "{text}");
            assert!(text.contains("of stream 0x7, freed on stream 0x7 after allocation #2"), "{text}");
            gpu.advance(1000);
            assert_eq!(allocator.free_on(address, T).unwrap_err().to_string(), text);
            allocator.free_with_current_stream(address, T).unwrap_err();
        }
        assert_eq!(names(&allocator), ["double_free"; 6]);
        allocator.free(kept).unwrap();
        ends_clean(gpu, allocator);
    });
}

#[test]
fn a_free_of_an_inner_address_is_told() {
    // Without a guard too, since it is remembered.
    for options in ["guard:on", "guard:streams", "guard:on,guard_min_size:1GiB"] {
        let (gpu, allocator) = guarded(options);
        let address = allocator.allocate(4096, S).unwrap();
        let text = allocator.free(address + 512).unwrap_err().to_string();
        assert!(
            text.contains("freed at a wrong address") && text.contains("is 512 bytes into allocation #1"),
            "{text}"
        );
        assert_eq!(names(&allocator), ["wrong_free"], "{options}");
        allocator.free(address).unwrap();
        let text = allocator.free(address).unwrap_err().to_string();
        assert!(text.contains("freed twice"), "{options}: {text}");
        let text = allocator.free(1 << 45).unwrap_err().to_string();
        assert!(text.contains("or of another allocator?"), "nothing is known of it: {text}");
        ends_clean(&gpu, allocator);
    }
}

#[test]
fn without_guard_mode_nothing_is_explained() {
    let (gpu, allocator) = guarded("");
    let address = allocator.allocate(4096, S).unwrap();
    allocator.guard().record_access(&[address], T).unwrap();
    allocator.free(address).unwrap();
    assert!(allocator.free(address).unwrap_err().to_string().contains("freed twice, or of another allocator?"));
    assert_eq!(allocator.guard().explain(address), None);
    assert_eq!(allocator.guard().check(), Ok(0));
    assert_eq!((made(&gpu, Call::Fill), made(&gpu, Call::Read)), (0, 0));
    assert_eq!(allocator.stats().guard, Default::default());
}
