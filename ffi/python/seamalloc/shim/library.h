// The calls of the C library, and the names that all files of the shim use.
//
// The shim is compiled against the user's PyTorch. SEAMALLOC_TORCH is the version of PyTorch, 211 for 2.11. The
// interface differs between versions, so methods that differ are compiled by that number.
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

// Returns the C library's name of a pool.
inline seam_pool pool_of(MempoolId id) {
  return {id.first, id.second};
}

// Throws the exception that a MemPool's own allocator threw in the last call of this thread, if any.
void rethrow_own();

// Throws an exception if a call of the C library failed. `doing` names the step.
inline void check(seam_status status, const char* doing) {
  if (C10_UNLIKELY(status == SEAM_STATUS_SOURCE)) {
    rethrow_own();
  }
  TORCH_CHECK(status == SEAM_STATUS_OK, "seamalloc, ", doing, ": ", seam_last_error_text());
}

// Returns whether a call failed because CUDA or the device's context has ended. An ending process frees and closes
// objects after CUDA has ended, in no fixed order. A program may also reset its device.
inline bool cuda_has_ended(seam_status status) {
  constexpr uint32_t DEINITIALIZED = 4, INVALID_CONTEXT = 201, CONTEXT_IS_DESTROYED = 709;
  const uint32_t found = seam_last_driver_status();
  return status == SEAM_STATUS_DRIVER &&
      (found == DEINITIALIZED || found == INVALID_CONTEXT || found == CONTEXT_IS_DESTROYED);
}

// Returns whether a failed free is no mistake of the program: CUDA has ended, or a forked child drops its copies of the
// parent's tensors, whose memory belongs to the parent.
inline bool failed_quietly(seam_status status) {
  return status == SEAM_STATUS_FORKED || cuda_has_ended(status);
}

// Returns whether a call may have failed because a named stream was destroyed. An H200 reports an invalid context for
// such a stream.
inline bool stream_may_have_ended(seam_status status) {
  constexpr uint32_t INVALID_CONTEXT = 201, INVALID_HANDLE = 400;
  const uint32_t found = seam_last_driver_status();
  return status == SEAM_STATUS_DRIVER && (found == INVALID_CONTEXT || found == INVALID_HANDLE);
}

}  // namespace seamalloc
