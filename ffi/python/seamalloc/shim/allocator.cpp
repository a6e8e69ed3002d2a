// Memory, limits and statistics.

#include "allocator.h"

#include <algorithm>
#include <sstream>

namespace seamalloc {

namespace {

// PyTorch words requests from here on differently.
constexpr size_t EXABYTE = size_t(1) << 60;

std::string in_units(size_t bytes) {
  std::ostringstream text;
  text.precision(2);
  text.setf(std::ios::fixed);
  if (bytes < (size_t(1) << 20)) {
    text << double(bytes) / 1024 << " KiB";
  } else if (bytes < (size_t(1) << 30)) {
    text << double(bytes) / (1 << 20) << " MiB";
  } else {
    text << double(bytes) / (1 << 30) << " GiB";
  }
  return text.str();
}

// What PyTorch's users have registered to free memory in need, CUDA IPC among them.
bool free_memory(const seam_memory_pressure*, void*) {
  bool freed = false;
  try {
    for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
      freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    }
  } catch (const std::exception& error) {
    TORCH_WARN("seamalloc: a callback that frees memory failed: ", error.what());
  }
  return freed;
}

// The deleter of every DataPtr. It may run in a destructor, so it throws nothing.
void delete_pointer(void* pointer) {
  try {
    instance().raw_delete(pointer);
  } catch (const std::exception& error) {
    TORCH_WARN("seamalloc: ", error.what());
  }
}

template <class To, class From>
void copy_stat(To& to, const From& from) {
  to.current = int64_t(from.current);
  to.peak = int64_t(from.peak);
  to.allocated = int64_t(from.allocated);
  to.freed = int64_t(from.freed);
}

template <class To>
void copy_stats(To& to, const seam_stat_by_pool& from) {
  copy_stat(to[0], from.all);
  copy_stat(to[1], from.small_pool);
  copy_stat(to[2], from.large_pool);
}

seam_stats stats_of(seam_allocator handle) {
  seam_stats stats;
  stats.size = sizeof stats;
  check(seam_get_stats(handle, &stats), "statistics");
  return stats;
}

}  // namespace

Allocator& instance() {
  // Tensors are freed until the process ends: it is never destroyed.
  static Allocator* allocator = new Allocator;
  return *allocator;
}

seam_allocator Allocator::handle_for(DeviceIndex device) {
  TORCH_CHECK(device >= 0 && size_t(device) < MAX_DEVICES, "seamalloc: ", int(device), " is no device");
  const seam_allocator handle = devices_.all[device].opened();
  return C10_LIKELY(handle != 0) ? handle : open(device);
}

seam_allocator Allocator::open(DeviceIndex device) {
  const auto on_open = [](seam_allocator handle) {
    check(seam_on_memory_pressure(handle, free_memory, nullptr, nullptr), "opening the device");
  };
  return devices_.open(device, on_open, [this, device] { update_observer(device); });
}

void* Allocator::malloc(size_t size, DeviceIndex device, cudaStream_t stream) {
  seam_allocator handle = handle_for(device);
  void* pointer = nullptr;
  seam_status status;
  if (C10_LIKELY(!recording_.is_on.load(std::memory_order_relaxed))) {
    status = seam_malloc(handle, size, stream, &pointer);
  } else {
    ContextScope scope(recording_.gather(RecordContext::STATE));
    status = seam_malloc(handle, size, stream, &pointer);
  }
  if (C10_UNLIKELY(status != SEAM_STATUS_OK)) {
    if (status == SEAM_STATUS_OUT_OF_MEMORY || status == SEAM_STATUS_REQUEST_TOO_LARGE) {
      pointer = malloc_from_pools_used_on_oom(size, device, stream);
      if (pointer == nullptr) {
        throw_out_of_memory(size, device);
      }
    } else {
      check(status, "allocating");
    }
  }
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    size_t rounded = 0;
    check(seam_size_of(handle, pointer, &rounded), "allocating");
    report_to_profiler(handle, pointer, int64_t(rounded), device);
  }
  const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(trace != nullptr)) {
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
  }
  return pointer;
}

void Allocator::report_to_profiler(seam_allocator handle, void* pointer, int64_t bytes, DeviceIndex device) {
  const seam_stats stats = stats_of(handle);
  c10::reportMemoryUsageToProfiler(
      pointer, bytes, stats.allocated_bytes.all.current, stats.reserved_bytes.all.current,
      c10::Device(c10::DeviceType::CUDA, device));
}

void Allocator::throw_out_of_memory(size_t size, DeviceIndex device) {
  // What the observers do may fail too.
  const std::string report = seam_last_error_text();
  size_t free = 0, total = 0;
  if (!devices_.simulated) {
    c10::cuda::CUDAGuard guard(device);
    C10_CUDA_IGNORE_ERROR(cudaMemGetInfo(&free, &total));
  }
  for (const auto& observer : oom_observers_.all()) {
    observer(device, size, total, free);
  }
  const seam_stats stats = stats_of(handle_for(device));
  c10::reportOutOfMemoryToProfiler(
      int64_t(size), stats.allocated_bytes.all.current, stats.reserved_bytes.all.current,
      c10::Device(c10::DeviceType::CUDA, device));
  // PyTorch's words first: programs look for them.
  TORCH_CHECK_WITH(
      OutOfMemoryError, size < EXABYTE, "CUDA out of memory. Tried to allocate more than 1EB memory. ", report);
  const std::string capacity =
      devices_.simulated ? "" : " has a total capacity of " + in_units(total) + " of which " + in_units(free) + " is free";
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", in_units(size), ". GPU ", int(device),
      capacity, ". seamalloc: ", report);
}

DataPtr Allocator::allocate(size_t size) {
  const DeviceIndex device = devices_.current();
  void* pointer = size == 0 ? nullptr : malloc(size, device, devices_.current_stream(device));
  return {pointer, pointer, &delete_pointer, c10::Device(c10::DeviceType::CUDA, device)};
}

c10::DeleterFnPtr Allocator::raw_deleter() const {
  return &delete_pointer;
}

void Allocator::copy_data(void* to, const void* from, size_t count) const {
  C10_CUDA_CHECK(cudaMemcpy(to, from, count, cudaMemcpyKind::cudaMemcpyDeviceToDevice));
}

void* Allocator::raw_alloc(size_t size) {
  return size == 0 ? nullptr : raw_alloc_with_stream(size, devices_.current_stream(devices_.current()));
}

void* Allocator::raw_alloc_with_stream(size_t size, cudaStream_t stream) {
  return size == 0 ? nullptr : malloc(size, devices_.current(), stream);
}

seam_status Allocator::free(void* pointer) {
  const DeviceIndex owner = owner_of(pointer);
  const seam_allocator handle = handle_for(owner);
  // PyTorch's own allocator keeps memory to the stream that it was allocated for, so programs free what another stream uses
  // without a word, while that is the current one.
  const cudaStream_t stream = devices_.current_stream(owner);
  if (recording_.is_on.load(std::memory_order_relaxed)) {
    ContextScope scope(recording_.gather(RecordContext::ALL));
    return seam_free_under(handle, pointer, stream);
  }
  return seam_free_under(handle, pointer, stream);
}

// Most programs use one device, which is not asked.
DeviceIndex Allocator::owner_of(void* pointer) {
  const DeviceIndex only = devices_.only();
  if (C10_LIKELY(only != NO_DEVICE)) {
    return only;
  }
  DeviceIndex last = NO_DEVICE;
  for (DeviceIndex device : devices_.opened()) {
    last = device;
    size_t size = 0;
    if (seam_size_of(handle_for(device), pointer, &size) == SEAM_STATUS_OK) {
      break;
    }
  }
  return last;
}

void Allocator::raw_delete(void* pointer) {
  if (pointer == nullptr) {
    return;
  }
  const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(trace != nullptr)) {
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
  }
  size_t size = 0;
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    check(seam_size_of(handle_for(owner_of(pointer)), pointer, &size), "freeing");
  }
  const seam_status status = free(pointer);
  // A forked child drops its copies of the parent's tensors, which are no memory of its own.
  if (status == SEAM_STATUS_FORKED || cuda_deinitialized(status)) {
    return;
  }
  check(status, "freeing");
  if (C10_UNLIKELY(size != 0)) {
    const DeviceIndex device = devices_.current();
    report_to_profiler(handle_for(device), pointer, -int64_t(size), device);
  }
}

void Allocator::init(int) {
  initialized_.store(true);
}

bool Allocator::initialized() {
  return initialized_.load();
}

double Allocator::getMemoryFraction(DeviceIndex device) {
  double fraction = 1;
  check(seam_get_memory_fraction(handle_for(device), &fraction), "asking for the memory fraction");
  return fraction;
}

void Allocator::setMemoryFraction(double fraction, DeviceIndex device) {
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction: ", fraction, ". Please set within [0, 1].");
  check(seam_set_memory_fraction(handle_for(device), fraction), "setting the memory fraction");
}

#if SEAMALLOC_TORCH >= 208
void Allocator::emptyCache(MempoolId pool) {
  if (pool != MempoolId{0, 0}) {
    for (DeviceIndex device : devices_.opened()) {
      empty_pool(device, pool);
    }
    return;
  }
#else
void Allocator::emptyCache() {
#endif
  ContextScope scope(recording_.gather(RecordContext::ALL));
  for (DeviceIndex device : devices_.opened()) {
    check(seam_empty_cache(handle_for(device), nullptr), "emptying the cache");
  }
}

void Allocator::enable(bool value) {
  TORCH_CHECK_NOT_IMPLEMENTED(value, "seamalloc cannot be switched off once it is PyTorch's allocator");
}

bool Allocator::isEnabled() const {
  return true;
}

void Allocator::cacheInfo(DeviceIndex device, size_t* largest) {
  uint64_t cached = 0;
  check(seam_largest_free(handle_for(device), &cached), "looking for the largest block");
  size_t free = 0, total = 0;
  // As in PyTorch, 0 asks for the device's own memory too; here one request can have both, stitched.
  if (*largest == 0 && !devices_.simulated) {
    c10::cuda::CUDAGuard guard(device);
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  }
  *largest = std::max(*largest, size_t(cached) + free);
}

void* Allocator::getBaseAllocation(void* pointer, size_t* size) {
  size_t rounded = 0;
  check(seam_size_of(handle_for(owner_of(pointer)), pointer, &rounded), "looking for an allocation");
  if (size != nullptr) {
    *size = rounded;
  }
  return pointer;
}

void Allocator::recordStream(const DataPtr& data, c10::cuda::CUDAStream stream) {
  // Memory that came from elsewhere is not ordered by streams here, as in PyTorch.
  if (data.get() == nullptr || data.get_deleter() != &delete_pointer) {
    return;
  }
  check(seam_record_stream(handle_for(data.device().index()), data.get(), stream.stream()), "recording a stream");
}

c10::CachingDeviceAllocator::DeviceStats Allocator::getDeviceStats(DeviceIndex device) {
  const seam_stats from = stats_of(handle_for(device));
  c10::CachingDeviceAllocator::DeviceStats to;
  copy_stats(to.allocation, from.allocation);
  copy_stats(to.segment, from.segment);
  copy_stats(to.active, from.active);
  copy_stats(to.inactive_split, from.inactive_split);
  copy_stats(to.allocated_bytes, from.allocated_bytes);
  copy_stats(to.reserved_bytes, from.reserved_bytes);
  copy_stats(to.active_bytes, from.active_bytes);
  copy_stats(to.inactive_split_bytes, from.inactive_split_bytes);
  copy_stats(to.requested_bytes, from.requested_bytes);
  copy_stat(to.oversize_allocations, from.oversize_allocations);
  copy_stat(to.oversize_segments, from.oversize_segments);
  to.num_alloc_retries = int64_t(from.num_alloc_retries);
  to.num_ooms = int64_t(from.num_ooms);
  to.num_sync_all_streams = int64_t(from.num_sync_all_streams);
  to.num_device_alloc = int64_t(from.num_device_alloc);
  to.num_device_free = int64_t(from.num_device_free);
  // PyTorch's value for no limit.
  to.max_split_size = -1;
  return to;
}

void Allocator::resetAccumulatedStats(DeviceIndex device) {
  check(seam_reset_accumulated_stats(handle_for(device)), "resetting statistics");
}

void Allocator::resetPeakStats(DeviceIndex device) {
  check(seam_reset_peak_stats(handle_for(device)), "resetting statistics");
}

#if SEAMALLOC_TORCH >= 210
std::vector<StreamSegmentSize> Allocator::getExpandableSegmentSizes(DeviceIndex) {
  // Segments belong to no stream here.
  return {};
}
#endif

void Allocator::attachOutOfMemoryObserver(OutOfMemoryObserver observer) {
  oom_observers_.attach(std::move(observer));
}

void Allocator::enablePeerAccess(DeviceIndex device, DeviceIndex peer) {
  // The first is to use the memory of the second.
  check(seam_enable_peer_access(handle_for(peer), uint32_t(device)), "enabling peer access");
}

cudaError_t Allocator::memcpyAsync(
    void* to, int to_device, const void* from, int from_device, size_t count, cudaStream_t stream, bool peers) {
  if (peers || to_device == from_device) {
    return cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream);
  }
  // The plain call refuses mapped memory of a device that is no peer.
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, count, stream);
}

std::string Allocator::name() {
  return "seamalloc";
}

}  // namespace seamalloc
