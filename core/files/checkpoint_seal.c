/* Sealing a staged checkpoint: every rank takes its share of the parameters, reads them back from the shards and holds them to
 * what all ranks say that they hold; and its share of the shards, whose files it hashes. */
#include "core/files/checkpoint_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a rank said. */
typedef struct said {
    int64_t unit; /* family * parameters + parameter, families as they are stored */
    int rank, family;
    bool writes;
    assay_shard shard;
    char hash[ASSAY_HASH_HEX];
} said;

typedef struct seal {
    assay_checkpoint_writer *w;
    int64_t n, capacity;
    said *list;
    json_t *tensors, *files; /* hashes */
    json_t *differing;       /* [family, parameter, rank] */
} seal;

/* --- what the ranks say ------------------------------------------------------------------------------------- */
assay_status assay_shard_from_json(const json_t *segments, const assay_param_spec *p, const char *what,
                                   assay_shard *out)
{
    assay_shard_whole(out, p->shape, p->ndim);
    ASSAY_CHECK(json_is_array(segments) && (int)json_array_size(segments) == p->ndim, ASSAY_FORMAT,
                "%s: %s: segments: expected %d lists", what, p->name, p->ndim);
    for (int d = 0; d < p->ndim; d++) {
        const json_t *list = json_array_get(segments, (size_t)d);
        assay_segment read[ASSAY_MAX_SEGMENTS];
        const size_t n = json_array_size(list);
        ASSAY_CHECK(json_is_array(list) && n <= ASSAY_MAX_SEGMENTS, ASSAY_FORMAT,
                    "%s: %s: segments of dimension %d: expected at most %d", what, p->name, d,
                    ASSAY_MAX_SEGMENTS);
        out->local_shape[d] = 0;
        for (size_t i = 0; i < n; i++) {
            const json_t *pair = json_array_get(list, i);
            const json_t *start = json_array_get(pair, 0), *length = json_array_get(pair, 1);
            ASSAY_CHECK(json_array_size(pair) == 2 && json_is_integer(start) && json_is_integer(length),
                        ASSAY_FORMAT, "%s: %s: segment %zu of dimension %d: expected [start, length]", what,
                        p->name, i, d);
            read[i] = (assay_segment){json_integer_value(start), json_integer_value(length)};
            ASSAY_CHECK(assay_add_i64(out->local_shape[d], read[i].length, &out->local_shape[d]),
                        ASSAY_FORMAT, "%s: %s: dimension %d: lengths overflow", what, p->name, d);
        }
        assay_shard_set(out, d, read, (int)n);
    }
    return assay_shard_check(out, what);
}

static bool is_mine(const assay_checkpoint_writer *w, int64_t unit)
{
    return unit % w->world == w->rank;
}

static assay_status take_piece(seal *s, const json_t *entry, int rank, const char *what)
{
    const assay_checkpoint_plan *plan = &s->w->plan;
    const int64_t n_params = plan->content.spec->n_params;
    const char *hash = json_string_value(json_object_get(entry, "hash"));
    int64_t family, param;
    ASSAY_TRY(assay_json_get_i64(entry, "family", true, 0, assay_checkpoint_families(&plan->content) - 1,
                                 what, &family));
    ASSAY_TRY(assay_json_get_i64(entry, "param", true, 0, n_params - 1, what, &param));
    ASSAY_CHECK(hash != NULL && strlen(hash) == ASSAY_HASH_HEX - 1, ASSAY_FORMAT, "%s: hash", what);
    const int64_t unit =
        (int64_t)assay_checkpoint_stored_family(&plan->content, (int)family) * n_params + param;
    if (!is_mine(s->w, unit))
        return ASSAY_OK;
    if (s->n == s->capacity) {
        const int64_t capacity = s->capacity > 0 ? 2 * s->capacity : 256;
        said *grown = realloc(s->list, (size_t)capacity * sizeof *grown);
        ASSAY_CHECK(grown != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld pieces", what, (long long)capacity);
        s->list = grown;
        s->capacity = capacity;
    }
    said *p = &s->list[s->n++];
    *p = (said){.unit = unit,
                .rank = rank,
                .family = (int)family,
                .writes = json_is_true(json_object_get(entry, "writes"))};
    memcpy(p->hash, hash, ASSAY_HASH_HEX);
    return assay_shard_from_json(json_object_get(entry, "segments"), &plan->content.spec->params[param], what,
                                 &p->shard);
}

static assay_status read_pieces(seal *s)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    for (int r = 0; r < s->w->world; r++) {
        json_t *pieces = NULL;
        assay_checkpoint_rank_file(path, s->w->tmp, ASSAY_RANK_PIECES, r);
        ASSAY_TRY(assay_checkpoint_rank_load(s->w, ASSAY_RANK_PIECES, r, &pieces));
        assay_status st = ASSAY_OK;
        for (size_t i = 0; i < json_array_size(pieces) && st == ASSAY_OK; i++)
            st = take_piece(s, json_array_get(pieces, i), r, path);
        json_decref(pieces);
        ASSAY_TRY(st);
    }
    return ASSAY_OK;
}

static int compare_said(const void *pa, const void *pb)
{
    const said *a = pa, *b = pb;
    return a->unit != b->unit ? (a->unit < b->unit ? -1 : 1) : (a->rank > b->rank) - (a->rank < b->rank);
}

/* --- one parameter of one family ---------------------------------------------------------------------------- */
/* Its parts behind one another. */
typedef struct unit_data {
    const assay_planned_tensor *tensors;
    int64_t width;
    int64_t *start; /* [parts], elements */
    int64_t count;
    char *data;
    unsigned char *covered;
    char *piece; /* as large as all of it */
} unit_data;

static void free_unit(unit_data *u)
{
    free(u->start);
    free(u->data);
    free(u->covered);
    free(u->piece);
}

static assay_status read_part(const assay_checkpoint_writer *w, const assay_planned_tensor *t, char *out)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    assay_checkpoint_file(path, w->tmp, w->plan.shards[t->shard].file);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ASSAY_CHECK(fd >= 0, ASSAY_IO, "%s: cannot open: %s", path, strerror(errno));
    int64_t done = 0;
    while (done < t->bytes) {
        const ssize_t n = pread(fd, out + done, (size_t)(t->bytes - done), (off_t)(t->offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += n;
    }
    close(fd);
    ASSAY_CHECK(done == t->bytes, ASSAY_IO, "%s: cannot read %s back", path, t->name);
    return ASSAY_OK;
}

static assay_status load_unit(seal *s, const assay_param_spec *p, unit_data *u)
{
    char hash[ASSAY_SHA256_HEX];
    u->width = assay_dtype_bytes(u->tensors[0].dtype);
    u->start = calloc((size_t)p->n_parts + 1, sizeof *u->start);
    ASSAY_CHECK(u->start != NULL, ASSAY_OUT_OF_MEMORY, "checkpoint: %s", p->name);
    for (int k = 0; k < p->n_parts; k++)
        u->start[k + 1] = u->start[k] + u->tensors[k].bytes / u->width;
    u->count = u->start[p->n_parts];
    u->data = malloc((size_t)(u->count * u->width) + 1);
    u->piece = malloc((size_t)(u->count * u->width) + 1);
    u->covered = calloc((size_t)u->count + 1, 1);
    ASSAY_CHECK(u->data && u->piece && u->covered, ASSAY_OUT_OF_MEMORY, "checkpoint: %s: %lld elements",
                p->name, (long long)u->count);
    for (int k = 0; k < p->n_parts; k++) {
        const assay_planned_tensor *t = &u->tensors[k];
        char *at = u->data + u->start[k] * u->width;
        ASSAY_TRY(read_part(s->w, t, at));
        assay_sha256_bytes(at, (size_t)t->bytes, hash);
        json_t *kind = json_object_get(s->tensors, assay_stored_word(t->kind));
        ASSAY_CHECK(json_object_set_new(kind, t->name, json_string(hash)) == 0, ASSAY_OUT_OF_MEMORY,
                    "checkpoint: hash of %s", t->name);
    }
    return ASSAY_OK;
}

static assay_status cover_run(void *user, int part, int64_t in_part, int64_t in_piece, int64_t count)
{
    const unit_data *u = user;
    (void)in_piece;
    memset(u->covered + u->start[part] + in_part, 1, (size_t)count);
    return ASSAY_OK;
}

static assay_status take_run(void *user, int part, int64_t in_part, int64_t in_piece, int64_t count)
{
    const unit_data *u = user;
    memcpy(u->piece + in_piece * u->width, u->data + (u->start[part] + in_part) * u->width,
           (size_t)(count * u->width));
    return ASSAY_OK;
}

static assay_status check_said(seal *s, const assay_param_spec *p, const said *piece, unit_data *u)
{
    char hash[ASSAY_HASH_HEX];
    const assay_checkpoint_content *c = &s->w->plan.content;
    ASSAY_TRY(assay_param_runs(p, &piece->shard, take_run, u));
    assay_checkpoint_piece_hash(u->piece, assay_shard_count(&piece->shard) * u->width, hash);
    const char *family = assay_checkpoint_family_word(c, piece->family, p);
    if (strcmp(hash, piece->hash) == 0)
        return ASSAY_OK;
    ASSAY_CHECK(c->keep_differing, ASSAY_MISMATCH,
                "%s: %s/%s: the piece of rank %d is not what the file holds: replicas differ, or it was not "
                "written as it is",
                s->w->dir, family, p->name, piece->rank);
    ASSAY_CHECK(json_array_append_new(s->differing, json_pack("[ssi]", family, p->name, piece->rank)) == 0,
                ASSAY_OUT_OF_MEMORY, "checkpoint: replicas that differ");
    return ASSAY_OK;
}

static assay_status check_unit(seal *s, const assay_param_spec *p, const said *list, int64_t n, unit_data *u)
{
    ASSAY_TRY(load_unit(s, p, u));
    for (int64_t i = 0; i < n; i++)
        if (list[i].writes)
            ASSAY_TRY(assay_param_runs(p, &list[i].shard, cover_run, u));
    for (int k = 0; k < p->n_parts; k++)
        for (int64_t i = u->start[k]; i < u->start[k + 1]; i++)
            ASSAY_CHECK(u->covered[i], ASSAY_FORMAT, "%s: %s: no rank wrote element %lld of %lld", s->w->dir,
                        u->tensors[k].name, (long long)(i - u->start[k]),
                        (long long)(u->start[k + 1] - u->start[k]));
    for (int64_t i = 0; i < n; i++)
        ASSAY_TRY(check_said(s, p, &list[i], u));
    return ASSAY_OK;
}

static assay_status check_units(seal *s)
{
    const assay_checkpoint_plan *plan = &s->w->plan;
    const int64_t n_params = plan->content.spec->n_params;
    int64_t at = 0;
    if (s->n > 0)
        qsort(s->list, (size_t)s->n, sizeof *s->list, compare_said);
    for (int64_t unit = 0; unit < n_params * assay_checkpoint_families(&plan->content); unit++) {
        const int64_t param = unit % n_params, first = plan->first[unit];
        if (!is_mine(s->w, unit) || first < 0)
            continue;
        int64_t end = at;
        while (end < s->n && s->list[end].unit == unit)
            end++;
        unit_data u = {.tensors = &plan->tensors[first]};
        const assay_status st = check_unit(s, &plan->content.spec->params[param], s->list + at, end - at, &u);
        free_unit(&u);
        ASSAY_TRY(st);
        at = end;
    }
    return ASSAY_OK;
}

static assay_status hash_files(seal *s)
{
    char path[ASSAY_CHECKPOINT_PATH + 64], hash[ASSAY_SHA256_HEX];
    for (int64_t i = 0; i < s->w->plan.n_shards; i++) {
        const char *name = s->w->plan.shards[i].file;
        if (i % s->w->world != s->w->rank)
            continue;
        assay_checkpoint_file(path, s->w->tmp, name);
        ASSAY_TRY(assay_sha256_file(path, hash));
        ASSAY_CHECK(json_object_set_new(s->files, name, json_string(hash)) == 0, ASSAY_OUT_OF_MEMORY,
                    "checkpoint: hash of %s", name);
    }
    return ASSAY_OK;
}

static assay_status write_hashes(seal *s)
{
    json_t *all = json_pack("{s:O, s:O, s:O}", "tensors", s->tensors, "files", s->files, "differing_replicas",
                            s->differing);
    assay_json_text text = {0};
    assay_json_text_value(&text, all);
    const assay_status st = assay_checkpoint_rank_save(s->w, ASSAY_RANK_HASHES, &text);
    assay_json_text_free(&text);
    json_decref(all);
    return st;
}

assay_status assay_checkpoint_seal(assay_checkpoint_writer *w)
{
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(w->finished, ASSAY_INVALID_ARGUMENT, "%s: sealed before its pieces are written", w->dir);
    seal s = {.w = w, .tensors = json_object(), .files = json_object(), .differing = json_array()};
    for (int k = 0; k < ASSAY_STORED_COUNT; k++)
        json_object_set_new(s.tensors, assay_stored_word((assay_stored_kind)k), json_object());
    ASSAY_TRY_GOTO(read_pieces(&s), st, done);
    ASSAY_TRY_GOTO(check_units(&s), st, done);
    ASSAY_TRY_GOTO(hash_files(&s), st, done);
    ASSAY_TRY_GOTO(write_hashes(&s), st, done);
    w->sealed = true;
done:
    json_decref(s.tensors);
    json_decref(s.files);
    json_decref(s.differing);
    free(s.list);
    return st;
}
