/* Tensors that mean something on their rank alone (kind "local": counts, parts of sums that no named group takes, operands of a
 * request).  Nobody assembles them; two runs of one engine, layout and precision hold the same on each rank. */
#include "parity/run/diff.h"

#include <stdlib.h>
#include <string.h>

/* A record as the comparison wants it: a copy. */
static assay_status copy_of(const assay_trace_tensor *t, parity_global *out)
{
    *out = (parity_global){.dtype = t->dtype, .ndim = t->shard.ndim, .complete = true};
    for (int k = 0; k < out->ndim; k++)
        out->shape[k] = t->shard.local_shape[k];
    out->count = assay_shard_count(&t->shard);
    out->data = malloc(t->bytes + 1);
    ASSAY_CHECK(out->data != NULL, ASSAY_OUT_OF_MEMORY, "%s: %zu bytes", t->name, t->bytes);
    if (t->bytes > 0)
        memcpy(out->data, t->data, t->bytes);
    return ASSAY_OK;
}

static assay_status compare_piece(const diff_compare *d, const diff_pair *p, int64_t i, parity_result *r,
                                  diff_statistics *statistics)
{
    const assay_trace_tensor *walked = p->e->pieces[i].record, *other = p->o->pieces[i].record;
    const assay_trace_tensor *first = p->walked_is_second ? other : walked,
                             *second = p->walked_is_second ? walked : other;
    parity_global a = {0}, b = {0};
    assay_status st = ASSAY_OK;
    if (first->rank != second->rank || first->kind != second->kind) {
        parity_result_fail(r,
                           "a %s tensor of rank %d in the first trace, a %s tensor of rank %d in the second",
                           assay_piece_kind_name(first->kind), first->rank,
                           assay_piece_kind_name(second->kind), second->rank);
        return ASSAY_OK;
    }
    /* under a tolerance, too: what nobody wrote yet is recorded, a pattern of NaNs */
    if (assay_trace_same_content(first, second)) {
        r->verdict = PARITY_PASS;
        *statistics = (diff_statistics){.cosine = 1.0};
        return ASSAY_OK;
    }
    ASSAY_TRY_GOTO(copy_of(first, &a), st, done);
    ASSAY_TRY_GOTO(copy_of(second, &b), st, done);
    st = diff_compare_globals(d, p, &a, &b, r, statistics, NULL);
done:
    parity_global_free(&b);
    parity_global_free(&a);
    return st;
}

assay_status diff_compare_local(const diff_compare *d, const diff_pair *p, parity_result *r,
                                diff_statistics *statistics, unsigned char **bad)
{
    /* the reference has no ranks: what the dtype explains */
    parity_noise plain = {0};
    diff_compare own = *d;
    if (d->noise != NULL) {
        plain = *d->noise;
        plain.runs = NULL;
        own.noise = &plain;
    }
    r->verdict = PARITY_PASS;
    if (p->e->n != p->o->n) {
        const int64_t n[2] = {p->e->n, p->o->n};
        parity_result_fail(r, "%lld pieces in the first trace, %lld in the second",
                           (long long)n[p->walked_is_second], (long long)n[!p->walked_is_second]);
        return ASSAY_OK;
    }
    unsigned char *fails = calloc((size_t)p->e->n + 1, 1);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(fails != NULL, ASSAY_OUT_OF_MEMORY, "%lld pieces", (long long)p->e->n);
    for (int64_t i = 0; i < p->e->n && st == ASSAY_OK; i++) {
        parity_result one;
        diff_statistics far = {0};
        parity_result_init(&one);
        st = compare_piece(&own, p, i, &one, &far);
        fails[i] = one.verdict == PARITY_FAIL;
        if (i == 0 || far.max > statistics->max)
            *statistics = far;
        if (one.verdict == PARITY_PASS || r->verdict == PARITY_FAIL ||
            (r->verdict == PARITY_SKIP && one.verdict == PARITY_SKIP))
            continue;
        *r = one;
        snprintf(r->message, sizeof r->message, "rank %d: %.*s", p->e->pieces[i].record->rank,
                 (int)sizeof r->message - 32, one.message);
    }
    *bad = fails;
    return st;
}
