// What other processes are told of the allocators of this one, metrics, and the flight recorder in files.

#include "check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char *in(const char *folder, const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int connected(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    CHECK(strlen(path) < sizeof address.sun_path);
    strcpy(address.sun_path, path);
    int connection = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(connection >= 0);
    return connect(connection, (struct sockaddr *)&address, sizeof address) == 0 ? connection : (close(connection), -1);
}

static void has(const char *text, const char *part) {
    if (!strstr(text, part)) {
        fprintf(stderr, "no `%s` in:\n%s\n", part, text);
        exit(1);
    }
}

static void others_are_told(const char *folder) {
    char path[4096], answer[1 << 16];
    strcpy(path, in(folder, "job.sock"));
    OK(seam_serve(path));
    OK(seam_serve(path));
    int connection = connected(path);
    CHECK(connection >= 0);
    const char *question = "{\"ask\":\"samples\"}\n";
    CHECK(write(connection, question, strlen(question)) == (ssize_t)strlen(question));
    size_t length = 0;
    for (ssize_t got; (got = read(connection, answer + length, sizeof answer - 1 - length)) > 0;) length += got;
    answer[length] = 0;
    close(connection);
    has(answer, "\"live_bytes\":5242880");
    has(answer, "\"device\":\"sim:h200,capacity=1GiB\"");
    OK(seam_serve_stop());
    OK(seam_serve_stop());
    CHECK(connected(path) < 0 && access(path, F_OK) != 0);
    CHECK(seam_serve("/nowhere/job.sock") == SEAM_STATUS_FILE);
    CHECK(seam_serve("") == SEAM_STATUS_FILE);
}

static void metrics_are_text(void) {
    char text[1 << 16];
    size_t length;
    OK(seam_metrics(text, sizeof text, &length));
    CHECK(strlen(text) == length);
    has(text, "# TYPE seamalloc_live_bytes gauge\n");
    has(text, "device=\"sim:h200,capacity=1GiB\",allocator=\"0\"} 5242880\n");
    CHECK(seam_metrics(text, 10, &length) == SEAM_STATUS_BUFFER_TOO_SMALL && length > 10);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    const char *folder = arguments[1], *asked = getenv("SEAMALLOC_SERVE");
    char options[4096];
    snprintf(options, sizeof options, "flight_recorder:100,flight_dump:%s/refused-{device}.pickle", folder);
    seam_allocator a;
    OK(seam_create("sim:h200,capacity=1GiB", options, &a));
    if (asked) {
        int connection = connected(asked);
        CHECK(connection >= 0 || strncmp(asked, "/nowhere", 8) == 0);
        return 0;
    }
    OK(seam_free(a, get(a, 3 * MIB, NULL)));
    void *kept = get(a, 5 * MIB, NULL), *none;
    metrics_are_text();
    others_are_told(folder);
    OK(seam_flight_write(a, in(folder, "flight.pickle")));
    OK(seam_flight_write(a, in(folder, "flight.seam")));
    CHECK(seam_flight_write(a, "/nowhere/flight.pickle") == SEAM_STATUS_FILE);
    CHECK(seam_flight_write(0, in(folder, "flight.pickle")) == SEAM_STATUS_INVALID_HANDLE);
    CHECK(access(in(folder, "refused-0.pickle"), F_OK) != 0);
    CHECK(seam_malloc(a, 2 * GIB, NULL, &none) == SEAM_STATUS_OUT_OF_MEMORY);
    CHECK(access(in(folder, "refused-0.pickle"), F_OK) == 0);
    OK(seam_free(a, kept));
    OK(seam_destroy(a));
    return 0;
}
