//! Stitching, where each stream has an arena from its first request on: no promise depends on whose heap has a block.

use crate::suite::Subject;
use seamalloc::StrategyKind;

contract!(Subject {
    options: "split:last_resort",
    shares_streams: true,
    releases_no_more_than_needed: true,
    looks_without_need: true,
    ..Subject::of(StrategyKind::Stitch)
});
