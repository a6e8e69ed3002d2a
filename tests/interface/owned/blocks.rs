//! Blocks: what they are, what dropping them does, and what they leave when they are taken apart.

use super::{MAIN, MIB, SIDE, device, live};
use crate::log;
use seamalloc::driver::sim::Range;
use seamalloc::driver::{Call, Driver, Status};
use seamalloc::{Allocator, Block, Error, RawBlock, StreamId};
use std::rc::Rc;
use std::sync::Arc;

#[test]
fn a_block_frees_itself_on_its_stream() {
    let (gpu, allocator) = device();
    let block = allocator.block(10 * MIB, MAIN).unwrap();
    assert_eq!((block.len(), block.stream(), block.last_use(), block.is_empty()), (10 * MIB, MAIN, MAIN, false));
    assert_eq!(block.as_ptr::<u8>().addr() as u64, block.address());
    assert!(allocator.reports().owns(block.address()));
    let (address, calls) = (block.address(), gpu.call_stats());
    drop(block);
    assert_eq!(live(&allocator), 0);
    // At once, for the same stream: as after a plain free.
    assert_eq!(allocator.block(10 * MIB, MAIN).unwrap().address(), address);
    assert_eq!(gpu.call_stats(), calls, "a hit calls no driver");
}

#[test]
fn a_block_goes_to_other_threads_with_its_allocator() {
    fn is_send<T: Send + Sync>(_: &T) {}
    let (_, allocator) = device();
    let allocator = Arc::new(allocator);
    let block = Block::new(Arc::clone(&allocator), MIB, MAIN).unwrap();
    is_send(&block);
    is_send(&allocator.block(MIB, MAIN).unwrap());
    assert_eq!(live(&allocator), 1);
    std::thread::spawn(move || drop(block)).join().unwrap();
    assert_eq!(live(&allocator), 0);
    assert_eq!(Arc::strong_count(&allocator), 1);
}

#[test]
fn any_way_to_an_allocator_will_do() {
    let (_, allocator) = device();
    let allocator = Rc::new(allocator);
    let block = Block::new(Rc::clone(&allocator), MIB, MAIN).unwrap();
    let of_a_program: &'static Allocator = Box::leak(Box::new(Allocator::open("sim:h200", "").unwrap()));
    let leaked: Block<&'static Allocator> = of_a_program.block(MIB, MAIN).unwrap();
    assert_eq!(live(&allocator), 1);
    drop((block, leaked));
    assert_eq!(live(&allocator), 0);
}

#[test]
fn the_last_block_ends_its_allocator() {
    let (gpu, allocator) = device();
    let allocator = Arc::new(allocator);
    let block = Block::new(Arc::clone(&allocator), MIB, MAIN).unwrap();
    drop(allocator);
    assert!(gpu.leaks().handles > 0);
    drop(block);
    assert_eq!(gpu.leaks().handles, 0);
}

/// The block's memory waits for the stream that used it last: a kernel there still runs when its own stream asks again.
#[test]
fn the_stream_of_the_last_use_is_waited_for() {
    let (gpu, allocator) = device();
    for named in [false, true] {
        let mut block = allocator.block(10 * MIB, MAIN).unwrap();
        let address = block.address();
        allocator.limits().set_bytes(Some(10 * MIB)).unwrap();
        gpu.launch(SIDE, &[Range { address, size: 10 * MIB }], 1_000_000).unwrap();
        if named {
            block.set_last_use(SIDE);
            assert!(format!("{block:?}").contains("last_use"));
        }
        drop(block);
        let again = allocator.block(10 * MIB, MAIN).unwrap();
        assert_eq!(again.address(), address);
        assert_eq!(gpu.done_at(MAIN) >= gpu.done_at(SIDE), named, "it waits on the GPU for the last use");
    }
    assert_eq!(live(&allocator), 0);
}

#[test]
fn a_block_of_nothing_has_no_memory() {
    let (_, allocator) = device();
    let mut empty = allocator.block(0, MAIN).unwrap();
    assert!(empty.is_empty() && empty.address() == 0);
    empty.free().unwrap();
    assert_eq!(allocator.stats().allocation.all.allocated, 0);
}

#[test]
fn what_was_taken_apart_is_put_together_again() {
    let (_, allocator) = device();
    let raw = allocator.block(3 * MIB, MAIN).unwrap().into_raw();
    assert_eq!((raw.size, raw.stream), (3 * MIB, MAIN));
    assert_eq!(live(&allocator), 1, "nobody frees it");
    let block = Block::from_raw(&allocator, raw);
    assert_eq!((block.address(), block.len()), (raw.address, raw.size));
    drop(block);
    assert_eq!(live(&allocator), 0);

    let counted = Arc::new(Allocator::open("sim:h200", "").unwrap());
    let raw = Block::new(Arc::clone(&counted), MIB, MAIN).unwrap().into_raw();
    assert_eq!(Arc::strong_count(&counted), 1, "the way to the allocator ends");
    counted.free(raw.address).unwrap();
}

#[test]
fn a_raw_block_remembers_who_used_it_last() {
    let (gpu, allocator) = device();
    let mut block = allocator.block(10 * MIB, MAIN).unwrap();
    gpu.launch(SIDE, &[Range { address: block.address(), size: 10 * MIB }], 1_000_000).unwrap();
    block.set_last_use(SIDE);
    let raw = block.into_raw();
    allocator.limits().set_bytes(Some(10 * MIB)).unwrap();
    allocator.free(raw.address).unwrap();
    let again = allocator.block(10 * MIB, MAIN).unwrap();
    assert_eq!(again.address(), raw.address);
    assert!(gpu.done_at(MAIN) >= gpu.done_at(SIDE), "it waits on the GPU for the last use");
}

#[test]
fn a_free_that_fails_leaves_the_block_as_it_was() {
    let (gpu, allocator) = device();
    let mut block = allocator.block(10 * MIB, MAIN).unwrap();
    block.set_last_use(SIDE);
    gpu.fail_nth(Call::EventRecord, 1, Status::UNKNOWN);
    assert!(matches!(block.free(), Err(Error::Driver(_))));
    assert_eq!((block.len(), live(&allocator)), (10 * MIB, 1));
    block.free().unwrap();
    assert_eq!((block.len(), block.address(), live(&allocator)), (0, 0, 0));
    assert!(log::errors(|| drop(block)).is_empty(), "there is nothing to free");
}

#[test]
fn a_free_that_fails_in_a_drop_is_logged_and_the_memory_stays() {
    let (gpu, allocator) = device();
    let mut block = allocator.block(10 * MIB, MAIN).unwrap();
    let address = block.address();
    block.set_last_use(SIDE);
    gpu.fail_nth(Call::EventRecord, 1, Status::UNKNOWN);
    let errors = log::errors(|| drop(block));
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("could not be freed") && errors[0].contains(&address.to_string()), "{errors:?}");
    assert!(allocator.reports().owns(address));
    allocator.free(address).unwrap();
}

#[test]
fn an_address_that_is_not_live_is_no_more_than_a_line_in_the_log() {
    let (_, allocator) = device();
    let wrong = RawBlock { address: 4096, size: 512, stream: StreamId::DEFAULT };
    let errors = log::errors(|| drop(Block::from_raw(&allocator, wrong)));
    assert!(matches!(&errors[..], [error] if error.contains("not the address of a live allocation")), "{errors:?}");
    allocator.reports().check().unwrap();
}

#[test]
fn a_lost_context_does_not_make_a_drop_panic() {
    let (gpu, allocator) = device();
    let allocator = Arc::new(allocator);
    let mut blocks: Vec<_> = (0..8).map(|_| Block::new(Arc::clone(&allocator), 10 * MIB, MAIN).unwrap()).collect();
    blocks.iter_mut().step_by(2).for_each(|block| block.set_last_use(SIDE));
    drop(allocator);
    gpu.lose_context(Status::ILLEGAL_ADDRESS);
    let errors = log::errors(|| drop(blocks));
    assert_eq!(errors.len(), 4, "{errors:?}");
}
