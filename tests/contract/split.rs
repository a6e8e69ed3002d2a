//! Stitching, where chunks are split, as is the default: no promise depends on which memory is behind an address.

use crate::suite::Subject;
use seamalloc::StrategyKind;

contract!(Subject {
    options: "split:last_resort",
    exchanges: true,
    shares_streams: true,
    releases_no_more_than_needed: true,
    looks_without_need: true,
    ..Subject::of(StrategyKind::Stitch)
});
