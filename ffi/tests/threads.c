// Many threads: each has its own last error, all share an allocator, and one may be destroyed under the others.

#include "check.h"

#include <pthread.h>

#define THREADS 8
#define ROUNDS 2000

static seam_allocator shared;

static void *work(void *user) {
    uintptr_t number = (uintptr_t)user;
    seam_stream stream = stream_of(0x1000 + number);
    for (int i = 0; i < ROUNDS; i++) {
        size_t size = (i % 7 + 1) * (number + 1) * 512 * 1024;
        void *address = get(shared, size, stream);
        if (i % 5 == 0) {
            OK(seam_record_stream(shared, address, stream_of(0x1000 + (number + 1) % THREADS)));
        }
        OK(seam_free(shared, address));
    }
    return NULL;
}

static void *fail(void *user) {
    char part[32];
    snprintf(part, sizeof part, "sim:none%d", (int)(uintptr_t)user);
    seam_allocator none;
    for (int i = 0; i < ROUNDS / 10; i++) {
        CHECK(seam_last_error() == (i == 0 ? SEAM_STATUS_OK : SEAM_STATUS_DEVICE));
        CHECK(seam_create(part, NULL, &none) == SEAM_STATUS_DEVICE);
        CHECK(strstr(seam_last_error_text(), part + 4) != NULL);
    }
    return NULL;
}

// Until somebody destroys it.
static void *use_until_it_is_gone(void *user) {
    seam_stream stream = stream_of((uintptr_t)user + 0x10);
    for (;;) {
        void *address;
        seam_status status = seam_malloc(shared, MIB, stream, &address);
        if (status == SEAM_STATUS_OK) {
            status = seam_free(shared, address);
        }
        if (status != SEAM_STATUS_OK) {
            CHECK(status == SEAM_STATUS_INVALID_HANDLE);
            return NULL;
        }
    }
}

static void *destroy(void *user) {
    (void)user;
    return seam_destroy(shared) == SEAM_STATUS_OK ? &shared : NULL;
}

static void start(pthread_t *threads, void *(*body)(void *)) {
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, body, (void *)i) == 0);
    }
}

static int join(pthread_t *threads) {
    int results = 0;
    for (int i = 0; i < THREADS; i++) {
        void *result = NULL;
        CHECK(pthread_join(threads[i], &result) == 0);
        results += result != NULL;
    }
    return results;
}

int main(void) {
    pthread_t threads[THREADS], more[THREADS];
    shared = create("sim:h200,capacity=64GiB", "strategy:stitch");
    start(threads, work);
    start(more, fail);
    join(threads);
    join(more);
    OK(seam_check(shared));
    CHECK(stats_of(shared).allocation.all.allocated == THREADS * ROUNDS);
    CHECK(stats_of(shared).allocation.all.current == 0);
    OK(seam_destroy(shared));
    for (int round = 0; round < 30; round++) {
        shared = create("sim:h200,capacity=1GiB", "strategy:stitch");
        start(threads, use_until_it_is_gone);
        start(more, destroy);
        CHECK(join(more) == 1);
        join(threads);
    }
    return 0;
}
