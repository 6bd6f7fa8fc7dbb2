/* Equality of bits: repeat = first run, restart = no restart, one result file = another. */
#include "parity/judge/judge.h"

#include <stdlib.h>
#include <string.h>

static void start(parity_result *r, const char *claim)
{
    parity_result_init(r);
    r->check = PARITY_CHECK_BITWISE;
    snprintf(r->op, sizeof r->op, "%s", claim);
    r->verdict = PARITY_PASS;
}

static assay_status compare_records(const assay_trace_tensor *a, const assay_trace_tensor *b,
                                    const char *claim, parity_gallery *g, parity_result *r)
{
    const int64_t count = assay_shard_count(&b->shard);
    const bool same = a->dtype == b->dtype && parity_same_shard(&a->shard, &b->shard);
    if (same && assay_trace_same_content(a, b)) {
        r->count = count;
        return ASSAY_OK;
    }
    if (!same || !a->data || !b->data) {
        parity_result_fail(r, "%s: %s differs on rank %d: %s", claim, b->name, b->rank,
                           same ? "content hashes are not equal" : "another dtype, shape or piece of it");
        return ASSAY_OK;
    }
    return parity_compare_bits(b->data, a->data, b->shard.local_shape, b->shard.ndim, count, b->dtype, g, r);
}

static int64_t smallest_step(const parity_index *x)
{
    int64_t step = INT64_MAX;
    for (int64_t i = 0; i < x->n; i++)
        step = x->entries[i].step < step ? x->entries[i].step : step;
    return x->n ? step : 0;
}

static void fill_place(parity_result *r, const parity_entry *e)
{
    snprintf(r->tensor, sizeof r->tensor, "%s", e->name);
    r->phase = e->phase;
    r->step = e->step;
    r->microbatch = e->microbatch;
}

static int64_t pieces_of_rank(const parity_entry *e, int rank)
{
    int64_t n = 0;
    for (int64_t i = 0; i < e->n; i++)
        n += e->pieces[i].record->rank == rank;
    return n;
}

/* The piece of `e` on the same rank with the same segments; where both entries have one on that rank, that one, whose segments are then
 * compared; else NULL. */
static const assay_trace_tensor *piece_of(const parity_entry *e, const parity_entry *mine,
                                          const assay_trace_tensor *like)
{
    const assay_trace_tensor *only = NULL;
    for (int64_t i = 0; e && i < e->n; i++) {
        const assay_trace_tensor *r = e->pieces[i].record;
        if (r->rank != like->rank)
            continue;
        if (parity_same_shard(&r->shard, &like->shard))
            return r;
        only = r;
    }
    return only && pieces_of_rank(e, like->rank) == 1 && pieces_of_rank(mine, like->rank) == 1 ? only : NULL;
}

/* Every piece of `e` (of the one trace) must be in `other` (of the other), the later of the two runs second.
 */
static assay_status compare_entry(const parity_entry *e, const parity_entry *other, bool e_is_b,
                                  const char *claim, const parity_result *base, parity_table *table)
{
    for (int64_t i = 0; i < e->n; i++) {
        const assay_trace_tensor *mine = e->pieces[i].record, *theirs = piece_of(other, e, mine);
        parity_result r = *base;
        fill_place(&r, e);
        r.rank = mine->rank;
        if (!theirs)
            parity_result_fail(&r, "%s: %s of rank %d is in the %s run only", claim, e->name, mine->rank,
                               e_is_b ? "second" : "first");
        else if (!e_is_b)
            continue; /* compared from the other side */
        else
            ASSAY_TRY(compare_records(theirs, mine, claim, parity_table_gallery(table), &r));
        ASSAY_TRY(parity_table_merge(table, &r));
    }
    return ASSAY_OK;
}

/* Steps of a hostile trace may be as large as they like. */
static int64_t moved(int64_t step, int64_t offset)
{
    return (int64_t)((uint64_t)step + (uint64_t)offset);
}

static assay_status compare_indexes(const parity_index *a, const parity_index *b, int64_t first_step,
                                    const char *claim, const parity_result *base, parity_table *table)
{
    /* A restarted run counts its steps from the checkpoint's, or from 0 again. */
    const int64_t offset = first_step - smallest_step(b);
    for (int64_t i = 0; i < b->n; i++) {
        const parity_entry *e = &b->entries[i];
        ASSAY_TRY(
            compare_entry(e, parity_index_find(a, e->name, e->phase, moved(e->step, offset), e->microbatch),
                          true, claim, base, table));
    }
    for (int64_t i = 0; i < a->n; i++) {
        const parity_entry *e = &a->entries[i];
        if (e->step < first_step)
            continue;
        ASSAY_TRY(
            compare_entry(e, parity_index_find(b, e->name, e->phase, moved(e->step, -offset), e->microbatch),
                          false, claim, base, table));
    }
    return ASSAY_OK;
}

assay_status parity_check_bitwise_traces(const assay_trace *a, const assay_trace *b, const char *claim,
                                         int64_t first_step_of_b, parity_report *report)
{
    assay_status st = ASSAY_OK;
    parity_index *x = NULL, *y = NULL;
    parity_table *table = NULL;
    parity_result base;
    start(&base, claim);
    parity_result_from_trace(&base, b);
    if (assay_trace_world(a) != assay_trace_world(b)) {
        parity_result_fail(&base, "%s: %d ranks in the first run, %d in the second", claim,
                           assay_trace_world(a), assay_trace_world(b));
        return parity_report_add(report, &base);
    }
    ASSAY_TRY_GOTO(parity_index_create(&x, a), st, done);
    ASSAY_TRY_GOTO(parity_index_create(&y, b), st, done);
    ASSAY_TRY_GOTO(parity_table_create(&table, PARITY_CHECK_BITWISE), st, done);
    ASSAY_TRY_GOTO(compare_indexes(x, y, first_step_of_b, claim, &base, table), st, done);
    if (y->n == 0) {
        parity_result_fail(&base, "%s: the second run recorded nothing", claim);
        ASSAY_TRY_GOTO(parity_report_add(report, &base), st, done);
    }
    ASSAY_TRY_GOTO(parity_table_flush(table, report), st, done);
done:
    parity_table_destroy(table);
    parity_index_destroy(y);
    parity_index_destroy(x);
    return st;
}

static assay_status compare_info(const assay_tensor_info *a, const assay_tensor_info *b, parity_gallery *g,
                                 parity_result *r)
{
    bool same = a->dtype == b->dtype && a->ndim == b->ndim;
    for (int d = 0; same && d < a->ndim; d++)
        same = a->shape[d] == b->shape[d];
    if (!same) {
        parity_result_fail(r, "%s: another dtype or shape: %s of %lld elements and %s of %lld", b->name,
                           assay_dtype_name(a->dtype), (long long)a->count, assay_dtype_name(b->dtype),
                           (long long)b->count);
        return ASSAY_OK;
    }
    int64_t folded[1] = {a->count};
    const bool fits = a->ndim <= ASSAY_MAX_DIMS;
    return parity_compare_bits(b->data, a->data, fits ? a->shape : folded, fits ? a->ndim : 1, a->count,
                               a->dtype, g, r);
}

/* When a run makes a tensor of its result file, as far as two of them tell what differed first: a series (a number of every step) in the
 * first step, in its forward; the gradients of that step; all that is made of them. */
enum { IN_FORWARD, OF_GRADIENTS, BEHIND, STAGES };

static int stage_of(const assay_tensor_info *x, const assay_tensor_info *y)
{
    if (strncmp(x->name, "grad.", 5) == 0)
        return OF_GRADIENTS;
    if (strchr(x->name, '.') != NULL || strcmp(x->name, "grad_norm") == 0 ||
        strcmp(x->name, "num_zeros_in_grad") == 0)
        return BEHIND;
    if (y == NULL || x->ndim == 0 || x->shape[0] == 0 || x->bytes != y->bytes)
        return IN_FORWARD;
    return memcmp(x->data, y->data, x->bytes / (size_t)x->shape[0]) != 0 ? IN_FORWARD : BEHIND;
}

static assay_status compare_one(const assay_tensor_info *x, const assay_tensor_info *y, const char *claim,
                                parity_report *report)
{
    parity_result r;
    parity_gallery g = {0};
    assay_status st = ASSAY_OK;
    start(&r, claim);
    snprintf(r.tensor, sizeof r.tensor, "%.*s", ASSAY_NAME - 1, x->name);
    if (y)
        st = compare_info(x, y, &g, &r);
    else
        parity_result_fail(&r, "%.200s is missing from the second file", x->name);
    st = st == ASSAY_OK ? parity_report_add_from(report, &g, &r) : st;
    parity_gallery_free(&g);
    return st;
}

static assay_status compare_files(const assay_tensorfile *a, const assay_tensorfile *b, const char *claim,
                                  parity_report *report)
{
    for (int stage = 0; stage < STAGES; stage++)
        for (int64_t i = 0; i < assay_tensorfile_count(a); i++) {
            const assay_tensor_info *x = assay_tensorfile_at(a, i);
            const assay_tensor_info *y = assay_tensorfile_find(b, x->name);
            if (stage_of(x, y) == stage)
                ASSAY_TRY(compare_one(x, y, claim, report));
        }
    for (int64_t i = 0; i < assay_tensorfile_count(b); i++) {
        const assay_tensor_info *y = assay_tensorfile_at(b, i);
        if (assay_tensorfile_find(a, y->name))
            continue;
        parity_result r;
        start(&r, claim);
        snprintf(r.tensor, sizeof r.tensor, "%.*s", ASSAY_NAME - 1, y->name);
        parity_result_fail(&r, "%.200s is missing from the first file", y->name);
        ASSAY_TRY(parity_report_add(report, &r));
    }
    return ASSAY_OK;
}

assay_status parity_check_bitwise_files(const char *a, const char *b, const char *claim,
                                        parity_report *report)
{
    assay_status st = ASSAY_OK;
    assay_tensorfile *x = NULL, *y = NULL;
    ASSAY_TRY_GOTO(assay_tensorfile_open(&x, a), st, done);
    ASSAY_TRY_GOTO(assay_tensorfile_open(&y, b), st, done);
    ASSAY_TRY_GOTO(compare_files(x, y, claim, report), st, done);
done:
    assay_tensorfile_close(y);
    assay_tensorfile_close(x);
    return st;
}
