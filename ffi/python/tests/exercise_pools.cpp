// MemPools with an allocator of their own, unsplit ones, and what becomes of their memory: what torch.cuda.MemPool asks of
// the allocator, on a simulated device, where Python's class cannot be made. After PyTorch's TestMemPool.

#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "exercise.h"

using c10::cuda::MempoolId_t;

namespace {

constexpr size_t MIB = 1 << 20;

// Of all that a dummy gives.
uintptr_t next_address = uintptr_t(0x60) << 40;

struct Book {
  std::map<void*, size_t> given;
  size_t allocs = 0, frees = 0;
  bool is_short = false, throws = false;
  bool gone = false;
  // Freed while a segment is asked for.
  void* dropped = nullptr;
};

// A pluggable allocator, as people write them, over addresses that nothing follows. PyTorch's own asks CUDA for the
// current stream.
struct Dummy : torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator {
  explicit Dummy(Book& book)
      : CUDAPluggableAllocator(
            [&book](size_t size, int, cudaStream_t) -> void* {
              book.allocs++;
              allocator::raw_delete(std::exchange(book.dropped, nullptr));
              if (book.throws) {
                throw std::runtime_error("registering failed");
              }
              if (book.is_short) {
                return nullptr;
              }
              void* address = reinterpret_cast<void*>(next_address);
              next_address += size;
              book.given[address] = size;
              return address;
            },
            [&book](void* address, size_t size, int, cudaStream_t) {
              CHECK(book.given.at(address) == size);
              book.given.erase(address);
              book.frees++;
            }),
        book_(book) {}
  ~Dummy() override {
    book_.gone = true;
  }
  void* raw_alloc(size_t bytes) override {
    return malloc(bytes, 0, nullptr);
  }

 private:
  Book& book_;
};

// What torch.cuda.MemPool and use_mem_pool do, for one stream.
struct Pool {
  MempoolId_t id;

  explicit Pool(std::shared_ptr<allocator::CUDAAllocator> own = nullptr, bool use_on_oom = false, bool no_split = false)
      : id{0, next++} {
#if SEAMALLOC_TORCH >= 211
    allocator::createOrIncrefPool(0, id, own);
    allocator::setUseOnOOM(0, id, use_on_oom);
#else
    allocator::createOrIncrefPool(0, id, own.get());
    kept = own;
    if (use_on_oom) {
      allocator::setUseOnOOM(0, id);
    }
#endif
#if SEAMALLOC_TORCH >= 210
    if (no_split) {
      allocator::setNoSplit(0, id);
    }
#endif
  }
  ~Pool() {
#if SEAMALLOC_TORCH >= 211
    allocator::setUseOnOOM(0, id, false);
#endif
    allocator::releasePool(0, id);
    allocator::emptyCache(id);
  }
  void* alloc(size_t bytes) {
    allocator::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
    struct End {
      MempoolId_t id;
      ~End() {
        allocator::endAllocateToPool(0, id);
        allocator::releasePool(0, id);
      }
    } end{id};
    return allocator::raw_alloc_with_stream(bytes, nullptr);
  }
  size_t segments() const {
    size_t count = 0;
    for (const auto& segment : allocator::snapshot(id).segments) {
      CHECK(segment.owner_private_pool_id == id);
      count++;
    }
    return count;
  }

  std::shared_ptr<allocator::CUDAAllocator> kept;
  static uint64_t next;
};

uint64_t Pool::next = 1;

int64_t reserved() {
  return allocator::getDeviceStats(0).reserved_bytes[0].current;
}

void a_pool_has_its_segments_from_its_allocator() {
  Book book;
  auto own = std::make_shared<Dummy>(book);
  const int64_t before = reserved();
  void* outlives;
  {
    Pool pool(own);
    own.reset();
    CHECK(allocator::getPoolUseCount(0, pool.id) == 1);
    void* first = pool.alloc(MIB);
    CHECK(book.allocs == 1 && book.frees == 0 && book.given.count(first) == 1);
    CHECK(allocator::getPoolUseCount(0, pool.id) == 1 && pool.segments() == 1);
    CHECK(reserved() - before == int64_t(2 * MIB));
    // What is outside has other memory.
    allocator::raw_delete(allocator::raw_alloc_with_stream(MIB, nullptr));
    CHECK(pool.segments() == 1);
    // Fits the segment, and does not.
    void* second = pool.alloc(MIB);
    CHECK(pool.segments() == 1 && second == static_cast<char*>(first) + MIB);
    outlives = pool.alloc(30 * MIB);
    CHECK(pool.segments() == 2 && book.allocs == 2);
    for (const auto& segment : allocator::snapshot(pool.id).segments) {
      CHECK(!segment.is_expandable && book.given.at(reinterpret_cast<void*>(segment.address)) == segment.total_size);
    }
    allocator::raw_delete(first);
    allocator::raw_delete(second);
    // A pool that is used keeps what it has.
    allocator::emptyCache();
    CHECK(book.frees == 0);
  }
  // The pool is gone, and what is free of it; not what is live.
  CHECK(book.frees == 1 && book.given.count(outlives) == 1 && !book.gone);
  allocator::raw_delete(outlives);
  CHECK(book.frees == 1);
  allocator::emptyCache();
  CHECK(book.frees == 2 && book.given.empty() && book.gone);
}

void segments_are_numbered_as_they_came() {
#if SEAMALLOC_TORCH >= 211
  Book book;
  Pool pool(std::make_shared<Dummy>(book));
  const uintptr_t after = next_address + (uintptr_t(1) << 40);
  std::vector<uintptr_t> came;
  for (size_t index : {2, 0, 1}) {
    next_address = after - (uintptr_t(3 - index) << 30);
    came.push_back(reinterpret_cast<uintptr_t>(pool.alloc(30 * MIB)));
  }
  next_address = after;
  auto segments = allocator::snapshot(pool.id).segments;
  std::sort(segments.begin(), segments.end(), [](const auto& a, const auto& b) {
    return a.registration_counter < b.registration_counter;
  });
  CHECK(segments.size() == 3);
  for (size_t index = 0; index < 3; index++) {
    CHECK(segments[index].registration_counter > 0 && segments[index].address == came[index]);
    allocator::raw_delete(reinterpret_cast<void*>(came[index]));
  }
  for (const auto& segment : allocator::snapshot().segments) {
    CHECK(segment.registration_counter >= 0);
  }
#endif
}

// The library's lock is held then, so that the free waits for the next request.
void what_it_frees_meanwhile_is_freed() {
  Book book;
  {
    Pool pool(std::make_shared<Dummy>(book));
    const auto live = [] { return allocator::getDeviceStats(0).allocation[0].current; };
    book.dropped = allocator::raw_alloc_with_stream(30 * MIB, nullptr);
    const auto before = live();
    void* block = pool.alloc(MIB);
    CHECK(book.dropped == nullptr && live() == before + 1);
    void* other = allocator::raw_alloc_with_stream(700, nullptr);
    CHECK(live() == before + 1);
    allocator::raw_delete(block);
    allocator::raw_delete(other);
  }
  allocator::emptyCache();
}

void what_it_throws_is_thrown() {
  Book book;
  Pool pool(std::make_shared<Dummy>(book));
  book.throws = true;
  std::string why;
  try {
    pool.alloc(MIB);
  } catch (const std::runtime_error& error) {
    why = error.what();
  }
  CHECK(why == "registering failed" && book.allocs == 1);
  book.throws = false;
  book.is_short = true;
  bool is_short = false;
  try {
    pool.alloc(MIB);
  } catch (const c10::OutOfMemoryError& error) {
    is_short = std::string(error.what()).find("segments of its own") != std::string::npos;
  }
  CHECK(is_short && allocator::getPoolUseCount(0, pool.id) == 1);
  book.is_short = false;
  allocator::raw_delete(pool.alloc(MIB));
}

void used_on_oom_it_gives_what_it_holds() {
  allocator::emptyCache();
  Book of_used, of_other;
  Pool used(std::make_shared<Dummy>(of_used), true), other(std::make_shared<Dummy>(of_other));
  for (Pool* pool : {&used, &other}) {
    allocator::raw_delete(pool->alloc(40 * MIB));
  }
  allocator::setMemoryFraction(double(reserved() + 10 * int64_t(MIB)) / (139.8 * (1 << 30)), 0);
  void* block = allocator::raw_alloc_with_stream(30 * MIB, nullptr);
  CHECK(of_used.given.count(block) == 1 && of_used.allocs == 1);
  bool is_short = false;
  try {
    allocator::raw_alloc_with_stream(30 * MIB, nullptr);
  } catch (const c10::OutOfMemoryError&) {
    is_short = true;
  }
  CHECK(is_short && of_used.allocs == 1 && of_other.allocs == 1);
  allocator::raw_delete(block);
  allocator::setMemoryFraction(1, 0);
}

void unsplit_segments_are_one_block() {
#if SEAMALLOC_TORCH >= 210
  Book book;
  for (const auto& own : {std::shared_ptr<Dummy>(), std::make_shared<Dummy>(book)}) {
    const int64_t before = reserved();
    Pool pool(own, false, true);
    void* blocks[] = {pool.alloc(3 * MIB), pool.alloc(3 * MIB)};
    CHECK(pool.segments() == 2 && reserved() - before == int64_t(40 * MIB));
    for (const auto& segment : allocator::snapshot(pool.id).segments) {
      CHECK(segment.blocks.size() == 1 && segment.total_size == 20 * MIB);
    }
    for (void* block : blocks) {
      allocator::raw_delete(block);
    }
  }
  CHECK(book.frees == 2);
#endif
}

void a_plain_pools_memory_is_given_back_with_it() {
  allocator::emptyCache();
  void* kept = allocator::raw_alloc_with_stream(50 * MIB, nullptr);
  allocator::raw_delete(kept);
  const int64_t before = reserved();
  void* live;
  {
    Pool pool;
    live = pool.alloc(20 * MIB);
    allocator::raw_delete(pool.alloc(60 * MIB));
    CHECK(reserved() >= before + int64_t(30 * MIB));
  }
  CHECK(reserved() <= before + int64_t(22 * MIB));
  allocator::raw_delete(live);
}

void entries_say_which_pool_they_are_of() {
  Book book;
  auto entries = std::make_shared<std::vector<allocator::TraceEntry>>();
  allocator::attachAllocatorTraceTracker([entries](const allocator::TraceEntry& entry) { entries->push_back(entry); });
  MempoolId_t id;
  {
    Pool pool(std::make_shared<Dummy>(book));
    id = pool.id;
    allocator::raw_delete(pool.alloc(MIB));
  }
  using Entry = allocator::TraceEntry;
  std::vector<Entry::Action> actions;
  for (const auto& entry : *entries) {
    CHECK(entry.mempool_ == id);
    actions.push_back(entry.action_);
  }
  CHECK((actions == std::vector<Entry::Action>{
                        Entry::SEGMENT_ALLOC, Entry::ALLOC, Entry::FREE_REQUESTED, Entry::FREE_COMPLETED,
                        Entry::SEGMENT_FREE}));
  entries->clear();
  allocator::raw_delete(allocator::raw_alloc_with_stream(MIB, nullptr));
  for (const auto& entry : *entries) {
    CHECK((entry.mempool_ == MempoolId_t{0, 0}));
  }
  CHECK(!entries->empty());
}

}  // namespace

extern "C" const char* exercise_pools() {
  return what_does_not_hold([] {
    a_pool_has_its_segments_from_its_allocator();
    segments_are_numbered_as_they_came();
    what_it_frees_meanwhile_is_freed();
    what_it_throws_is_thrown();
    used_on_oom_it_gives_what_it_holds();
    unsplit_segments_are_one_block();
    a_plain_pools_memory_is_given_back_with_it();
    entries_say_which_pool_they_are_of();
  });
}
