//! Planted mistakes with streams: memory freed while another stream uses it, and programs that do it right.

use super::*;

/// An allocation of `S`, and work on other streams that uses it and has not ended.
fn used_on(gpu: &SimGpu, allocator: &Allocator, streams: &[StreamId]) -> u64 {
    let address = allocator.allocate(MIB, S).unwrap();
    for stream in streams {
        gpu.hold(*stream);
        gpu.launch(*stream, &[range(address, MIB)], 10).unwrap();
        allocator.guard().record_access(&[address + 100], *stream).unwrap();
    }
    address
}

/// The streams that findings name.
fn missing(allocator: &Allocator) -> Vec<StreamId> {
    let stream = |finding: &Finding| match finding {
        Finding::MissingRecordStream { used_on, .. } => *used_on,
        other => panic!("{other}"),
    };
    allocator.guard().findings().iter().map(stream).collect()
}

#[test]
fn a_missing_record_stream_is_found_at_the_free() {
    for guard in ["guard:on", "guard:streams"] {
        each_strategy(guard, |gpu, allocator| {
            let address = used_on(gpu, &allocator, &[T]);
            allocator.free(address).unwrap();
            assert_eq!(missing(&allocator), [T]);
            let text = allocator.guard().findings()[0].to_string();
            assert!(
                text.contains("used by work of stream 0x2") && text.contains("let stream 0x1 wait for it"),
                "{text}"
            );
            // The run goes on unharmed: nobody gets the memory before the other stream has passed.
            let next = allocator.allocate(MIB, S).unwrap();
            assert!(next >= address + MIB || next + MIB <= address);
            allocator.free(next).unwrap();
            allocator.empty_cache().unwrap();
            assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
            ends_clean(gpu, allocator);
        });
    }
}

#[test]
fn a_free_on_the_wrong_stream_is_found() {
    let (gpu, allocator) = guarded("guard:on");
    // The last use is on U; the program names T.
    let address = used_on(&gpu, &allocator, &[T, U]);
    allocator.free_on(address, T).unwrap();
    assert_eq!(missing(&allocator), [U]);
    // The current stream is no named stream: PyTorch would hand the memory out again on S at once.
    let address = used_on(&gpu, &allocator, &[T]);
    allocator.free_with_current_stream(address, T).unwrap();
    assert_eq!(missing(&allocator), [U, T]);
    allocator.empty_cache().unwrap();
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    ends_clean(&gpu, allocator);
}

#[test]
fn programs_that_say_so_or_wait_are_not_blamed() {
    each_strategy("guard:on", |gpu, allocator| {
        let named = used_on(gpu, &allocator, &[T]);
        allocator.record_stream(named, T).unwrap();
        allocator.free(named).unwrap();
        let named = used_on(gpu, &allocator, &[T]);
        allocator.free_on(named, T).unwrap();
        let ordered = used_on(gpu, &allocator, &[T]);
        allocator.guard().record_event(99, T).unwrap();
        allocator.guard().record_wait(S, 99).unwrap();
        allocator.free(ordered).unwrap();
        let own = used_on(gpu, &allocator, &[S]);
        allocator.free(own).unwrap();
        let ended = used_on(gpu, &allocator, &[U]);
        while gpu.finish(U) {}
        gpu.advance(100);
        allocator.free(ended).unwrap();
        // Later work of the stream has nothing to do with the memory.
        let ended = used_on(gpu, &allocator, &[U]);
        while gpu.finish(U) {}
        gpu.advance(100);
        gpu.hold(U);
        allocator.free(ended).unwrap();
        assert_eq!(missing(&allocator), []);
        // The same with one use after the event.
        let address = used_on(gpu, &allocator, &[T]);
        allocator.guard().record_wait(S, 99).unwrap();
        allocator.free(address).unwrap();
        assert_eq!(missing(&allocator), [T]);
        while gpu.finish(S) || gpu.finish(T) || gpu.finish(U) {}
        allocator.empty_cache().unwrap();
        ends_clean(gpu, allocator);
    });
}

#[test]
fn uses_by_a_stream_that_was_forgotten_have_ended() {
    let (gpu, allocator) = guarded("guard:on");
    let address = used_on(&gpu, &allocator, &[T]);
    allocator.streams().forget(T).unwrap();
    allocator.free(address).unwrap();
    assert_eq!(missing(&allocator), []);
    // The memory of a stream that ended belongs to none.
    let address = used_on(&gpu, &allocator, &[T]);
    allocator.streams().forget(S).unwrap();
    gpu.destroy_stream(S);
    allocator.free(address).unwrap();
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    ends_clean(&gpu, allocator);
}

#[test]
fn streams_that_vanish_do_not_keep_memory() {
    let (gpu, allocator) = guarded("guard:on");
    let live = allocator.allocate(MIB, S).unwrap();
    let waiting = allocator.allocate(MIB, S).unwrap();
    gpu.hold(S);
    allocator.free(waiting).unwrap();
    gpu.destroy_stream(S);
    allocator.free(live).unwrap();
    allocator.streams().mark_external(U).unwrap();
    let borrowed = allocator.allocate(MIB, U).unwrap();
    gpu.destroy_stream(U);
    allocator.free(borrowed).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
    ends_clean(&gpu, allocator);
}

/// The handle of the allocation's own stream belongs to another one, of whose work nobody has told.
#[test]
fn a_new_stream_with_the_handle_of_the_old_one_has_to_be_named() {
    each_strategy("guard:on", |gpu, allocator| {
        let [silent, named] = [(); 2].map(|()| allocator.allocate(MIB, S).unwrap());
        allocator.streams().forget(S).unwrap();
        gpu.replace_stream(S);
        gpu.hold(S);
        for address in [silent, named] {
            gpu.launch(S, &[range(address, MIB)], 10).unwrap();
            allocator.guard().record_access(&[address], S).unwrap();
        }
        allocator.record_stream(named, S).unwrap();
        allocator.free(named).unwrap();
        assert_eq!(missing(&allocator), []);
        allocator.free(silent).unwrap();
        assert_eq!(missing(&allocator), [S]);
        allocator.empty_cache().unwrap();
        assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
        ends_clean(gpu, allocator);
    });
}

/// The numbers of its uses begin anew.
#[test]
fn what_a_forgotten_stream_used_is_not_blamed_on_the_next_one() {
    let (gpu, allocator) = guarded("guard:on");
    let [old, new] = [(); 2].map(|()| allocator.allocate(MIB, S).unwrap());
    (0..5).for_each(|_| allocator.guard().record_access(&[old], T).unwrap());
    allocator.streams().forget(T).unwrap();
    gpu.replace_stream(T);
    gpu.hold(T);
    allocator.guard().record_access(&[new], T).unwrap();
    allocator.free(old).unwrap();
    assert_eq!(missing(&allocator), []);
    allocator.free_on(new, T).unwrap();
    assert_eq!(missing(&allocator), []);
    gpu.finish(T);
    ends_clean(&gpu, allocator);
}
