// Makes seamalloc PyTorch's current allocator.

#include "allocator.h"
#include "pinned.h"

#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

namespace {

// Runs a step. Returns NULL on success, or the reason of the failure. The text stays valid until the next call.
template <class Step>
const char* why_not(Step step) {
  static std::string why;
  try {
    step();
    return nullptr;
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {
    why = "an unknown exception";
  }
  return why.c_str();
}

}  // namespace

// Makes seamalloc PyTorch's allocator. Returns NULL on success, or the reason of the failure. The text stays valid
// until the next call.
extern "C" const char* seamalloc_install() {
  return why_not([] {
    TORCH_CHECK(
        seam_abi_version() == SEAM_ABI_VERSION, "libseamalloc has binary interface ", seam_abi_version(), "; expected ",
        SEAM_ABI_VERSION);
    seamalloc::Allocator& allocator = seamalloc::instance();
    // The pointer does not own the allocator, which lives until the process ends.
    std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> shared(&allocator, [](auto*) {});
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(shared);
    // torch.accelerator looks up the allocator by device type.
    c10::SetAllocator(c10::DeviceType::CUDA, &allocator, 1);
  });
}

// Makes seamalloc PyTorch's allocator of page-locked memory with these options; restores the previous allocator if
// `options` is NULL. Returns NULL on success, or the reason of the failure. The text stays valid until the next call.
extern "C" const char* seamalloc_install_pinned(const char* options) {
  return why_not([options] {
#if SEAMALLOC_TORCH >= 209
    if (options != nullptr) {
      seamalloc::pinned_instance().install(options);
    } else {
      seamalloc::pinned_instance().uninstall();
    }
#else
    (void)options;
    TORCH_CHECK(false, "its allocator of page-locked memory can be replaced from 2.9 on");
#endif
  });
}

// Returns the handle of the C library's page-locked allocator, opening it if `open`. Returns 0 if it does not exist.
// Sets `failure` to NULL, or to the reason of a failure, which stays valid until the next call.
extern "C" uint64_t seamalloc_pinned(bool open, const char** failure) {
  uint64_t found = 0;
  *failure = why_not([open, &found] {
#if SEAMALLOC_TORCH >= 209
    found = open ? seamalloc::pinned_instance().handle() : seamalloc::pinned_instance().opened();
#else
    (void)open;
#endif
  });
  return found;
}
