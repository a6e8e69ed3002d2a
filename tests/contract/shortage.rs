//! The report of a shortage: its cause, its figures, and advice that helps whoever follows it.

use crate::random::Random;
use crate::script::Step::Allocate;
use crate::script::{Run, advised, balanced, follow};
use crate::simulated::{Device, device as device_of};
use crate::{MAIN, MIB, SHORTER, SIDE, Subject, config_of, on, text_of};
use seamalloc::driver::sim::{CaptureMode, Range};
use seamalloc::fragmentation::Owner;
use seamalloc::out_of_memory::{Advice, Cause, Limit};
use seamalloc::{Allocator, Error, PoolId, Route};
use std::sync::Arc;

pub(crate) fn a_limit_that_is_the_cause_is_named_with_the_one_that_would_do(Subject { kind, .. }: Subject) {
    let script = [Allocate(60 * MIB, MAIN), Allocate(50 * MIB, MAIN)];
    let device = "sim:h200,capacity=400MiB";
    for (options, bound) in [
        ("per_process_memory_fraction:0.25", Limit::Fraction),
        ("memory_limit:100MiB", Limit::Bytes),
        ("memory_limit:300MiB,per_process_memory_fraction:0.25", Limit::Fraction),
        ("memory_limit:100MiB,per_process_memory_fraction:0.9", Limit::Bytes),
        ("memory_limit:104MiB,per_process_memory_fraction:0.25", Limit::Both),
    ] {
        let options = text_of(kind, options);
        let (run, report) = Run::short(device, &options, &script);
        assert_eq!(report.cause, Cause::TooLittle, "{report}");
        assert_eq!(report.limit, Some(100 * MIB), "{report}");
        let advice = advised(&report, |advice| matches!(advice, Advice::RaiseLimit { .. }));
        let Advice::RaiseLimit { limit, .. } = advice else { panic!("{advice:?}") };
        assert_eq!(limit, bound, "{options}: {report}");
        let words = report.to_string();
        assert_eq!(words.contains("per_process_memory_fraction:0."), bound != Limit::Bytes, "{words}");
        assert_eq!(words.contains("memory_limit:1"), bound != Limit::Fraction, "{words}");
        assert!(follow(advice, run, device, &options, &script));
    }
    // With nothing to spare on the device, a higher limit would not help, and is not advised.
    let options = text_of(kind, "per_process_memory_fraction:0.9");
    let (_, report) = Run::short("sim:h200,capacity=100MiB", &options, &script);
    assert!(!report.advice.iter().any(|advice| matches!(advice, Advice::RaiseLimit { .. })), "{report}");
}

pub(crate) fn a_headroom_that_is_the_cause_is_named_with_the_one_that_would_do(Subject { kind, .. }: Subject) {
    let script = [Allocate(60 * MIB, MAIN), Allocate(50 * MIB, MAIN)];
    let device = "sim:h200,capacity=400MiB";
    for options in ["headroom:300MiB", "headroom:300MiB,memory_limit:350MiB,per_process_memory_fraction:0.9"] {
        let options = text_of(kind, options);
        let (run, report) = Run::short(device, &options, &script);
        assert_eq!((report.cause, report.headroom), (Cause::TooLittle, 300 * MIB), "{report}");
        let advice = advised(&report, |advice| matches!(advice, Advice::LowerHeadroom { .. }));
        let Advice::LowerHeadroom { to } = advice else { panic!("{advice:?}") };
        assert!((200 * MIB..300 * MIB).contains(&to), "{report}");
        assert!(!report.advice.iter().any(|advice| matches!(advice, Advice::RaiseLimit { .. })), "{report}");
        let words = report.to_string();
        assert!(words.contains("300.00 MiB are to stay free for others (headroom)"), "{words}");
        assert!(words.contains(&format!("(headroom:{}MiB)", to / MIB)), "{words}");
        assert!(follow(advice, run, device, &options, &script));
    }
    // Where a limit forbids the request too, neither alone would help.
    let options = text_of(kind, "headroom:300MiB,memory_limit:100MiB");
    let (_, report) = Run::short(device, &options, &script);
    let is_no_help = |advice: &Advice| matches!(advice, Advice::LowerHeadroom { .. } | Advice::RaiseLimit { .. });
    assert!(!report.advice.iter().any(is_no_help), "{report}");
    // Nor does it where the device itself has too little.
    let options = text_of(kind, "headroom:20MiB");
    let (_, report) = Run::short("sim:h200,capacity=100MiB", &options, &script);
    assert!(!report.advice.iter().any(|advice| matches!(advice, Advice::LowerHeadroom { .. })), "{report}");
    let all = Run::short("sim:h200,capacity=100MiB", &options, &[Allocate(90 * MIB, MAIN)]).1;
    assert_eq!(all.cause, Cause::RequestTooLarge, "{all}");
    assert!(all.to_string().contains("the 80.00 MiB that the device has beside the headroom"), "{all}");
}

pub(crate) fn what_others_hold_of_the_device_is_named_and_its_release_helps(Subject { kind, .. }: Subject) {
    let gpu = Arc::new(device_of("sim:h200,capacity=200MiB"));
    let [other, allocator] = [(); 2].map(|()| Allocator::new(Arc::<Device>::clone(&gpu), config_of(kind, "")).unwrap());
    let cached = other.allocate(120 * MIB, MAIN).unwrap();
    other.free(cached).unwrap();
    let Err(Error::OutOfMemory(report)) = allocator.allocate(150 * MIB, MAIN) else { panic!("it is not there") };
    let advice = advised(&report, |advice| matches!(advice, Advice::FreeDevice { .. }));
    let Advice::FreeDevice { missing, elsewhere } = advice else { panic!("{advice:?}") };
    assert!(missing >= 70 * MIB && missing <= elsewhere && elsewhere == 120 * MIB, "{report}");
    assert!(report.to_string().contains("Others hold the memory: 120.00 MiB of 200.00 MiB."), "{report}");
    other.empty_cache().unwrap();
    allocator.allocate(150 * MIB, MAIN).unwrap();
}

pub(crate) fn live_memory_that_is_too_much_is_said_so_and_how_much(Subject { kind, .. }: Subject) {
    let options = text_of(kind, "");
    let script = [Allocate(80 * MIB, MAIN), Allocate(40 * MIB, MAIN), Allocate(120 * MIB, MAIN)];
    let (run, report) = Run::short("sim:h200,capacity=200MiB", &options, &script);
    assert_eq!(report.cause, Cause::TooLittle);
    let Advice::AskLess { missing, at_most } = advised(&report, |_| true) else { panic!("{report}") };
    assert_eq!((report.advice.len(), missing, at_most), (1, 40 * MIB, 80 * MIB), "{report}");
    assert!(report.to_string().contains("40.00 MiB less that is live"), "{report}");
    // 240 of 200 MiB, of which 10 are to stay free.
    assert!(report.to_string().contains("With 50.00 MiB less, 5% stay free"), "{report}");
    // A smaller request would be met, and the next one refused.
    assert!(!report.to_string().contains("could be met now"), "{report}");
    assert!(report.to_string().contains("Too much is live: what is in use"), "{report}");
    assert!(report.to_string().contains("No allocator helps."), "{report}");
    // With exactly so much less that is live, it is met.
    run.allocator.free(run.addresses[1]).unwrap();
    run.allocator.allocate(120 * MIB, MAIN).unwrap();
}

/// Frees everything, also what others use, and gives it back to the device.
fn free_everything(run: &Run) {
    for address in &run.addresses {
        run.allocator.free(*address).unwrap();
    }
    run.allocator.empty_cache().unwrap();
}

pub(crate) fn less_that_is_live_is_advised_only_where_it_is_enough(Subject { kind, .. }: Subject) {
    let options = text_of(kind, "");
    // Of 200 MiB others hold so many, and this allocator has so many live when it is asked for so many.
    for (others, live, size, missing, at_most) in
        [(0, 80, 150, 30, 120), (0, 80, 200, 80, 120), (60, 60, 100, 20, 80), (60, 60, 150, 0, 80)]
    {
        let mut run = Run::on("sim:h200,capacity=200MiB", &options);
        let other = Allocator::new(Arc::<Device>::clone(&run.gpu), config_of(kind, "")).unwrap();
        let held: Vec<_> = (0..others / 20).map(|_| other.allocate(20 * MIB, MAIN).unwrap()).collect();
        (0..live / 20).for_each(|_| run.step(Allocate(20 * MIB, MAIN)).unwrap());
        let Err(Error::OutOfMemory(report)) = run.step(Allocate(size * MIB, MAIN)) else { panic!("{kind}: {size}") };
        assert_eq!(report.cause, Cause::TooLittle, "{report}");
        // Where others have all that is missing, they are named instead.
        let named = report.advice.iter().find_map(|advice| match advice {
            Advice::AskLess { missing, at_most } => Some((*missing, *at_most)),
            Advice::FreeDevice { .. } => None,
            other => panic!("{kind}: {other:?}"),
        });
        let elsewhere = size - (200 - others - live) <= others;
        assert_eq!(named, (!elsewhere).then_some((missing * MIB, at_most * MIB)), "{report}");
        assert_eq!(report.to_string().contains("less that is live"), named.is_some() && missing > 0, "{report}");
        free_everything(&run);
        assert_eq!(run.allocator.allocate(size * MIB, MAIN).is_ok(), size <= 200 - others, "{kind}: {report}");
        held.into_iter().for_each(|address| other.free(address).unwrap());
    }
}

pub(crate) fn a_request_that_is_more_than_the_device_has_is_said_so(Subject { kind, .. }: Subject) {
    let (device, options) = ("sim:h200,capacity=200MiB", text_of(kind, ""));
    let script = [Allocate(80 * MIB, MAIN), Allocate(300 * MIB, MAIN)];
    let (run, report) = Run::short(device, &options, &script);
    assert_eq!(report.cause, Cause::RequestTooLarge, "{report}");
    let words = report.to_string();
    assert!(
        words.contains("The request alone is 300.00 MiB, more than the 200.00 MiB that the device has."),
        "{words}"
    );
    assert!(!words.contains("less that is live"), "{words}");
    assert_eq!(report.advice, [Advice::AskLess { missing: 0, at_most: 120 * MIB }], "{words}");
    // Whatever is freed, it does not fit; the whole device is what does.
    free_everything(&run);
    let Err(Error::OutOfMemory(report)) = run.allocator.allocate(300 * MIB, MAIN) else { panic!("{kind}") };
    assert_eq!(report.advice, [Advice::AskLess { missing: 0, at_most: 200 * MIB }], "{report}");
    assert!(follow(report.advice[0], run, device, &options, &script));

    let options = text_of(kind, "memory_limit:100MiB");
    let script = [Allocate(60 * MIB, MAIN), Allocate(150 * MIB, MAIN)];
    let (run, report) = Run::short("sim:h200,capacity=400MiB", &options, &script);
    assert_eq!(report.cause, Cause::RequestTooLarge, "{report}");
    let words = report.to_string();
    assert!(words.contains("150.00 MiB, more than the 100.00 MiB that this allocator may hold."), "{words}");
    let advice = advised(&report, |advice| matches!(advice, Advice::RaiseLimit { .. }));
    assert!(follow(advice, run, device, &options, &script));
    // No limit that the device has room for would do: then none is advised.
    let (run, report) = Run::short(device, &options, &[Allocate(60 * MIB, MAIN), Allocate(150 * MIB, MAIN)]);
    assert_eq!(report.advice, [Advice::AskLess { missing: 0, at_most: 40 * MIB }], "{report}");
    assert!(follow(report.advice[0], run, device, &options, &script));
}

pub(crate) fn what_private_pools_keep_and_captures_forbid_is_said(Subject { kind, .. }: Subject) {
    let run = Run::on("sim:h200,capacity=200MiB", &text_of(kind, ""));
    let pool = run.allocator.pools().create();
    run.allocator.pools().begin(pool, Route::stream(SIDE)).unwrap();
    let kept = run.allocator.allocate(100 * MIB, SIDE).unwrap();
    run.allocator.free(kept).unwrap();
    run.allocator.pools().end(pool).unwrap();
    let Err(Error::OutOfMemory(report)) = run.allocator.allocate(150 * MIB, MAIN) else { panic!("it is kept") };
    assert_eq!((report.cause, report.free_in_private_pools), (Cause::PrivatePools, 100 * MIB), "{report}");
    assert!(report.to_string().contains("100.00 MiB of it in other private pools"), "{report}");
    assert_eq!(report.pool, PoolId::NONE);
    assert_eq!(report.advice, [Advice::AskLess { missing: 0, at_most: 100 * MIB }], "{report}");
    let memory = run.allocator.reports().fragmentation();
    balanced(&memory);
    assert_eq!((memory.free_of(Owner::Pool(pool), false), memory.stranded()), (100 * MIB, 100 * MIB));
    run.allocator.pools().release(pool).unwrap();
    let large = run.allocator.allocate(150 * MIB, MAIN).unwrap();
    // What the GPU has passed, `stitch` gives to a capture too.
    run.gpu.hold(MAIN);
    run.allocator.free(large).unwrap();

    let pool = run.allocator.pools().create();
    run.allocator.pools().begin(pool, Route::stream(SIDE).capturing()).unwrap();
    run.gpu.begin_capture(SIDE, CaptureMode::Global).unwrap();
    let Err(Error::OutOfMemory(report)) = run.allocator.allocate(180 * MIB, SIDE) else { panic!("it is cached") };
    assert_eq!((report.cause, report.pool), (Cause::Capture, pool), "{report}");
    // The program named no pool; the route did.
    assert!(report.to_string().contains(&format!("on stream {SIDE} in private pool {pool}. ")), "{report}");
    assert_eq!(report.advice, [Advice::AskLess { missing: 0, at_most: report.device_free }], "{report}");
    let met = run.allocator.allocate(report.device_free, SIDE).unwrap();
    run.allocator.free(met).unwrap();
    run.gpu.end_capture(SIDE).unwrap();
    run.gpu.finish(MAIN);
    run.allocator.pools().end(pool).unwrap();
    balanced(&run.allocator.reports().fragmentation());
}

pub(crate) fn out_of_memory_says_what_is_held_where_and_changes_nothing(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200,capacity=100MiB");
    let keep = allocator.allocate(60 * MIB, MAIN).unwrap();
    let Err(Error::OutOfMemory(report)) = allocator.allocate(50 * MIB, SIDE) else {
        panic!("there is no room for it");
    };
    assert_eq!(
        (report.requested, report.allocated, report.reserved, report.device_total, report.device_free),
        (50 * MIB, 60 * MIB, 60 * MIB, 100 * MIB, 40 * MIB),
        "{kind}"
    );
    assert_eq!(allocator.stats().num_ooms, 1);
    allocator.reports().check().unwrap();
    allocator.allocate(30 * MIB, SIDE).unwrap();
    allocator.free(keep).unwrap();
    allocator.allocate(60 * MIB, MAIN).unwrap();
    assert!(gpu.faults().is_empty());
}

/// A block that becomes free in the last wait cannot go back to the driver, since its segment is in use otherwise.
pub(crate) fn what_the_last_wait_frees_serves_the_request(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200,capacity=20MiB");
    let keep = allocator.allocate(8 * MIB, MAIN).unwrap();
    let used = allocator.allocate(8 * MIB, MAIN).unwrap();
    gpu.hold(SIDE);
    allocator.record_stream(used, SIDE).unwrap();
    allocator.free(used).unwrap();
    allocator.allocate(8 * MIB, MAIN).unwrap();
    balanced(&allocator.reports().fragmentation());
    assert!(allocator.reports().owns(keep) && gpu.faults().is_empty());
}

/// Random programs on a small device: a request that was refused is refused at once when it is made again, for nothing
/// has changed.
pub(crate) fn what_is_refused_is_refused_again(Subject { kind, .. }: Subject) {
    let mut refused = 0;
    for seed in 0..12 / SHORTER {
        let (gpu, allocator) = on(kind, "sim:h200,capacity=100MiB");
        let (mut random, mut live) = (Random(seed), Vec::new());
        for _ in 0..600 {
            let stream = [MAIN, SIDE][random.below(2) as usize];
            match random.below(8) {
                0..=3 => {
                    let most = [MIB, 12 * MIB, 45 * MIB][random.below(3) as usize];
                    let size = 1 + random.below(most);
                    match allocator.allocate(size, stream) {
                        Ok(address) => live.push(address),
                        Err(Error::OutOfMemory(report)) => {
                            refused += 1;
                            let again = allocator.allocate(size, stream);
                            assert!(
                                again.is_err_and(|error| error.is_out_of_memory()),
                                "{kind}, seed {seed}: {report}"
                            );
                        }
                        Err(error) => panic!("{kind}, seed {seed}: {error}"),
                    }
                }
                _ if live.is_empty() => {}
                kind_of_free => {
                    let address = live.swap_remove(random.below(live.len() as u64) as usize);
                    let size = allocator.reports().size_of(address).unwrap();
                    gpu.launch(stream, &[Range { address, size }], random.below(3_000_000)).unwrap();
                    match kind_of_free {
                        4 => allocator.free_with_current_stream(address, stream).unwrap(),
                        5 => allocator.free_on(address, stream).unwrap(),
                        _ => {
                            allocator.record_stream(address, stream).unwrap();
                            allocator.free(address).unwrap();
                        }
                    }
                }
            }
        }
        assert!(gpu.faults().is_empty(), "{kind}, seed {seed}: {:?}", gpu.faults());
    }
    assert!(refused > 100 / SHORTER, "{kind}: {refused} refusals");
}
