/* Sealing a staged checkpoint: every rank takes its share of the parameters, reads them back from the shards and holds them to
 * what all ranks say that they hold; and its share of the shards, whose files it hashes. */
#include "core/base/json_cursor.h"
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
    assay_open_shard *read;  /* [shards]: those that were read back from */
} seal;

/* --- what the ranks say ------------------------------------------------------------------------------------- */
static bool is_mine(const assay_checkpoint_writer *w, int64_t unit)
{
    return unit % w->world == w->rank;
}

static assay_status add_said(seal *s, const said *p, const char *what)
{
    if (s->n == s->capacity) {
        const int64_t capacity = s->capacity > 0 ? 2 * s->capacity : 256;
        said *grown = realloc(s->list, (size_t)capacity * sizeof *grown);
        ASSAY_CHECK(grown != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld pieces", what, (long long)capacity);
        s->list = grown;
        s->capacity = capacity;
    }
    s->list[s->n++] = *p;
    return ASSAY_OK;
}

/* [[start,length],...] of one dimension; lengths that add up beyond what there is are refused with the shard. */
static int read_segments(assay_cursor *c, assay_segment list[ASSAY_MAX_SEGMENTS])
{
    int n = 0;
    assay_cursor_expect(c, "[");
    while (c->good && !assay_cursor_is(c, "]")) {
        assay_cursor_expect(c, n > 0 ? ",[" : "[");
        if (n == ASSAY_MAX_SEGMENTS) {
            c->good = false;
            break;
        }
        list[n].start = assay_cursor_integer(c);
        assay_cursor_expect(c, ",");
        list[n++].length = assay_cursor_integer(c);
        assay_cursor_expect(c, "]");
    }
    return n;
}

/* *mine false: it is another rank's to check, and is only read over. */
static assay_status read_shard(assay_cursor *c, const assay_param_spec *p, bool mine, const char *what,
                               assay_shard *out)
{
    assay_segment list[ASSAY_MAX_SEGMENTS];
    assay_shard_whole(out, p->shape, p->ndim);
    assay_cursor_expect(c, "[");
    for (int d = 0; d < p->ndim; d++) {
        if (d > 0)
            assay_cursor_expect(c, ",");
        const int n = read_segments(c, list);
        if (!mine || !c->good)
            continue;
        out->local_shape[d] = 0;
        for (int i = 0; i < n; i++)
            ASSAY_CHECK(assay_add_i64(out->local_shape[d], list[i].length, &out->local_shape[d]),
                        ASSAY_FORMAT, "%s: %s: dimension %d: lengths overflow", what, p->name, d);
        assay_shard_set(out, d, list, n);
    }
    assay_cursor_expect(c, "]");
    return mine && c->good ? assay_shard_check(out, what) : ASSAY_OK;
}

/* As assay_checkpoint_add writes it. */
static assay_status take_piece(seal *s, assay_cursor *c, int rank, const char *what)
{
    const assay_checkpoint_plan *plan = &s->w->plan;
    const int64_t n_params = plan->content.spec->n_params;
    assay_cursor_expect(c, "{\"family\":");
    const int64_t family = assay_cursor_integer(c);
    assay_cursor_expect(c, ",\"param\":");
    const int64_t param = assay_cursor_integer(c);
    assay_cursor_expect(c, ",\"writes\":");
    said p = {.rank = rank, .writes = assay_cursor_is(c, "true")};
    assay_cursor_expect(c, p.writes ? ",\"segments\":" : "false,\"segments\":");
    if (!c->good)
        return ASSAY_OK; /* said by the caller */
    ASSAY_CHECK(family >= 0 && family < assay_checkpoint_families(&plan->content) && param >= 0 &&
                    param < n_params,
                ASSAY_FORMAT, "%s: family %lld, parameter %lld: expected at most %d and %lld", what,
                (long long)family, (long long)param, assay_checkpoint_families(&plan->content) - 1,
                (long long)n_params - 1);
    p.family = (int)family;
    p.unit = (int64_t)assay_checkpoint_stored_family(&plan->content, p.family) * n_params + param;
    const bool mine = is_mine(s->w, p.unit);
    ASSAY_TRY(read_shard(c, &plan->content.spec->params[param], mine, what, &p.shard));
    assay_cursor_expect(c, ",\"hash\":\"");
    assay_cursor_string(c, p.hash, sizeof p.hash);
    c->good = c->good && strlen(p.hash) == ASSAY_HASH_HEX - 1;
    assay_cursor_expect(c, "}");
    return mine && c->good ? add_said(s, &p, what) : ASSAY_OK;
}

/* Each rank reads what all have said: as their writer puts it, or not at all. */
static assay_status take_pieces(seal *s, const char *text, uint64_t bytes, int rank, const char *what)
{
    assay_cursor c = {text, text + bytes, true};
    assay_cursor_expect(&c, "[");
    for (bool first = true; c.good && !assay_cursor_is(&c, "]"); first = false) {
        if (!first)
            assay_cursor_expect(&c, ",");
        ASSAY_TRY(take_piece(s, &c, rank, what));
    }
    ASSAY_CHECK(c.good && c.at == c.end, ASSAY_FORMAT,
                "%s: byte %lld: expected a list of pieces as a rank writes it", what,
                (long long)(c.at - text));
    return ASSAY_OK;
}

static assay_status read_pieces(seal *s)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    for (int r = 0; r < s->w->world; r++) {
        char *text = NULL;
        uint64_t bytes = 0;
        assay_checkpoint_rank_file(path, s->w->tmp, ASSAY_RANK_PIECES, r);
        ASSAY_TRY(assay_checkpoint_rank_read(s->w, ASSAY_RANK_PIECES, r, &text, &bytes));
        const assay_status st = take_pieces(s, text, bytes, r, path);
        free(text);
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

static assay_status read_part(seal *s, const assay_planned_tensor *t, char *out)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    assay_open_shard *f = &s->read[t->shard];
    assay_checkpoint_file(path, s->w->tmp, s->w->plan.shards[t->shard].file);
    if (!f->open) {
        f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        ASSAY_CHECK(f->fd >= 0, ASSAY_IO, "%s: cannot open: %s", path, strerror(errno));
        f->open = true;
    }
    int64_t done = 0;
    while (done < t->bytes) {
        const ssize_t n = pread(f->fd, out + done, (size_t)(t->bytes - done), (off_t)(t->offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += n;
    }
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
        ASSAY_TRY(read_part(s, t, at));
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
    s.read = calloc((size_t)w->plan.n_shards + 1, sizeof *s.read);
    ASSAY_CHECK_GOTO(s.read != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s: %lld shards", w->dir,
                     (long long)w->plan.n_shards);
    ASSAY_TRY_GOTO(read_pieces(&s), st, done);
    ASSAY_TRY_GOTO(check_units(&s), st, done);
    ASSAY_TRY_GOTO(hash_files(&s), st, done);
    ASSAY_TRY_GOTO(write_hashes(&s), st, done);
    w->sealed = true;
done:
    json_decref(s.tensors);
    json_decref(s.files);
    json_decref(s.differing);
    for (int64_t i = 0; s.read != NULL && i < w->plan.n_shards; i++)
        if (s.read[i].open)
            close(s.read[i].fd);
    free(s.read);
    free(s.list);
    return st;
}
