// How this becomes PyTorch's current allocator.

#include "allocator.h"

#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

// Makes seamalloc PyTorch's allocator. NULL, or why not; the text stays valid until the next call.
extern "C" const char* seamalloc_install() {
  static std::string why;
  try {
    TORCH_CHECK(
        seam_abi_version() == SEAM_ABI_VERSION, "libseamalloc has binary interface ", seam_abi_version(), "; expected ",
        SEAM_ABI_VERSION);
    seamalloc::Allocator& allocator = seamalloc::instance();
    // It owns nothing: the allocator outlives all.
    std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> shared(&allocator, [](auto*) {});
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(shared);
    // torch.accelerator asks for the allocator of the device type.
    c10::SetAllocator(c10::DeviceType::CUDA, &allocator, 1);
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
