// Memory of one process in another: named by a handle, opened by another allocator, in another process.

#include "check.h"

#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

// What a process sends to the other.
struct name {
    size_t length;
    uint64_t offset;
    char handle[4096];
};

static struct name name_of(seam_allocator allocator, void *address) {
    struct name name = {0};
    size_t needed = 0;
    FAILS(seam_share(allocator, address, NULL, 0, &needed, &name.offset), SEAM_STATUS_BUFFER_TOO_SMALL, "the buffer is for 0");
    CHECK(needed <= sizeof name.handle);
    OK(seam_share(allocator, address, name.handle, sizeof name.handle, &name.length, &name.offset));
    CHECK(name.length == needed);
    return name;
}

static void open_here(const struct name *name) {
    seam_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch");
    void *opened = NULL;
    OK(seam_open_shared(a, name->handle, name->length, &opened));
    CHECK(opened != NULL);
    CHECK(stats_of(a).reserved_bytes.all.current == 0);
    OK(seam_close_shared(a, opened));
    FAILS(seam_close_shared(a, opened), SEAM_STATUS_IPC, "no shared memory was opened");
    OK(seam_destroy(a));
}

static void on_signal(int number) { (void)number; }

static void set_timer(long us) {
    struct itimerval timer = {{0, us}, {0, us}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

// As a profiler does.
static void open_among_signals(const struct name *name) {
    seam_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch");
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    set_timer(100);
    for (int index = 0; index < 2000; index++) {
        void *opened = NULL;
        OK(seam_open_shared(a, name->handle, name->length, &opened));
        OK(seam_close_shared(a, opened));
    }
    set_timer(0);
    OK(seam_destroy(a));
}

int main(int count, char **arguments) {
    if (count > 1) {
        struct name name;
        CHECK(fread(&name, sizeof name, 1, stdin) == 1);
        open_here(&name);
        return 0;
    }
    seam_allocator a = create("sim:h200,capacity=1GiB", "strategy:stitch");
    // A stitched block among others.
    void *blocks[4];
    for (int index = 0; index < 4; index++) {
        blocks[index] = get(a, 20 * MIB, NULL);
    }
    OK(seam_free(a, blocks[0]));
    OK(seam_free(a, blocks[2]));
    struct name name = name_of(a, get(a, 40 * MIB, NULL));
    open_here(&name);
    open_among_signals(&name);

    void *place = &name;
    uint64_t offset = 0;
    size_t length = 0;
    FAILS(seam_share(a, place, name.handle, sizeof name.handle, &length, &offset), SEAM_STATUS_INVALID_ADDRESS, "live");
    FAILS(seam_share(a, blocks[1], name.handle, sizeof name.handle, NULL, &offset), SEAM_STATUS_INVALID_ARGUMENT, "length");
    FAILS(seam_share(a, blocks[1], NULL, sizeof name.handle, &length, &offset), SEAM_STATUS_INVALID_ARGUMENT, "handle is NULL");
    FAILS(seam_open_shared(a, NULL, 4, &place), SEAM_STATUS_INVALID_ARGUMENT, "handle is NULL");
    FAILS(seam_open_shared(a, "what", 4, &place), SEAM_STATUS_IPC, "these 4 bytes name no shared memory");
    CHECK(place == NULL);

    int to[2];
    CHECK(pipe(to) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(to[0], 0);
        // Under valgrind /proc/self/exe is valgrind.
        execl(arguments[0], "program", "child", (char *)NULL);
        _exit(127);
    }
    CHECK(write(to[1], &name, sizeof name) == sizeof name);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(seam_destroy(a));
    return 0;
}
