// What every test program needs: a condition that ends it with a sentence.
#pragma once

#include "seamalloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s does not hold; last error: %s: %s\n", __FILE__, __LINE__, #condition,           \
                    seam_status_name(seam_last_error()), seam_last_error_text());                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define OK(call) CHECK((call) == SEAM_STATUS_OK)

// The call fails so, the thread's last error is that, and its text has this part.
#define FAILS(call, status, part)                                                                                      \
    do {                                                                                                               \
        seam_clear_last_error();                                                                                         \
        CHECK((call) == (status));                                                                                     \
        CHECK(seam_last_error() == (status));                                                                            \
        CHECK(strstr(seam_last_error_text(), part) != NULL);                                                             \
    } while (0)

static inline seam_stream stream_of(uintptr_t number) { return (seam_stream)number; }

static inline seam_stats stats_of(seam_allocator allocator) {
    seam_stats stats;
    stats.size = sizeof stats;
    OK(seam_get_stats(allocator, &stats));
    return stats;
}

static inline seam_allocator create(const char *device, const char *options) {
    seam_allocator allocator = 0;
    OK(seam_create(device, options, &allocator));
    CHECK(allocator != 0);
    return allocator;
}

static inline void *get(seam_allocator allocator, size_t size, seam_stream stream) {
    void *address = NULL;
    OK(seam_malloc(allocator, size, stream, &address));
    CHECK(address != NULL && (uintptr_t)address % 512 == 0);
    return address;
}
