// What is known of private pools beside what the C library knows.
#pragma once

#include "library.h"

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace seamalloc {

// Says which streams' requests go to a pool.
using Filter = std::function<bool(cudaStream_t)>;

class PoolTable {
 public:
  // Keeps the filter of a route until the route's end.
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

  // Whether it has segments of its own: of its own allocator, or unsplit.
  bool is_segmented(PoolKey pool) {
    std::lock_guard<std::mutex> guard(lock_);
    return segmented_.count(pool) != 0;
  }

  // The last use of a pool ends, with so many bytes free.
  void note_release(PoolKey pool, uint64_t free_bytes) {
    std::lock_guard<std::mutex> guard(lock_);
    used_on_oom_.erase(pool);
    // Segments of its own go back where they came from.
    if (segmented_.erase(pool) == 0) {
      free_at_release_[pool] = free_bytes;
    }
  }

  // What was free when it was released, once; 0 if that is not known.
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
