//! The rules by figures that are set by hand, and the words of all verdicts.

use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn need(reserved: impl Into<Option<u64>>) -> Need {
    Need { reserved: reserved.into().map(|mib: u64| mib * MIB), ..Need::default() }
}

/// A job of 10,000 MiB live on a device of so many MiB, with what native, expandable segments and stitch hold, in MiB.
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

fn enough(allocator: OfPyTorch, has_room: bool) -> Verdict {
    Verdict::PyTorchIsEnough { allocator, has_room }
}

#[test]
fn the_first_question_that_fits_is_the_verdict() {
    use OfPyTorch::{Expandable, Native};
    let none: [Option<u64>; 3] = [None; 3];
    // 1. Too much is live; and nearly too much.
    assert_eq!(judge(&job(9_000, none)), Verdict::TooMuchLive { by: 1_000 * MIB });
    assert_eq!(judge(&job(10_000, none)), Verdict::TooMuchLive { by: 0 });
    // What spills has a part of what is live elsewhere.
    assert_eq!(judge(&job(9_000, [None, None, Some(9_000)])), Verdict::SeamallocHelps { saves: None, waits: 0 });
    // 2. Others.
    let beside = |others: u64| Figures { others: Some(others * MIB), ..job(40_000, [14_000, 10_500, 10_400]) };
    assert_eq!(judge(&beside(29_700)), Verdict::Others { missing: 100 * MIB });
    assert_eq!(judge(&beside(29_600)), enough(Expandable, true));
    // 3. PyTorch's, with 5% of the device to spare.
    assert_eq!(judge(&job(20_000, [19_000, 19_000, 10_100])), enough(Native, true));
    assert_eq!(judge(&job(20_000, [19_001, 19_001, 10_100])).kind(), "seamalloc_helps");
    assert_eq!(judge(&job(20_000, [None, Some(18_900), Some(10_100)])), enough(Expandable, true));
    // Without the device: 3% and 256 MiB.
    assert_eq!(judge(&job(None, [11_000, 10_671, 10_671])), enough(Native, false));
    // Native holds notably more than seamalloc, and expandable segments do not.
    assert_eq!(judge(&job(None, [11_000, 10_671, 10_400])), enough(Expandable, false));
    assert_eq!(judge(&job(None, [11_000, 10_670, 10_414])), enough(Expandable, false));
    assert_eq!(
        judge(&job(None, [11_000, 10_670, 10_300])),
        Verdict::SeamallocHelps { saves: Some(370 * MIB), waits: 0 }
    );
    assert_eq!(judge(&job(None, [1_000, 900, 800])), enough(Native, false), "100 MiB are nothing");
    // 5. Only seamalloc runs it, or it holds less where PyTorch's have no room.
    assert_eq!(judge(&job(10_500, [None, None, Some(10_100)])), Verdict::SeamallocHelps { saves: None, waits: 0 });
    assert_eq!(
        judge(&job(11_000, [None, Some(10_900), Some(10_100)])),
        Verdict::SeamallocHelps { saves: Some(800 * MIB), waits: 0 }
    );
    assert_eq!(judge(&job(11_000, [None, Some(10_900), Some(10_700)])), enough(Expandable, false));
    assert_eq!(judge(&job(11_000, [Some(10_900), None, None])), enough(Native, false));
}

#[test]
fn an_allocator_that_waits_for_memory_is_not_enough() {
    let mut figures = job(20_000, [15_000, 15_000, 15_000]);
    figures.native.waits = 7;
    assert_eq!(judge(&figures), enough(OfPyTorch::Expandable, true));
    figures.expandable.waits = 3;
    assert_eq!(judge(&figures), Verdict::SeamallocHelps { saves: Some(0), waits: 3 });
    figures.stitch.waits = 1;
    assert_eq!(judge(&figures), enough(OfPyTorch::Expandable, false), "seamalloc waits too");
}

#[test]
fn streams_are_named_where_they_keep_apart_half_of_the_difference() {
    let mut figures = job(None, [14_000, 14_000, 10_200]);
    figures.native.elsewhere = 1_800 * MIB;
    assert_eq!(judge(&figures).kind(), "seamalloc_helps");
    figures.native.pending = 100 * MIB;
    assert_eq!(judge(&figures), Verdict::Streams { apart: 1_900 * MIB, is_saved: true });
    // No allocator saves what is freed and still used.
    let mut figures = job(11_500, [11_400, 11_400, 11_400]);
    figures.native.pending = 700 * MIB;
    assert_eq!(judge(&figures), Verdict::Streams { apart: 700 * MIB, is_saved: false });
    figures.capacity = Some(20 * GIB);
    assert_eq!(judge(&figures), enough(OfPyTorch::Native, true));
    // Neither of PyTorch's runs it: the refusal tells.
    let mut figures = job(10_500, [None, None, Some(10_300)]);
    (figures.expandable.idle, figures.expandable.elsewhere) = (400 * MIB, 300 * MIB);
    assert_eq!(judge(&figures), Verdict::Streams { apart: 300 * MIB, is_saved: true });
    figures.expandable.elsewhere = 100 * MIB;
    assert_eq!(judge(&figures).kind(), "seamalloc_helps");
}

/// Figures for every verdict, with the largest numbers that there are.
fn all() -> Vec<Judgement> {
    let most = 16 * 1024 * 1024 - 1;
    let none: [Option<u64>; 3] = [None; 3];
    let waiting = |mut figures: Figures| {
        figures.native.waits = u64::MAX;
        figures
    };
    let mut figures = vec![
        job(9_000, none),
        job(10_000, none),
        Figures { others: Some(29_700 * MIB), ..job(40_000, [14_000, 10_500, 10_400]) },
        job(20_000, [14_000, 10_200, 10_100]),
        job(20_000, [None, Some(10_200), Some(10_100)]),
        job(20_000, [10_200, 10_200, 10_200]),
        job(None, [14_000, 10_200, 10_100]),
        job(10_500, [None, None, Some(10_100)]),
        job(11_000, [None, Some(10_900), Some(10_100)]),
        waiting(job(20_000, [15_000, 15_000, 15_000])),
        Figures { available: Some(9_000 * MIB), ..job(9_000, none) },
        Figures { available: Some(9_000 * MIB), free_beyond_limit: Some(GIB), ..job(9_000, none) },
        Figures { live: most * MIB, available: Some(most * MIB - 1), ..job(None, none) },
    ];
    let mut apart = job(None, [14_000, 14_000, 10_200]);
    apart.native.elsewhere = 3_000 * MIB;
    figures.push(apart.clone());
    apart.stitch = apart.native;
    apart.native.pending = 3_000 * MIB;
    figures.push(apart);
    let last = Figures { capacity: Some(most * MIB - 1), ..figures[12].clone() };
    figures.push(last);
    figures.into_iter().map(Judgement::of).collect()
}

#[test]
fn every_verdict_is_a_line_with_reasons_and_one_step() {
    let mut kinds: Vec<_> = all().iter().map(|found| found.verdict.kind()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, ["others", "pytorch_is_enough", "seamalloc_helps", "streams", "too_much_live"]);
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
    let figures = Figures { owners, persistent: Some(2_000 * MIB), ..job(9_000, [None::<u64>; 3]) };
    let found = Judgement::of(figures.clone());
    assert_eq!(found.headline(), "Too much is live: 9.77 GiB of 8.79 GiB. No allocator helps.");
    assert_eq!(
        found.reasons(),
        "At most 9.77 GiB are live, 1.95 GiB of it persistent (weights, optimizer state), 1000.00 MiB more than the \
         device has. The largest owners: a.py:1 f 4.88 GiB (50%), b.py:2 g 2.44 GiB (25%), c.py:3 h 1000.00 MiB (10%)."
    );
    // 1,000 of the 8,000 MiB that are not persistent.
    assert!(found.next_step().starts_with("Reduce the batch size by at least 13%; "), "{}", found.next_step());
    assert!(
        found.next_step().contains("SEAMALLOC_CONF=spill:host=1GiB python -m seamalloc run"),
        "{}",
        found.next_step()
    );
    let found = Judgement::of(Figures { persistent: Some(9_500 * MIB), ..figures });
    assert!(found.next_step().starts_with("Shard or offload weights"), "{}", found.next_step());
}

#[test]
fn a_setting_that_the_job_has_is_kept() {
    let figures = job(20_000, [14_000, 10_200, 10_100]);
    assert_eq!(Judgement::of(figures.clone()).next_step(), format!("Set {EXPANDABLE_SETTING}."));
    let found = Judgement::of(Figures { is_expandable_set: true, ..figures });
    assert!(found.next_step().starts_with("Keep "), "{}", found.next_step());
}
