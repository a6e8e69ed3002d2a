// Streams that the C library cannot wait for by name: those of other devices, and the per-thread default stream.
#pragma once

#include "library.h"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace seamalloc {

// A stream and the device that it is of.
struct StreamOfDevice {
  DeviceIndex device;
  cudaStream_t stream;
};

// Makes memory of one device wait for streams of others: behind an event, a stream of the memory's own device waits for
// them, and the C library waits for that one.
class OtherStreams {
 public:
  // Notes that a stream of another device uses an allocation, which waits for it when it is freed.
  void use(void* pointer, StreamOfDevice stream);

  // Whether any was noted.
  bool any() const {
    return any_.load(std::memory_order_acquire);
  }

  // Makes an allocation wait, once it is freed, for all streams that were noted for it. False where one is being captured:
  // it cannot be waited for yet, and stays noted.
  bool wait_for_noted(seam_allocator handle, DeviceIndex owner, void* pointer);

  // Makes an allocation wait, once it is freed, for the work given to a stream so far. False where the stream is being
  // captured.
  bool wait_for(StreamOfDevice stream, seam_allocator handle, DeviceIndex owner, void* pointer);

 private:
  std::vector<StreamOfDevice> take(void* pointer);
  // The stream of a device that waits for others; made once, and never destroyed.
  cudaStream_t waiting_stream(DeviceIndex device);

  std::mutex lock_;
  std::atomic<bool> any_{false};
  std::unordered_map<void*, std::vector<StreamOfDevice>> uses_;
  std::unordered_map<DeviceIndex, cudaStream_t> waiting_;
};

// Waits for all work of a device. Whether it could; throws nothing.
bool synchronize_device(DeviceIndex device);

}  // namespace seamalloc
