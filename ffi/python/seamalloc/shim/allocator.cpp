// Memory, limits and statistics.

#include "allocator.h"

#include <algorithm>
#include <sstream>

namespace seamalloc {

namespace {

// Requests of at least this size get other words in PyTorch's error message.
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

// Calls the functions that PyTorch's users have registered to free memory in need, CUDA IPC among them.
bool free_memory(const seam_memory_pressure*, void*) {
  bool freed = false;
  try {
    for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
      freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    }
  } catch (const std::exception& error) {
    TORCH_WARN("seamalloc: a callback that frees memory failed: ", error.what());
  } catch (...) {
    TORCH_WARN("seamalloc: a callback that frees memory failed");
  }
  return freed;
}

// The deleter of every DataPtr. A destructor may call the deleter, so the deleter throws nothing.
void delete_pointer(void* pointer) {
  try {
    instance().raw_delete(pointer);
  } catch (const std::exception& error) {
    TORCH_WARN("seamalloc: ", error.what());
  } catch (...) {
    TORCH_WARN("seamalloc: freeing failed");
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
  // The allocator is never destroyed, since tensors are freed until the process ends.
  static Allocator* allocator = new Allocator;
  return *allocator;
}

Device& Allocator::device_at(DeviceIndex device) {
  TORCH_CHECK(device >= 0 && size_t(device) < MAX_DEVICES, "seamalloc: ", int(device), " is no device");
  return devices_.all[device];
}

seam_allocator Allocator::handle_for(DeviceIndex device) {
  const seam_allocator handle = device_at(device).opened();
  return C10_LIKELY(handle != 0) ? handle : open(device);
}

seam_allocator Allocator::open(DeviceIndex device) {
  const auto on_open = [](seam_allocator handle) {
    check(seam_on_memory_pressure(handle, free_memory, nullptr, nullptr), "opening the device");
  };
  const auto on_opened = [this, device] {
    update_observer(device);
    // The handle is public now. A fraction that the program sets from here on goes to the C library directly.
    const Device& opened = devices_.all[device];
    const double fraction = opened.fraction.load();
    if (fraction >= 0) {
      check(seam_set_memory_fraction(opened.opened(), fraction), "setting the memory fraction");
    }
  };
  return devices_.open(device, on_open, on_opened);
}

void* Allocator::malloc(size_t size, DeviceIndex device, cudaStream_t stream) {
  if (C10_UNLIKELY(late_frees_.any())) {
    free_late();
  }
  seam_allocator handle = handle_for(device);
  if (C10_LIKELY(!devices_.simulated)) {
    pool_streams_.announce(handle, device);
  }
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
      // Later calls may replace the text of the error.
      const std::string report = seam_last_error_text();
      pointer = malloc_from_pools_used_on_oom(size, device, stream);
      if (pointer == nullptr) {
        throw_out_of_memory(size, device, report);
      }
    } else {
      check(status, "allocating");
    }
  }
  if (C10_UNLIKELY(is_profiled())) {
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

void Allocator::throw_out_of_memory(size_t size, DeviceIndex device, const std::string& report) {
  const seam_allocator handle = handle_for(device);
  const seam_stats stats = stats_of(handle);
  uint64_t free = 0, total = 0;
  double fraction = 1;
  // If these calls fail, the report lacks their figures and is otherwise complete.
  (void)seam_memory_info(handle, &free, &total);
  (void)seam_get_memory_fraction(handle, &fraction);
  const uint64_t allowed = fraction < 1 ? uint64_t(fraction * double(total)) : total;
#if SEAMALLOC_TORCH >= 212
  // PyTorch calls a refusal a rejection if the option `throw_on_cudamalloc_oom` makes PyTorch check the limit before it
  // asks the device. seamalloc always checks the limit first.
  const uint64_t reserved = uint64_t(stats.reserved_bytes.all.current);
  if (fraction < 1 && (size > allowed || reserved > allowed - size)) {
    devices_.all[device].rejections++;
    for (const auto& observer : rejection_observers_.all()) {
      observer(device, size, reserved, total);
    }
  }
#endif
  for (const auto& observer : oom_observers_.all()) {
    observer(device, size, allowed, free);
  }
  c10::reportOutOfMemoryToProfiler(
      int64_t(size), stats.allocated_bytes.all.current, stats.reserved_bytes.all.current,
      c10::Device(c10::DeviceType::CUDA, device));
  // The message begins with PyTorch's words, since programs search for them.
  TORCH_CHECK_WITH(
      OutOfMemoryError, size < EXABYTE, "CUDA out of memory. Tried to allocate more than 1EB memory. ", report);
  const std::string capacity =
      total == 0 ? "" : " has a total capacity of " + in_units(total) + " of which " + in_units(free) + " is free";
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", in_units(size), ". GPU ", int(device),
      capacity, ". seamalloc: ", report);
}

DataPtr Allocator::allocate(size_t size) {
  const DeviceIndex device = devices_.current();
  void* pointer = size == 0 ? nullptr : malloc(size, device, stream_for_request(device));
  return {pointer, pointer, &delete_pointer, c10::Device(c10::DeviceType::CUDA, device)};
}

c10::DeleterFnPtr Allocator::raw_deleter() const {
  return &delete_pointer;
}

void Allocator::copy_data(void* to, const void* from, size_t count) const {
  C10_CUDA_CHECK(cudaMemcpy(to, from, count, cudaMemcpyKind::cudaMemcpyDeviceToDevice));
}

void* Allocator::raw_alloc(size_t size) {
  if (size == 0) {
    return nullptr;
  }
  const DeviceIndex device = devices_.current();
  return malloc(size, device, stream_for_request(device));
}

void* Allocator::raw_alloc_with_stream(size_t size, cudaStream_t stream) {
  return size == 0 ? nullptr : malloc(size, devices_.current(), stream);
}

cudaStream_t Allocator::stream_for_request(DeviceIndex device) {
  const CurrentStream current = devices_.current_stream(device);
  if (C10_UNLIKELY(current.is_external)) {
    check(seam_set_borrowed(handle_for(device), current.stream), "using a stream that others own");
  }
  return current.stream;
}

seam_status Allocator::free(void* pointer) {
  DeviceIndex owner = NO_DEVICE;
  const seam_status status = find_owner(pointer, owner);
  return C10_LIKELY(status == SEAM_STATUS_OK) ? free_under(pointer, owner, devices_.current_stream(owner).stream) : status;
}

// Programs free memory that another stream uses without telling the allocator, while that stream is the current one.
// PyTorch's own allocator allows such frees, since a stream's memory stays with the stream that it was allocated for.
seam_status Allocator::free_under(void* pointer, DeviceIndex owner, cudaStream_t stream) {
  const seam_allocator handle = handle_for(owner);
  if (C10_UNLIKELY(other_streams_.any())) {
    size_t size = 0;
    // CUDA must not be called in a forked child or within a callback of the C library.
    const seam_status status = seam_size_of(handle, pointer, &size);
    if (status != SEAM_STATUS_OK) {
      return status;
    }
    if (!other_streams_.wait_for_noted(handle, owner, pointer)) {
      late_frees_.add({pointer, {{owner, stream}}});
      return SEAM_STATUS_OK;
    }
  }
  seam_status status;
  if (C10_LIKELY(!recording_.is_on.load(std::memory_order_relaxed))) {
    status = seam_free_under(handle, pointer, stream);
  } else {
    ContextScope scope(recording_.gather(RecordContext::ALL));
    status = seam_free_under(handle, pointer, stream);
  }
  if (C10_LIKELY(status == SEAM_STATUS_OK)) {
    return status;
  }
  if (status == SEAM_STATUS_INVALID_STREAM) {
    // The current stream is the default stream of the thread, which has no name in other threads.
    other_streams_.wait_for({owner, stream}, handle, owner, pointer);
    status = seam_free(handle, pointer);
  } else if (stream_may_have_ended(status) && synchronize_device(owner)) {
    // The wait for the device includes the work of the current stream.
    status = seam_free(handle, pointer);
  }
  return status;
}

// Most programs use one device, so the C library need not be asked for the owner.
seam_status Allocator::find_owner(void* pointer, DeviceIndex& owner) {
  owner = devices_.only();
  if (C10_LIKELY(owner != NO_DEVICE)) {
    return SEAM_STATUS_OK;
  }
  int device = -1;
  const seam_status status = seam_plugged_owner(pointer, &device);
  TORCH_CHECK(
      status != SEAM_STATUS_OK || device >= 0, "seamalloc: no live allocation starts at ", pointer,
      ": freed twice, or of another allocator");
  owner = DeviceIndex(device);
  return status;
}

DeviceIndex Allocator::owner_of(void* pointer) {
  DeviceIndex owner = NO_DEVICE;
  check(find_owner(pointer, owner), "looking for an allocation");
  return owner;
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
  DeviceIndex owner = NO_DEVICE;
  if (C10_UNLIKELY(is_profiled()) && find_owner(pointer, owner) == SEAM_STATUS_OK &&
      seam_size_of(handle_for(owner), pointer, &size) != SEAM_STATUS_OK) {
    // `free` reports the reason.
    size = 0;
  }
  const seam_status status = free(pointer);
  if (failed_quietly(status)) {
    return;
  }
  if (status == SEAM_STATUS_REENTRANT) {
    // The allocator of a MemPool may drop a tensor while it gives or takes a segment.
    LateFree late{pointer, {}};
    for (DeviceIndex device : devices_.opened()) {
      late.current.push_back({device, devices_.current_stream(device).stream});
    }
    late_frees_.add(std::move(late));
    return;
  }
  check(status, "freeing");
  if (C10_UNLIKELY(size != 0)) {
    report_to_profiler(handle_for(owner), pointer, -int64_t(size), owner);
  }
}

void Allocator::free_late() {
  for (const LateFree& late : late_frees_.take()) {
    try {
      DeviceIndex owner = NO_DEVICE;
      seam_status status = find_owner(late.pointer, owner);
      for (const StreamOfDevice& current : late.current) {
        if (status == SEAM_STATUS_OK && current.device == owner) {
          status = free_under(late.pointer, owner, current.stream);
        }
      }
      if (status == SEAM_STATUS_REENTRANT) {
        late_frees_.add(late);
      } else if (!failed_quietly(status)) {
        check(status, "freeing");
      }
    } catch (const std::exception& error) {
      TORCH_WARN("seamalloc: ", error.what());
    }
  }
}

// The profiler's state is a thread-local variable.
bool Allocator::is_profiled() {
  return !thread_marks().has_ended && c10::memoryProfilingEnabled();
}

void Allocator::init(int) {
  initialized_.store(true);
}

bool Allocator::initialized() {
  return initialized_.load();
}

// A query does not open an unused device, since opening would create a context there.
double Allocator::getMemoryFraction(DeviceIndex index) {
  const Device& device = device_at(index);
  double fraction = device.fraction.load();
  if (device.opened() != 0) {
    check(seam_get_memory_fraction(device.opened(), &fraction), "asking for the memory fraction");
  } else if (fraction < 0) {
    check(seam_plugged_memory_fraction(&fraction), "asking for the memory fraction");
  }
  return fraction;
}

void Allocator::setMemoryFraction(double fraction, DeviceIndex index) {
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction: ", fraction, ". Please set within [0, 1].");
  Device& device = device_at(index);
  device.fraction.store(fraction);
  if (device.opened() != 0) {
    check(seam_set_memory_fraction(device.opened(), fraction), "setting the memory fraction");
  }
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
  if (late_frees_.any()) {
    free_late();
  }
  ContextScope scope(recording_.gather(RecordContext::ALL));
  for (size_t index = 0; index < devices_.count(); index++) {
    Device& device = devices_.all[index];
    if (device.opened() == 0) {
      device.idle_empties++;
    } else {
      check(seam_empty_cache(device.opened(), nullptr), "emptying the cache");
    }
  }
}

void Allocator::enable(bool value) {
  TORCH_CHECK_NOT_IMPLEMENTED(value, "seamalloc cannot be switched off once it is PyTorch's allocator");
}

bool Allocator::isEnabled() const {
  return true;
}

void Allocator::cacheInfo(DeviceIndex device, size_t* largest) {
  const seam_allocator handle = device_at(device).opened();
  uint64_t found = 0;
  if (*largest == 0) {
    // As in PyTorch, 0 includes the memory that the device has free.
    check(seam_largest_request(handle != 0 ? handle : handle_for(device), &found), "looking for the largest request");
  } else if (handle != 0) {
    check(seam_largest_free(handle, &found), "looking for the largest block");
  }
  *largest = std::max(*largest, size_t(found));
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
  // As in PyTorch, memory of other allocators is not ordered by streams here.
  if (data.get() == nullptr || data.get_deleter() != &delete_pointer) {
    return;
  }
  const DeviceIndex device = data.device().index();
  if (stream.device_index() != device && !devices_.simulated) {
    other_streams_.use(data.get(), {stream.device_index(), stream.stream()});
    return;
  }
  check(seam_record_stream(handle_for(device), data.get(), stream.stream()), "recording a stream");
}

c10::CachingDeviceAllocator::DeviceStats Allocator::getDeviceStats(DeviceIndex index) {
  const Device& device = device_at(index);
  c10::CachingDeviceAllocator::DeviceStats to;
  // PyTorch's value for no limit.
  to.max_split_size = -1;
  // PyTorch counts the calls for devices that were never used, too.
  const int64_t idle_empties = device.idle_empties.load();
  if (device.opened() == 0) {
    to.num_sync_all_streams = idle_empties;
    return to;
  }
  const seam_stats from = stats_of(device.opened());
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
  to.num_sync_all_streams = int64_t(from.num_sync_all_streams) + idle_empties;
  to.num_device_alloc = int64_t(from.num_device_alloc);
  to.num_device_free = int64_t(from.num_device_free);
#if SEAMALLOC_TORCH >= 212
  to.num_oom_rejections = device.rejections.load();
#endif
  return to;
}

void Allocator::resetAccumulatedStats(DeviceIndex index) {
  Device& device = device_at(index);
  device.rejections = 0;
  device.idle_empties = 0;
  if (device.opened() != 0) {
    check(seam_reset_accumulated_stats(device.opened()), "resetting statistics");
  }
}

void Allocator::resetPeakStats(DeviceIndex index) {
  const Device& device = device_at(index);
  if (device.opened() != 0) {
    check(seam_reset_peak_stats(device.opened()), "resetting statistics");
  }
}

#if SEAMALLOC_TORCH >= 210
std::vector<StreamSegmentSize> Allocator::getExpandableSegmentSizes(DeviceIndex) {
  // Segments belong to no stream in seamalloc.
  return {};
}
#endif

void Allocator::attachOutOfMemoryObserver(OutOfMemoryObserver observer) {
  oom_observers_.attach(std::move(observer));
}

#if SEAMALLOC_TORCH >= 212
void Allocator::attachOomRejectionObserver(OomRejectionObserver observer) {
  rejection_observers_.attach(std::move(observer));
}
#endif

void Allocator::enablePeerAccess(DeviceIndex device, DeviceIndex peer) {
  // `device` gets access to the memory of `peer`. For seamalloc's memory the mappings change. For memory that other
  // libraries allocate on `peer`, CUDA enables access between the contexts.
  if (!devices_.simulated) {
    c10::cuda::CUDAGuard guard(device);
    const cudaError_t enabled = cudaDeviceEnablePeerAccess(peer, 0);
    if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
      // Otherwise the error stays the runtime's last error.
      (void)cudaGetLastError();
    } else {
      C10_CUDA_CHECK(enabled);
    }
  }
  check(seam_enable_peer_access(handle_for(peer), uint32_t(device)), "enabling peer access");
}

cudaError_t Allocator::memcpyAsync(
    void* to, int to_device, const void* from, int from_device, size_t count, cudaStream_t stream, bool peers) {
  if (peers || to_device == from_device) {
    return cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream);
  }
  // The plain call refuses mapped memory of a device without peer access.
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, count, stream);
}

std::string Allocator::name() {
  return "seamalloc";
}

}  // namespace seamalloc
