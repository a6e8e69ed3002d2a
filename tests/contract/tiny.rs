//! TinyTorch's allocator.

use crate::suite::Subject;
use seamalloc::StrategyKind;

contract!(Subject { maps: false, mallocs: true, ..Subject::of(StrategyKind::Tiny) });
