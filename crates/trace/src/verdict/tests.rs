//! Tests of the rules with figures that are set by hand, and of the words of all verdicts.

use super::*;
use crate::whatif::DeviceFrom;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn need(reserved: impl Into<Option<u64>>) -> Need {
    Need { reserved: reserved.into().map(|mib: u64| mib * MIB), ..Need::default() }
}

/// Returns a job with 10,000 MiB live on a device with `capacity` MiB. The list has the MiB that native, expandable
/// segments and stitch hold.
fn job<T: Into<Option<u64>>>(capacity: impl Into<Option<u64>>, [native, expandable, stitch]: [T; 3]) -> Figures {
    Figures {
        capacity: capacity.into().map(|mib: u64| mib * MIB),
        live: 10_000 * MIB,
        native: need(native),
        expandable: need(expandable),
        stitch: need(stitch),
        ..Figures::default()
    }
}

fn enough(allocator: Choice, has_room: bool) -> Verdict {
    Verdict::PyTorchIsEnough { allocator, has_room }
}

/// Returns a job that none of the three allocators runs on `capacity` MiB, with the result of a search.
fn short(capacity: u64, shortage: Shortage) -> Figures {
    Figures { shortage: Some(shortage), ..job(capacity, [None::<u64>; 3]) }
}

/// Returns the result of a search: expandable segments need 10,400 MiB, and the batch must be 15% smaller.
fn found() -> Shortage {
    Shortage {
        runs_on_device: false,
        choice: Choice::Expandable,
        enough: [14_000, 10_500, 10_400].map(|mib| Some(mib * MIB)),
        needs: 10_400 * MIB,
        remedy: None,
        smaller: Some(15),
        spill: Some("spill:host=2GiB".to_owned()),
    }
}

/// Returns a job for which PyTorch could have 10,000 MiB of a device with `device` MiB.
fn kept(from: DeviceFrom, device: u64) -> Figures {
    let shortage = Shortage { runs_on_device: true, ..found() };
    let device = Some(device * MIB);
    Figures { available: Some(10_000 * MIB), device, device_from: Some(from), ..short(10_000, shortage) }
}

#[test]
fn the_first_question_that_fits_is_the_verdict() {
    use Choice::{Expandable, Native};
    let none: [Option<u64>; 3] = [None; 3];
    // 1. Too much is live, or nearly too much.
    assert_eq!(judge(&job(9_000, none)), Verdict::TooMuchLive { by: 1_000 * MIB });
    assert_eq!(judge(&job(10_000, none)), Verdict::TooMuchLive { by: 0 });
    assert_eq!(judge(&short(9_000, found())), Verdict::TooMuchLive { by: 1_000 * MIB });
    // A job that spills has a part of its live memory outside of the device.
    assert_eq!(judge(&job(9_000, [None, None, Some(9_000)])), Verdict::SeamallocHelps { saves: None, waits: 0 });
    // Split chunks serve requests that no other means serves.
    let remedy = Some("split:last_resort".to_owned());
    let splits = short(10_000, Shortage { remedy, ..found() });
    assert_eq!(judge(&splits), Verdict::SeamallocHelps { saves: None, waits: 0 });
    // 2. Other processes keep the memory from PyTorch, or a limit does.
    let others = kept(DeviceFrom::Noted, 40_000);
    assert_eq!(judge(&others), Verdict::Others { missing: 400 * MIB });
    let limited = Figures { free_beyond_limit: Some(30_000 * MIB), ..others };
    assert_eq!(judge(&limited), Verdict::Limit { to: 10_400 * MIB });
    // 3. PyTorch's allocators serve the job with 5% of the device to spare.
    assert_eq!(judge(&job(20_000, [19_000, 19_000, 10_100])), enough(Native, true));
    assert_eq!(judge(&job(20_000, [19_001, 19_001, 10_100])).kind(), "seamalloc_helps");
    assert_eq!(judge(&job(20_000, [None, Some(18_900), Some(10_100)])), enough(Expandable, true));
    // Without a device, the thresholds are 3% and 256 MiB.
    assert_eq!(judge(&job(None, [11_000, 10_671, 10_671])), enough(Native, false));
    // Native holds notably more than seamalloc, and expandable segments do not.
    assert_eq!(judge(&job(None, [11_000, 10_671, 10_400])), enough(Expandable, false));
    assert_eq!(judge(&job(None, [11_000, 10_670, 10_414])), enough(Expandable, false));
    assert_eq!(
        judge(&job(None, [11_000, 10_670, 10_300])),
        Verdict::SeamallocHelps { saves: Some(370 * MIB), waits: 0 }
    );
    assert_eq!(judge(&job(None, [1_000, 900, 800])), enough(Native, false), "100 MiB are nothing");
    // 5. Only seamalloc runs the job, or it holds less where PyTorch's allocators leave too little of the device free.
    assert_eq!(judge(&job(10_500, [None, None, Some(10_100)])), Verdict::SeamallocHelps { saves: None, waits: 0 });
    assert_eq!(
        judge(&job(11_000, [None, Some(10_900), Some(10_100)])),
        Verdict::SeamallocHelps { saves: Some(800 * MIB), waits: 0 }
    );
    assert_eq!(judge(&job(11_000, [None, Some(10_900), Some(10_700)])), enough(Expandable, false));
    assert_eq!(judge(&job(11_000, [Some(10_900), None, None])), enough(Native, false));
}

/// The allocator that is recommended on a device takes at least as much effort as the one recommended on any larger
/// device.
#[test]
fn a_smaller_device_never_takes_less_effort() {
    let sizes = [10_050, 10_300, 10_600, 11_500, 14_000];
    for native in sizes {
        for expandable in sizes {
            for stitch in sizes {
                let held = [native, expandable, stitch];
                // An allocator that needs more memory than the device has does not run the job.
                let on = |capacity: u64| job(capacity, held.map(|held| Some(held).filter(|held| *held <= capacity)));
                let recommended = (10_000..20_000).rev().step_by(37).map_while(|capacity| on(capacity).recommended());
                let efforts: Vec<_> = recommended.map(|choice| choice as u8).collect();
                assert!(efforts.is_sorted(), "{held:?}: {efforts:?}");
                assert_eq!(efforts.first(), Some(&0), "{held:?}: with plenty, the allocator that the job has");
            }
        }
    }
}

#[test]
fn an_allocator_that_waits_for_memory_is_not_enough() {
    let mut figures = job(20_000, [15_000, 15_000, 15_000]);
    figures.native.waits = 7;
    assert_eq!(judge(&figures), enough(Choice::Expandable, true));
    figures.expandable.waits = 3;
    assert_eq!(judge(&figures), Verdict::SeamallocHelps { saves: Some(0), waits: 3 });
    figures.stitch.waits = 1;
    assert_eq!(judge(&figures), enough(Choice::Expandable, false), "seamalloc waits too");
    // seamalloc has few waits where the others have many.
    (figures.native.waits, figures.expandable.waits, figures.stitch.waits) = (1_243, 1_000, 9);
    let found = Judgement::of(figures.clone());
    assert_eq!(found.verdict, Verdict::SeamallocHelps { saves: Some(0), waits: 991 });
    let headline = "seamalloc helps: it waits for memory 9 times, expandable segments 1000 times.";
    assert_eq!(found.headline(), headline);
    figures.stitch.waits = 101;
    assert_eq!(judge(&figures), enough(Choice::Expandable, false));
}

/// Native holds less and waits; expandable segments hold more and do not wait. An allocator that holds less than
/// seamalloc is not compared with seamalloc.
#[test]
fn what_is_saved_is_saved_over_the_one_that_holds_less() {
    let mut figures = job(11_000, [10_800, 10_900, 10_100]);
    figures.native.waits = 7;
    let found = Judgement::of(figures);
    assert_eq!(found.verdict, Verdict::SeamallocHelps { saves: Some(700 * MIB), waits: 7 });
    let headline = "seamalloc helps: it holds 700.00 MiB less than native, and never waits for memory.";
    assert_eq!(found.headline(), headline);
    let mut figures = job(11_000, [10_050, 10_900, 10_100]);
    figures.native.waits = 7;
    assert_eq!(judge(&figures), Verdict::SeamallocHelps { saves: Some(800 * MIB), waits: 0 });
}

#[test]
fn streams_are_named_where_they_keep_apart_half_of_the_difference() {
    let mut figures = job(None, [14_000, 14_000, 10_200]);
    figures.native.elsewhere = 1_800 * MIB;
    assert_eq!(judge(&figures).kind(), "seamalloc_helps");
    figures.native.pending = 100 * MIB;
    assert_eq!(judge(&figures), Verdict::Streams { apart: 1_900 * MIB, is_saved: true });
    // seamalloc saves no notable amount, and does not wait. What streams keep from one another is then compared with
    // the memory held beyond live memory.
    let mut figures = job(11_500, [11_400, 11_400, 11_300]);
    (figures.native.waits, figures.expandable.waits, figures.native.pending) = (9, 9, 700 * MIB);
    assert_eq!(judge(&figures), Verdict::Streams { apart: 700 * MIB, is_saved: true });
    figures.native.pending = 699 * MIB;
    assert_eq!(judge(&figures).kind(), "seamalloc_helps");
    // No allocator saves memory that is freed and still used.
    let mut figures = job(11_500, [11_400, 11_400, 11_400]);
    figures.native.pending = 700 * MIB;
    assert_eq!(judge(&figures), Verdict::Streams { apart: 700 * MIB, is_saved: false });
    figures.capacity = Some(20 * GIB);
    assert_eq!(judge(&figures), enough(Choice::Native, true));
    // Neither of PyTorch's allocators runs the job, so the figures are those at the refusal in the replay.
    let mut figures = job(10_500, [None, None, Some(10_300)]);
    (figures.expandable.idle, figures.expandable.elsewhere) = (400 * MIB, 300 * MIB);
    assert_eq!(judge(&figures), Verdict::Streams { apart: 300 * MIB, is_saved: true });
    figures.expandable.elsewhere = 100 * MIB;
    assert_eq!(judge(&figures).kind(), "seamalloc_helps");
}

/// Returns figures for every verdict, with the largest possible numbers.
fn all() -> Vec<Judgement> {
    let most = 16 * 1024 * 1024 - 1;
    let none: [Option<u64>; 3] = [None; 3];
    let waiting = |mut figures: Figures| {
        figures.native.waits = u64::MAX;
        figures
    };
    let huge = Shortage { smaller: None, ..found() };
    let mut figures = vec![
        job(9_000, none),
        job(10_000, none),
        short(9_000, found()),
        short(9_000, huge.clone()),
        short(10_000, Shortage { remedy: Some("split:last_resort".to_owned()), ..found() }),
        kept(DeviceFrom::Noted, 40_000),
        kept(DeviceFrom::Asked, 40_000),
        kept(DeviceFrom::Asked, 10_700),
        Figures { free_beyond_limit: Some(30_000 * MIB), ..kept(DeviceFrom::Asked, 40_000) },
        job(20_000, [14_000, 10_200, 10_100]),
        job(20_000, [None, Some(10_200), Some(10_100)]),
        job(20_000, [10_200, 10_200, 10_200]),
        Figures { is_expandable_set: true, ..job(20_000, [14_000, 10_200, 10_100]) },
        Figures { is_expandable_set: true, ..job(10_500, [10_450, 10_400, 10_400]) },
        Figures { is_expandable_set: true, ..job(11_000, [10_200, 10_800, 10_200]) },
        job(None, [14_000, 10_200, 10_100]),
        job(10_500, [None, None, Some(10_100)]),
        job(11_000, [None, Some(10_900), Some(10_100)]),
        waiting(job(20_000, [15_000, 15_000, 15_000])),
        waiting(job(11_000, [10_800, 10_900, 10_100])),
        Figures { available: Some(9_000 * MIB), ..short(9_000, found()) },
        Figures { live: most * MIB, available: Some(most * MIB - 1), ..job(None, none) },
    ];
    let largest = figures.len() - 1;
    let mut apart = job(None, [14_000, 14_000, 10_200]);
    apart.native.elsewhere = 3_000 * MIB;
    figures.push(apart.clone());
    apart.stitch = apart.native;
    apart.native.pending = 3_000 * MIB;
    figures.push(apart);
    let last = Figures { capacity: Some(most * MIB - 1), ..figures[largest].clone() };
    figures.push(last);
    figures.into_iter().map(Judgement::of).collect()
}

#[test]
fn every_verdict_is_a_line_with_reasons_and_one_step() {
    let mut kinds: Vec<_> = all().iter().map(|found| found.verdict.kind()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, ["limit", "others", "pytorch_is_enough", "seamalloc_helps", "streams", "too_much_live"]);
    for found in all() {
        let (headline, reasons, next) = (found.headline(), found.reasons(), found.next_step());
        assert!(headline.chars().count() <= 100, "{headline}");
        assert_eq!(headline.lines().count(), 1);
        assert!(reasons.ends_with('.') && next.ends_with('.'), "{reasons} {next}");
        let json = found.to_json();
        assert_eq!((&json["kind"], &json["text"]), (&found.verdict.kind().into(), &headline.into()));
        assert_eq!((&json["next"], &json["figures"]["live"]), (&next.into(), &found.figures.live.into()));
    }
}

#[test]
fn too_much_live_names_the_owners_and_how_much_less_would_do() {
    let owner = |name: &str, mib: u64| Holder { name: name.to_owned(), bytes: mib * MIB };
    let owners = [("a.py:1 f", 5_000), ("b.py:2 g", 2_500), ("c.py:3 h", 1_000), ("d.py:4 i", 10)];
    let owners = owners.map(|(name, mib)| owner(name, mib)).to_vec();
    let figures = Figures { owners, persistent: Some(2_000 * MIB), ..short(9_000, found()) };
    let judged = Judgement::of(figures.clone());
    assert_eq!(judged.headline(), "Too much is live: 9.77 GiB of 8.79 GiB. No allocator helps.");
    assert_eq!(
        judged.reasons(),
        "At most 9.77 GiB are live, 1.95 GiB of it persistent (weights, optimizer state), 1000.00 MiB more than the \
         device has. Where memory is plenty it holds 13.67 GiB with native, 10.25 GiB with expandable segments, 10.16 GiB \
         with seamalloc, and needs 10.16 GiB with expandable segments, rounding and holes included. The largest owners: \
         a.py:1 f 4.88 GiB (50%), b.py:2 g 2.44 GiB (25%), c.py:3 h 1000.00 MiB (10%)."
    );
    assert_eq!(
        judged.next_step(),
        "Reduce the batch size by at least 15%, and set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; or recompute or \
         offload activations; or let seamalloc spill: SEAMALLOC_CONF=spill:host=2GiB python -m seamalloc run train.py."
    );
    assert!(!judged.runs());
    // The smallest batch does not fit beside the weights, or no memory is known to be weights.
    let shortage = Some(Shortage { smaller: None, ..found() });
    let found = Judgement::of(Figures { shortage, ..figures.clone() });
    assert!(found.next_step().starts_with("Shard or offload weights"), "{}", found.next_step());
    let found = Judgement::of(Figures { persistent: None, ..found.figures });
    assert!(
        found.next_step().starts_with("Reduce the batch size, until 1.37 GiB less are live"),
        "{}",
        found.next_step()
    );
}

#[test]
fn where_no_allocator_runs_it_that_is_said_of_those_that_were_tried() {
    let found = Judgement::of(short(10_100, found()));
    assert_eq!(found.headline(), "Nearly too much is live: 9.77 GiB of 9.86 GiB. No allocator tried runs it.");
    let all = "runs out of memory on 9.86 GiB with native, expandable segments and seamalloc";
    assert!(found.reasons().contains(all), "{}", found.reasons());
}

#[test]
fn options_that_run_the_job_are_part_of_the_step() {
    let step = |figures: Figures| Judgement::of(figures).next_step();
    let options = Options {
        native: "max_split_size_mb:128".into(),
        expandable: "max_split_size_mb:128".into(),
        seamalloc: "max_split_size_mb:128,sharing:wait".into(),
    };
    let with = |figures: Figures| Figures { options: options.clone(), ..figures };
    let ours = "SEAMALLOC_CONF=max_split_size_mb:128,sharing:wait python -m seamalloc run train.py.";
    assert_eq!(step(with(job(10_500, [None, None, Some(10_100)]))), format!("Run it with seamalloc: {ours}"));
    let set = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128.";
    assert_eq!(step(with(job(12_000, [None, Some(10_200), Some(10_100)]))), format!("Set {set}"));
    assert_eq!(step(with(job(20_000, [11_000; 3]))), "Set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128.");
    // With `split:ungated`, the advice asks for one thread.
    let options = Options { seamalloc: "split:ungated".into(), ..Options::default() };
    let ours = "seamalloc: SEAMALLOC_CONF=split:ungated python -m seamalloc run train.py";
    let splits = Figures { options: options.clone(), ..job(10_500, [None, None, Some(10_100)]) };
    assert_eq!(step(splits), format!("If one thread launches all work, run it with {ours}."));
    let shortage = Shortage { choice: Choice::Seamalloc, spill: None, ..found() };
    let less = step(Figures { options, ..short(10_100, shortage) });
    let condition = format!("by at least 15%, and, if one thread launches all work, run it with {ours}; or");
    assert!(less.contains(&condition), "{less}");
    let remedy = Some("split:last_resort".to_owned());
    let splits = with(short(10_000, Shortage { remedy, ..found() }));
    assert_eq!(
        Judgement::of(splits.clone()).headline(),
        "seamalloc helps: with split:last_resort it runs the job on 9.77 GiB, PyTorch's allocators do not."
    );
    assert_eq!(
        step(splits.clone()),
        "Run it with seamalloc: \
         SEAMALLOC_CONF=max_split_size_mb:128,sharing:wait,split:last_resort python -m seamalloc run train.py."
    );
    // In the advice, the option with which the job runs replaces the option with which the job fails.
    let options = Options { seamalloc: "split:off,sharing:wait".into(), ..Options::default() };
    assert_eq!(
        step(Figures { options, ..splits }),
        "Run it with seamalloc: SEAMALLOC_CONF=sharing:wait,split:last_resort python -m seamalloc run train.py."
    );
}

/// Requested amounts are rounded up, and free or saved amounts are rounded down.
#[test]
fn whoever_gives_what_is_asked_for_gives_enough() {
    let shortage = Shortage { needs: 8_194 * MIB, ..found() };
    let found = Judgement::of(short(8_000, shortage.clone()));
    assert!(found.reasons().contains("and needs 8.01 GiB with expandable segments"), "{}", found.reasons());
    let limited = Figures { free_beyond_limit: Some(GIB), ..kept(DeviceFrom::Asked, 40_000) };
    let found = Judgement::of(Figures { shortage: Some(Shortage { runs_on_device: true, ..shortage }), ..limited });
    assert!(found.next_step().starts_with("Raise the limit to 8.01 GiB or more"), "{}", found.next_step());
    let found = Judgement::of(job(40_000, [10_100; 3]));
    // 29,900 MiB are 29.199 GiB.
    assert_eq!(found.headline(), "Nothing to do: with native, 29.19 GiB of 39.06 GiB stay free.");
    // The free and the saved amount are rounded in the same way.
    let found = Judgement::of(job(10_500, [10_400, 10_400, 10_300]));
    let little = "Only 100.00 MiB of the device stay free; seamalloc would hold 100.00 MiB less, too little to act on.";
    assert!(found.reasons().contains(little), "{}", found.reasons());
    let mut figures = job(11_500, [11_400, 11_400, 10_400]);
    figures.stitch.waits = 3;
    let more = "seamalloc would hold 1000.00 MiB less, and wait for memory 3 times.";
    let found = Judgement::of(figures);
    assert!(found.reasons().contains(more), "{}", found.reasons());
}

#[test]
fn what_is_kept_from_the_job_is_told_with_its_size() {
    // The amount is 40,000 less 10,000 and the 512 of PyTorch's own context.
    let found = Judgement::of(kept(DeviceFrom::Noted, 40_000));
    assert_eq!(found.headline(), "Others hold the memory: 28.80 GiB of 39.06 GiB; 400.00 MiB are missing.");
    assert_eq!(
        found.next_step(),
        "Find the others with `nvidia-smi`, and end or limit them, until PyTorch can have 10.16 GiB, and set \
         PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    );
    assert!(found.runs() && found.reasons().contains("takes about 512.00 MiB"), "{}", found.reasons());
    // A caller who names a device may mean another device than the recorded one.
    let found = Judgement::of(kept(DeviceFrom::Asked, 40_000));
    assert!(found.headline().starts_with("Others hold the memory, if this is its GPU: "), "{}", found.headline());
    // Others hold no more than a context and libraries take, and such memory never becomes free.
    let found = Judgement::of(kept(DeviceFrom::Asked, 10_700));
    assert_eq!(found.headline(), "Libraries and the CUDA context leave 9.77 GiB of 10.45 GiB; 400.00 MiB are missing.");
    assert!(found.next_step().starts_with("Reduce the batch size by at least 15%, and set"), "{}", found.next_step());
    let held =
        "PyTorch could have 9.77 GiB of 10.45 GiB when it ran out: its CUDA context and libraries held 700.00 MiB.";
    assert!(!found.runs() && found.reasons().ends_with(held), "{}", found.reasons());
    let limited = |from| Figures { free_beyond_limit: Some(30_000 * MIB), ..kept(from, 40_000) };
    let found = Judgement::of(limited(DeviceFrom::Asked));
    assert_eq!(
        found.headline(),
        "A limit is too low: at least 9.77 GiB may be held under it, and 10.16 GiB are needed."
    );
    assert_eq!(
        found.next_step(),
        "Raise the limit to 10.16 GiB or more (set_per_process_memory_fraction), and set \
         PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    );
    assert!(found.runs() && !Judgement::of(limited(DeviceFrom::Refusal)).runs());
}

#[test]
fn a_setting_that_the_job_has_is_kept() {
    let step = |figures: &Figures| Judgement::of(figures.clone()).next_step();
    let mut figures = job(12_000, [14_000, 10_200, 10_100]);
    figures.native.reserved = None;
    assert_eq!(step(&figures), format!("Set {EXPANDABLE_SETTING}."));
    figures.is_expandable_set = true;
    assert!(step(&figures).starts_with("Keep "), "{}", step(&figures));
    // Native holds notably less, which is rare.
    let figures = Figures { is_expandable_set: true, ..job(11_000, [10_200, 10_800, 10_200]) };
    assert_eq!(step(&figures), format!("Run it without {EXPANDABLE_SETTING}."));
}
