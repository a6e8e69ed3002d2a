// Private pools: CUDA graphs, MemPool, and checkpoints for trees of graphs.

#include "allocator.h"

namespace seamalloc {

namespace {

// The filter of a route. The filter asks CUDA and may throw, and no exception may pass through the C library.
bool covers(seam_stream stream, void* user) {
  try {
    return (*static_cast<Filter*>(user))(static_cast<cudaStream_t>(stream));
  } catch (...) {
    return false;
  }
}

struct Checkpoint : AllocatorState {
  MempoolId pool;
  std::vector<seam_pool_block> blocks;
};

void* pointer_of(const seam_pool_block& block) {
  return reinterpret_cast<void*>(block.address);
}

}  // namespace

void Allocator::beginAllocateToPool(DeviceIndex device, MempoolId pool, std::function<bool(cudaStream_t)> filter) {
  const seam_allocator handle = handle_for(device);
  auto kept = std::make_unique<Filter>(std::move(filter));
  // For a graph, PyTorch calls this method before the capture begins, so the filter does not cover the current stream
  // yet. The filters of MemPool and of warm-up runs cover the caller's stream at once. Only a capture forbids driver
  // calls.
  const bool captures = !covers(devices_.current_stream(device).stream, kept.get());
  open_pool(device, pool);
  const seam_status status =
      seam_pool_begin_filter(handle, pool_of(pool), covers, kept.get(), captures ? SEAM_POOL_CAPTURING : 0);
  if (status != SEAM_STATUS_OK) {
    const std::string why = seam_last_error_text();
    seam_pool_release(handle, pool_of(pool));
    TORCH_CHECK(false, "seamalloc, beginning a private pool: ", why);
  }
  pools_.keep_filter({device, pool}, std::move(kept));
}

void Allocator::endAllocateToPool(DeviceIndex device, MempoolId pool) {
  check(seam_pool_end(handle_for(device), pool_of(pool)), "ending a private pool");
  // The C library does not call the filter any more.
  pools_.drop_filter({device, pool});
}

void Allocator::releasePool(DeviceIndex device, MempoolId pool) {
  note_release(device, pool);
  // Destructors call this method, so it throws nothing.
  if (seam_pool_release(handle_for(device), pool_of(pool)) != SEAM_STATUS_OK) {
    TORCH_WARN("seamalloc, releasing a private pool: ", seam_last_error_text());
  }
}

int Allocator::getPoolUseCount(DeviceIndex device, MempoolId pool) {
  const seam_allocator handle = device_at(device).opened();
  if (handle == 0) {
    return 0;
  }
  seam_pool_stats stats;
  stats.size = sizeof stats;
  const seam_status status = seam_pool_get_stats(handle, pool_of(pool), &stats);
  if (status == SEAM_STATUS_UNKNOWN_POOL) {
    return 0;
  }
  check(status, "counting uses of a private pool");
  return int(stats.uses);
}

#if SEAMALLOC_TORCH >= 208
#if SEAMALLOC_TORCH >= 211
void Allocator::createOrIncrefPool(DeviceIndex device, MempoolId pool, std::shared_ptr<CUDAAllocator> own) {
#else
void Allocator::createOrIncrefPool(DeviceIndex device, MempoolId pool, CUDAAllocator* own) {
#endif
  if (own == nullptr) {
    open_pool(device, pool);
    return;
  }
#if SEAMALLOC_TORCH >= 211
  open_pool_with(device, pool, std::move(own));
#else
  // The creator of the MemPool keeps its allocator alive.
  open_pool_with(device, pool, std::shared_ptr<CUDAAllocator>(own, [](auto*) {}));
#endif
}
#else
void Allocator::ensureExistsAndIncrefPool(DeviceIndex device, MempoolId pool) {
  open_pool(device, pool);
}
#endif

void Allocator::open_pool(DeviceIndex device, MempoolId pool) {
#if SEAMALLOC_TORCH < 208
  // Only the context names the allocator of a pool, and the context begins with the pool's first use.
  c10::cuda::MemPool* active = c10::cuda::MemPoolContext::getActiveMemPool();
  if (active != nullptr && active->id() == pool && active->allocator() != nullptr && !pools_.is_segmented({device, pool})) {
    open_pool_with(device, pool, std::shared_ptr<CUDAAllocator>(active->allocator(), [](auto*) {}));
    return;
  }
#endif
  check(seam_pool_open(handle_for(device), pool_of(pool)), "using a private pool");
}

#if SEAMALLOC_TORCH >= 211
void Allocator::setUseOnOOM(DeviceIndex device, MempoolId pool, bool use) {
  pools_.set_used_on_oom({device, pool}, use);
}
#elif SEAMALLOC_TORCH >= 208
void Allocator::setUseOnOOM(DeviceIndex device, MempoolId pool) {
  pools_.set_used_on_oom({device, pool}, true);
}
#endif

#if SEAMALLOC_TORCH >= 210
void Allocator::setNoSplit(DeviceIndex device, MempoolId pool) {
  check(seam_pool_set_unsplit(handle_for(device), pool_of(pool)), "having a private pool's segments unsplit");
  pools_.set_segmented({device, pool});
}
#endif

void* Allocator::malloc_from_pools_used_on_oom(size_t size, DeviceIndex device, cudaStream_t stream) {
  void* pointer = nullptr;
  for (const auto& [of_device, pool] : pools_.used_on_oom()) {
    if (of_device != device) {
      continue;
    }
    // As in PyTorch, the pool serves the request from the memory that it holds. A pool without segments of its own may
    // stitch.
    seam_status status = seam_pool_malloc_held(handle_for(device), pool_of(pool), size, stream, &pointer);
    if (pointer == nullptr && !pools_.is_segmented({device, pool}) && free_bytes(device, pool) >= size) {
      status = seam_pool_malloc(handle_for(device), pool_of(pool), size, stream, &pointer);
    }
    if (status == SEAM_STATUS_OK && pointer != nullptr) {
      break;
    }
  }
  return pointer;
}

// Returns the bytes that a private pool holds and no block uses.
uint64_t Allocator::free_bytes(DeviceIndex device, MempoolId pool) {
  seam_pool_stats stats;
  stats.size = sizeof stats;
  const seam_status status = seam_pool_get_stats(handle_for(device), pool_of(pool), &stats);
  return status == SEAM_STATUS_OK ? stats.reserved_bytes - stats.active_bytes : 0;
}

std::vector<seam_pool_block> Allocator::live_blocks(DeviceIndex device, MempoolId pool) {
  std::vector<seam_pool_block> blocks(64);
  size_t count = 0;
  // Other threads may allocate from the pool at the same time.
  seam_status status;
  while ((status = seam_pool_blocks(handle_for(device), pool_of(pool), blocks.data(), blocks.size(), &count)) ==
         SEAM_STATUS_BUFFER_TOO_SMALL) {
    blocks.resize(2 * count);
  }
  check(status, "looking at a private pool");
  blocks.resize(count);
  return blocks;
}

bool Allocator::checkPoolLiveAllocations(
    DeviceIndex device, MempoolId pool, const std::unordered_set<void*>& expected) {
  const auto live = live_blocks(device, pool);
  size_t found = 0;
  for (const auto& block : live) {
    found += expected.count(pointer_of(block));
  }
  return found == live.size() && found == expected.size();
}

std::shared_ptr<AllocatorState> Allocator::getCheckpointState(DeviceIndex device, MempoolId pool) {
  auto state = std::make_shared<Checkpoint>();
  state->pool = pool;
  state->blocks = live_blocks(device, pool);
  return state;
}

CheckpointDelta Allocator::setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> state) {
  const auto checkpoint = std::dynamic_pointer_cast<Checkpoint>(state);
  TORCH_CHECK(checkpoint, "seamalloc: the checkpoint is another allocator's");
  const auto live = live_blocks(device, checkpoint->pool);
  CheckpointDelta delta;
  check(
      seam_pool_restore(handle_for(device), pool_of(checkpoint->pool), checkpoint->blocks.data(), checkpoint->blocks.size()),
      "restoring a private pool");
  for (const auto& block : live) {
    delta.ptrs_freed.push_back(pointer_of(block));
  }
  for (const auto& block : checkpoint->blocks) {
    void* pointer = pointer_of(block);
    delta.dataptrs_allocd.emplace_back(pointer, pointer, raw_deleter(), c10::Device(c10::DeviceType::CUDA, device));
  }
  return delta;
}

}  // namespace seamalloc
