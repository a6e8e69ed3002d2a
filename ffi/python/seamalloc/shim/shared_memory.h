// Memory of other processes that this process has opened.
#pragma once

#include "library.h"

#include <map>
#include <mutex>
#include <string>

namespace seamalloc {

class SharedMemory {
 public:
  // Opens memory by its handle. Tensors that share a storage share the opened memory.
  std::shared_ptr<void> open(DeviceIndex device, seam_allocator allocator, const std::string& handle);

 private:
  using Key = std::pair<DeviceIndex, std::string>;

  void close(const Key& key, seam_allocator allocator, void* pointer);

  std::mutex lock_;
  std::map<Key, std::weak_ptr<void>> open_;
};

}  // namespace seamalloc
