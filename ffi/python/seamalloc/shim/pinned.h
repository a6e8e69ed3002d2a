// Page-locked memory: PyTorch's host allocator over an allocator of the C library's.
//
// Memory of a GPU is used again in the order of its stream. This is the CPU's too, which is in no stream's order: an allocation
// serves again once every stream that copied from it or to it has passed all it was given until the free.
//
// Two things more than a stream may use it. A graph, each time that it is replayed: what a captured stream has used, or what
// was allocated for a capture, is kept until the graph is destroyed. And streams of other devices, which the C library
// cannot wait for by name (other_streams.h).
#pragma once

#include "library.h"

// Before 2.9 PyTorch's copies may go past an allocator that is put in place of its own.
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
  // Becomes PyTorch's host allocator. `options` are the C library's, as in seam_create.
  void install(const char* options);
  // The one before is it again. Nothing may have been allocated.
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

  // The C library's allocator; 0 while nothing was asked for.
  seam_allocator opened() const {
    return handle_.load(std::memory_order_acquire);
  }
  // It, opened on first use.
  seam_allocator handle();
  void free(void* pointer);

 private:
  using Filter = std::function<bool(c10::Stream)>;

  void open();
  // The capture whose requests or copies those of a stream are; none where it is not captured.
  const MempoolId* captured_by(c10::Stream stream);
  c10::Stream current_stream() const;
  cudaStream_t handle_of(c10::Stream stream) const;
  void free_now(void* pointer);
  void free_late();
  // Frees what the graphs of pools that nobody uses any more have used.
  void free_of_ended_pools();

  at::HostAllocator* before_ = nullptr;
  std::string options_;
  bool simulated_ = false;
  std::mutex opening_;
  std::atomic<seam_allocator> handle_{0};
  // The device with whose context the memory was page-locked.
  DeviceIndex owner_ = 0;
  OtherStreams other_streams_;

  // Behind it: all below.
  std::mutex lock_;
  std::atomic<bool> is_capturing_{false};
  std::vector<std::pair<MempoolId, Filter>> captures_;
  // How many graphs use a pool.
  std::map<MempoolId, int> uses_;
  // Of live and of freed allocations, the pool whose graphs may use them.
  std::unordered_map<void*, MempoolId> of_graphs_;
  std::vector<std::pair<void*, MempoolId>> freed_of_graphs_;
  // Frees that could not be made while a stream was captured.
  std::vector<void*> late_;
  std::atomic<bool> any_of_graphs_{false}, any_late_{false};
};

// The only one there is.
PinnedAllocator& pinned_instance();

}  // namespace seamalloc

#endif
