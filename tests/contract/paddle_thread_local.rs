//! Paddle's `thread_local`, in small chunks.

use crate::suite::Subject;
use seamalloc::StrategyKind;

contract_of_any_sizes!(Subject {
    options: "FLAGS_initial_gpu_memory_in_mb:64,FLAGS_reallocate_gpu_memory_in_mb:2",
    maps: false,
    mallocs: true,
    ..Subject::of(StrategyKind::PaddleThreadLocal)
});
