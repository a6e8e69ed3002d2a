// seamalloc in C++17: owners of allocators, memory and private pools, errors as exceptions, and a memory resource for CCCL.
//
// Header only, over seamalloc.h: link with -lseamalloc. docs/c-api.md has a page about both.
//
// - Sizes are bytes. Streams are `cudaStream_t` or `CUstream`, as in seamalloc.h; nullptr is the default stream.
// - What fails throws a `seamalloc::error`: `seamalloc::out_of_memory`, which is a `std::bad_alloc`, or
//   `seamalloc::failure`, which is a `std::exception`.
// - Destructors throw nothing; what they could not do is the last error of their thread (`seam_last_error_text`).
// - Any thread may call anything; one object of `block` or `pool` is for one thread at a time.

#pragma once

#include "seamalloc.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

// The memory resource is there with CCCL 3.1 or newer (CUDA 13.1) and the headers of CUDA's runtime. Define
// SEAMALLOC_WITHOUT_CCCL to leave it out, and what it includes. CCCL before 3.1 has other concepts of the same names.
#define SEAMALLOC_HAS_CCCL 0
#if !defined(SEAMALLOC_WITHOUT_CCCL) && defined(__has_include)
#if __has_include(<cuda/version>) && __has_include(<cuda/memory_resource>) && __has_include(<cuda_runtime_api.h>)
#include <cuda/version>
#if defined(CCCL_VERSION) && CCCL_VERSION >= 3001000
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <cuda_runtime_api.h>
#undef SEAMALLOC_HAS_CCCL
#define SEAMALLOC_HAS_CCCL 1
#endif
#endif
#endif

namespace seamalloc {

// Addresses are multiples of it, in bytes.
inline constexpr std::size_t alignment = 512;

// What a call failed with. Catch it by reference for all failures; `failure` and `out_of_memory` are its two kinds.
class error {
public:
    virtual ~error() = default;
    virtual const char *what() const noexcept = 0;

    seam_status status() const noexcept { return status_; }
    // The `CUresult` of the driver call behind it; 0 if it was none of a driver call.
    std::uint32_t driver_status() const noexcept { return driver_status_; }

protected:
    error(seam_status status, std::uint32_t driver_status, std::string text)
        : status_(status), driver_status_(driver_status), text_(std::make_shared<const std::string>(std::move(text))) {}
    error(const error &) = default;
    error &operator=(const error &) = default;

    const char *text() const noexcept { return text_->c_str(); }

private:
    seam_status status_;
    std::uint32_t driver_status_;
    // Shared, since to copy an exception must not fail.
    std::shared_ptr<const std::string> text_;
};

// Too little memory of the device. The text is a report of what is free where, and what would help.
class out_of_memory final : public error, public std::bad_alloc {
public:
    explicit out_of_memory(seam_status status, std::string text) : error(status, 0, std::move(text)) {}
    const char *what() const noexcept override { return text(); }
};

// Anything else.
class failure final : public error, public std::exception {
public:
    failure(seam_status status, std::uint32_t driver_status, std::string text)
        : error(status, driver_status, std::move(text)) {}
    const char *what() const noexcept override { return text(); }
};

// Throws what a function of seamalloc.h failed with, in this thread, just now.
inline void check(seam_status status) {
    if (status == SEAM_STATUS_OK) {
        return;
    }
    if (status == SEAM_STATUS_OUT_OF_MEMORY || status == SEAM_STATUS_REQUEST_TOO_LARGE) {
        throw out_of_memory(status, seam_last_error_text());
    }
    throw failure(status, seam_last_driver_status(), seam_last_error_text());
}

class block;
class growing;

namespace detail {

// What is destroyed with its last reference.
struct owned {
    seam_allocator handle = 0;
    // Of the CUDA device; -1 for others.
    int ordinal;
    bool destroys;

    owned(int number, bool is_ours) noexcept : ordinal(number), destroys(is_ours) {}
    owned(const owned &) = delete;
    owned &operator=(const owned &) = delete;
    ~owned() {
        if (destroys && handle != 0) {
            (void)seam_destroy(handle);
        }
    }
};

} // namespace detail

// A reference to an allocator of one device. Copies refer to the same one, and so do its blocks, pools and resources: it
// is destroyed with the last of them.
class allocator {
public:
    // A new one, as `seam_create`: of "cuda:0", with "strategy:stitch,memory_limit:80GiB".
    explicit allocator(const std::string &device, const std::string &options = std::string()) {
        // Before there is something to lose.
        owned_ = std::make_shared<detail::owned>(ordinal_of(device), true);
        check(seam_create(device.c_str(), options.c_str(), &owned_->handle));
    }

    // The one behind PyTorch and every other library of this process that takes its memory from seamalloc, with the
    // options in SEAMALLOC_CONF: `seam_plugged`. It lives as long as the process.
    static allocator plugged(int device) {
        const char *simulated = std::getenv("SEAMALLOC_DEVICE");
        bool is_cuda = simulated == nullptr || *simulated == '\0';
        auto found = std::make_shared<detail::owned>(is_cuda ? device : -1, false);
        check(seam_plugged(device, &found->handle));
        return allocator(std::move(found));
    }

    // One that seam_create made, on the CUDA device `ordinal` (-1 if on none). Whoever made it destroys it.
    static allocator existing(seam_allocator handle, int ordinal) {
        auto found = std::make_shared<detail::owned>(ordinal, false);
        found->handle = handle;
        return allocator(std::move(found));
    }

    // For the functions of seamalloc.h.
    seam_allocator handle() const noexcept { return owned_->handle; }
    // The CUDA device's number; -1 if it is a simulated one, or host memory.
    int ordinal() const noexcept { return owned_->ordinal; }

    // Memory for work on `stream`; of no bytes, a block without memory.
    block allocate(std::size_t size, seam_stream stream = nullptr) const;

    // An allocation of up to `capacity` bytes that grows in place, for work on `stream`. It has no memory yet.
    growing reserve(std::size_t capacity, seam_stream stream = nullptr) const;

    seam_stats stats() const {
        seam_stats found;
        found.size = sizeof found;
        check(seam_get_stats(handle(), &found));
        return found;
    }

    // The largest request that some stream could be given now.
    std::uint64_t largest_request() const {
        std::uint64_t bytes = 0;
        check(seam_largest_request(handle(), &bytes));
        return bytes;
    }

    // Limits what it may hold; `SEAM_NO_LIMIT` lifts the limit.
    void set_memory_limit(std::uint64_t bytes) const { check(seam_set_memory_limit(handle(), bytes)); }

    // Gives free memory back to the device until `bytes` were given back. Returns the bytes given back.
    std::uint64_t trim(std::uint64_t bytes) const {
        std::uint64_t given = 0;
        check(seam_trim(handle(), bytes, &given));
        return given;
    }

    // Gives free memory back until the bytes of the option `headroom` are free again. Returns the bytes given back.
    std::uint64_t keep_headroom() const {
        std::uint64_t given = 0;
        check(seam_keep_headroom(handle(), &given));
        return given;
    }

    // Gives back all free memory that can be. Returns the bytes given back.
    std::uint64_t empty_cache() const {
        std::uint64_t given = 0;
        check(seam_empty_cache(handle(), &given));
        return given;
    }

    // To be called before a stream is destroyed whose memory was allocated or used.
    void forget_stream(seam_stream stream) const { check(seam_forget_stream(handle(), stream)); }

    friend bool operator==(const allocator &a, const allocator &b) noexcept { return a.handle() == b.handle(); }
    friend bool operator!=(const allocator &a, const allocator &b) noexcept { return !(a == b); }

private:
    friend class block;
    friend class growing;
    friend class pool;

    explicit allocator(std::shared_ptr<detail::owned> found) : owned_(std::move(found)) {}

    static int ordinal_of(const std::string &device) {
        return device.compare(0, 5, "cuda:") == 0 ? std::atoi(device.c_str() + 5) : -1;
    }

    std::shared_ptr<detail::owned> owned_;
};

// Memory, freed in the order of its stream when the block ends. Keeps its allocator. Without memory when moved from.
class block {
public:
    block() noexcept = default;
    block(block &&other) noexcept
        : owner_(std::move(other.owner_)),
          address_(std::exchange(other.address_, nullptr)),
          size_(std::exchange(other.size_, 0)),
          stream_(std::exchange(other.stream_, nullptr)) {}
    block &operator=(block &&other) noexcept {
        block taken(std::move(other));
        std::swap(owner_, taken.owner_);
        std::swap(address_, taken.address_);
        std::swap(size_, taken.size_);
        std::swap(stream_, taken.stream_);
        return *this;
    }
    block(const block &) = delete;
    block &operator=(const block &) = delete;
    ~block() {
        if (address_ != nullptr) {
            (void)seam_free(owner_->handle, address_);
        }
    }

    void *address() const noexcept { return address_; }
    // As asked for.
    std::size_t size() const noexcept { return size_; }
    // The one that it was allocated for.
    seam_stream stream() const noexcept { return stream_; }
    explicit operator bool() const noexcept { return address_ != nullptr; }

    // Work on `stream` uses it: once freed, the memory waits for that stream too.
    void record_stream(seam_stream stream) const {
        if (address_ != nullptr) {
            check(seam_record_stream(owner_->handle, address_, stream));
        }
    }

    // Frees it now. It has no memory then, unless this throws.
    void free() {
        if (address_ != nullptr) {
            check(seam_free(owner_->handle, address_));
            (void)release();
        }
    }

    // Frees it now: the memory waits for `stream`, beside its own.
    void free_on(seam_stream stream) {
        if (address_ != nullptr) {
            check(seam_free_on(owner_->handle, address_, stream));
            (void)release();
        }
    }

    // The address, which the caller is to free (`seam_free`), while the allocator lives.
    void *release() noexcept {
        owner_.reset();
        size_ = 0;
        stream_ = nullptr;
        return std::exchange(address_, nullptr);
    }

private:
    friend class allocator;
    friend class pool;

    block(std::shared_ptr<detail::owned> owner, void *address, std::size_t size, seam_stream stream) noexcept
        : owner_(std::move(owner)), address_(address), size_(size), stream_(stream) {}

    std::shared_ptr<detail::owned> owner_;
    void *address_ = nullptr;
    std::size_t size_ = 0;
    seam_stream stream_ = nullptr;
};

inline block allocator::allocate(std::size_t size, seam_stream stream) const {
    void *address = nullptr;
    check(seam_malloc(handle(), size, stream, &address));
    return block(owned_, address, size, stream);
}

// An allocation that grows and shrinks at one address, freed in the order of its streams when it ends. Keeps its allocator.
// Without addresses when moved from.
class growing {
public:
    growing() noexcept = default;
    growing(growing &&other) noexcept
        : owner_(std::move(other.owner_)), address_(std::exchange(other.address_, nullptr)) {}
    growing &operator=(growing &&other) noexcept {
        growing taken(std::move(other));
        std::swap(owner_, taken.owner_);
        std::swap(address_, taken.address_);
        return *this;
    }
    growing(const growing &) = delete;
    growing &operator=(const growing &) = delete;
    ~growing() {
        if (address_ != nullptr) {
            (void)seam_free(owner_->handle, address_);
        }
    }

    // It never changes.
    void *address() const noexcept { return address_; }
    // In use, as last asked for.
    std::size_t size() const { return extent(0); }
    // With memory: up to here it grows without the device.
    std::size_t mapped() const { return extent(1); }
    // Reserved.
    std::size_t capacity() const { return extent(2); }
    explicit operator bool() const noexcept { return address_ != nullptr; }

    // At least the first `size` bytes can be used, and hold what they held. Throws without a change.
    void grow(std::size_t size) { check(seam_grow(handle(), address_, size)); }

    // Gives back memory behind the first `size` bytes.
    void shrink(std::size_t size) { check(seam_shrink(handle(), address_, size)); }

    // Work on `stream` uses it: what it gives back waits for that stream too.
    void record_stream(seam_stream stream) const { check(seam_record_stream(handle(), address_, stream)); }

    // The address, which the caller is to free (`seam_free`), while the allocator lives.
    void *release() noexcept {
        owner_.reset();
        return std::exchange(address_, nullptr);
    }

private:
    friend class allocator;
    friend class pool;

    growing(std::shared_ptr<detail::owned> owner, void *address) noexcept : owner_(std::move(owner)), address_(address) {}

    seam_allocator handle() const noexcept { return owner_ == nullptr ? 0 : owner_->handle; }

    std::size_t extent(int which) const {
        std::size_t found[3] = {0, 0, 0};
        if (address_ != nullptr) {
            check(seam_extent(handle(), address_, &found[0], &found[1], &found[2]));
        }
        return found[which];
    }

    std::shared_ptr<detail::owned> owner_;
    void *address_ = nullptr;
};

inline growing allocator::reserve(std::size_t capacity, seam_stream stream) const {
    void *address = nullptr;
    check(seam_reserve(handle(), capacity, stream, &address));
    return growing(owned_, address);
}

// A private pool: its memory serves only requests made for it, and its addresses stay mapped while anybody uses it, as a
// CUDA graph needs. One use of it, which ends with this.
class pool {
public:
    explicit pool(const allocator &of) : owner_(of.owned_) { check(seam_pool_create(of.handle(), &id_)); }
    pool(pool &&other) noexcept : owner_(std::move(other.owner_)), id_(std::exchange(other.id_, seam_pool{0, 0})) {}
    pool &operator=(pool &&other) noexcept {
        pool taken(std::move(other));
        std::swap(owner_, taken.owner_);
        std::swap(id_, taken.id_);
        return *this;
    }
    pool(const pool &) = delete;
    pool &operator=(const pool &) = delete;
    ~pool() {
        if (owner_ != nullptr) {
            (void)seam_pool_release(owner_->handle, id_);
        }
    }

    seam_pool id() const noexcept { return id_; }

    // Memory of the pool, whatever is routed where.
    block allocate(std::size_t size, seam_stream stream = nullptr) const {
        void *address = nullptr;
        check(seam_pool_malloc(owner_->handle, id_, size, stream, &address));
        return block(owner_, address, size, stream);
    }

    // One of the pool that grows in place.
    growing reserve(std::size_t capacity, seam_stream stream = nullptr) const {
        void *address = nullptr;
        check(seam_pool_reserve(owner_->handle, id_, capacity, stream, &address));
        return growing(owner_, address);
    }

    seam_pool_stats stats() const {
        seam_pool_stats found;
        found.size = sizeof found;
        check(seam_pool_get_stats(owner_->handle, id_, &found));
        return found;
    }

    // Requests that go to the pool as long as this lives, beside those of `pool::allocate`.
    class route {
    public:
        route(route &&other) noexcept : owner_(std::move(other.owner_)), id_(other.id_) {}
        route(const route &) = delete;
        route &operator=(const route &) = delete;
        ~route() {
            if (owner_ != nullptr) {
                (void)seam_pool_end(owner_->handle, id_);
            }
        }

    private:
        friend class pool;
        route(std::shared_ptr<detail::owned> owner, seam_pool id) noexcept : owner_(std::move(owner)), id_(id) {}

        std::shared_ptr<detail::owned> owner_;
        seam_pool id_;
    };

    // Routes what this thread requests. `flags` is 0 or `SEAM_POOL_CAPTURING`, begun before a capture and ended after it.
    [[nodiscard]] route route_thread(std::uint32_t flags = 0) const {
        check(seam_pool_begin_thread(owner_->handle, id_, flags));
        return route(owner_, id_);
    }

    // Routes what is requested on one stream.
    [[nodiscard]] route route_stream(seam_stream stream, std::uint32_t flags = 0) const {
        check(seam_pool_begin_streams(owner_->handle, id_, &stream, 1, flags));
        return route(owner_, id_);
    }

private:
    std::shared_ptr<detail::owned> owner_;
    seam_pool id_ = {0, 0};
};

#if SEAMALLOC_HAS_CCCL

// A memory resource of CCCL's: for `cuda::mr::any_resource` and what is built on it. Copies are one resource. Streams may
// be destroyed by whoever made them, any time after the last call that names them. The program links with CUDA's runtime.
//
// What is allocated synchronously (`allocate_sync`) has no pending use on any stream: the CPU waits for the device's
// default stream. With `cudaStreamPerThread`, memory is of the default stream, and the CPU waits for the thread's stream
// when it is deallocated.
class memory_resource {
public:
    explicit memory_resource(allocator of) noexcept : allocator_(std::move(of)) {}

    // For statistics, limits and the functions of seamalloc.h.
    const allocator &upstream() const noexcept { return allocator_; }

    [[nodiscard]] void *allocate(cuda::stream_ref stream, std::size_t size, std::size_t align = alignment) {
        must_be_aligned(align);
        seam_stream own = is_default(stream.get()) ? nullptr : stream.get();
        if (own != nullptr) {
            // Who made it may destroy it without a word.
            check(seam_set_borrowed(allocator_.handle(), own));
        }
        void *address = nullptr;
        check(seam_malloc(allocator_.handle(), size, own, &address));
        return address;
    }

    // The memory waits for `stream` and for the one that it was allocated for; where a graph is being captured on `stream`,
    // only for the latter. For what a graph uses there is `pool`.
    void deallocate(cuda::stream_ref stream, void *address, std::size_t, std::size_t = alignment) noexcept {
        seam_stream last = is_default(stream.get()) ? nullptr : stream.get();
        if (is_captured(stream.get())) {
            // It has no work yet, and may be gone when there could be an event for it.
            (void)seam_free(allocator_.handle(), address);
            return;
        }
        if (stream.get() == cudaStreamPerThread) {
            // Another thread may get the memory before this one's stream is done with it.
            (void)wait_for(stream.get());
        }
        // The second alone would give it to its own stream at once.
        (void)seam_record_stream(allocator_.handle(), address, last);
        (void)seam_free_under(allocator_.handle(), address, last);
    }

    [[nodiscard]] void *allocate_sync(std::size_t size, std::size_t align = alignment) {
        must_be_aligned(align);
        void *address = nullptr;
        check(seam_malloc(allocator_.handle(), size, nullptr, &address));
        // Memory of other streams comes behind waits of this one.
        cudaError_t waited = wait_for(cudaStreamLegacy);
        if (waited != cudaSuccess) {
            (void)seam_free(allocator_.handle(), address);
            throw failure(SEAM_STATUS_DRIVER, static_cast<std::uint32_t>(waited),
                          std::string("the default stream could not be waited for: ") + cudaGetErrorString(waited));
        }
        return address;
    }

    // No work uses the memory any more.
    void deallocate_sync(void *address, std::size_t, std::size_t = alignment) noexcept {
        (void)seam_free(allocator_.handle(), address);
    }

    friend bool operator==(const memory_resource &a, const memory_resource &b) noexcept {
        return a.allocator_ == b.allocator_;
    }
    friend bool operator!=(const memory_resource &a, const memory_resource &b) noexcept { return !(a == b); }
    friend void get_property(const memory_resource &, cuda::mr::device_accessible) noexcept {}

private:
    static bool is_default(cudaStream_t stream) noexcept {
        return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
    }

    bool is_captured(cudaStream_t stream) const noexcept {
        cudaStreamCaptureStatus answer = cudaStreamCaptureStatusNone;
        bool has_captures = allocator_.ordinal() >= 0 && stream != nullptr && stream != cudaStreamLegacy;
        return has_captures && cudaStreamIsCapturing(stream, &answer) == cudaSuccess
               && answer != cudaStreamCaptureStatusNone;
    }

    static void must_be_aligned(std::size_t align) {
        if (align > alignment || align == 0 || (align & (align - 1)) != 0) {
            throw failure(SEAM_STATUS_INVALID_ARGUMENT, 0,
                          "memory at a multiple of " + std::to_string(align)
                              + " cannot be had; expected a power of two of at most " + std::to_string(alignment));
        }
    }

    cudaError_t wait_for(cudaStream_t stream) const noexcept {
        if (allocator_.ordinal() < 0) {
            return cudaSuccess;
        }
        int current = 0;
        cudaError_t found = cudaGetDevice(&current);
        if (found == cudaSuccess) {
            found = cudaSetDevice(allocator_.ordinal());
        }
        if (found == cudaSuccess) {
            found = cudaStreamSynchronize(stream);
            cudaError_t back = cudaSetDevice(current);
            found = found == cudaSuccess ? back : found;
        }
        return found;
    }

    allocator allocator_;
};

static_assert(cuda::mr::resource_with<memory_resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::synchronous_resource_with<memory_resource, cuda::mr::device_accessible>);

#endif

} // namespace seamalloc
