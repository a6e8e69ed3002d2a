// seamalloc as PyTorch's CUDA allocator: c10's allocator interface over the C library.
//
// install.cpp         the installation as the current allocator
// allocator.cpp       memory, limits, statistics
// graphs.cpp          private pools: CUDA graphs, MemPool, checkpoints
// sources.cpp         MemPools with an allocator of their own, and memory given back from a MemPool
// shared_memory.cpp   tensors shared between processes
// history.cpp         events with stack traces, snapshots
// pinned.cpp          page-locked memory: PyTorch's host allocator
// other_streams.cpp   streams that the C library cannot wait for by name
// thread_end.cpp      state of a thread, and the notice of its end
//
// Each struct of the state owns its lock: Devices, PoolTable, SharedMemory, OtherStreams, LateFrees, Observers, and for
// the history Recording, Trackers, Annotations and a History for each device.
//
// These methods of CUDAAllocator keep their default: markCaptureBegin and markCaptureEnd (2.13), since the filter of a
// pool already tells whether a capture follows (graphs.cpp), and allocateWithAddress (2.13), whose default refuses.
#pragma once

#include "devices.h"
#include "events.h"
#include "late_frees.h"
#include "other_streams.h"
#include "pool_streams.h"
#include "pools.h"
#include "shared_memory.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAGuard.h>

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

namespace seamalloc {

// Functions of the program that are called at an event. An attached function is never removed.
template <class Observer>
class Observers {
 public:
  void attach(Observer observer) {
    std::lock_guard<std::mutex> guard(lock_);
    observers_.push_back(std::move(observer));
  }

  std::vector<Observer> all() {
    std::lock_guard<std::mutex> guard(lock_);
    return observers_;
  }

 private:
  std::mutex lock_;
  std::vector<Observer> observers_;
};

class Allocator final : public CUDAAllocator {
 public:
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
#if SEAMALLOC_TORCH >= 212
  void attachOomRejectionObserver(OomRejectionObserver observer) override;
#endif
  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override;
  cudaError_t memcpyAsync(
      void* to, int to_device, const void* from, int from_device, size_t count, cudaStream_t stream,
      bool peers) override;
  std::string name() override;

  // shared_memory.cpp
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
#if SEAMALLOC_TORCH >= 212
  Context getContextForPointer(const void* pointer) override;
#endif
#if SEAMALLOC_TORCH >= 214
  bool supportsUserMetadata() override;
  void annotateMemory(const void* pointer, const std::string& metadata) override;
#endif
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override;

 private:
  Device& device_at(DeviceIndex device);
  // The C library's allocator of a device, opened on first use.
  seam_allocator handle_for(DeviceIndex device);
  seam_allocator open(DeviceIndex device);

  void* malloc(size_t size, DeviceIndex device, cudaStream_t stream);
  cudaStream_t stream_for_request(DeviceIndex device);
  void* malloc_from_pools_used_on_oom(size_t size, DeviceIndex device, cudaStream_t stream);
  [[noreturn]] void throw_out_of_memory(size_t size, DeviceIndex device, const std::string& report);
  // Frees an allocation of any device.
  seam_status free(void* pointer);
  seam_status free_under(void* pointer, DeviceIndex owner, cudaStream_t stream);
  // Returns the device of a live allocation in `owner`. The status says why the owner could not be found.
  seam_status find_owner(void* pointer, DeviceIndex& owner);
  DeviceIndex owner_of(void* pointer);
  void free_late();
  static bool is_profiled();
  void report_to_profiler(seam_allocator handle, void* pointer, int64_t bytes, DeviceIndex device);

  void open_pool(DeviceIndex device, MempoolId pool);
  void open_pool_with(DeviceIndex device, MempoolId pool, std::shared_ptr<CUDAAllocator> own);
  // Called before a use of a MemPool ends. Notes the free bytes that go back if this use was the last one and the pool
  // is emptied.
  void note_release(DeviceIndex device, MempoolId pool);
  void empty_pool(DeviceIndex device, MempoolId pool);
  uint64_t free_bytes(DeviceIndex device, MempoolId pool);
  std::vector<seam_pool_block> live_blocks(DeviceIndex device, MempoolId pool);

  void record(bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear,
              const std::vector<std::string>& skipped);
  SnapshotInfo take_snapshot(MempoolId pool, bool with_traces);
  // Tells the C library whether any observer needs events.
  void update_observer(DeviceIndex device);

  Recording recording_;
  Trackers trackers_;
  Annotations annotations_;
  Devices devices_{recording_, trackers_};
  PoolTable pools_;
  SharedMemory shared_memory_;
  OtherStreams other_streams_;
  PoolStreams pool_streams_;
  LateFrees late_frees_;
  Observers<OutOfMemoryObserver> oom_observers_;
#if SEAMALLOC_TORCH >= 212
  Observers<OomRejectionObserver> rejection_observers_;
#endif
  std::atomic<bool> initialized_{false};
  // The clock compares two clocks over its lifetime, and gets more exact the longer it lives.
  c10::ApproximateClockToUnixTimeConverter clock_;
};

// Returns the only allocator of the process.
Allocator& instance();

}  // namespace seamalloc
