// The devices, and the C library's allocator of each.
#pragma once

#include "events.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <cstdlib>

namespace seamalloc {

// As many as the C library has plugged allocators.
constexpr size_t MAX_DEVICES = 64;
constexpr DeviceIndex NO_DEVICE = -1;

// The plugged allocator of one device.
struct Device {
  std::atomic<seam_allocator> handle{0};
  History history;

  seam_allocator opened() const {
    return handle.load(std::memory_order_acquire);
  }
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

  // No GPU is there: SEAMALLOC_DEVICE names a simulated one.
  const bool simulated;
  std::array<Device, MAX_DEVICES> all;

  // Opens the C library's allocator of a device where it is not open yet, and calls `on_open(handle)` and, once others can
  // see the handle, `on_opened()`.
  template <class OnOpen, class OnOpened>
  seam_allocator open(DeviceIndex device, OnOpen on_open, OnOpened on_opened) {
    std::lock_guard<std::mutex> guard(opening_);
    seam_allocator handle = all[device].opened();
    if (handle == 0) {
      check(seam_plugged(device, &handle), "opening the device");
      on_open(handle);
      only_.store(opened().empty() ? device : NO_DEVICE, std::memory_order_release);
      all[device].handle.store(handle, std::memory_order_release);
      on_opened();
    }
    return handle;
  }

  // Those that are open.
  std::vector<DeviceIndex> opened() const {
    std::vector<DeviceIndex> found;
    for (size_t index = 0; index < MAX_DEVICES; index++) {
      if (all[index].opened() != 0) {
        found.push_back(DeviceIndex(index));
      }
    }
    return found;
  }

  // The only open device; none where there are several.
  DeviceIndex only() const {
    return only_.load(std::memory_order_acquire);
  }

  DeviceIndex current() const {
    return simulated ? 0 : c10::cuda::current_device();
  }

  cudaStream_t current_stream(DeviceIndex device) const {
    return simulated ? nullptr : c10::cuda::getCurrentCUDAStream(device).stream();
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
