// The library is opened and closed by hand, as a plugin of another program is, and used to the very end of threads and of
// the process. It is not linked: its path is the first argument.

#include "seamalloc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
            _exit(1); \
        } \
    } while (0)
#define FUNCTION(name) static __typeof__(name) *call_##name
FUNCTION(seam_create);
FUNCTION(seam_destroy);
FUNCTION(seam_malloc);
FUNCTION(seam_share);
FUNCTION(seam_last_error_text);

static seam_allocator allocator;

static void use_it(void) {
    void *address = NULL;
    CHECK(call_seam_malloc(allocator, MIB, NULL, &address) == SEAM_STATUS_OK && address != NULL);
    CHECK(call_seam_malloc(allocator, (size_t)1 << 61, NULL, &address) != SEAM_STATUS_OK);
    // At the end of a thread its last error is gone, and no more than that.
    CHECK(call_seam_last_error_text() != NULL);
}

static void at_exit(void) {
    use_it();
    puts("used at the end of the process");
    fflush(stdout);
}

static void at_thread_end(void *unused) {
    (void)unused;
    use_it();
}

static void *thread(void *key) {
    use_it();
    CHECK(pthread_setspecific(*(pthread_key_t *)key, key) == 0);
    return NULL;
}

// The library's own thread answers on this socket.
static void connect_to(const unsigned char *handle) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    char text[64];
    int length = snprintf(text, sizeof text, "seamalloc-%d-", (int)getpid());
    for (int byte = 16; byte < 24; byte++) {
        length += snprintf(text + length, sizeof text - length, "%02x", handle[byte]);
    }
    memcpy(name.sun_path + 1, text, length);
    int end = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(connect(end, (struct sockaddr *)&name, sizeof(sa_family_t) + 1 + length) == 0);
    // It hangs up on a client without the password: so it has run.
    char wrong[8] = {0}, answer;
    CHECK(write(end, wrong, sizeof wrong) == sizeof wrong);
    CHECK(read(end, &answer, 1) <= 0);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    void *library = dlopen(arguments[1], RTLD_NOW);
    CHECK(library != NULL);
#define FIND(name) CHECK((call_##name = (__typeof__(name) *)dlsym(library, #name)) != NULL)
    FIND(seam_create);
    FIND(seam_destroy);
    FIND(seam_malloc);
    FIND(seam_share);
    FIND(seam_last_error_text);
    // Before the library's own, so that it runs after them.
    CHECK(atexit(at_exit) == 0);
    CHECK(call_seam_create("sim:h200", "", &allocator) == SEAM_STATUS_OK);

    pthread_key_t key;
    pthread_t other;
    CHECK(pthread_key_create(&key, at_thread_end) == 0);
    CHECK(pthread_create(&other, NULL, thread, &key) == 0);
    CHECK(pthread_join(other, NULL) == 0);

    seam_allocator sharing;
    void *address = NULL;
    unsigned char handle[4096];
    size_t length;
    uint64_t offset;
    CHECK(call_seam_create("sim:h200", "", &sharing) == SEAM_STATUS_OK);
    CHECK(call_seam_malloc(sharing, 40 * MIB, NULL, &address) == SEAM_STATUS_OK);
    CHECK(call_seam_share(sharing, address, handle, sizeof handle, &length, &offset) == SEAM_STATUS_OK);
    CHECK(call_seam_destroy(sharing) == SEAM_STATUS_OK);

    CHECK(dlclose(library) == 0);
    // Its thread still runs, and so do the functions that are called from now on.
    CHECK(dlopen(arguments[1], RTLD_NOW | RTLD_NOLOAD) != NULL);
    connect_to(handle);
    use_it();
    CHECK(strlen(call_seam_last_error_text()) > 0);
    puts("used after it was closed");
    fflush(stdout);
    return 0;
}
