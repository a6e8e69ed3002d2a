// State of a thread, and the notice that the thread is ending.
//
// Static and thread-local tensors are freed after the thread's variables are gone: PyTorch's current streams, its
// profiler's state, and the variables here.
#pragma once

#include "library.h"

#include <string>
#include <vector>

namespace seamalloc {

// The number of plugged allocators that the C library allows.
constexpr size_t MAX_DEVICES = 64;

// The data that is noted with the events of a thread.
struct ThreadState {
  // The place of the program for the events of the thread's present call.
  Context here;
  std::vector<std::string> compile_contexts;
  std::string user_metadata;
};

// Returns the state of this thread; NULL once the thread's variables are being destroyed.
ThreadState* thread_state();

// Data that is readable as long as the thread runs, since it has no destructor.
struct ThreadMarks {
  // Whether the thread's variables, including PyTorch's, are being destroyed or are gone.
  bool has_ended;
  // Whether the end of the thread will be noticed.
  bool is_watched;
  // PyTorch's current streams at the last query.
  cudaStream_t streams[MAX_DEVICES];
};

ThreadMarks& thread_marks();

// Makes the end of this thread noticed before the thread's present variables are destroyed.
void watch_thread_end(ThreadMarks& marks);

}  // namespace seamalloc
