// PyTorch's pluggable signature: an allocator for each device, from the environment, and messages where no status can be
// returned. The first argument says which environment the test has set.

#include "check.h"

struct told {
    int times;
    seam_status status;
    char text[512];
};

static void keep(seam_status status, const char *text, void *user) {
    struct told *told = user;
    told->times++;
    told->status = status;
    snprintf(told->text, sizeof told->text, "%s", text);
    // A handler may call the library, and fail: it is not told of that.
    CHECK(seamalloc_malloc(1, -1, NULL) == NULL);
}

static void it_allocates(void) {
    struct told told = {0};
    OK(seam_set_message_handler(keep, &told));
    seam_stream mine = stream_of(0x100), other = stream_of(0x200);
    FAILS(seam_plugged_defaults("max_view:9"), SEAM_STATUS_OPTIONS, "did you mean");
    FAILS(seam_plugged_defaults(NULL), SEAM_STATUS_INVALID_ARGUMENT, "options is NULL");
    OK(seam_plugged_defaults("max_views:9,sharing:never,per_process_memory_fraction:0.5"));
    // Questions make no allocator, so that the defaults can still be changed.
    int owner = 7;
    OK(seam_plugged_owner(stream_of(0x1000), &owner));
    double fraction = 0;
    OK(seam_plugged_memory_fraction(&fraction));
    CHECK(owner == -1 && fraction == 0.5);
    OK(seam_plugged_defaults("max_views:9,sharing:never"));
    OK(seam_plugged_memory_fraction(&fraction));
    CHECK(fraction == 1);
    FAILS(seam_plugged_owner(NULL, NULL), SEAM_STATUS_INVALID_ARGUMENT, "device is NULL");
    FAILS(seam_plugged_memory_fraction(NULL), SEAM_STATUS_INVALID_ARGUMENT, "fraction is NULL");
    // Recorded from the beginning, and no device is opened for it.
    uint64_t devices = 7;
    OK(seam_record_new(100));
    OK(seam_plugged_devices(&devices));
    CHECK(devices == 0);
    void *address = seamalloc_malloc(10 * MIB, 0, mine);
    CHECK(address != NULL);
    OK(seam_record_new(0));
    OK(seam_plugged_owner(address, &owner));
    CHECK(owner == 0);
    OK(seam_plugged_owner((char *)address + 512, &owner));
    CHECK(owner == -1);
    seam_allocator zero, one, again;
    OK(seam_plugged(0, &zero));
    OK(seam_plugged(1, &one));
    OK(seam_plugged_devices(&devices));
    CHECK(devices == 3);
    FAILS(seam_plugged_devices(NULL), SEAM_STATUS_INVALID_ARGUMENT, "devices is NULL");
    FAILS(seam_record_write(zero, "/nowhere/trace.csv"), SEAM_STATUS_FILE, "/nowhere");
    FAILS(seam_record_write(one, "/nowhere/trace.csv"), SEAM_STATUS_INVALID_ARGUMENT, "nothing is recorded");
    OK(seam_record_stop(zero));
    OK(seam_log_summary(zero));
    FAILS(seam_log_summary(0), SEAM_STATUS_INVALID_HANDLE, "no allocator");
    OK(seam_plugged(0, &again));
    CHECK(zero == again && zero != one);
    CHECK(stats_of(zero).allocated_bytes.all.current == 10 * MIB);
    CHECK(stats_of(one).allocated_bytes.all.current == 0);
    // The environment's options are in force.
    char json[8192];
    OK(seam_stats_json(zero, json, sizeof json, NULL));
    CHECK(strstr(json, "sharing:never") != NULL);
    FAILS(seam_plugged_defaults(""), SEAM_STATUS_INVALID_ARGUMENT, "already");
    CHECK(strstr(json, "max_views:7") != NULL && strstr(json, "sim:h200,capacity=1GiB") != NULL);
    // The handle and the pair are the same allocator, which stays.
    OK(seam_record_stream(zero, address, other));
    FAILS(seam_destroy(zero), SEAM_STATUS_INVALID_HANDLE, "seamalloc_malloc");
    seamalloc_free(address, 10 * MIB, 0, mine);
    CHECK(stats_of(zero).active_bytes.all.current == 10 * MIB);
    OK(seam_empty_cache(zero, NULL));
    // On another stream than it was allocated for: it waits for that one.
    address = seamalloc_malloc(10 * MIB, 0, mine);
    seamalloc_free(address, 10 * MIB, 0, other);
    seam_stats stats = stats_of(zero);
    CHECK(stats.allocated_bytes.all.current == 0 && stats.active_bytes.all.current == 10 * MIB);
    OK(seam_empty_cache(zero, NULL));
    CHECK(seamalloc_malloc(0, 0, NULL) == NULL);
    seamalloc_free(NULL, 0, 0, NULL);
    CHECK(told.times == 0);

    // What fails is told.
    CHECK(seamalloc_malloc(2 * GIB, 0, NULL) == NULL);
    CHECK(told.times == 1 && told.status == SEAM_STATUS_OUT_OF_MEMORY && strstr(told.text, "2.00 GiB") != NULL);
    CHECK(seam_last_error() != SEAM_STATUS_OK);
    address = seamalloc_malloc(4 * MIB, 1, NULL);
    seamalloc_free((char *)address + 512, 4 * MIB, 1, NULL);
    CHECK(told.times == 2 && told.status == SEAM_STATUS_INVALID_ADDRESS);
    seamalloc_free(address, 4 * MIB, 1, NULL);
    CHECK(told.times == 2);
    seamalloc_free(address, 4 * MIB, 1, NULL);
    CHECK(told.times == 3 && strstr(told.text, "freed twice") != NULL);
    CHECK(seamalloc_malloc(512, 64, NULL) == NULL);
    CHECK(told.times == 4 && strstr(told.text, "64 is no device") != NULL);
    CHECK(seamalloc_malloc(512, 0, stream_of(2)) == NULL);
    CHECK(told.times == 5 && told.status == SEAM_STATUS_INVALID_STREAM);
    OK(seam_check(zero));
    OK(seam_check(one));

    // On standard error, where the test reads it.
    OK(seam_set_message_handler(NULL, NULL));
    CHECK(seamalloc_malloc(3 * GIB, 1, NULL) == NULL);
}

// Twice for each of two devices; the test counts the lines on standard error.
static void it_has_no_allocator(seam_status status, const char *part) {
    for (int i = 0; i < 4; i++) {
        seam_clear_last_error();
        CHECK(seamalloc_malloc(512, i / 2, NULL) == NULL);
        CHECK(seam_last_error() == status && strstr(seam_last_error_text(), part) != NULL);
    }
    int local;
    seamalloc_free(&local, 4, 0, NULL);
    seam_allocator none = 3;
    FAILS(seam_plugged(0, &none), status, part);
    CHECK(none == 0);
}

// What was wrong with the device may pass; it is tried again.
static void it_is_opened_later(void) {
    FAILS(seam_plugged(0, &(seam_allocator){0}), SEAM_STATUS_DEVICE, "SEAMALLOC_DEVICE is `cuda:1`");
    setenv("SEAMALLOC_DEVICE", "sim:h200,capacity=1GiB", 1);
    seam_allocator allocator;
    OK(seam_plugged(0, &allocator));
    CHECK(seamalloc_malloc(512, 0, NULL) != NULL);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (strcmp(what, "good") == 0) {
        it_allocates();
    } else if (strcmp(what, "options") == 0) {
        it_has_no_allocator(SEAM_STATUS_OPTIONS, "SEAMALLOC_CONF: unknown option `strateg`");
    } else if (strcmp(what, "device") == 0) {
        it_has_no_allocator(SEAM_STATUS_DEVICE, "SEAMALLOC_DEVICE is `cuda:1`");
    } else if (strcmp(what, "later") == 0) {
        it_is_opened_later();
    } else {
        return 2;
    }
    return 0;
}
