//! GMLake's algorithm.

use crate::suite::Subject;
use seamalloc::StrategyKind;

contract!(Subject { mallocs: true, ..Subject::of(StrategyKind::Gmlake) });
