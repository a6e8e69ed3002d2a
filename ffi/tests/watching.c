// What a program sees of an allocator from outside: events, segments, and the checkpoint of a private pool.

#include "check.h"

typedef struct {
    size_t counts[MQ_ACTION_SEGMENT_JOINED + 1];
    uint64_t address, bytes;
    mq_pool pool;
    mq_allocator allocator;
    mq_status answer;
} seen;

static void note(const mq_event *event, void *user) {
    seen *all = user;
    CHECK(event->size == sizeof *event && event->action <= MQ_ACTION_SEGMENT_JOINED);
    all->counts[event->action]++;
    if (event->action == MQ_ACTION_ALLOC) {
        all->address = event->address;
        all->bytes = event->bytes;
        all->pool = event->pool;
        all->answer = mq_free(all->allocator, NULL);
    }
}

static void events_are_told(mq_allocator a) {
    seen all = {.allocator = a};
    OK(mq_record_start(a, 100));
    OK(mq_observe(a, note, &all));
    void *address = get(a, 3 * MIB - 7, stream_of(0x10));
    CHECK(all.counts[MQ_ACTION_ALLOC] == 1 && all.counts[MQ_ACTION_SEGMENT_MAP] == 1);
    CHECK(all.address == (uintptr_t)address && all.bytes == 3 * MIB - 7);
    CHECK(all.answer == MQ_STATUS_REENTRANT);
    CHECK(all.pool.first == 0 && all.pool.second == 0);
    OK(mq_record_stop(a));
    OK(mq_free(a, address));
    CHECK(all.counts[MQ_ACTION_FREE_REQUESTED] == 1 && all.counts[MQ_ACTION_FREE_COMPLETED] == 1);
    void *none;
    CHECK(mq_malloc(a, 2000 * GIB, NULL, &none) == MQ_STATUS_OUT_OF_MEMORY && all.counts[MQ_ACTION_OOM] == 1);
    mq_pool pool = {4, 5};
    OK(mq_pool_open(a, pool));
    OK(mq_pool_malloc(a, pool, MIB, NULL, &address));
    CHECK(all.pool.first == 4 && all.pool.second == 5 && all.counts[MQ_ACTION_ALLOC] == 2);
    OK(mq_free(a, address));
    OK(mq_pool_release(a, pool));
    // The recorder starts anew, and the observer goes, without the other noticing.
    OK(mq_record_start(a, 100));
    OK(mq_observe(a, NULL, NULL));
    OK(mq_free(a, get(a, MIB, NULL)));
    CHECK(all.counts[MQ_ACTION_ALLOC] == 2);
    OK(mq_snapshot(a, "/dev/null"));
    OK(mq_record_stop(a));
    OK(mq_empty_cache(a, NULL));
}

typedef struct {
    uint64_t total, allocated, pending, requested, of_pool, end;
    mq_pool pool;
} picture;

static void add(const mq_segment *segment, const mq_block *blocks, size_t count, void *user) {
    picture *all = user;
    CHECK(segment->size == sizeof *segment && segment->is_expandable && segment->address >= all->end);
    uint64_t at = segment->address;
    for (size_t i = 0; i < count; i++) {
        CHECK(blocks[i].address == at);
        at += blocks[i].size;
        if (blocks[i].state == MQ_BLOCK_STATE_ACTIVE_ALLOCATED) {
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

static void segments_are_shown(mq_allocator a) {
    mq_pool pool;
    OK(mq_pool_create(a, &pool));
    void *one = get(a, 5 * MIB + 3, NULL), *two;
    OK(mq_pool_malloc(a, pool, 700, NULL, &two));
    picture all = {.pool = pool};
    OK(mq_visit_segments(a, add, &all));
    mq_stats stats = stats_of(a);
    CHECK(all.total == stats.reserved_bytes.all.current && all.allocated == stats.allocated_bytes.all.current);
    CHECK(all.requested == 5 * MIB + 3 + 700 && all.of_pool == 2 * MIB);
    OK(mq_free(a, one));
    OK(mq_free(a, two));
    OK(mq_pool_release(a, pool));
    uint64_t largest;
    OK(mq_largest_free(a, &largest));
    CHECK(largest >= 5 * MIB && largest <= stats.reserved_bytes.all.current);
    FAILS(mq_visit_segments(a, NULL, NULL), MQ_STATUS_INVALID_ARGUMENT, "visitor is NULL");
}

static void pools_are_restored(mq_allocator a) {
    mq_pool pool;
    OK(mq_pool_create(a, &pool));
    size_t count = 7;
    OK(mq_pool_blocks(a, pool, NULL, 0, &count));
    CHECK(count == 0);
    void *one, *two;
    OK(mq_pool_malloc(a, pool, 3 * MIB, NULL, &one));
    OK(mq_pool_malloc(a, pool, 700, NULL, &two));
    mq_pool_block blocks[2];
    CHECK(mq_pool_blocks(a, pool, blocks, 1, &count) == MQ_STATUS_BUFFER_TOO_SMALL && count == 2);
    FAILS(mq_pool_blocks(a, pool, NULL, 2, NULL), MQ_STATUS_INVALID_ARGUMENT, "blocks is NULL");
    OK(mq_pool_blocks(a, pool, blocks, 2, &count));
    CHECK(blocks[0].address < blocks[1].address && blocks[0].requested + blocks[1].requested == 3 * MIB + 700);
    OK(mq_free(a, one));
    OK(mq_free(a, two));
    OK(mq_pool_restore(a, pool, blocks, 2));
    size_t size;
    OK(mq_size_of(a, one, &size));
    CHECK(size == 3 * MIB);
    OK(mq_free(a, two));
    OK(mq_pool_restore(a, pool, NULL, 0));
    FAILS(mq_free(a, one), MQ_STATUS_INVALID_ADDRESS, "");
    FAILS(mq_pool_restore(a, pool, NULL, 1), MQ_STATUS_INVALID_ARGUMENT, "blocks is NULL");
    blocks[0].address += 4096 * GIB;
    FAILS(mq_pool_restore(a, pool, blocks, 1), MQ_STATUS_NOT_RESTORABLE, "cannot be restored");
    OK(mq_pool_release(a, pool));
}

int main(void) {
    mq_allocator a = create("sim:h200", NULL);
    events_are_told(a);
    segments_are_shown(a);
    pools_are_restored(a);
    OK(mq_check(a));
    OK(mq_destroy(a));
    return 0;
}
