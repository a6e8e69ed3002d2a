// Private pools from C: what goes where, by stream, by thread, by a filter, and what becomes of it.

#include "check.h"

#include <pthread.h>

static seam_pool_stats pool_stats(seam_allocator a, seam_pool pool) {
    seam_pool_stats stats;
    stats.size = sizeof stats;
    OK(seam_pool_get_stats(a, pool, &stats));
    return stats;
}

static void a_pool_keeps_its_memory_to_itself(seam_allocator a) {
    seam_pool pool;
    OK(seam_pool_create(a, &pool));
    CHECK(pool.first == 0 && pool.second != 0);
    void *address;
    OK(seam_pool_malloc(a, pool, 10 * MIB, NULL, &address));
    CHECK(pool_stats(a, pool).allocated_bytes == 10 * MIB);
    OK(seam_free(a, address));
    void *other = get(a, 10 * MIB, NULL);
    CHECK(other != address);
    CHECK(pool_stats(a, pool).reserved_bytes == 10 * MIB && pool_stats(a, pool).allocations == 0);
    OK(seam_pool_retain(a, pool));
    CHECK(pool_stats(a, pool).uses == 2);
    OK(seam_pool_release(a, pool));
    OK(seam_pool_release(a, pool));
    CHECK(seam_pool_release(a, pool) == SEAM_STATUS_UNKNOWN_POOL);
    OK(seam_free(a, other));
}

/* Writes the stages one behind the other, as the digits 1 to 4. */
static bool noted(const seam_sleep_notice *notice, void *user) {
    uint64_t *seen = user;
    *seen = *seen << 4 | (notice->stage + 1);
    return notice->size == sizeof *notice && notice->bytes == 10 * MIB;
}

static bool refused(const seam_sleep_notice *notice, void *user) {
    (void)notice, (void)user;
    return false;
}

static void a_tag_sleeps_and_wakes(seam_allocator a) {
    seam_pool tag, named = {5, 5};
    OK(seam_pool_create_tag(a, &tag));
    OK(seam_pool_begin_thread(a, tag, 0));
    void *address = get(a, 10 * MIB, NULL);
    OK(seam_pool_end(a, tag));
    uint64_t bytes = 1;
    FAILS(seam_pool_sleep(a, tag, 4, NULL, NULL), SEAM_STATUS_INVALID_ARGUMENT, "backup is 4");
    FAILS(seam_pool_sleep(a, tag, SEAM_BACKUP_HOST, "file", NULL), SEAM_STATUS_INVALID_ARGUMENT, "path is not NULL");
    FAILS(seam_pool_sleep(a, tag, SEAM_BACKUP_FILE, NULL, NULL), SEAM_STATUS_INVALID_ARGUMENT, "path is NULL");
    FAILS(seam_pool_sleep(a, tag, SEAM_BACKUP_FILE, "/no/such/folder/file", &bytes), SEAM_STATUS_FILE, "/no/such/folder");
    CHECK(bytes == 0 && pool_stats(a, tag).reserved_bytes == 10 * MIB);
    seam_stats stats = {.size = sizeof stats};
    uint64_t seen = 0, callback;
    OK(seam_on_sleep(a, noted, &seen, &callback));
    const uint32_t backups[] = {SEAM_BACKUP_HOST, SEAM_BACKUP_DISCARD, SEAM_BACKUP_PINNED};
    for (size_t i = 0; i < sizeof backups / sizeof *backups; i++) {
        seen = 0;
        OK(seam_pool_sleep(a, tag, backups[i], NULL, &bytes));
        OK(seam_get_stats(a, &stats));
        CHECK(stats.asleep_bytes == 10 * MIB && stats.sleeps == i + 1 && stats.wakes == i && stats.page_locked_bytes > 0);
        CHECK(seen == 0x12);
        CHECK(bytes == 10 * MIB && pool_stats(a, tag).asleep_bytes == 10 * MIB && pool_stats(a, tag).reserved_bytes == 0);
        void *none;
        FAILS(seam_pool_malloc(a, tag, MIB, NULL, &none), SEAM_STATUS_POOL_ASLEEP, "wake it first");
        OK(seam_pool_wake(a, tag, &bytes));
        CHECK(bytes == 10 * MIB && pool_stats(a, tag).asleep_bytes == 0);
        OK(seam_pool_wake(a, tag, &bytes));
        CHECK(bytes == 0 && seen == 0x1234);
    }
    OK(seam_remove_sleep_callback(a, callback));
    FAILS(seam_remove_sleep_callback(a, callback), SEAM_STATUS_INVALID_ARGUMENT, "there is no callback");
    FAILS(seam_on_sleep(a, NULL, NULL, NULL), SEAM_STATUS_INVALID_ARGUMENT, "callback is NULL");
    OK(seam_on_sleep(a, refused, NULL, &callback));
    FAILS(seam_pool_sleep(a, tag, SEAM_BACKUP_HOST, NULL, NULL), SEAM_STATUS_NOT_SLEEPABLE, "refused");
    OK(seam_remove_sleep_callback(a, callback));
    OK(seam_release_backups(a, &bytes));
    OK(seam_get_stats(a, &stats));
    CHECK(bytes >= 10 * MIB && stats.page_locked_bytes == 0);
    OK(seam_pool_begin_other_threads(a, tag));
    void *other = get(a, MIB, NULL);
    OK(seam_pool_end(a, tag));
    CHECK(pool_stats(a, tag).allocations == 2);
    OK(seam_free(a, other));
    OK(seam_free(a, address));
    OK(seam_pool_release(a, tag));
    OK(seam_pool_open_tag(a, named));
    OK(seam_pool_release(a, named));
    OK(seam_pool_create(a, &tag));
    FAILS(seam_pool_sleep(a, tag, SEAM_BACKUP_HOST, NULL, NULL), SEAM_STATUS_NOT_SLEEPABLE, "shares chunks");
    OK(seam_pool_release(a, tag));
}

static void streams_are_routed(seam_allocator a) {
    seam_pool pool = {3, 0};
    OK(seam_pool_open(a, pool));
    seam_stream streams[] = {stream_of(0x10), stream_of(0x20)};
    OK(seam_pool_begin_streams(a, pool, streams, 2, 0));
    streams[0] = streams[1] = NULL; // The library has its own copy.
    CHECK(pool_stats(a, pool).routed == 1);
    void *in = get(a, MIB, stream_of(0x20)), *out = get(a, MIB, stream_of(0x30));
    CHECK(pool_stats(a, pool).allocations == 1);
    OK(seam_free(a, in));
    OK(seam_free(a, out));
    OK(seam_pool_end(a, pool));
    OK(seam_pool_begin_streams(a, pool, NULL, 0, 0));
    OK(seam_free(a, get(a, MIB, NULL)));
    CHECK(pool_stats(a, pool).allocations == 0 && pool_stats(a, pool).captured == 0);
    OK(seam_pool_end(a, pool));
    OK(seam_pool_release(a, pool));
}

static void *allocate_elsewhere(void *user) {
    return get(*(seam_allocator *)user, MIB, NULL);
}

static void threads_are_routed(seam_allocator a) {
    seam_pool pool;
    OK(seam_pool_create(a, &pool));
    OK(seam_pool_begin_thread(a, pool, SEAM_POOL_CAPTURING));
    void *in = get(a, MIB, stream_of(0x99)), *out;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, allocate_elsewhere, &a) == 0);
    CHECK(pthread_join(thread, &out) == 0);
    CHECK(pool_stats(a, pool).allocations == 1);
    OK(seam_pool_end(a, pool));
    OK(seam_free(a, in));
    OK(seam_free(a, out));
    OK(seam_pool_release(a, pool));
}

struct filter {
    seam_allocator allocator;
    int calls;
};

static bool odd_streams(seam_stream stream, void *user) {
    struct filter *filter = user;
    filter->calls++;
    // A filter runs under the allocator's lock: what would wait for itself for ever is refused.
    CHECK(seam_free(filter->allocator, NULL) == SEAM_STATUS_REENTRANT);
    CHECK(strstr(seam_last_error_text(), "filter") != NULL);
    return (uintptr_t)stream % 2 == 1;
}

static void a_filter_decides(seam_allocator a) {
    seam_pool pool;
    OK(seam_pool_create(a, &pool));
    struct filter filter = {a, 0};
    OK(seam_pool_begin_filter(a, pool, odd_streams, &filter, 0));
    void *even = get(a, MIB, stream_of(0x50)), *odd = get(a, MIB, stream_of(0x51));
    CHECK(filter.calls == 2 && pool_stats(a, pool).allocations == 1);
    OK(seam_pool_end(a, pool));
    OK(seam_free(a, even));
    OK(seam_free(a, odd));
    CHECK(filter.calls == 2);
    OK(seam_pool_release(a, pool));
}

static void more_is_live_than_the_device_has(void) {
    seam_allocator a = create("sim:h200,capacity=64MiB", "spill:host=1GiB");
    void *cold = get(a, 40 * MIB, NULL);
    FAILS(seam_advise(a, cold, 3), SEAM_STATUS_INVALID_ARGUMENT, "advice is 3");
    FAILS(seam_advise(a, (char *)cold + 512, SEAM_ADVICE_COLD), SEAM_STATUS_INVALID_ADDRESS, "");
    OK(seam_advise(a, cold, SEAM_ADVICE_COLD));
    void *other = get(a, 40 * MIB, NULL);
    seam_stats stats = stats_of(a);
    CHECK(stats.spilled_bytes.current >= 16 * MIB && stats.spill_requests == 1 && stats.spills > 0);
    OK(seam_free(a, other));
    uint64_t returned;
    OK(seam_unspill(a, &returned));
    CHECK(returned >= 16 * MIB && stats_of(a).spilled_bytes.current == 0);
    OK(seam_advise(a, cold, SEAM_ADVICE_HOT));
    OK(seam_free(a, cold));
    OK(seam_check(a));
    OK(seam_destroy(a));
}

int main(void) {
    more_is_live_than_the_device_has();
    seam_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch");
    a_pool_keeps_its_memory_to_itself(a);
    a_tag_sleeps_and_wakes(a);
    streams_are_routed(a);
    threads_are_routed(a);
    a_filter_decides(a);
    OK(seam_check(a));
    uint64_t given;
    OK(seam_empty_cache(a, &given));
    CHECK(stats_of(a).reserved_bytes.all.current == 0);
    OK(seam_destroy(a));
    return 0;
}
