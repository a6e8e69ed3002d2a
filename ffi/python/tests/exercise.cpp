// Calls of PyTorch's allocator interface that its Python functions make only where a GPU is: the shim must answer them.
// Everything but the history is left to the Python tests.

#include <cstdio>

#include "exercise.h"

namespace {

struct Trace : c10::GatheredContext {};

int gathered = 0;

std::shared_ptr<c10::GatheredContext> gather() {
  gathered++;
  return std::make_shared<Trace>();
}

using When = allocator::RecordContext;
using Entry = allocator::TraceEntry;

void record(bool enabled, When when) {
#if SEAMALLOC_TORCH >= 211
  allocator::recordHistory(enabled, gather, 100, when, true, {"segment_map"});
#elif SEAMALLOC_TORCH >= 208
  allocator::recordHistory(enabled, gather, 100, when, true);
#else
  allocator::recordHistory(enabled, gather, 100, when);
#endif
}

void record(bool enabled) {
  record(enabled, enabled ? When::ALL : When::NEVER);
}

// Where a live block was allocated, as a snapshot says.
std::shared_ptr<c10::GatheredContext> trace_of(const void* block) {
  for (const auto& segment : allocator::snapshot().segments) {
    size_t address = size_t(segment.address);
    for (const auto& info : segment.blocks) {
      if (address == reinterpret_cast<size_t>(block)) {
        TORCH_CHECK(info.active);
        return info.context_when_allocated;
      }
      address += info.size;
    }
  }
  TORCH_CHECK(false, "no block there");
}

// First, since trackers watch for ever.
void traces_stay_with_their_blocks() {
  record(true);
  void* freed = allocator::raw_alloc_with_stream(2000, nullptr);
  void* kept = allocator::raw_alloc_with_stream(5000, nullptr);
  const auto where = trace_of(kept);
  CHECK(where && trace_of(freed));
  record(false);
  CHECK(trace_of(kept) == where && trace_of(freed));
  allocator::raw_delete(freed);
  void* later = allocator::raw_alloc_with_stream(2000, nullptr);
  CHECK(later == freed && !trace_of(later));
  // What is recorded anew has no say in it.
  record(true, When::NEVER);
  CHECK(trace_of(kept) == where);
  record(true, When::ALLOC);
  const int before = gathered;
  allocator::raw_delete(kept);
  allocator::raw_delete(later);
  CHECK(gathered == before);
  const auto entries = allocator::snapshot().device_traces[0];
  size_t known = 0, unknown = 0;
  for (const auto& entry : entries) {
    if (entry.action_ == Entry::FREE_REQUESTED || entry.action_ == Entry::FREE_COMPLETED) {
      known += entry.context_ == where;
      unknown += entry.context_ == nullptr;
    }
  }
  CHECK(known == 2 && unknown == 2);
  record(false);
  gathered = 0;
}

#if SEAMALLOC_TORCH >= 208
void compiled_regions_are_named() {
  record(true);
  std::string outer = "0/0", inner = "1/0";
  const auto allocate = [] { allocator::raw_delete(allocator::raw_alloc_with_stream(700, nullptr)); };
  allocate();
  allocator::get()->pushCompileContext(outer);
  allocate();
  allocator::get()->pushCompileContext(inner);
  allocate();
  allocator::get()->popCompileContext();
  allocator::snapshot();
  allocator::get()->popCompileContext();
  allocator::get()->popCompileContext();
  allocate();
  allocator::snapshot();
  std::vector<std::string> named;
  const auto entries = allocator::snapshot().device_traces[0];
  for (const auto& entry : entries) {
    if (named.empty() || named.back() != entry.compile_context_) {
      named.push_back(entry.compile_context_);
    }
  }
  CHECK((named == std::vector<std::string>{"N/A", "0/0", "1/0", "0/0", "N/A"}));
  record(false);
  gathered = 0;
}
#endif

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
  std::vector<Entry::Action> actions;
  for (const auto& entry : shot.device_traces[0]) {
    actions.push_back(entry.action_);
    CHECK(entry.context_ != nullptr);
    // Microseconds since 1970: later than 2020.
    CHECK(entry.time_.t_ > 1577836800000000);
  }
#if SEAMALLOC_TORCH >= 211
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

// A history says that memory went to a stitched block and back; to who registers memory nothing happened.
void stitched_blocks_come_and_go() {
  std::vector<void*> blocks;
  for (int i = 0; i < 4; i++) {
    blocks.push_back(allocator::raw_alloc_with_stream(40 << 20, nullptr));
  }
  allocator::raw_delete(blocks[0]);
  allocator::raw_delete(blocks[2]);
  record(true, When::NEVER);
  static int tracked = 0;
  allocator::attachAllocatorTraceTracker([](const Entry&) { tracked++; });
  void* stitched = allocator::raw_alloc_with_stream(80 << 20, nullptr);
  CHECK(tracked == 1);
  const auto left = [](bool forwards) {
    size_t bytes = 0;
    const auto entries = allocator::snapshot().device_traces[0];
    for (const auto& entry : entries) {
      bytes += entry.action_ == (forwards ? Entry::SEGMENT_UNMAP : Entry::SEGMENT_MAP) ? entry.size_ : 0;
    }
    return bytes;
  };
#if SEAMALLOC_TORCH < 211
  CHECK(left(true) == 80 << 20 && left(false) == 80 << 20);
#else
  // The others are skipped.
  CHECK(left(true) == 80 << 20 && left(false) == 0);
#endif
  const auto held = allocator::snapshot();
  bool shown = false;
  for (const auto& segment : held.segments) {
    shown |= size_t(segment.address) == reinterpret_cast<size_t>(stitched) && segment.total_size == 80 << 20;
  }
  CHECK(shown);
  for (void* block : {stitched, blocks[1], blocks[3]}) {
    allocator::raw_delete(block);
  }
  CHECK(tracked == 7);
  record(false);
  allocator::emptyCache();
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
  CHECK(refusal("cudaIpcMemHandle").find("must use seamalloc too") != std::string::npos);
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

extern "C" const char* exercise() {
  return what_does_not_hold([] {
    CHECK(allocator::name() == "seamalloc");
    traces_stay_with_their_blocks();
#if SEAMALLOC_TORCH >= 208
    compiled_regions_are_named();
#endif
    history_is_kept();
    stitched_blocks_come_and_go();
    observers_are_told();
    the_rest_is_answered();
    memory_is_shared();
    peers_are_asked_for();
  });
}
