// What a wrong program gets: an error with a text, and an allocator that is as it was.

#include "check.h"

static void null_is_refused_where_something_is_needed(void) {
    seam_allocator a = 77;
    FAILS(seam_create(NULL, NULL, &a), SEAM_STATUS_INVALID_ARGUMENT, "device is NULL");
    CHECK(a == 0);
    FAILS(seam_create("sim:h200", NULL, NULL), SEAM_STATUS_INVALID_ARGUMENT, "allocator is NULL");
    a = create("sim:h200,capacity=1GiB", "");
    FAILS(seam_malloc(a, 512, NULL, NULL), SEAM_STATUS_INVALID_ARGUMENT, "address is NULL");
    FAILS(seam_size_of(a, get(a, 512, NULL), NULL), SEAM_STATUS_INVALID_ARGUMENT, "size is NULL");
    FAILS(seam_get_stats(a, NULL), SEAM_STATUS_INVALID_ARGUMENT, "stats is NULL");
    FAILS(seam_stats_json(a, NULL, 1 << 20, NULL), SEAM_STATUS_INVALID_ARGUMENT, "buffer is NULL");
    FAILS(seam_snapshot(a, NULL), SEAM_STATUS_INVALID_ARGUMENT, "path is NULL");
    FAILS(seam_record_write(a, NULL), SEAM_STATUS_INVALID_ARGUMENT, "path is NULL");
    FAILS(seam_whatif_json(NULL, "sim:h200", "", NULL, 0, NULL), SEAM_STATUS_INVALID_ARGUMENT, "path is NULL");
    FAILS(seam_whatif_json("x", NULL, "", NULL, 0, NULL), SEAM_STATUS_INVALID_ARGUMENT, "device is NULL");
    FAILS(seam_whatif_json("x", "cuda:0", "", NULL, 0, NULL), SEAM_STATUS_DEVICE, "cuda:0");
    FAILS(seam_whatif_json("x", "sim:h200", "stitch", NULL, 0, NULL), SEAM_STATUS_OPTIONS, "stitch");
    FAILS(seam_read_options(NULL, NULL, 0, NULL), SEAM_STATUS_INVALID_ARGUMENT, "options is NULL");
    FAILS(seam_read_options("strateg:stitch", NULL, 0, NULL), SEAM_STATUS_OPTIONS, "did you mean `strategy`");
    FAILS(seam_read_options("max_views:7", NULL, 0, NULL), SEAM_STATUS_BUFFER_TOO_SMALL, "12 bytes");
    FAILS(seam_whatif_json("/nowhere/x", "sim:h200", "", NULL, 0, NULL), SEAM_STATUS_FILE, "/nowhere/x");
    FAILS(seam_on_memory_pressure(a, NULL, NULL, NULL), SEAM_STATUS_INVALID_ARGUMENT, "callback is NULL");
    FAILS(seam_pool_create(a, NULL), SEAM_STATUS_INVALID_ARGUMENT, "pool is NULL");
    seam_pool pool;
    OK(seam_pool_create(a, &pool));
    FAILS(seam_pool_malloc(a, pool, 512, NULL, NULL), SEAM_STATUS_INVALID_ARGUMENT, "address is NULL");
    FAILS(seam_pool_begin_streams(a, pool, NULL, 1, 0), SEAM_STATUS_INVALID_ARGUMENT, "streams is NULL");
    FAILS(seam_pool_begin_filter(a, pool, NULL, NULL, 0), SEAM_STATUS_INVALID_ARGUMENT, "filter is NULL");
    FAILS(seam_pool_begin_thread(a, pool, 4), SEAM_STATUS_INVALID_ARGUMENT, "SEAM_POOL_CAPTURING");
    FAILS(seam_pool_get_stats(a, pool, NULL), SEAM_STATUS_INVALID_ARGUMENT, "stats is NULL");
    FAILS(seam_plugged(0, NULL), SEAM_STATUS_INVALID_ARGUMENT, "allocator is NULL");
    CHECK(stats_of(a).allocation.all.current == 1);
    OK(seam_check(a));
    OK(seam_destroy(a));
}

static void devices_and_options_are_checked(void) {
    seam_allocator a;
    FAILS(seam_create("sim:h20", NULL, &a), SEAM_STATUS_DEVICE, "did you mean `h200`");
    FAILS(seam_create("gpu0", NULL, &a), SEAM_STATUS_DEVICE, "cuda:0");
    FAILS(seam_create("cuda:x", NULL, &a), SEAM_STATUS_DEVICE, "cuda:x");
    FAILS(seam_create("cuda:4000000000", NULL, &a), SEAM_STATUS_DEVICE, "");
    FAILS(seam_create("", NULL, &a), SEAM_STATUS_DEVICE, "no device");
    FAILS(seam_create("sim:h200\xff", NULL, &a), SEAM_STATUS_INVALID_ARGUMENT, "device is not UTF-8");
    FAILS(seam_create("sim:h200", "strategy:stich", &a), SEAM_STATUS_OPTIONS, "did you mean `stitch`");
    FAILS(seam_create("cuda:0", "strategy", &a), SEAM_STATUS_OPTIONS, "key:value");
    FAILS(seam_create("sim:h200", "\xff", &a), SEAM_STATUS_INVALID_ARGUMENT, "options is not UTF-8");
    CHECK(a == 0);
    a = create("sim:h200", NULL);
    FAILS(seam_set_memory_fraction(a, 1.5), SEAM_STATUS_OPTIONS, "from 0 to 1");
    OK(seam_destroy(a));
}

static void addresses_are_checked(void) {
    seam_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch");
    seam_allocator b = create("sim:h200,capacity=1GiB", "strategy:stitch");
    void *address = get(a, 4 * MIB, NULL);
    int local = 0;
    // Freed twice.
    OK(seam_free(a, address));
    FAILS(seam_free(a, address), SEAM_STATUS_INVALID_ADDRESS, "freed twice");
    FAILS(seam_free_on(a, address, NULL), SEAM_STATUS_INVALID_ADDRESS, "freed twice");
    // Of nobody, or of another allocator.
    FAILS(seam_free(a, &local), SEAM_STATUS_INVALID_ADDRESS, "live allocation");
    FAILS(seam_record_stream(a, &local, stream_of(9)), SEAM_STATUS_INVALID_ADDRESS, "live allocation");
    address = get(a, 4 * MIB, NULL);
    FAILS(seam_free(b, address), SEAM_STATUS_INVALID_ADDRESS, "another allocator");
    // In the middle of a block.
    FAILS(seam_free(a, (char *)address + 512), SEAM_STATUS_INVALID_ADDRESS, "live allocation");
    size_t size = 1;
    FAILS(seam_size_of(a, (char *)address + 512, &size), SEAM_STATUS_INVALID_ADDRESS, "live allocation");
    CHECK(size == 0);
    // Too large for any device, and for this one.
    void *none = &local;
    FAILS(seam_malloc(a, SIZE_MAX, NULL, &none), SEAM_STATUS_REQUEST_TOO_LARGE, "2^60");
    CHECK(none == NULL);
    FAILS(seam_malloc(a, 2 * GIB, NULL, &none), SEAM_STATUS_OUT_OF_MEMORY, "2.00 GiB");
    CHECK(stats_of(a).allocated_bytes.all.current == 4 * MIB);
    OK(seam_check(a));
    OK(seam_free(a, address));
    OK(seam_destroy(a));
    OK(seam_destroy(b));
}

static void the_default_stream_of_each_thread_is_refused(void) {
    seam_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch");
    seam_stream per_thread = stream_of(2);
    void *address;
    FAILS(seam_malloc(a, 4 * MIB, per_thread, &address), SEAM_STATUS_INVALID_STREAM, "cudaStreamPerThread");
    address = get(a, 4 * MIB, NULL);
    FAILS(seam_free_on(a, address, per_thread), SEAM_STATUS_INVALID_STREAM, "cudaStreamPerThread");
    FAILS(seam_record_stream(a, address, per_thread), SEAM_STATUS_INVALID_STREAM, "cudaStreamPerThread");
    FAILS(seam_forget_stream(a, per_thread), SEAM_STATUS_INVALID_STREAM, "cudaStreamPerThread");
    seam_pool pool;
    OK(seam_pool_create(a, &pool));
    FAILS(seam_pool_begin_streams(a, pool, &per_thread, 1, 0), SEAM_STATUS_INVALID_STREAM, "cudaStreamPerThread");
    CHECK(stats_of(a).allocation.all.current == 1);
    OK(seam_free(a, address));
    OK(seam_destroy(a));
}

static void handles_are_checked(void) {
    seam_allocator a = create("sim:h200", NULL);
    void *address = get(a, 512, NULL);
    OK(seam_destroy(a));
    seam_stats stats;
    stats.size = sizeof stats;
    seam_pool pool = {1, 1};
    uint64_t bytes;
    size_t size;
    FAILS(seam_destroy(a), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_malloc(a, 512, NULL, &address), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_free(a, &stats), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_free_on(a, &stats, NULL), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_record_stream(a, &stats, NULL), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_forget_stream(a, NULL), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_set_borrowed(a, NULL), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_enable_peer_access(a, 1), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_size_of(a, &stats, &size), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_empty_cache(a, &bytes), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_trim(a, 1, &bytes), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_set_memory_limit(a, 1), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_set_memory_fraction(a, 1), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_check(a), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_remove_memory_callback(a, 0), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_get_stats(a, &stats), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_reset_peak_stats(a), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_stats_json(a, NULL, 0, &size), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_pool_create(a, &pool), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_pool_end(a, pool), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_snapshot(a, "never.pickle"), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    FAILS(seam_record_start(a, 1), SEAM_STATUS_INVALID_HANDLE, "destroyed");
    // A new allocator does not answer to an old handle, also where it lies in the same place.
    for (int i = 0; i < 100; i++) {
        seam_allocator b = create("sim:h200", NULL);
        CHECK(b != a);
        FAILS(seam_malloc(a, 512, NULL, &address), SEAM_STATUS_INVALID_HANDLE, "destroyed");
        OK(seam_destroy(b));
    }
    // Numbers that never were handles.
    FAILS(seam_free(0, NULL), SEAM_STATUS_INVALID_HANDLE, "0 is no allocator");
    for (seam_allocator wrong = 1; wrong != 0; wrong <<= 1) {
        CHECK(seam_check(wrong) == SEAM_STATUS_INVALID_HANDLE);
        CHECK(seam_check(~wrong) == SEAM_STATUS_INVALID_HANDLE);
        CHECK(seam_check(a ^ wrong) == SEAM_STATUS_INVALID_HANDLE);
        CHECK(seam_destroy(wrong) == SEAM_STATUS_INVALID_HANDLE);
    }
}

static void there_is_a_bound_on_allocators(void) {
    seam_allocator all[1025];
    int made = 0;
    while (made < 1025 && seam_create("sim:h200", NULL, &all[made]) == SEAM_STATUS_OK) {
        made++;
    }
    CHECK(made == 1024 && all[made] == 0 && seam_last_error() == SEAM_STATUS_TOO_MANY_ALLOCATORS);
    OK(seam_destroy(all[500]));
    all[500] = create("sim:h200", NULL);
    for (int i = 0; i < made; i++) {
        OK(seam_destroy(all[i]));
    }
}

static void structs_may_be_larger_than_the_library_knows(void) {
    seam_allocator a = create("sim:h200", NULL);
    struct {
        seam_stats known;
        uint64_t later[4];
    } grown;
    memset(&grown, 0xee, sizeof grown);
    grown.known.size = sizeof grown;
    OK(seam_get_stats(a, &grown.known));
    CHECK(grown.known.size == sizeof(seam_stats) && grown.later[0] == 0 && grown.later[3] == 0);
    seam_stats small;
    memset(&small, 0xee, sizeof small);
    size_t sizes[] = {0, 8, sizeof small - 1, 1 << 20, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        small.size = sizes[i];
        FAILS(seam_get_stats(a, &small), SEAM_STATUS_INVALID_ARGUMENT, "sizeof");
        CHECK(small.size == sizes[i] && small.num_ooms == 0xeeeeeeeeeeeeeeee);
    }
    OK(seam_destroy(a));
}

static void pools_are_checked(void) {
    seam_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch");
    seam_pool pool, none = {0, 0}, unknown = {5, 5};
    void *address;
    OK(seam_pool_create(a, &pool));
    FAILS(seam_pool_malloc(a, unknown, 512, NULL, &address), SEAM_STATUS_UNKNOWN_POOL, "(5, 5)");
    FAILS(seam_pool_open(a, none), SEAM_STATUS_UNKNOWN_POOL, "(0, 0)");
    FAILS(seam_pool_retain(a, unknown), SEAM_STATUS_UNKNOWN_POOL, "(5, 5)");
    FAILS(seam_pool_end(a, pool), SEAM_STATUS_POOL_NOT_ROUTED, "no requests");
    OK(seam_pool_begin_thread(a, pool, 0));
    /* One inside of the other; a route that is not of threads is refused. */
    OK(seam_pool_begin_thread(a, pool, 0));
    FAILS(seam_pool_begin_streams(a, pool, NULL, 0, 0), SEAM_STATUS_POOL_ROUTED, "already");
    FAILS(seam_pool_begin_thread(a, pool, SEAM_POOL_CAPTURING), SEAM_STATUS_POOL_ROUTED, "already");
    OK(seam_pool_end(a, pool));
    OK(seam_pool_end(a, pool));
    FAILS(seam_pool_end(a, pool), SEAM_STATUS_POOL_NOT_ROUTED, "no requests");
    OK(seam_pool_release(a, pool));
    FAILS(seam_pool_release(a, pool), SEAM_STATUS_UNKNOWN_POOL, "released");
    OK(seam_destroy(a));
}

static void statuses_have_names(void) {
    CHECK(strcmp(seam_status_name(SEAM_STATUS_OK), "SEAM_STATUS_OK") == 0);
    CHECK(strcmp(seam_status_name(SEAM_STATUS_INTERNAL), "SEAM_STATUS_INTERNAL") == 0);
    CHECK(strcmp(seam_status_name(SEAM_STATUS_SOURCE), "SEAM_STATUS_SOURCE") == 0);
    CHECK(strcmp(seam_status_name(SEAM_STATUS_BEYOND_CAPACITY + 1), "SEAM_STATUS_UNKNOWN") == 0);
    CHECK(strcmp(seam_status_name(-1), "SEAM_STATUS_UNKNOWN") == 0);
}

static void the_last_error_stays_until_the_next(void) {
    seam_clear_last_error();
    CHECK(seam_last_error() == SEAM_STATUS_OK && seam_last_error_text()[0] == 0 && seam_last_driver_status() == 0);
    seam_allocator a;
    CHECK(seam_create("sim:h20", NULL, &a) == SEAM_STATUS_DEVICE);
    OK(seam_create("sim:h200", NULL, &a));
    CHECK(seam_last_error() == SEAM_STATUS_DEVICE && strstr(seam_last_error_text(), "h20") != NULL);
    OK(seam_destroy(a));
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
