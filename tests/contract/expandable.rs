//! PyTorch's expandable segments.

use crate::MIB;
use crate::suite::Subject;
use seamalloc::StrategyKind;

contract!(Subject { unit: Some(20 * MIB), ..Subject::of(StrategyKind::Expandable) });
