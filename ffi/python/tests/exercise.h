// What the programs have in common that call PyTorch's allocator interface as its users do.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <string>

namespace allocator = c10::cuda::CUDACachingAllocator;

#define CHECK(condition) TORCH_CHECK(condition, "line ", __LINE__, ": " #condition)

// Runs what must hold: NULL, or what does not.
template <class Checks>
const char* what_does_not_hold(Checks checks) {
  static std::string why;
  try {
    checks();
    return nullptr;
  } catch (const std::exception& error) {
    why = error.what();
    return why.c_str();
  }
}
