/* Trace records by themselves: names, paths, validity, and how they are read from a line.  docs/TRACE.md. */
#include "core/files/trace_internal.h"

#include "core/model/layout.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const PHASE_NAMES[ASSAY_PHASE_COUNT] = {
#define PHASE_NAME(name, text) text,
    ASSAY_PHASE_MAP(PHASE_NAME)
#undef PHASE_NAME
};
#define N_KINDS (ASSAY_PIECE_LOCAL + 1)
static const char *const KIND_NAMES[N_KINDS] = {"shard", "partial", "rows", "local"};

const char *assay_phase_name(assay_phase phase)
{
    return phase < ASSAY_PHASE_COUNT ? PHASE_NAMES[phase] : "?";
}

assay_status assay_phase_from_name(const char *name, assay_phase *out)
{
    for (int i = 0; i < ASSAY_PHASE_COUNT; i++) {
        if (strcmp(name, PHASE_NAMES[i]) == 0) {
            *out = (assay_phase)i;
            return ASSAY_OK;
        }
    }
    ASSAY_FAIL(
        ASSAY_FORMAT,
        "unknown phase '%.64s', expected forward, backward, grad, reduced_grad, optimizer or checkpoint",
        name);
}

const char *assay_piece_kind_name(assay_piece_kind kind)
{
    return kind < N_KINDS ? KIND_NAMES[kind] : "?";
}

assay_status assay_piece_kind_from_name(const char *name, assay_piece_kind *out)
{
    for (int i = 0; i < N_KINDS; i++) {
        if (strcmp(name, KIND_NAMES[i]) == 0) {
            *out = (assay_piece_kind)i;
            return ASSAY_OK;
        }
    }
    ASSAY_FAIL(ASSAY_FORMAT, "unknown kind '%.64s', expected shard, partial, rows or local", name);
}

assay_status assay_trace_index_path(const char *dir, char *out, size_t capacity)
{
    const int n = snprintf(out, capacity, "%s/index.json", dir);
    ASSAY_CHECK(n > 0 && (size_t)n < capacity, ASSAY_LIMIT, "%.200s: the path is too long", dir);
    return ASSAY_OK;
}

assay_status assay_trace_rank_path(const char *dir, int rank, char *out, size_t capacity)
{
    const int n = snprintf(out, capacity, "%s/rank-%05d.jsonl", dir, rank);
    ASSAY_CHECK(n > 0 && (size_t)n < capacity, ASSAY_LIMIT, "%.200s: the path is too long", dir);
    return ASSAY_OK;
}

assay_status assay_trace_data_path(const char *dir, int rank, int64_t step, char *out, size_t capacity)
{
    const int n = snprintf(out, capacity, "%s/rank-%05d-step-%05" PRId64 ".safetensors", dir, rank, step);
    ASSAY_CHECK(n > 0 && (size_t)n < capacity, ASSAY_LIMIT, "%.200s: the path is too long", dir);
    return ASSAY_OK;
}

bool assay_trace_is_whole(const assay_shard *s)
{
    for (int d = 0; d < s->ndim; d++) {
        if (s->local_shape[d] != s->global_shape[d])
            return false;
        if (s->global_shape[d] == 0 && s->n_segments[d] == 0)
            continue;
        if (s->n_segments[d] != 1 || s->segments[d][0].start != 0 ||
            s->segments[d][0].length != s->global_shape[d])
            return false;
    }
    return true;
}

assay_status assay_trace_check_tensor(assay_trace_tensor *t)
{
    int64_t count = 0, bits = 0;
    ASSAY_CHECK(t->name[0] != '\0', ASSAY_INVALID_ARGUMENT, "the name is empty");
    ASSAY_CHECK(t->phase < ASSAY_PHASE_COUNT && t->dtype < ASSAY_DTYPE_COUNT && t->kind < N_KINDS,
                ASSAY_INVALID_ARGUMENT, "%s: phase, dtype or kind outside its enum", t->name);
    ASSAY_CHECK(t->step >= 0 && t->microbatch >= -1, ASSAY_INVALID_ARGUMENT,
                "%s: step %" PRId64 " and microbatch %" PRId64 ", expected at least 0 and -1", t->name,
                t->step, t->microbatch);
    ASSAY_TRY(assay_shard_check(&t->shard, t->name));
    ASSAY_CHECK(assay_shape_count(t->shard.local_shape, t->shard.ndim, &count) &&
                    assay_mul_i64(count, assay_dtype_bits(t->dtype), &bits) &&
                    assay_shape_count(t->shard.global_shape, t->shard.ndim, &count),
                ASSAY_INVALID_ARGUMENT, "%s: the size overflows 64 bits", t->name);
    ASSAY_CHECK(bits % 8 == 0, ASSAY_INVALID_ARGUMENT, "%s: %s elements are not a whole number of bytes",
                t->name, assay_dtype_name(t->dtype));
    t->bytes = (size_t)(bits / 8);
    ASSAY_CHECK((t->kind == ASSAY_PIECE_PARTIAL) == (t->partial_group[0] != '\0'), ASSAY_INVALID_ARGUMENT,
                "%s: kind %s %s partial_group", t->name, assay_piece_kind_name(t->kind),
                t->kind == ASSAY_PIECE_PARTIAL ? "needs a" : "has no");
    ASSAY_CHECK((t->kind == ASSAY_PIECE_ROWS) == (t->rows_id >= 0), ASSAY_INVALID_ARGUMENT,
                "%s: kind %s %s rows_id", t->name, assay_piece_kind_name(t->kind),
                t->kind == ASSAY_PIECE_ROWS ? "needs a" : "has no");
    if (t->kind == ASSAY_PIECE_ROWS || t->kind == ASSAY_PIECE_LOCAL)
        ASSAY_CHECK(assay_trace_is_whole(&t->shard), ASSAY_INVALID_ARGUMENT,
                    "%s: kind %s: global_shape must equal local_shape and segments must be whole", t->name,
                    assay_piece_kind_name(t->kind));
    ASSAY_CHECK(t->kind != ASSAY_PIECE_ROWS || t->shard.ndim >= 1, ASSAY_INVALID_ARGUMENT,
                "%s: kind rows needs at least one dimension", t->name);
    return ASSAY_OK;
}

assay_status assay_trace_check_rows(const assay_trace_tensor *t, const assay_trace_tensor *rows)
{
    ASSAY_CHECK(rows, ASSAY_FORMAT, "%s: rows_id %" PRId64 " is not an earlier tensor record of this rank",
                t->name, t->rows_id);
    ASSAY_CHECK(rows->dtype == ASSAY_I64 && rows->shard.ndim == 1 &&
                    rows->shard.local_shape[0] == t->shard.local_shape[0],
                ASSAY_FORMAT, "%s: rows_id %" PRId64 " must be a 1-D I64 tensor of %" PRId64 " entries",
                t->name, t->rows_id, t->shard.local_shape[0]);
    return ASSAY_OK;
}

/* Whether k blocks of equal length (the last may be shorter) cover n elements, none of them empty. */
static bool blocks_cover(int64_t n, int64_t k)
{
    if (k < 1 || n < 1)
        return k == n;
    const int64_t block = n / k + (n % k != 0);
    return n / block + (n % block != 0) == k;
}

assay_status assay_trace_check_scale(const assay_trace_tensor *t, const assay_trace_tensor *scale)
{
    ASSAY_CHECK(scale, ASSAY_FORMAT, "%s: scale %" PRId64 " is not an earlier tensor record of this rank",
                t->name, t->scale_id);
    ASSAY_CHECK(assay_dtype_is_float(t->dtype) && assay_dtype_is_float(scale->dtype), ASSAY_FORMAT,
                "%s: %s scaled by %s, expected two floating-point types", t->name, assay_dtype_name(t->dtype),
                assay_dtype_name(scale->dtype));
    const assay_shard *s = &scale->shard;
    if (s->ndim == 0 || (s->ndim == 1 && s->local_shape[0] == 1))
        return ASSAY_OK;
    ASSAY_CHECK(s->ndim == t->shard.ndim, ASSAY_FORMAT,
                "%s: scale %" PRId64 " has %d dimensions, expected one element or %d dimensions", t->name,
                t->scale_id, s->ndim, t->shard.ndim);
    for (int d = 0; d < s->ndim; d++)
        ASSAY_CHECK(blocks_cover(t->shard.local_shape[d], s->local_shape[d]), ASSAY_FORMAT,
                    "%s: scale %" PRId64 ": dimension %d: %" PRId64 " scales for %" PRId64
                    " elements are not equal blocks",
                    t->name, t->scale_id, d, s->local_shape[d], t->shard.local_shape[d]);
    return ASSAY_OK;
}

assay_status assay_trace_check_group(const int *ranks, int n, int world, int rank, int *problem)
{
    bool ascending = true, found = false;
    *problem = -1;
    for (int i = 0; i < n && *problem < 0; i++) {
        if (ranks[i] < 0 || ranks[i] >= world)
            *problem = i;
        ascending = ascending && (i == 0 || ranks[i] > ranks[i - 1]);
        found = found || ranks[i] == rank;
    }
    /* Ranks that ascend are different; only another order needs memory. */
    if (!ascending && *problem < 0) {
        bool *seen = calloc((size_t)world, sizeof *seen);
        ASSAY_CHECK(seen, ASSAY_OUT_OF_MEMORY, "group_ranks: out of memory");
        for (int i = 0; i < n && *problem < 0; i++) {
            if (seen[ranks[i]])
                *problem = i;
            seen[ranks[i]] = true;
        }
        free(seen);
    }
    ASSAY_CHECK(found || *problem >= 0, ASSAY_FORMAT, "group_ranks: this rank, %d, is not in it", rank);
    return ASSAY_OK;
}

assay_status assay_trace_check_declaration(const assay_trace_op *op)
{
    for (int k = 0; k < op->arith.n; k++) {
        bool found = false;
        for (int i = 0; i < op->n_outputs; i++)
            found = found || strcmp(op->outputs[i].slot, op->arith.output[k].slot) == 0;
        ASSAY_CHECK(found, ASSAY_FORMAT, "output_arith.%s: the record has no such output",
                    op->arith.output[k].slot);
    }
    return ASSAY_OK;
}

/* --- from JSON ---------------------------------------------------------------------------------------------- */

/* NULL when the member is absent or null. */
static json_t *member(const json_t *line, const char *key)
{
    json_t *value = json_object_get(line, key);
    return json_is_null(value) ? NULL : value;
}

static assay_status read_shape(const json_t *line, const char *key, int64_t *shape, int *ndim)
{
    const json_t *array = member(line, key);
    ASSAY_CHECK(json_is_array(array), ASSAY_FORMAT, "%s: expected an array of integers", key);
    ASSAY_CHECK(json_array_size(array) <= ASSAY_MAX_DIMS, ASSAY_LIMIT,
                "%s: %zu dimensions, at most %d are legal (fold the leading ones)", key,
                json_array_size(array), ASSAY_MAX_DIMS);
    *ndim = (int)json_array_size(array);
    for (int d = 0; d < *ndim; d++) {
        const json_t *value = json_array_get(array, (size_t)d);
        ASSAY_CHECK(json_is_integer(value) && json_integer_value(value) >= 0, ASSAY_FORMAT,
                    "%s: dimension %d: expected a non-negative integer", key, d);
        shape[d] = (int64_t)json_integer_value(value);
    }
    return ASSAY_OK;
}

static assay_status read_segments(const json_t *array, assay_shard *s)
{
    ASSAY_CHECK(json_is_array(array) && json_array_size(array) == (size_t)s->ndim, ASSAY_FORMAT,
                "segments: expected one list for each of %d dimensions", s->ndim);
    for (int d = 0; d < s->ndim; d++) {
        const json_t *list = json_array_get(array, (size_t)d);
        ASSAY_CHECK(json_is_array(list), ASSAY_FORMAT, "segments: dimension %d: expected a list of pairs", d);
        ASSAY_CHECK(json_array_size(list) <= ASSAY_MAX_SEGMENTS, ASSAY_LIMIT,
                    "segments: dimension %d: %zu segments, at most %d are legal", d, json_array_size(list),
                    ASSAY_MAX_SEGMENTS);
        assay_segment read[ASSAY_MAX_SEGMENTS];
        const int n = (int)json_array_size(list);
        for (int i = 0; i < n; i++) {
            const json_t *pair = json_array_get(list, (size_t)i);
            const json_t *start = json_array_get(pair, 0), *length = json_array_get(pair, 1);
            ASSAY_CHECK(json_array_size(pair) == 2 && json_is_integer(start) && json_is_integer(length),
                        ASSAY_FORMAT, "segments: dimension %d: expected [start,length] pairs of integers", d);
            read[i] =
                (assay_segment){(int64_t)json_integer_value(start), (int64_t)json_integer_value(length)};
        }
        assay_shard_set(s, d, read, n);
    }
    return ASSAY_OK;
}

static assay_status read_shard(const json_t *line, assay_shard *s)
{
    int64_t global[ASSAY_MAX_DIMS], local[ASSAY_MAX_DIMS];
    int ndim = 0, local_ndim = 0;
    ASSAY_TRY(read_shape(line, "global_shape", global, &ndim));
    assay_shard_whole(s, global, ndim);
    const json_t *segments = member(line, "segments");
    if (member(line, "local_shape")) {
        ASSAY_TRY(read_shape(line, "local_shape", local, &local_ndim));
        ASSAY_CHECK(local_ndim == ndim, ASSAY_FORMAT, "local_shape has %d dimensions, global_shape has %d",
                    local_ndim, ndim);
        for (int d = 0; d < ndim; d++) {
            ASSAY_CHECK(segments || local[d] == global[d], ASSAY_FORMAT,
                        "segments: absent although local_shape differs from global_shape");
            s->local_shape[d] = local[d];
        }
    }
    if (segments)
        ASSAY_TRY(read_segments(segments, s));
    return ASSAY_OK;
}

static assay_status read_hash(const json_t *line, char hash[ASSAY_HASH_HEX])
{
    ASSAY_TRY(assay_json_get_string(line, "hash", false, "member", hash, ASSAY_HASH_HEX));
    if (!member(line, "hash"))
        return ASSAY_OK;
    ASSAY_CHECK(strlen(hash) == ASSAY_HASH_HEX - 1 && strspn(hash, "0123456789abcdef") == ASSAY_HASH_HEX - 1,
                ASSAY_FORMAT, "hash: expected %d lower-case hexadecimal digits, found '%.40s'",
                ASSAY_HASH_HEX - 1, hash);
    return ASSAY_OK;
}

static assay_status read_phase(const json_t *line, assay_phase *phase, int64_t *step, int64_t *microbatch)
{
    char text[32] = "";
    ASSAY_TRY(assay_json_get_string(line, "phase", true, "member", text, sizeof text));
    ASSAY_TRY(assay_phase_from_name(text, phase));
    ASSAY_TRY(assay_json_get_i64(line, "step", true, 0, INT64_MAX, "member", step));
    *microbatch = -1;
    return assay_json_get_i64(line, "microbatch", false, -1, INT64_MAX, "member", microbatch);
}

static assay_status read_tensor(const json_t *line, assay_trace_tensor *t, char key[ASSAY_TRACE_KEY])
{
    static const char *const members[] = {
        "type",    "id",           "name",        "phase",    "step",  "microbatch",
        "dtype",   "global_shape", "local_shape", "segments", "kind",  "partial_group",
        "rows_id", "scale",        "hash",        "data",     "extra", NULL};
    char dtype[32] = "", kind[16] = "shard";
    *t = (assay_trace_tensor){.id = -1, .rows_id = -1, .scale_id = -1};
    key[0] = '\0';
    ASSAY_TRY(assay_json_only(line, members, "members"));
    ASSAY_TRY(assay_json_get_i64(line, "id", true, 0, INT64_MAX, "member", &t->id));
    ASSAY_TRY(assay_json_get_string(line, "name", true, "member", t->name, sizeof t->name));
    ASSAY_TRY(read_phase(line, &t->phase, &t->step, &t->microbatch));
    ASSAY_TRY(assay_json_get_string(line, "dtype", true, "member", dtype, sizeof dtype));
    ASSAY_TRY(assay_dtype_from_name(dtype, &t->dtype));
    ASSAY_TRY(assay_json_get_string(line, "kind", false, "member", kind, sizeof kind));
    ASSAY_TRY(assay_piece_kind_from_name(kind, &t->kind));
    t->has_scale = member(line, "scale") != NULL;
    ASSAY_TRY(assay_json_get_i64(line, "scale", false, 0, INT64_MAX, "member", &t->scale_id));
    ASSAY_TRY(assay_json_get_string(line, "partial_group", false, "member", t->partial_group,
                                    sizeof t->partial_group));
    ASSAY_TRY(assay_json_get_i64(line, "rows_id", false, 0, INT64_MAX, "member", &t->rows_id));
    ASSAY_TRY(read_hash(line, t->hash));
    ASSAY_TRY(assay_json_get_string(line, "data", false, "member", key, ASSAY_TRACE_KEY));
    ASSAY_TRY(read_shard(line, &t->shard));
    const assay_status st = assay_trace_check_tensor(t);
    /* For a file it is the format that is wrong, not an argument. */
    return st == ASSAY_INVALID_ARGUMENT ? ASSAY_ERROR(ASSAY_FORMAT, "%s", assay_error_message()) : st;
}

assay_status assay_trace_tensor_from_json(const json_t *line, assay_trace_tensor *t,
                                          char key[ASSAY_TRACE_KEY])
{
    const assay_status st = read_tensor(line, t, key);
    if (st == ASSAY_OK)
        return st;
    return t->id >= 0 ? assay_context(st, "tensor record %" PRId64, t->id)
                      : assay_context(st, "tensor record");
}

static assay_status read_slots(const json_t *line, const char *key, assay_trace_slot *slots, int *n)
{
    json_t *object = member(line, key);
    *n = 0;
    if (!object)
        return ASSAY_OK;
    ASSAY_CHECK(json_is_object(object), ASSAY_FORMAT, "%s: expected an object of record ids", key);
    ASSAY_CHECK(json_object_size(object) <= ASSAY_MAX_SLOTS, ASSAY_LIMIT,
                "%s: %zu slots, at most %d are legal", key, json_object_size(object), ASSAY_MAX_SLOTS);
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        const char *slot = json_object_iter_key(it);
        const json_t *id = json_object_iter_value(it);
        ASSAY_CHECK(slot[0] != '\0' && strlen(slot) < ASSAY_SLOT_NAME, ASSAY_FORMAT,
                    "%s: the slot name '%.40s' must have 1...%d bytes", key, slot, ASSAY_SLOT_NAME - 1);
        ASSAY_CHECK(json_is_integer(id), ASSAY_FORMAT, "%s.%s: expected a record id", key, slot);
        memcpy(slots[*n].slot, slot, strlen(slot) + 1);
        slots[(*n)++].tensor = (int64_t)json_integer_value(id);
    }
    return ASSAY_OK;
}

static assay_status read_group(const json_t *line, int rank, int world, assay_trace_op *op)
{
    ASSAY_TRY(assay_json_get_string(line, "group", false, "member", op->group, sizeof op->group));
    const json_t *array = member(line, "group_ranks");
    ASSAY_CHECK((op->group[0] != '\0') == (array != NULL), ASSAY_FORMAT,
                "group and group_ranks: one is there without the other");
    if (!array)
        return ASSAY_OK;
    const size_t n = json_array_size(array);
    ASSAY_CHECK(json_is_array(array) && n >= 1 && n <= (size_t)world, ASSAY_FORMAT,
                "group_ranks: expected an array of 1...%d ranks", world);
    int *ranks = malloc(n * sizeof *ranks);
    ASSAY_CHECK(ranks, ASSAY_OUT_OF_MEMORY, "out of memory");
    op->group_ranks = ranks; /* owned by the record from here on, also on failure */
    op->n_group_ranks = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(array, i);
        const json_int_t r = json_integer_value(value);
        ASSAY_CHECK(json_is_integer(value) && r >= 0 && r < world, ASSAY_FORMAT,
                    "group_ranks: entry %zu must be a rank in 0...%d that is not there before", i, world - 1);
        ranks[i] = (int)r;
    }
    int problem;
    ASSAY_TRY(assay_trace_check_group(ranks, (int)n, world, rank, &problem));
    ASSAY_CHECK(problem < 0, ASSAY_FORMAT,
                "group_ranks: entry %d must be a rank in 0...%d that is not there before", problem,
                world - 1);
    return ASSAY_OK;
}

/* Names of outputs, each once. */
static assay_status read_substituted(const json_t *line, assay_trace_op *op)
{
    const json_t *list = member(line, "substituted");
    ASSAY_CHECK(!list || json_is_array(list), ASSAY_FORMAT, "substituted: expected a list of output slots");
    for (size_t k = 0; k < json_array_size(list); k++) {
        const char *slot = json_string_value(json_array_get(list, k));
        int i = 0;
        while (slot && i < op->n_outputs && strcmp(op->outputs[i].slot, slot) != 0)
            i++;
        ASSAY_CHECK(
            slot && i < op->n_outputs && !op->substituted[i], ASSAY_FORMAT,
            "substituted: entry %zu, '%.40s', must be an output of the record that is not there before", k,
            slot ? slot : "?");
        op->substituted[i] = true;
    }
    return ASSAY_OK;
}

/* Names of slots that the record does not have, each once. */
static assay_status read_internal(const json_t *line, assay_trace_op *op)
{
    const json_t *list = member(line, "internal");
    ASSAY_CHECK(!list || (json_is_array(list) && json_array_size(list) <= ASSAY_TRACE_INTERNAL), ASSAY_FORMAT,
                "internal: expected a list of at most %d slots", ASSAY_TRACE_INTERNAL);
    for (size_t k = 0; k < json_array_size(list); k++) {
        const char *slot = json_string_value(json_array_get(list, k));
        bool legal = slot && slot[0] != '\0' && strlen(slot) < ASSAY_SLOT_NAME;
        for (int i = 0; legal && i < op->n_outputs; i++)
            legal = strcmp(op->outputs[i].slot, slot) != 0;
        for (int i = 0; legal && i < op->n_inputs; i++)
            legal = strcmp(op->inputs[i].slot, slot) != 0;
        for (int i = 0; legal && i < op->n_internal; i++)
            legal = strcmp(op->internal[i], slot) != 0;
        ASSAY_CHECK(legal, ASSAY_FORMAT,
                    "internal: entry %zu, '%.40s', must be a slot that the record does not have, once", k,
                    slot ? slot : "?");
        memcpy(op->internal[op->n_internal++], slot, strlen(slot) + 1);
    }
    return ASSAY_OK;
}

/* {"op":"add_rmsnorm_fwd","part":1} */
static assay_status read_fused(const json_t *line, assay_trace_op *op)
{
    static const char *const members[] = {"op", "part", NULL};
    const json_t *object = member(line, "fused");
    int64_t part = 0;
    if (!object)
        return ASSAY_OK;
    ASSAY_CHECK(json_is_object(object), ASSAY_FORMAT, "fused: expected an object");
    ASSAY_TRY(assay_json_only(object, members, "members of fused"));
    ASSAY_TRY(assay_json_get_string(object, "op", true, "fused", op->fused, sizeof op->fused));
    ASSAY_TRY(assay_json_get_i64(object, "part", true, 0, ASSAY_TRACE_PARTS - 1, "fused", &part));
    ASSAY_CHECK(op->fused[0] != '\0', ASSAY_FORMAT, "fused: op: the name is empty");
    op->fused_part = (int)part;
    return ASSAY_OK;
}

static assay_status read_op(const json_t *line, int rank, int world, assay_trace_op *op)
{
    static const char *const members[] = {
        "type",    "sequence", "op",           "instance",  "phase",       "step",        "microbatch",
        "variant", "arith",    "variant_name", "attrs",     "group",       "group_ranks", "inputs",
        "outputs", "extra",    "output_arith", "recompute", "substituted", "internal",    "fused",
        NULL};
    int64_t variant = 0;
    *op = (assay_trace_op){.sequence = -1, .rank = rank};
    ASSAY_TRY(assay_json_only(line, members, "members"));
    ASSAY_TRY(assay_json_get_i64(line, "sequence", true, 0, INT64_MAX, "member", &op->sequence));
    ASSAY_TRY(assay_json_get_string(line, "op", true, "member", op->op, sizeof op->op));
    ASSAY_CHECK(op->op[0] != '\0', ASSAY_FORMAT, "op: the name is empty");
    ASSAY_TRY(assay_json_get_string(line, "instance", true, "member", op->instance, sizeof op->instance));
    ASSAY_TRY(read_phase(line, &op->phase, &op->step, &op->microbatch));
    ASSAY_TRY(assay_json_get_i64(line, "variant", false, 0, INT32_MAX, "member", &variant));
    op->variant = (int)variant;
    ASSAY_TRY(assay_json_get_string(line, "variant_name", false, "member", op->variant_name,
                                    sizeof op->variant_name));
    ASSAY_TRY(assay_declaration_from_json(member(line, "arith"), member(line, "output_arith"), &op->arith));
    json_t *attrs = member(line, "attrs");
    ASSAY_CHECK(!attrs || json_is_object(attrs), ASSAY_FORMAT, "attrs: expected an object");
    op->attrs = json_incref(attrs);
    ASSAY_TRY(read_slots(line, "inputs", op->inputs, &op->n_inputs));
    ASSAY_TRY(read_slots(line, "outputs", op->outputs, &op->n_outputs));
    ASSAY_TRY(assay_trace_check_declaration(op));
    ASSAY_TRY(read_substituted(line, op));
    ASSAY_TRY(read_internal(line, op));
    ASSAY_TRY(read_fused(line, op));
    ASSAY_TRY(assay_json_get_bool(line, "recompute", false, "member", &op->recompute));
    return read_group(line, rank, world, op);
}

assay_status assay_trace_op_from_json(const json_t *line, int rank, int world, assay_trace_op *op)
{
    const assay_status st = read_op(line, rank, world, op);
    if (st == ASSAY_OK)
        return st;
    return op->sequence >= 0 ? assay_context(st, "op record %" PRId64, op->sequence)
                             : assay_context(st, "op record");
}
