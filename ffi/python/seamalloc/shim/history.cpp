// Events with stack traces, as in PyTorch's memory history, and snapshots.
//
// Stack traces are gathered before the C library is called, since gathering may take Python's lock, and events arrive
// under the allocator's lock.

#include "allocator.h"
#include "sources.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>

namespace seamalloc {

namespace {

std::optional<TraceEntry::Action> action_of(seam_action action) {
  switch (action) {
    case SEAM_ACTION_ALLOC: return TraceEntry::ALLOC;
    case SEAM_ACTION_FREE_REQUESTED: return TraceEntry::FREE_REQUESTED;
    case SEAM_ACTION_FREE_COMPLETED: return TraceEntry::FREE_COMPLETED;
    case SEAM_ACTION_SEGMENT_ALLOC: return TraceEntry::SEGMENT_ALLOC;
    case SEAM_ACTION_SEGMENT_FREE: return TraceEntry::SEGMENT_FREE;
    case SEAM_ACTION_SEGMENT_MAP:
    case SEAM_ACTION_SEGMENT_JOINED: return TraceEntry::SEGMENT_MAP;
    case SEAM_ACTION_SEGMENT_UNMAP:
    case SEAM_ACTION_SEGMENT_LEFT: return TraceEntry::SEGMENT_UNMAP;
    case SEAM_ACTION_OOM: return TraceEntry::OOM;
  }
  // The action comes from a newer library.
  return std::nullopt;
}

uint32_t bit_of(TraceEntry::Action action) {
  return uint32_t(1) << int(action);
}

// Makes the entry of an event of this thread. PyTorch's viewer and tests use "N/A" as the name of work outside of
// compiled regions.
Entry entry_of(TraceEntry::Action action, uint64_t address, uint64_t bytes, void* stream, MempoolId pool) {
  Entry entry{action, address, bytes, stream, pool, c10::getApproximateTime(), nullptr, "N/A", ""};
  if (const ThreadState* thread = thread_state()) {
    entry.context = thread->here;
    entry.user_metadata = thread->user_metadata;
    if (!thread->compile_contexts.empty()) {
      entry.compile_context = thread->compile_contexts.back();
    }
  }
  return entry;
}

// Adds the visited segments to a snapshot.
struct SegmentVisit {
  DeviceIndex device;
  MempoolId pool;
  History* history;
  std::vector<SegmentInfo>* segments;
  uint64_t active = 0;
  // A visitor may not throw, so the error is noted here.
  bool failed = false;

  void add(const seam_segment& from, const seam_block* blocks, size_t count);
};

void visit_segment(const seam_segment* segment, const seam_block* blocks, size_t count, void* user) {
  auto* visit = static_cast<SegmentVisit*>(user);
  try {
    visit->add(*segment, blocks, count);
  } catch (...) {
    visit->failed = true;
  }
}

void SegmentVisit::add(const seam_segment& from, const seam_block* blocks, size_t count) {
  const MempoolId owner{from.pool.first, from.pool.second};
  if (pool != MempoolId{0, 0} && pool != owner) {
    return;
  }
  SegmentInfo segment;
  segment.device = device;
#if SEAMALLOC_TORCH >= 211
  // NCCL's registration refuses segments without this number.
  segment.registration_counter = registration_number(from.address);
#endif
  segment.address = from.address;
  segment.total_size = from.total_size;
  segment.stream = static_cast<decltype(segment.stream)>(from.stream);
  segment.is_large = !from.is_small;
  segment.is_expandable = from.is_expandable;
  segment.owner_private_pool_id = owner;
  std::lock_guard<std::mutex> guard(history->lock);
  for (const seam_block* block = blocks; block != blocks + count; block++) {
    BlockInfo info;
    info.size = block->size;
    info.requested_size = block->requested;
    info.allocated = block->state == SEAM_BLOCK_STATE_ACTIVE_ALLOCATED;
    info.active = block->state != SEAM_BLOCK_STATE_INACTIVE;
    if (info.active) {
      segment.active_size += block->size;
      segment.requested_size += block->requested;
      const auto found = history->allocated_at.find(block->address);
      if (found != history->allocated_at.end()) {
        info.context_when_allocated = found->second;
      }
    }
    if (info.allocated) {
      segment.allocated_size += block->size;
    }
    segment.blocks.push_back(std::move(info));
  }
  active += segment.active_size;
  segments->push_back(std::move(segment));
}

}  // namespace

ContextScope::ContextScope(Context context) {
  if (ThreadState* thread = thread_state()) {
    before = std::exchange(thread->here, std::move(context));
  }
}

ContextScope::~ContextScope() {
  if (ThreadState* thread = thread_state()) {
    thread->here = std::move(before);
  }
}

Context Recording::gather(RecordContext level) const {
  const CreateContextFn create = recorder.load();
  // `create` uses thread-local variables, which may be destroyed at the end of the thread.
  return create != nullptr && when.load() >= level && !thread_marks().has_ended ? create() : nullptr;
}

bool Trackers::any() const {
  return any_.load();
}

void Trackers::attach(AllocatorTraceTracker tracker) {
  {
    std::lock_guard<std::mutex> guard(lock_);
    trackers_.push_back(std::move(tracker));
  }
  any_ = true;
}

void Trackers::call(const TraceEntry& entry) {
  std::lock_guard<std::mutex> guard(lock_);
  for (const auto& tracker : trackers_) {
    tracker(entry);
  }
}

void Annotations::add(DeviceIndex device, const Metadata& metadata, const Recording& recording) {
  std::lock_guard<std::mutex> guard(lock_);
  if (!recording.is_on.load()) {
    return;
  }
  while (!annotations_.empty() && annotations_.size() >= recording.most_entries.load()) {
    annotations_.pop_front();
  }
  annotations_.push_back({device, c10::getApproximateTime(), metadata});
}

void Annotations::show(SnapshotInfo& snapshot, const ToNanoseconds& to_ns) {
  std::lock_guard<std::mutex> guard(lock_);
  for (const auto& [device, time, metadata] : annotations_) {
    decltype(snapshot.external_annotations)::value_type annotation(device, time);
    annotation.time_.t_ = to_ns(time) / 1000;
    for (const auto& [key, value] : metadata) {
      annotation.recordUserMetadata(key, value);
    }
    snapshot.external_annotations.push_back(std::move(annotation));
  }
}

TraceEntry Entry::to_trace_entry(DeviceIndex device) const {
  return TraceEntry(
      action, device, address, bytes, static_cast<cudaStream_t>(stream),
#if SEAMALLOC_TORCH >= 208
      pool,
#endif
      time, context
#if SEAMALLOC_TORCH >= 208
      ,
      compile_context
#endif
#if SEAMALLOC_TORCH >= 210
      ,
      user_metadata
#endif
  );
}

void History::remember(Entry& entry) {
  std::lock_guard<std::mutex> guard(lock);
  if (entry.action == TraceEntry::ALLOC && entry.context) {
    allocated_at[entry.address] = entry.context;
  } else if (entry.action == TraceEntry::FREE_REQUESTED || entry.action == TraceEntry::FREE_COMPLETED) {
    const auto found = allocated_at.find(entry.address);
    if (found == allocated_at.end()) {
      return;
    }
    if (!entry.context) {
      entry.context = found->second;
    }
    if (entry.action == TraceEntry::FREE_COMPLETED) {
      allocated_at.erase(found);
    }
  }
}

void History::append(Entry entry) {
  if ((recording->skipped.load() & bit_of(entry.action)) != 0) {
    return;
  }
  const size_t most = recording->most_entries.load();
  while (!entries.empty() && entries.size() >= most) {
    entries.pop_front();
  }
  entries.push_back(std::move(entry));
}

void History::show(std::vector<TraceEntry>& trace, const ToNanoseconds& to_ns) const {
  for (const Entry& entry : entries) {
    TraceEntry shown = entry.to_trace_entry(device);
    shown.time_.t_ = to_ns(shown.time_.approx_t_) / 1000;
    trace.push_back(std::move(shown));
  }
}

void History::on_event(const seam_event* event, void* user) {
  auto* history = static_cast<History*>(user);
  const auto action = action_of(event->action);
  if (!action) {
    return;
  }
  try {
    history->add(*event, *action);
  } catch (...) {
    // The event is lost if host memory is short. No exception may pass through the C library. A warning could wait for
    // Python's lock, whose holder may wait for the allocator's lock.
  }
}

void History::add(const seam_event& event, TraceEntry::Action action) {
  const bool is_recording = recording->is_on.load(), is_tracked = trackers->any();
  if (!is_recording && !is_tracked) {
    // The event is observed only to remove blocks of a finished recording.
    if (action == TraceEntry::FREE_COMPLETED) {
      std::lock_guard<std::mutex> guard(lock);
      allocated_at.erase(event.address);
    }
    return;
  }
  Entry entry = entry_of(action, event.address, event.bytes, event.stream, {event.pool.first, event.pool.second});
  remember(entry);
  if (recording->when.load() < RecordContext::ALLOC) {
    entry.context.reset();
  }
  // Trackers register memory with other libraries. Memory that moves from one segment to another stays registered.
  const bool moved = event.action == SEAM_ACTION_SEGMENT_LEFT || event.action == SEAM_ACTION_SEGMENT_JOINED;
  if (is_tracked && !moved) {
    trackers->call(entry.to_trace_entry(device));
  }
  if (is_recording) {
    std::lock_guard<std::mutex> guard(lock);
    append(std::move(entry));
  }
}

void Allocator::update_observer(DeviceIndex index) {
  Device& device = devices_.all[index];
  History& history = device.history;
  bool wanted = recording_.is_on.load() || trackers_.any();
  {
    std::lock_guard<std::mutex> guard(history.lock);
    wanted = wanted || !history.allocated_at.empty();
  }
  check(seam_observe(device.opened(), wanted ? &History::on_event : nullptr, &history), "watching");
}

void Allocator::record(
    bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear,
    const std::vector<std::string>& skipped) {
  TORCH_CHECK(when == RecordContext::NEVER || recorder != nullptr, "seamalloc: stack traces need a recorder of them");
  uint32_t bits = 0;
#if SEAMALLOC_TORCH >= 211
  for (const auto& name : skipped) {
    bits |= bit_of(c10::CachingDeviceAllocator::parseTraceEntryAction(name));
  }
#endif
  recording_.skipped = bits;
  recording_.most_entries = std::max<size_t>(1, most);
  recording_.when = enabled ? when : RecordContext::NEVER;
  recording_.recorder = enabled ? recorder : nullptr;
  recording_.is_on = enabled;
  for (Device& device : devices_.all) {
    std::lock_guard<std::mutex> guard(device.history.lock);
    // As in PyTorch, a live block keeps its stack trace until it is freed, even if the recording has ended.
    if (!enabled || clear) {
      device.history.entries.clear();
    }
  }
  for (DeviceIndex device : devices_.opened()) {
    update_observer(device);
  }
}

#if SEAMALLOC_TORCH >= 211
void Allocator::recordHistory(
    bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear,
    const std::vector<std::string>& skipped) {
  record(enabled, recorder, most, when, clear, skipped);
}

SnapshotInfo Allocator::snapshot(MempoolId pool, bool with_traces) {
  return take_snapshot(pool, with_traces);
}
#elif SEAMALLOC_TORCH >= 208
void Allocator::recordHistory(bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear) {
  record(enabled, recorder, most, when, clear, {});
}

SnapshotInfo Allocator::snapshot(MempoolId pool) {
  return take_snapshot(pool, true);
}
#else
void Allocator::recordHistory(bool enabled, CreateContextFn recorder, size_t most, RecordContext when) {
  record(enabled, recorder, most, when, false, {});
}

SnapshotInfo Allocator::snapshot() {
  return take_snapshot({0, 0}, true);
}
#endif

SnapshotInfo Allocator::take_snapshot(MempoolId pool, bool with_traces) {
  SnapshotInfo result;
  const ToNanoseconds to_ns = clock_.makeConverter();
  // The list has an entry for every device, including unused devices.
  result.device_traces.resize(devices_.count());
  for (DeviceIndex device : devices_.opened()) {
    History& history = devices_.all[device].history;
    SegmentVisit visit{device, pool, &history, &result.segments};
    check(seam_visit_segments(handle_for(device), visit_segment, &visit), "making a snapshot");
    TORCH_CHECK(!visit.failed, "seamalloc: too little host memory for a snapshot");
    std::lock_guard<std::mutex> guard(history.lock);
    if (with_traces) {
      // The device may have been opened in the meantime.
      result.device_traces.resize(std::max(result.device_traces.size(), size_t(device) + 1));
      history.show(result.device_traces[device], to_ns);
    }
    // As in PyTorch, the next snapshot contains the entry for this snapshot. The last entry of this snapshot is the
    // program's latest operation.
    if (recording_.is_on.load()) {
      history.append(entry_of(TraceEntry::SNAPSHOT, 0, visit.active, nullptr, pool));
    }
  }
  annotations_.show(result, to_ns);
  auto& settings = result.config_metadata;
  settings = {};
  settings.max_split_size = std::numeric_limits<size_t>::max();
  settings.expandable_segments = true;
  const char* options = std::getenv("SEAMALLOC_CONF");
  settings.last_allocator_settings = options == nullptr ? "" : options;
  return result;
}

bool Allocator::isHistoryEnabled() {
  return recording_.is_on.load();
}

void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& metadata) {
  annotations_.add(devices_.current(), metadata, recording_);
}

#if SEAMALLOC_TORCH >= 208
void Allocator::pushCompileContext(std::string& context) {
  if (ThreadState* thread = thread_state()) {
    thread->compile_contexts.push_back(context);
  }
}

void Allocator::popCompileContext() {
  ThreadState* thread = thread_state();
  if (thread != nullptr && !thread->compile_contexts.empty()) {
    thread->compile_contexts.pop_back();
  }
}
#endif

#if SEAMALLOC_TORCH >= 210
void Allocator::setUserMetadata(const std::string& metadata) {
  if (ThreadState* thread = thread_state()) {
    thread->user_metadata = metadata;
  }
}

std::string Allocator::getUserMetadata() {
  const ThreadState* thread = thread_state();
  return thread == nullptr ? "" : thread->user_metadata;
}
#endif

#if SEAMALLOC_TORCH >= 212
// Returns the place where a live block was allocated, if its stack trace was recorded.
Context Allocator::getContextForPointer(const void* pointer) {
  for (DeviceIndex device : devices_.opened()) {
    History& history = devices_.all[device].history;
    std::lock_guard<std::mutex> guard(history.lock);
    const auto found = history.allocated_at.find(reinterpret_cast<uint64_t>(pointer));
    if (found != history.allocated_at.end()) {
      return found->second;
    }
  }
  return nullptr;
}
#endif

#if SEAMALLOC_TORCH >= 214
bool Allocator::supportsUserMetadata() {
  return true;
}

void Allocator::annotateMemory(const void* pointer, const std::string& metadata) {
  if (!recording_.is_on.load()) {
    return;
  }
  void* const address = const_cast<void*>(pointer);
  const DeviceIndex owner = owner_of(address);
  size_t size = 0;
  check(seam_size_of(handle_for(owner), address, &size), "annotating an allocation");
  ContextScope scope(recording_.gather(RecordContext::STATE));
  Entry entry = entry_of(TraceEntry::ANNOTATE, reinterpret_cast<uint64_t>(pointer), size, nullptr, {0, 0});
  entry.user_metadata = metadata;
  History& history = devices_.all[owner].history;
  std::lock_guard<std::mutex> guard(history.lock);
  history.append(std::move(entry));
}
#endif

void Allocator::attachAllocatorTraceTracker(AllocatorTraceTracker tracker) {
  trackers_.attach(std::move(tracker));
  for (DeviceIndex device : devices_.opened()) {
    update_observer(device);
  }
}

}  // namespace seamalloc
