//! Stitching, with places from plans.

use crate::suite::Subject;
use seamalloc::StrategyKind;

contract!(Subject {
    shares_streams: true,
    releases_no_more_than_needed: true,
    looks_without_need: true,
    ..Subject::of(StrategyKind::Planned)
});
