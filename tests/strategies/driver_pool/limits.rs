//! Limits, trims and figures, which go by whole steps of 32 MiB.

use super::{MAIN, MIB, balanced, calls, held, on};
use crate::random::Random;
use seamalloc::Error;
use seamalloc::driver::Call;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn a_limit_counts_what_the_pool_holds() {
    let (gpu, allocator) = on("sim:h200", "memory_limit:100MiB");
    assert!(allocator.allocate(97 * MIB, MAIN).unwrap_err().is_out_of_memory(), "it would be 128 MiB");
    let whole = allocator.allocate(96 * MIB, MAIN).unwrap();
    assert_eq!(held(&allocator), 96 * MIB);
    let Err(Error::OutOfMemory(report)) = allocator.allocate(1, MAIN) else { panic!("beyond the limit") };
    assert_eq!(report.limit, Some(100 * MIB));
    allocator.free(whole).unwrap();
    // Free memory serves without growth, in parts too.
    let parts = [30, 40, 20].map(|size| allocator.allocate(size * MIB, MAIN).unwrap());
    assert_eq!(held(&allocator), 96 * MIB);
    allocator.free(parts[1]).unwrap();
    assert!(allocator.allocate(45 * MIB, MAIN).is_err());
    // The attempt has trimmed the one step in the middle that was free.
    assert_eq!(held(&allocator), 64 * MIB);
    allocator.allocate(30 * MIB, MAIN).unwrap();
    balanced(&gpu, &allocator);
    allocator.limits().set_bytes(None).unwrap();
    allocator.allocate(45 * MIB, MAIN).unwrap();
}

#[test]
fn after_any_operation_no_more_is_held_than_the_limit() {
    for seed in 0..8 {
        let mut random = Random(seed);
        let limit = (96 + random.below(200)) * MIB;
        let (gpu, allocator) = on("sim:h200,capacity=1GiB", &format!("memory_limit:{limit}B"));
        let (mut live, mut refused, mut served) = (Vec::new(), 0, 0);
        for _ in 0..400 {
            if random.below(3) > 0 {
                match allocator.allocate(1 + random.below(40 * MIB), MAIN) {
                    Ok(address) => {
                        live.push(address);
                        served += 1;
                    }
                    Err(error) => {
                        assert!(error.is_out_of_memory(), "{error}");
                        refused += 1;
                    }
                }
            } else if !live.is_empty() {
                allocator.free(live.swap_remove(random.below(live.len() as u64) as usize)).unwrap();
            }
            assert!(held(&allocator) <= limit, "{} of {limit}", held(&allocator));
            balanced(&gpu, &allocator);
        }
        assert!(refused > 20 && served > 100, "{refused} refused, {served} served");
    }
}

#[test]
fn a_trim_gives_back_as_many_steps_as_were_asked_for() {
    let (gpu, allocator) = on("sim:h200", "");
    let kept = allocator.allocate(10 * MIB, MAIN).unwrap();
    let freed = allocator.allocate(200 * MIB, MAIN).unwrap();
    assert_eq!(held(&allocator), 224 * MIB);
    allocator.free(freed).unwrap();
    assert_eq!(allocator.trim(40 * MIB), Ok(64 * MIB));
    assert_eq!(allocator.trim(0), Ok(0));
    balanced(&gpu, &allocator);
    assert_eq!(allocator.empty_cache(), Ok(128 * MIB));
    allocator.free(kept).unwrap();
    assert_eq!(allocator.empty_cache(), Ok(32 * MIB));
    balanced(&gpu, &allocator);
}

#[test]
fn a_snapshot_has_the_blocks_and_the_rest_is_free() {
    let (gpu, allocator) = on("sim:h200", "");
    allocator.allocate(10 * MIB, MAIN).unwrap();
    allocator.free(allocator.allocate(70 * MIB, MAIN).unwrap()).unwrap();
    let shown: u64 = allocator.reports().snapshot().segments.iter().map(|segment| segment.total_size).sum();
    assert_eq!((shown, allocator.reports().fragmentation().free, held(&allocator)), (10 * MIB, 86 * MIB, 96 * MIB));
    assert_eq!(allocator.stats().reserved_bytes.all.peak, 96 * MIB);
    balanced(&gpu, &allocator);
}

/// The pool holds 96 MiB, of which 32 are live.
#[test]
fn a_trim_waits_for_the_device_only_where_too_little_is_free() {
    for (asked, given, trims, waits) in [(0, 0, 0, 0), (32, 32, 1, 0), (64, 64, 1, 0), (96, 64, 1, 1)] {
        let (gpu, allocator) = on("sim:h200", "");
        let _kept = allocator.allocate(32 * MIB, MAIN).unwrap();
        allocator.free(allocator.allocate(64 * MIB, MAIN).unwrap()).unwrap();
        assert_eq!(allocator.trim(asked * MIB), Ok(given * MIB), "{asked}");
        let made = [calls(&gpu, Call::PoolTrim), allocator.stats().num_sync_all_streams];
        assert_eq!(made, [trims, waits], "{asked}");
        balanced(&gpu, &allocator);
    }
}

#[test]
fn free_memory_of_the_very_size_serves_at_a_limit() {
    let (gpu, allocator) = on("sim:h200", "memory_limit:100MiB");
    let parts = [30, 40, 26].map(|size| allocator.allocate(size * MIB, MAIN).unwrap());
    allocator.free(parts[1]).unwrap();
    assert_eq!(allocator.allocate(40 * MIB, MAIN), Ok(parts[1]));
    assert_eq!((held(&allocator), allocator.stats().num_alloc_retries), (96 * MIB, 0));
    // Once for each request that is refused.
    for retries in 1..4 {
        assert!(allocator.allocate(MIB, MAIN).unwrap_err().is_out_of_memory());
        assert_eq!(allocator.stats().num_alloc_retries, retries);
    }
    balanced(&gpu, &allocator);
}

/// Live memory may exceed a limit that came later. The free part of that memory serves requests.
#[test]
fn beyond_a_later_limit_free_memory_serves() {
    let (gpu, allocator) = on("sim:h200", "memory_limit:100MiB");
    let parts = [30, 40, 20, 6].map(|size| allocator.allocate(size * MIB, MAIN).unwrap());
    allocator.limits().set_bytes(Some(64 * MIB)).unwrap();
    allocator.free(parts[3]).unwrap();
    assert_eq!((allocator.allocate(6 * MIB, MAIN), held(&allocator)), (Ok(parts[3]), 96 * MIB));
    balanced(&gpu, &allocator);
}

/// The program may free something: it is asked before the CPU waits, and before memory goes back.
#[test]
fn a_program_is_asked_for_memory_first() {
    let (gpu, allocator) = on("sim:h200,capacity=64MiB", "");
    let _kept = allocator.allocate(40 * MIB, MAIN).unwrap();
    let asked = Arc::new(AtomicU32::new(0));
    let (count, of) = (Arc::clone(&asked), Arc::clone(&gpu));
    allocator.limits().on_pressure(move |_| {
        let made = [Call::PoolTrim, Call::Synchronize].map(|call| calls(&of, call));
        assert_eq!(made, [0, 0]);
        count.fetch_add(1, Ordering::Relaxed) == 0
    });
    assert!(allocator.allocate(40 * MIB, MAIN).unwrap_err().is_out_of_memory());
    assert_eq!((asked.load(Ordering::Relaxed), allocator.stats().num_alloc_retries), (1, 1));
    assert!(calls(&gpu, Call::PoolTrim) > 0, "at last by all means");
    balanced(&gpu, &allocator);
}
