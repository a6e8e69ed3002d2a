//! Stitching, where no chunk is split: the memory of a live block stays where it is.

use crate::suite::Subject;
use seamalloc::StrategyKind;

contract!(Subject {
    options: "split:off",
    shares_streams: true,
    releases_no_more_than_needed: true,
    looks_without_need: true,
    ..Subject::of(StrategyKind::Stitch)
});
