// State of a thread, and the notice that the thread is ending.

#include "thread_end.h"

namespace seamalloc {

namespace {

thread_local ThreadMarks marks{};
thread_local ThreadState* state = nullptr;

struct StateOwner {
  StateOwner() {
    state = new ThreadState;
  }
  ~StateOwner() {
    marks.has_ended = true;
    delete std::exchange(state, nullptr);
  }
};

struct EndNotice {
  ~EndNotice() {
    marks.has_ended = true;
  }
};

}  // namespace

ThreadState* thread_state() {
  if (C10_UNLIKELY(state == nullptr && !marks.has_ended)) {
    thread_local StateOwner owner;
  }
  return state;
}

ThreadMarks& thread_marks() {
  return marks;
}

void watch_thread_end(ThreadMarks& watched) {
  thread_local EndNotice notice;
  watched.is_watched = true;
}

}  // namespace seamalloc
