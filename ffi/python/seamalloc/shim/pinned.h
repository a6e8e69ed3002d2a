// Page-locked memory: PyTorch's host allocator over an allocator of the C library.
//
// Memory of a GPU is reused in the order of its stream. The CPU uses page-locked memory too, and the CPU is not ordered
// by a stream. A freed allocation is therefore reused only after every stream that copied from it or to it has passed
// the work given before the free.
//
// Two further users need a wait. First, a CUDA graph uses the memory at each replay: memory that a captured stream
// used, or that was allocated for a capture, is kept until the graph is destroyed. Second, streams of other devices use
// the memory, and the C library cannot wait for them by name (other_streams.h).
#pragma once

#include "library.h"

// Before 2.9, some copies of PyTorch bypass an allocator that replaces PyTorch's own.
#if SEAMALLOC_TORCH >= 209

#include "other_streams.h"

#include <ATen/core/CachingHostAllocator.h>

#include <functional>
#include <map>
#include <set>
#include <string>

namespace seamalloc {

class PinnedAllocator final : public at::HostAllocator {
 public:
  // Makes this allocator PyTorch's host allocator. `options` are the C library's, as in seam_create.
  void install(const char* options);
  // Restores the previous allocator. No memory may have been allocated.
  void uninstall();

  DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t count) const override;
  bool record_event(void* pointer, void* context, c10::Stream stream) override;
  void empty_cache() override;
  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;
#if SEAMALLOC_TORCH >= 211
  void begin_allocate_to_pool(MempoolId pool, std::function<bool(c10::Stream)> filter) override;
  void end_allocate_to_pool(MempoolId pool) override;
  void release_pool(MempoolId pool) override;
#endif

  // Returns the C library's allocator; 0 before the first request.
  seam_allocator opened() const {
    return handle_.load(std::memory_order_acquire);
  }
  // Returns the C library's allocator, opened on first use.
  seam_allocator handle();
  void free(void* pointer);

 private:
  using Filter = std::function<bool(c10::Stream)>;

  void open();
  // Returns the pool of the capture that a stream belongs to; NULL if the stream is not captured.
  const MempoolId* captured_by(c10::Stream stream);
  c10::Stream current_stream() const;
  cudaStream_t handle_of(c10::Stream stream) const;
  void free_now(void* pointer);
  void free_late();
  // Frees the memory of graphs whose pools have no users any more.
  void free_of_ended_pools();

  at::HostAllocator* before_ = nullptr;
  std::string options_;
  bool simulated_ = false;
  std::mutex opening_;
  std::atomic<seam_allocator> handle_{0};
  // The device with whose context the memory was page-locked.
  DeviceIndex owner_ = 0;
  OtherStreams other_streams_;

  // The lock protects all members below.
  std::mutex lock_;
  std::atomic<bool> is_capturing_{false};
  std::vector<std::pair<MempoolId, Filter>> captures_;
  // The number of graphs that use a pool.
  std::map<MempoolId, int> uses_;
  // For live and for freed allocations, the pool whose graphs may use them.
  std::unordered_map<void*, MempoolId> of_graphs_;
  std::vector<std::pair<void*, MempoolId>> freed_of_graphs_;
  // Frees that could not be made while a stream was captured.
  std::vector<void*> late_;
  std::atomic<bool> any_of_graphs_{false}, any_late_{false};
};

// Returns the only allocator of page-locked memory.
PinnedAllocator& pinned_instance();

}  // namespace seamalloc

#endif
