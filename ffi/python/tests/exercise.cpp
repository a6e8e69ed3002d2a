// Calls of PyTorch's allocator interface that its Python functions make only where a GPU is: the shim must answer them.
// Everything but the history is left to the Python tests.

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdio>

namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

struct Trace : c10::GatheredContext {};

int gathered = 0;

std::shared_ptr<c10::GatheredContext> gather() {
  gathered++;
  return std::make_shared<Trace>();
}

#define CHECK(condition) TORCH_CHECK(condition, "line ", __LINE__, ": " #condition)

void record(bool enabled) {
  const auto when = enabled ? allocator::RecordContext::ALL : allocator::RecordContext::NEVER;
#if MEMQUILT_TORCH >= 211
  allocator::recordHistory(enabled, gather, 100, when, true, {"segment_map"});
#elif MEMQUILT_TORCH >= 208
  allocator::recordHistory(enabled, gather, 100, when, true);
#else
  allocator::recordHistory(enabled, gather, 100, when);
#endif
}

void history_is_kept() {
  void* before = allocator::raw_alloc_with_stream(1000, nullptr);
  record(true);
  CHECK(allocator::get()->isHistoryEnabled());
  // The tracker stays for as long as the process lives.
  static int tracked = 0;
  allocator::attachAllocatorTraceTracker([](const allocator::TraceEntry&) { tracked++; });
  void* kept = allocator::raw_alloc_with_stream(5000, nullptr);
  void* freed = allocator::raw_alloc_with_stream(30 << 20, nullptr);
  allocator::raw_delete(freed);
  CHECK(gathered == 3);
  // A mapping is skipped, and tracked.
  CHECK(tracked == 5);
  auto shot = allocator::snapshot();
  CHECK(shot.device_traces.size() == 1);
  using Entry = allocator::TraceEntry;
  std::vector<Entry::Action> actions;
  for (const auto& entry : shot.device_traces[0]) {
    actions.push_back(entry.action_);
    CHECK(entry.context_ != nullptr);
    // Microseconds since 1970: later than 2020.
    CHECK(entry.time_.t_ > 1577836800000000);
  }
#if MEMQUILT_TORCH >= 211
  CHECK((actions == std::vector<Entry::Action>{
                        Entry::ALLOC, Entry::ALLOC, Entry::FREE_REQUESTED, Entry::FREE_COMPLETED}));
#endif
  size_t with_context = 0, live = 0;
  for (const auto& segment : shot.segments) {
    for (const auto& block : segment.blocks) {
      live += block.allocated;
      with_context += block.context_when_allocated != nullptr;
    }
  }
  CHECK(live == 2 && with_context == 1);
  // The snapshot is told by the next one, and what gave memory back is known.
  allocator::emptyCache();
  CHECK(gathered == 4);
  const auto later = allocator::snapshot().device_traces[0];
  CHECK(later.size() > actions.size() + 1 && later[actions.size()].action_ == Entry::SNAPSHOT);
  CHECK(later.back().action_ == Entry::SEGMENT_UNMAP && later.back().context_ != nullptr);
  record(false);
  allocator::raw_delete(kept);
  allocator::raw_delete(before);
  CHECK(gathered == 4 && !allocator::get()->isHistoryEnabled());
  CHECK(allocator::snapshot().device_traces[0].empty());
}

void observers_are_told() {
  size_t asked = 0;
  allocator::attachOutOfMemoryObserver([&asked](int64_t, size_t size, size_t, size_t) { asked = size; });
  bool thrown = false;
  try {
    allocator::raw_alloc_with_stream(size_t(1) << 45, nullptr);
  } catch (const c10::OutOfMemoryError& error) {
    thrown = std::string(error.what()).find("What would have helped") != std::string::npos;
  }
  CHECK(thrown && asked == size_t(1) << 45);
  CHECK(allocator::getDeviceStats(0).num_ooms == 1);
}

void the_rest_is_answered() {
  size_t largest = 1, size = 0;
  void* block = allocator::raw_alloc_with_stream(3 << 20, nullptr);
  allocator::cacheInfo(0, &largest);
  CHECK(largest >= 1);
  CHECK(allocator::getBaseAllocation(block, &size) == block && size == 3 << 20);
  auto data = allocator::get()->allocate(0);
  CHECK(data.get() == nullptr && data.get_deleter() != nullptr);
  {
    auto tensor = allocator::get()->allocate(9 << 20);
    CHECK(allocator::getDeviceStats(0).allocated_bytes[0].current == 12 << 20);
  }
  CHECK(allocator::getDeviceStats(0).allocated_bytes[0].current == 3 << 20);
  allocator::raw_delete(block);
  allocator::raw_delete(nullptr);
}

std::string refusal(const std::string& handle) {
  try {
    allocator::getIpcDevPtr(handle);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void memory_is_shared() {
  // Many chunks: a handle longer than the first buffer.
  void* block = allocator::raw_alloc_with_stream(size_t(3) << 30, nullptr);
  const auto shared = allocator::shareIpcHandle(block);
  CHECK(shared.offset >= 0 && allocator::shareIpcHandle(block).handle == shared.handle);
  auto open = allocator::getIpcDevPtr(shared.handle);
  CHECK(open != nullptr && open.get() != block);
  // Tensors of one storage share one mapping.
  CHECK(allocator::getIpcDevPtr(shared.handle) == open);
  void* first = open.get();
  open.reset();
  open = allocator::getIpcDevPtr(shared.handle);
  CHECK(open.get() == first);
  CHECK(refusal("cudaIpcMemHandle").find("must use memquilt too") != std::string::npos);
  CHECK(refusal("cudaIpcMemHandle").find("name no shared memory") != std::string::npos);
  open.reset();
  allocator::raw_delete(block);
  allocator::emptyCache();
  CHECK(refusal(shared.handle).find("has freed the memory") != std::string::npos);
}

// Simulated devices are no peers: the refusal comes from the device whose memory it is about. Last, since their addresses
// do not differ.
void peers_are_asked_for() {
  std::string why;
  try {
    allocator::enablePeerAccess(0, 1);
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
  }
  CHECK(why.find("enabling peer access") != std::string::npos && why.find("no device 0") != std::string::npos);
}

}  // namespace

// NULL, or what does not hold.
extern "C" const char* exercise() {
  static std::string why;
  try {
    CHECK(allocator::name() == "memquilt");
    history_is_kept();
    observers_are_told();
    the_rest_is_answered();
    memory_is_shared();
    peers_are_asked_for();
    return nullptr;
  } catch (const std::exception& error) {
    why = error.what();
    return why.c_str();
  }
}
