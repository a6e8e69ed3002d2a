// The memory resource for CCCL, on the simulated device: through CCCL's own types, with every word that CUDA is asked.
//
// It is compiled where CCCL's headers are. CUDA's runtime is played here.

#include "check.hpp"
#include "seamalloc.hpp"

#include <cstdint>
#include <utility>

static_assert(SEAMALLOC_HAS_CCCL, "the headers of CCCL 3.1 and of CUDA's runtime were to be found");
static_assert(cuda::mr::resource<seamalloc::memory_resource>);
static_assert(cuda::mr::synchronous_resource<seamalloc::memory_resource>);
static_assert(cuda::has_property<seamalloc::memory_resource, cuda::mr::device_accessible>);
static_assert(!cuda::has_property<seamalloc::memory_resource, cuda::mr::host_accessible>);

namespace {

// What CUDA's runtime was asked.
int waits = 0, current_device = 0;
cudaStream_t waited_for = nullptr, captured = nullptr;
cudaError_t answer = cudaSuccess;

cudaStream_t stream(std::size_t number) {
    return static_cast<cudaStream_t>(stream_of(number));
}

} // namespace

extern "C" {
cudaError_t CUDARTAPI cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaSetDevice(int device) {
    current_device = device;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) {
    waits++;
    waited_for = stream;
    return answer;
}
cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    *status = stream == captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
const char *CUDARTAPI cudaGetErrorString(cudaError_t) {
    return "played";
}
}

static std::uint64_t live(const seamalloc::memory_resource &of) {
    return of.upstream().stats().allocation.all.current;
}

static std::uint64_t waiting(const seamalloc::memory_resource &of) {
    seam_stats stats = of.upstream().stats();
    return stats.active.all.current - stats.allocation.all.current;
}

static void memory_comes_and_goes_in_the_order_of_streams() {
    seamalloc::memory_resource mr(seamalloc::allocator("sim:h200,capacity=1GiB"));
    void *first = mr.allocate(stream(0x100), 4 * MIB, 256);
    CHECK(first != nullptr && live(mr) == 1);
    mr.deallocate(stream(0x100), first, 4 * MIB, 256);
    CHECK(live(mr) == 0 && waiting(mr) == 0 && mr.allocate(stream(0x100), 4 * MIB) == first);
    // Deallocated on another stream, it waits for that too.
    mr.deallocate(stream(0x200), first, 4 * MIB);
    CHECK(live(mr) == 0 && waiting(mr) == 1);
    // What nobody names any more is waited for with the device.
    CHECK(mr.upstream().empty_cache() >= 4 * MIB && waiting(mr) == 0);
    for (cudaStream_t same : {stream(0), cudaStreamLegacy, cudaStreamPerThread}) {
        void *address = mr.allocate(same, MIB);
        mr.deallocate(same, address, MIB);
        CHECK(live(mr) == 0 && waiting(mr) == 0);
    }
    CHECK(waits == 0);
    for (std::size_t align : {0, 3, 1024}) {
        auto refused = thrown_by<seamalloc::failure>([&] { (void)mr.allocate(stream(0x100), MIB, align); });
        CHECK(refused.status() == SEAM_STATUS_INVALID_ARGUMENT && contains(refused.what(), "at most 512"));
    }
    auto memory = thrown_by<seamalloc::out_of_memory>([&] { (void)mr.allocate(stream(0x100), 2 * GIB); });
    CHECK(contains(memory.what(), "2.00 GiB") && live(mr) == 0);
    seamalloc::check(seam_check(mr.upstream().handle()));
}

// CCCL 3.1 has the concepts and no such types.
#if __has_include(<cuda/__memory_resource/any_resource.h>)
static void any_resource_takes_it() {
    seamalloc::memory_resource mr(seamalloc::allocator("sim:h200,capacity=1GiB")), same = mr;
    seamalloc::memory_resource other(seamalloc::allocator("sim:h200,capacity=1GiB"));
    CHECK(mr == same && mr != other);
    cuda::mr::any_resource<cuda::mr::device_accessible> any(mr);
    cuda::mr::any_resource<cuda::mr::device_accessible> copy = any;
    CHECK(any == copy);
    void *address = copy.allocate(cuda::stream_ref{stream(0x100)}, 3 * MIB, 512);
    CHECK(live(mr) == 1);
    any.deallocate(cuda::stream_ref{stream(0x100)}, address, 3 * MIB, 512);
    address = any.allocate_sync(MIB, 512);
    CHECK(live(mr) == 1 && live(other) == 0);
    any.deallocate_sync(address, MIB, 512);
    CHECK(live(mr) == 0);
    cuda::mr::resource_ref<cuda::mr::device_accessible> reference(mr);
    reference.deallocate(cuda::stream_ref{stream(0x100)}, reference.allocate(cuda::stream_ref{stream(0x100)}, MIB, 512), MIB, 512);
    CHECK(live(mr) == 0);
}
#else
static void any_resource_takes_it() {}
#endif

// As if the simulated device were number 3, so that CUDA is asked.
static void what_cuda_is_asked() {
    seamalloc::allocator simulated("sim:h200,capacity=1GiB");
    seamalloc::memory_resource mr(seamalloc::allocator::existing(simulated.handle(), 3));
    current_device = 1;
    void *address = mr.allocate_sync(MIB, 512);
    CHECK(waits == 1 && waited_for == cudaStreamLegacy && current_device == 1);
    mr.deallocate_sync(address, MIB, 512);
    CHECK(waits == 1);
    answer = cudaErrorLaunchFailure;
    auto failed = thrown_by<seamalloc::failure>([&] { (void)mr.allocate_sync(MIB, 512); });
    CHECK(failed.status() == SEAM_STATUS_DRIVER && failed.driver_status() == cudaErrorLaunchFailure);
    CHECK(contains(failed.what(), "played") && live(mr) == 0 && current_device == 1);
    answer = cudaSuccess;
    // Another thread's requests are in the same order as this one's.
    mr.deallocate(cudaStreamPerThread, mr.allocate(cudaStreamPerThread, MIB), MIB);
    CHECK(waits == 3 && waited_for == cudaStreamPerThread);
    // A graph is captured on the second stream: no event waits for it.
    captured = stream(0x200);
    mr.deallocate(stream(0x200), mr.allocate(stream(0x100), 4 * MIB), 4 * MIB);
    CHECK(live(mr) == 0 && waiting(mr) == 0 && waits == 3);
}

int main() {
    memory_comes_and_goes_in_the_order_of_streams();
    any_resource_takes_it();
    what_cuda_is_asked();
    std::puts("right");
}
