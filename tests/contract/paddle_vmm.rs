//! Paddle's allocator over virtual memory, in small handles: sizes are counted in whole MiB.

use crate::suite::Subject;
use seamalloc::StrategyKind;

contract!(Subject {
    options: "FLAGS_vmm_v2_large_pool_handle_size_in_mb:2",
    unit: Some(2 << 20),
    ..Subject::of(StrategyKind::PaddleVmm)
});
