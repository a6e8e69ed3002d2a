// Events: what is recorded of them, who is called for them, and where in the program they happened.
#pragma once

#include "library.h"

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace seamalloc {

// From PyTorch's approximate clock to nanoseconds of Unix time.
using ToNanoseconds = std::function<c10::time_t(c10::approx_time_t)>;

// Within its scope, what happens on this thread happens at this place of the program.
struct ContextScope {
  explicit ContextScope(Context context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;

  // What it was before: memory is freed in need while a request is under way.
  Context before;
};

// One thing that happened. PyTorch's own entry, which versions construct differently, is made of it where it is shown.
struct Entry {
  TraceEntry::Action action;
  uint64_t address;
  uint64_t bytes;
  void* stream;
  MempoolId pool;
  c10::approx_time_t time;
  Context context;
  std::string compile_context;
  std::string user_metadata;

  TraceEntry to_trace_entry(DeviceIndex device) const;
};

// What of events is recorded. Read without a lock by whoever allocates.
struct Recording {
  std::atomic<CreateContextFn> recorder{nullptr};
  std::atomic<RecordContext> when{RecordContext::NEVER};
  std::atomic<bool> is_on{false};
  std::atomic<size_t> most_entries{0};
  // A bit for each action.
  std::atomic<uint32_t> skipped{0};

  // The place of the program, where it is recorded at this level; it may need Python's lock.
  Context gather(RecordContext level) const;
};

// PyTorch's trackers, which are called for each event.
class Trackers {
 public:
  bool any() const;
  // What was attached stays.
  void attach(AllocatorTraceTracker tracker);
  void call(const TraceEntry& entry);

 private:
  std::mutex lock_;
  std::vector<AllocatorTraceTracker> trackers_;
  std::atomic<bool> any_{false};
};

// What the program said of itself while it was recorded.
class Annotations {
 public:
  using Metadata = std::vector<std::pair<std::string, std::string>>;

  // Kept while something is recorded.
  void add(DeviceIndex device, const Metadata& metadata, const Recording& recording);
  // Adds them to a snapshot.
  void show(SnapshotInfo& snapshot, const ToNanoseconds& to_ns);

 private:
  struct Annotation {
    // The current one when it was made.
    DeviceIndex device;
    c10::approx_time_t time;
    Metadata metadata;
  };

  std::mutex lock_;
  std::deque<Annotation> annotations_;
};

// What is recorded of one device. The C library's lock is taken before its own, never after.
struct History {
  DeviceIndex device;
  const Recording* recording;
  Trackers* trackers;
  std::mutex lock;
  std::deque<Entry> entries;
  // Of each live block, where it was allocated.
  std::unordered_map<uint64_t, Context> allocated_at;

  // Keeps what is known of the block; a free of which nothing else is known happened where that was allocated.
  void remember(Entry& entry);
  // Under the lock.
  void append(Entry entry);
  // Adds the entries to a device's trace; under the lock.
  void show(std::vector<TraceEntry>& trace, const ToNanoseconds& to_ns) const;
  // The C library's observer.
  static void on_event(const seam_event* event, void* user);

 private:
  void add(const seam_event& event, TraceEntry::Action action);
};

}  // namespace seamalloc
