// What a program sees of an allocator from outside: events, segments, and the checkpoint of a private pool.

#include "check.h"

typedef struct {
    size_t counts[SEAM_ACTION_AWAKE + 1];
    uint64_t address, bytes;
    seam_pool pool;
    seam_allocator allocator;
    seam_status answer;
} seen;

static void note(const seam_event *event, void *user) {
    seen *all = user;
    CHECK(event->size == sizeof *event && event->action <= SEAM_ACTION_AWAKE);
    all->counts[event->action]++;
    if (event->action == SEAM_ACTION_ALLOC) {
        all->address = event->address;
        all->bytes = event->bytes;
        all->pool = event->pool;
        all->answer = seam_free(all->allocator, NULL);
    }
}

static void events_are_told(seam_allocator a) {
    seen all = {.allocator = a};
    OK(seam_record_start(a, 100));
    OK(seam_observe(a, note, &all));
    void *address = get(a, 3 * MIB - 7, stream_of(0x10));
    CHECK(all.counts[SEAM_ACTION_ALLOC] == 1 && all.counts[SEAM_ACTION_SEGMENT_MAP] == 1);
    CHECK(all.address == (uintptr_t)address && all.bytes == 3 * MIB - 7);
    CHECK(all.answer == SEAM_STATUS_REENTRANT);
    CHECK(all.pool.first == 0 && all.pool.second == 0);
    OK(seam_record_stop(a));
    OK(seam_free(a, address));
    CHECK(all.counts[SEAM_ACTION_FREE_REQUESTED] == 1 && all.counts[SEAM_ACTION_FREE_COMPLETED] == 1);
    void *none;
    CHECK(seam_malloc(a, 2000 * GIB, NULL, &none) == SEAM_STATUS_OUT_OF_MEMORY && all.counts[SEAM_ACTION_OOM] == 1);
    seam_pool pool = {4, 5};
    OK(seam_pool_open(a, pool));
    OK(seam_pool_malloc(a, pool, MIB, NULL, &address));
    CHECK(all.pool.first == 4 && all.pool.second == 5 && all.counts[SEAM_ACTION_ALLOC] == 2);
    OK(seam_free(a, address));
    OK(seam_pool_release(a, pool));
    // The recorder starts anew, and the observer goes, without the other noticing.
    OK(seam_record_start(a, 100));
    OK(seam_observe(a, NULL, NULL));
    OK(seam_free(a, get(a, MIB, NULL)));
    CHECK(all.counts[SEAM_ACTION_ALLOC] == 2);
    OK(seam_snapshot(a, "/dev/null"));
    OK(seam_record_stop(a));
    OK(seam_empty_cache(a, NULL));
}

typedef struct {
    uint64_t total, allocated, pending, requested, of_pool, end;
    seam_pool pool;
} picture;

static void add(const seam_segment *segment, const seam_block *blocks, size_t count, void *user) {
    picture *all = user;
    CHECK(segment->size == sizeof *segment && segment->is_expandable && segment->address >= all->end);
    uint64_t at = segment->address;
    for (size_t i = 0; i < count; i++) {
        CHECK(blocks[i].address == at);
        at += blocks[i].size;
        if (blocks[i].state == SEAM_BLOCK_STATE_ACTIVE_ALLOCATED) {
            all->allocated += blocks[i].size;
            all->requested += blocks[i].requested;
        }
    }
    CHECK(at == segment->address + segment->total_size);
    all->end = at;
    all->total += segment->total_size;
    if (segment->pool.first == all->pool.first && segment->pool.second == all->pool.second) {
        all->of_pool += segment->total_size;
    }
}

static void segments_are_shown(seam_allocator a) {
    seam_pool pool;
    OK(seam_pool_create(a, &pool));
    void *one = get(a, 5 * MIB + 3, NULL), *two;
    OK(seam_pool_malloc(a, pool, 700, NULL, &two));
    picture all = {.pool = pool};
    OK(seam_visit_segments(a, add, &all));
    seam_stats stats = stats_of(a);
    CHECK(all.total == stats.reserved_bytes.all.current && all.allocated == stats.allocated_bytes.all.current);
    CHECK(all.requested == 5 * MIB + 3 + 700 && all.of_pool == 2 * MIB);
    OK(seam_free(a, one));
    OK(seam_free(a, two));
    OK(seam_pool_release(a, pool));
    uint64_t largest;
    OK(seam_largest_free(a, &largest));
    CHECK(largest >= 5 * MIB && largest <= stats.reserved_bytes.all.current);
    // What the device has left is part of the same request.
    uint64_t request, free, total;
    OK(seam_largest_request(a, &request));
    OK(seam_memory_info(a, &free, &total));
    OK(seam_memory_info(a, NULL, NULL));
    CHECK(free < total && request > free && request <= largest + free);
    OK(seam_free(a, get(a, request, NULL)));
    FAILS(seam_memory_info(0, &free, &total), SEAM_STATUS_INVALID_HANDLE, "0 is no allocator");
    CHECK(free == 0 && total == 0);
    FAILS(seam_visit_segments(a, NULL, NULL), SEAM_STATUS_INVALID_ARGUMENT, "visitor is NULL");
}

// What of all blocks is spilled, and how many sleep.
typedef struct {
    uint64_t spilled;
    size_t asleep;
} elsewhere;

static void add_elsewhere(const seam_segment *segment, const seam_block *blocks, size_t count, void *user) {
    elsewhere *all = user;
    (void)segment;
    for (size_t i = 0; i < count; i++) {
        CHECK(blocks[i].spilled <= blocks[i].size);
        all->spilled += blocks[i].spilled;
        all->asleep += blocks[i].is_asleep;
    }
}

static elsewhere elsewhere_of(seam_allocator a) {
    elsewhere all = {0};
    OK(seam_visit_segments(a, add_elsewhere, &all));
    return all;
}

static void what_is_spilled_or_sleeps_is_told(void) {
    CHECK(SEAM_ACTION_SPILLED == 10 && SEAM_ACTION_RETURNED == 11 && SEAM_ACTION_ASLEEP == 12 && SEAM_ACTION_AWAKE == 13);
    seam_allocator a = create("sim:h200,capacity=64MiB", "spill:host=1GiB,chunk_size_mb:8");
    seen all = {.allocator = a};
    OK(seam_observe(a, note, &all));
    void *cold = get(a, 48 * MIB, NULL);
    void *other = get(a, 32 * MIB, NULL);
    CHECK(all.counts[SEAM_ACTION_SPILLED] == 2 && elsewhere_of(a).spilled == 16 * MIB);
    OK(seam_free(a, other));
    OK(seam_unspill(a, NULL));
    CHECK(all.counts[SEAM_ACTION_RETURNED] == 2 && elsewhere_of(a).spilled == 0);
    CHECK(stats_of(a).spill_kept_bytes == 16 * MIB && stats_of(a).spill_reused_bytes == 0);
    OK(seam_free(a, cold));
    seam_pool tag;
    OK(seam_pool_create_tag(a, &tag));
    OK(seam_pool_malloc(a, tag, 8 * MIB, NULL, &cold));
    OK(seam_pool_sleep(a, tag, SEAM_BACKUP_DISCARD, NULL, NULL));
    CHECK(all.counts[SEAM_ACTION_ASLEEP] == 1 && elsewhere_of(a).asleep == 1);
    OK(seam_pool_wake(a, tag, NULL));
    CHECK(all.counts[SEAM_ACTION_AWAKE] == 1 && elsewhere_of(a).asleep == 0);
    OK(seam_free(a, cold));
    OK(seam_pool_release(a, tag));
    OK(seam_observe(a, NULL, NULL));
    OK(seam_empty_cache(a, NULL));
    CHECK(stats_of(a).spill_kept_bytes == 0);
    OK(seam_destroy(a));
}

static void pools_are_restored(seam_allocator a) {
    seam_pool pool;
    OK(seam_pool_create(a, &pool));
    size_t count = 7;
    OK(seam_pool_blocks(a, pool, NULL, 0, &count));
    CHECK(count == 0);
    void *one, *two;
    OK(seam_pool_malloc(a, pool, 3 * MIB, NULL, &one));
    OK(seam_pool_malloc(a, pool, 700, NULL, &two));
    seam_pool_block blocks[2];
    CHECK(seam_pool_blocks(a, pool, blocks, 1, &count) == SEAM_STATUS_BUFFER_TOO_SMALL && count == 2);
    FAILS(seam_pool_blocks(a, pool, NULL, 2, NULL), SEAM_STATUS_INVALID_ARGUMENT, "blocks is NULL");
    OK(seam_pool_blocks(a, pool, blocks, 2, &count));
    CHECK(blocks[0].address < blocks[1].address && blocks[0].requested + blocks[1].requested == 3 * MIB + 700);
    OK(seam_free(a, one));
    OK(seam_free(a, two));
    OK(seam_pool_restore(a, pool, blocks, 2));
    size_t size;
    OK(seam_size_of(a, one, &size));
    CHECK(size == 3 * MIB);
    OK(seam_free(a, two));
    OK(seam_pool_restore(a, pool, NULL, 0));
    FAILS(seam_free(a, one), SEAM_STATUS_INVALID_ADDRESS, "");
    FAILS(seam_pool_restore(a, pool, NULL, 1), SEAM_STATUS_INVALID_ARGUMENT, "blocks is NULL");
    blocks[0].address += 4096 * GIB;
    FAILS(seam_pool_restore(a, pool, blocks, 1), SEAM_STATUS_NOT_RESTORABLE, "cannot be restored");
    OK(seam_pool_release(a, pool));
}

int main(void) {
    what_is_spilled_or_sleeps_is_told();
    seam_allocator a = create("sim:h200", NULL);
    events_are_told(a);
    segments_are_shown(a);
    pools_are_restored(a);
    OK(seam_check(a));
    OK(seam_destroy(a));
    return 0;
}
