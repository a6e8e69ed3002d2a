// Questions before the first use, limits and what they refuse, annotations, and frees at the end of a thread.

#include <thread>

#include "exercise.h"

namespace {

using Entry = allocator::TraceEntry;
using When = allocator::RecordContext;

constexpr size_t MIB = 1 << 20, GIB = 1 << 30;

std::string refused(size_t size) {
  try {
    allocator::raw_delete(allocator::raw_alloc_with_stream(size, nullptr));
  } catch (const c10::OutOfMemoryError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

size_t devices_shown() {
  return allocator::snapshot().device_traces.size();
}

// First: nothing may have been allocated.
void questions_open_no_device() {
  CHECK(devices_shown() == 1);
  for (c10::DeviceIndex device : {0, 3}) {
    const auto stats = allocator::getDeviceStats(device);
    CHECK(stats.allocated_bytes[0].current == 0 && stats.max_split_size == -1);
    allocator::resetPeakStats(device);
    allocator::resetAccumulatedStats(device);
    CHECK(allocator::getMemoryFraction(device) == 1);
#if SEAMALLOC_TORCH >= 208
    CHECK(allocator::getPoolUseCount(device, {0, 1}) == 0);
#endif
  }
  allocator::emptyCache();
  CHECK(allocator::getDeviceStats(0).num_sync_all_streams == 1);
  allocator::setMemoryFraction(0.25, 3);
  CHECK(allocator::getMemoryFraction(3) == 0.25 && allocator::getMemoryFraction(0) == 1);
  CHECK(devices_shown() == 1);
}

void a_fraction_that_was_set_before_the_first_use_holds() {
  size_t asked = 0, allowed = 0;
  allocator::attachOutOfMemoryObserver([&](int64_t, size_t size, size_t total, size_t) {
    asked = size;
    allowed = total;
  });
#if SEAMALLOC_TORCH >= 212
  size_t rejected = 0;
  allocator::attachOomRejectionObserver([&](int64_t, size_t size, size_t, size_t) { rejected = size; });
#endif
  allocator::setMemoryFraction(0.5, 0);
  CHECK(refused(100 * GIB).find("This allocator may hold 69.90 GiB") != std::string::npos);
  // As in PyTorch, observers are told what the fraction allows.
  CHECK(asked == 100 * GIB && allowed > 69 * GIB && allowed < 70 * GIB);
#if SEAMALLOC_TORCH >= 212
  CHECK(rejected == 100 * GIB && allocator::getDeviceStats(0).num_oom_rejections == 1);
#endif
  allocator::setMemoryFraction(1, 0);
  CHECK(refused(100 * GIB).empty());
  // That the device refuses is no rejection.
  CHECK(!refused(500 * GIB).empty());
#if SEAMALLOC_TORCH >= 212
  CHECK(allocator::getDeviceStats(0).num_oom_rejections == 1);
#endif
}

void free_memory_and_the_device_s_are_one_request() {
  allocator::emptyCache();
  void* held = allocator::raw_alloc_with_stream(40 * GIB, nullptr);
  allocator::raw_delete(held);
  size_t largest = 0;
  allocator::cacheInfo(0, &largest);
  CHECK(largest > 139 * GIB && refused(largest).empty());
  allocator::emptyCache();
}

struct Trace : c10::GatheredContext {};

std::shared_ptr<c10::GatheredContext> gather() {
  return std::make_shared<Trace>();
}

void record(bool enabled) {
  const When when = enabled ? When::ALL : When::NEVER;
#if SEAMALLOC_TORCH >= 211
  allocator::recordHistory(enabled, gather, 100, when, true, {});
#elif SEAMALLOC_TORCH >= 208
  allocator::recordHistory(enabled, gather, 100, when, true);
#else
  allocator::recordHistory(enabled, gather, 100, when);
#endif
}

struct Block {
  void* pointer = nullptr;
  ~Block() {
    allocator::raw_delete(pointer);
  }
};

// Freed when the variables of the thread are gone: this one is older than all that the shim has.
thread_local Block of_thread;

void the_end_of_a_thread_frees_its_memory() {
  for (const bool recorded : {false, true}) {
    record(recorded);
    const auto before = allocator::getDeviceStats(0).allocated_bytes[0].current;
    std::thread([] {
      of_thread.pointer = allocator::raw_alloc_with_stream(10 * MIB, nullptr);
#if SEAMALLOC_TORCH >= 208
      std::string region = "0/0";
      allocator::get()->pushCompileContext(region);
#endif
    }).join();
    CHECK(allocator::getDeviceStats(0).allocated_bytes[0].current == before);
    if (recorded) {
      const auto entries = allocator::snapshot().device_traces[0];
      CHECK(entries.back().action_ == Entry::FREE_COMPLETED);
    }
  }
  record(false);
}

#if SEAMALLOC_TORCH >= 214
void allocations_are_annotated() {
  CHECK(allocator::supportsUserMetadata());
  void* block = allocator::raw_alloc_with_stream(5 * MIB, nullptr);
  allocator::annotateMemory(block, "nobody listens");
  record(true);
  void* known = allocator::raw_alloc_with_stream(7 * MIB, nullptr);
  CHECK(allocator::getContextForPointer(known) != nullptr && allocator::getContextForPointer(block) == nullptr);
  allocator::get()->setUserMetadata("of the thread");
  allocator::annotateMemory(known, "weights");
  allocator::get()->setUserMetadata("");
  const auto entries = allocator::snapshot().device_traces[0];
  CHECK(entries.back().action_ == Entry::ANNOTATE && entries.back().user_metadata_ == "weights");
  CHECK(entries.back().addr_ == reinterpret_cast<size_t>(known) && entries.back().size_ == 7 * MIB);
  for (void* pointer : {block, known}) {
    allocator::raw_delete(pointer);
  }
  bool thrown = false;
  try {
    allocator::annotateMemory(known, "gone");
  } catch (const c10::Error&) {
    thrown = true;
  }
  CHECK(thrown);
  record(false);
}
#endif

void annotations_keep_their_device() {
  record(true);
  allocator::get()->recordAnnotation({{"name", "step"}});
  const auto shot = allocator::snapshot();
  CHECK(shot.external_annotations.size() == 1);
  record(false);
}

}  // namespace

extern "C" const char* exercise_ends() {
  return what_does_not_hold([] {
    questions_open_no_device();
    a_fraction_that_was_set_before_the_first_use_holds();
    free_memory_and_the_device_s_are_one_request();
    the_end_of_a_thread_frees_its_memory();
#if SEAMALLOC_TORCH >= 214
    allocations_are_annotated();
#endif
    annotations_keep_their_device();
  });
}
