/* Assembling global tensors from what every rank recorded.
 *
 * Shards must tile the global tensor: a global element that nobody holds is a gap, elements that several pieces
 * hold are replicas and must be equal.  Partial pieces are added over their group in double, to which every rank of it has a
 * part; rows are put in order of their numbers. */
#include "parity/judge/judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Global element number of local element `flat`. */
static int64_t global_flat(const assay_shard *s, int64_t flat)
{
    int64_t local[ASSAY_MAX_DIMS], global = 0;
    parity_unflatten(flat, s->local_shape, s->ndim, local);
    for (int d = 0; d < s->ndim; d++)
        global = global * s->global_shape[d] + assay_shard_global_index(s, d, local[d]);
    return global;
}

static void fail_at(parity_result *f, const parity_entry *e, int rank, int64_t flat, const int64_t *shape,
                    int ndim, const char *what)
{
    char where[128];
    f->rank = rank;
    f->index_ndim = ndim;
    parity_unflatten(flat, shape, ndim, f->index);
    parity_index_text(f->index, ndim, where, sizeof where);
    parity_result_fail(f, "%s: %s at %s", e->name, what, where);
}

/* Kind, dtype and global shape agree between all pieces. */
static bool pieces_agree(const parity_entry *e, parity_result *f)
{
    const assay_trace_tensor *a = e->pieces[0].record;
    for (int64_t i = 0; i < e->n; i++) {
        const assay_trace_tensor *b = e->pieces[i].record;
        f->rank = b->rank;
        if (e->pieces[i].conflict) {
            parity_result_fail(f, "%s: rank %d observed it several times with different content", e->name,
                               b->rank);
            return false;
        }
        if (a->dtype != b->dtype || a->kind != b->kind) {
            parity_result_fail(f, "%s: rank %d holds a %s of kind %d, rank %d a %s of kind %d", e->name,
                               a->rank, assay_dtype_name(a->dtype), (int)a->kind, b->rank,
                               assay_dtype_name(b->dtype), (int)b->kind);
            return false;
        }
        bool same = a->shard.ndim == b->shard.ndim;
        for (int d = a->kind == ASSAY_PIECE_ROWS ? 1 : 0; same && d < a->shard.ndim; d++)
            same = a->shard.global_shape[d] == b->shard.global_shape[d];
        if (!same) {
            parity_result_fail(f, "%s: ranks %d and %d record different global shapes", e->name, a->rank,
                               b->rank);
            return false;
        }
    }
    f->rank = -1;
    return true;
}

static assay_status allocate_global(parity_global *g, assay_dtype dtype, const int64_t *shape, int ndim,
                                    unsigned char **covered)
{
    memset(g, 0, sizeof *g);
    g->dtype = dtype;
    g->ndim = ndim;
    for (int d = 0; d < ndim; d++)
        g->shape[d] = shape[d];
    int64_t bytes;
    ASSAY_CHECK(assay_shape_count(shape, ndim, &g->count) &&
                    assay_mul_i64(g->count, assay_dtype_bytes(dtype), &bytes) && assay_dtype_bytes(dtype) > 0,
                ASSAY_UNSUPPORTED, "global tensor of dtype %s cannot be assembled", assay_dtype_name(dtype));
    g->data = calloc(1, (size_t)bytes + 1);
    *covered = calloc(1, (size_t)g->count + 1);
    if (!g->data || !*covered) {
        parity_global_free(g);
        free(*covered);
        *covered = NULL;
        ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "global tensor of %lld bytes", (long long)bytes);
    }
    return ASSAY_OK;
}

void parity_global_free(parity_global *g)
{
    free(g->data);
    memset(g, 0, sizeof *g);
}

/* The earlier piece with the same segments, or NULL. */
static const assay_trace_tensor *replica_of(const parity_entry *e, int64_t i)
{
    for (int64_t j = 0; j < i; j++) {
        if (parity_same_shard(&e->pieces[j].record->shard, &e->pieces[i].record->shard))
            return e->pieces[j].record;
    }
    return NULL;
}

static bool replicas_equal(const parity_entry *e, const assay_trace_tensor *a, const assay_trace_tensor *b,
                           parity_result *f)
{
    if (strcmp(a->hash, b->hash) == 0)
        return true;
    const int64_t count = assay_shard_count(&b->shard);
    const size_t width = (size_t)assay_dtype_bytes(a->dtype);
    const char *p = a->data, *q = b->data;
    for (int64_t i = 0; p && q && i < count; i++) {
        if (memcmp(p + (size_t)i * width, q + (size_t)i * width, width) == 0)
            continue;
        char what[128];
        snprintf(what, sizeof what, "replicas differ: rank %d holds %.9g, rank %d holds %.9g", a->rank,
                 parity_decode(a->data, i, a->dtype), b->rank, parity_decode(b->data, i, b->dtype));
        f->found = parity_decode(b->data, i, b->dtype);
        f->expected = parity_decode(a->data, i, a->dtype);
        fail_at(f, e, b->rank, global_flat(&b->shard, i), b->shard.global_shape, b->shard.ndim, what);
        return false;
    }
    f->rank = b->rank;
    parity_result_fail(f, "%s: replicas differ: ranks %d and %d record different hashes", e->name, a->rank,
                       b->rank);
    return false;
}

/* The piece is whole from dimension `*dim` + 1 on: `*inner` elements follow each other there, and so does what one
 * segment of dimension `*dim` holds. */
static void contiguous(const assay_shard *s, int *dim, int64_t *inner)
{
    *inner = 1;
    for (*dim = s->ndim - 1; *dim > 0; --*dim) {
        const bool whole = s->n_segments[*dim] == 1 && s->local_shape[*dim] == s->global_shape[*dim];
        if (!whole)
            return;
        *inner *= s->local_shape[*dim];
    }
}

/* Puts `count` elements that follow each other in place; false at the first that is there already and differs: pieces
 * may share elements (a key and value head on several ranks), which are replicas. */
static bool place_run(const parity_entry *e, const assay_trace_tensor *r, int64_t from, int64_t at,
                      int64_t count, parity_global *g, unsigned char *covered, parity_result *f)
{
    const size_t width = (size_t)assay_dtype_bytes(r->dtype);
    for (int64_t i = 0; memchr(covered + at, 1, (size_t)count) && i < count; i++) {
        if (!covered[at + i] || memcmp((const char *)g->data + (size_t)(at + i) * width,
                                       (const char *)r->data + (size_t)(from + i) * width, width) == 0)
            continue;
        fail_at(f, e, r->rank, at + i, g->shape, g->ndim, "pieces overlap and differ");
        return false;
    }
    memset(covered + at, 1, (size_t)count);
    memcpy((char *)g->data + (size_t)at * width, (const char *)r->data + (size_t)from * width,
           (size_t)count * width);
    return true;
}

/* Puts a piece in place; false at the first element that is there already. */
static bool place(const parity_entry *e, const assay_trace_tensor *r, parity_global *g,
                  unsigned char *covered, parity_result *f)
{
    const int64_t count = assay_shard_count(&r->shard);
    int dim;
    int64_t inner;
    if (r->shard.ndim == 0)
        return place_run(e, r, 0, 0, 1, g, covered, f);
    contiguous(&r->shard, &dim, &inner);
    for (int64_t i = 0; i < count;)
        for (int k = 0; k < r->shard.n_segments[dim]; k++) {
            const int64_t run = r->shard.segments[dim][k].length * inner;
            if (run > 0 && !place_run(e, r, i, global_flat(&r->shard, i), run, g, covered, f))
                return false;
            i += run;
        }
    return true;
}

static bool no_gap(const parity_entry *e, const parity_global *g, const unsigned char *covered,
                   parity_result *f)
{
    const unsigned char *hole = memchr(covered, 0, (size_t)g->count);
    if (!hole)
        return true;
    int64_t n = 0;
    for (int64_t i = 0; i < g->count; i++)
        n += !covered[i];
    char what[128];
    snprintf(what, sizeof what, "missing shard: no rank holds %lld of %lld elements, the first", (long long)n,
             (long long)g->count);
    fail_at(f, e, -1, hole - covered, g->shape, g->ndim, what);
    return false;
}

static void assemble_shards(const parity_entry *e, parity_global *g, unsigned char *covered, parity_result *f)
{
    for (int64_t i = 0; i < e->n; i++) {
        const assay_trace_tensor *r = e->pieces[i].record;
        const assay_trace_tensor *twin = replica_of(e, i);
        if (twin ? !replicas_equal(e, twin, r, f) : !place(e, r, g, covered, f))
            return;
    }
    g->complete = no_gap(e, g, covered, f);
}

/* Whether two ranks belong to one group of that name; without a layout the world is one group. */
static bool same_group(const parity_index *x, const char *group, int a, int b)
{
    if (!x->has_grid)
        return true;
    for (int k = 0; k < ASSAY_GROUP_COUNT; k++) {
        if (strcmp(assay_group_name((assay_group)k), group) == 0)
            return assay_grid_color(&x->grid, (assay_group)k, a) ==
                   assay_grid_color(&x->grid, (assay_group)k, b);
    }
    return false;
}

/* A sum without the part of one rank is no sum: every rank of the group has a piece, maybe of other elements.  Of the world those are
 * meant that hold the same part, and who does is not known here. */
static bool group_is_whole(const parity_index *x, const parity_entry *e, parity_result *f)
{
    for (int64_t i = 0; x->has_grid && i < e->n; i++) {
        const assay_trace_tensor *r = e->pieces[i].record;
        if (strcmp(r->partial_group, assay_group_name(ASSAY_GROUP_WORLD)) == 0)
            continue;
        for (int rank = 0; rank < assay_trace_world(x->trace); rank++) {
            bool has = !same_group(x, r->partial_group, r->rank, rank);
            for (int64_t j = 0; !has && j < e->n; j++)
                has = e->pieces[j].record->rank == rank;
            if (has)
                continue;
            f->rank = rank;
            parity_result_fail(f, "%s: missing part: rank %d, of one group %s with rank %d, has none",
                               e->name, rank, r->partial_group, r->rank);
            return false;
        }
    }
    return true;
}

/* Sums of one group fill their part of the global tensor.  Those of other groups are left alone: ranks that share a head come to the
 * same sum by other roundings; where a sum over ranks follows, its pieces are shards, and replicas are compared there. */
static assay_status assemble_partial(const parity_index *x, const parity_entry *e, parity_global *g,
                                     unsigned char *covered, parity_result *f)
{
    const assay_trace_tensor *first = e->pieces[0].record;
    double *sum = g->data;
    ASSAY_CHECK(parity_can_decode(first->dtype), ASSAY_UNSUPPORTED, "%s: pieces of dtype %s cannot be added",
                e->name, assay_dtype_name(first->dtype));
    if (!group_is_whole(x, e, f))
        return ASSAY_OK;
    bool *used = calloc((size_t)e->n, sizeof *used);
    ASSAY_CHECK(used, ASSAY_OUT_OF_MEMORY, "%s", e->name);
    for (int64_t i = 0; i < e->n && f->verdict != PARITY_FAIL; i++) {
        const assay_trace_tensor *r = e->pieces[i].record;
        if (used[i])
            continue;
        const int64_t count = assay_shard_count(&r->shard);
        enum { EARLIER = 1, NOW = 2 }; /* elements that another group has given are left alone */
        for (int64_t j = i; j < e->n; j++) {
            const assay_trace_tensor *q = e->pieces[j].record;
            if (used[j] || !same_group(x, r->partial_group, r->rank, q->rank) ||
                !parity_same_shard(&r->shard, &q->shard))
                continue;
            used[j] = true;
            for (int64_t k = 0; k < count; k++) {
                const int64_t at = global_flat(&q->shard, k);
                if (covered[at] == EARLIER)
                    continue;
                sum[at] += parity_decode(q->data, k, q->dtype);
                covered[at] = NOW;
            }
        }
        for (int64_t k = 0; k < count; k++)
            covered[global_flat(&r->shard, k)] = EARLIER;
    }
    free(used);
    g->complete = no_gap(e, g, covered, f);
    return ASSAY_OK;
}

/* Row numbers of a piece; NULL when the record is not what docs/TRACE.md says. */
static const assay_trace_tensor *row_numbers(const parity_index *x, const assay_trace_tensor *r)
{
    const assay_trace_tensor *rows = assay_trace_tensor_by_id(x->trace, r->rank, r->rows_id);
    const bool good = rows && rows->dtype == ASSAY_I64 && rows->shard.ndim == 1 && rows->data &&
                      r->shard.ndim >= 1 && rows->shard.local_shape[0] == r->shard.local_shape[0];
    return good ? rows : NULL;
}

static int compare_rows(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Distinct row numbers of all pieces, ascending.  Row numbers may be sparse (token and expert in one number):
 * the assembled tensor holds the rows that exist, in order of their numbers. */
static assay_status distinct_rows(const parity_index *x, const parity_entry *e, int64_t **rows, int64_t *n)
{
    int64_t total = 0;
    for (int64_t i = 0; i < e->n; i++) {
        const assay_trace_tensor *r = row_numbers(x, e->pieces[i].record);
        total += r ? r->shard.local_shape[0] : 0;
    }
    *n = 0;
    *rows = malloc(((size_t)total + 1) * sizeof **rows);
    ASSAY_CHECK(*rows, ASSAY_OUT_OF_MEMORY, "%s: %lld rows", e->name, (long long)total);
    int64_t filled = 0;
    for (int64_t i = 0; i < e->n; i++) {
        const assay_trace_tensor *r = row_numbers(x, e->pieces[i].record);
        for (int64_t k = 0; r && k < r->shard.local_shape[0]; k++) {
            const int64_t row = parity_decode_integer(r->data, k, ASSAY_I64);
            if (row >= 0)
                (*rows)[filled++] = row;
        }
    }
    qsort(*rows, (size_t)filled, sizeof **rows, compare_rows);
    for (int64_t i = 0; i < filled; i++) {
        if (i == 0 || (*rows)[i] != (*rows)[i - 1])
            (*rows)[(*n)++] = (*rows)[i];
    }
    return ASSAY_OK;
}

/* Puts the rows of one piece in place; false at the first copy that differs. */
static bool place_rows(const parity_entry *e, const assay_trace_tensor *r, const assay_trace_tensor *numbers,
                       const int64_t *rows, parity_global *g, unsigned char *covered, parity_result *f)
{
    const int64_t width = g->shape[0] > 0 ? g->count / g->shape[0] : 0;
    const size_t bytes = (size_t)width * (size_t)assay_dtype_bytes(g->dtype);
    for (int64_t k = 0; k < numbers->shard.local_shape[0] && width > 0; k++) {
        const int64_t row = parity_decode_integer(numbers->data, k, ASSAY_I64);
        const int64_t *found =
            row < 0 ? NULL : bsearch(&row, rows, (size_t)g->shape[0], sizeof *rows, compare_rows);
        if (!found)
            continue; /* padding */
        const int64_t at = found - rows;
        char *to = (char *)g->data + (size_t)at * bytes;
        const char *from = (const char *)r->data + (size_t)k * bytes;
        if (covered[at * width] && memcmp(to, from, bytes) != 0) {
            char what[96];
            snprintf(what, sizeof what, "copies of row number %lld differ", (long long)row);
            fail_at(f, e, r->rank, at * width, g->shape, g->ndim, what);
            return false;
        }
        memcpy(to, from, bytes);
        memset(covered + at * width, 1, (size_t)width);
    }
    return true;
}

static void assemble_rows(const parity_index *x, const parity_entry *e, const int64_t *rows, parity_global *g,
                          unsigned char *covered, parity_result *f)
{
    for (int64_t i = 0; i < e->n; i++) {
        const assay_trace_tensor *r = e->pieces[i].record, *numbers = row_numbers(x, r);
        if (!numbers) {
            f->rank = r->rank;
            parity_result_fail(f, "%s: rank %d: its row numbers are not an I64 vector of its length", e->name,
                               r->rank);
            return;
        }
        if (!place_rows(e, r, numbers, rows, g, covered, f))
            return;
    }
    g->complete = true;
}

static bool has_data(const parity_entry *e)
{
    for (int64_t i = 0; i < e->n; i++) {
        if (!e->pieces[i].record->data && assay_shard_count(&e->pieces[i].record->shard) > 0)
            return false;
    }
    return true;
}

static void compare_hashes(const parity_entry *e, parity_result *f)
{
    for (int64_t i = 0; i < e->n; i++) {
        const assay_trace_tensor *twin = replica_of(e, i);
        if (twin && e->pieces[i].record->kind == ASSAY_PIECE_SHARD &&
            !replicas_equal(e, twin, e->pieces[i].record, f))
            return;
    }
    parity_result_skip(f, "%s: the trace holds hashes, no data", e->name);
}

/* Extents whose elements nobody holds must not decide what is allocated: a tiling holds every element. */
static bool extent_is_held(const parity_entry *e, const int64_t *shape, int ndim, parity_result *f)
{
    int64_t count, held = 0;
    if (!assay_shape_count(shape, ndim, &count))
        count = INT64_MAX;
    for (int64_t i = 0; i < e->n; i++)
        held += assay_shard_count(&e->pieces[i].record->shard);
    if (count <= held)
        return true;
    parity_result_fail(f, "%s: missing shard: the global tensor has %lld elements, all ranks hold %lld",
                       e->name, (long long)count, (long long)held);
    return false;
}

assay_status parity_entry_assemble(const parity_index *x, const parity_entry *e, parity_global *out,
                                   parity_result *finding)
{
    memset(out, 0, sizeof *out);
    snprintf(finding->tensor, sizeof finding->tensor, "%s", e->name);
    finding->phase = e->phase;
    finding->step = e->step;
    finding->microbatch = e->microbatch;
    finding->verdict = PARITY_PASS;
    if (!pieces_agree(e, finding))
        return ASSAY_OK;
    if (!has_data(e)) {
        compare_hashes(e, finding);
        return ASSAY_OK;
    }
    const assay_trace_tensor *first = e->pieces[0].record;
    const int ndim = first->shard.ndim;
    int64_t shape[ASSAY_MAX_DIMS];
    memcpy(shape, first->shard.global_shape, sizeof shape);
    if (first->kind == ASSAY_PIECE_LOCAL)
        return ASSAY_OK;
    unsigned char *covered = NULL;
    int64_t *rows = NULL;
    assay_status st = ASSAY_OK;
    if (first->kind == ASSAY_PIECE_ROWS && ndim > 0)
        ASSAY_TRY(distinct_rows(x, e, &rows, &shape[0]));
    if (!extent_is_held(e, shape, ndim, finding)) {
        free(rows);
        return ASSAY_OK;
    }
    const assay_dtype dtype = first->kind == ASSAY_PIECE_PARTIAL ? ASSAY_F64 : first->dtype;
    ASSAY_TRY_GOTO(allocate_global(out, dtype, shape, ndim, &covered), st, done);
    if (first->kind == ASSAY_PIECE_SHARD)
        assemble_shards(e, out, covered, finding);
    else if (first->kind == ASSAY_PIECE_PARTIAL)
        st = assemble_partial(x, e, out, covered, finding);
    else
        assemble_rows(x, e, rows, out, covered, finding);
    finding->count = out->count;
done:
    free(rows);
    free(covered);
    if (st != ASSAY_OK)
        parity_global_free(out);
    return st;
}

assay_status parity_assemble(const assay_trace *t, const char *name, assay_phase phase, int64_t step,
                             int64_t microbatch, parity_global *out, parity_report *report)
{
    memset(out, 0, sizeof *out);
    parity_index *x;
    ASSAY_TRY(parity_index_create(&x, t));
    parity_result finding;
    parity_result_init(&finding);
    finding.check = PARITY_CHECK_ASSEMBLE;
    parity_result_from_trace(&finding, t);
    assay_status st = ASSAY_OK;
    const parity_entry *e = parity_index_find(x, name, phase, step, microbatch);
    if (e)
        st = parity_entry_assemble(x, e, out, &finding);
    else
        st = ASSAY_ERROR(ASSAY_NOT_FOUND, "no rank recorded %s in phase %s, step %lld, microbatch %lld", name,
                         assay_phase_name(phase), (long long)step, (long long)microbatch);
    if (st == ASSAY_OK && report && finding.verdict == PARITY_FAIL)
        st = parity_report_add(report, &finding);
    parity_index_destroy(x);
    return st;
}

static void put_segments(const assay_shard *s, char *out, size_t capacity)
{
    size_t used = 0;
    out[0] = 0;
    for (int d = 0; d < s->ndim && used < capacity; d++)
        for (int k = 0; k < s->n_segments[d] && used < capacity; k++)
            used += (size_t)snprintf(out + used, capacity - used, "%s%lld-%lld",
                                     k > 0   ? "+"
                                     : d > 0 ? ", "
                                             : "",
                                     (long long)s->segments[d][k].start,
                                     (long long)(s->segments[d][k].start + s->segments[d][k].length - 1));
}

/* The pieces: who holds what. */
static assay_status draw_pieces(const parity_entry *e, parity_gallery *g, parity_result *f)
{
    static const char *const heads[] = {"rank", "kind", "elements, from-to of each dimension", "content",
                                        NULL};
    parity_excerpt *x = NULL;
    char shape[96];
    bool named = false;
    ASSAY_TRY(parity_gallery_excerpt(g, &x, &f->excerpt));
    if (x == NULL)
        return ASSAY_OK;
    const assay_shard *whole = &e->pieces[0].record->shard;
    parity_index_text(whole->global_shape, whole->ndim, shape, sizeof shape);
    parity_excerpt_begin(x, heads, "%lld piece%s of %.80s %s; expected they tile it, and replicas are equal",
                         (long long)e->n, e->n == 1 ? "" : "s", e->name, shape);
    for (int64_t i = 0; i < e->n; i++) {
        const assay_trace_tensor *t = e->pieces[i].record;
        char segments[PARITY_EXCERPT_CELL];
        if (!parity_excerpt_add(x, t->rank == f->rank ? PARITY_ROW_WRONG : PARITY_ROW_SAME))
            return ASSAY_OK;
        put_segments(&t->shard, segments, sizeof segments);
        parity_excerpt_cell(x, 0, "%d", t->rank);
        parity_excerpt_cell(x, 1, "%s", assay_piece_kind_name(t->kind));
        parity_excerpt_cell(x, 2, "%s", segments);
        parity_excerpt_cell(x, 3, "%.16s", t->hash);
        named = named || t->rank == f->rank;
    }
    if (!named && parity_excerpt_add(x, PARITY_ROW_MISSING)) {
        parity_excerpt_cell(x, 0, "none");
        parity_excerpt_cell(x, 2, "%s", f->message);
    }
    return ASSAY_OK;
}

assay_status parity_check_assemble(const assay_trace *t, parity_report *report)
{
    assay_status st = ASSAY_OK;
    parity_index *x = NULL;
    parity_table *table = NULL;
    ASSAY_TRY(parity_index_create(&x, t));
    ASSAY_TRY_GOTO(parity_table_create(&table, PARITY_CHECK_ASSEMBLE), st, done);
    for (int64_t i = 0; i < x->n; i++) {
        if (!parity_entry_assembles(&x->entries[i]))
            continue;
        parity_global g;
        parity_result finding;
        parity_result_init(&finding);
        parity_result_from_trace(&finding, t);
        st = parity_entry_assemble(x, &x->entries[i], &g, &finding);
        parity_global_free(&g);
        if (st == ASSAY_UNSUPPORTED)
            parity_result_skip(&finding, "%.400s", assay_error_message());
        else if (st != ASSAY_OK)
            goto done;
        st = ASSAY_OK;
        if (finding.verdict == PARITY_FAIL)
            ASSAY_TRY_GOTO(draw_pieces(&x->entries[i], parity_table_gallery(table), &finding), st, done);
        ASSAY_TRY_GOTO(parity_table_merge(table, &finding), st, done);
    }
    ASSAY_TRY_GOTO(parity_table_flush(table, report), st, done);
done:
    parity_table_destroy(table);
    parity_index_destroy(x);
    return st;
}
