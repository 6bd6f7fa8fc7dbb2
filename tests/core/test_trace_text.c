/* The short way to read a tensor record is the long one: where it takes a line, the JSON reader takes it, too, and both
 * read the same record. */
#include "core/base/json.h"
#include "core/base/json_text.h"
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

#define OP_HEAD(sequence, op, variant)                                                                       \
    "{\"type\":\"op\",\"sequence\":" sequence ",\"op\":\"" op                                                \
    "\",\"instance\":\"l.0\",\"phase\":\"forward\","                                                         \
    "\"step\":1,\"microbatch\":-1,\"variant\":" variant
#define ARITH "{\"accumulate\":\"F32\",\"order\":\"sequential\"}"
static const char *const op_lines[] = {
    OP_HEAD("3", "rmsnorm_fwd", "1") ",\"variant_name\":\"warp\",\"arith\":" ARITH
                                     ",\"attrs\":{\"eps\":1e-05,"
                                     "\"of\":{\"inputs\":{\"x\":1},\"outputs\":2}},\"recompute\":true,"
                                     "\"inputs\":{\"x\":12,\"weight\":3},\"outputs\":{\"y\":15}}",
    OP_HEAD("4", "all_reduce", "0") ",\"arith\":" ARITH ",\"group\":\"tp\",\"group_ranks\":[1,0],\"inputs\":{"
                                    "\"send\":12},\"outputs\":{\"recv\":16}}",
    OP_HEAD("5", "sum", "0") ",\"arith\":" ARITH ",\"output_arith\":{\"y\":" ARITH "},\"inputs\":{},"
                             "\"outputs\":{\"y\":9}}",
};
enum { OP_LINES = sizeof op_lines / sizeof *op_lines };

static bool read_long(const char *text, assay_trace_op *op)
{
    json_t *json = NULL;
    *op = (assay_trace_op){.sequence = -1};
    const bool good = assay_json_parse(&json, text, strlen(text), "line") == ASSAY_OK &&
                      assay_trace_op_from_json(json, 0, 2, op) == ASSAY_OK;
    json_decref(json);
    assay_error_clear();
    return good;
}

static void drop(assay_trace_op *op)
{
    json_decref(op->attrs);
    free((int *)(uintptr_t)op->group_ranks);
}

static bool same_slots(const assay_trace_slot *a, int n, const assay_trace_slot *b, int m)
{
    for (int i = 0; i < n && n == m; i++)
        if (strcmp(a[i].slot, b[i].slot) != 0 || a[i].tensor != b[i].tensor)
            return false;
    return n == m;
}

static void put_declaration(assay_json_text *t, const assay_declaration *d)
{
    assay_json_text_open(t, '[');
    assay_arith_put(t, &d->all);
    assay_declaration_put_outputs(t, d);
    assay_json_text_close(t, ']');
    expect_ok(assay_json_text_end(t, "declaration"));
}

static bool same_op(const assay_trace_op *a, const assay_trace_op *b)
{
    bool same = a->sequence == b->sequence && strcmp(a->op, b->op) == 0 &&
                strcmp(a->instance, b->instance) == 0 && a->phase == b->phase && a->step == b->step &&
                a->microbatch == b->microbatch && a->variant == b->variant &&
                strcmp(a->variant_name, b->variant_name) == 0 && strcmp(a->group, b->group) == 0 &&
                a->n_group_ranks == b->n_group_ranks && a->recompute == b->recompute && a->rank == b->rank &&
                a->n_internal == b->n_internal && strcmp(a->fused, b->fused) == 0 &&
                a->fused_part == b->fused_part &&
                memcmp(a->substituted, b->substituted, sizeof a->substituted) == 0;
    for (int i = 0; same && i < a->n_group_ranks; i++)
        same = a->group_ranks[i] == b->group_ranks[i];
    assay_json_text x = {0}, y = {0};
    put_declaration(&x, &a->arith);
    put_declaration(&y, &b->arith);
    same = same && strcmp(x.text, y.text) == 0 && (a->attrs == b->attrs || json_equal(a->attrs, b->attrs));
    assay_json_text_free(&x);
    assay_json_text_free(&y);
    return same && same_slots(a->inputs, a->n_inputs, b->inputs, b->n_inputs) &&
           same_slots(a->outputs, a->n_outputs, b->outputs, b->n_outputs);
}

/* Parts of all op_lines, with `extra` before them. */
static assay_trace_parts *parts_of(const char *extra)
{
    assay_trace_parts *p = assay_trace_parts_create();
    for (int i = -1; i < OP_LINES; i++) {
        assay_trace_op op;
        const char *line = i < 0 ? extra : op_lines[i];
        if (!line)
            continue;
        cr_assert(read_long(line, &op), "%s", line);
        assay_trace_parts_add(p, line, strlen(line), &op);
        assay_trace_parts_add(p, line, strlen(line), &op);
        drop(&op);
    }
    return p;
}

/* A line whose part came before is read as the JSON reader reads it; one byte changed anywhere: as the JSON reader reads that,
 * or left to it. */
Test(core_trace_text, no_operation_is_read_otherwise_than_by_the_json_reader)
{
    static const char bytes[] = "\"\\{}[]:,-+.0123459eEntfa AZ~_\x01\x7f\xc3";
    assay_trace_parts *none = assay_trace_parts_create(), *parts = parts_of(NULL);
    int taken = 0;
    for (int i = 0; i < OP_LINES; i++) {
        const size_t n = strlen(op_lines[i]);
        assay_trace_op s, l;
        cr_assert(!assay_trace_op_from_text(none, op_lines[i], n, 0, &s));
        cr_assert(assay_trace_op_from_text(parts, op_lines[i], n, 0, &s), "%s", op_lines[i]);
        cr_assert(read_long(op_lines[i], &l) && same_op(&s, &l), "%s", op_lines[i]);
        drop(&s), drop(&l);
        for (size_t at = 0; at <= n; at++)
            for (size_t k = 0; k <= sizeof bytes; k++) {
                char text[512];
                memcpy(text, op_lines[i], n + 1);
                if (k == sizeof bytes)
                    text[at] = '\0';
                else if (k + 1 < sizeof bytes)
                    text[at] = bytes[k];
                else
                    memmove(text + at, text + at + 1, n - at);
                if (at == n || !assay_trace_op_from_text(parts, text, strlen(text), 0, &s))
                    continue;
                taken++;
                cr_assert(read_long(text, &l) && same_op(&s, &l), "%s", text);
                drop(&s), drop(&l);
            }
    }
    cr_expect_gt(taken, 500);
    assay_trace_parts_destroy(parts);
    assay_trace_parts_destroy(none);
}

/* What is read by the names of slots is never remembered; an output of its own arithmetic must be there each time. */
Test(core_trace_text, parts_that_depend_on_slots_are_left_to_the_json_reader)
{
    static const char internal[] =
        OP_HEAD("6", "swiglu_fwd", "1") ",\"arith\":" ARITH ",\"internal\":[\"h\"],\"inputs\":{\"x\":1},"
                                        "\"outputs\":{\"y\":2}}";
    static const char renamed[] =
        OP_HEAD("7", "sum", "0") ",\"arith\":" ARITH ",\"output_arith\":{\"y\":" ARITH
                                 "},\"inputs\":{},\"outputs\":{\"z\":9}}";
    assay_trace_parts *parts = parts_of(internal);
    assay_trace_op op;
    cr_expect(!assay_trace_op_from_text(parts, internal, strlen(internal), 0, &op));
    cr_expect(!assay_trace_op_from_text(parts, renamed, strlen(renamed), 0, &op));
    cr_expect(!read_long(renamed, &op));
    drop(&op);
    assay_trace_parts_destroy(parts);
}

/* More parts than the first table has room for. */
Test(core_trace_text, many_parts_are_found_again)
{
    assay_trace_parts *p = assay_trace_parts_create();
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 300; i++) {
            char text[512];
            assay_trace_op s, l;
            snprintf(
                text, sizeof text,
                OP_HEAD("%d", "add", "0") ",\"arith\":" ARITH
                                          ",\"attrs\":{\"n\":%d},\"inputs\":{\"a\":1},\"outputs\":{\"y\":2}}",
                i, i);
            cr_assert(read_long(text, &l), "%s", text);
            if (pass == 0) {
                assay_trace_parts_add(p, text, strlen(text), &l);
            } else {
                cr_assert(assay_trace_op_from_text(p, text, strlen(text), 0, &s), "%s", text);
                cr_expect(same_op(&s, &l), "%s", text);
                drop(&s);
            }
            drop(&l);
        }
    assay_trace_parts_destroy(p);
}
