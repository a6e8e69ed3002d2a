// What other threads are doing when memory of other processes is closed, and when memory is freed in need.

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <thread>
#include <utility>

#include "exercise.h"

namespace {

constexpr size_t GIB = size_t(1) << 30;

struct Trace : c10::GatheredContext {};

std::shared_ptr<c10::GatheredContext> gather() {
  return std::make_shared<Trace>();
}

void* last_resort = nullptr;

struct Frees : c10::FreeMemoryCallback {
  bool Execute() override {
    allocator::raw_delete(std::exchange(last_resort, nullptr));
    return true;
  }
};

void what_is_freed_in_need_leaves_the_request_its_trace() {
  last_resort = allocator::raw_alloc_with_stream(100 * GIB, nullptr);
  c10::FreeCudaMemoryCallbacksRegistry()->Register("exercise", [] {
    return std::unique_ptr<c10::FreeMemoryCallback>(new Frees);
  });
#if SEAMALLOC_TORCH >= 211
  allocator::recordHistory(true, gather, 100, allocator::RecordContext::ALL, true, {});
#elif SEAMALLOC_TORCH >= 208
  allocator::recordHistory(true, gather, 100, allocator::RecordContext::ALL, true);
#else
  allocator::recordHistory(true, gather, 100, allocator::RecordContext::ALL);
#endif
  void* block = allocator::raw_alloc_with_stream(100 * GIB, nullptr);
  CHECK(last_resort == nullptr);
  size_t found = 0;
  const auto entries = allocator::snapshot().device_traces[0];
  for (const auto& entry : entries) {
    if (entry.action_ == allocator::TraceEntry::ALLOC) {
      found++;
      CHECK(entry.context_ != nullptr);
    }
  }
  CHECK(found == 1);
  allocator::raw_delete(block);
}

// A socket that takes connections and never answers, and a handle that names it.
std::string handle_of_a_silent_process(std::string handle, int* silent) {
  handle[16] ^= 1;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "seamalloc-%u-", unsigned(getpid()));
  for (int index = 16; index < 24; index++) {
    length += snprintf(
        name.sun_path + 1 + length, sizeof name.sun_path - 1 - size_t(length), "%02x", (unsigned char)(handle[index]));
  }
  *silent = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const socklen_t size = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + size_t(length));
  CHECK(bind(*silent, reinterpret_cast<sockaddr*>(&name), size) == 0 && listen(*silent, 4) == 0);
  return handle;
}

void a_forked_child_waits_for_no_thread_of_its_parent() {
  void* block = allocator::raw_alloc_with_stream(GIB, nullptr);
  const std::string handle = allocator::shareIpcHandle(block).handle;
  std::shared_ptr<void> opened = allocator::getIpcDevPtr(handle);
  int silent = -1;
  const std::string never = handle_of_a_silent_process(handle, &silent);
  std::thread opening([&] {
    try {
      allocator::getIpcDevPtr(never);
    } catch (const std::exception&) {
    }
  });
  // Whoever has connected is waiting for the answer.
  const int connection = accept(silent, nullptr, nullptr);
  CHECK(connection >= 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(5);
    opened.reset();
    _exit(0);
  }
  int status = -1;
  const bool waited = waitpid(child, &status, 0) == child;
  close(connection);
  close(silent);
  opening.join();
  CHECK(waited && status == 0);
  opened.reset();
  allocator::raw_delete(block);
}

}  // namespace

extern "C" const char* exercise_sharing() {
  return what_does_not_hold([] {
    what_is_freed_in_need_leaves_the_request_its_trace();
    a_forked_child_waits_for_no_thread_of_its_parent();
  });
}
