// PyTorch's host allocator as its copies call it: the shim's, over host memory.

#include "exercise.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>
#include <vector>

namespace {

constexpr size_t MIB = size_t(1) << 20;

at::HostAllocator& host() {
  return *at::getHostAllocator(c10::DeviceType::CUDA);
}

c10::Stream stream(size_t handle) {
  return c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(handle), 0).unwrap();
}

int64_t live() {
  const at::HostStats stats = host().get_stats();
#if SEAMALLOC_TORCH >= 210
  return stats.active_bytes.current;
#else
  return stats.allocated_bytes.current;
#endif
}

int64_t reserved() {
  const at::HostStats stats = host().get_stats();
#if SEAMALLOC_TORCH >= 210
  return stats.allocated_bytes.current;
#else
  return stats.reserved_bytes.current;
#endif
}

void nothing_is_opened_for_questions() {
  CHECK(live() == 0 && reserved() == 0);
  host().empty_cache();
  host().reset_peak_stats();
  host().reset_accumulated_stats();
  const c10::DataPtr none = host().allocate(0);
  CHECK(none.get() == nullptr && reserved() == 0);
}

void memory_is_the_machines_and_is_not_rounded_up() {
  c10::DataPtr first = host().allocate(5 * MIB), second = host().allocate(3 * MIB + 100);
  CHECK(first.device().is_cpu() && first.get() == first.get_context());
  std::memset(first.get(), 1, 5 * MIB);
  std::memset(second.get(), 2, 3 * MIB + 100);
  host().copy_data(second.get(), first.get(), MIB);
  const auto* bytes = static_cast<const char*>(second.get());
  CHECK(bytes[0] == 1 && bytes[MIB - 1] == 1 && bytes[MIB] == 2 && bytes[3 * MIB + 99] == 2);
  CHECK(live() == int64_t(8 * MIB + 512) && reserved() <= int64_t(10 * MIB));
  second.clear();
  first.clear();
  CHECK(live() == 0);
  // Pieces of both.
  const int64_t held = reserved();
  c10::DataPtr whole = host().allocate(7 * MIB);
  CHECK(reserved() == held);
}

void what_others_allocated_is_not_ours() {
  std::vector<char> mine(100);
  void* pointer = mine.data();
  c10::DataPtr ours = host().allocate(1000);
  CHECK(host().record_event(ours.get(), ours.get_context(), stream(0x70)));
  // A view: its address is inside, its context is the allocation's.
  CHECK(host().record_event(static_cast<char*>(ours.get()) + 100, ours.get_context(), stream(0x70)));
  // A tensor of another library over the beginning of ours.
  CHECK(host().record_event(ours.get(), pointer, stream(0x70)));
  CHECK(!host().record_event(pointer, pointer, stream(0x70)));
  CHECK(!host().record_event(pointer, nullptr, stream(0x70)));
}

void raw_pointers_are_freed_by_the_deleter() {
  const int64_t before = live();
  void* raw = host().raw_allocate(1000);
  CHECK(live() == before + 1024);
  host().raw_deallocate(raw);
  CHECK(live() == before);
}

void too_much_is_out_of_memory() {
  try {
    host().allocate(size_t(1) << 46);
    CHECK(false);
  } catch (const c10::OutOfMemoryError& error) {
    CHECK(std::string(error.what()).find("out of page-locked memory") != std::string::npos);
  }
}

#if SEAMALLOC_TORCH >= 211
void what_a_graph_has_used_is_kept_as_long_as_the_graph() {
  host().empty_cache();
  CHECK(live() == 0 && reserved() == 0);
  const c10::MempoolId_t pool{0, 7};
  c10::DataPtr before = host().allocate(4 * MIB), other = host().allocate(2 * MIB);
  host().begin_allocate_to_pool(pool, [](c10::Stream used) { return used == stream(0x70); });
  // Copied by the captured stream, and by another one.
  CHECK(host().record_event(before.get(), before.get_context(), stream(0x70)));
  CHECK(host().record_event(other.get(), other.get_context(), stream(0x80)));
  before.clear();
  other.clear();
  CHECK(live() == int64_t(6 * MIB));
  host().end_allocate_to_pool(pool);
  // Frees that were put off are made now, but for the graph's.
  host().empty_cache();
  CHECK(live() == int64_t(4 * MIB));
  // A second capture for the same pool.
  host().begin_allocate_to_pool(pool, [](c10::Stream) { return true; });
  c10::DataPtr within = host().allocate(6 * MIB);
  host().end_allocate_to_pool(pool);
  within.clear();
  host().release_pool(pool);
  CHECK(live() == int64_t(10 * MIB));
  host().release_pool(pool);
  CHECK(live() == 0);
  bool refused = false;
  try {
    host().release_pool(pool);
  } catch (const c10::Error&) {
    refused = true;
  }
  CHECK(refused);
}
#endif

void checks() {
  nothing_is_opened_for_questions();
  memory_is_the_machines_and_is_not_rounded_up();
  what_others_allocated_is_not_ours();
  raw_pointers_are_freed_by_the_deleter();
  too_much_is_out_of_memory();
#if SEAMALLOC_TORCH >= 211
  what_a_graph_has_used_is_kept_as_long_as_the_graph();
#endif
}

}  // namespace

extern "C" const char* exercise_pinned() {
  return what_does_not_hold(checks);
}
