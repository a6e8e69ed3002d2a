//! The buddy system, in small trees.

use crate::suite::Subject;
use seamalloc::StrategyKind;

contract_of_any_sizes!(Subject {
    options: "buddy_capacity_mb:2",
    maps: false,
    mallocs: true,
    ..Subject::of(StrategyKind::Buddy)
});
