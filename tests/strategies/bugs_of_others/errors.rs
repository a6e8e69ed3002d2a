//! Errors that outlive the call that failed, and errors that name another cause.

use super::{MAIN, MIB, on, sound};
use seamalloc::driver::{Call, Status};
use seamalloc::out_of_memory::Cause;
use seamalloc::{Error, StrategyKind};

/// Paddle: a creation failed, its error stayed behind as the thread's last one, and a later `empty_cache` returned it.
#[test]
fn an_error_of_one_call_is_not_told_by_another() {
    for kind in StrategyKind::MAIN {
        for status in [Status::OUT_OF_MEMORY, Status::UNKNOWN] {
            let (gpu, allocator) = on(kind, "sim:h200");
            for call in [Call::Create, Call::Malloc, Call::Map, Call::SetAccess, Call::Reserve] {
                // Something that is cached, and more than it is asked for.
                let cached = allocator.allocate(30 * MIB, MAIN).unwrap();
                allocator.free(cached).unwrap();
                let held = allocator.reports().reserved();
                // Also when it is tried again.
                (1..=8).for_each(|nth| gpu.fail_nth(call, nth, status));
                let refused = allocator.allocate(200 * MIB, MAIN);
                gpu.fail_no_more();
                match refused {
                    // A strategy that makes no such call.
                    Ok(address) => allocator.free(address).unwrap(),
                    Err(error) => {
                        let short = status == Status::OUT_OF_MEMORY;
                        assert_eq!(error.is_out_of_memory(), short, "{kind}, {call}: {error}");
                        assert!(allocator.reports().reserved() <= held, "{kind}, {call}");
                    }
                }
                sound(&gpu, &allocator);
                allocator.empty_cache().unwrap();
                assert_eq!(allocator.reports().reserved(), 0, "{kind}, {call}");
                sound(&gpu, &allocator);
                let address = allocator.allocate(200 * MIB, MAIN).unwrap();
                allocator.free(address).unwrap();
                allocator.empty_cache().unwrap();
            }
        }
    }
}

/// Diffuman4D 20, PyTorch 182286, WSL 41176: the driver refuses though much is free by its own word. That is the cause, and no other
/// strategy would have been given the memory.
#[test]
fn memory_that_the_driver_refuses_although_it_is_free_is_the_drivers_word() {
    // These two take nearly the whole device with the first request.
    let holds_all = |kind| matches!(kind, StrategyKind::PaddleNaiveBestFit | StrategyKind::PaddleThreadLocal);
    for kind in StrategyKind::ALL.into_iter().filter(|kind| !holds_all(*kind)) {
        let (gpu, allocator) = on(kind, "sim:h100,capacity=24GiB");
        allocator.allocate(7 << 30, MAIN).unwrap();
        for call in [Call::Create, Call::Malloc, Call::PoolMalloc] {
            (1..200).for_each(|nth| gpu.fail_nth(call, nth, Status::OUT_OF_MEMORY));
        }
        let Err(Error::OutOfMemory(report)) = allocator.allocate(960 * MIB, MAIN) else { panic!("{kind}: served") };
        assert!(report.device_free > 960 * MIB, "{kind}: {report}");
        assert_eq!((report.cause, report.advice.len()), (Cause::Refused, 0), "{kind}: {report}");
        assert!(report.to_string().contains("the driver refused a call"), "{report}");
        gpu.fail_no_more();
        sound(&gpu, &allocator);
        allocator.allocate(960 * MIB, MAIN).unwrap();
    }
}
