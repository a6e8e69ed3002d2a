// The memory of a MemPool with an allocator of its own. The pool's allocator gives segments and takes them back.

#include "sources.h"

#include "allocator.h"

#include <exception>

namespace seamalloc {

namespace {

// The number has no meaning for the C library beyond a failure.
constexpr int32_t FAILED = -1;

// The exception that the pool's allocator threw in this thread's present call. No exception may pass through the C
// library.
thread_local std::exception_ptr thrown;

using OwnAllocator = std::shared_ptr<CUDAAllocator>;

// The order in which the present segments were given. Processes that register their segments together rely on this
// order.
struct Registrations {
  std::mutex lock;
  int32_t count = 0;
  std::unordered_map<uint64_t, int32_t> numbers;
};

Registrations& registrations() {
  // The table is never destroyed, since segments are freed until the process ends.
  static Registrations* of_all = new Registrations;
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
    *address = (*static_cast<OwnAllocator*>(user))->raw_alloc(bytes);
    std::lock_guard<std::mutex> guard(registrations().lock);
    registrations().numbers[reinterpret_cast<uint64_t>(*address)] = ++registrations().count;
  });
}

int32_t take_segment(void* address, size_t, void* user) {
  return caught([&] {
    (*static_cast<OwnAllocator*>(user))->raw_delete(address);
    std::lock_guard<std::mutex> guard(registrations().lock);
    registrations().numbers.erase(reinterpret_cast<uint64_t>(address));
  });
}

void drop_source(void* user) {
  delete static_cast<OwnAllocator*>(user);
}

}  // namespace

int32_t registration_number(uint64_t address) {
  std::lock_guard<std::mutex> guard(registrations().lock);
  const auto found = registrations().numbers.find(address);
  return found == registrations().numbers.end() ? 0 : found->second;
}

void rethrow_own() {
  if (thrown) {
    std::rethrow_exception(std::exchange(thrown, nullptr));
  }
}

void Allocator::open_pool_with(DeviceIndex device, MempoolId pool, std::shared_ptr<CUDAAllocator> own) {
  check(
      seam_pool_open_with(
          handle_for(device), pool_of(pool), give_segment, take_segment, drop_source, new OwnAllocator(std::move(own)), 0),
      "using an allocator of a MemPool's own");
  pools_.set_segmented({device, pool});
}

void Allocator::empty_pool(DeviceIndex device, MempoolId pool) {
  const uint64_t owed = pools_.take_free_at_release({device, pool});
  uint64_t given = 0;
  seam_status status = seam_pool_empty(handle_for(device), pool_of(pool), &given);
  if (status == SEAM_STATUS_OK && owed > given) {
    // Since the release, other requests may use the pool's free memory. PyTorch would hold fewer bytes now, so
    // seamalloc gives back as many.
    status = seam_trim(handle_for(device), owed - given, nullptr);
  }
  // Destructors call this method, so it throws nothing.
  if (status != SEAM_STATUS_OK) {
    TORCH_WARN("seamalloc, giving back the memory of a MemPool: ", seam_last_error_text());
  }
}

void Allocator::note_release(DeviceIndex device, MempoolId pool) {
  seam_pool_stats stats;
  stats.size = sizeof stats;
  // Pools of graphs are never emptied by name.
  if (pool.first != 0 || seam_pool_get_stats(handle_for(device), pool_of(pool), &stats) != SEAM_STATUS_OK ||
      stats.uses != 1) {
    return;
  }
  pools_.note_release({device, pool}, stats.reserved_bytes - stats.active_bytes);
}

}  // namespace seamalloc
