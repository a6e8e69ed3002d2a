// seamalloc as PyTorch's CUDA allocator: c10's allocator interface over the C library.
//
// install.cpp     how it becomes the current allocator
// allocator.cpp   memory, limits, statistics
// graphs.cpp      private pools: CUDA graphs, MemPool, checkpoints
// sharing.cpp     tensors of one process in another
// sources.cpp     MemPools with an allocator of their own, and what is given back of a MemPool
// history.cpp     events with stack traces, snapshots
//
// Compiled against the user's PyTorch; SEAMALLOC_TORCH is its version, 211 for 2.11. The interface differs between
// versions, so a method that a version does not have, or has otherwise, stands behind that number.
#pragma once

#include "seamalloc.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace seamalloc {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using MempoolId = c10::cuda::MempoolId_t;
using Context = std::shared_ptr<c10::GatheredContext>;

// As many as the C library has plugged allocators.
constexpr size_t MAX_DEVICES = 64;
constexpr DeviceIndex NO_DEVICE = -1;

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

  TraceEntry shown(DeviceIndex device) const;
};

// What is recorded of one device. The C library's lock is taken before its own, never after.
struct History {
  DeviceIndex device;
  std::mutex lock;
  std::deque<Entry> entries;
  // Of each live block, where it was allocated.
  std::unordered_map<uint64_t, Context> allocated_at;

  // Keeps what is known of the block; a free of which nothing else is known happened where that was allocated.
  void remember(Entry& entry);
  // Under the lock.
  void append(Entry entry);
  static void event(const seam_event* event, void* user);
};

// The plugged allocator of one device.
struct Device {
  std::atomic<seam_allocator> handle{0};
  History history;
};

class Allocator final : public CUDAAllocator {
 public:
  Allocator();

  // allocator.cpp
  DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t count) const override;
  void* raw_alloc(size_t size) override;
  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override;
  void raw_delete(void* pointer) override;
  void init(int device_count) override;
  bool initialized() override;
  double getMemoryFraction(DeviceIndex device) override;
  void setMemoryFraction(double fraction, DeviceIndex device) override;
#if SEAMALLOC_TORCH >= 208
  void emptyCache(MempoolId pool) override;
#else
  void emptyCache() override;
#endif
  void enable(bool value) override;
  bool isEnabled() const override;
  void cacheInfo(DeviceIndex device, size_t* largest) override;
  void* getBaseAllocation(void* pointer, size_t* size) override;
  void recordStream(const DataPtr& data, c10::cuda::CUDAStream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;
#if SEAMALLOC_TORCH >= 210
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override;
#endif
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override;
  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override;
  cudaError_t memcpyAsync(
      void* to, int to_device, const void* from, int from_device, size_t count, cudaStream_t stream,
      bool peers) override;
  std::string name() override;

  // sharing.cpp
  ShareableHandle shareIpcHandle(void* pointer) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;

  // graphs.cpp
  void beginAllocateToPool(DeviceIndex device, MempoolId pool, std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, MempoolId pool) override;
  void releasePool(DeviceIndex device, MempoolId pool) override;
  int getPoolUseCount(DeviceIndex device, MempoolId pool) override;
#if SEAMALLOC_TORCH >= 211
  void createOrIncrefPool(DeviceIndex device, MempoolId pool, std::shared_ptr<CUDAAllocator> own) override;
  void setUseOnOOM(DeviceIndex device, MempoolId pool, bool use) override;
#elif SEAMALLOC_TORCH >= 208
  void createOrIncrefPool(DeviceIndex device, MempoolId pool, CUDAAllocator* own) override;
  void setUseOnOOM(DeviceIndex device, MempoolId pool) override;
#else
  void ensureExistsAndIncrefPool(DeviceIndex device, MempoolId pool) override;
#endif
#if SEAMALLOC_TORCH >= 210
  void setNoSplit(DeviceIndex device, MempoolId pool) override;
#endif
  bool checkPoolLiveAllocations(
      DeviceIndex device, MempoolId pool, const std::unordered_set<void*>& expected) override;
  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, MempoolId pool) override;
  CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> state) override;

  // history.cpp
  bool isHistoryEnabled() override;
#if SEAMALLOC_TORCH >= 211
  void recordHistory(
      bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear,
      const std::vector<std::string>& skipped) override;
  SnapshotInfo snapshot(MempoolId pool, bool with_traces) override;
#elif SEAMALLOC_TORCH >= 208
  void recordHistory(bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear) override;
  SnapshotInfo snapshot(MempoolId pool) override;
#else
  void recordHistory(bool enabled, CreateContextFn recorder, size_t most, RecordContext when) override;
  SnapshotInfo snapshot() override;
#endif
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& metadata) override;
#if SEAMALLOC_TORCH >= 208
  void pushCompileContext(std::string& context) override;
  void popCompileContext() override;
#endif
#if SEAMALLOC_TORCH >= 210
  void setUserMetadata(const std::string& metadata) override;
  std::string getUserMetadata() override;
#endif
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override;

 private:
  friend struct History;

  // The C library's allocator of a device; opened on first use.
  seam_allocator of(DeviceIndex device);
  seam_allocator open(DeviceIndex device);
  // Those that are open.
  std::vector<DeviceIndex> opened();
  DeviceIndex current_device() const;
  cudaStream_t current_stream(DeviceIndex device) const;
  void* malloc(size_t size, DeviceIndex device, cudaStream_t stream);
  void* from_pools_used_on_oom(size_t size, DeviceIndex device, cudaStream_t stream);
  [[noreturn]] void out_of_memory(size_t size, DeviceIndex device);
  // Frees on whatever device it is.
  seam_status free(void* pointer);
  DeviceIndex owner_of(void* pointer);
  void close_shared(DeviceIndex device, const std::string& handle, seam_allocator allocator, void* pointer);
  void report_to_profiler(seam_allocator handle, void* pointer, int64_t bytes, DeviceIndex device);
  std::vector<seam_pool_block> live_blocks(DeviceIndex device, MempoolId pool);
  void use_pool_on_oom(DeviceIndex device, MempoolId pool, bool use);
  void open_pool(DeviceIndex device, MempoolId pool);
  void open_pool_with(DeviceIndex device, MempoolId pool, std::shared_ptr<CUDAAllocator> own);
  // Whether it has segments of its own: of its own allocator, or unsplit.
  bool is_segmented(DeviceIndex device, MempoolId pool);
  // Before a use of a MemPool ends: what goes back if that was the last, and the pool is emptied.
  void note_release(DeviceIndex device, MempoolId pool);
  void empty_pool(DeviceIndex device, MempoolId pool);
  void record(bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear,
              const std::vector<std::string>& skipped);
  SnapshotInfo picture(MempoolId pool, bool with_traces);
  // Tells the C library whether anyone wants to hear of events.
  void watch(DeviceIndex device);
  Context gather(RecordContext level) const;

  std::array<Device, MAX_DEVICES> devices_;
  std::mutex opening_;
  // The only open device; none where there are several.
  std::atomic<DeviceIndex> only_{NO_DEVICE};
  // No GPU is there: SEAMALLOC_DEVICE names a simulated one.
  const bool simulated_;
  std::atomic<bool> initialized_{false};
  std::mutex registering_;
  std::vector<OutOfMemoryObserver> oom_observers_;
  std::map<std::pair<DeviceIndex, MempoolId>, std::unique_ptr<std::function<bool(cudaStream_t)>>> filters_;
  std::set<std::pair<DeviceIndex, MempoolId>> used_on_oom_, segmented_;
  // Free bytes of MemPools when they were released.
  std::map<std::pair<DeviceIndex, MempoolId>, uint64_t> given_up_;

  // It compares clocks over its lifetime: the longer, the better.
  c10::ApproximateClockToUnixTimeConverter clock_;

  std::mutex opening_shared_;
  // Memory of other processes that is open, by its handle: tensors that share a storage share this.
  std::map<std::pair<DeviceIndex, std::string>, std::weak_ptr<void>> shared_;

  // Read without a lock by whoever allocates.
  std::atomic<CreateContextFn> recorder_{nullptr};
  std::atomic<RecordContext> when_{RecordContext::NEVER};
  std::atomic<bool> recording_{false};
  std::atomic<size_t> most_entries_{0};
  std::atomic<uint32_t> skipped_{0};
  // Only grows; what was attached stays.
  std::mutex tracking_;
  std::vector<AllocatorTraceTracker> trackers_;
  std::atomic<bool> tracked_{false};
  std::deque<std::pair<c10::approx_time_t, std::vector<std::pair<std::string, std::string>>>> annotations_;
};

Allocator& the();

// Whether a call failed because CUDA has ended: a process that ends frees and closes some things after it.
bool is_of_the_end(seam_status status);

// The C library's name of a pool.
inline seam_pool pool_of(MempoolId id) {
  return {id.first, id.second};
}

// Throws what a call of the C library failed with.
void check(seam_status status, const char* doing);

// Which segment of MemPools' own allocators it is that begins there, by the order in which they were given; 0 for any other.
int32_t registration_number(uint64_t address);

// Throws what the own allocator of a MemPool threw in the last call of this thread, if it did.
void rethrow_own();

// Within its scope, what happens on this thread happens at this place of the program.
struct At {
  explicit At(Context context);
  ~At();
  At(const At&) = delete;

  // What it was before: memory is freed in need while a request is under way.
  Context before;
};

}  // namespace seamalloc
