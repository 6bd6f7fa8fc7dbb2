/* Trace reader: the whole index of all ranks in memory, data mapped.  Everything in the folder is untrusted:
 * memory grows with the bytes read, never with a number that a file states.  docs/TRACE.md. */
#include "core/files/trace_internal.h"

#include "core/base/mapped.h"
#include "core/base/text.h"
#include "core/model/layout.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct rank_records {
    int64_t n_tensors, tensors_capacity;
    assay_trace_tensor *tensors; /* ids ascending */
    int64_t n_ops, ops_capacity;
    assay_trace_op *ops; /* sequence ascending */
    int64_t n_files, files_capacity;
    assay_tensorfile **files; /* one per step that has data, in order */
    int64_t open_step;        /* step of the last of them, -1 */
    char aborted[256];        /* what the end marker says, or "" */
    json_t *notes;            /* the end marker's, or NULL */
    bool *verified;           /* contents of the open file whose hash is their key: many records share one */
    assay_trace_parts *parts; /* while its lines are read */
} rank_records;

struct assay_trace {
    char *dir;
    int world;
    bool hash_only, verify;
    assay_hash_kind hash_kind;
    json_t *header;
    json_t *no_attrs; /* shared by ops without attrs */
    rank_records *ranks;
};

/* --- access ------------------------------------------------------------------------------------------------
 */

const json_t *assay_trace_header(const assay_trace *t)
{
    return t->header;
}

const char *assay_trace_header_text(const assay_trace *t, const char *key)
{
    const char *text = json_string_value(json_object_get(t->header, key));
    return text != NULL ? text : "-";
}

int assay_trace_world(const assay_trace *t)
{
    return t->world;
}

bool assay_trace_is_foreign(const assay_trace *t)
{
    const char *engine = assay_trace_header_text(t, "engine");
    return strcmp(engine, "ref") != 0 && strcmp(engine, "gpu") != 0 && strcmp(engine, "sim") != 0;
}

const char *assay_trace_aborted(const assay_trace *t, int rank)
{
    return t->ranks[rank].aborted[0] != '\0' ? t->ranks[rank].aborted : NULL;
}

const json_t *assay_trace_notes(const assay_trace *t, int rank)
{
    return t->ranks[rank].notes;
}

int64_t assay_trace_n_ops(const assay_trace *t, int rank)
{
    return rank >= 0 && rank < t->world ? t->ranks[rank].n_ops : 0;
}

const assay_trace_op *assay_trace_op_at(const assay_trace *t, int rank, int64_t index)
{
    return index >= 0 && index < assay_trace_n_ops(t, rank) ? &t->ranks[rank].ops[index] : NULL;
}

int64_t assay_trace_n_tensors(const assay_trace *t, int rank)
{
    return rank >= 0 && rank < t->world ? t->ranks[rank].n_tensors : 0;
}

const assay_trace_tensor *assay_trace_tensor_at(const assay_trace *t, int rank, int64_t index)
{
    return index >= 0 && index < assay_trace_n_tensors(t, rank) ? &t->ranks[rank].tensors[index] : NULL;
}

/* Our own ids have no gaps: the first probe hits.  Foreign ones are ascending: binary search. */
static assay_trace_tensor *find_tensor(const rank_records *r, int64_t id)
{
    if (r->n_tensors == 0 || id < r->tensors[0].id)
        return NULL;
    const int64_t guess = id - r->tensors[0].id;
    if (guess < r->n_tensors && r->tensors[guess].id == id)
        return &r->tensors[guess];
    int64_t low = 0, high = r->n_tensors;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (r->tensors[middle].id == id)
            return &r->tensors[middle];
        if (r->tensors[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const assay_trace_tensor *assay_trace_tensor_by_id(const assay_trace *t, int rank, int64_t id)
{
    return rank >= 0 && rank < t->world ? find_tensor(&t->ranks[rank], id) : NULL;
}

const assay_trace_tensor *assay_trace_op_tensor(const assay_trace *t, const assay_trace_op *op,
                                                const char *slot)
{
    for (int i = 0; i < op->n_inputs; i++)
        if (strcmp(op->inputs[i].slot, slot) == 0)
            return assay_trace_tensor_by_id(t, op->rank, op->inputs[i].tensor);
    for (int i = 0; i < op->n_outputs; i++)
        if (strcmp(op->outputs[i].slot, slot) == 0)
            return assay_trace_tensor_by_id(t, op->rank, op->outputs[i].tensor);
    return NULL;
}

/* --- records -----------------------------------------------------------------------------------------------
 */

/* Room for one more of `size` bytes, doubling. */
static assay_status reserve(void **array, int64_t n, int64_t *capacity, size_t size)
{
    if (n < *capacity)
        return ASSAY_OK;
    const int64_t grown = *capacity ? 2 * *capacity : 256;
    void *moved = realloc(*array, (size_t)grown * size);
    ASSAY_CHECK(moved, ASSAY_OUT_OF_MEMORY, "out of memory for %" PRId64 " records", grown);
    *array = moved;
    *capacity = grown;
    return ASSAY_OK;
}

/* Steps of tensor records do not descend, so that the file needed is the last one opened or a new one. */
static assay_status open_data(const assay_trace *t, rank_records *r, int rank, int64_t step)
{
    char path[PATH_MAX];
    if (r->open_step == step)
        return ASSAY_OK;
    void *files = r->files;
    ASSAY_TRY(reserve(&files, r->n_files, &r->files_capacity, sizeof *r->files));
    r->files = files;
    ASSAY_TRY(assay_trace_data_path(t->dir, rank, step, path, sizeof path));
    ASSAY_TRY(assay_tensorfile_open(&r->files[r->n_files], path));
    r->n_files++;
    r->open_step = step;
    free(r->verified);
    r->verified = calloc((size_t)assay_tensorfile_count(r->files[r->n_files - 1]) + 1, sizeof *r->verified);
    ASSAY_CHECK(r->verified, ASSAY_OUT_OF_MEMORY, "%s: out of memory", path);
    return ASSAY_OK;
}

static assay_status attach_data(const assay_trace *t, rank_records *r, assay_trace_tensor *record,
                                const char *key)
{
    const assay_tensor_info *info = NULL;
    char hash[ASSAY_HASH_HEX];
    if (t->hash_only) {
        ASSAY_CHECK(record->hash[0] != '\0' && key[0] == '\0', ASSAY_FORMAT,
                    "the trace is hash_only: a record has a hash and no data");
        return ASSAY_OK;
    }
    if (key[0] == '\0')
        key = record->hash;
    ASSAY_CHECK(key[0] != '\0', ASSAY_FORMAT, "neither data nor hash");
    ASSAY_TRY(open_data(t, r, record->rank, record->step));
    ASSAY_TRY(assay_tensorfile_get(r->files[r->n_files - 1], key, record->dtype, record->shard.local_shape,
                                   record->shard.ndim, &info));
    record->data = info->data;
    const bool by_hash = key == record->hash;
    bool *verified = &r->verified[info - assay_tensorfile_at(r->files[r->n_files - 1], 0)];
    if (record->hash[0] != '\0' && (!t->verify || (by_hash && *verified)))
        return ASSAY_OK;
    assay_hash_tensor_as(t->hash_kind, record->dtype, record->shard.local_shape, record->shard.ndim,
                         info->data, info->bytes, hash);
    ASSAY_CHECK(record->hash[0] == '\0' || strcmp(record->hash, hash) == 0, ASSAY_MISMATCH,
                "content hash: the record says %s, the data has %s", record->hash, hash);
    memcpy(record->hash, hash, sizeof hash);
    *verified = *verified || by_hash; /* tensorfile_get has compared dtype and shape */
    return ASSAY_OK;
}

static assay_status check_order(const rank_records *r, const assay_trace_tensor *record)
{
    if (r->n_tensors > 0) {
        const assay_trace_tensor *last = &r->tensors[r->n_tensors - 1];
        ASSAY_CHECK(record->id > last->id, ASSAY_FORMAT,
                    "id %" PRId64 " after id %" PRId64 ", expected ascending and unique ids", record->id,
                    last->id);
        ASSAY_CHECK(record->step >= last->step, ASSAY_FORMAT,
                    "step %" PRId64 " after step %" PRId64 ", expected steps that do not descend",
                    record->step, last->step);
    }
    if (record->kind == ASSAY_PIECE_ROWS)
        ASSAY_TRY(assay_trace_check_rows(record, find_tensor(r, record->rows_id)));
    if (record->has_scale)
        ASSAY_TRY(assay_trace_check_scale(record, find_tensor(r, record->scale_id)));
    return ASSAY_OK;
}

/* Room for one more record, not counted yet. */
static assay_status next_tensor(const assay_trace *t, int rank, assay_trace_tensor **record)
{
    rank_records *r = &t->ranks[rank];
    void *tensors = r->tensors;
    ASSAY_TRY(reserve(&tensors, r->n_tensors, &r->tensors_capacity, sizeof *r->tensors));
    r->tensors = tensors;
    *record = &r->tensors[r->n_tensors];
    return ASSAY_OK;
}

/* Counts the record that was read to the place of next_tensor. */
static assay_status add_tensor(const assay_trace *t, int rank, assay_trace_tensor *record, const char *key)
{
    rank_records *r = &t->ranks[rank];
    record->rank = rank;
    record->hash_kind = t->hash_kind;
    assay_status st = check_order(r, record);
    if (st == ASSAY_OK)
        st = attach_data(t, r, record, key);
    if (st != ASSAY_OK)
        return assay_context(st, "tensor record %" PRId64 " '%s'", record->id, record->name);
    r->n_tensors++;
    return ASSAY_OK;
}

static assay_status read_tensor(const assay_trace *t, int rank, const json_t *line)
{
    char key[ASSAY_TRACE_KEY];
    assay_trace_tensor *record;
    ASSAY_TRY(next_tensor(t, rank, &record));
    ASSAY_TRY(assay_trace_tensor_from_json(line, record, key));
    return add_tensor(t, rank, record, key);
}

static assay_status check_slots(const rank_records *r, const assay_trace_op *op, const char *direction,
                                const assay_trace_slot *slots, int n)
{
    for (int i = 0; i < n; i++)
        ASSAY_CHECK(find_tensor(r, slots[i].tensor), ASSAY_FORMAT,
                    "op record %" PRId64 " '%s': %s.%s names record %" PRId64
                    ", which is not an earlier tensor record of this rank",
                    op->sequence, op->op, direction, slots[i].slot, slots[i].tensor);
    return ASSAY_OK;
}

/* Room for one more record, counted at once: what it allocates is freed on failure too. */
static assay_status next_op(const assay_trace *t, int rank, assay_trace_op **op)
{
    rank_records *r = &t->ranks[rank];
    void *ops = r->ops;
    ASSAY_TRY(reserve(&ops, r->n_ops, &r->ops_capacity, sizeof *r->ops));
    r->ops = ops;
    *op = &r->ops[r->n_ops++];
    return ASSAY_OK;
}

static assay_status check_op(const assay_trace *t, int rank, assay_trace_op *op)
{
    const rank_records *r = &t->ranks[rank];
    if (!op->attrs)
        op->attrs = json_incref(t->no_attrs);
    if (r->n_ops > 1)
        ASSAY_CHECK(op->sequence > op[-1].sequence, ASSAY_FORMAT,
                    "op record %" PRId64 ": sequence after %" PRId64
                    ", expected ascending and unique numbers",
                    op->sequence, op[-1].sequence);
    ASSAY_TRY(check_slots(r, op, "inputs", op->inputs, op->n_inputs));
    return check_slots(r, op, "outputs", op->outputs, op->n_outputs);
}

static assay_status read_op(const assay_trace *t, int rank, const json_t *line, const char *text,
                            size_t bytes)
{
    assay_trace_op *op;
    ASSAY_TRY(next_op(t, rank, &op));
    ASSAY_TRY(assay_trace_op_from_json(line, rank, t->world, op));
    assay_trace_parts_add(t->ranks[rank].parts, text, bytes, op);
    return check_op(t, rank, op);
}

/* *taken: the line is an operation's with a part that came before. */
static assay_status read_op_again(const assay_trace *t, int rank, const char *text, size_t bytes, bool *taken)
{
    assay_trace_op *op;
    ASSAY_TRY(next_op(t, rank, &op));
    *taken = assay_trace_op_from_text(t->ranks[rank].parts, text, bytes, rank, op);
    if (*taken)
        return check_op(t, rank, op);
    t->ranks[rank].n_ops--;
    return ASSAY_OK;
}

static assay_status check_end_member(const json_t *line, const char *key, int64_t expected)
{
    int64_t value = expected;
    ASSAY_TRY(assay_json_get_i64(line, key, false, 0, INT64_MAX, "end marker", &value));
    ASSAY_CHECK(value == expected, ASSAY_MISMATCH,
                "end marker: %s is %" PRId64 ", but %" PRId64 " is what this file has", key, value, expected);
    return ASSAY_OK;
}

static assay_status read_notes(rank_records *r, const json_t *line)
{
    static const char *const members[] = {"kind", "text", NULL};
    json_t *notes = json_object_get(line, "notes");
    if (notes == NULL || json_is_null(notes))
        return ASSAY_OK;
    ASSAY_CHECK(json_is_array(notes), ASSAY_FORMAT, "end marker: notes: expected a list");
    for (size_t i = 0; i < json_array_size(notes); i++) {
        char kind[16], text[512];
        json_t *note = json_array_get(notes, i);
        ASSAY_TRY(assay_json_only(note, members, "end marker: notes"));
        ASSAY_TRY(assay_json_get_string(note, "kind", true, "end marker: notes", kind, sizeof kind));
        ASSAY_TRY(assay_json_get_string(note, "text", true, "end marker: notes", text, sizeof text));
        ASSAY_CHECK(
            strcmp(kind, "note") == 0 || strcmp(kind, "not_judged") == 0 || strcmp(kind, "incomplete") == 0,
            ASSAY_FORMAT,
            "end marker: notes: kind: expected \"note\", \"not_judged\" or \"incomplete\", found \"%s\"",
            kind);
    }
    r->notes = json_incref(notes);
    return ASSAY_OK;
}

static assay_status read_end(const assay_trace *t, int rank, const json_t *line)
{
    static const char *const members[] = {"type",  "rank",    "world_size", "tensors", "ops",
                                          "extra", "aborted", "notes",      NULL};
    rank_records *r = &t->ranks[rank];
    ASSAY_TRY(assay_json_only(line, members, "end marker"));
    ASSAY_TRY(assay_json_get_string(line, "aborted", false, "end marker", r->aborted, sizeof r->aborted));
    assay_clean_text(r->aborted);
    ASSAY_TRY(read_notes(r, line));
    ASSAY_TRY(check_end_member(line, "rank", rank));
    ASSAY_TRY(check_end_member(line, "world_size", t->world));
    ASSAY_TRY(check_end_member(line, "tensors", t->ranks[rank].n_tensors));
    return check_end_member(line, "ops", t->ranks[rank].n_ops);
}

/* --- files -------------------------------------------------------------------------------------------------
 */

static assay_status read_line(const assay_trace *t, int rank, const char *text, size_t bytes, bool *end)
{
    json_t *line = NULL;
    ASSAY_CHECK(!*end, ASSAY_FORMAT, "a line after the end marker");
    ASSAY_CHECK(bytes <= ASSAY_TRACE_MAX_LINE, ASSAY_LIMIT, "a line of %zu bytes, at most %d are legal",
                bytes, ASSAY_TRACE_MAX_LINE);
    assay_trace_tensor *record;
    ASSAY_TRY(next_tensor(t, rank, &record));
    if (assay_trace_tensor_from_text(text, bytes, record))
        return add_tensor(t, rank, record, "");
    bool taken;
    const assay_status again = read_op_again(t, rank, text, bytes, &taken);
    if (again != ASSAY_OK || taken)
        return again;
    ASSAY_TRY(assay_json_parse(&line, text, bytes, "JSON"));
    const char *type = json_string_value(json_object_get(line, "type"));
    assay_status st = ASSAY_OK;
    if (type && strcmp(type, "tensor") == 0) {
        st = read_tensor(t, rank, line);
    } else if (type && strcmp(type, "op") == 0) {
        st = read_op(t, rank, line, text, bytes);
    } else if (type && strcmp(type, "end") == 0) {
        st = read_end(t, rank, line);
        *end = true;
    } else {
        st = ASSAY_ERROR(ASSAY_FORMAT, "type: expected \"tensor\", \"op\" or \"end\"");
    }
    json_decref(line);
    return st;
}

static assay_status read_lines(const assay_trace *t, int rank, const char *path, const assay_mapped *file)
{
    const char *at = file->base;
    size_t left = file->bytes;
    int64_t number = 0;
    bool end = false;
    while (left > 0) {
        const char *feed = memchr(at, '\n', left);
        number++;
        if (!feed) {
            /* A run that was killed while it wrote. */
            const assay_status st = ASSAY_ERROR(ASSAY_FORMAT, "the line does not end: the file is truncated");
            return assay_context(st, "%s:%" PRId64, path, number);
        }
        const size_t bytes = (size_t)(feed - at);
        const assay_status st = read_line(t, rank, at, bytes, &end);
        if (st != ASSAY_OK)
            return assay_context(st, "%s:%" PRId64, path, number);
        at = feed + 1;
        left -= bytes + 1;
    }
    ASSAY_CHECK(end, ASSAY_FORMAT,
                "%s: no end marker after %" PRId64 " lines: this rank did not finish its trace", path,
                number);
    return ASSAY_OK;
}

static assay_status read_rank(const assay_trace *t, int rank)
{
    char path[PATH_MAX];
    assay_mapped file;
    t->ranks[rank].open_step = -1;
    ASSAY_TRY(assay_trace_rank_path(t->dir, rank, path, sizeof path));
    assay_status st = assay_mapped_open(&file, path);
    if (st != ASSAY_OK)
        return assay_context(st, "rank %d of %d", rank, t->world);
    t->ranks[rank].parts = assay_trace_parts_create();
    st = t->ranks[rank].parts ? read_lines(t, rank, path, &file)
                              : ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s: out of memory", path);
    assay_trace_parts_destroy(t->ranks[rank].parts);
    t->ranks[rank].parts = NULL;
    assay_mapped_close(&file);
    return st;
}

static assay_status read_header(assay_trace *t)
{
    char path[PATH_MAX], format[64] = "", hash[64] = "";
    int64_t version = 0, world = 0;
    ASSAY_TRY(assay_trace_index_path(t->dir, path, sizeof path));
    ASSAY_TRY(assay_json_load(&t->header, path));
    ASSAY_TRY(assay_json_get_string(t->header, "format", true, path, format, sizeof format));
    ASSAY_CHECK(strcmp(format, ASSAY_TRACE_FORMAT) == 0, ASSAY_FORMAT,
                "%s: format: expected \"" ASSAY_TRACE_FORMAT "\", found \"%s\"", path, format);
    ASSAY_TRY(assay_json_get_i64(t->header, "version", true, INT64_MIN, INT64_MAX, path, &version));
    ASSAY_CHECK(version == ASSAY_TRACE_VERSION, ASSAY_UNSUPPORTED,
                "%s: version: this program reads version %d, found %" PRId64, path, ASSAY_TRACE_VERSION,
                version);
    ASSAY_TRY(assay_json_get_i64(t->header, "world_size", true, 1, ASSAY_MAX_WORLD, path, &world));
    ASSAY_TRY(assay_json_get_bool(t->header, "hash_only", false, path, &t->hash_only));
    ASSAY_TRY(assay_json_get_string(t->header, "hash", false, path, hash, sizeof hash));
    if (hash[0] != '\0') {
        const assay_status st = assay_hash_kind_from_name(hash, &t->hash_kind);
        if (st != ASSAY_OK)
            return assay_context(st, "%s: hash", path);
    }
    t->ranks = calloc((size_t)world, sizeof *t->ranks);
    ASSAY_CHECK(t->ranks, ASSAY_OUT_OF_MEMORY, "%s: out of memory", path);
    t->world = (int)world;
    return ASSAY_OK;
}

/* A rank's file outside the world means that the folder holds parts of two runs. */
static assay_status check_no_stray_ranks(const assay_trace *t)
{
    assay_status st = ASSAY_OK;
    DIR *dir = opendir(t->dir);
    ASSAY_CHECK(dir, errno == ENOENT ? ASSAY_NOT_FOUND : ASSAY_IO, "%s: cannot open: %s", t->dir,
                strerror(errno));
    for (const struct dirent *e = readdir(dir); e && st == ASSAY_OK; e = readdir(dir)) {
        char *rest = NULL;
        if (strncmp(e->d_name, "rank-", 5) != 0 || e->d_name[5] < '0' || e->d_name[5] > '9')
            continue;
        const long rank = strtol(e->d_name + 5, &rest, 10);
        if (strcmp(rest, ".jsonl") == 0 && rank >= t->world)
            st = ASSAY_ERROR(ASSAY_MISMATCH, "%s/%s: a rank outside the world of %d: parts of two runs?",
                             t->dir, e->d_name, t->world);
    }
    closedir(dir);
    return st;
}

assay_status assay_trace_open(assay_trace **out, const char *dir, bool verify_hashes)
{
    assay_status st = ASSAY_OK;
    *out = NULL;
    ASSAY_TRY(assay_hash_init());
    assay_trace *t = calloc(1, sizeof *t);
    ASSAY_CHECK(t, ASSAY_OUT_OF_MEMORY, "%s: out of memory", dir);
    t->verify = verify_hashes;
    t->dir = strdup(dir);
    t->no_attrs = json_object();
    ASSAY_CHECK_GOTO(t->dir && t->no_attrs, ASSAY_OUT_OF_MEMORY, st, fail, "%s: out of memory", dir);
    struct stat folder;
    ASSAY_CHECK_GOTO(stat(dir, &folder) == 0, ASSAY_NOT_FOUND, st, fail,
                     "%s: expected a trace folder (assay step --trace DIR writes one): %s", dir,
                     strerror(errno));
    ASSAY_CHECK_GOTO(S_ISDIR(folder.st_mode), ASSAY_INVALID_ARGUMENT, st, fail,
                     "%s: expected a trace folder (assay step --trace DIR writes one), found a file", dir);
    ASSAY_TRY_GOTO(read_header(t), st, fail);
    ASSAY_TRY_GOTO(check_no_stray_ranks(t), st, fail);
    for (int rank = 0; rank < t->world; rank++)
        ASSAY_TRY_GOTO(read_rank(t, rank), st, fail);
    *out = t;
    return ASSAY_OK;
fail:
    assay_trace_close(t);
    return st;
}

void assay_trace_close(assay_trace *t)
{
    if (!t)
        return;
    for (int rank = 0; rank < t->world; rank++) {
        rank_records *r = &t->ranks[rank];
        for (int64_t i = 0; i < r->n_ops; i++) {
            json_decref(r->ops[i].attrs);
            free((int *)(uintptr_t)r->ops[i].group_ranks);
        }
        for (int64_t i = 0; i < r->n_files; i++)
            assay_tensorfile_close(r->files[i]);
        free(r->tensors);
        free(r->ops);
        free(r->files);
        free(r->verified);
        json_decref(r->notes);
    }
    free(t->ranks);
    json_decref(t->header);
    json_decref(t->no_attrs);
    free(t->dir);
    free(t);
}
