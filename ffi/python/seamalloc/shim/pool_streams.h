// Streams of PyTorch's pools that use memory without a word to its allocator: those of NCCL, and of copies.
#pragma once

#include "devices.h"
#include "library.h"

#include <array>
#include <atomic>

namespace seamalloc {

// Chunks are split under live addresses while all known streams stand still, so the allocator has to know them.
class PoolStreams {
 public:
  // Announces the streams of a device's pools, once PyTorch has made them. PyTorch makes all of a device at once.
  void announce(seam_allocator handle, DeviceIndex device) {
    if (C10_UNLIKELY(!announced_[device].load(std::memory_order_relaxed)) && are_made(device)) {
      announce_all(handle, device);
    }
  }

 private:
  // The number of the first pool's first stream (c10/cuda/CUDAStream.cpp). Its handle is null before any was asked for.
  static constexpr c10::StreamId FIRST = 0b11;
  static constexpr int STREAMS_IN_POOL = 32;

  static bool are_made(DeviceIndex device) {
    try {
      const c10::Stream first(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CUDA, device), FIRST);
      return c10::cuda::CUDAStream(c10::cuda::CUDAStream::UNCHECKED, first).stream() != nullptr;
    } catch (const c10::Error&) {
      // A PyTorch that numbers them otherwise: asking for one makes them.
      return true;
    }
  }

  void announce_all(seam_allocator handle, DeviceIndex device) {
    // Those that PyTorch itself asks for: of normal priority, of FSDP's, and of NCCL's high one. A device holds no more than
    // about 110 streams; one of another priority is known from its first request on.
    for (const int priority : {0, -1, -3}) {
      for (int number = 0; number < STREAMS_IN_POOL; ++number) {
        const cudaStream_t stream = c10::cuda::getStreamFromPool(priority, device).stream();
        check(seam_announce_stream(handle, stream), "announcing a stream of PyTorch's pools");
      }
    }
    announced_[device].store(true, std::memory_order_relaxed);
  }

  std::array<std::atomic<bool>, MAX_DEVICES> announced_{};
};

}  // namespace seamalloc
