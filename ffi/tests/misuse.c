// What a wrong program gets: an error with a text, and an allocator that is as it was.

#include "check.h"

static void null_is_refused_where_something_is_needed(void) {
    mq_allocator a = 77;
    FAILS(mq_create(NULL, NULL, &a), MQ_STATUS_INVALID_ARGUMENT, "device is NULL");
    CHECK(a == 0);
    FAILS(mq_create("sim:h200", NULL, NULL), MQ_STATUS_INVALID_ARGUMENT, "allocator is NULL");
    a = create("sim:h200,capacity=1GiB", "");
    FAILS(mq_malloc(a, 512, NULL, NULL), MQ_STATUS_INVALID_ARGUMENT, "address is NULL");
    FAILS(mq_size_of(a, get(a, 512, NULL), NULL), MQ_STATUS_INVALID_ARGUMENT, "size is NULL");
    FAILS(mq_get_stats(a, NULL), MQ_STATUS_INVALID_ARGUMENT, "stats is NULL");
    FAILS(mq_stats_json(a, NULL, 1 << 20, NULL), MQ_STATUS_INVALID_ARGUMENT, "buffer is NULL");
    FAILS(mq_snapshot(a, NULL), MQ_STATUS_INVALID_ARGUMENT, "path is NULL");
    FAILS(mq_record_write(a, NULL), MQ_STATUS_INVALID_ARGUMENT, "path is NULL");
    FAILS(mq_whatif_json(NULL, "sim:h200", "", NULL, 0, NULL), MQ_STATUS_INVALID_ARGUMENT, "path is NULL");
    FAILS(mq_whatif_json("x", NULL, "", NULL, 0, NULL), MQ_STATUS_INVALID_ARGUMENT, "device is NULL");
    FAILS(mq_whatif_json("x", "cuda:0", "", NULL, 0, NULL), MQ_STATUS_DEVICE, "cuda:0");
    FAILS(mq_whatif_json("x", "sim:h200", "stitch", NULL, 0, NULL), MQ_STATUS_OPTIONS, "stitch");
    FAILS(mq_read_options(NULL, NULL, 0, NULL), MQ_STATUS_INVALID_ARGUMENT, "options is NULL");
    FAILS(mq_read_options("strateg:stitch", NULL, 0, NULL), MQ_STATUS_OPTIONS, "did you mean `strategy`");
    FAILS(mq_read_options("max_views:7", NULL, 0, NULL), MQ_STATUS_BUFFER_TOO_SMALL, "12 bytes");
    FAILS(mq_whatif_json("/nowhere/x", "sim:h200", "", NULL, 0, NULL), MQ_STATUS_FILE, "/nowhere/x");
    FAILS(mq_on_memory_pressure(a, NULL, NULL, NULL), MQ_STATUS_INVALID_ARGUMENT, "callback is NULL");
    FAILS(mq_pool_create(a, NULL), MQ_STATUS_INVALID_ARGUMENT, "pool is NULL");
    mq_pool pool;
    OK(mq_pool_create(a, &pool));
    FAILS(mq_pool_malloc(a, pool, 512, NULL, NULL), MQ_STATUS_INVALID_ARGUMENT, "address is NULL");
    FAILS(mq_pool_begin_streams(a, pool, NULL, 1, 0), MQ_STATUS_INVALID_ARGUMENT, "streams is NULL");
    FAILS(mq_pool_begin_filter(a, pool, NULL, NULL, 0), MQ_STATUS_INVALID_ARGUMENT, "filter is NULL");
    FAILS(mq_pool_begin_thread(a, pool, 4), MQ_STATUS_INVALID_ARGUMENT, "MQ_POOL_CAPTURING");
    FAILS(mq_pool_get_stats(a, pool, NULL), MQ_STATUS_INVALID_ARGUMENT, "stats is NULL");
    FAILS(mq_plugged(0, NULL), MQ_STATUS_INVALID_ARGUMENT, "allocator is NULL");
    CHECK(stats_of(a).allocation.all.current == 1);
    OK(mq_check(a));
    OK(mq_destroy(a));
}

static void devices_and_options_are_checked(void) {
    mq_allocator a;
    FAILS(mq_create("sim:h20", NULL, &a), MQ_STATUS_DEVICE, "did you mean `h200`");
    FAILS(mq_create("gpu0", NULL, &a), MQ_STATUS_DEVICE, "cuda:0");
    FAILS(mq_create("cuda:x", NULL, &a), MQ_STATUS_DEVICE, "cuda:x");
    FAILS(mq_create("cuda:4000000000", NULL, &a), MQ_STATUS_DEVICE, "");
    FAILS(mq_create("", NULL, &a), MQ_STATUS_DEVICE, "no device");
    FAILS(mq_create("sim:h200\xff", NULL, &a), MQ_STATUS_INVALID_ARGUMENT, "device is not UTF-8");
    FAILS(mq_create("sim:h200", "strategy:stich", &a), MQ_STATUS_OPTIONS, "did you mean `stitch`");
    FAILS(mq_create("cuda:0", "strategy", &a), MQ_STATUS_OPTIONS, "key:value");
    FAILS(mq_create("sim:h200", "\xff", &a), MQ_STATUS_INVALID_ARGUMENT, "options is not UTF-8");
    CHECK(a == 0);
    a = create("sim:h200", NULL);
    FAILS(mq_set_memory_fraction(a, 1.5), MQ_STATUS_OPTIONS, "from 0 to 1");
    OK(mq_destroy(a));
}

static void addresses_are_checked(void) {
    mq_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch");
    mq_allocator b = create("sim:h200,capacity=1GiB", "strategy:stitch");
    void *address = get(a, 4 * MIB, NULL);
    int local = 0;
    // Freed twice.
    OK(mq_free(a, address));
    FAILS(mq_free(a, address), MQ_STATUS_INVALID_ADDRESS, "freed twice");
    FAILS(mq_free_on(a, address, NULL), MQ_STATUS_INVALID_ADDRESS, "freed twice");
    // Of nobody, or of another allocator.
    FAILS(mq_free(a, &local), MQ_STATUS_INVALID_ADDRESS, "live allocation");
    FAILS(mq_record_stream(a, &local, stream_of(9)), MQ_STATUS_INVALID_ADDRESS, "live allocation");
    address = get(a, 4 * MIB, NULL);
    FAILS(mq_free(b, address), MQ_STATUS_INVALID_ADDRESS, "another allocator");
    // In the middle of a block.
    FAILS(mq_free(a, (char *)address + 512), MQ_STATUS_INVALID_ADDRESS, "live allocation");
    size_t size = 1;
    FAILS(mq_size_of(a, (char *)address + 512, &size), MQ_STATUS_INVALID_ADDRESS, "live allocation");
    CHECK(size == 0);
    // Too large for any device, and for this one.
    void *none = &local;
    FAILS(mq_malloc(a, SIZE_MAX, NULL, &none), MQ_STATUS_REQUEST_TOO_LARGE, "2^60");
    CHECK(none == NULL);
    FAILS(mq_malloc(a, 2 * GIB, NULL, &none), MQ_STATUS_OUT_OF_MEMORY, "2.00 GiB");
    CHECK(stats_of(a).allocated_bytes.all.current == 4 * MIB);
    OK(mq_check(a));
    OK(mq_free(a, address));
    OK(mq_destroy(a));
    OK(mq_destroy(b));
}

static void the_default_stream_of_each_thread_is_refused(void) {
    mq_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch");
    mq_stream per_thread = stream_of(2);
    void *address;
    FAILS(mq_malloc(a, 4 * MIB, per_thread, &address), MQ_STATUS_INVALID_STREAM, "cudaStreamPerThread");
    address = get(a, 4 * MIB, NULL);
    FAILS(mq_free_on(a, address, per_thread), MQ_STATUS_INVALID_STREAM, "cudaStreamPerThread");
    FAILS(mq_record_stream(a, address, per_thread), MQ_STATUS_INVALID_STREAM, "cudaStreamPerThread");
    FAILS(mq_forget_stream(a, per_thread), MQ_STATUS_INVALID_STREAM, "cudaStreamPerThread");
    mq_pool pool;
    OK(mq_pool_create(a, &pool));
    FAILS(mq_pool_begin_streams(a, pool, &per_thread, 1, 0), MQ_STATUS_INVALID_STREAM, "cudaStreamPerThread");
    CHECK(stats_of(a).allocation.all.current == 1);
    OK(mq_free(a, address));
    OK(mq_destroy(a));
}

static void handles_are_checked(void) {
    mq_allocator a = create("sim:h200", NULL);
    void *address = get(a, 512, NULL);
    OK(mq_destroy(a));
    mq_stats stats;
    stats.size = sizeof stats;
    mq_pool pool = {1, 1};
    uint64_t bytes;
    size_t size;
    FAILS(mq_destroy(a), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_malloc(a, 512, NULL, &address), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_free(a, &stats), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_free_on(a, &stats, NULL), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_record_stream(a, &stats, NULL), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_forget_stream(a, NULL), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_enable_peer_access(a, 1), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_size_of(a, &stats, &size), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_empty_cache(a, &bytes), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_trim(a, 1, &bytes), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_set_memory_limit(a, 1), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_set_memory_fraction(a, 1), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_check(a), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_remove_memory_callback(a, 0), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_get_stats(a, &stats), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_reset_peak_stats(a), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_stats_json(a, NULL, 0, &size), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_pool_create(a, &pool), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_pool_end(a, pool), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_snapshot(a, "never.pickle"), MQ_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(mq_record_start(a, 1), MQ_STATUS_INVALID_HANDLE, "destroyed");
    // A new allocator does not answer to an old handle, also where it lies in the same place.
    for (int i = 0; i < 100; i++) {
        mq_allocator b = create("sim:h200", NULL);
        CHECK(b != a);
        FAILS(mq_malloc(a, 512, NULL, &address), MQ_STATUS_INVALID_HANDLE, "destroyed");
        OK(mq_destroy(b));
    }
    // Numbers that never were handles.
    FAILS(mq_free(0, NULL), MQ_STATUS_INVALID_HANDLE, "0 is no allocator");
    for (mq_allocator wrong = 1; wrong != 0; wrong <<= 1) {
        CHECK(mq_check(wrong) == MQ_STATUS_INVALID_HANDLE);
        CHECK(mq_check(~wrong) == MQ_STATUS_INVALID_HANDLE);
        CHECK(mq_check(a ^ wrong) == MQ_STATUS_INVALID_HANDLE);
        CHECK(mq_destroy(wrong) == MQ_STATUS_INVALID_HANDLE);
    }
}

static void there_is_a_bound_on_allocators(void) {
    mq_allocator all[1025];
    int made = 0;
    while (made < 1025 && mq_create("sim:h200", NULL, &all[made]) == MQ_STATUS_OK) {
        made++;
    }
    CHECK(made == 1024 && all[made] == 0 && mq_last_error() == MQ_STATUS_TOO_MANY_ALLOCATORS);
    OK(mq_destroy(all[500]));
    all[500] = create("sim:h200", NULL);
    for (int i = 0; i < made; i++) {
        OK(mq_destroy(all[i]));
    }
}

static void structs_may_be_larger_than_the_library_knows(void) {
    mq_allocator a = create("sim:h200", NULL);
    struct {
        mq_stats known;
        uint64_t later[4];
    } grown;
    memset(&grown, 0xee, sizeof grown);
    grown.known.size = sizeof grown;
    OK(mq_get_stats(a, &grown.known));
    CHECK(grown.known.size == sizeof(mq_stats) && grown.later[0] == 0 && grown.later[3] == 0);
    mq_stats small;
    memset(&small, 0xee, sizeof small);
    size_t sizes[] = {0, 8, sizeof small - 1, 1 << 20, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        small.size = sizes[i];
        FAILS(mq_get_stats(a, &small), MQ_STATUS_INVALID_ARGUMENT, "sizeof");
        CHECK(small.size == sizes[i] && small.num_ooms == 0xeeeeeeeeeeeeeeee);
    }
    OK(mq_destroy(a));
}

static void pools_are_checked(void) {
    mq_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch");
    mq_pool pool, none = {0, 0}, unknown = {5, 5};
    void *address;
    OK(mq_pool_create(a, &pool));
    FAILS(mq_pool_malloc(a, unknown, 512, NULL, &address), MQ_STATUS_UNKNOWN_POOL, "(5, 5)");
    FAILS(mq_pool_open(a, none), MQ_STATUS_UNKNOWN_POOL, "(0, 0)");
    FAILS(mq_pool_retain(a, unknown), MQ_STATUS_UNKNOWN_POOL, "(5, 5)");
    FAILS(mq_pool_end(a, pool), MQ_STATUS_POOL_NOT_ROUTED, "no requests");
    OK(mq_pool_begin_thread(a, pool, 0));
    FAILS(mq_pool_begin_thread(a, pool, 0), MQ_STATUS_POOL_ROUTED, "already");
    OK(mq_pool_end(a, pool));
    OK(mq_pool_release(a, pool));
    FAILS(mq_pool_release(a, pool), MQ_STATUS_UNKNOWN_POOL, "released");
    OK(mq_destroy(a));
}

static void statuses_have_names(void) {
    CHECK(strcmp(mq_status_name(MQ_STATUS_OK), "MQ_STATUS_OK") == 0);
    CHECK(strcmp(mq_status_name(MQ_STATUS_INTERNAL), "MQ_STATUS_INTERNAL") == 0);
    CHECK(strcmp(mq_status_name(MQ_STATUS_SOURCE), "MQ_STATUS_SOURCE") == 0);
    CHECK(strcmp(mq_status_name(MQ_STATUS_IPC + 1), "MQ_STATUS_UNKNOWN") == 0);
    CHECK(strcmp(mq_status_name(-1), "MQ_STATUS_UNKNOWN") == 0);
}

static void the_last_error_stays_until_the_next(void) {
    mq_clear_last_error();
    CHECK(mq_last_error() == MQ_STATUS_OK && mq_last_error_text()[0] == 0 && mq_last_driver_status() == 0);
    mq_allocator a;
    CHECK(mq_create("sim:h20", NULL, &a) == MQ_STATUS_DEVICE);
    OK(mq_create("sim:h200", NULL, &a));
    CHECK(mq_last_error() == MQ_STATUS_DEVICE && strstr(mq_last_error_text(), "h20") != NULL);
    OK(mq_destroy(a));
}

int main(void) {
    null_is_refused_where_something_is_needed();
    devices_and_options_are_checked();
    addresses_are_checked();
    the_default_stream_of_each_thread_is_refused();
    handles_are_checked();
    there_is_a_bound_on_allocators();
    structs_may_be_larger_than_the_library_knows();
    pools_are_checked();
    statuses_have_names();
    the_last_error_stays_until_the_next();
    return 0;
}
