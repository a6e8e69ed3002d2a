//! Exact-size lists, in small buffers: a release is to be seen.

use crate::suite::Subject;
use seamalloc::StrategyKind;

contract!(Subject { options: "exact_buffer_mb:2", maps: false, mallocs: true, ..Subject::of(StrategyKind::Exact) });
