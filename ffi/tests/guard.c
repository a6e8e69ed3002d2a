// Guard mode: what a program in C is told of its mistakes.

#include "check.h"

static char text[1 << 14];

int main(void) {
    seam_allocator allocator;
    OK(seam_create("sim:h200", "guard:on", &allocator));
    void *first, *second;
    seam_stream other = (seam_stream)0x40;
    OK(seam_malloc(allocator, 1000, NULL, &first));
    OK(seam_malloc(allocator, 5 << 20, NULL, &second));

    OK(seam_explain(allocator, (char *)first + 1024, text, sizeof text, NULL));
    CHECK(strstr(text, "24 bytes behind the end of allocation #1 (1000 bytes at"));
    OK(seam_explain(allocator, (void *)8, text, sizeof text, NULL));
    CHECK(text[0] == 0);

    const void *used[] = {(char *)second + 77, (void *)8};
    OK(seam_note_uses(allocator, used, 2, other));
    CHECK(seam_note_uses(allocator, NULL, 1, other) == SEAM_STATUS_INVALID_ARGUMENT);
    OK(seam_note_uses(allocator, NULL, 0, other));
    OK(seam_note_event(allocator, 5, other));
    OK(seam_note_wait(allocator, NULL, 5));
    OK(seam_free(allocator, second));

    OK(seam_free(allocator, first));
    CHECK(seam_free(allocator, first) == SEAM_STATUS_INVALID_ADDRESS);
    CHECK(strstr(seam_last_error_text(), "freed twice: "));
    uint64_t findings = 0;
    OK(seam_check_guards(allocator, &findings));
    CHECK(findings == 1);
    OK(seam_findings_json(allocator, text, sizeof text, NULL));
    CHECK(strstr(text, "\"kind\":\"double_free\"") && strstr(text, "\"size\":1000"));
    OK(seam_stats_json(allocator, text, sizeof text, NULL));
    CHECK(strstr(text, "\"findings\":1") && strstr(text, "\"quarantined\":2"));
    OK(seam_destroy(allocator));

    OK(seam_create("sim:h200", "", &allocator));
    OK(seam_check_guards(allocator, NULL));
    OK(seam_findings_json(allocator, text, sizeof text, NULL));
    CHECK(strcmp(text, "[]") == 0);
    OK(seam_destroy(allocator));
    return 0;
}
