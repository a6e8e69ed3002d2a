//! Paddle's allocators (`paddle/phi/core/memory/allocation`), each by its own rules and under its own flags
//! ([`PaddleFlags`](crate::PaddleFlags)).
//!
//! | file | the strategy |
//! |---|---|
//! | auto_growth | `auto_growth`, Paddle's default: chunks as large as requests, split at their backs |
//! | naive_best_fit | `naive_best_fit`, and `thread_local`, which is the same for each thread |
//! | vmm | the allocator over virtual memory, version 2 |
//!
//! The parts around Paddle's allocators are the allocator's here. An allocator for each stream
//! (`AllocatorFacade::GetAllocator`): pools of a stream. Events at `record_stream` and a list of blocks that are not
//! freed yet (`StreamSafeCUDAAllocator`): recorded streams, asked for before every request; to the letter with
//! `FLAGS_use_stream_safe_cuda_allocator` (`streams/named_at_once.rs`). Release of everything and one more try
//! (`StreamSafeCUDAAllocator::AllocateImpl`): the steps of `malloc_fallback.rs`. A wait for frees of other threads
//! (`RetryAllocator`), an allocator for each thread (`ThreadLocalCUDAAllocator`): layers (`resource/`). Nothing is
//! released in a capture.
//!
//! Addresses are multiples of 512 here, of 256 in Paddle (`GpuMinChunkSize`).

mod auto_growth;
mod naive_best_fit;
mod vmm;

pub(crate) use auto_growth::AutoGrowth;
pub(crate) use naive_best_fit::NaiveBestFit;
pub(crate) use vmm::Vmm;
