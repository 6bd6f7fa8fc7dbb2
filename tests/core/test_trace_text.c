/* The short way to read a tensor record is the long one: where it takes a line, the JSON reader takes it, too, and both
 * read the same record. */
#include "core/base/json.h"
#include "core/files/trace_internal.h"
#include "tests/support/core.h"

#define HASH "0123456789abcdef0123456789abcdef"
static const char *const lines[] = {
    "{\"type\":\"tensor\",\"id\":0,\"name\":\"x\",\"phase\":\"forward\",\"step\":0,\"microbatch\":0,"
    "\"dtype\":\"F32\","
    "\"global_shape\":[2,3],\"hash\":\"" HASH "\"}",
    "{\"type\":\"tensor\",\"id\":12,\"name\":\"decoder.layers.1.mlp\",\"phase\":\"grad\",\"step\":1,"
    "\"microbatch\":-1,\"dtype\":"
    "\"BF16\",\"global_shape\":[8],\"local_shape\":[4],\"segments\":[[[0,2],[6,2]]],\"hash\":\"" HASH "\"}",
    "{\"type\":\"tensor\",\"id\":13,\"name\":\"p\",\"phase\":\"optimizer\",\"step\":1,\"microbatch\":-1,"
    "\"dtype\":\"F32\","
    "\"global_shape\":[],\"kind\":\"partial\",\"partial_group\":\"tp\",\"hash\":\"" HASH "\"}",
    "{\"type\":\"tensor\",\"id\":14,\"name\":\"r\",\"phase\":\"backward\",\"step\":1,\"microbatch\":3,"
    "\"dtype\":\"F32\","
    "\"global_shape\":[7,2],\"kind\":\"rows\",\"rows_id\":11,\"scale\":4,\"hash\":\"" HASH "\"}",
    "{\"type\":\"tensor\",\"id\":15,\"name\":\"e\",\"phase\":\"forward\",\"step\":1,\"microbatch\":0,"
    "\"dtype\":\"I64\","
    "\"global_shape\":[0,4],\"local_shape\":[0,2],\"segments\":[[],[[2,2]]],\"kind\":\"shard\",\"hash\":"
    "\"" HASH "\"}",
};
enum { LINES = sizeof lines / sizeof *lines };

/* Whether the JSON reader takes the text, too, and reads the same. */
static bool long_way_agrees(const char *text, const assay_trace_tensor *found)
{
    json_t *json = NULL;
    char key[ASSAY_TRACE_KEY];
    assay_trace_tensor t;
    if (assay_json_parse(&json, text, strlen(text), "line") != ASSAY_OK)
        return false;
    const bool same = assay_trace_tensor_from_json(json, &t, key) == ASSAY_OK && key[0] == '\0' &&
                      strcmp(t.name, found->name) == 0 &&
                      strcmp(t.partial_group, found->partial_group) == 0 &&
                      strcmp(t.hash, found->hash) == 0 && t.id == found->id && t.phase == found->phase &&
                      t.step == found->step && t.microbatch == found->microbatch && t.dtype == found->dtype &&
                      t.kind == found->kind && t.rows_id == found->rows_id &&
                      t.has_scale == found->has_scale && t.scale_id == found->scale_id &&
                      t.bytes == found->bytes && memcmp(&t.shard, &found->shard, sizeof t.shard) == 0;
    json_decref(json);
    assay_error_clear();
    return same;
}

Test(core_trace_text, a_line_of_the_writer_is_read_the_short_way)
{
    for (int i = 0; i < LINES; i++) {
        assay_trace_tensor t;
        cr_assert(assay_trace_tensor_from_text(lines[i], strlen(lines[i]), &t), "%s", lines[i]);
        cr_expect(long_way_agrees(lines[i], &t), "%s", lines[i]);
    }
}

/* Every byte replaced by every byte that JSON gives a meaning, and every byte left out: no line is taken that the JSON
 * reader refuses or reads otherwise. */
Test(core_trace_text, no_line_is_read_otherwise_than_by_the_json_reader)
{
    static const char bytes[] = "\"\\{}[]:,-+.0123459eEntfa AZ~_\x01\x7f\xc3";
    int taken = 0;
    for (int i = 0; i < LINES; i++) {
        const size_t n = strlen(lines[i]);
        for (size_t at = 0; at < n; at++)
            for (size_t k = 0; k < sizeof bytes; k++) {
                char text[512];
                assay_trace_tensor t;
                memcpy(text, lines[i], n + 1);
                if (k + 1 < sizeof bytes)
                    text[at] = bytes[k];
                else
                    memmove(text + at, text + at + 1, n - at);
                if (!assay_trace_tensor_from_text(text, strlen(text), &t))
                    continue;
                taken++;
                cr_assert(long_way_agrees(text, &t), "%s", text);
            }
    }
    cr_expect_gt(taken, 1000);
}

Test(core_trace_text, a_line_that_is_cut_off_is_not_taken)
{
    for (int i = 0; i < LINES; i++)
        for (size_t n = 0; n < strlen(lines[i]); n++) {
            assay_trace_tensor t;
            cr_assert(!assay_trace_tensor_from_text(lines[i], n, &t), "%zu bytes of %s", n, lines[i]);
        }
}
