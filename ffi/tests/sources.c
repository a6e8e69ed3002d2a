// Private pools with segments of their own, from C: what a source is asked for, what its answers mean, when it ends.

#include "check.h"

typedef struct {
    seam_allocator allocator;
    uintptr_t next;
    int32_t answer;
    size_t allocs, frees, ends, bytes;
    void *last;
} source;

// A source runs under the allocator's lock: what would wait for itself for ever is refused.
static void refused(source *s) {
    seam_stats stats;
    stats.size = sizeof stats;
    CHECK(seam_free(s->allocator, NULL) == SEAM_STATUS_REENTRANT);
    CHECK(strstr(seam_last_error_text(), "sources of private pools") != NULL);
    CHECK(seam_get_stats(s->allocator, &stats) == SEAM_STATUS_REENTRANT);
}

static int32_t alloc(size_t bytes, void **address, void *user) {
    source *s = user;
    refused(s);
    CHECK(bytes % (2 * MIB) == 0);
    s->allocs++;
    if (s->answer != 0) {
        int32_t answer = s->answer;
        s->answer = 0;
        return answer;
    }
    *address = s->last = (void *)s->next;
    if (s->next != 0) {
        s->next += bytes;
        s->bytes += bytes;
    }
    return 0;
}

static int32_t give_back(void *address, size_t bytes, void *user) {
    source *s = user;
    refused(s);
    CHECK(address != NULL);
    if (s->answer != 0) {
        return s->answer;
    }
    s->frees++;
    s->bytes -= bytes;
    return 0;
}

static void end(void *user) {
    source *s = user;
    refused(s);
    s->ends++;
}

static source of(seam_allocator a) {
    source s = {.allocator = a, .next = (uintptr_t)0x60 << 40};
    return s;
}

static seam_pool_stats pool_stats(seam_allocator a, seam_pool pool) {
    seam_pool_stats stats;
    stats.size = sizeof stats;
    OK(seam_pool_get_stats(a, pool, &stats));
    return stats;
}

static void a_pool_has_its_memory_from_its_source(seam_allocator a) {
    source s = of(a);
    seam_pool pool = {0, 8};
    OK(seam_pool_open_with(a, pool, alloc, give_back, end, &s, 0));
    void *first, *second, *held;
    OK(seam_pool_malloc_held(a, pool, 3 * MIB, NULL, &held));
    CHECK(held == NULL && s.allocs == 0);
    OK(seam_pool_malloc(a, pool, 3 * MIB, NULL, &first));
    OK(seam_pool_malloc(a, pool, 3 * MIB, NULL, &second));
    CHECK(first == s.last && second == (char *)first + 3 * MIB && s.allocs == 1 && s.bytes == 20 * MIB);
    CHECK(pool_stats(a, pool).reserved_bytes == 20 * MIB && stats_of(a).reserved_bytes.all.current == 20 * MIB);
    OK(seam_free(a, second));
    OK(seam_pool_malloc_held(a, pool, 3 * MIB, NULL, &held));
    CHECK(held == second);
    OK(seam_check(a));
    uint64_t given = 1;
    OK(seam_pool_empty(a, pool, &given));
    CHECK(given == 0);
    OK(seam_pool_release(a, pool));
    OK(seam_free(a, second));
    OK(seam_pool_empty(a, pool, &given));
    CHECK(given == 0 && s.ends == 0);
    OK(seam_free(a, first));
    s.answer = 5;
    FAILS(seam_pool_empty(a, pool, &given), SEAM_STATUS_SOURCE, "(0, 8)");
    FAILS(seam_empty_cache(a, NULL), SEAM_STATUS_SOURCE, "answered 5");
    s.answer = 0;
    OK(seam_pool_empty(a, pool, &given));
    CHECK(given == 20 * MIB && s.frees == 1 && s.ends == 1 && s.bytes == 0);
    OK(seam_pool_empty(a, pool, NULL));
    CHECK(stats_of(a).reserved_bytes.all.current == 0);
}

static void answers_mean_what_they_say(seam_allocator a) {
    source s = of(a);
    seam_pool pool = {0, 9};
    void *address = &s;
    OK(seam_pool_open_with(a, pool, alloc, give_back, end, &s, SEAM_POOL_UNSPLIT));
    // Short of memory, it is asked again, once what there is was given back.
    s.answer = SEAM_STATUS_OUT_OF_MEMORY;
    OK(seam_pool_malloc(a, pool, MIB, NULL, &address));
    CHECK(s.allocs == 2 && pool_stats(a, pool).allocated_bytes == 2 * MIB);
    OK(seam_free(a, address));
    uintptr_t next = s.next;
    s.next = 0;
    FAILS(seam_pool_malloc(a, pool, 9 * MIB, NULL, &address), SEAM_STATUS_OUT_OF_MEMORY, "segments of its own");
    CHECK(address == NULL && stats_of(a).num_ooms == 1);
    s.next = next;
    s.answer = SEAM_STATUS_DRIVER;
    FAILS(seam_pool_malloc(a, pool, 9 * MIB, NULL, &address), SEAM_STATUS_SOURCE, "answered 13");
    s.next = next - MIB;
    FAILS(seam_pool_malloc(a, pool, 9 * MIB, NULL, &address), SEAM_STATUS_SOURCE, "part of memory that the allocator has");
    s.next = next + 8;
    FAILS(seam_pool_malloc(a, pool, 9 * MIB, NULL, &address), SEAM_STATUS_SOURCE, "cannot be");
    CHECK(stats_of(a).reserved_bytes.all.current == 2 * MIB);
    OK(seam_check(a));
    OK(seam_pool_release(a, pool));
    OK(seam_empty_cache(a, NULL));
    CHECK(s.ends == 1);
}

static void wrong_pools_end_their_source(seam_allocator a) {
    source s = of(a);
    seam_pool pool, none = {0, 0}, named = {0, 77};
    void *address;
    OK(seam_pool_create(a, &pool));
    OK(seam_pool_malloc(a, pool, MIB, NULL, &address));
    FAILS(seam_pool_open_with(a, pool, alloc, give_back, end, &s, 0), SEAM_STATUS_POOL_IN_USE, "already");
    OK(seam_free(a, address));
    OK(seam_pool_release(a, pool));
    OK(seam_pool_create(a, &pool));
    FAILS(seam_pool_open_with(a, none, alloc, give_back, end, &s, 0), SEAM_STATUS_UNKNOWN_POOL, "(0, 0)");
    FAILS(seam_pool_open_with(a, named, alloc, NULL, end, &s, 0), SEAM_STATUS_INVALID_ARGUMENT, "NULL");
    FAILS(seam_pool_open_with(a, named, alloc, give_back, end, &s, 1), SEAM_STATUS_INVALID_ARGUMENT, "SEAM_POOL_UNSPLIT");
    FAILS(seam_pool_open_with(0, named, alloc, give_back, end, &s, 0), SEAM_STATUS_INVALID_HANDLE, "");
    CHECK(s.ends == 5 && s.allocs == 0);
    OK(seam_pool_set_unsplit(a, pool));
    OK(seam_pool_malloc(a, pool, 3 * MIB, NULL, &address));
    size_t size;
    OK(seam_size_of(a, address, &size));
    CHECK(size == 20 * MIB);
    OK(seam_free(a, address));
    OK(seam_pool_release(a, pool));
    FAILS(seam_pool_set_unsplit(a, pool), SEAM_STATUS_UNKNOWN_POOL, "released");
    OK(seam_pool_open_with(a, named, NULL, NULL, end, &s, 0));
    CHECK(s.ends == 6);
    OK(seam_pool_malloc(a, named, 3 * MIB, NULL, &address));
    OK(seam_size_of(a, address, &size));
    CHECK(size == 3 * MIB);
    OK(seam_free(a, address));
    OK(seam_pool_release(a, named));
    OK(seam_empty_cache(a, NULL));
    CHECK(stats_of(a).reserved_bytes.all.current == 0);
}

static void the_end_of_an_allocator_ends_what_is_free(void) {
    seam_allocator a = create("sim:h200", NULL);
    source kept = of(a), freed = of(a);
    freed.next += (uintptr_t)1 << 40;
    seam_pool one = {0, 1}, two = {0, 2};
    void *address;
    OK(seam_pool_open_with(a, one, alloc, give_back, end, &kept, 0));
    OK(seam_pool_malloc(a, one, MIB, NULL, &address));
    OK(seam_pool_open_with(a, two, alloc, give_back, end, &freed, 0));
    OK(seam_pool_malloc(a, two, MIB, NULL, &address));
    OK(seam_free(a, address));
    // From here on the calls of a source are of a destroyed allocator; they are refused all the same.
    OK(seam_destroy(a));
    CHECK(kept.frees == 0 && kept.ends == 0 && freed.frees == 1 && freed.ends == 1);
}

static void fractions_are_told(void) {
    seam_allocator a = create("sim:h200", "per_process_memory_fraction:0.25");
    double fraction;
    OK(seam_get_memory_fraction(a, &fraction));
    CHECK(fraction == 0.25);
    OK(seam_set_memory_fraction(a, 1));
    OK(seam_get_memory_fraction(a, &fraction));
    CHECK(fraction == 1);
    FAILS(seam_get_memory_fraction(a, NULL), SEAM_STATUS_INVALID_ARGUMENT, "fraction is NULL");
    OK(seam_destroy(a));
}

int main(void) {
    const char *strategies[] = {"strategy:stitch", "strategy:caching", "strategy:expandable", "strategy:gmlake"};
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        seam_allocator a = create("sim:h200,capacity=1GiB", strategies[i]);
        a_pool_has_its_memory_from_its_source(a);
        answers_mean_what_they_say(a);
        wrong_pools_end_their_source(a);
        OK(seam_destroy(a));
    }
    the_end_of_an_allocator_ends_what_is_free();
    fractions_are_told();
    return 0;
}
