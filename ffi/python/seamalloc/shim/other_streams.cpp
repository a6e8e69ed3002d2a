// Streams that the C library cannot wait for by name.

#include "other_streams.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

namespace seamalloc {

namespace {

// An event that is destroyed at the end of its scope. If the device has not passed it, CUDA destroys it later.
struct Event {
  cudaEvent_t handle = nullptr;
  ~Event() {
    if (handle != nullptr) {
      C10_CUDA_IGNORE_ERROR(cudaEventDestroy(handle));
    }
  }
};

}  // namespace

void OtherStreams::use(void* pointer, StreamOfDevice stream) {
  std::lock_guard<std::mutex> guard(lock_);
  auto& streams = uses_[pointer];
  const auto same = [&](const StreamOfDevice& other) {
    return other.device == stream.device && other.stream == stream.stream;
  };
  if (std::none_of(streams.begin(), streams.end(), same)) {
    streams.push_back(stream);
  }
  any_.store(true, std::memory_order_release);
}

std::vector<StreamOfDevice> OtherStreams::take(void* pointer) {
  std::lock_guard<std::mutex> guard(lock_);
  const auto found = uses_.find(pointer);
  if (found == uses_.end()) {
    return {};
  }
  std::vector<StreamOfDevice> streams = std::move(found->second);
  uses_.erase(found);
  any_.store(!uses_.empty(), std::memory_order_release);
  return streams;
}

bool OtherStreams::wait_for_noted(seam_allocator handle, DeviceIndex owner, void* pointer) {
  std::vector<StreamOfDevice> streams = take(pointer);
  // Streams without a wait are noted again.
  struct PutBack {
    OtherStreams& to;
    void* pointer;
    std::vector<StreamOfDevice>& streams;
    ~PutBack() {
      for (const StreamOfDevice& stream : streams) {
        to.use(pointer, stream);
      }
    }
  } put_back{*this, pointer, streams};
  while (!streams.empty()) {
    if (!wait_for(streams.back(), handle, owner, pointer)) {
      return false;
    }
    streams.pop_back();
  }
  return true;
}

bool OtherStreams::wait_for(StreamOfDevice stream, seam_allocator handle, DeviceIndex owner, void* pointer) {
  // Streams and events may be made while another thread captures a graph.
  c10::cuda::CUDAStreamCaptureModeGuard relaxed{cudaStreamCaptureModeRelaxed};
  Event event;
  {
    c10::cuda::CUDAGuard guard(stream.device);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t done = cudaStreamIsCapturing(stream.stream, &status);
    if (done == cudaSuccess && status != cudaStreamCaptureStatusNone) {
      return false;
    }
    if (done == cudaSuccess) {
      C10_CUDA_CHECK(cudaEventCreateWithFlags(&event.handle, cudaEventDisableTiming));
      done = cudaEventRecord(event.handle, stream.stream);
    }
    if (done != cudaSuccess) {
      (void)cudaGetLastError();
      // The stream may have been destroyed. The wait for the device includes the stream's work.
      if (synchronize_device(stream.device)) {
        return true;
      }
      C10_CUDA_CHECK(done);
    }
  }
  c10::cuda::CUDAGuard guard(owner);
  const cudaStream_t waiting = waiting_stream(owner);
  C10_CUDA_CHECK(cudaStreamWaitEvent(waiting, event.handle, 0));
  check(seam_record_stream(handle, pointer, waiting), "waiting for a stream of another device");
  return true;
}

bool synchronize_device(DeviceIndex device) {
  int before = 0;
  bool done = cudaGetDevice(&before) == cudaSuccess && cudaSetDevice(device) == cudaSuccess;
  if (done) {
    done = cudaDeviceSynchronize() == cudaSuccess;
    done = cudaSetDevice(before) == cudaSuccess && done;
  }
  if (!done) {
    (void)cudaGetLastError();
  }
  return done;
}

cudaStream_t OtherStreams::waiting_stream(DeviceIndex device) {
  std::lock_guard<std::mutex> guard(lock_);
  cudaStream_t& stream = waiting_[device];
  if (stream == nullptr) {
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  return stream;
}

}  // namespace seamalloc
