// The C++ wrapper: what owns memory frees it once, errors are exceptions with their status and text.

#include "check.hpp"
#include "seamalloc.hpp"

#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

static_assert(!std::is_copy_constructible_v<seamalloc::block> && std::is_nothrow_move_constructible_v<seamalloc::block>);
static_assert(!std::is_copy_constructible_v<seamalloc::pool> && std::is_nothrow_move_assignable_v<seamalloc::pool>);
static_assert(std::is_nothrow_copy_constructible_v<seamalloc::out_of_memory>);
static_assert(std::is_nothrow_copy_constructible_v<seamalloc::failure>);
static_assert(!SEAMALLOC_HAS_CCCL, "this program asks for none");

static std::uint64_t live(const seamalloc::allocator &a) {
    return a.stats().allocation.all.current;
}

static void blocks_free_their_memory_once() {
    seamalloc::allocator a("sim:h200,capacity=1GiB");
    void *first;
    {
        seamalloc::block block = a.allocate(10 * MIB);
        first = block.address();
        CHECK(block && first != nullptr && block.size() == 10 * MIB && block.stream() == nullptr);
        CHECK(reinterpret_cast<std::uintptr_t>(first) % seamalloc::alignment == 0);
        seamalloc::block moved(std::move(block));
        CHECK(!block && block.size() == 0 && moved.address() == first && live(a) == 1);
        seamalloc::block other = a.allocate(MIB);
        other = std::move(moved);
        CHECK(live(a) == 1 && other.address() == first);
        seamalloc::block &same = other;
        other = std::move(same);
        CHECK(live(a) == 1 && other.address() == first);
        std::vector<seamalloc::block> held;
        for (int i = 0; i < 20; i++) {
            held.push_back(a.allocate(MIB));
        }
        CHECK(live(a) == 21);
    }
    CHECK(live(a) == 0 && a.stats().allocation.all.freed == 22);
    seamalloc::block again = a.allocate(10 * MIB);
    CHECK(again.address() == first);
    again.free();
    CHECK(!again && live(a) == 0);
    again.free();
    again.record_stream(stream_of(0x100));
    void *raw = a.allocate(MIB).release();
    CHECK(raw != nullptr && live(a) == 1);
    seamalloc::check(seam_free(a.handle(), raw));
    seamalloc::block nothing = a.allocate(0);
    CHECK(!nothing && live(a) == 0);
    seamalloc::check(seam_check(a.handle()));
}

static void memory_waits_for_the_streams_that_used_it() {
    for (int how = 0; how < 4; how++) {
        seamalloc::allocator a("sim:h200,capacity=1GiB", "sharing:never");
        seam_stream mine = stream_of(0x100), other = stream_of(0x200);
        {
            seamalloc::block block = a.allocate(4 * MIB, mine);
            CHECK(block.stream() == mine);
            if (how == 1) {
                block.free_on(other);
                CHECK(!block);
            } else if (how == 2) {
                block.record_stream(other);
            } else if (how == 3) {
                block.free_on(mine);
            }
        }
        seam_stats stats = a.stats();
        CHECK(stats.allocated_bytes.all.current == 0);
        CHECK(stats.active_bytes.all.current == (how == 1 || how == 2 ? 4 * MIB : 0));
        a.forget_stream(other);
        CHECK(a.stats().active_bytes.all.current == 0);
        CHECK(a.trim(MIB) >= MIB && a.empty_cache() < 4 * MIB && a.stats().reserved_bytes.all.current == 0);
    }
}

static void a_headroom_is_kept() {
    seamalloc::allocator without("sim:h200", "");
    CHECK(without.keep_headroom() == 0);
    seamalloc::allocator a("sim:h200,capacity=1GiB", "headroom:600MiB");
    { seamalloc::block block = a.allocate(400 * MIB); }
    // It grew into none of it, and nobody else took of it.
    uint64_t looks = a.stats().headroom_looks;
    CHECK(a.keep_headroom() == 0 && a.stats().reserved_bytes.all.current == 400 * MIB);
    CHECK(a.stats().headroom_looks == looks + 1 && a.stats().headroom_yields == 0);
}

static void an_allocator_lives_as_long_as_what_it_gave() {
    seam_allocator handle;
    seamalloc::block last;
    {
        seamalloc::allocator a("sim:h200,capacity=1GiB");
        handle = a.handle();
        seamalloc::allocator same = a;
        CHECK(same == a && same != seamalloc::allocator("sim:h200,capacity=1GiB"));
        last = a.allocate(MIB);
    }
    seam_stats stats;
    stats.size = sizeof stats;
    CHECK(seam_get_stats(handle, &stats) == SEAM_STATUS_OK && stats.allocation.all.current == 1);
    last.free();
    CHECK(seam_get_stats(handle, &stats) == SEAM_STATUS_INVALID_HANDLE);
}

static void errors_are_exceptions() {
    seamalloc::allocator a("sim:h200,capacity=1GiB", "memory_limit:512MiB");
    auto refused = [&] { a.allocate(600 * MIB); };
    auto memory = thrown_by<seamalloc::out_of_memory>(refused);
    CHECK(memory.status() == SEAM_STATUS_OUT_OF_MEMORY && contains(memory.what(), "600.00 MiB") && memory.driver_status() == 0);
    // By each of its bases.
    bool by_all = false, by_standard = false;
    try {
        refused();
    } catch (const seamalloc::error &error) {
        by_all = contains(error.what(), "600.00 MiB");
    }
    try {
        refused();
    } catch (const std::bad_alloc &error) {
        by_standard = contains(error.what(), "600.00 MiB");
    }
    CHECK(by_all && by_standard);
    CHECK(contains(thrown_by<seamalloc::out_of_memory>([&] { a.allocate(8 * GIB); }).what(), "8.00 GiB"));
    auto options = thrown_by<seamalloc::failure>([] { seamalloc::allocator("sim:h200", "strateg:stitch"); });
    CHECK(options.status() == SEAM_STATUS_OPTIONS && contains(options.what(), "did you mean `strategy`?"));
    try {
        seamalloc::allocator("nothing");
        CHECK(false);
    } catch (const std::exception &error) {
        CHECK(dynamic_cast<const seamalloc::failure &>(error).status() == SEAM_STATUS_DEVICE);
    }
    // A copy says the same when the library has forgotten.
    seam_clear_last_error();
    CHECK(contains(memory.what(), "600.00 MiB"));
    // Freed by its address, too: the destructor changes nothing, and says so as the last error.
    {
        seamalloc::block block = a.allocate(MIB);
        seamalloc::check(seam_free(a.handle(), block.address()));
        CHECK(thrown_by<seamalloc::failure>([&] { block.free(); }).status() == SEAM_STATUS_INVALID_ADDRESS && block);
        seam_clear_last_error();
    }
    CHECK(seam_last_error() == SEAM_STATUS_INVALID_ADDRESS && live(a) == 0);
    CHECK(thrown_by<seamalloc::failure>([&] { a.allocate(MIB, stream_of(2)); }).status() == SEAM_STATUS_INVALID_STREAM);
    CHECK(a.largest_request() == 512 * MIB);
    a.set_memory_limit(SEAM_NO_LIMIT);
    CHECK(a.largest_request() == GIB && a.ordinal() == -1);
}

static void pools_keep_their_memory_to_themselves() {
    seamalloc::allocator a("sim:h200,capacity=1GiB");
    seam_pool id;
    {
        seamalloc::pool pool(a);
        id = pool.id();
        seamalloc::block own = pool.allocate(4 * MIB);
        seamalloc::pool moved(std::move(pool));
        {
            auto route = moved.route_thread();
            seamalloc::block routed = a.allocate(2 * MIB);
            CHECK(moved.stats().allocations == 2 && moved.stats().routed == 1);
            std::thread([&] { CHECK(a.allocate(MIB) && moved.stats().allocations == 2); }).join();
        }
        {
            auto route = moved.route_stream(stream_of(0x100), SEAM_POOL_CAPTURING);
            seamalloc::block routed = a.allocate(MIB, stream_of(0x100)), other = a.allocate(MIB, stream_of(0x200));
            CHECK(moved.stats().allocations == 2);
            CHECK(thrown_by<seamalloc::failure>([&] { auto twice = moved.route_thread(); }).status() == SEAM_STATUS_POOL_ROUTED);
        }
        seam_pool_stats stats = moved.stats();
        CHECK(stats.routed == 0 && stats.uses == 1 && stats.allocations == 1);
        seamalloc::pool another(a);
        another = std::move(moved);
        CHECK(another.stats().allocations == 1);
    }
    seam_pool_stats stats;
    stats.size = sizeof stats;
    CHECK(seam_pool_get_stats(a.handle(), id, &stats) == SEAM_STATUS_UNKNOWN_POOL || stats.uses == 0);
    CHECK(live(a) == 0);
    seamalloc::check(seam_check(a.handle()));
}

static void the_one_behind_pytorch() {
    seamalloc::allocator a = seamalloc::allocator::plugged(0);
    CHECK(a == seamalloc::allocator::plugged(0) && a != seamalloc::allocator::plugged(1) && a.ordinal() == -1);
    void *address = seamalloc_malloc(3 * MIB, 0, nullptr);
    seamalloc::block block = a.allocate(MIB);
    CHECK(a.stats().allocated_bytes.all.current == 4 * MIB);
    CHECK(a.largest_request() <= 60 * MIB && a.largest_request() >= 50 * MIB);
    seamalloc_free(address, 3 * MIB, 0, nullptr);
}

static void what_grows_stays_where_it_is_and_is_freed_once() {
    seamalloc::allocator a("sim:h200,capacity=1GiB");
    {
        seamalloc::growing cache = a.reserve(512 * MIB);
        void *address = cache.address();
        CHECK(cache && cache.size() == 0 && cache.mapped() == 0 && cache.capacity() == 512 * MIB);
        cache.grow(33 * MIB);
        seamalloc::growing moved(std::move(cache));
        CHECK(!cache && cache.size() == 0 && moved.address() == address && moved.size() == 33 * MIB);
        CHECK(moved.mapped() == 34 * MIB);
        cache = std::move(moved);
        cache.record_stream(stream_of(0x100));
        cache.shrink(MIB);
        CHECK(cache.address() == address && cache.size() == MIB && live(a) > 0);
        bool refused = false;
        try {
            cache.grow(513 * MIB);
        } catch (const seamalloc::failure &error) {
            refused = error.status() == SEAM_STATUS_BEYOND_CAPACITY && cache.size() == MIB;
        }
        CHECK(refused);
        seamalloc::pool pool(a);
        seamalloc::growing other = pool.reserve(64 * MIB);
        other.grow(MIB);
        CHECK(pool.stats().allocated_bytes >= 2 * MIB && other.mapped() == pool.stats().allocated_bytes);
        seamalloc::check(seam_free(a.handle(), other.release()));
    }
    CHECK(live(a) == 0);
    seamalloc::check(seam_check(a.handle()));
}

int main() {
    blocks_free_their_memory_once();
    a_headroom_is_kept();
    what_grows_stays_where_it_is_and_is_freed_once();
    memory_waits_for_the_streams_that_used_it();
    an_allocator_lives_as_long_as_what_it_gave();
    errors_are_exceptions();
    pools_keep_their_memory_to_themselves();
    the_one_behind_pytorch();
    std::puts("right");
}
