// Streams of PyTorch's pools that use memory without telling the allocator: streams of NCCL, and streams of copies.
#pragma once

#include "devices.h"
#include "library.h"

#include <array>
#include <atomic>

namespace seamalloc {

// Chunks are split under live addresses while the gate holds all known streams, so the allocator has to know these
// streams.
class PoolStreams {
 public:
  // Announces the streams of a device's pools after PyTorch has made them. PyTorch makes all streams of a device at
  // once.
  void announce(seam_allocator handle, DeviceIndex device) {
    if (C10_UNLIKELY(!announced_[device].load(std::memory_order_relaxed)) && are_made(device)) {
      announce_all(handle, device);
    }
  }

 private:
  // The id of the first stream of the first pool (c10/cuda/CUDAStream.cpp). The stream's handle is null until PyTorch
  // makes the streams.
  static constexpr c10::StreamId FIRST = 0b11;
  static constexpr int STREAMS_IN_POOL = 32;

  static bool are_made(DeviceIndex device) {
    try {
      const c10::Stream first(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CUDA, device), FIRST);
      return c10::cuda::CUDAStream(c10::cuda::CUDAStream::UNCHECKED, first).stream() != nullptr;
    } catch (const c10::Error&) {
      // This PyTorch numbers its streams differently. Requesting a stream makes all of them.
      return true;
    }
  }

  void announce_all(seam_allocator handle, DeviceIndex device) {
    // Announces the streams of the priorities that PyTorch itself uses: normal, FSDP's, and NCCL's high priority. The
    // gate of a device holds at most about 110 streams. A stream of another priority is known from its first request
    // on.
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
