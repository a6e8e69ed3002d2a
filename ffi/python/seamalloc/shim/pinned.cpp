// The allocator of page-locked memory.

#include "pinned.h"

#if SEAMALLOC_TORCH >= 209

#include "thread_end.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace seamalloc {

namespace {

// PyTorch registers its own allocator with priority 0.
constexpr uint8_t PRIORITY = 1;
// The pool of graphs whose capture PyTorch did not begin. No call reports the end of such graphs.
constexpr MempoolId FOR_EVER{0, 0};

// The deleter of every DataPtr. A destructor may call the deleter, so the deleter throws nothing.
void delete_pinned(void* pointer) {
  try {
    pinned_instance().free(pointer);
  } catch (const std::exception& error) {
    TORCH_WARN("seamalloc, page-locked memory: ", error.what());
  } catch (...) {
    TORCH_WARN("seamalloc: freeing page-locked memory failed");
  }
}

template <class To>
void copy_stat(To& to, const seam_stat& from) {
  to.current = int64_t(from.current);
  to.peak = int64_t(from.peak);
  to.allocated = int64_t(from.allocated);
  to.freed = int64_t(from.freed);
}

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
    // The query fails for the default stream while another stream is captured.
    (void)cudaGetLastError();
    return false;
  }
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

PinnedAllocator& pinned_instance() {
  // The allocator is never destroyed, since tensors are freed until the process ends.
  static PinnedAllocator* allocator = new PinnedAllocator;
  return *allocator;
}

void PinnedAllocator::install(const char* options) {
  options_ = options;
  const char* device = std::getenv("SEAMALLOC_DEVICE");
  simulated_ = device != nullptr && *device != '\0';
  before_ = at::getHostAllocator(c10::DeviceType::CUDA);
  at::setHostAllocator(c10::DeviceType::CUDA, this, PRIORITY);
  TORCH_CHECK(
      at::getHostAllocator(c10::DeviceType::CUDA) == this, "another library's allocator of page-locked memory comes first");
}

void PinnedAllocator::uninstall() {
  at::setHostAllocator(c10::DeviceType::CUDA, before_, PRIORITY);
}

seam_allocator PinnedAllocator::handle() {
  if (C10_UNLIKELY(opened() == 0)) {
    open();
  }
  return opened();
}

void PinnedAllocator::open() {
  std::lock_guard<std::mutex> guard(opening_);
  if (opened() != 0) {
    return;
  }
  std::string device = "host";
  if (!simulated_) {
    // As in PyTorch, the owner is a device that is in use already, so that no further device is opened.
    owner_ = c10::cuda::getDeviceIndexWithPrimaryContext().value_or(c10::cuda::current_device());
    device = "pinned:" + std::to_string(int(owner_));
  }
  seam_allocator found = 0;
  check(seam_create(device.c_str(), options_.c_str(), &found), "opening page-locked memory");
  // PyTorch lets every device use page-locked memory. The device of a copy is known only after the copy.
  for (DeviceIndex other = 0; !simulated_ && other < c10::cuda::device_count(); other++) {
    if (other != owner_ && seam_enable_peer_access(found, uint32_t(other)) != SEAM_STATUS_OK) {
      const std::string why = seam_last_error_text();
      (void)seam_destroy(found);
      TORCH_CHECK(false, "seamalloc: page-locked memory cannot be used by device ", int(other), ": ", why);
    }
  }
  handle_.store(found, std::memory_order_release);
}

DataPtr PinnedAllocator::allocate(size_t size) {
  const auto ptr_of = [](void* pointer) {
    return DataPtr{pointer, pointer, &delete_pinned, c10::Device(c10::DeviceType::CPU)};
  };
  if (size == 0) {
    return ptr_of(nullptr);
  }
  const seam_allocator handle = this->handle();
  if (C10_UNLIKELY(any_late_.load(std::memory_order_relaxed))) {
    free_late();
  }
  const bool is_capturing = is_capturing_.load(std::memory_order_relaxed);
  // This allocator does not report captures to the C library, which may have to ask CUDA for memory.
  std::optional<c10::cuda::CUDAStreamCaptureModeGuard> relaxed;
  if (C10_UNLIKELY(is_capturing && !simulated_)) {
    relaxed.emplace(cudaStreamCaptureModeRelaxed);
  }
  void* pointer = nullptr;
  const seam_status status = seam_host_malloc(handle, size, &pointer);
  TORCH_CHECK_WITH(
      OutOfMemoryError, status != SEAM_STATUS_OUT_OF_MEMORY && status != SEAM_STATUS_REQUEST_TOO_LARGE,
      "The machine is out of page-locked memory. Tried to allocate ", size, " bytes. seamalloc: ", seam_last_error_text());
  check(status, "allocating page-locked memory");
  if (C10_UNLIKELY(is_capturing)) {
    const c10::Stream stream = current_stream();
    std::lock_guard<std::mutex> guard(lock_);
    if (const MempoolId* pool = captured_by(stream)) {
      of_graphs_[pointer] = *pool;
      any_of_graphs_ = true;
    }
  }
  return ptr_of(pointer);
}

c10::DeleterFnPtr PinnedAllocator::raw_deleter() const {
  return &delete_pinned;
}

void PinnedAllocator::copy_data(void* to, const void* from, size_t count) const {
  std::memcpy(to, from, count);
}

c10::Stream PinnedAllocator::current_stream() const {
  if (simulated_) {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::DeviceType::CUDA, 0));
  }
  return c10::cuda::getCurrentCUDAStream(c10::cuda::current_device()).unwrap();
}

cudaStream_t PinnedAllocator::handle_of(c10::Stream stream) const {
  if (simulated_) {
    // PyTorch would call CUDA. On a simulated device the id of an ExternalStream is its handle.
    return reinterpret_cast<cudaStream_t>(stream.id());
  }
  return c10::cuda::CUDAStream(c10::cuda::CUDAStream::UNCHECKED, stream).stream();
}

const MempoolId* PinnedAllocator::captured_by(c10::Stream stream) {
  for (const auto& [pool, filter] : captures_) {
    if (filter(stream)) {
      return &pool;
    }
  }
  return nullptr;
}

bool PinnedAllocator::record_event(void* pointer, void* context, c10::Stream stream) {
  const seam_allocator handle = opened();
  size_t size = 0;
  // The context of a seamalloc allocation is its address. The context of another allocator's memory matches no block.
  void* block = nullptr;
  for (void* candidate : {context, pointer}) {
    if (handle != 0 && candidate != nullptr && seam_size_of(handle, candidate, &size) == SEAM_STATUS_OK) {
      block = candidate;
      break;
    }
  }
  if (block == nullptr) {
    // The memory is older than the installation, or belongs to the program.
    return before_ != nullptr && before_->record_event(pointer, context, stream);
  }
  const cudaStream_t used = handle_of(stream);
  const bool may_be_captured = is_capturing_.load();
  const bool is_others_capture = !simulated_ && is_captured(used);
  if (C10_UNLIKELY(may_be_captured || is_others_capture)) {
    std::lock_guard<std::mutex> guard(lock_);
    const MempoolId* pool = captured_by(stream);
    if (pool == nullptr && is_others_capture) {
      pool = &FOR_EVER;
    }
    if (pool != nullptr) {
      // Graphs of two pools end at different times, so the block is kept for good.
      const auto [found, is_new] = of_graphs_.emplace(block, *pool);
      if (!is_new && found->second != *pool) {
        found->second = FOR_EVER;
      }
      any_of_graphs_ = true;
      return true;
    }
  }
  if (!simulated_ && stream.device_index() != owner_) {
    other_streams_.use(block, {stream.device_index(), used});
    return true;
  }
  const seam_status status = seam_record_stream(handle, block, used);
  if (status == SEAM_STATUS_INVALID_STREAM) {
    // The stream is the default stream of the thread, which has no name in other threads. The block waits for the work
    // given to the stream so far.
    other_streams_.wait_for({stream.device_index(), used}, handle, owner_, block);
    return true;
  }
  check(status, "noting a use of page-locked memory");
  return true;
}

void PinnedAllocator::free(void* pointer) {
  if (pointer == nullptr) {
    return;
  }
  if (C10_UNLIKELY(any_of_graphs_.load())) {
    std::lock_guard<std::mutex> guard(lock_);
    const auto found = of_graphs_.find(pointer);
    if (found != of_graphs_.end()) {
      freed_of_graphs_.emplace_back(pointer, found->second);
      of_graphs_.erase(found);
      return;
    }
  }
  if (C10_UNLIKELY(is_capturing_.load())) {
    // An event recorded now might become part of the graph.
    std::lock_guard<std::mutex> guard(lock_);
    late_.push_back(pointer);
    any_late_ = true;
    return;
  }
  free_now(pointer);
}

void PinnedAllocator::free_now(void* pointer) {
  const seam_allocator handle = opened();
  if (C10_UNLIKELY(other_streams_.any())) {
    size_t size = 0;
    // CUDA must not be called in a forked child.
    const seam_status status = seam_size_of(handle, pointer, &size);
    if (failed_quietly(status)) {
      return;
    }
    check(status, "freeing page-locked memory");
    if (!other_streams_.wait_for_noted(handle, owner_, pointer)) {
      std::lock_guard<std::mutex> guard(lock_);
      late_.push_back(pointer);
      any_late_ = true;
      return;
    }
  }
  const seam_status status = seam_free(handle, pointer);
  if (!failed_quietly(status)) {
    check(status, "freeing page-locked memory");
  }
}

void PinnedAllocator::free_late() {
  std::vector<void*> late;
  {
    std::lock_guard<std::mutex> guard(lock_);
    if (!captures_.empty()) {
      return;
    }
    late.swap(late_);
    any_late_ = false;
  }
  for (void* pointer : late) {
    free_now(pointer);
  }
}

void PinnedAllocator::empty_cache() {
  if (before_ != nullptr && !simulated_) {
    before_->empty_cache();
  }
  if (opened() == 0) {
    return;
  }
  free_late();
  free_of_ended_pools();
  check(seam_empty_cache(opened(), nullptr), "emptying the cache of page-locked memory");
}

#if SEAMALLOC_TORCH >= 211
void PinnedAllocator::begin_allocate_to_pool(MempoolId pool, Filter filter) {
  std::lock_guard<std::mutex> guard(lock_);
  const auto same = [&](const auto& capture) { return capture.first == pool; };
  TORCH_CHECK(std::none_of(captures_.begin(), captures_.end(), same), "seamalloc: this pool is being captured to already");
  uses_[pool]++;
  captures_.emplace_back(pool, std::move(filter));
  is_capturing_ = true;
}

void PinnedAllocator::end_allocate_to_pool(MempoolId pool) {
  std::lock_guard<std::mutex> guard(lock_);
  const auto same = [&](const auto& capture) { return capture.first == pool; };
  const auto found = std::find_if(captures_.begin(), captures_.end(), same);
  TORCH_CHECK(found != captures_.end(), "seamalloc: this pool is not being captured to");
  captures_.erase(found);
  is_capturing_ = !captures_.empty();
}

void PinnedAllocator::release_pool(MempoolId pool) {
  {
    std::lock_guard<std::mutex> guard(lock_);
    const auto found = uses_.find(pool);
    TORCH_CHECK(found != uses_.end() && found->second > 0, "seamalloc: nobody uses this pool");
    if (--found->second > 0) {
      return;
    }
  }
  free_of_ended_pools();
}
#endif

void PinnedAllocator::free_of_ended_pools() {
  std::set<MempoolId> ended;
  {
    std::lock_guard<std::mutex> guard(lock_);
    // No wait is possible during a capture. The end of the next capture, or empty_cache(), retries.
    for (const auto& [pool, uses] : uses_) {
      if (uses == 0 && captures_.empty()) {
        ended.insert(pool);
      }
    }
    const auto is_of_ended = [&](const auto& entry) { return ended.count(entry.second) != 0; };
    if (std::none_of(of_graphs_.begin(), of_graphs_.end(), is_of_ended) &&
        std::none_of(freed_of_graphs_.begin(), freed_of_graphs_.end(), is_of_ended)) {
      for (const MempoolId& pool : ended) {
        uses_.erase(pool);
      }
      return;
    }
  }
  // A destroyed graph may still be running.
  for (DeviceIndex device = 0; !simulated_ && device < c10::cuda::device_count(); device++) {
    if (c10::cuda::hasPrimaryContext(device) && !synchronize_device(device)) {
      return;
    }
  }
  std::vector<void*> freed;
  {
    std::lock_guard<std::mutex> guard(lock_);
    for (const MempoolId& pool : ended) {
      // The pool may be in use again.
      const auto uses = uses_.find(pool);
      if (uses == uses_.end() || uses->second != 0) {
        continue;
      }
      uses_.erase(uses);
      for (auto entry = of_graphs_.begin(); entry != of_graphs_.end();) {
        entry = entry->second == pool ? of_graphs_.erase(entry) : std::next(entry);
      }
      for (auto entry = freed_of_graphs_.begin(); entry != freed_of_graphs_.end();) {
        if (entry->second == pool) {
          freed.push_back(entry->first);
          entry = freed_of_graphs_.erase(entry);
        } else {
          ++entry;
        }
      }
    }
    any_of_graphs_ = !of_graphs_.empty();
  }
  for (void* pointer : freed) {
    free_now(pointer);
  }
}

at::HostStats PinnedAllocator::get_stats() {
  at::HostStats found;
  if (opened() == 0) {
    return found;
  }
  seam_stats stats;
  stats.size = sizeof stats;
  check(seam_get_stats(opened(), &stats), "statistics of page-locked memory");
#if SEAMALLOC_TORCH >= 210
  copy_stat(found.active_requests, stats.active.all);
  copy_stat(found.active_bytes, stats.active_bytes.all);
  // The allocations and frees of the driver, without their peak.
  found.allocations.allocated = int64_t(stats.num_device_alloc);
  found.allocations.freed = int64_t(stats.num_device_free);
  found.allocations.current = found.allocations.peak = found.allocations.allocated - found.allocations.freed;
  copy_stat(found.allocated_bytes, stats.reserved_bytes.all);
#else
  copy_stat(found.allocation, stats.allocation.all);
  copy_stat(found.segment, stats.segment.all);
  copy_stat(found.allocated_bytes, stats.allocated_bytes.all);
  copy_stat(found.reserved_bytes, stats.reserved_bytes.all);
#endif
  found.num_host_alloc = int64_t(stats.num_device_alloc);
  found.num_host_free = int64_t(stats.num_device_free);
  // The time of all driver calls, since page-locked allocations are not counted apart.
  found.host_alloc_time.total = int64_t(stats.stall_total_ns / 1000);
  found.host_alloc_time.count = int64_t(stats.stalls);
  found.host_alloc_time.max = int64_t(stats.stall_worst_ns / 1000);
  return found;
}

void PinnedAllocator::reset_accumulated_stats() {
  if (opened() != 0) {
    check(seam_reset_accumulated_stats(opened()), "resetting statistics");
  }
}

void PinnedAllocator::reset_peak_stats() {
  if (opened() != 0) {
    check(seam_reset_peak_stats(opened()), "resetting statistics");
  }
}

}  // namespace seamalloc

#endif
