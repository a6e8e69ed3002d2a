//! Paddle's allocators (`paddle/phi/core/memory/allocation`), each with its own rules and flags
//! ([`PaddleFlags`](crate::PaddleFlags)).
//!
//! | file | the strategy |
//! |---|---|
//! | auto_growth | `auto_growth`, Paddle's default: chunks as large as requests; a request gets the end of a block |
//! | naive_best_fit | `naive_best_fit`, and `thread_local`, which is such an allocator for each thread |
//! | vmm | the allocator over virtual memory, version 2 |
//!
//! The layers around Paddle's allocators correspond to parts of seamalloc's allocator. An allocator for each stream
//! (`AllocatorFacade::GetAllocator`) corresponds to the pools of a stream. Events at `record_stream`, and a list of
//! blocks that are not freed yet (`StreamSafeCUDAAllocator`), correspond to the recorded streams, which every request
//! queries first; with `FLAGS_use_stream_safe_cuda_allocator`, recorded streams follow Paddle's rules exactly
//! (`streams/named_at_once.rs`). The release of everything and one more try (`StreamSafeCUDAAllocator::AllocateImpl`)
//! are steps of `malloc_fallback.rs`. The wait for frees of other threads (`RetryAllocator`) and an allocator for each
//! thread (`ThreadLocalCUDAAllocator`) are layers (`crates/layers/`). No memory is released in a capture.
//!
//! Addresses are multiples of 512 here, of 256 in Paddle (`GpuMinChunkSize`).

mod auto_growth;
mod naive_best_fit;
mod vmm;

pub(crate) use auto_growth::AutoGrowth;
pub(crate) use naive_best_fit::NaiveBestFit;
pub(crate) use vmm::Vmm;
