//! Snapshots of real programs without a history: what their layouts say. The figures are counted over the pickle by a
//! program of its own.

use seamalloc_trace::layout::LayoutVerdictKind;
use seamalloc_trace::{Layout, read_path};
use std::path::Path;

/// Dumped behind the handler of a refusal: PyTorch had 5.85 GiB allocated at it, and tensors were freed since.
#[test]
fn a_snapshot_from_behind_a_failure_is_said_to_be_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/snapshots/layout-only.snapshot.pickle.gz");
    let error = read_path(&path).unwrap_err();
    let [layout] = Layout::of_error(&error) else { panic!("{error}") };
    let held = layout.held;
    assert_eq!((layout.name.as_str(), layout.device, layout.expandable), ("layout-only", 0, false));
    assert_eq!((layout.segments, held.reserved, held.allocated), (91, 6_373_244_928, 522_075_648));
    assert_eq!((held.pending, held.free, held.holes, held.largest_hole), (0, 5_851_169_280, 77, 268_435_456));
    let pools: Vec<_> = layout.pools.iter().map(|pool| (pool.small, pool.segments, pool.held.free)).collect();
    assert_eq!(pools, [(false, 79, 5_846_597_632), (true, 12, 4_571_648)]);
    // Segments that are wholly free, of which PyTorch keeps none when it refuses a request.
    assert_eq!((layout.releasable(), layout.largest_requests(None).native), (5_695_864_832, 5_695_864_832));
    assert_eq!(layout.verdict(None).kind, LayoutVerdictKind::NotShort);
}
