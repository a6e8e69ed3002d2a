// What a thread knows of itself, and that it is ending.
//
// Static and thread-local tensors are freed when the thread's variables are gone already: PyTorch's current streams, its
// profiler's state, and the variables here.
#pragma once

#include "library.h"

#include <string>
#include <vector>

namespace seamalloc {

// As many as the C library has plugged allocators.
constexpr size_t MAX_DEVICES = 64;

// What is noted with the events of a thread.
struct ThreadState {
  // Where the program is, for the events of the call that the thread is making.
  Context here;
  std::vector<std::string> compile_contexts;
  std::string user_metadata;
};

// The state of this thread; NULL once the thread's variables are being destroyed.
ThreadState* thread_state();

// What can be read for as long as a thread runs: it has no destructor.
struct ThreadMarks {
  // Whether the thread's variables are being destroyed or gone, PyTorch's among them.
  bool has_ended;
  // Whether that will be noticed.
  bool is_watched;
  // PyTorch's current streams, as they were when they were last asked for.
  cudaStream_t streams[MAX_DEVICES];
};

ThreadMarks& thread_marks();

// From now on the end of this thread is noticed, before the variables that the thread has by now are destroyed.
void watch_thread_end(ThreadMarks& marks);

}  // namespace seamalloc
