//! Random stacks of layers, random programs, and failures below: what each layer says afterwards, against a model of it.
//!
//! The model knows only which blocks the program has, and by which rule each layer counts them.

use crate::fake::{Fake, broken, refused};
use crate::stack::{Kind, Made, Program, Shared, stack};
use crate::{MAIN, SIDE, gpu};
use parking_lot::Mutex;
use proptest::prelude::*;
use seamalloc::driver::{Call, Status, StreamId};
use seamalloc::{Allocator, Config};
use seamalloc_layers::{RawBlock, ResourceError, Result};
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Operation {
    Allocate {
        size: u64,
        stream: StreamId,
        fails: bool,
    },
    Free {
        nth: usize,
        stream: StreamId,
        fails: bool,
    },
    /// Of a block that was never handed out.
    FreeUnknown {
        address: u64,
    },
    /// Of a live one, with another size.
    FreeWrongSize {
        nth: usize,
    },
    Release,
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let kind = prop_oneof![
        (200u64..2000, prop_oneof![Just(1u64), Just(8), Just(512)])
            .prop_map(|(limit, alignment)| Kind::Limit { limit, alignment }),
        Just(Kind::Tracking),
        Just(Kind::Statistics),
        Just(Kind::Logging),
        Just(Kind::FailureCallback),
        Just(Kind::Retry),
    ];
    prop::collection::vec(kind, 0..7)
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let stream = || prop_oneof![Just(MAIN), Just(SIDE)];
    let operation = prop_oneof![
        6 => (0u64..400, stream(), prop::bool::weighted(0.1))
            .prop_map(|(size, stream, fails)| Operation::Allocate { size, stream, fails }),
        4 => (any::<usize>(), stream(), prop::bool::weighted(0.2))
            .prop_map(|(nth, stream, fails)| Operation::Free { nth, stream, fails }),
        1 => (1u64..4000).prop_map(|address| Operation::FreeUnknown { address }),
        1 => any::<usize>().prop_map(|nth| Operation::FreeWrongSize { nth }),
        1 => Just(Operation::Release),
    ];
    prop::collection::vec(operation, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    /// Over the fake, which tells beforehand what it will say: every answer is predicted.
    #[test]
    fn every_stack_answers_as_its_layers_do(kinds in kinds(), operations in operations()) {
        let fake = Arc::new(Fake::new(1500));
        let mut stack = stack(&kinds, Arc::clone(&fake) as Shared);
        let mut program = Program::default();
        for operation in operations {
            match operation {
                Operation::Allocate { size, stream, fails } => {
                    if fails {
                        fake.fail_allocation();
                    }
                    let full = || (program.bytes() + size > 1500).then(|| refused(size, program.bytes(), 1500));
                    let below = if fails { Some(broken()) } else { full() };
                    let expected = stack.expect_allocation(&program, size, below);
                    let found = stack.top.allocate(size, stream);
                    prop_assert_eq!(found.as_ref().err(), expected.as_ref());
                    if let Ok(block) = found {
                        prop_assert_eq!((block.size, block.stream), (size, stream));
                        program.insert(block);
                    }
                }
                Operation::Free { nth, stream, fails } => {
                    let Some(block) = program.nth(nth) else { continue };
                    if fails {
                        fake.fail_free();
                        prop_assert_eq!(stack.top.deallocate(block, stream), Err(broken()));
                    } else {
                        stack.expect_free(block);
                        prop_assert_eq!(stack.top.deallocate(block, stream), Ok(()));
                        program.remove(block);
                    }
                }
                Operation::FreeUnknown { address } => {
                    let unknown = RawBlock { address, size: 8, stream: MAIN };
                    prop_assert_eq!(stack.top.deallocate(unknown, MAIN), Err(ResourceError::UnknownBlock { address }));
                }
                Operation::FreeWrongSize { nth } => {
                    let Some(block) = program.nth(nth).filter(|block| !block.is_empty()) else { continue };
                    if stack.has_tracking() {
                        let wrong = RawBlock { size: block.size + 1, ..block };
                        let error = ResourceError::SizeMismatch {
                            address: block.address,
                            allocated: block.size,
                            freed: block.size + 1,
                        };
                        prop_assert_eq!(stack.top.deallocate(wrong, MAIN), Err(error));
                    }
                }
                Operation::Release => prop_assert_eq!(stack.top.release(), Ok(0)),
            }
            fake.state.lock().fail = [false; 2];
            prop_assert_eq!(fake.live(), program.live.values().copied().collect::<Vec<_>>());
            stack.check(&program);
        }
        stack.check_logs(&program);
        while let Some(block) = program.nth(0) {
            stack.expect_free(block);
            stack.top.deallocate(block, block.stream).unwrap();
            program.remove(block);
        }
        stack.check(&program);
        stack.check_logs(&program);
    }

    /// Over an allocator whose driver fails now and then: whatever it answers, each layer counts what the program has.
    #[test]
    fn every_stack_counts_what_an_allocator_hands_out(
        kinds in kinds(),
        operations in operations(),
        kind in 0usize..12,
        nth in 1u64..4,
    ) {
        const SCALE: u64 = 64 << 10;
        let gpu = gpu("sim:h200,capacity=64MiB");
        let config = Config::with_strategy(seamalloc::StrategyKind::ALL[kind]);
        let allocator = Arc::new(Allocator::new(Arc::clone(&gpu) as _, config).unwrap());
        let larger = |kind: &Kind| match *kind {
            Kind::Limit { limit, alignment } => Kind::Limit { limit: limit * SCALE, alignment },
            kind => kind,
        };
        let kinds: Vec<Kind> = kinds.iter().map(larger).collect();
        let stack = stack(&kinds, Arc::clone(&allocator) as Shared);
        let mut program = Program::default();
        for operation in operations {
            match operation {
                Operation::Allocate { size, stream, fails } => {
                    if fails {
                        for call in [Call::Malloc, Call::Create, Call::Map] {
                            gpu.fail_nth(call, nth, Status(999));
                        }
                    }
                    if let Ok(block) = stack.top.allocate(size * SCALE, stream) {
                        program.insert(block);
                    }
                }
                Operation::Free { nth: at, stream, fails } => {
                    let Some(block) = program.nth(at) else { continue };
                    if fails {
                        gpu.fail_nth(Call::EventRecord, 1, Status(999));
                    }
                    if stack.top.deallocate(block, stream).is_ok() {
                        program.remove(block);
                    }
                }
                Operation::FreeUnknown { address } => {
                    let unknown = RawBlock { address, size: 8, stream: MAIN };
                    prop_assert!(stack.top.deallocate(unknown, MAIN).is_err());
                }
                Operation::FreeWrongSize { .. } => {}
                Operation::Release => drop(stack.top.release()),
            }
            gpu.fail_no_more();
            prop_assert_eq!(allocator.stats().allocation.all.current, program.live.len() as u64);
            allocator.reports().check().unwrap();
            let live: Vec<RawBlock> = program.live.values().copied().collect();
            for layer in &stack.layers {
                match layer {
                    Made::Limit(layer, _, alignment) => prop_assert_eq!(layer.allocated(), program.counted(*alignment)),
                    Made::Tracking(layer) => {
                        let blocks: Vec<RawBlock> = layer.outstanding().unwrap().iter().map(|of| of.block).collect();
                        prop_assert_eq!(&blocks, &live);
                    }
                    Made::Statistics(layer, _) => prop_assert_eq!(layer.counters().bytes.value as u64, program.bytes()),
                    Made::Retry(layer) => prop_assert_eq!(layer.waiting(), 0),
                    Made::Logging(..) | Made::FailureCallback(..) => {}
                }
            }
        }
        stack.check_logs(&program);
    }
}

/// Threads through one stack: in the end each layer counts what they have left.
#[test]
fn a_stack_counts_right_under_threads() {
    let gpu = gpu("sim:h200,capacity=1GiB");
    let allocator = Arc::new(Allocator::new(Arc::clone(&gpu) as _, Config::default()).unwrap());
    let kinds = [
        Kind::Limit { limit: 300 << 20, alignment: 512 },
        Kind::Logging,
        Kind::Tracking,
        Kind::Statistics,
        Kind::FailureCallback,
        Kind::Retry,
        Kind::Tracking,
    ];
    let stack = stack(&kinds, allocator as Shared);
    let left = Mutex::new(Program::default());
    std::thread::scope(|scope| {
        for at in 0..4u64 {
            let (stack, left) = (&stack, &left);
            scope.spawn(move || {
                let mut held: Vec<RawBlock> = Vec::new();
                for round in 0..300u64 {
                    let size = (at * 97 + round * 31) % 5000 * 1000;
                    let allocated: Result<RawBlock> = stack.top.allocate(size, StreamId(at));
                    held.extend(allocated.ok());
                    if held.len() > 10 {
                        let block = held.swap_remove((round % 7) as usize);
                        stack.top.deallocate(block, StreamId(round % 4)).unwrap();
                    }
                }
                held.into_iter().for_each(|block| left.lock().insert(block));
            });
        }
    });
    let program = left.into_inner();
    assert!(!program.live.is_empty());
    for layer in &stack.layers {
        match layer {
            Made::Limit(layer, _, alignment) => assert_eq!(layer.allocated(), program.counted(*alignment)),
            Made::Tracking(layer) => {
                let blocks: Vec<RawBlock> = layer.outstanding().unwrap().iter().map(|of| of.block).collect();
                assert_eq!(blocks, program.live.values().copied().collect::<Vec<_>>());
            }
            Made::Statistics(layer, _) => {
                let found = layer.counters();
                assert_eq!(found.bytes.value as u64, program.bytes());
                assert!(found.bytes.peak >= found.bytes.value && found.bytes.peak <= 300 << 20);
            }
            _ => {}
        }
    }
    stack.check_logs(&program);
}
