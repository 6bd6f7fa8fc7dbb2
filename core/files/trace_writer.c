/* Trace writer: one per rank.  Lines go out as they come; tensor data is kept until the end of the step and
 * then written in one safetensors file, each content once. */
#include "core/files/trace_internal.h"

#include "core/base/file.h"
#include "core/base/json_text.h"
#include "core/files/tensorwriter.h"
#include "core/files/trace_contents.h"
#include "core/model/layout.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A trace is held against accidents, not against somebody who makes two contents of one hash: at memory speed. */
static const assay_hash_kind CONTENT_HASH = ASSAY_HASH_XXH3;

/* What a later record that names this one must know about it. */
typedef struct written {
    assay_dtype dtype;
    int ndim;
    int64_t shape[ASSAY_MAX_DIMS]; /* local */
} written;

struct assay_trace_writer {
    char *dir;
    char path[PATH_MAX]; /* of the rank's lines */
    int rank, world;
    bool hash_only;
    FILE *lines;
    char *buffer;         /* of lines */
    assay_json_text line; /* the one being written */
    int64_t n_tensors, n_ops;
    int64_t written_capacity;
    written *records;              /* by record id */
    int64_t step;                  /* open step, -1 */
    int64_t last_step;             /* last step that ended, -1 */
    assay_trace_contents contents; /* of the open step */
};

static assay_status create_lines(assay_trace_writer *w)
{
    ASSAY_TRY(assay_trace_rank_path(w->dir, w->rank, w->path, sizeof w->path));
    const int fd = open(w->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    ASSAY_CHECK(fd >= 0 || errno != EEXIST, ASSAY_INVALID_ARGUMENT,
                "%s: exists, %s already holds a trace; expected an empty or a new folder", w->path, w->dir);
    ASSAY_CHECK(fd >= 0, ASSAY_IO, "%s: cannot create: %s", w->path, strerror(errno));
    w->lines = fdopen(fd, "w");
    if (!w->lines) {
        close(fd);
        ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "%s: out of memory", w->path);
    }
    w->buffer = assay_buffer_file(w->lines);
    return ASSAY_OK;
}

static assay_status write_index(const assay_trace_writer *w, json_t *header)
{
    char path[PATH_MAX];
    ASSAY_TRY(assay_trace_index_path(w->dir, path, sizeof path));
    json_t *index = json_object();
    int failed = !index;
    failed = failed || json_object_set_new(index, "format", json_string(ASSAY_TRACE_FORMAT)) != 0;
    failed = failed || json_object_set_new(index, "version", json_integer(ASSAY_TRACE_VERSION)) != 0;
    failed = failed || json_object_set_new(index, "world_size", json_integer(w->world)) != 0;
    failed = failed || json_object_set_new(index, "hash_only", json_boolean(w->hash_only)) != 0;
    failed =
        failed || json_object_set_new(index, "hash", json_string(assay_hash_kind_name(CONTENT_HASH))) != 0;
    failed = failed || (header && json_object_update_missing(index, header) != 0);
    const assay_status st =
        failed ? ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s: out of memory", path) : assay_json_save(index, path);
    json_decref(index);
    return st;
}

assay_status assay_trace_writer_open(assay_trace_writer **out, const char *dir, int rank, int world,
                                     json_t *header, bool hash_only)
{
    assay_status st = ASSAY_OK;
    char path[PATH_MAX];
    *out = NULL;
    ASSAY_CHECK(world >= 1 && world <= ASSAY_MAX_WORLD && rank >= 0 && rank < world, ASSAY_INVALID_ARGUMENT,
                "%s: rank %d of %d, expected a rank in a world of 1...%d", dir, rank, world, ASSAY_MAX_WORLD);
    ASSAY_CHECK(!header || json_is_object(header), ASSAY_INVALID_ARGUMENT, "%s: the header must be an object",
                dir);
    ASSAY_TRY(assay_hash_init());
    assay_trace_writer *w = calloc(1, sizeof *w);
    ASSAY_CHECK(w, ASSAY_OUT_OF_MEMORY, "%s: out of memory", dir);
    *w = (assay_trace_writer){
        .rank = rank, .world = world, .hash_only = hash_only, .step = -1, .last_step = -1};
    w->dir = strdup(dir);
    ASSAY_CHECK_GOTO(w->dir, ASSAY_OUT_OF_MEMORY, st, fail, "%s: out of memory", dir);
    ASSAY_TRY_GOTO(assay_mkdir_p(dir), st, fail);
    ASSAY_TRY_GOTO(assay_trace_index_path(dir, path, sizeof path), st, fail);
    ASSAY_CHECK_GOTO(rank != 0 || access(path, F_OK) != 0, ASSAY_INVALID_ARGUMENT, st, fail,
                     "%s: exists, %s already holds a trace; expected an empty or a new folder", path, dir);
    ASSAY_TRY_GOTO(create_lines(w), st, fail);
    if (rank == 0)
        ASSAY_TRY_GOTO(write_index(w, header), st, fail);
    *out = w;
    return ASSAY_OK;
fail:
    assay_trace_writer_destroy(w);
    return st;
}

void assay_trace_writer_destroy(assay_trace_writer *w)
{
    if (!w)
        return;
    assay_trace_contents_free(&w->contents);
    if (w->lines)
        fclose(w->lines);
    assay_json_text_free(&w->line);
    free(w->buffer);
    free(w->records);
    free(w->dir);
    free(w);
}

assay_status assay_trace_end_step(assay_trace_writer *w)
{
    assay_status st = ASSAY_OK;
    char path[PATH_MAX];
    assay_tensorwriter *out = NULL;
    if (w->step < 0)
        return ASSAY_OK; /* nothing was recorded: no file */
    if (w->contents.n > 0) {
        ASSAY_TRY(assay_trace_data_path(w->dir, w->rank, w->step, path, sizeof path));
        ASSAY_TRY(assay_tensorwriter_create(&out, path));
        assay_tensorwriter_unsynced(out); /* hashes and end markers tell what is missing */
        for (int64_t i = 0; i < w->contents.n; i++) {
            const assay_trace_content *c = &w->contents.content[i];
            ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(out, c->hash, c->dtype, c->shape, c->ndim, c->data), st,
                           done);
        }
        ASSAY_TRY_GOTO(assay_tensorwriter_finish(out), st, done);
    }
    ASSAY_CHECK_GOTO(fflush(w->lines) == 0, ASSAY_IO, st, done, "%s: cannot write: %s", w->path,
                     strerror(errno));
    assay_trace_contents_drop(&w->contents);
    w->last_step = w->step;
    w->step = -1;
done:
    assay_tensorwriter_destroy(out);
    return st;
}

/* --- lines ------------------------------------------------------------------------------------------------
 */

/* Ends w->line, which begins with assay_json_text_begin, and writes it. */
static assay_status write_line(assay_trace_writer *w)
{
    ASSAY_TRY(assay_json_text_end(&w->line, w->path));
    const size_t n = w->line.n;
    ASSAY_CHECK(n < ASSAY_TRACE_MAX_LINE, ASSAY_LIMIT, "%s: a record of %zu bytes, at most %d are legal",
                w->path, n, ASSAY_TRACE_MAX_LINE);
    w->line.text[n] = '\n'; /* in the place of the NUL */
    ASSAY_CHECK(fwrite(w->line.text, 1, n + 1, w->lines) == n + 1, ASSAY_IO, "%s: cannot write: %s", w->path,
                strerror(errno));
    return ASSAY_OK;
}

/* Takes the reference to `value`. */
static void put_value(assay_trace_writer *w, const char *key, json_t *value)
{
    assay_json_text_key(&w->line, key);
    assay_json_text_value(&w->line, value);
    json_decref(value);
}

static void put_tensor(assay_trace_writer *w, const assay_trace_tensor *t)
{
    assay_json_text_begin(&w->line);
    assay_json_text_open(&w->line, '{');
    assay_json_text_put_string(&w->line, "type", "tensor");
    assay_json_text_put_integer(&w->line, "id", t->id);
    assay_json_text_put_string(&w->line, "name", t->name);
    assay_json_text_put_string(&w->line, "phase", assay_phase_name(t->phase));
    assay_json_text_put_integer(&w->line, "step", t->step);
    assay_json_text_put_integer(&w->line, "microbatch", t->microbatch);
    assay_json_text_put_string(&w->line, "dtype", assay_dtype_name(t->dtype));
    assay_json_text_key(&w->line, "global_shape");
    assay_json_text_integers(&w->line, t->shard.global_shape, t->shard.ndim);
    if (!assay_trace_is_whole(&t->shard)) {
        assay_json_text_key(&w->line, "local_shape");
        assay_json_text_integers(&w->line, t->shard.local_shape, t->shard.ndim);
        assay_json_text_key(&w->line, "segments");
        assay_shard_put_segments(&w->line, &t->shard);
    }
    if (t->kind != ASSAY_PIECE_SHARD)
        assay_json_text_put_string(&w->line, "kind", assay_piece_kind_name(t->kind));
    if (t->kind == ASSAY_PIECE_PARTIAL)
        assay_json_text_put_string(&w->line, "partial_group", t->partial_group);
    if (t->kind == ASSAY_PIECE_ROWS)
        assay_json_text_put_integer(&w->line, "rows_id", t->rows_id);
    if (t->has_scale)
        assay_json_text_put_integer(&w->line, "scale", t->scale_id);
    assay_json_text_put_string(&w->line, "hash", t->hash);
    assay_json_text_close(&w->line, '}');
}

static assay_status remember(assay_trace_writer *w, const assay_trace_tensor *t)
{
    if (t->id == w->written_capacity) {
        const int64_t capacity = w->written_capacity ? 2 * w->written_capacity : 1024;
        written *grown = realloc(w->records, (size_t)capacity * sizeof *grown);
        ASSAY_CHECK(grown, ASSAY_OUT_OF_MEMORY, "%s: out of memory", w->path);
        w->records = grown;
        w->written_capacity = capacity;
    }
    w->records[t->id] = (written){.dtype = t->dtype, .ndim = t->shard.ndim};
    memcpy(w->records[t->id].shape, t->shard.local_shape, sizeof w->records[t->id].shape);
    return ASSAY_OK;
}

static bool has_rows(const assay_trace_writer *w, const assay_trace_tensor *t)
{
    const written *rows = t->rows_id < w->n_tensors ? &w->records[t->rows_id] : NULL;
    return rows && rows->dtype == ASSAY_I64 && rows->ndim == 1 && rows->shape[0] == t->shard.local_shape[0];
}

static assay_status check_scale(const assay_trace_writer *w, const assay_trace_tensor *t)
{
    assay_trace_tensor scale = {.kind = ASSAY_PIECE_SHARD};
    const bool found = t->scale_id >= 0 && t->scale_id < w->n_tensors;
    if (found) {
        scale.dtype = w->records[t->scale_id].dtype;
        assay_shard_whole(&scale.shard, w->records[t->scale_id].shape, w->records[t->scale_id].ndim);
    }
    const assay_status st = assay_trace_check_scale(t, found ? &scale : NULL);
    if (st != ASSAY_FORMAT)
        return st;
    char why[512]; /* what is wrong in a file is a wrong argument here */
    snprintf(why, sizeof why, "%s", assay_error_message());
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "%s: %s", w->path, why);
}

assay_status assay_trace_write_tensor(assay_trace_writer *w, assay_trace_tensor *t, const void *data)
{
    ASSAY_CHECK(w->lines, ASSAY_INVALID_ARGUMENT, "%s: the trace is closed", w->path);
    if (t->kind != ASSAY_PIECE_ROWS)
        t->rows_id = -1;
    ASSAY_TRY(assay_trace_check_tensor(t));
    ASSAY_CHECK(data || t->bytes == 0, ASSAY_INVALID_ARGUMENT, "%s: %s: no data", w->path, t->name);
    ASSAY_CHECK(w->step < 0 ? t->step > w->last_step : t->step == w->step, ASSAY_INVALID_ARGUMENT,
                "%s: %s: step %" PRId64 ", but step %" PRId64 " %s", w->path, t->name, t->step,
                w->step < 0 ? w->last_step : w->step, w->step < 0 ? "has ended" : "is open");
    if (t->kind == ASSAY_PIECE_ROWS)
        ASSAY_CHECK(has_rows(w, t), ASSAY_INVALID_ARGUMENT,
                    "%s: %s: rows_id %" PRId64 " must be an earlier 1-D I64 record of %" PRId64 " entries",
                    w->path, t->name, t->rows_id, t->shard.local_shape[0]);
    if (t->has_scale)
        ASSAY_TRY(check_scale(w, t));
    t->id = w->n_tensors;
    t->rank = w->rank;
    const bool kept = assay_trace_contents_find(&w->contents, t, data);
    if (!kept)
        assay_hash_tensor_as(CONTENT_HASH, t->dtype, t->shard.local_shape, t->shard.ndim, data, t->bytes,
                             t->hash);
    ASSAY_TRY(remember(w, t));
    put_tensor(w, t);
    ASSAY_TRY(assay_json_text_end(&w->line, w->path)); /* before the content is kept */
    if (!w->hash_only && !kept)
        ASSAY_TRY(assay_trace_contents_keep(&w->contents, t, data, w->path));
    ASSAY_TRY(write_line(w));
    w->step = t->step;
    w->n_tensors++;
    return ASSAY_OK;
}

static assay_status put_slots(assay_trace_writer *w, const assay_trace_op *op, const char *direction,
                              const assay_trace_slot *slots, int n)
{
    ASSAY_CHECK(n >= 0 && n <= ASSAY_MAX_SLOTS, ASSAY_INVALID_ARGUMENT,
                "%s: %s has %d %s, at most %d are legal", w->path, op->op, n, direction, ASSAY_MAX_SLOTS);
    assay_json_text_key(&w->line, direction);
    assay_json_text_open(&w->line, '{');
    for (int i = 0; i < n; i++) {
        bool twice = false;
        for (int k = 0; k < i; k++)
            twice = twice || strcmp(slots[k].slot, slots[i].slot) == 0;
        ASSAY_CHECK(slots[i].slot[0] != '\0' && !twice, ASSAY_INVALID_ARGUMENT,
                    "%s: %s: the slot '%s' in %s is empty or there twice", w->path, op->op, slots[i].slot,
                    direction);
        ASSAY_CHECK(slots[i].tensor >= 0 && slots[i].tensor < w->n_tensors, ASSAY_INVALID_ARGUMENT,
                    "%s: %s: slot '%s' names record %" PRId64 ", but %" PRId64 " records were written",
                    w->path, op->op, slots[i].slot, slots[i].tensor, w->n_tensors);
        assay_json_text_put_integer(&w->line, slots[i].slot, slots[i].tensor);
    }
    assay_json_text_close(&w->line, '}');
    return ASSAY_OK;
}

static assay_status put_group(assay_trace_writer *w, const assay_trace_op *op)
{
    ASSAY_CHECK((op->group[0] != '\0') == (op->n_group_ranks > 0) && op->n_group_ranks <= w->world,
                ASSAY_INVALID_ARGUMENT, "%s: %s: group '%s' with %d ranks", w->path, op->op, op->group,
                op->n_group_ranks);
    if (op->n_group_ranks == 0)
        return ASSAY_OK;
    int problem;
    const assay_status st =
        assay_trace_check_group(op->group_ranks, op->n_group_ranks, w->world, w->rank, &problem);
    ASSAY_CHECK(st != ASSAY_FORMAT, ASSAY_INVALID_ARGUMENT, "%s: %s: this rank, %d, is not in group '%s'",
                w->path, op->op, w->rank, op->group);
    ASSAY_TRY(st);
    ASSAY_CHECK(problem < 0, ASSAY_INVALID_ARGUMENT,
                "%s: %s: rank %d of group '%s' is not in the world or there twice", w->path, op->op,
                op->group_ranks[problem], op->group);
    assay_json_text_put_string(&w->line, "group", op->group);
    assay_json_text_key(&w->line, "group_ranks");
    assay_json_text_open(&w->line, '[');
    for (int i = 0; i < op->n_group_ranks; i++)
        assay_json_text_integer(&w->line, op->group_ranks[i]);
    assay_json_text_close(&w->line, ']');
    return ASSAY_OK;
}

/* Names of the outputs that something put in place of the operation's own; NULL: none. */
static json_t *substituted(const assay_trace_op *op)
{
    json_t *list = NULL;
    for (int i = 0; i < op->n_outputs; i++) {
        if (op->substituted[i] && !list)
            list = json_array();
        if (op->substituted[i])
            json_array_append_new(list, json_string(op->outputs[i].slot));
    }
    return list;
}

static json_t *internal(const assay_trace_op *op)
{
    json_t *list = json_array();
    for (int i = 0; i < op->n_internal; i++)
        json_array_append_new(list, json_string(op->internal[i]));
    return list;
}

assay_status assay_trace_write_op(assay_trace_writer *w, assay_trace_op *op)
{
    ASSAY_CHECK(w->lines, ASSAY_INVALID_ARGUMENT, "%s: the trace is closed", w->path);
    ASSAY_CHECK(op->op[0] != '\0' && op->phase < ASSAY_PHASE_COUNT && op->step >= 0 && op->microbatch >= -1 &&
                    op->variant >= 0,
                ASSAY_INVALID_ARGUMENT, "%s: op '%s': phase, step, microbatch or variant is out of range",
                w->path, op->op);
    const assay_status st = assay_trace_check_declaration(op);
    ASSAY_CHECK(st == ASSAY_OK, ASSAY_INVALID_ARGUMENT, "%s: op '%s': %s", w->path, op->op,
                assay_error_message());
    op->sequence = w->n_ops;
    op->rank = w->rank;
    assay_json_text_begin(&w->line);
    assay_json_text_open(&w->line, '{');
    assay_json_text_put_string(&w->line, "type", "op");
    assay_json_text_put_integer(&w->line, "sequence", op->sequence);
    assay_json_text_put_string(&w->line, "op", op->op);
    assay_json_text_put_string(&w->line, "instance", op->instance);
    assay_json_text_put_string(&w->line, "phase", assay_phase_name(op->phase));
    assay_json_text_put_integer(&w->line, "step", op->step);
    assay_json_text_put_integer(&w->line, "microbatch", op->microbatch);
    assay_json_text_put_integer(&w->line, "variant", op->variant);
    if (op->variant_name[0] != '\0')
        assay_json_text_put_string(&w->line, "variant_name", op->variant_name);
    assay_json_text_key(&w->line, "arith");
    assay_arith_put(&w->line, &op->arith.all);
    if (op->arith.n > 0) {
        assay_json_text_key(&w->line, "output_arith");
        assay_declaration_put_outputs(&w->line, &op->arith);
    }
    if (op->attrs)
        put_value(w, "attrs", json_incref(op->attrs));
    if (op->recompute)
        put_value(w, "recompute", json_true());
    if (op->fused[0] != '\0')
        put_value(w, "fused", json_pack("{s:s, s:i}", "op", op->fused, "part", op->fused_part));
    json_t *replaced = substituted(op);
    if (replaced)
        put_value(w, "substituted", replaced);
    if (op->n_internal > 0)
        put_value(w, "internal", internal(op));
    ASSAY_TRY(put_group(w, op));
    ASSAY_TRY(put_slots(w, op, "inputs", op->inputs, op->n_inputs));
    ASSAY_TRY(put_slots(w, op, "outputs", op->outputs, op->n_outputs));
    assay_json_text_close(&w->line, '}');
    ASSAY_TRY(write_line(w));
    w->n_ops++;
    return ASSAY_OK;
}

assay_status assay_trace_writer_close(assay_trace_writer *w)
{
    ASSAY_CHECK(w->lines, ASSAY_INVALID_ARGUMENT, "%s: the trace is closed already", w->path);
    ASSAY_TRY(assay_trace_end_step(w));
    assay_json_text_begin(&w->line);
    assay_json_text_open(&w->line, '{');
    assay_json_text_put_string(&w->line, "type", "end");
    assay_json_text_put_integer(&w->line, "rank", w->rank);
    assay_json_text_put_integer(&w->line, "world_size", w->world);
    assay_json_text_put_integer(&w->line, "tensors", w->n_tensors);
    assay_json_text_put_integer(&w->line, "ops", w->n_ops);
    assay_json_text_close(&w->line, '}');
    ASSAY_TRY(write_line(w));
    const bool flushed = fflush(w->lines) == 0;
    const int error = errno;
    const bool closed = fclose(w->lines) == 0;
    w->lines = NULL;
    ASSAY_CHECK(flushed && closed, ASSAY_IO, "%s: cannot write: %s", w->path,
                strerror(flushed ? errno : error));
    return ASSAY_OK;
}
