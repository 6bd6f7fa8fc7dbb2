/* Two checkpoints, of any layouts, hold the same state: every global tensor equal bit for bit. */
#include "parity/judge/judge.h"

#include "core/files/checkpoint.h"
#include <stdlib.h>
#include <string.h>

/* family and name of a tensor, and where both sides keep it. */
typedef struct state {
    const char *family, *name;
    assay_dtype dtype;
    assay_shard whole;
} state;

static state state_at(const assay_checkpoint *c, int64_t i)
{
    state s;
    memset(&s, 0, sizeof s);
    assay_checkpoint_at(c, i, &s.family, &s.name, &s.dtype, &s.whole);
    return s;
}

static bool find_state(const assay_checkpoint *c, const state *wanted, state *out)
{
    for (int64_t i = 0; i < assay_checkpoint_count(c); i++) {
        *out = state_at(c, i);
        if (strcmp(out->family, wanted->family) == 0 && strcmp(out->name, wanted->name) == 0)
            return true;
    }
    return false;
}

static void start(const state *s, const char *claim, parity_result *r)
{
    parity_result_init(r);
    r->check = PARITY_CHECK_CHECKPOINT;
    r->phase = ASSAY_PHASE_CHECKPOINT;
    r->verdict = PARITY_PASS;
    snprintf(r->op, sizeof r->op, "%s", claim);
    snprintf(r->instance, sizeof r->instance, "%s", s->family);
    snprintf(r->tensor, sizeof r->tensor, "%s", s->name);
}

/* Whole tensor into fresh memory; a tensor that cannot be assembled is a finding, not a reason to stop. */
static assay_status read_whole(const assay_checkpoint *c, const state *s, const char *which, void **out,
                               parity_result *r)
{
    *out = calloc(1, (size_t)assay_shard_count(&s->whole) * (size_t)assay_dtype_bytes(s->dtype) + 1);
    ASSAY_CHECK(*out, ASSAY_OUT_OF_MEMORY, "%s/%s", s->family, s->name);
    const assay_status st = assay_checkpoint_read(c, s->family, s->name, s->dtype, &s->whole, *out);
    if (st == ASSAY_MISMATCH || st == ASSAY_FORMAT || st == ASSAY_NOT_FOUND) {
        parity_result_fail(r, "%s checkpoint: %.400s", which, assay_error_message());
        return ASSAY_OK;
    }
    return st;
}

static assay_status compare_state(const assay_checkpoint *a, const state *x, const assay_checkpoint *b,
                                  const state *y, parity_gallery *g, parity_result *r)
{
    bool same = x->dtype == y->dtype && x->whole.ndim == y->whole.ndim;
    for (int d = 0; same && d < x->whole.ndim; d++)
        same = x->whole.global_shape[d] == y->whole.global_shape[d];
    if (!same) {
        parity_result_fail(r, "%s %s: another dtype or global shape", x->family, x->name);
        return ASSAY_OK;
    }
    void *p = NULL, *q = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(read_whole(a, x, "first", &p, r), st, done);
    ASSAY_TRY_GOTO(read_whole(b, y, "second", &q, r), st, done);
    if (r->verdict == PARITY_PASS)
        st = parity_compare_bits(q, p, x->whole.global_shape, x->whole.ndim, assay_shard_count(&x->whole),
                                 x->dtype, g, r);
done:
    free(q);
    free(p);
    return st;
}

static assay_status compare_checkpoints(const assay_checkpoint *a, const assay_checkpoint *b,
                                        const char *claim, parity_report *report)
{
    for (int64_t i = 0; i < assay_checkpoint_count(a); i++) {
        const state x = state_at(a, i);
        state y;
        parity_result r;
        parity_gallery g = {0};
        assay_status st = ASSAY_OK;
        start(&x, claim, &r);
        if (find_state(b, &x, &y))
            st = compare_state(a, &x, b, &y, &g, &r);
        else
            parity_result_fail(&r, "%s %s is missing from the second checkpoint", x.family, x.name);
        st = st == ASSAY_OK ? parity_report_add_from(report, &g, &r) : st;
        parity_gallery_free(&g);
        ASSAY_TRY(st);
    }
    for (int64_t i = 0; i < assay_checkpoint_count(b); i++) {
        const state y = state_at(b, i);
        state x;
        if (find_state(a, &y, &x))
            continue;
        parity_result r;
        start(&y, claim, &r);
        parity_result_fail(&r, "%s %s is missing from the first checkpoint", y.family, y.name);
        ASSAY_TRY(parity_report_add(report, &r));
    }
    return ASSAY_OK;
}

assay_status parity_check_checkpoints(const char *a, const char *b, const char *claim, parity_report *report)
{
    assay_status st = ASSAY_OK;
    assay_checkpoint *x = NULL, *y = NULL;
    ASSAY_TRY_GOTO(assay_checkpoint_open(&x, a), st, done);
    ASSAY_TRY_GOTO(assay_checkpoint_open(&y, b), st, done);
    if (assay_checkpoint_count(x) == 0 && assay_checkpoint_count(y) == 0) {
        const state nothing = {.family = "", .name = ""};
        parity_result r;
        start(&nothing, claim, &r);
        parity_result_fail(&r, "%.200s and %.200s hold no tensor", a, b);
        ASSAY_TRY_GOTO(parity_report_add(report, &r), st, done);
    }
    ASSAY_TRY_GOTO(compare_checkpoints(x, y, claim, report), st, done);
done:
    assay_checkpoint_close(y);
    assay_checkpoint_close(x);
    return st;
}
