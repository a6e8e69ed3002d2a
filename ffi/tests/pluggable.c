// PyTorch's pluggable signature: an allocator for each device, from the environment, and messages where no status can be
// returned. The first argument says which environment the test has set.

#include "check.h"

struct told {
    int times;
    mq_status status;
    char text[512];
};

static void keep(mq_status status, const char *text, void *user) {
    struct told *told = user;
    told->times++;
    told->status = status;
    snprintf(told->text, sizeof told->text, "%s", text);
    // A handler may call the library, and fail: it is not told of that.
    CHECK(memquilt_malloc(1, -1, NULL) == NULL);
}

static void it_allocates(void) {
    struct told told = {0};
    OK(mq_set_message_handler(keep, &told));
    mq_stream mine = stream_of(0x100), other = stream_of(0x200);
    FAILS(mq_plugged_defaults("max_view:9"), MQ_STATUS_OPTIONS, "did you mean");
    FAILS(mq_plugged_defaults(NULL), MQ_STATUS_INVALID_ARGUMENT, "options is NULL");
    OK(mq_plugged_defaults("max_views:9,sharing:never"));
    void *address = memquilt_malloc(10 * MIB, 0, mine);
    CHECK(address != NULL);
    mq_allocator zero, one, again;
    OK(mq_plugged(0, &zero));
    OK(mq_plugged(1, &one));
    OK(mq_plugged(0, &again));
    CHECK(zero == again && zero != one);
    CHECK(stats_of(zero).allocated_bytes.all.current == 10 * MIB);
    CHECK(stats_of(one).allocated_bytes.all.current == 0);
    // The environment's options are in force.
    char json[8192];
    OK(mq_stats_json(zero, json, sizeof json, NULL));
    CHECK(strstr(json, "sharing:never") != NULL);
    FAILS(mq_plugged_defaults(""), MQ_STATUS_INVALID_ARGUMENT, "already");
    CHECK(strstr(json, "max_views:7") != NULL && strstr(json, "sim:h200,capacity=1GiB") != NULL);
    // The handle and the pair are the same allocator, which stays.
    OK(mq_record_stream(zero, address, other));
    FAILS(mq_destroy(zero), MQ_STATUS_INVALID_HANDLE, "memquilt_malloc");
    memquilt_free(address, 10 * MIB, 0, mine);
    CHECK(stats_of(zero).active_bytes.all.current == 10 * MIB);
    OK(mq_empty_cache(zero, NULL));
    // On another stream than it was allocated for: it waits for that one.
    address = memquilt_malloc(10 * MIB, 0, mine);
    memquilt_free(address, 10 * MIB, 0, other);
    mq_stats stats = stats_of(zero);
    CHECK(stats.allocated_bytes.all.current == 0 && stats.active_bytes.all.current == 10 * MIB);
    OK(mq_empty_cache(zero, NULL));
    CHECK(memquilt_malloc(0, 0, NULL) == NULL);
    memquilt_free(NULL, 0, 0, NULL);
    CHECK(told.times == 0);

    // What fails is told.
    CHECK(memquilt_malloc(2 * GIB, 0, NULL) == NULL);
    CHECK(told.times == 1 && told.status == MQ_STATUS_OUT_OF_MEMORY && strstr(told.text, "2.00 GiB") != NULL);
    CHECK(mq_last_error() != MQ_STATUS_OK);
    address = memquilt_malloc(4 * MIB, 1, NULL);
    memquilt_free((char *)address + 512, 4 * MIB, 1, NULL);
    CHECK(told.times == 2 && told.status == MQ_STATUS_INVALID_ADDRESS);
    memquilt_free(address, 4 * MIB, 1, NULL);
    CHECK(told.times == 2);
    memquilt_free(address, 4 * MIB, 1, NULL);
    CHECK(told.times == 3 && strstr(told.text, "freed twice") != NULL);
    CHECK(memquilt_malloc(512, 64, NULL) == NULL);
    CHECK(told.times == 4 && strstr(told.text, "64 is no device") != NULL);
    CHECK(memquilt_malloc(512, 0, stream_of(2)) == NULL);
    CHECK(told.times == 5 && told.status == MQ_STATUS_INVALID_STREAM);
    OK(mq_check(zero));
    OK(mq_check(one));

    // On standard error, where the test reads it.
    OK(mq_set_message_handler(NULL, NULL));
    CHECK(memquilt_malloc(3 * GIB, 1, NULL) == NULL);
}

// Twice for each of two devices; the test counts the lines on standard error.
static void it_has_no_allocator(mq_status status, const char *part) {
    for (int i = 0; i < 4; i++) {
        mq_clear_last_error();
        CHECK(memquilt_malloc(512, i / 2, NULL) == NULL);
        CHECK(mq_last_error() == status && strstr(mq_last_error_text(), part) != NULL);
    }
    int local;
    memquilt_free(&local, 4, 0, NULL);
    mq_allocator none = 3;
    FAILS(mq_plugged(0, &none), status, part);
    CHECK(none == 0);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (strcmp(what, "good") == 0) {
        it_allocates();
    } else if (strcmp(what, "options") == 0) {
        it_has_no_allocator(MQ_STATUS_OPTIONS, "MEMQUILT_CONF: unknown option `strateg`");
    } else if (strcmp(what, "device") == 0) {
        it_has_no_allocator(MQ_STATUS_DEVICE, "MEMQUILT_DEVICE is `cuda:1`");
    } else {
        return 2;
    }
    return 0;
}
