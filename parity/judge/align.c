/* Pairs of tensors of two frameworks, by the rows of core/model/names.h: axes permuted, fused tensors cut. */
#include "parity/judge/align.h"

#include <stdlib.h>
#include <string.h>

assay_status parity_aligner_create(parity_aligner **out, const char *folder, const json_t *header,
                                   const char *map)
{
    assay_status st = ASSAY_OK;
    *out = NULL;
    parity_aligner *a = calloc(1, sizeof *a);
    ASSAY_CHECK(a != NULL, ASSAY_OUT_OF_MEMORY, "names");
    a->config = calloc(1, sizeof *a->config);
    ASSAY_CHECK_GOTO(a->config != NULL, ASSAY_OUT_OF_MEMORY, st, fail, "names");
    if (folder != NULL && folder[0] != '\0')
        ASSAY_TRY_GOTO(assay_config_load(folder, a->config), st, fail);
    else
        ASSAY_TRY_GOTO(
            assay_config_from_json(json_object_get(header, "model"), "index.json: model", a->config), st,
            fail);
    ASSAY_TRY_GOTO(assay_spec_build(a->config, &a->spec), st, fail);
    ASSAY_TRY_GOTO(assay_names_build(a->spec, &a->names), st, fail);
    if (map != NULL && map[0] != '\0')
        ASSAY_TRY_GOTO(assay_names_add_file(a->names, map), st, fail);
    *out = a;
    return ASSAY_OK;
fail:
    parity_aligner_destroy(a);
    return st;
}

void parity_aligner_destroy(parity_aligner *a)
{
    if (a == NULL)
        return;
    assay_names_destroy(a->names);
    assay_spec_destroy(a->spec);
    free(a->config);
    free(a);
}

bool parity_names_are_foreign(const assay_trace *t)
{
    return strcmp(assay_trace_header_text(t, "names"), "huggingface") == 0;
}

/* The same microbatch; what does not change in a step has no microbatch in one trace and the first's in the other. */
static const parity_entry *find_ours(const parity_index *ours, const assay_name_match *m,
                                     const parity_entry *theirs)
{
    const int64_t places[] = {theirs->microbatch, -1, 0};
    const parity_entry *e = NULL;
    for (int k = 0; k < 3 && e == NULL; k++)
        if (k == 0 || (k == 1 && theirs->microbatch == 0) || (k == 2 && theirs->microbatch < 0))
            e = parity_index_find(ours, m->ours, m->phase, theirs->step, places[k]);
    return e != NULL && parity_entry_assembles(e) ? e : NULL;
}

const parity_entry *parity_aligner_find(const parity_aligner *a, const parity_index *ours,
                                        const parity_entry *theirs, const assay_name_row **row)
{
    assay_name_match match[ASSAY_NAME_MATCHES];
    const int n = assay_names_find(a->names, theirs->name, theirs->phase, match);
    *row = n > 0 ? match[0].row : NULL;
    for (int i = 0; i < n; i++) {
        const parity_entry *e = find_ours(ours, &match[i], theirs);
        if (e != NULL) {
            *row = match[i].row;
            return e;
        }
    }
    return NULL;
}

/* --- shapes ------------------------------------------------------------------------------------------------- */

static assay_status allocate(parity_global *g, assay_dtype dtype, const int64_t *shape, int ndim)
{
    int64_t bytes;
    memset(g, 0, sizeof *g);
    ASSAY_CHECK(assay_shape_count(shape, ndim, &g->count) &&
                    assay_mul_i64(g->count, assay_dtype_bytes(dtype), &bytes) && assay_dtype_bytes(dtype) > 0,
                ASSAY_UNSUPPORTED, "a tensor of dtype %s", assay_dtype_name(dtype));
    g->dtype = dtype;
    g->ndim = ndim;
    memcpy(g->shape, shape, (size_t)ndim * sizeof *shape);
    g->data = malloc((size_t)bytes + 1);
    ASSAY_CHECK(g->data != NULL, ASSAY_OUT_OF_MEMORY, "%lld bytes", (long long)bytes);
    g->complete = true;
    return ASSAY_OK;
}

static void copy(const parity_global *from, int64_t at, parity_global *to, int64_t there, int64_t n)
{
    const size_t width = (size_t)assay_dtype_bytes(from->dtype);
    memcpy((char *)to->data + (size_t)there * width, (const char *)from->data + (size_t)at * width,
           (size_t)n * width);
}

/* How the common shape lies: outer x cut x inner, of which theirs may hold pieces of the middle. */
typedef struct pairing {
    int64_t outer, ours, theirs, inner;
    int64_t shape[ASSAY_MAX_DIMS];
    int ndim;
} pairing;

static assay_status pair_shapes(const assay_name_row *row, const parity_global *ours, pairing *p)
{
    *p = (pairing){.outer = 1, .ours = ours->count, .theirs = ours->count, .inner = 1, .ndim = ours->ndim};
    memcpy(p->shape, ours->shape, sizeof p->shape);
    if (row->n_pieces > 0 && ours->ndim > 0) {
        const bool rows = row->parameter;
        const int64_t length = rows && ours->ndim > 1 ? ours->shape[ours->ndim - 1] : 1;
        const int64_t cut = rows ? ours->count / (length > 0 ? length : 1) : ours->shape[ours->ndim - 1];
        ASSAY_CHECK(cut == row->extent, ASSAY_MISMATCH, "expected %lld %s, found %lld",
                    (long long)row->extent, rows ? "rows" : "features", (long long)cut);
        p->inner = length;
        p->ours = row->extent;
        p->theirs = row->their_extent;
        p->outer = rows ? 1 : ours->count / (cut > 0 ? cut : 1);
        if (rows) {
            p->ndim = ours->ndim > 1 ? 2 : 1;
            p->shape[0] = row->their_extent;
            p->shape[1] = length;
        } else {
            p->shape[p->ndim - 1] = row->their_extent;
        }
    }
    return ASSAY_OK;
}

/* Theirs in our order: [b,s,...] or [b,heads,s,d] as [s,b,...]. */
static assay_status reorder(const assay_name_row *row, const parity_global *theirs, const parity_global *ours,
                            const pairing *p, parity_global *out)
{
    const int64_t wanted = p->outer * p->theirs * p->inner;
    ASSAY_CHECK(theirs->count == wanted, ASSAY_MISMATCH, "expected %lld elements, found %lld",
                (long long)wanted, (long long)theirs->count);
    ASSAY_TRY(allocate(out, theirs->dtype, p->shape, p->ndim));
    if (row->axes == ASSAY_AXES_SAME || row->parameter) {
        copy(theirs, 0, out, 0, theirs->count);
        return ASSAY_OK;
    }
    ASSAY_CHECK(ours->ndim >= 2, ASSAY_MISMATCH, "expected [s,b,...] of ours, found %d dimensions",
                ours->ndim);
    const int64_t s = ours->shape[0], b = ours->shape[1];
    const int64_t rest = s * b > 0 ? theirs->count / (s * b) : 0;
    const bool heads_first = row->axes == ASSAY_AXES_HEADS_FIRST;
    ASSAY_CHECK(theirs->ndim < 2 || theirs->shape[0] == b || theirs->shape[0] == b * s, ASSAY_MISMATCH,
                "expected %lld rows first (or %lld tokens), found %lld", (long long)b, (long long)(b * s),
                (long long)theirs->shape[0]);
    ASSAY_CHECK(!heads_first || (theirs->ndim == 4 && theirs->shape[2] == s && theirs->shape[0] == b),
                ASSAY_MISMATCH, "expected [%lld,heads,%lld,d]", (long long)b, (long long)s);
    const int64_t n = heads_first ? theirs->shape[1] : 1, d = n > 0 ? rest / n : 0;
    for (int64_t i = 0; i < b; i++)
        for (int64_t k = 0; k < n; k++)
            for (int64_t j = 0; j < s; j++)
                copy(theirs, ((i * n + k) * s + j) * d, out, ((j * b + i) * n + k) * d, d);
    return ASSAY_OK;
}

static assay_status cut(const assay_name_row *row, const parity_global *ours, const pairing *p,
                        parity_global *out)
{
    ASSAY_TRY(allocate(out, ours->dtype, p->shape, p->ndim));
    if (row->n_pieces == 0)
        copy(ours, 0, out, 0, ours->count);
    for (int64_t o = 0; o < p->outer; o++)
        for (int i = 0; i < row->n_pieces; i++) {
            const assay_hf_piece *x = &row->pieces[i];
            copy(ours, (o * p->ours + x->dst) * p->inner, out, (o * p->theirs + x->src) * p->inner,
                 x->rows * p->inner);
        }
    return ASSAY_OK;
}

/* Every row of the last dimension in ascending order. */
static void sort_rows(parity_global *g)
{
    const size_t width = (size_t)assay_dtype_bytes(g->dtype);
    const int64_t k = g->ndim > 0 && g->shape[g->ndim - 1] > 0 ? g->shape[g->ndim - 1] : 1;
    char kept[16];
    for (int64_t first = 0; first + k <= g->count && width <= sizeof kept; first += k)
        for (int64_t i = first + 1; i < first + k; i++) {
            const double x = parity_decode(g->data, i, g->dtype);
            int64_t at = i;
            memcpy(kept, (char *)g->data + (size_t)i * width, width);
            for (; at > first && parity_decode(g->data, at - 1, g->dtype) > x; at--)
                memcpy((char *)g->data + (size_t)at * width, (char *)g->data + (size_t)(at - 1) * width,
                       width);
            memcpy((char *)g->data + (size_t)at * width, kept, width);
        }
}

/* Tokens without a target have a loss of zero.  So have those of which a trained model is certain, where a loss is rounded: how
 * many targets there are is better known than counted. */
static assay_status mean_of(const parity_global *ours, int64_t targets, parity_global *out)
{
    static const int64_t one[1] = {1};
    double sum = 0.0, n = 0.0;
    ASSAY_TRY(allocate(out, ASSAY_F64, one, 1));
    for (int64_t i = 0; i < ours->count; i++) {
        const double x = parity_decode(ours->data, i, ours->dtype);
        sum += x;
        n += x != 0.0;
    }
    const double mean = sum / (targets > 0 ? (double)targets : n);
    memcpy(out->data, &mean, sizeof mean);
    return ASSAY_OK;
}

assay_status parity_align_ours(const assay_name_row *row, const parity_global *ours, int64_t targets,
                               parity_global *out)
{
    static const assay_name_row same = {.relation = ASSAY_RELATION_EQUAL};
    pairing p;
    row = row != NULL ? row : &same;
    memset(out, 0, sizeof *out);
    if (row->relation == ASSAY_RELATION_MEAN)
        return mean_of(ours, targets, out);
    ASSAY_TRY(pair_shapes(row, ours, &p));
    ASSAY_TRY(cut(row, ours, &p, out));
    if (row->relation == ASSAY_RELATION_ROWS)
        sort_rows(out);
    return ASSAY_OK;
}

assay_status parity_align(const assay_name_row *row, const parity_global *theirs, const parity_global *ours,
                          int64_t targets, parity_global *a, parity_global *b)
{
    pairing p;
    memset(a, 0, sizeof *a);
    ASSAY_TRY(parity_align_ours(row, ours, targets, b));
    if (row->relation == ASSAY_RELATION_MEAN) {
        ASSAY_CHECK(theirs->count == 1, ASSAY_MISMATCH, "expected one number, found %lld",
                    (long long)theirs->count);
        ASSAY_TRY(allocate(a, theirs->dtype, b->shape, 1));
        copy(theirs, 0, a, 0, 1);
        return ASSAY_OK;
    }
    ASSAY_TRY(pair_shapes(row, ours, &p));
    ASSAY_TRY(reorder(row, theirs, ours, &p, a));
    if (row->relation == ASSAY_RELATION_ROWS)
        sort_rows(a);
    return ASSAY_OK;
}

assay_status parity_align_into(const assay_name_row *row, const parity_global *theirs, parity_global *at,
                               unsigned char *held)
{
    static const assay_hf_piece none = {0};
    pairing p;
    parity_global a = {0};
    double *x = NULL, *to = at->data;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(row->relation == ASSAY_RELATION_EQUAL && at->dtype == ASSAY_F64, ASSAY_UNSUPPORTED,
                "%s: not the elements of ours", row->theirs);
    ASSAY_TRY(pair_shapes(row, at, &p));
    ASSAY_TRY_GOTO(reorder(row, theirs, at, &p, &a), st, done);
    ASSAY_TRY_GOTO(parity_decode_all(a.data, a.count, a.dtype, &x), st, done);
    for (int64_t o = 0; o < p.outer; o++)
        for (int i = 0; i < (row->n_pieces > 0 ? row->n_pieces : 1); i++) {
            const assay_hf_piece *piece = row->n_pieces > 0 ? &row->pieces[i] : &none;
            const int64_t n = (row->n_pieces > 0 ? piece->rows : p.ours) * p.inner;
            const int64_t first = (o * p.ours + piece->dst) * p.inner;
            memcpy(to + first, x + (o * p.theirs + piece->src) * p.inner, (size_t)n * sizeof *x);
            memset(held + first, 1, (size_t)n);
        }
done:
    free(x);
    parity_global_free(&a);
    return st;
}
