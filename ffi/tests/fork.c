// A forked child: it is told that it is one, and the parent's memory stays as it was.

#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

static seam_allocator shared;
static atomic_int stop;

// Holds the allocator's lock much of the time, so that a child is forked while it is held.
static void *busy(void *user) {
    (void)user;
    while (!stop) {
        OK(seam_free(shared, get(shared, 3 * MIB, NULL)));
    }
    return NULL;
}

// The child's exit status, or 128 and more.
static int status_of(pid_t child) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void in_child(void *plugged) {
    void *address = &shared;
    FAILS(seam_malloc(shared, 512, NULL, &address), SEAM_STATUS_FORKED, "spawn");
    CHECK(address == NULL);
    seam_allocator other = 5;
    FAILS(seam_create("sim:h200", NULL, &other), SEAM_STATUS_FORKED, "exec");
    CHECK(other == 0);
    FAILS(seam_free(shared, plugged), SEAM_STATUS_FORKED, "parent");
    FAILS(seam_destroy(shared), SEAM_STATUS_FORKED, "parent");
    FAILS(seam_empty_cache(shared, NULL), SEAM_STATUS_FORKED, "parent");
    CHECK(seamalloc_malloc(512, 0, NULL) == NULL && seam_last_error() == SEAM_STATUS_FORKED);
    seam_clear_last_error();
    seamalloc_free(plugged, 512, 0, NULL);
    CHECK(seam_last_error() == SEAM_STATUS_FORKED);
    // Neither are a child's children.
    pid_t child = fork();
    if (child == 0) {
        _exit(seam_check(shared) == SEAM_STATUS_FORKED ? 0 : 9);
    }
    CHECK(status_of(child) == 0);
    exit(0);
}

int main(void) {
    // Before the first allocator there is nothing to protect: a child may have its own.
    char options[80];
    OK(seam_read_options("max_views:8,memory_limit:1024MiB,max_views:7", options, sizeof options, NULL));
    CHECK(strcmp(options, "memory_limit:1GiB,max_views:7") == 0);
    pid_t child = fork();
    if (child == 0) {
        seam_allocator own = create("sim:h200", NULL);
        void *address = get(own, 512, NULL);
        CHECK(address != NULL);
        OK(seam_destroy(own));
        exit(0);
    }
    CHECK(status_of(child) == 0);

    CHECK(setenv("SEAMALLOC_DEVICE", "sim:h200", 1) == 0);
    shared = create("sim:h200,capacity=1GiB", "strategy:stitch");
    void *plugged = seamalloc_malloc(512, 0, NULL);
    CHECK(plugged != NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, busy, NULL) == 0);
    for (int i = 0; i < 20; i++) {
        child = fork();
        if (child == 0) {
            alarm(20); // One that waits for a lock ends.
            in_child(plugged);
        }
        CHECK(status_of(child) == 0);
    }
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    OK(seam_check(shared));
    seam_clear_last_error();
    seamalloc_free(plugged, 512, 0, NULL);
    CHECK(seam_last_error() == SEAM_STATUS_OK);
    OK(seam_destroy(shared));
    return 0;
}
