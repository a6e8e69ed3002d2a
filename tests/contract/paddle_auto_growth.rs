//! Paddle's `auto_growth`.

use crate::suite::Subject;
use seamalloc::StrategyKind;

contract!(Subject { maps: false, mallocs: true, ..Subject::of(StrategyKind::PaddleAutoGrowth) });
