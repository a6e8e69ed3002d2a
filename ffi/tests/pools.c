// Private pools from C: what goes where, by stream, by thread, by a filter, and what becomes of it.

#include "check.h"

#include <pthread.h>

static mq_pool_stats pool_stats(mq_allocator a, mq_pool pool) {
    mq_pool_stats stats;
    stats.size = sizeof stats;
    OK(mq_pool_get_stats(a, pool, &stats));
    return stats;
}

static void a_pool_keeps_its_memory_to_itself(mq_allocator a) {
    mq_pool pool;
    OK(mq_pool_create(a, &pool));
    CHECK(pool.first == 0 && pool.second != 0);
    void *address;
    OK(mq_pool_malloc(a, pool, 10 * MIB, NULL, &address));
    CHECK(pool_stats(a, pool).allocated_bytes == 10 * MIB);
    OK(mq_free(a, address));
    void *other = get(a, 10 * MIB, NULL);
    CHECK(other != address);
    CHECK(pool_stats(a, pool).reserved_bytes == 10 * MIB && pool_stats(a, pool).allocations == 0);
    OK(mq_pool_retain(a, pool));
    CHECK(pool_stats(a, pool).uses == 2);
    OK(mq_pool_release(a, pool));
    OK(mq_pool_release(a, pool));
    CHECK(mq_pool_release(a, pool) == MQ_STATUS_UNKNOWN_POOL);
    OK(mq_free(a, other));
}

static void streams_are_routed(mq_allocator a) {
    mq_pool pool = {3, 0};
    OK(mq_pool_open(a, pool));
    mq_stream streams[] = {stream_of(0x10), stream_of(0x20)};
    OK(mq_pool_begin_streams(a, pool, streams, 2, 0));
    streams[0] = streams[1] = NULL; // The library has its own copy.
    CHECK(pool_stats(a, pool).routed == 1);
    void *in = get(a, MIB, stream_of(0x20)), *out = get(a, MIB, stream_of(0x30));
    CHECK(pool_stats(a, pool).allocations == 1);
    OK(mq_free(a, in));
    OK(mq_free(a, out));
    OK(mq_pool_end(a, pool));
    OK(mq_pool_begin_streams(a, pool, NULL, 0, 0));
    OK(mq_free(a, get(a, MIB, NULL)));
    CHECK(pool_stats(a, pool).allocations == 0 && pool_stats(a, pool).captured == 0);
    OK(mq_pool_end(a, pool));
    OK(mq_pool_release(a, pool));
}

static void *allocate_elsewhere(void *user) {
    return get(*(mq_allocator *)user, MIB, NULL);
}

static void threads_are_routed(mq_allocator a) {
    mq_pool pool;
    OK(mq_pool_create(a, &pool));
    OK(mq_pool_begin_thread(a, pool, MQ_POOL_CAPTURING));
    void *in = get(a, MIB, stream_of(0x99)), *out;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, allocate_elsewhere, &a) == 0);
    CHECK(pthread_join(thread, &out) == 0);
    CHECK(pool_stats(a, pool).allocations == 1);
    OK(mq_pool_end(a, pool));
    OK(mq_free(a, in));
    OK(mq_free(a, out));
    OK(mq_pool_release(a, pool));
}

struct filter {
    mq_allocator allocator;
    int calls;
};

static bool odd_streams(mq_stream stream, void *user) {
    struct filter *filter = user;
    filter->calls++;
    // A filter runs under the allocator's lock: what would wait for itself for ever is refused.
    CHECK(mq_free(filter->allocator, NULL) == MQ_STATUS_REENTRANT);
    CHECK(strstr(mq_last_error_text(), "filter") != NULL);
    return (uintptr_t)stream % 2 == 1;
}

static void a_filter_decides(mq_allocator a) {
    mq_pool pool;
    OK(mq_pool_create(a, &pool));
    struct filter filter = {a, 0};
    OK(mq_pool_begin_filter(a, pool, odd_streams, &filter, 0));
    void *even = get(a, MIB, stream_of(0x50)), *odd = get(a, MIB, stream_of(0x51));
    CHECK(filter.calls == 2 && pool_stats(a, pool).allocations == 1);
    OK(mq_pool_end(a, pool));
    OK(mq_free(a, even));
    OK(mq_free(a, odd));
    CHECK(filter.calls == 2);
    OK(mq_pool_release(a, pool));
}

int main(void) {
    mq_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch");
    a_pool_keeps_its_memory_to_itself(a);
    streams_are_routed(a);
    threads_are_routed(a);
    a_filter_decides(a);
    OK(mq_check(a));
    uint64_t given;
    OK(mq_empty_cache(a, &given));
    CHECK(stats_of(a).reserved_bytes.all.current == 0);
    OK(mq_destroy(a));
    return 0;
}
