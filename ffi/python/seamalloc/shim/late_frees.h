// Frees that could not be made when the program requested them: frees within a callback under the C library's lock, and
// frees of memory that a captured stream of another device uses.
#pragma once

#include "other_streams.h"

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace seamalloc {

// A free, with the streams that were current when the program requested it.
struct LateFree {
  void* pointer;
  std::vector<StreamOfDevice> current;
};

class LateFrees {
 public:
  void add(LateFree free) {
    std::lock_guard<std::mutex> guard(lock_);
    frees_.push_back(std::move(free));
    any_.store(true, std::memory_order_release);
  }

  bool any() const {
    return any_.load(std::memory_order_relaxed);
  }

  // Returns the frees to make now, and forgets them.
  std::vector<LateFree> take() {
    std::lock_guard<std::mutex> guard(lock_);
    any_.store(false, std::memory_order_release);
    return std::exchange(frees_, {});
  }

 private:
  std::mutex lock_;
  std::atomic<bool> any_{false};
  std::vector<LateFree> frees_;
};

}  // namespace seamalloc
