// The allocators that are compared, each behind the same two virtual calls.
//
//     torch                      PyTorch's own, as PYTORCH_CUDA_ALLOC_CONF has it
//     cuda                       cudaMalloc and cudaFree
//     PATH.so,ALLOCATE,FREE      any library with the signature of PyTorch's CUDAPluggableAllocator
//
// With -DNO_CUDA there are libraries only, and streams are numbers: for libseamalloc on a simulated device.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/types.h>
#include <vector>

#include <dlfcn.h>

#ifdef NO_CUDA
using Stream = void *;
#else
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
using Stream = cudaStream_t;

// Exported by libc10_cuda for libtorch_cuda; no header declares it.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(c10::DeviceIndex));
}
#endif

struct Candidate {
    virtual ~Candidate() = default;
    // NULL where there is no memory.
    virtual void *allocate(size_t size, Stream stream) = 0;
    virtual void free(void *address, size_t size, Stream stream) = 0;
    // What it says of itself, as JSON.
    virtual std::string figures() { return "null"; }
};

// A library, and what libseamalloc offers beside the pair.
class Library : public Candidate {
    using Allocate = void *(*)(ssize_t, int, Stream);
    using Free = void (*)(void *, ssize_t, int, Stream);
    using Plugged = int (*)(int, uint64_t *);
    using StatsJson = int (*)(uint64_t, char *, size_t, size_t *);

    void *library;
    Allocate allocate_;
    Free free_;

    void *symbol(const std::string &name) {
        void *found = dlsym(library, name.c_str());
        if (!found) throw std::runtime_error("the library has no " + name);
        return found;
    }

  public:
    explicit Library(const std::string &spec) {
        size_t first = spec.find(','), second = spec.find(',', first + 1);
        if (second == std::string::npos) throw std::runtime_error("expected PATH.so,ALLOCATE,FREE, got " + spec);
        library = dlopen(spec.substr(0, first).c_str(), RTLD_NOW);
        if (!library) throw std::runtime_error(dlerror());
        allocate_ = reinterpret_cast<Allocate>(symbol(spec.substr(first + 1, second - first - 1)));
        free_ = reinterpret_cast<Free>(symbol(spec.substr(second + 1)));
    }

    void *allocate(size_t size, Stream stream) override { return allocate_(static_cast<ssize_t>(size), 0, stream); }
    void free(void *address, size_t size, Stream stream) override {
        free_(address, static_cast<ssize_t>(size), 0, stream);
    }

    std::string figures() override {
        auto plugged = reinterpret_cast<Plugged>(dlsym(library, "seam_plugged"));
        auto stats = reinterpret_cast<StatsJson>(dlsym(library, "seam_stats_json"));
        if (!plugged || !stats) return "null";
        uint64_t allocator = 0;
        size_t length = 0;
        if (plugged(0, &allocator) != 0) return "null";
        stats(allocator, nullptr, 0, &length);
        // Figures may grow by a digit between the two calls.
        std::vector<char> text(length + 256);
        return stats(allocator, text.data(), text.size(), &length) == 0 ? std::string(text.data(), length) : "null";
    }
};

#ifndef NO_CUDA
inline void check(cudaError_t error, const char *call) {
    if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

class Cuda : public Candidate {
  public:
    void *allocate(size_t size, Stream) override {
        void *address = nullptr;
        return cudaMalloc(&address, size) == cudaSuccess ? address : nullptr;
    }
    void free(void *address, size_t, Stream) override { check(cudaFree(address), "cudaFree"); }
};

// PyTorch's allocator without PyTorch above it: what c10 does for a tensor, less the tensor.
class Torch : public Candidate {
  public:
    Torch() {
        // libtorch_cuda, which is not loaded, would have said where contexts are; the cudaMallocAsync backend asks.
        c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex device) { return device == 0; });
        c10::cuda::CUDACachingAllocator::init(1);
    }

    void *allocate(size_t size, Stream stream) override {
        try {
            return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(size, stream);
        } catch (const c10::OutOfMemoryError &) {
            return nullptr;
        }
    }
    void free(void *address, size_t, Stream) override { c10::cuda::CUDACachingAllocator::raw_delete(address); }

    std::string figures() override {
        try {
            return stats();
        } catch (const c10::Error &) {
            // The cudaMallocAsync backend has only some.
            return "null";
        }
    }

  private:
    static std::string stats() {
        namespace allocator = c10::cuda::CUDACachingAllocator;
        std::string name = allocator::name();
        auto number = [](int64_t value) { return std::to_string(value); };
        auto stats = allocator::getDeviceStats(0);
        std::string text = "{\"backend\":\"" + name + "\"";
        if (name == "native") {
            auto settings = allocator::snapshot({0, 0}, false).config_metadata;
            text += std::string(",\"expandable_segments\":") + (settings.expandable_segments ? "true" : "false");
        }
        // Of each array the first entry is that of all pools.
        text += ",\"reserved_peak\":" + number(stats.reserved_bytes[0].peak);
        text += ",\"num_device_alloc\":" + number(stats.num_device_alloc);
        text += ",\"num_device_free\":" + number(stats.num_device_free);
        text += ",\"num_alloc_retries\":" + number(stats.num_alloc_retries);
        return text + ",\"num_sync_all_streams\":" + number(stats.num_sync_all_streams) + "}";
    }
};
#endif

inline std::unique_ptr<Candidate> open_candidate(const std::string &spec) {
#ifndef NO_CUDA
    if (spec == "torch") return std::make_unique<Torch>();
    if (spec == "cuda") return std::make_unique<Cuda>();
#endif
    return std::make_unique<Library>(spec);
}
