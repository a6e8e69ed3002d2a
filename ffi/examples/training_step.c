// A pattern of training that fragments memory: activations of several sizes are freed in another order, and a request
// comes that is larger than any hole. Run with "cuda:0" it does the same on a real GPU.
//
//     cargo build --release -p seamalloc-ffi
//     cc -I ffi ffi/examples/training_step.c target/release/libseamalloc.a -lpthread -lm -ldl -lgcc_s -o training_step
//     ./training_step

#include "seamalloc.h"

#include <stdio.h>
#include <stdlib.h>

#define LAYERS 32

static void check(seam_status status, const char *what) {
    if (status != SEAM_STATUS_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, seam_status_name(status), seam_last_error_text());
        exit(1);
    }
}

static void step(const char *device, const char *options) {
    seam_allocator allocator;
    check(seam_create(device, options, &allocator), "create");

    // Every second activation is freed: 32 holes of 20 to 113 MiB.
    void *kept[LAYERS], *freed[LAYERS], *large;
    for (size_t i = 0; i < LAYERS; i++) {
        size_t size = (20 + 3 * i) << 20;
        check(seam_malloc(allocator, size, NULL, &kept[i]), "malloc");
        check(seam_malloc(allocator, size, NULL, &freed[i]), "malloc");
    }
    for (size_t i = 0; i < LAYERS; i++) {
        check(seam_free(allocator, freed[i]), "free");
    }
    // None of them holds this; together they do.
    check(seam_malloc(allocator, (size_t)1 << 30, NULL, &large), "malloc");

    seam_stats stats;
    stats.size = sizeof stats;
    check(seam_get_stats(allocator, &stats), "stats");
    printf("%-22s live %6.1f MiB, reserved %6.1f MiB, requests served by stitched memory: %d\n", options,
           (double)stats.requested_bytes.all.current / (1 << 20), (double)stats.reserved_bytes.all.current / (1 << 20),
           (int)(stats.views_built + stats.views_reused));

    check(seam_free(allocator, large), "free");
    for (size_t i = 0; i < LAYERS; i++) {
        check(seam_free(allocator, kept[i]), "free");
    }
    check(seam_destroy(allocator), "destroy");
}

int main(int count, char **arguments) {
    const char *device = count > 1 ? arguments[1] : "sim:h200";
    step(device, "strategy:caching");
    step(device, "strategy:expandable");
    step(device, "strategy:stitch");
    return 0;
}
