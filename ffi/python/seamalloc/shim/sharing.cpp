// Tensors of one process in another: CUDA IPC.

#include "allocator.h"

namespace seamalloc {

ShareableHandle Allocator::shareIpcHandle(void* pointer) {
  std::string handle(1024, '\0');
  size_t length = 0;
  uint64_t offset = 0;
  seam_status status;
  while ((status = seam_share(of(owner_of(pointer)), pointer, handle.data(), handle.size(), &length, &offset)) ==
         SEAM_STATUS_BUFFER_TOO_SMALL) {
    handle.resize(length);
  }
  check(status, "sharing a tensor with other processes");
  handle.resize(length);
  return {ptrdiff_t(offset), std::move(handle)};
}

std::shared_ptr<void> Allocator::getIpcDevPtr(std::string handle) {
  const DeviceIndex device = current_device();
  std::lock_guard<std::mutex> guard(opening_shared_);
  std::weak_ptr<void>& known = shared_[{device, handle}];
  if (std::shared_ptr<void> open = known.lock()) {
    return open;
  }
  const seam_allocator allocator = of(device);
  void* opened = nullptr;
  const seam_status status = seam_open_shared(allocator, handle.data(), handle.size(), &opened);
  if (status != SEAM_STATUS_OK) {
    shared_.erase({device, handle});
    check(status, "opening a tensor of another process (which must use seamalloc too)");
  }
  auto close = [this, device, allocator, handle = std::move(handle)](void* pointer) {
    close_shared(device, handle, allocator, pointer);
  };
  std::shared_ptr<void> open(opened, std::move(close));
  known = open;
  return open;
}

// Called by destructors: it throws nothing.
void Allocator::close_shared(DeviceIndex device, const std::string& handle, seam_allocator allocator, void* pointer) {
  const seam_status status = seam_close_shared(allocator, pointer);
  // In a forked child the lock may be held by a thread that is not there.
  if (status == SEAM_STATUS_FORKED) {
    return;
  }
  if (status != SEAM_STATUS_OK && !is_of_the_end(status)) {
    TORCH_WARN("seamalloc, closing a tensor of another process: ", seam_last_error_text());
  }
  std::lock_guard<std::mutex> guard(opening_shared_);
  const auto found = shared_.find({device, handle});
  // Another thread may have opened it anew meanwhile.
  if (found != shared_.end() && found->second.expired()) {
    shared_.erase(found);
  }
}

}  // namespace seamalloc
