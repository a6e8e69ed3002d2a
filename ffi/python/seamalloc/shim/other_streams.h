// Streams that the C library cannot wait for by name: streams of other devices, and the per-thread default stream.
#pragma once

#include "library.h"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace seamalloc {

// A stream and its device.
struct StreamOfDevice {
  DeviceIndex device;
  cudaStream_t stream;
};

// Makes memory of one device wait for streams of other devices. A stream of the memory's own device waits for an event
// of the other stream, and the C library waits for the stream of its own device.
class OtherStreams {
 public:
  // Notes that a stream of another device uses an allocation. The allocation waits for the stream when it is freed.
  void use(void* pointer, StreamOfDevice stream);

  // Returns whether any stream is noted.
  bool any() const {
    return any_.load(std::memory_order_acquire);
  }

  // Makes a freed allocation wait for all streams that are noted for it. Returns false if one of the streams is being
  // captured: a captured stream cannot be waited for, and stays noted.
  bool wait_for_noted(seam_allocator handle, DeviceIndex owner, void* pointer);

  // Makes a freed allocation wait for the work given to a stream so far. Returns false if the stream is being captured.
  bool wait_for(StreamOfDevice stream, seam_allocator handle, DeviceIndex owner, void* pointer);

 private:
  std::vector<StreamOfDevice> take(void* pointer);
  // Returns the stream of a device that waits for other streams. The stream is made once and never destroyed.
  cudaStream_t waiting_stream(DeviceIndex device);

  std::mutex lock_;
  std::atomic<bool> any_{false};
  std::unordered_map<void*, std::vector<StreamOfDevice>> uses_;
  std::unordered_map<DeviceIndex, cudaStream_t> waiting_;
};

// Waits for all work of a device. Returns whether the wait succeeded. Throws nothing.
bool synchronize_device(DeviceIndex device);

}  // namespace seamalloc
