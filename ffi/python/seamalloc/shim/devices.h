// The devices, and the C library's allocator of each.
#pragma once

#include "events.h"
#include "thread_end.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace seamalloc {

constexpr DeviceIndex NO_DEVICE = -1;

// The plugged allocator of one device.
struct Device {
  std::atomic<seam_allocator> handle{0};
  // The memory fraction that the program has set before the device was opened; negative if none was set.
  std::atomic<double> fraction{-1};
  // How often the program emptied the cache before the device was opened.
  std::atomic<int64_t> idle_empties{0};
  // Requests that the fraction refused.
  std::atomic<int64_t> rejections{0};
  History history;

  seam_allocator opened() const {
    return handle.load(std::memory_order_acquire);
  }
};

// A current stream.
struct CurrentStream {
  cudaStream_t stream;
  // Whether another owner may destroy the stream without notice.
  bool is_external;
};

class Devices {
 public:
  Devices(const Recording& recording, Trackers& trackers) : simulated(is_simulated()) {
    for (size_t index = 0; index < MAX_DEVICES; index++) {
      History& history = all[index].history;
      history.device = DeviceIndex(index);
      history.recording = &recording;
      history.trackers = &trackers;
    }
  }

  // True if SEAMALLOC_DEVICE names a simulated device. No GPU is used then.
  const bool simulated;
  std::array<Device, MAX_DEVICES> all;

  // Opens the C library's allocator of a device if it is not open yet. Calls `on_open(handle)`, and `on_opened()` after
  // other threads can see the handle.
  template <class OnOpen, class OnOpened>
  seam_allocator open(DeviceIndex device, OnOpen on_open, OnOpened on_opened) {
    seam_allocator handle = 0;
    // The call is made without the lock. In a child that was forked while another thread opened a device, the lock
    // stays locked and this call fails.
    const seam_status status = seam_plugged(device, &handle);
    TORCH_CHECK_WITH(
        OutOfMemoryError, status != SEAM_STATUS_OUT_OF_MEMORY, "CUDA out of memory. seamalloc, opening the device: ",
        seam_last_error_text());
    check(status, "opening the device");
    std::lock_guard<std::mutex> guard(opening_);
    if (all[device].opened() == 0) {
      on_open(handle);
      only_.store(opened().empty() ? device : NO_DEVICE, std::memory_order_release);
      all[device].handle.store(handle, std::memory_order_release);
      on_opened();
    }
    return handle;
  }

  // Returns the open devices.
  std::vector<DeviceIndex> opened() const {
    std::vector<DeviceIndex> found;
    for (size_t index = 0; index < MAX_DEVICES; index++) {
      if (all[index].opened() != 0) {
        found.push_back(DeviceIndex(index));
      }
    }
    return found;
  }

  // Returns the only open device; NO_DEVICE if several devices are open, or none.
  DeviceIndex only() const {
    return only_.load(std::memory_order_acquire);
  }

  // Returns the number of devices, opened or not.
  size_t count() const {
    const std::vector<DeviceIndex> found = opened();
    const size_t used = found.empty() ? 0 : size_t(found.back()) + 1;
    return simulated ? std::max<size_t>(1, used) : size_t(c10::cuda::device_count());
  }

  DeviceIndex current() const {
    return simulated ? 0 : c10::cuda::current_device();
  }

  // Returns the current stream of this thread. At the end of the thread, returns the last stream that this function has
  // seen.
  CurrentStream current_stream(DeviceIndex device) const {
    if (simulated) {
      return {nullptr, false};
    }
    ThreadMarks& marks = thread_marks();
    if (C10_UNLIKELY(marks.has_ended)) {
      return {marks.streams[device], false};
    }
    const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(device);
    const cudaStream_t stream = current.stream();
    // The id of an ExternalStream is its handle. The ids of PyTorch's own streams are small numbers.
    const bool is_external = stream != nullptr && current.id() == reinterpret_cast<c10::StreamId>(stream);
    // A stream of another owner may be destroyed before the end of the thread.
    marks.streams[device] = is_external ? nullptr : stream;
    if (C10_UNLIKELY(!marks.is_watched)) {
      // Called after `getCurrentCUDAStream`, which creates PyTorch's thread-local variable. PyTorch's variable is then
      // destroyed after the notice.
      watch_thread_end(marks);
    }
    return {stream, is_external};
  }

 private:
  static bool is_simulated() {
    const char* device = std::getenv("SEAMALLOC_DEVICE");
    return device != nullptr && *device != '\0';
  }

  std::mutex opening_;
  std::atomic<DeviceIndex> only_{NO_DEVICE};
};

}  // namespace seamalloc
