//! Slabs.

use crate::suite::Subject;
use seamalloc::StrategyKind;

contract_of_any_sizes!(Subject { maps: false, mallocs: true, ..Subject::of(StrategyKind::Slab) });
