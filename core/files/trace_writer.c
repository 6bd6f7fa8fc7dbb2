/* Trace writer: one per rank.  Lines go out as they come; tensor data is kept until the end of the step and
 * then written in one safetensors file, each content once. */
#include "core/files/trace_internal.h"

#include "core/base/file.h"
#include "core/files/tensorwriter.h"
#include "core/model/layout.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One content of the open step. */
typedef struct content {
    char hash[ASSAY_HASH_HEX];
    assay_dtype dtype;
    int ndim;
    int64_t shape[ASSAY_MAX_DIMS];
    void *data;
} content;

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
    int64_t n_tensors, n_ops;
    int64_t written_capacity;
    written *records;  /* by record id */
    int64_t step;      /* open step, -1 */
    int64_t last_step; /* last step that ended, -1 */
    int64_t n, capacity;
    content *contents;
    int64_t n_buckets; /* a power of two, more than twice n */
    int64_t *buckets;  /* index into contents, -1 free */
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

static void drop_contents(assay_trace_writer *w)
{
    for (int64_t i = 0; i < w->n; i++)
        free(w->contents[i].data);
    w->n = 0;
    for (int64_t i = 0; i < w->n_buckets; i++)
        w->buckets[i] = -1;
}

void assay_trace_writer_destroy(assay_trace_writer *w)
{
    if (!w)
        return;
    drop_contents(w);
    if (w->lines)
        fclose(w->lines);
    free(w->contents);
    free(w->buckets);
    free(w->records);
    free(w->dir);
    free(w);
}

/* --- content of the open step ----------------------------------------------------------------------------
 */

static int64_t bucket_of(const assay_trace_writer *w, const char *hash)
{
    uint64_t bits = 0;
    for (int i = 0; i < 16; i++)
        bits = bits << 4 | (uint64_t)(hash[i] <= '9' ? hash[i] - '0' : hash[i] - 'a' + 10);
    int64_t at = (int64_t)(bits & (uint64_t)(w->n_buckets - 1));
    while (w->buckets[at] >= 0 && strcmp(w->contents[w->buckets[at]].hash, hash) != 0)
        at = (at + 1) & (w->n_buckets - 1);
    return at;
}

static assay_status grow_contents(assay_trace_writer *w)
{
    const int64_t capacity = w->capacity ? 2 * w->capacity : 256;
    content *contents = realloc(w->contents, (size_t)capacity * sizeof *contents);
    ASSAY_CHECK(contents, ASSAY_OUT_OF_MEMORY, "%s: out of memory", w->path);
    w->contents = contents;
    int64_t *buckets = realloc(w->buckets, (size_t)(4 * capacity) * sizeof *buckets);
    ASSAY_CHECK(buckets, ASSAY_OUT_OF_MEMORY, "%s: out of memory", w->path);
    w->buckets = buckets;
    w->capacity = capacity;
    w->n_buckets = 4 * capacity;
    for (int64_t i = 0; i < w->n_buckets; i++)
        w->buckets[i] = -1;
    for (int64_t i = 0; i < w->n; i++)
        w->buckets[bucket_of(w, w->contents[i].hash)] = i;
    return ASSAY_OK;
}

static assay_status keep_content(assay_trace_writer *w, const assay_trace_tensor *t, const void *data)
{
    if (w->n == w->capacity)
        ASSAY_TRY(grow_contents(w));
    const int64_t at = bucket_of(w, t->hash);
    if (w->buckets[at] >= 0)
        return ASSAY_OK;
    content *c = &w->contents[w->n];
    *c = (content){.dtype = t->dtype, .ndim = t->shard.ndim};
    memcpy(c->hash, t->hash, sizeof c->hash);
    memcpy(c->shape, t->shard.local_shape, sizeof c->shape);
    c->data = malloc(t->bytes > 0 ? t->bytes : 1);
    ASSAY_CHECK(c->data, ASSAY_OUT_OF_MEMORY, "%s: %s: out of memory for %zu bytes", w->path, t->name,
                t->bytes);
    if (t->bytes > 0)
        memcpy(c->data, data, t->bytes);
    w->buckets[at] = w->n++;
    return ASSAY_OK;
}

assay_status assay_trace_end_step(assay_trace_writer *w)
{
    assay_status st = ASSAY_OK;
    char path[PATH_MAX];
    assay_tensorwriter *out = NULL;
    if (w->step < 0)
        return ASSAY_OK; /* nothing was recorded: no file */
    if (w->n > 0) {
        ASSAY_TRY(assay_trace_data_path(w->dir, w->rank, w->step, path, sizeof path));
        ASSAY_TRY(assay_tensorwriter_create(&out, path));
        for (int64_t i = 0; i < w->n; i++) {
            const content *c = &w->contents[i];
            ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(out, c->hash, c->dtype, c->shape, c->ndim, c->data), st,
                           done);
        }
        ASSAY_TRY_GOTO(assay_tensorwriter_finish(out), st, done);
    }
    ASSAY_CHECK_GOTO(fflush(w->lines) == 0, ASSAY_IO, st, done, "%s: cannot write: %s", w->path,
                     strerror(errno));
    drop_contents(w);
    w->last_step = w->step;
    w->step = -1;
done:
    assay_tensorwriter_destroy(out);
    return st;
}

/* --- lines ------------------------------------------------------------------------------------------------
 */

/* Takes the reference to `line`; NULL means that a text in it is not UTF-8 (or memory ran out). */
static assay_status write_line(assay_trace_writer *w, json_t *line)
{
    ASSAY_CHECK(line, ASSAY_INVALID_ARGUMENT, "%s: a text is not UTF-8", w->path);
    char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(line);
    ASSAY_CHECK(text, ASSAY_OUT_OF_MEMORY, "%s: out of memory", w->path);
    const size_t n = strlen(text);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(n < ASSAY_TRACE_MAX_LINE, ASSAY_LIMIT, st, done,
                     "%s: a record of %zu bytes, at most %d are legal", w->path, n, ASSAY_TRACE_MAX_LINE);
    ASSAY_CHECK_GOTO(fwrite(text, 1, n, w->lines) == n && fputc('\n', w->lines) != EOF, ASSAY_IO, st, done,
                     "%s: cannot write: %s", w->path, strerror(errno));
done:
    free(text);
    return st;
}

static json_t *shape_json(const int64_t *shape, int ndim)
{
    json_t *array = json_array();
    for (int d = 0; array && d < ndim; d++)
        json_array_append_new(array, json_integer(shape[d]));
    return array;
}

static json_t *segments_json(const assay_shard *s)
{
    json_t *array = json_array();
    for (int d = 0; array && d < s->ndim; d++) {
        json_t *list = json_array();
        for (int i = 0; i < s->n_segments[d]; i++)
            json_array_append_new(list, json_pack("[I,I]", (json_int_t)s->segments[d][i].start,
                                                  (json_int_t)s->segments[d][i].length));
        json_array_append_new(array, list);
    }
    return array;
}

static json_t *tensor_json(const assay_trace_tensor *t)
{
    json_t *line =
        json_pack("{s:s, s:I, s:s, s:s, s:I, s:I, s:s, s:o}", "type", "tensor", "id", (json_int_t)t->id,
                  "name", t->name, "phase", assay_phase_name(t->phase), "step", (json_int_t)t->step,
                  "microbatch", (json_int_t)t->microbatch, "dtype", assay_dtype_name(t->dtype),
                  "global_shape", shape_json(t->shard.global_shape, t->shard.ndim));
    if (!line)
        return NULL;
    if (!assay_trace_is_whole(&t->shard)) {
        json_object_set_new(line, "local_shape", shape_json(t->shard.local_shape, t->shard.ndim));
        json_object_set_new(line, "segments", segments_json(&t->shard));
    }
    if (t->kind != ASSAY_PIECE_SHARD)
        json_object_set_new(line, "kind", json_string(assay_piece_kind_name(t->kind)));
    if (t->kind == ASSAY_PIECE_PARTIAL)
        json_object_set_new(line, "partial_group", json_string(t->partial_group));
    if (t->kind == ASSAY_PIECE_ROWS)
        json_object_set_new(line, "rows_id", json_integer(t->rows_id));
    if (t->has_scale)
        json_object_set_new(line, "scale", json_integer(t->scale_id));
    json_object_set_new(line, "hash", json_string(t->hash));
    return line;
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
    assay_hash_tensor(t->dtype, t->shard.local_shape, t->shard.ndim, data, t->bytes, t->hash);
    ASSAY_TRY(remember(w, t));
    json_t *line = tensor_json(t);
    ASSAY_CHECK(line, ASSAY_INVALID_ARGUMENT, "%s: record %" PRId64 ": a text is not UTF-8", w->path, t->id);
    if (!w->hash_only) {
        const assay_status st = keep_content(w, t, data);
        if (st != ASSAY_OK) {
            json_decref(line);
            return st;
        }
    }
    ASSAY_TRY(write_line(w, line));
    w->step = t->step;
    w->n_tensors++;
    return ASSAY_OK;
}

static assay_status slots_json(const assay_trace_writer *w, const assay_trace_op *op, const char *direction,
                               const assay_trace_slot *slots, int n, json_t *line)
{
    ASSAY_CHECK(n >= 0 && n <= ASSAY_MAX_SLOTS, ASSAY_INVALID_ARGUMENT,
                "%s: %s has %d %s, at most %d are legal", w->path, op->op, n, direction, ASSAY_MAX_SLOTS);
    json_t *object = json_object();
    ASSAY_CHECK(object && json_object_set_new(line, direction, object) == 0, ASSAY_OUT_OF_MEMORY,
                "%s: out of memory", w->path);
    for (int i = 0; i < n; i++) {
        ASSAY_CHECK(slots[i].slot[0] != '\0' && !json_object_get(object, slots[i].slot),
                    ASSAY_INVALID_ARGUMENT, "%s: %s: the slot '%s' in %s is empty or there twice", w->path,
                    op->op, slots[i].slot, direction);
        ASSAY_CHECK(slots[i].tensor >= 0 && slots[i].tensor < w->n_tensors, ASSAY_INVALID_ARGUMENT,
                    "%s: %s: slot '%s' names record %" PRId64 ", but %" PRId64 " records were written",
                    w->path, op->op, slots[i].slot, slots[i].tensor, w->n_tensors);
        ASSAY_CHECK(json_object_set_new(object, slots[i].slot, json_integer(slots[i].tensor)) == 0,
                    ASSAY_INVALID_ARGUMENT, "%s: %s: a slot name is not UTF-8", w->path, op->op);
    }
    return ASSAY_OK;
}

static assay_status group_json(const assay_trace_writer *w, const assay_trace_op *op, json_t *line)
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
    json_t *ranks = json_array();
    json_object_set_new(line, "group", json_string(op->group));
    json_object_set_new(line, "group_ranks", ranks);
    for (int i = 0; i < op->n_group_ranks; i++)
        json_array_append_new(ranks, json_integer(op->group_ranks[i]));
    return ASSAY_OK;
}

assay_status assay_trace_write_op(assay_trace_writer *w, assay_trace_op *op)
{
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(w->lines, ASSAY_INVALID_ARGUMENT, "%s: the trace is closed", w->path);
    ASSAY_CHECK(op->op[0] != '\0' && op->phase < ASSAY_PHASE_COUNT && op->step >= 0 && op->microbatch >= -1 &&
                    op->variant >= 0,
                ASSAY_INVALID_ARGUMENT, "%s: op '%s': phase, step, microbatch or variant is out of range",
                w->path, op->op);
    st = assay_trace_check_declaration(op);
    ASSAY_CHECK(st == ASSAY_OK, ASSAY_INVALID_ARGUMENT, "%s: op '%s': %s", w->path, op->op,
                assay_error_message());
    op->sequence = w->n_ops;
    op->rank = w->rank;
    json_t *line = json_pack("{s:s, s:I, s:s, s:s, s:s, s:I, s:I, s:i}", "type", "op", "sequence",
                             (json_int_t)op->sequence, "op", op->op, "instance", op->instance, "phase",
                             assay_phase_name(op->phase), "step", (json_int_t)op->step, "microbatch",
                             (json_int_t)op->microbatch, "variant", op->variant);
    ASSAY_CHECK(line, ASSAY_INVALID_ARGUMENT, "%s: op '%s': a text is not UTF-8", w->path, op->op);
    if (op->variant_name[0] != '\0')
        json_object_set_new(line, "variant_name", json_string(op->variant_name));
    json_object_set_new(line, "arith", assay_arith_to_json(&op->arith.all));
    if (op->arith.n > 0)
        json_object_set_new(line, "output_arith", assay_declaration_outputs(&op->arith));
    if (op->attrs)
        json_object_set(line, "attrs", op->attrs);
    ASSAY_TRY_GOTO(group_json(w, op, line), st, fail);
    ASSAY_TRY_GOTO(slots_json(w, op, "inputs", op->inputs, op->n_inputs, line), st, fail);
    ASSAY_TRY_GOTO(slots_json(w, op, "outputs", op->outputs, op->n_outputs, line), st, fail);
    ASSAY_TRY(write_line(w, line));
    w->n_ops++;
    return ASSAY_OK;
fail:
    json_decref(line);
    return st;
}

assay_status assay_trace_writer_close(assay_trace_writer *w)
{
    ASSAY_CHECK(w->lines, ASSAY_INVALID_ARGUMENT, "%s: the trace is closed already", w->path);
    ASSAY_TRY(assay_trace_end_step(w));
    ASSAY_TRY(
        write_line(w, json_pack("{s:s, s:i, s:i, s:I, s:I}", "type", "end", "rank", w->rank, "world_size",
                                w->world, "tensors", (json_int_t)w->n_tensors, "ops", (json_int_t)w->n_ops)));
    const bool synced = fflush(w->lines) == 0 && fsync(fileno(w->lines)) == 0;
    const int error = errno;
    const bool closed = fclose(w->lines) == 0;
    w->lines = NULL;
    ASSAY_CHECK(synced && closed, ASSAY_IO, "%s: cannot write: %s", w->path,
                strerror(synced ? errno : error));
    return ASSAY_OK;
}
