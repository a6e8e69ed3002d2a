// The shim's own records of private pools, beside those of the C library.
#pragma once

#include "library.h"

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace seamalloc {

// Returns whether requests of a stream go to the pool.
using Filter = std::function<bool(cudaStream_t)>;

class PoolTable {
 public:
  // Keeps the filter of a route until the route ends.
  void keep_filter(PoolKey pool, std::unique_ptr<Filter> filter) {
    std::lock_guard<std::mutex> guard(lock_);
    filters_[pool] = std::move(filter);
  }

  void drop_filter(PoolKey pool) {
    std::lock_guard<std::mutex> guard(lock_);
    filters_.erase(pool);
  }

  void set_used_on_oom(PoolKey pool, bool used) {
    std::lock_guard<std::mutex> guard(lock_);
    if (used) {
      used_on_oom_.insert(pool);
    } else {
      used_on_oom_.erase(pool);
    }
  }

  std::set<PoolKey> used_on_oom() {
    std::lock_guard<std::mutex> guard(lock_);
    return used_on_oom_;
  }

  void set_segmented(PoolKey pool) {
    std::lock_guard<std::mutex> guard(lock_);
    segmented_.insert(pool);
  }

  // Returns whether a pool has segments of its own: from its own allocator, or unsplit.
  bool is_segmented(PoolKey pool) {
    std::lock_guard<std::mutex> guard(lock_);
    return segmented_.count(pool) != 0;
  }

  // Notes the free bytes of a pool when its last use ends.
  void note_release(PoolKey pool, uint64_t free_bytes) {
    std::lock_guard<std::mutex> guard(lock_);
    used_on_oom_.erase(pool);
    // Segments of a pool's own go back to their source.
    if (segmented_.erase(pool) == 0) {
      free_at_release_[pool] = free_bytes;
    }
  }

  // Returns the bytes that were free at the pool's release, and forgets them. Returns 0 if they are unknown.
  uint64_t take_free_at_release(PoolKey pool) {
    std::lock_guard<std::mutex> guard(lock_);
    const auto found = free_at_release_.find(pool);
    if (found == free_at_release_.end()) {
      return 0;
    }
    const uint64_t bytes = found->second;
    free_at_release_.erase(found);
    return bytes;
  }

 private:
  std::mutex lock_;
  std::map<PoolKey, std::unique_ptr<Filter>> filters_;
  std::set<PoolKey> used_on_oom_;
  std::set<PoolKey> segmented_;
  std::map<PoolKey, uint64_t> free_at_release_;
};

}  // namespace seamalloc
