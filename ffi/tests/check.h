// What every test program needs: a condition that ends it with a sentence.
#pragma once

#include "memquilt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s does not hold; last error: %s: %s\n", __FILE__, __LINE__, #condition,           \
                    mq_status_name(mq_last_error()), mq_last_error_text());                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define OK(call) CHECK((call) == MQ_STATUS_OK)

// The call fails so, the thread's last error is that, and its text has this part.
#define FAILS(call, status, part)                                                                                      \
    do {                                                                                                               \
        mq_clear_last_error();                                                                                         \
        CHECK((call) == (status));                                                                                     \
        CHECK(mq_last_error() == (status));                                                                            \
        CHECK(strstr(mq_last_error_text(), part) != NULL);                                                             \
    } while (0)

static inline mq_stream stream_of(uintptr_t number) { return (mq_stream)number; }

static inline mq_stats stats_of(mq_allocator allocator) {
    mq_stats stats;
    stats.size = sizeof stats;
    OK(mq_get_stats(allocator, &stats));
    return stats;
}

static inline mq_allocator create(const char *device, const char *options) {
    mq_allocator allocator = 0;
    OK(mq_create(device, options, &allocator));
    CHECK(allocator != 0);
    return allocator;
}

static inline void *get(mq_allocator allocator, size_t size, mq_stream stream) {
    void *address = NULL;
    OK(mq_malloc(allocator, size, stream, &address));
    CHECK(address != NULL && (uintptr_t)address % 512 == 0);
    return address;
}
