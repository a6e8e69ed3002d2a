// Tensors that one process shares with another: CUDA IPC.

#include "shared_memory.h"

#include "allocator.h"

namespace seamalloc {

ShareableHandle Allocator::shareIpcHandle(void* pointer) {
  std::string handle(1024, '\0');
  size_t length = 0;
  uint64_t offset = 0;
  seam_status status;
  while ((status = seam_share(handle_for(owner_of(pointer)), pointer, handle.data(), handle.size(), &length, &offset)) ==
         SEAM_STATUS_BUFFER_TOO_SMALL) {
    handle.resize(length);
  }
  check(status, "sharing a tensor with other processes");
  handle.resize(length);
  return {ptrdiff_t(offset), std::move(handle)};
}

std::shared_ptr<void> Allocator::getIpcDevPtr(std::string handle) {
  const DeviceIndex device = devices_.current();
  return shared_memory_.open(device, handle_for(device), handle);
}

std::shared_ptr<void> SharedMemory::open(DeviceIndex device, seam_allocator allocator, const std::string& handle) {
  const Key key{device, handle};
  std::lock_guard<std::mutex> guard(lock_);
  std::weak_ptr<void>& known = open_[key];
  if (std::shared_ptr<void> opened = known.lock()) {
    return opened;
  }
  void* address = nullptr;
  const seam_status status = seam_open_shared(allocator, handle.data(), handle.size(), &address);
  if (status != SEAM_STATUS_OK) {
    open_.erase(key);
    check(status, "opening a tensor of another process (which must use seamalloc too)");
  }
  std::shared_ptr<void> opened(address, [this, key, allocator](void* pointer) { close(key, allocator, pointer); });
  known = opened;
  return opened;
}

// Destructors call this method, so it throws nothing.
void SharedMemory::close(const Key& key, seam_allocator allocator, void* pointer) {
  const seam_status status = seam_close_shared(allocator, pointer);
  // In a forked child, a thread that does not exist there may hold the lock.
  if (status == SEAM_STATUS_FORKED) {
    return;
  }
  if (status != SEAM_STATUS_OK && !cuda_has_ended(status)) {
    TORCH_WARN("seamalloc, closing a tensor of another process: ", seam_last_error_text());
  }
  std::lock_guard<std::mutex> guard(lock_);
  const auto found = open_.find(key);
  // Another thread may have opened the memory again in the meantime.
  if (found != open_.end() && found->second.expired()) {
    open_.erase(found);
  }
}

}  // namespace seamalloc
