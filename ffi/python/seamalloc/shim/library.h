// The C library as the shim calls it, and the names that all files use.
//
// Compiled against the user's PyTorch; SEAMALLOC_TORCH is its version, 211 for 2.11. The interface differs between
// versions, so a method that a version does not have, or has otherwise, stands behind that number.
#pragma once

#include "seamalloc.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace seamalloc {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using MempoolId = c10::cuda::MempoolId_t;
// A private pool of a device.
using PoolKey = std::pair<DeviceIndex, MempoolId>;
using Context = std::shared_ptr<c10::GatheredContext>;

// The C library's name of a pool.
inline seam_pool pool_of(MempoolId id) {
  return {id.first, id.second};
}

// Throws what the own allocator of a MemPool threw in the last call of this thread, if it did.
void rethrow_own();

// Throws what a call of the C library failed with.
inline void check(seam_status status, const char* doing) {
  if (C10_UNLIKELY(status == SEAM_STATUS_SOURCE)) {
    rethrow_own();
  }
  TORCH_CHECK(status == SEAM_STATUS_OK, "seamalloc, ", doing, ": ", seam_last_error_text());
}

// Whether a call failed because CUDA, or the device's context, has ended. A process that ends frees and closes some things
// after it, in an order that nobody decides, and a program may reset its device.
inline bool cuda_has_ended(seam_status status) {
  constexpr uint32_t DEINITIALIZED = 4, INVALID_CONTEXT = 201, CONTEXT_IS_DESTROYED = 709;
  const uint32_t found = seam_last_driver_status();
  return status == SEAM_STATUS_DRIVER &&
      (found == DEINITIALIZED || found == INVALID_CONTEXT || found == CONTEXT_IS_DESTROYED);
}

// Whether a free failed in a way that is nobody's mistake: CUDA has ended, or a forked child drops its copies of the parent's
// tensors, which are no memory of its own.
inline bool failed_quietly(seam_status status) {
  return status == SEAM_STATUS_FORKED || cuda_has_ended(status);
}

// Whether a call may have failed because a stream that it names is no more: an H200 says that its context is invalid.
inline bool stream_may_have_ended(seam_status status) {
  constexpr uint32_t INVALID_CONTEXT = 201, INVALID_HANDLE = 400;
  const uint32_t found = seam_last_driver_status();
  return status == SEAM_STATUS_DRIVER && (found == INVALID_CONTEXT || found == INVALID_HANDLE);
}

}  // namespace seamalloc
