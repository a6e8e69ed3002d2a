// What an allocator is for: memory comes, is used again, waits for streams, goes back, and is counted.

#include "check.h"

static void memory_is_reused(void) {
    seam_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch");
    void *first = get(a, 10 * MIB, NULL);
    size_t size = 0;
    OK(seam_size_of(a, first, &size));
    CHECK(size == 10 * MIB);
    OK(seam_free(a, first));
    CHECK(get(a, 10 * MIB, NULL) == first);
    // NULL and cudaStreamLegacy are one stream.
    OK(seam_free(a, first));
    CHECK(get(a, 10 * MIB, stream_of(1)) == first);
    OK(seam_free_on(a, first, NULL));
    seam_stats stats = stats_of(a);
    CHECK(stats.allocation.all.allocated == 3 && stats.allocation.all.current == 0);
    CHECK(stats.reserved_bytes.all.current == 10 * MIB && stats.reserved_bytes.large_pool.peak == 10 * MIB);
    void *nothing = &stats;
    OK(seam_malloc(a, 0, NULL, &nothing));
    CHECK(nothing == NULL);
    OK(seam_free(a, NULL));
    OK(seam_check(a));
    OK(seam_destroy(a));
}

static void an_allocation_grows_at_one_address(void) {
    seam_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch,chunk_size_mb:4");
    void *cache = NULL, *other = NULL;
    size_t len, mapped, capacity;
    OK(seam_reserve(a, 512 * MIB, NULL, &cache));
    CHECK(cache != NULL && stats_of(a).reserved_bytes.all.current == 0);
    for (size_t size = 0; size <= 100 * MIB; size += 320 << 10) {
        OK(seam_grow(a, cache, size));
    }
    OK(seam_extent(a, cache, &len, &mapped, &capacity));
    CHECK(len == 100 * MIB && mapped == 100 * MIB && capacity == 512 * MIB);
    CHECK(stats_of(a).reserved_bytes.all.current == mapped && stats_of(a).allocated_bytes.all.current == mapped);
    size_t size;
    OK(seam_size_of(a, cache, &size));
    CHECK(size == mapped);
    OK(seam_shrink(a, cache, 10 * MIB));
    OK(seam_extent(a, cache, NULL, &mapped, NULL));
    CHECK(mapped == 10 * MIB);
    OK(seam_resize(a, cache, 64 * MIB));
    OK(seam_resize(a, cache, MIB));
    OK(seam_extent(a, cache, &len, NULL, NULL));
    CHECK(len == MIB);
    FAILS(seam_grow(a, cache, 513 * MIB), SEAM_STATUS_BEYOND_CAPACITY, "reserved at");
    FAILS(seam_grow(a, &size, MIB), SEAM_STATUS_INVALID_ADDRESS, "live allocation");
    FAILS(seam_extent(a, &size, NULL, NULL, NULL), SEAM_STATUS_INVALID_ADDRESS, "live allocation");
    OK(seam_set_memory_limit(a, 128 * MIB));
    FAILS(seam_grow(a, cache, 200 * MIB), SEAM_STATUS_OUT_OF_MEMORY, "limit");
    OK(seam_record_stream(a, cache, stream_of(0x100)));
    OK(seam_free_on(a, cache, stream_of(0x200)));
    seam_pool tag;
    OK(seam_pool_create_tag(a, &tag));
    OK(seam_pool_reserve(a, tag, 64 * MIB, NULL, &other));
    OK(seam_grow(a, other, 5 * MIB));
    OK(seam_pool_sleep(a, tag, SEAM_BACKUP_DISCARD, NULL, NULL));
    FAILS(seam_grow(a, other, 32 * MIB), SEAM_STATUS_POOL_ASLEEP, "sleeps");
    OK(seam_pool_wake(a, tag, NULL));
    OK(seam_free(a, other));
    OK(seam_pool_release(a, tag));
    CHECK(stats_of(a).allocation.all.current == 0);
    OK(seam_check(a));
    OK(seam_destroy(a));
    seam_allocator caching = create("sim:h200,capacity=1GiB", "strategy:caching");
    FAILS(seam_reserve(caching, MIB, NULL, &other), SEAM_STATUS_NOT_GROWABLE, "stitch");
    CHECK(other == NULL);
    OK(seam_destroy(caching));
}

static void memory_waits_for_the_streams_that_used_it(void) {
    const char *options = "strategy:stitch,sharing:never";
    seam_stream mine = stream_of(0x100), other = stream_of(0x200);
    seam_allocator sharing = create("sim:h200,capacity=1GiB", "strategy:stitch");
    void *under = get(sharing, 4 * MIB, mine);
    OK(seam_free_under(sharing, under, other));
    CHECK(stats_of(sharing).active_bytes.all.current == 0);
    CHECK(get(sharing, 4 * MIB, mine) == under);
    FAILS(seam_free_under(sharing, &sharing, other), SEAM_STATUS_INVALID_ADDRESS, "live allocation");
    OK(seam_free_under(sharing, NULL, other));
    OK(seam_destroy(sharing));
    for (int how = 0; how < 3; how++) {
        seam_allocator a = create("sim:h200,capacity=1GiB", options);
        void *address = get(a, 4 * MIB, mine);
        if (how == 0) {
            OK(seam_free_on(a, address, mine));
        } else if (how == 1) {
            OK(seam_free_on(a, address, other));
        } else {
            OK(seam_record_stream(a, address, other));
            OK(seam_free(a, address));
        }
        seam_stats stats = stats_of(a);
        CHECK(stats.allocated_bytes.all.current == 0);
        CHECK(stats.active_bytes.all.current == (how == 0 ? 0 : 4 * MIB));
        uint64_t given = 0;
        OK(seam_empty_cache(a, &given));
        CHECK(given == 4 * MIB);
        CHECK(stats_of(a).reserved_bytes.all.current == 0);
        OK(seam_check(a));
        OK(seam_destroy(a));
    }
}

static void a_forgotten_stream_leaves_its_memory_to_others(void) {
    seam_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch");
    seam_stream gone = stream_of(0x100), other = stream_of(0x200);
    void *address = get(a, 600 * MIB, gone);
    OK(seam_free(a, address));
    OK(seam_forget_stream(a, gone));
    CHECK(get(a, 600 * MIB, other) == address);
    OK(seam_free(a, address));
    // A simulated device is alone.
    FAILS(seam_enable_peer_access(a, 1), SEAM_STATUS_DRIVER, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED");
    OK(seam_check(a));
    OK(seam_destroy(a));
}

static void memory_goes_back(void) {
    seam_allocator a = create("sim:h200,capacity=8GiB", "strategy:stitch");
    void *address = get(a, 256 * MIB, NULL);
    OK(seam_free(a, address));
    uint64_t given = 0;
    OK(seam_trim(a, 30 * MIB, &given));
    CHECK(given >= 30 * MIB && given < 64 * MIB);
    OK(seam_set_memory_limit(a, 100 * MIB));
    CHECK(stats_of(a).reserved_bytes.all.current <= 100 * MIB);
    FAILS(seam_malloc(a, 101 * MIB, NULL, &address), SEAM_STATUS_OUT_OF_MEMORY, "101.00 MiB");
    CHECK(address == NULL);
    OK(seam_set_memory_limit(a, SEAM_NO_LIMIT));
    OK(seam_set_memory_fraction(a, 0.5));
    FAILS(seam_malloc(a, 5 * GIB, NULL, &address), SEAM_STATUS_OUT_OF_MEMORY, "5.00 GiB");
    OK(seam_set_memory_fraction(a, 1));
    OK(seam_free(a, get(a, 5 * GIB, NULL)));
    OK(seam_empty_cache(a, NULL));
    CHECK(stats_of(a).num_ooms == 2);
    OK(seam_reset_accumulated_stats(a));
    OK(seam_reset_peak_stats(a));
    seam_stats stats = stats_of(a);
    CHECK(stats.num_ooms == 0 && stats.reserved_bytes.all.peak == 0);
    OK(seam_destroy(a));
}

struct cache {
    seam_allocator allocator;
    void *entry;
    int calls;
    seam_memory_pressure seen;
};

static bool give_up_cache(const seam_memory_pressure *pressure, void *user) {
    struct cache *cache = user;
    cache->calls++;
    cache->seen = *pressure;
    if (cache->entry == NULL) {
        return false;
    }
    OK(seam_free(cache->allocator, cache->entry));
    cache->entry = NULL;
    return true;
}

static void programs_are_asked_before_a_request_fails(void) {
    seam_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch");
    struct cache cache = {a, get(a, 600 * MIB, NULL), 0, {0}};
    uint64_t id = 7;
    OK(seam_on_memory_pressure(a, give_up_cache, &cache, &id));
    void *large = get(a, 700 * MIB, stream_of(0x300));
    CHECK(cache.calls == 1 && cache.entry == NULL);
    CHECK(cache.seen.size == sizeof cache.seen && cache.seen.requested == 700 * MIB);
    CHECK(cache.seen.stream == stream_of(0x300) && cache.seen.limit == SEAM_NO_LIMIT);
    CHECK(cache.seen.reserved == 600 * MIB && cache.seen.allocated == 600 * MIB);
    OK(seam_remove_memory_callback(a, id));
    FAILS(seam_remove_memory_callback(a, id), SEAM_STATUS_INVALID_ARGUMENT, "callback");
    void *more;
    FAILS(seam_malloc(a, 700 * MIB, NULL, &more), SEAM_STATUS_OUT_OF_MEMORY, "700.00 MiB");
    CHECK(cache.calls == 1);
    OK(seam_free(a, large));
    OK(seam_destroy(a));
}

static bool destroy_it(const seam_memory_pressure *pressure, void *user) {
    (void)pressure;
    OK(seam_destroy(*(seam_allocator *)user));
    return true;
}

static void an_allocator_may_be_destroyed_from_its_own_callback(void) {
    seam_allocator a = create("sim:h200,capacity=1GiB", NULL);
    OK(seam_on_memory_pressure(a, destroy_it, &a, NULL));
    void *address = &a;
    FAILS(seam_malloc(a, 2 * GIB, NULL, &address), SEAM_STATUS_OUT_OF_MEMORY, "2.00 GiB");
    CHECK(address == NULL);
    FAILS(seam_malloc(a, 1, NULL, &address), SEAM_STATUS_INVALID_HANDLE, "destroyed");
}

static char *json(seam_allocator a, seam_status (*ask)(seam_allocator, char *, size_t, size_t *)) {
    size_t length = 0;
    FAILS(ask(a, NULL, 0, &length), SEAM_STATUS_BUFFER_TOO_SMALL, "bytes are needed");
    char *text = malloc(length + 1);
    memset(text, 'x', length + 1);
    FAILS(ask(a, text, length, NULL), SEAM_STATUS_BUFFER_TOO_SMALL, "bytes are needed");
    CHECK(text[0] == 'x');
    OK(ask(a, text, length + 1, &length));
    CHECK(strlen(text) == length && text[0] == '{' && text[length - 1] == '}');
    return text;
}

static void figures_are_json_too(void) {
    seam_allocator a = create("sim:h200,capacity=4GiB", "strategy:stitch,max_views:7");
    OK(seam_free(a, get(a, 64 * MIB, NULL)));
    char *text = json(a, seam_stats_json);
    CHECK(strstr(text, "\"device\":\"sim:h200,capacity=4GiB\"") != NULL);
    CHECK(strstr(text, "max_views:7") != NULL);
    CHECK(strstr(text, "\"peak\":67108864") != NULL);
    CHECK(strstr(text, "\"set_access\":{\"count\":") != NULL);
    free(text);
    text = json(a, seam_fragmentation_json);
    CHECK(strstr(text, "\"reserved\":67108864") != NULL && strstr(text, "\"free\":67108864") != NULL);
    CHECK(strstr(text, "\"streams\":[{") != NULL);
    free(text);
    OK(seam_destroy(a));
}

// Three files, which the test looks into.
static void files_are_written(const char *folder) {
    char path[4096], before[4096];
    seam_allocator a = create("sim:h200,capacity=4GiB", "strategy:stitch");
    void *early = get(a, 3 * MIB, NULL);
    snprintf(path, sizeof path, "%s/trace.csv", folder);
    FAILS(seam_record_write(a, path), SEAM_STATUS_INVALID_ARGUMENT, "seam_record_start");
    OK(seam_record_start(a, 1000));
    void *late = get(a, 5 * MIB, stream_of(0x400));
    OK(seam_free(a, early));
    OK(seam_record_write(a, path));
    snprintf(path, sizeof path, "%s/snapshot.pickle", folder);
    OK(seam_snapshot(a, path));
    snprintf(path, sizeof path, "%s/trace.seam", folder);
    OK(seam_record_write(a, path));
    OK(seam_record_stop(a));
    FAILS(seam_record_write(a, path), SEAM_STATUS_INVALID_ARGUMENT, "nothing is recorded");
    snprintf(before, sizeof before, "%s/no/such/folder/x.pickle", folder);
    FAILS(seam_snapshot(a, before), SEAM_STATUS_FILE, "x.pickle");
    OK(seam_record_start(a, 10));
    snprintf(before, sizeof before, "%s/trace.txt", folder);
    FAILS(seam_record_write(a, before), SEAM_STATUS_FILE, ".seam");
    OK(seam_free(a, late));
    OK(seam_destroy(a));
}

static int count_of(const char *text, const char *part) {
    int count = 0;
    while ((text = strstr(text, part)) != NULL) {
        count++;
        text += strlen(part);
    }
    return count;
}

// Each strategy beside PyTorch's two, on the device that is asked for or an H200's.
static void what_a_file_holds_is_replayed(const char *folder) {
    char path[4096], text[16384];
    snprintf(path, sizeof path, "%s/job.csv", folder);
    FILE *job = fopen(path, "w");
    fprintf(job, "a,1,104857600,0\na,2,52428800,0\nr,2\nf,2\n");
    fclose(job);
    OK(seam_whatif_json(path, "sim:h200,capacity=200MiB", "", text, sizeof text, NULL));
    CHECK(count_of(text, "\"strategy\":") == 4 && count_of(text, "\"device_from\":\"asked\"") == 4);
    CHECK(count_of(text, "\"native_step\":2.0") == 4 && count_of(text, "\"native_reserved\":157286400") == 4);
    OK(seam_whatif_json(path, "", "strategy:stitch,max_views:7", text, sizeof text, NULL));
    CHECK(count_of(text, "\"strategy\":\"stitch\"") == 1 && count_of(text, "\"strategy\":") == 1);
    CHECK(strstr(text, "\"device\":\"sim:h200\"") != NULL && strstr(text, "\"device_from\":\"unknown\"") != NULL);
    OK(seam_whatif_json(path, "", "expandable_segments:True", text, sizeof text, NULL));
    CHECK(count_of(text, "\"strategy\":\"expandable\"") == 1 && count_of(text, "\"strategy\":") == 1);
    remove(path);
    // A snapshot without a history: 30 of 40 MiB are free.
    snprintf(path, sizeof path, "%s/layout.json", folder);
    FILE *layout = fopen(path, "w");
    fprintf(layout, "{\"segments\":[{\"address\":1073741824,\"total_size\":41943040,\"segment_type\":\"large\",\"blocks\":["
                    "{\"address\":1073741824,\"size\":31457280,\"requested_size\":0,\"state\":\"inactive\"},"
                    "{\"address\":1105199104,\"size\":10485760,\"requested_size\":10485760,\"state\":\"active_allocated\"}"
                    "]}],\"device_traces\":[[]]}");
    fclose(layout);
    OK(seam_whatif_json(path, "", "", text, sizeof text, NULL));
    CHECK(count_of(text, "\"layout\":true") == 1 && strstr(text, "\"capacity\":null") != NULL);
    OK(seam_whatif_json(path, "sim:h200,capacity=60MiB", "", text, sizeof text, NULL));
    CHECK(strstr(text, "\"capacity\":62914560") != NULL && strstr(text, "\"free\":31457280") != NULL);
    remove(path);
}

#ifdef __linux__
static void host_memory_holds_bytes(void) {
    seam_allocator a = create("host:256MiB", "strategy:stitch,chunk_size_mb:2");
    unsigned char *blocks[8];
    for (int i = 0; i < 8; i++) {
        blocks[i] = get(a, 10 * MIB, NULL);
        memset(blocks[i], i + 1, 10 * MIB);
    }
    for (int i = 1; i < 8; i += 2) {
        OK(seam_free(a, blocks[i]));
    }
    // Stitched of what lay between those that are live.
    unsigned char *stitched = get(a, 40 * MIB, NULL);
    CHECK(stats_of(a).views_built == 1 && stats_of(a).reserved_bytes.all.current == 80 * MIB);
    memset(stitched, 0xee, 40 * MIB);
    for (int i = 0; i < 8; i += 2) {
        for (size_t at = 0; at < 10 * MIB; at++) {
            CHECK(blocks[i][at] == i + 1);
        }
    }
    for (size_t at = 0; at < 40 * MIB; at++) {
        CHECK(stitched[at] == 0xee);
    }
    OK(seam_destroy(a));
    FAILS(seam_create("host:lots", NULL, &a), SEAM_STATUS_DEVICE, "not a size");
    FAILS(seam_create("gpu", NULL, &a), SEAM_STATUS_DEVICE, "host:4GiB");
}
#endif

int main(int count, char **arguments) {
    CHECK(seam_abi_version() == SEAM_ABI_VERSION);
    CHECK(strlen(seam_version()) >= 5);
    memory_is_reused();
    an_allocation_grows_at_one_address();
    memory_waits_for_the_streams_that_used_it();
    a_forgotten_stream_leaves_its_memory_to_others();
    memory_goes_back();
    programs_are_asked_before_a_request_fails();
    an_allocator_may_be_destroyed_from_its_own_callback();
    figures_are_json_too();
#ifdef __linux__
    host_memory_holds_bytes();
#endif
    if (count > 1) {
        files_are_written(arguments[1]);
        what_a_file_holds_is_replayed(arguments[1]);
    }
    return 0;
}
