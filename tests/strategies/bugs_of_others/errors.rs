//! Errors that outlive the call that failed.

use super::{MAIN, MIB, on, sound};
use seamalloc::StrategyKind;
use seamalloc::driver::{Call, Status};

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
                let held = allocator.reserved();
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
                        assert!(allocator.reserved() <= held, "{kind}, {call}");
                    }
                }
                sound(&gpu, &allocator);
                allocator.empty_cache().unwrap();
                assert_eq!(allocator.reserved(), 0, "{kind}, {call}");
                sound(&gpu, &allocator);
                let address = allocator.allocate(200 * MIB, MAIN).unwrap();
                allocator.free(address).unwrap();
                allocator.empty_cache().unwrap();
            }
        }
    }
}
