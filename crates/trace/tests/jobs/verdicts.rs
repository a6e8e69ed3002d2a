//! Verdicts on snapshots of real programs: those that the questions of docs/why.md give by hand, from what PyTorch itself
//! said of the jobs. Recorded on an H100 with PyTorch's native allocator.

use seamalloc::Config;
use seamalloc::driver::sim::SimConfig;
use seamalloc_trace::replay::ReplayOptions;
use seamalloc_trace::verdict::{Choice, Judgement, Verdict, figures_of};
use seamalloc_trace::whatif::{DeviceFrom, device_of};
use seamalloc_trace::{Trace, read_path};
use std::path::Path;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn snapshot(name: &str) -> Trace {
    let path = format!("{}/tests/data/snapshots/{name}.snapshot.pickle.gz", env!("CARGO_MANIFEST_DIR"));
    read_path(Path::new(&path)).unwrap().remove(0)
}

/// The verdict on a job on its own device, or on a named one.
fn verdict(trace: &Trace, device: Option<&str>) -> Judgement {
    verdict_with(trace, device, Config::default())
}

fn verdict_with(trace: &Trace, device: Option<&str>, config: Config) -> Judgement {
    let (device, from) = match device {
        Some(device) => (device.parse::<SimConfig>().unwrap(), DeviceFrom::Asked),
        None => device_of(trace),
    };
    let options = &ReplayOptions::new(config, device);
    Judgement::of(figures_of(trace, options, from, Vec::new()).unwrap())
}

#[test]
fn real_programs_get_the_verdict_of_the_five_questions() {
    let (six, h100) = (Some("sim:h100,capacity=6GiB"), Some("sim:h100"));
    for (name, device, kind) in [
        // Held and allocated at the peak by PyTorch, in GB. Holes of one stream: question 3.
        ("train-eval", None, "pytorch_is_enough"), // 12.25 of 8.56
        ("train-all", None, "pytorch_is_enough"),  // 6.34 of 5.22
        ("vision", None, "pytorch_is_enough"),     // 5.41 of 3.08
        ("rl", None, "pytorch_is_enough"),         // 6.57 of 3.88
        ("inference", None, "pytorch_is_enough"),  // 1.88 of 1.11
        // 2.69 of 2.47: 0.2 are less than a CUDA context.
        ("optimizer-loop", None, "pytorch_is_enough"),
        // 7.64 of 6.40. The blocks that a side stream prepares are inputs, a few MiB: streams are not the difference.
        ("streams", None, "pytorch_is_enough"),
        // 9.81 of 5.10, and lengths vary, under recomputation: blocks of other sizes in each step.
        ("recompute", None, "seamalloc_helps"),
        ("recompute", six, "seamalloc_helps"),
        // 9.61 of 8.56, the first step cut off, so that blocks of it stay between the later ones.
        ("mid-job", None, "seamalloc_helps"),
        // Blocks that a second stream prepares: 4.2 of 0.8 with expandable segments.
        ("prefetch-2s", None, "streams"),
        // It saves 0.2 of 1.13, and what streams keep apart is more than half of the 0.37 beyond live memory.
        ("prefetch-2s", Some("sim:h200,capacity=1168MiB"), "streams"),
        // Native waits 1,243 times and holds next to nothing beyond live memory.
        ("prefetch-2s", Some("sim:h200,capacity=796MiB"), "seamalloc_helps"),
        // The message: 5.85 GiB allocated, 0.25 asked for, 6.00 allowed. The GPU had 72.51 GiB free: a limit kept them from it.
        ("oom-live", None, "limit"),
        ("oom-live", h100, "limit"),
        // On a GPU of 6 GiB it would be too much.
        ("oom-live", six, "too_much_live"),
        // 5.10 allocated, 0.25 asked for; 5.27 were held or free, which is all that the snapshot says.
        ("oom-others", None, "too_much_live"),
        // The same on a GPU that has 79.18.
        ("oom-others", h100, "others"),
        // A limit of 7.5 GiB, within which PyTorch ran it with three retries.
        ("fragmented", Some("sim:h100,capacity=7.5GiB"), "pytorch_is_enough"),
        // On a device with room for all of them.
        ("vision", h100, "pytorch_is_enough"),
        ("mid-job", h100, "pytorch_is_enough"),
        ("prefetch-2s", h100, "pytorch_is_enough"),
        // 7.97 GiB live of 8.00, which expandable segments and `stitch` miss by 40 and 4 MiB; chunks that are split serve it.
        ("train-eval", Some("sim:h200,capacity=8GiB"), "seamalloc_helps"),
    ] {
        let found = verdict(&snapshot(name), device);
        assert_eq!(found.verdict.kind(), kind, "{name} on {device:?}\n{}\n{found:?}", found.text());
        assert!(found.headline().chars().count() <= 100, "{}", found.headline());
    }
}

#[test]
fn waits_for_memory_are_told() {
    let found = verdict(&snapshot("fragmented"), Some("sim:h100,capacity=7.5GiB"));
    assert!(found.headline().contains("native waits for memory"), "{}", found.headline());
    assert!(found.figures.native.waits >= 3 && found.figures.expandable.waits == 0, "{found:?}");
}

/// The message of `oom-live`: 6.00 GiB allowed, of which 5.85 are allocated, and 0.25 asked for; 72.51 are free on the device.
#[test]
fn a_refused_request_counts_as_live() {
    let trace = snapshot("oom-live");
    let found = verdict(&trace, Some("sim:h100,capacity=6GiB"));
    let Verdict::TooMuchLive { by } = found.verdict else { panic!("{found:?}") };
    assert!((90 * MIB..110 * MIB).contains(&by), "{}", found.text());
    assert_eq!(found.figures.refused, 256 * MIB);
    // The limit is in no snapshot: what was held counts, which is less, and that the device had more.
    for device in [None, Some("sim:h100")] {
        let found = verdict(&trace, device);
        let held = found.figures.capacity.map(|held| held as f64 / GIB as f64);
        assert!(held.is_some_and(|held| (5.9..6.0).contains(&held)), "{found:?}");
        let limit = "A limit is too low: at least 5.95 GiB may be held under it, and 6.14 GiB are needed.";
        assert_eq!(found.headline(), limit);
        for part in
            ["the refused request of 256.00 MiB", "PyTorch held 5.95 GiB when a limit refused", "72.51 GiB free"]
        {
            assert!(found.reasons().contains(part), "{}", found.reasons());
        }
        assert_eq!(
            found.next_step(),
            "Raise the limit to 6.14 GiB or more (set_per_process_memory_fraction), and set \
             PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
        );
        assert_eq!(found.runs(), device.is_some(), "it runs on the device, not within what was held");
    }
}

/// The message of `oom-others`: 79.18 GiB in all, of which another process holds 73.17.
#[test]
fn the_memory_of_other_processes_is_named_where_the_device_is_known() {
    let mut trace = snapshot("oom-others");
    let found = verdict(&trace, None);
    assert!(found.reasons().contains("nvidia-smi") && !found.runs(), "{}", found.reasons());
    // 79.18 less 5.27 that PyTorch could have, and a context of its own.
    let found = verdict(&trace, Some("sim:h100"));
    let others = "Others hold the memory, if this is its GPU: 73.41 GiB of 79.18 GiB; 133.38 MiB are missing.";
    assert_eq!((found.headline().as_str(), found.runs()), (others, true));
    // Of 5.37 GiB the rest is less than a context: nobody ends, and the next step is a smaller batch.
    let found = verdict(&trace, Some("sim:h200,capacity=5500MiB"));
    let held =
        "PyTorch could have 5.27 GiB of 5.37 GiB when it ran out: its CUDA context and libraries held 107.38 MiB.";
    assert!(!found.runs() && found.reasons().ends_with(held), "{}", found.text());
    assert!(found.next_step().starts_with("Reduce the batch size by at least 2%"), "{}", found.next_step());
    trace.meta.insert("total_memory".to_owned(), 85_017_493_504_u64.into());
    let found = verdict(&trace, None);
    assert_eq!(found.verdict.kind(), "others", "{}", found.text());
    assert!(found.headline().starts_with("Others hold the memory: 73.41 GiB of 79.18 GiB; "), "{}", found.headline());
}

/// The amounts of a next step are those with which a replay runs, and a little less does not.
#[test]
fn what_a_next_step_asks_for_is_enough_and_not_much_more() {
    let mut trace = snapshot("oom-live");
    let Verdict::Limit { to } = verdict(&trace, None).verdict else { panic!("no limit") };
    // Without what the recording says of the memory that PyTorch could have.
    trace.meta.remove("available_memory");
    let on = |capacity: u64| verdict(&trace, Some(&format!("sim:h200,capacity={capacity}B")));
    let runs = |capacity: u64| on(capacity).figures.expandable.reserved.is_some();
    assert!(runs(to) && !runs(to - 2 * MIB), "{to}");
    // Expandable segments of a device with 16 times what is live hold 2.92 GiB; on a device of 2.92 GiB their addresses run out.
    let trace = snapshot("vision");
    let on = |capacity: u64| verdict(&trace, Some(&format!("sim:h200,capacity={capacity}B"))).figures;
    let needs = on(2334 * MIB).shortage.map(|shortage| shortage.needs);
    assert!(needs.is_some_and(|needs| on(needs).expandable.reserved.is_some()), "{needs:?}");
}

#[test]
fn options_that_run_the_job_stand_in_the_next_step() {
    let trace = snapshot("train-eval");
    let step = |device: &str, options: &str| {
        let found = verdict_with(&trace, Some(device), Config::parse(options).unwrap());
        assert!(found.runs(), "{}", found.text());
        found.next_step()
    };
    let eight = "sim:h200,capacity=8GiB";
    for options in ["split:last_resort", ""] {
        assert_eq!(step(eight, options), "Run it with seamalloc: python -m seamalloc run train.py.");
    }
    let unsplit = "Run it with seamalloc: SEAMALLOC_CONF=split:last_resort python -m seamalloc run train.py.";
    assert_eq!(step(eight, "split:off"), unsplit);
    assert_eq!(
        step(eight, "split:ungated"),
        "If one thread launches all work, run it with seamalloc: SEAMALLOC_CONF=split:ungated python -m seamalloc run train.py."
    );
    let spilled = "Run it with seamalloc: SEAMALLOC_CONF=spill:host=2GiB python -m seamalloc run train.py.";
    assert_eq!(step("sim:h200,capacity=7GiB", "spill:host=2GiB"), spilled);
    // An option that has no effect with the allocator is none of the step.
    let options = "max_split_size_mb:128,garbage_collection_threshold:0.8";
    let found = verdict_with(&snapshot("mid-job"), Some("sim:h200,capacity=8566MiB"), Config::parse(options).unwrap());
    assert_eq!(found.next_step(), "Run it with seamalloc: python -m seamalloc run train.py.");
    assert_eq!(found.figures.options.expandable, "max_split_size_mb:128");
    // Without them, the same is offered: 1 GiB is enough.
    let found = verdict(&trace, Some("sim:h200,capacity=7GiB"));
    assert!(
        found.next_step().ends_with("SEAMALLOC_CONF=spill:host=1GiB python -m seamalloc run train.py."),
        "{}",
        found.text()
    );
}

/// GMLake's algorithm and chunks that are split run it on 2,400 MiB; `stitch` with `split:off` does not.
#[test]
fn no_allocator_helps_is_said_after_all_were_tried() {
    for (options, with) in [("", ""), ("split:off", "with split:last_resort ")] {
        let config = Config::parse(options).unwrap();
        let found = verdict_with(&snapshot("optimizer-loop"), Some("sim:h200,capacity=2400MiB"), config);
        let headline = format!("seamalloc helps: {with}it runs the job on 2.34 GiB, PyTorch's allocators do not.");
        assert_eq!(found.headline(), headline);
    }
    let found = verdict(&snapshot("optimizer-loop"), None);
    assert_eq!(found.headline(), "PyTorch's native allocator is enough: no other holds 256.00 MiB and 3% less.");
}

/// A batch that is so much smaller, and no less, runs with the allocator that is named.
#[test]
fn persistent_memory_is_told_and_does_not_grow_with_the_batch() {
    let trace = snapshot("train-eval");
    let found = verdict(&trace, Some("sim:h200,capacity=7GiB"));
    // Weights, gradients and the optimizer's state of the model, by the program: 493 MiB.
    assert!(found.reasons().contains("493.14 MiB of it persistent (weights, optimizer state)"), "{}", found.reasons());
    // 7.97 GiB live and 7.00 there: 13% of 7.49 GiB that are not persistent, and what expandable segments take besides.
    assert!(found.next_step().starts_with("Reduce the batch size by at least 15%, and set "), "{}", found.next_step());
    // 25% with native; `whatif` finds 0.94 times the batch with seamalloc, and 0.84 where no chunk is split.
    for (options, percent) in [("", 6), ("split:off", 16)] {
        let config = Config::parse(options).unwrap();
        let step = verdict_with(&snapshot("optimizer-loop"), Some("sim:h200,capacity=2368MiB"), config).next_step();
        let less = format!("Reduce the batch size by at least {percent}%, and run it with seamalloc: ");
        assert!(step.starts_with(&less), "{step}");
    }
    let found = verdict(&trace, Some("sim:h200,capacity=400MiB"));
    assert!(found.next_step().starts_with("Shard or offload weights and optimizer state"), "{}", found.next_step());
}

/// On 6 GiB native holds 5.22 and waits, expandable segments hold 5.82, and seamalloc 4.81.
#[test]
fn what_is_saved_is_saved_over_the_better_of_pytorchs() {
    let found = verdict(&snapshot("recompute"), Some("sim:h100,capacity=6GiB"));
    let Verdict::SeamallocHelps { saves: Some(saves), waits: 7 } = found.verdict else { panic!("{found:?}") };
    let native = found.figures.native.reserved.unwrap();
    assert_eq!(saves, native - found.figures.stitch.reserved.unwrap());
    assert!(native < found.figures.expandable.reserved.unwrap());
}

/// Where 9 waits are few beside 1,244, no smaller device takes less effort.
#[test]
fn few_waits_beside_many_keep_the_order_of_effort() {
    let trace = snapshot("prefetch-2s");
    let on = |mib: u64| verdict(&trace, Some(&format!("sim:h200,capacity={mib}MiB"))).figures.recommended();
    for mib in [818, 806, 800, 796, 794, 792] {
        assert_eq!(on(mib), Some(Choice::Seamalloc), "{mib}");
    }
}

/// The allocator that is recommended takes more effort the smaller the device is, and is the tightest where it is unknown.
#[test]
fn a_smaller_device_never_takes_less_effort() {
    for name in ["mid-job", "prefetch-2s", "recompute"] {
        let trace = snapshot(name);
        let tightest = verdict(&trace, None).figures.recommended().unwrap() as u8;
        let on = |gib: f64| verdict(&trace, Some(&format!("sim:h200,capacity={gib}GiB"))).figures.recommended();
        let devices = [80.0, 12.0, 9.0, 8.5, 8.1, 6.0, 5.0, 4.0];
        let efforts: Vec<_> = devices.into_iter().map_while(on).map(|choice| choice as u8).collect();
        assert!(efforts.is_sorted() && efforts[0] == 0, "{name}: {efforts:?}");
        assert!(efforts.iter().all(|effort| *effort <= tightest), "{name}: {efforts:?} {tightest}");
    }
}
