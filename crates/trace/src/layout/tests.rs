use super::*;
use crate::read_bytes;

const MIB: u64 = 1 << 20;

/// A segment, with the size in MiB and the letter of the state of each block.
struct Segment<'a> {
    more: &'a str,
    blocks: &'a [(u64, char)],
}

fn native(blocks: &[(u64, char)]) -> Segment<'_> {
    Segment { more: "", blocks }
}

/// Returns the layouts of a snapshot with these segments, whose addresses are 10 GiB apart.
fn layouts(segments: &[Segment<'_>]) -> Vec<Layout> {
    let of = |(index, segment): (usize, &Segment<'_>)| {
        let start = (index as u64 + 1) * 10_240 * MIB;
        let mut at = start;
        let blocks = segment.blocks.iter().map(|(size, state)| {
            let state = match state {
                'a' => "active_allocated",
                'p' => "active_pending_free",
                _ => "inactive",
            };
            let (address, size) = (at, size * MIB);
            at += size;
            format!(r#"{{"address":{address},"size":{size},"requested_size":{},"state":"{state}"}}"#, size - 100)
        });
        let blocks: Vec<_> = blocks.collect();
        let total: u64 = segment.blocks.iter().map(|(size, _)| size * MIB).sum();
        format!(r#"{{"address":{start},"total_size":{total},{}"blocks":[{}]}}"#, segment.more, blocks.join(","))
    };
    let segments: Vec<_> = segments.iter().enumerate().map(of).collect();
    let text = format!(r#"{{"segments":[{}],"device_traces":[[],[]]}}"#, segments.join(","));
    let error = read_bytes("oom.json", text.as_bytes()).unwrap_err();
    error.layouts().to_vec()
}

fn layout(segments: &[Segment<'_>]) -> Layout {
    layouts(segments).remove(0)
}

/// Returns the largest requests in MiB.
fn largest(layout: &Layout, capacity: Option<u64>) -> [u64; 4] {
    let LargestRequests { native, expandable, unsplit, stitch } =
        layout.largest_requests(capacity.map(|mib| mib * MIB));
    [native, expandable, unsplit, stitch].map(|bytes| bytes / MIB)
}

#[test]
fn memory_is_counted_by_device_stream_and_pool() {
    let found = layouts(&[
        native(&[(30, 'a'), (10, 'f'), (20, 'p')]),
        Segment { more: r#""stream":7,"segment_type":"small","#, blocks: &[(1, 'a'), (1, 'f')] },
        Segment { more: r#""segment_pool_id":[0,3],"#, blocks: &[(8, 'a'), (12, 'f')] },
        Segment { more: r#""device":1,"is_expandable":true,"#, blocks: &[(20, 'f')] },
    ]);
    let [first, second] = &found[..] else { panic!("{found:?}") };
    let held = first.held;
    assert_eq!((&*first.name, first.device, first.segments, first.expandable), ("oom", 0, 3, false));
    assert_eq!((second.device, second.expandable, second.held.free), (1, true, 20 * MIB));
    assert_eq!((held.reserved, held.allocated, held.pending, held.free), (82 * MIB, 39 * MIB, 20 * MIB, 23 * MIB));
    assert_eq!((held.requested, held.holes, held.largest_hole), (59 * MIB - 400, 3, 12 * MIB));
    assert_eq!(first.private_free, 12 * MIB);
    let pools: Vec<_> =
        first.pools.iter().map(|pool| (pool.stream.0, pool.pool, pool.small, pool.held.free / MIB)).collect();
    let public = PoolId::NONE;
    assert_eq!(pools, [(0, public, false, 10), (0, PoolId(0, 3), false, 12), (7, public, true, 1)]);
}

/// The figures are those of the ten blocks of `docs/why.md`: the free 768 MiB of each GiB are 38 whole pieces of 20 MiB
/// and the first 8 MiB of another.
#[test]
fn holes_serve_each_allocator_in_its_own_pieces() {
    let third = || native(&[(768, 'f'), (256, 'a')]);
    let layout = layout(&[third(), third(), third()]);
    assert_eq!(largest(&layout, None), [768, 2280, 2288, 2304]);
    // All allocators except native join new memory to a free end. Native takes a segment of new memory.
    assert_eq!(largest(&layout, Some(4096)), [1024, 3300, 3312, 3328]);
    // If a device has less memory than is reserved, requests are limited to its memory less the blocks in use: of 2
    // GiB, 768 MiB remain.
    assert_eq!(largest(&layout, Some(2048)), [768, 1280, 1280, 1280]);
    assert_eq!(layout.verdict(Some(512 * MIB)).kind, LayoutVerdictKind::TooMuchLive);
    let verdict = layout.verdict(Some(4096 * MIB));
    assert_eq!(verdict.kind, LayoutVerdictKind::Fragmentation);
    assert_eq!(verdict.headline, "Fragmentation: 2.25 GiB free in 3 holes, the largest 0.75 GiB.");
    assert_eq!(verdict.next, "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.");
}

/// A view begins in the free end of one piece of 20 MiB, and ends in the free beginning of another piece, in another
/// free block.
#[test]
fn a_view_has_two_ends_of_different_pieces() {
    // The only piece (20 MiB) is free at both ends, and the ends of one piece cannot be the two ends of one view.
    assert_eq!(largest(&layout(&[native(&[(5, 'f'), (8, 'a'), (7, 'f')])]), None), [7, 7, 7, 10]);
    // A view cannot begin in the middle of a piece of 20 MiB. If the piece is split, its whole granules of 2 MiB can
    // join a view.
    let landlocked = || native(&[(5, 'a'), (10, 'f'), (5, 'a')]);
    assert_eq!(largest(&layout(&[landlocked(), landlocked()]), None), [10, 10, 10, 16]);
    // The segment `tail` is free at its end, `head` at its beginning.
    let tail = || native(&[(12, 'a'), (8, 'f')]);
    let head = || native(&[(9, 'f'), (11, 'a')]);
    assert_eq!(largest(&layout(&[tail(), head(), tail()]), None), [9, 9, 17, 24]);
    // Wholly free segments and pieces of 20 MiB are given back to the driver. A stream's partly used last piece stays,
    // and new memory continues after its 12 free MiB.
    let expandable = r#""is_expandable":true,"#;
    let grown = Segment { more: expandable, blocks: &[(8, 'a'), (52, 'f')] };
    let free = Segment { more: r#""is_expandable":true,"stream":9,"#, blocks: &[(40, 'f')] };
    assert_eq!(largest(&layout(&[grown, free]), None), [52, 92, 92, 92]);
    // Memory for small requests is given back in pieces of 2 MiB, and its holes serve no large request.
    let small = Segment { more: r#""segment_type":"small","#, blocks: &[(2, 'f')] };
    let used = Segment { more: r#""segment_type":"small","#, blocks: &[(1, 'a'), (1, 'f')] };
    assert_eq!(largest(&layout(&[small, used, native(&[(20, 'f')])]), None), [22, 20, 22, 22]);
    // A private pool keeps its memory.
    let pool = Segment { more: r#""segment_pool_id":[0,1],"#, blocks: &[(400, 'f')] };
    assert_eq!(largest(&layout(&[pool]), Some(500)), [100, 100, 100, 100]);
}

#[test]
fn a_verdict_names_the_first_question_that_fits() {
    let other = |blocks| Segment { more: r#""stream":7,"#, blocks };
    let private = |blocks| Segment { more: r#""segment_pool_id":[0,1],"#, blocks };
    let full = layout(&[native(&[(1000, 'a'), (20, 'f')])]);
    for (layout, capacity, kind, headline) in [
        (
            &full,
            None,
            LayoutVerdictKind::TooMuchLive,
            "Not fragmentation: 1000.00 MiB of 1020.00 MiB held are allocated.",
        ),
        (&full, Some(1030), LayoutVerdictKind::TooMuchLive, "Not fragmentation"),
        (&full, Some(2000), LayoutVerdictKind::Others, "Not fragmentation"),
        (
            &layout(&[native(&[(100, 'a'), (200, 'p'), (50, 'f')])]),
            None,
            LayoutVerdictKind::NotShort,
            "Memory was not short at this moment: 200.00 MiB wait for other streams (record_stream).",
        ),
        (
            &layout(&[native(&[(100, 'a'), (60, 'f')]), native(&[(30, 'f')])]),
            None,
            LayoutVerdictKind::NotShort,
            "Memory was not short at this moment: 30.00 MiB lie in wholly free segments.",
        ),
        (
            &layout(&[Segment { more: r#""is_expandable":true,"#, blocks: &[(10, 'a'), (45, 'f'), (5, 'a')] }]),
            None,
            LayoutVerdictKind::NotShort,
            "Memory was not short at this moment: 20.00 MiB lie in wholly free segments or pieces.",
        ),
        (
            &layout(&[native(&[(100, 'a'), (60, 'f')]), other(&[(40, 'f'), (20, 'a')])]),
            None,
            LayoutVerdictKind::Streams,
            "Streams keep memory apart: of 100.00 MiB free, one stream has no more than 60.00 MiB.",
        ),
        (
            &layout(&[native(&[(100, 'a'), (60, 'f')]), private(&[(80, 'f'), (20, 'a')])]),
            None,
            LayoutVerdictKind::PrivatePools,
            "Private pools keep memory apart: 80.00 MiB of 140.00 MiB free.",
        ),
        (
            &layout(&[native(&[(100, 'a'), (60, 'f'), (1, 'a'), (9, 'f')])]),
            None,
            LayoutVerdictKind::OnePiece,
            "Not fragmentation: 69.00 MiB are free, and 60.00 MiB of them in one piece.",
        ),
    ] {
        let verdict = layout.verdict(capacity.map(|mib: u64| mib * MIB));
        assert_eq!(verdict.kind, kind, "{verdict:?}");
        assert!(verdict.headline.starts_with(headline), "{verdict:?}");
        assert!(!verdict.reasons.is_empty() && !verdict.next.is_empty());
    }
    // If expandable segments are on already, the advice names seamalloc.
    let holes: Vec<_> = (0..40).flat_map(|_| [(12, 'a'), (12, 'f')]).collect();
    let layout = layout(&[Segment { more: r#""is_expandable":true,"#, blocks: &holes }]);
    let verdict = layout.verdict(None);
    assert_eq!(verdict.next, "Run it with seamalloc: python -m seamalloc run train.py.");
    assert!(verdict.reasons.contains("480.00 MiB with seamalloc"), "{verdict:?}");
}

#[test]
fn a_line_of_json_has_the_figures() {
    let layout = layout(&[native(&[(768, 'f'), (256, 'a')])]);
    let line = layout.to_json(Some(2048 * MIB));
    assert_eq!(
        (&line["layout"], &line["trace"], &line["capacity"]),
        (&true.into(), &"oom".into(), &(2048 * MIB).into())
    );
    assert_eq!((&line["reserved"], &line["free"]), (&(1024 * MIB).into(), &(768 * MIB).into()));
    assert_eq!(line["largest_request"]["caching"], 1024 * MIB);
    assert_eq!(line["pools"][0]["largest_hole"], 768 * MIB);
    assert_eq!(line["verdict"]["kind"], "one_piece");
    assert!(line["pools"][0]["pool"].is_null());
}
