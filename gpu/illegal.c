/* `ops --illegal`: legal records with one thing broken. */
#include "gpu/illegal.h"

#include "gpu/execute.h"
#include "gpu/ladder.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_BYTES = 64 << 20, WORDS = 64 };

/* One entry of the list, read. */
typedef struct breakage {
    int64_t record, number; /* "value" of a slot that is a number */
    char slot[WORDS], attr[WORDS], what[WORDS], operation[WORDS], variant[WORDS];
    bool kernel;         /* behind the table */
    bool nothing;        /* there was nothing to break: no workspace */
    const json_t *value; /* of an attribute, or the name of a dtype */
} breakage;

static assay_status read_breakage(const json_t *entry, breakage *b)
{
    static const char *const keys[] = {"record",  "slot",   "attr",  "what", "operation",
                                       "variant", "kernel", "value", NULL};
    static const char what[] = "--illegal";
    memset(b, 0, sizeof *b);
    ASSAY_CHECK(json_is_object(entry), ASSAY_FORMAT, "%s: expected objects", what);
    ASSAY_TRY(assay_json_only(entry, keys, what));
    ASSAY_TRY(assay_json_get_i64(entry, "record", false, 0, INT64_MAX, what, &b->record));
    ASSAY_TRY(assay_json_get_string(entry, "slot", false, what, b->slot, sizeof b->slot));
    ASSAY_TRY(assay_json_get_string(entry, "attr", false, what, b->attr, sizeof b->attr));
    ASSAY_TRY(assay_json_get_string(entry, "what", false, what, b->what, sizeof b->what));
    ASSAY_TRY(assay_json_get_string(entry, "operation", false, what, b->operation, sizeof b->operation));
    ASSAY_TRY(assay_json_get_string(entry, "variant", false, what, b->variant, sizeof b->variant));
    ASSAY_TRY(assay_json_get_bool(entry, "kernel", false, what, &b->kernel));
    b->value = json_object_get(entry, "value");
    b->number = json_integer_value(b->value);
    return ASSAY_OK;
}

/* --- in front of the table: host slots and attributes ------------------------------------------------------------ */

/* Data of the new shape and dtype: what there was, then zeros. */
static assay_status resize(gpu_slot *s, size_t before)
{
    int64_t count = 0, bytes = 0;
    if (!assay_shape_count(s->shape, s->ndim, &count) ||
        !assay_mul_i64(count, assay_dtype_bytes(s->dtype), &bytes))
        return ASSAY_OK;
    char *data = calloc(1, (size_t)bytes + 1);
    ASSAY_CHECK(data != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld bytes", s->slot, (long long)bytes);
    memcpy(data, s->data, (size_t)bytes < before ? (size_t)bytes : before);
    free(s->data);
    s->data = data;
    return ASSAY_OK;
}

static assay_status break_slot(const breakage *b, gpu_slot *s)
{
    const int64_t d = b->number;
    int64_t count = 0;
    (void)assay_shape_count(s->shape, s->ndim, &count);
    const size_t before = (size_t)(count * assay_dtype_bytes(s->dtype));
    if (strcmp(b->what, "no_data") == 0) {
        free(s->data);
        s->data = NULL;
        return ASSAY_OK;
    }
    if (strcmp(b->what, "index") == 0) {
        ASSAY_CHECK(before >= sizeof d && s->dtype == ASSAY_I64, ASSAY_FORMAT, "%s: no index", s->slot);
        memcpy(s->data, &d, sizeof d);
        return ASSAY_OK;
    }
    if (strcmp(b->what, "dtype") == 0) {
        ASSAY_CHECK(json_is_string(b->value), ASSAY_FORMAT, "value: expected a dtype");
        ASSAY_TRY(assay_dtype_from_name(json_string_value(b->value), &s->dtype));
        return resize(s, before);
    }
    ASSAY_CHECK(d >= 0 && d < s->ndim, ASSAY_FORMAT, "%s: no dimension %lld", s->slot, (long long)d);
    if (strcmp(b->what, "extent") == 0)
        s->shape[d]++;
    else if (strcmp(b->what, "empty") == 0)
        s->shape[d] = 0;
    else if (strcmp(b->what, "negative") == 0)
        s->shape[d] = -1;
    else
        ASSAY_FAIL(ASSAY_FORMAT, "what: '%s' is not known for slots", b->what);
    return resize(s, before);
}

static assay_status break_call(const breakage *b, gpu_slot *in, int *n)
{
    int at = 0;
    if (strcmp(b->what, "unknown") == 0) {
        ASSAY_CHECK(*n < ASSAY_MAX_SLOTS, ASSAY_LIMIT, "no room for one more slot");
        gpu_slot *more = &in[(*n)++];
        *more = (gpu_slot){.dtype = ASSAY_F32, .ndim = 1}; /* [0]: no data */
        snprintf(more->slot, sizeof more->slot, "%s", b->slot);
        return ASSAY_OK;
    }
    while (at < *n && strcmp(in[at].slot, b->slot) != 0)
        at++;
    ASSAY_CHECK(at < *n, ASSAY_FORMAT, "record %lld has no slot %s", (long long)b->record, b->slot);
    if (strcmp(b->what, "absent") != 0)
        return break_slot(b, &in[at]);
    free(in[at].data);
    memmove(&in[at], &in[at + 1], (size_t)(*n - at - 1) * sizeof *in);
    memset(&in[--*n], 0, sizeof *in);
    return ASSAY_OK;
}

/* --- behind the table: what the operation's function gets ---------------------------------------------------------- */
static void break_tensor(const breakage *b, gpu_tensor *t)
{
    int64_t shape[GPU_MAX_DIMS];
    memcpy(shape, t->shape, sizeof shape);
    if (strcmp(b->what, "absent") == 0)
        *t = gpu_tensor_none();
    else if (strcmp(b->what, "no_data") == 0)
        t->data = NULL;
    else if (strcmp(b->what, "dtype") == 0)
        (void)assay_dtype_from_name(json_string_value(b->value), &t->dtype);
    else if (strcmp(b->what, "address") == 0)
        t->data = (char *)t->data + 1;
    else if (b->number < t->ndim) {
        shape[b->number] = strcmp(b->what, "extent") == 0  ? shape[b->number] + 1
                           : strcmp(b->what, "empty") == 0 ? 0
                                                           : -1;
        *t = gpu_tensor_make(t->data, t->dtype, t->ndim, shape);
    }
}

/* Bytes of workspace that the rung which takes this call needs: another rung of its ladder may need more. */
static size_t needed(const gpu_ctx *ctx, const gpu_operands *o)
{
    const gpu_rung *rungs = gpu_ladder(o->op->name);
    const gpu_rung *r = rungs ? &rungs[gpu_ladder_choose(rungs, ctx, o, 1)] : NULL;
    return r && r->workspace ? r->workspace(ctx, o) : 0;
}

static void break_operands(void *user, gpu_ctx *ctx, gpu_operands *o)
{
    breakage *b = user;
    const int i = gpu_operands_index(o, b->slot);
    if (strcmp(b->what, "workspace") == 0) {
        const size_t bytes = needed(ctx, o);
        b->nothing = bytes == 0;
        if (!b->nothing)
            ctx->workspace_bytes = bytes - 1;
    }
    if (i >= 0)
        break_tensor(b, &o->slot[i]);
}

/* --- one entry ------------------------------------------------------------------------------------------------------ */
static assay_status break_attributes(const breakage *b, json_t *attrs)
{
    if (b->attr[0] == '\0')
        return ASSAY_OK;
    if (strcmp(b->what, "absent") == 0)
        (void)json_object_del(attrs, b->attr);
    else
        ASSAY_CHECK(json_object_set_new(attrs, b->attr, json_deep_copy(b->value)) == 0, ASSAY_FORMAT,
                    "value: expected one for attribute %s", b->attr);
    return ASSAY_OK;
}

static assay_status run_broken(gpu_run *run, const assay_trace *request, breakage *b,
                               const assay_trace_op *op, json_t *attrs, gpu_slot *in, gpu_slot *out)
{
    char text[32] = "F32";
    assay_dtype act;
    int n_in = op->n_inputs, n_out = 0;
    const gpu_execute_form form = {.spoil = b->kernel ? break_operands : NULL, .user = b};
    ASSAY_TRY(assay_json_get_string(op->attrs, "act", false, op->op, text, sizeof text));
    ASSAY_TRY(assay_dtype_from_name(text, &act));
    ASSAY_TRY(gpu_execute_read_inputs(request, op, run->comm.rank, in));
    ASSAY_TRY(break_attributes(b, attrs));
    if (b->slot[0] != '\0' && !b->kernel)
        ASSAY_TRY(break_call(b, in, &n_in));
    return gpu_execute_as(&run->ctx, b->operation[0] != '\0' ? b->operation : op->op, attrs, act, in, n_in,
                          &form, out, &n_out, NULL);
}

static assay_status run_entry(gpu_run *run, const assay_trace *request, const json_t *entry, bool *nothing)
{
    gpu_slot in[ASSAY_MAX_SLOTS], out[ASSAY_MAX_SLOTS];
    breakage b;
    ASSAY_TRY(read_breakage(entry, &b));
    if (b.variant[0] != '\0')
        return gpu_ctx_set_variants(&run->ctx, b.variant);
    ASSAY_CHECK(b.record < assay_trace_n_ops(request, run->comm.rank), ASSAY_FORMAT, "record %lld of %lld",
                (long long)b.record, (long long)assay_trace_n_ops(request, run->comm.rank));
    const assay_trace_op *op = assay_trace_op_at(request, run->comm.rank, b.record);
    json_t *attrs = op->attrs != NULL ? json_deep_copy(op->attrs) : json_object();
    memset(in, 0, sizeof in);
    memset(out, 0, sizeof out);
    const assay_status st = run_broken(run, request, &b, op, attrs, in, out);
    for (int i = 0; i < ASSAY_MAX_SLOTS; i++) {
        free(in[i].data);
        free(out[i].data);
    }
    json_decref(attrs);
    *nothing = b.nothing;
    return st;
}

static assay_status put_line(FILE *f, const char *path, json_t *line)
{
    char *text = json_dumps(line, JSON_COMPACT);
    json_decref(line);
    const bool written = text != NULL && fprintf(f, "%s\n", text) > 0 && fflush(f) == 0;
    free(text);
    ASSAY_CHECK(written, ASSAY_IO, "%s: %s", path, strerror(errno));
    return ASSAY_OK;
}

static assay_status run_list(gpu_run *run, const assay_trace *request, const json_t *list, const char *path)
{
    assay_status st = ASSAY_OK;
    bool goes_on = true;
    FILE *f = fopen(path, "we");
    ASSAY_CHECK(f != NULL, ASSAY_IO, "%s: %s", path, strerror(errno));
    for (size_t i = 0; i < json_array_size(list) && goes_on; i++) {
        ASSAY_TRY_GOTO(put_line(f, path, json_pack("{s:I}", "entry", (json_int_t)i)), st, done);
        bool nothing = false;
        const assay_status found = run_entry(run, request, json_array_get(list, i), &nothing);
        ASSAY_TRY_GOTO(put_line(f, path,
                                json_pack("{s:I, s:s, s:s}", "entry", (json_int_t)i, "status",
                                          nothing ? "NOTHING" : assay_status_name(found), "message",
                                          found == ASSAY_OK ? "" : assay_error_message())),
                       st, done);
        goes_on = found == ASSAY_OK || found == ASSAY_INVALID_ARGUMENT || found == ASSAY_UNSUPPORTED ||
                  found == ASSAY_LIMIT || found == ASSAY_NOT_FOUND;
        assay_error_clear();
    }
done:
    if (fclose(f) != 0 && st == ASSAY_OK)
        st = ASSAY_ERROR(ASSAY_IO, "%s: %s", path, strerror(errno));
    return st;
}

assay_status gpu_ops_illegal_verb(const char *request_dir, const char *illegal, const char *out,
                                  const char *variants)
{
    assay_status st = ASSAY_OK;
    assay_trace *request = NULL;
    json_t *list = NULL;
    gpu_run run = {.layer = -1, .microbatch = -1};
    ASSAY_TRY_GOTO(assay_trace_open(&request, request_dir, true), st, done);
    ASSAY_CHECK_GOTO(assay_trace_world(request) == 1, ASSAY_MISMATCH, st, done,
                     "%s: a request for %d ranks: illegal calls are made on one", request_dir,
                     assay_trace_world(request));
    ASSAY_TRY_GOTO(assay_json_load(&list, illegal), st, done);
    ASSAY_CHECK_GOTO(json_is_array(list), ASSAY_FORMAT, st, done, "%s: expected a list", illegal);
    ASSAY_TRY_GOTO(gpu_ctx_init(&run.ctx, -1, WORKSPACE_BYTES), st, done);
    ASSAY_TRY_GOTO(gpu_ctx_set_variants(&run.ctx, variants), st, done);
    st = run_list(&run, request, list, out);
done:
    json_decref(list);
    assay_trace_close(request);
    gpu_ctx_destroy(&run.ctx);
    return st;
}
