// Events: how they are recorded, which observers are called, and at which place of the program they happened.
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

// Converts PyTorch's approximate clock to nanoseconds of Unix time.
using ToNanoseconds = std::function<c10::time_t(c10::approx_time_t)>;

// Within this scope, events of this thread carry the given place of the program.
struct ContextScope {
  explicit ContextScope(Context context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;

  // The place before this scope. Scopes nest, since memory may be freed in need during a request.
  Context before;
};

// One event. PyTorch's own entry is constructed differently in each version, and is made from this one when it is
// shown.
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

// The settings of the recording. Allocating threads read them without a lock.
struct Recording {
  std::atomic<CreateContextFn> recorder{nullptr};
  std::atomic<RecordContext> when{RecordContext::NEVER};
  std::atomic<bool> is_on{false};
  std::atomic<size_t> most_entries{0};
  // One bit for each action that is not recorded.
  std::atomic<uint32_t> skipped{0};

  // Returns the place of the program if places are recorded at this level. Gathering the place may take Python's lock.
  Context gather(RecordContext level) const;
};

// PyTorch's trackers, which are called at each event.
class Trackers {
 public:
  bool any() const;
  // An attached tracker is never removed.
  void attach(AllocatorTraceTracker tracker);
  void call(const TraceEntry& entry);

 private:
  std::mutex lock_;
  std::vector<AllocatorTraceTracker> trackers_;
  std::atomic<bool> any_{false};
};

// The annotations that the program made during a recording.
class Annotations {
 public:
  using Metadata = std::vector<std::pair<std::string, std::string>>;

  // Keeps the annotation if a recording is on.
  void add(DeviceIndex device, const Metadata& metadata, const Recording& recording);
  // Adds the annotations to a snapshot.
  void show(SnapshotInfo& snapshot, const ToNanoseconds& to_ns);

 private:
  struct Annotation {
    // The current device when the annotation was made.
    DeviceIndex device;
    c10::approx_time_t time;
    Metadata metadata;
  };

  std::mutex lock_;
  std::deque<Annotation> annotations_;
};

// The recorded events of one device. The C library's lock is taken before this lock, never after it.
struct History {
  DeviceIndex device;
  const Recording* recording;
  Trackers* trackers;
  std::mutex lock;
  std::deque<Entry> entries;
  // For each live block, the place of its allocation.
  std::unordered_map<uint64_t, Context> allocated_at;

  // Stores the place of an allocation. A free without a place of its own gets the place of the block's allocation.
  void remember(Entry& entry);
  // Called under the lock.
  void append(Entry entry);
  // Adds the entries to a device's trace. Called under the lock.
  void show(std::vector<TraceEntry>& trace, const ToNanoseconds& to_ns) const;
  // The C library's observer.
  static void on_event(const seam_event* event, void* user);

 private:
  void add(const seam_event& event, TraceEntry::Action action);
};

}  // namespace seamalloc
