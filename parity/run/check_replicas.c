/* Ranks that hold the same piece of a parameter: AdamW is called alike there and leaves the same. */
#include "parity/run/check.h"

#include <math.h>
#include <string.h>

enum { KEY = 512 };

typedef struct replicas {
    check_state *c;
    parity_map *first, /* piece of a parameter in a step -> rank << 40 | operation: who had it first */
        *counts;       /* of this rank: parameter and step -> how many operations there were */
    int rank;
    bool reduced; /* it has gradients behind a reduction over ranks: its copies are no runs of their own */
} replicas;

static double number(const assay_trace_op *op, const char *key)
{
    const json_t *x = json_object_get(op->attrs, key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

/* The parameter, the step, which of its operations there, and the place in the whole. */
static assay_status key_of(replicas *r, const assay_trace_op *op, const assay_shard *s, char key[KEY])
{
    int n = snprintf(key, KEY, "%s|%lld", op->instance, (long long)op->step);
    const int64_t before = parity_map_get(r->counts, key);
    ASSAY_TRY(parity_map_put(r->counts, key, before < 0 ? 1 : before + 1));
    n += snprintf(key + n, KEY - (size_t)n, "|%lld", (long long)(before < 0 ? 0 : before));
    for (int d = 0; d < s->ndim; d++)
        for (int k = 0; k < s->n_segments[d] && n < KEY; k++)
            n += snprintf(key + n, KEY - (size_t)n, "%c%lld+%lld", k == 0 ? '|' : ',',
                          (long long)s->segments[d][k].start, (long long)s->segments[d][k].length);
    ASSAY_CHECK(n < KEY, ASSAY_INVALID_ARGUMENT, "%s: expected a place of less than %d letters", op->instance,
                KEY);
    return ASSAY_OK;
}

static void finding(replicas *r, int other, const assay_trace_op *op, const char *text)
{
    char said[PARITY_TEXT];
    snprintf(said, sizeof said,
             "AdamW of %.200s in step %lld %.200s: both ranks hold this piece of the parameter, and train it "
             "apart",
             op->instance, (long long)op->step, text);
    if (r->reduced)
        check_fail(r->c, CHECK_CONTINUITY, "%s", said);
    else if (r->c->unchecked[CHECK_CONTINUITY][0] == '\0')
        snprintf(r->c->unchecked[CHECK_CONTINUITY], PARITY_TEXT,
                 "%.700s; no reduction over ranks %d and %d was recorded, they may be runs of their own",
                 said, other, r->rank);
}

static void compare(replicas *r, int other, const assay_trace_op *a, const assay_trace_op *b)
{
    static const char *const attributes[] = {"lr", "weight_decay", "beta1", "beta2", "eps", "step"};
    char text[256];
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        const double x = number(a, attributes[i]), y = number(b, attributes[i]);
        if (x == y || isnan(x) || isnan(y))
            continue;
        snprintf(text, sizeof text, "has %s %.9g on rank %d, %.9g on rank %d", attributes[i], y, r->rank, x,
                 other);
        finding(r, other, b, text);
        return;
    }
    const assay_trace_tensor *x = assay_trace_op_tensor(r->c->trace, a, "main_param"),
                             *y = assay_trace_op_tensor(r->c->trace, b, "main_param");
    if (x->dtype != y->dtype || !assay_trace_content_comparable(x, y) || assay_trace_same_content(x, y))
        return;
    snprintf(text, sizeof text, "leaves another main_param on rank %d than on rank %d", r->rank, other);
    finding(r, other, b, text);
}

static assay_status walk_rank(replicas *r)
{
    const assay_trace *t = r->c->trace;
    for (int64_t i = 0; i < assay_trace_n_ops(t, r->rank); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, r->rank, i);
        const assay_trace_tensor *p = strcmp(op->op, "adamw") == 0 && op->phase == ASSAY_PHASE_OPTIMIZER
                                          ? assay_trace_op_tensor(t, op, "main_param")
                                          : NULL;
        char key[KEY];
        if (p == NULL || p->kind != ASSAY_PIECE_SHARD)
            continue;
        ASSAY_TRY(key_of(r, op, &p->shard, key));
        const int64_t who = parity_map_get(r->first, key);
        if (who < 0)
            ASSAY_TRY(parity_map_put(r->first, key, (int64_t)r->rank << 40 | i));
        else
            compare(r, (int)(who >> 40),
                    assay_trace_op_at(t, (int)(who >> 40), who & (((int64_t)1 << 40) - 1)), op);
    }
    return ASSAY_OK;
}

static bool is_reduced(const assay_trace *t, int rank)
{
    for (int64_t i = 0; i < assay_trace_n_tensors(t, rank); i++)
        if (assay_trace_tensor_at(t, rank, i)->phase == ASSAY_PHASE_REDUCED_GRAD)
            return true;
    return false;
}

assay_status check_replicas(check_state *c)
{
    replicas r = {.c = c};
    assay_status st = ASSAY_OK;
    ASSAY_TRY(parity_map_create(&r.first));
    for (r.rank = 0; r.rank < assay_trace_world(c->trace) && st == ASSAY_OK; r.rank++) {
        r.reduced = is_reduced(c->trace, r.rank);
        st = parity_map_create(&r.counts);
        if (st == ASSAY_OK)
            st = walk_rank(&r);
        parity_map_destroy(r.counts);
        r.counts = NULL;
    }
    parity_map_destroy(r.first);
    return st;
}
