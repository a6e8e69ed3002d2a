// The memory of a MemPool with an allocator of its own: that allocator gives segments, and takes them back.

#include "allocator.h"

#include <exception>

namespace seamalloc {

namespace {

// Any number that says nothing of memory.
constexpr int32_t FAILED = -1;

// What the own allocator threw in the call that this thread is making. The C library may not be thrown through.
thread_local std::exception_ptr thrown;

using Own = std::shared_ptr<CUDAAllocator>;

// In which order the segments that there are were given. Processes that register theirs together go by it.
struct Order {
  std::mutex lock;
  int32_t count = 0;
  std::unordered_map<uint64_t, int32_t> numbers;
};

Order& order() {
  // Segments are freed until the process ends: it is never destroyed.
  static Order* of_all = new Order;
  return *of_all;
}

template <class Call>
int32_t caught(Call call) {
  thrown = nullptr;
  try {
    call();
    return SEAM_STATUS_OK;
  } catch (const c10::OutOfMemoryError&) {
    return SEAM_STATUS_OUT_OF_MEMORY;
  } catch (...) {
    thrown = std::current_exception();
    return FAILED;
  }
}

int32_t give_segment(size_t bytes, void** address, void* user) {
  return caught([&] {
    *address = (*static_cast<Own*>(user))->raw_alloc(bytes);
    std::lock_guard<std::mutex> guard(order().lock);
    order().numbers[reinterpret_cast<uint64_t>(*address)] = ++order().count;
  });
}

int32_t take_segment(void* address, size_t, void* user) {
  return caught([&] {
    (*static_cast<Own*>(user))->raw_delete(address);
    std::lock_guard<std::mutex> guard(order().lock);
    order().numbers.erase(reinterpret_cast<uint64_t>(address));
  });
}

void drop_source(void* user) {
  delete static_cast<Own*>(user);
}

}  // namespace

int32_t registration_number(uint64_t address) {
  std::lock_guard<std::mutex> guard(order().lock);
  const auto found = order().numbers.find(address);
  return found == order().numbers.end() ? 0 : found->second;
}

void rethrow_own() {
  if (thrown) {
    std::rethrow_exception(std::exchange(thrown, nullptr));
  }
}

void Allocator::open_pool_with(DeviceIndex device, MempoolId pool, std::shared_ptr<CUDAAllocator> own) {
  check(
      seam_pool_open_with(
          of(device), pool_of(pool), give_segment, take_segment, drop_source, new Own(std::move(own)), 0),
      "using an allocator of a MemPool's own");
  std::lock_guard<std::mutex> guard(registering_);
  segmented_.insert({device, pool});
}

bool Allocator::is_segmented(DeviceIndex device, MempoolId pool) {
  std::lock_guard<std::mutex> guard(registering_);
  return segmented_.count({device, pool}) != 0;
}

void Allocator::empty_pool(DeviceIndex device, MempoolId pool) {
  uint64_t owed = 0, given = 0;
  {
    std::lock_guard<std::mutex> guard(registering_);
    const auto found = given_up_.find({device, pool});
    if (found != given_up_.end()) {
      owed = found->second;
      given_up_.erase(found);
    }
  }
  seam_status status = seam_pool_empty(of(device), pool_of(pool), &given);
  if (status == SEAM_STATUS_OK && owed > given) {
    // What was the pool's is everyone's since its release. PyTorch would have less now, and so has this.
    status = seam_trim(of(device), owed - given, nullptr);
  }
  // Called by destructors: it throws nothing.
  if (status != SEAM_STATUS_OK) {
    TORCH_WARN("seamalloc, giving back the memory of a MemPool: ", seam_last_error_text());
  }
}

void Allocator::note_release(DeviceIndex device, MempoolId pool) {
  seam_pool_stats stats;
  stats.size = sizeof stats;
  // Pools of graphs are never emptied by name.
  if (pool.first != 0 || seam_pool_get_stats(of(device), pool_of(pool), &stats) != SEAM_STATUS_OK ||
      stats.uses != 1) {
    return;
  }
  std::lock_guard<std::mutex> guard(registering_);
  // Segments of its own go back where they came from.
  if (segmented_.erase({device, pool}) == 0) {
    given_up_[{device, pool}] = stats.reserved_bytes - stats.active_bytes;
  }
}

}  // namespace seamalloc
