/* The trace against itself: what AdamW left in one recorded step is what the next one finds, and what its forward reads. */
#include "parity/run/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Two records that should hold the same; n_bad < 0: that cannot be said (hashes of two kinds, another piece). */
typedef struct difference {
    int64_t n_bad, count, at;
    double expected, found, ratio; /* ratio: of all elements that are not zero; NAN: they differ in it */
    bool zero;                     /* everything that was found */
} difference;

/* As the coarser of two formats has both, a master in F32 and its weight in BF16; either neighbour is a rounding. */
static bool equal_as_stored(double x, assay_dtype a, double y, assay_dtype b)
{
    const assay_dtype coarse = assay_dtype_precision(b) < assay_dtype_precision(a) ? b : a;
    if (x == y || ref_round(x, coarse) == ref_round(y, coarse))
        return true;
    return a != b && isfinite(x) && isfinite(y) &&
           fabs(x - y) <= ldexp(fabs(x), 1 - assay_dtype_precision(coarse));
}

static void count_differences(const double *x, assay_dtype from, const double *y, assay_dtype to,
                              int64_t count, difference *d)
{
    double worst = -1.0;
    bool one_ratio = true;
    d->zero = true;
    d->ratio = (double)NAN;
    for (int64_t i = 0; i < count; i++) {
        d->zero = d->zero && y[i] == 0.0;
        if (fabs(x[i]) > 0.0 && isnan(d->ratio))
            d->ratio = y[i] / x[i];
        one_ratio = one_ratio && (x[i] == 0.0 || fabs(y[i] / x[i] - d->ratio) <= 1e-6 * fabs(d->ratio));
        if (equal_as_stored(x[i], from, y[i], to))
            continue;
        d->n_bad++;
        if (fabs(y[i] - x[i]) > worst) {
            worst = fabs(y[i] - x[i]);
            d->at = i;
            d->expected = x[i];
            d->found = y[i];
        }
    }
    if (!one_ratio)
        d->ratio = (double)NAN;
}

static assay_status compare(const assay_trace_tensor *expected, const assay_trace_tensor *found,
                            difference *d)
{
    double *x = NULL, *y = NULL;
    assay_status st = ASSAY_OK;
    *d = (difference){.n_bad = -1};
    if (expected == NULL || found == NULL || !parity_same_shard(&expected->shard, &found->shard))
        return ASSAY_OK;
    const bool comparable = assay_trace_content_comparable(expected, found);
    d->count = assay_shard_count(&expected->shard);
    if (expected->dtype == found->dtype && comparable && assay_trace_same_content(expected, found)) {
        d->n_bad = 0;
        return ASSAY_OK;
    }
    if (expected->data == NULL || found->data == NULL || !parity_can_decode(expected->dtype) ||
        !parity_can_decode(found->dtype)) {
        d->n_bad = expected->dtype == found->dtype && comparable ? d->count : -1;
        return ASSAY_OK;
    }
    ASSAY_TRY_GOTO(parity_decode_all(expected->data, d->count, expected->dtype, &x), st, done);
    ASSAY_TRY_GOTO(parity_decode_all(found->data, d->count, found->dtype, &y), st, done);
    d->n_bad = 0;
    count_differences(x, expected->dtype, y, found->dtype, d->count, d);
done:
    free(y);
    free(x);
    return st;
}

static void describe(const difference *d, char *text, size_t capacity)
{
    int n =
        snprintf(text, capacity, "%lld of %lld elements differ", (long long)d->n_bad, (long long)d->count);
    if (d->expected == d->found || n < 0)
        return;
    n += snprintf(text + n, capacity - (size_t)n, ", the most element %lld: expected %.9g, found %.9g",
                  (long long)d->at, d->expected, d->found);
    if (d->zero)
        snprintf(text + n, capacity - (size_t)n, " (all that was found is zero)");
    else if (!isnan(d->ratio))
        snprintf(text + n, capacity - (size_t)n, " (every element is %.9g times the expected one)", d->ratio);
}

/* --- one rank ----------------------------------------------------------------------------------------------- */

typedef struct walk {
    check_state *c;
    int rank;
    parity_map *steps,
        *weights;   /* parameter -> number of its last adamw, of the last record that a forward read */
    int64_t tensor; /* records before this one are in `weights` */
    int64_t gaps;   /* pairs of recorded steps with others between them */
} walk;

static double number(const assay_trace_op *op, const char *key)
{
    const json_t *x = json_object_get(op->attrs, key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

/* The record of the parameter that the forward of the same step read last before the optimizer came. */
static assay_status weight_before(walk *w, const assay_trace_op *op, const assay_trace_tensor **out)
{
    const assay_trace *t = w->c->trace;
    *out = NULL;
    int64_t end = INT64_MAX;
    for (int i = 0; i < op->n_inputs; i++)
        end = op->inputs[i].tensor < end ? op->inputs[i].tensor : end;
    for (; w->tensor < assay_trace_n_tensors(t, w->rank); w->tensor++) {
        const assay_trace_tensor *x = assay_trace_tensor_at(t, w->rank, w->tensor);
        if (x->id >= end)
            break;
        if (x->phase == ASSAY_PHASE_FORWARD && x->microbatch < 0)
            ASSAY_TRY(parity_map_put(w->weights, x->name, w->tensor));
    }
    const int64_t k = parity_map_get(w->weights, op->instance);
    if (k >= 0 && assay_trace_tensor_at(t, w->rank, k)->step == op->step)
        *out = assay_trace_tensor_at(t, w->rank, k);
    return ASSAY_OK;
}

/* expected: what left it; found: what the later one has. */
static assay_status judge(walk *w, const assay_trace_tensor *expected, const assay_trace_tensor *found,
                          const char *what, const char *is, bool *same)
{
    difference d;
    char text[320];
    ASSAY_TRY(compare(expected, found, &d));
    *same = d.n_bad <= 0;
    w->c->passed[CHECK_CONTINUITY] += d.n_bad == 0;
    if (d.n_bad <= 0)
        return ASSAY_OK;
    describe(&d, text, sizeof text);
    check_fail(w->c, CHECK_CONTINUITY, "%.300s is not %.300s (rank %d): %s", what, is, w->rank, text);
    return ASSAY_OK;
}

/* The number of the optimizer's step: *next says that `op` is the one behind `before`. */
static void judge_number(walk *w, const assay_trace_op *before, const assay_trace_op *op, bool *next)
{
    const double a = number(before, "step"), b = number(op, "step");
    *next = b == a + 1.0;
    if (*next) {
        w->c->passed[CHECK_CONTINUITY]++;
    } else if (b <= a) {
        difference d = {0};
        const assay_trace_tensor *m = assay_trace_op_tensor(w->c->trace, op, "exp_avg_in");
        if (compare(assay_trace_op_tensor(w->c->trace, before, "exp_avg"), m, &d) != ASSAY_OK)
            assay_error_clear();
        check_fail(
            w->c, CHECK_CONTINUITY,
            "AdamW of %s counts its step %.17g in step %lld of the trace (rank %d), expected %.17g, one more "
            "than in step %lld: its state was lost%s",
            op->instance, b, (long long)op->step, w->rank, a + 1.0, (long long)before->step,
            d.n_bad > 0 && d.zero ? " (exp_avg_in is zero again)" : "");
    } else if (b > a + 1.0) {
        w->gaps++;
    }
}

static assay_status judge_moments(walk *w, const assay_trace_op *before, const assay_trace_op *op)
{
    static const char *const words[][2] = {{"exp_avg_in", "exp_avg"}, {"exp_avg_sq_in", "exp_avg_sq"}};
    for (int i = 0; i < 2; i++) {
        char what[320], is[320];
        bool same;
        snprintf(what, sizeof what, "%s of %.200s in step %lld", words[i][0], op->instance,
                 (long long)op->step);
        snprintf(is, sizeof is, "the %s that step %lld left", words[i][1], (long long)before->step);
        ASSAY_TRY(judge(w, assay_trace_op_tensor(w->c->trace, before, words[i][1]),
                        assay_trace_op_tensor(w->c->trace, op, words[i][0]), what, is, &same));
    }
    return ASSAY_OK;
}

static assay_status judge_op(walk *w, const assay_trace_op *op, const assay_trace_op *before)
{
    const assay_trace *t = w->c->trace;
    const assay_trace_tensor *weight, *in = assay_trace_op_tensor(t, op, "main_param_in");
    bool next = false, same = true;
    char what[320], is[320];
    ASSAY_TRY(weight_before(w, op, &weight));
    if (before != NULL)
        judge_number(w, before, op, &next);
    if (next) {
        const assay_trace_tensor *left = assay_trace_op_tensor(t, before, "main_param");
        /* a second step of the optimizer in one step of the trace has no forward between */
        const bool forward = weight != NULL && op->step != before->step;
        snprintf(what, sizeof what, "%s %.200s in step %lld", forward ? "the weight" : "main_param_in of",
                 op->instance, (long long)op->step);
        snprintf(is, sizeof is, "what AdamW left in step %lld", (long long)before->step);
        ASSAY_TRY(judge(w, left, forward ? weight : in, what, is, &same));
        ASSAY_TRY(judge_moments(w, before, op));
        if (!forward)
            return ASSAY_OK;
    }
    if (weight == NULL || (before != NULL && before->step == op->step))
        return ASSAY_OK;
    const double decay = number(op, "lr") * number(op, "weight_decay");
    snprintf(what, sizeof what, "main_param_in of AdamW of %.200s in step %lld", op->instance,
             (long long)op->step);
    snprintf(is, sizeof is, "the weight that the forward of the same step read (lr x weight_decay is %.6g)",
             decay);
    return judge(w, weight, in, what, is, &same);
}

static assay_status walk_rank(walk *w)
{
    const assay_trace *t = w->c->trace;
    for (int64_t i = 0; i < assay_trace_n_ops(t, w->rank); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, w->rank, i);
        if (strcmp(op->op, "adamw") != 0 || op->phase != ASSAY_PHASE_OPTIMIZER)
            continue;
        const int64_t k = parity_map_get(w->steps, op->instance);
        const assay_trace_op *before = k >= 0 ? assay_trace_op_at(t, w->rank, k) : NULL;
        ASSAY_TRY(judge_op(w, op, before));
        ASSAY_TRY(parity_map_put(w->steps, op->instance, i));
    }
    return ASSAY_OK;
}

assay_status check_continuity(check_state *c)
{
    assay_status st = ASSAY_OK;
    int64_t gaps = 0;
    for (int rank = 0; rank < assay_trace_world(c->trace) && st == ASSAY_OK; rank++) {
        walk w = {.c = c, .rank = rank};
        st = parity_map_create(&w.steps);
        if (st == ASSAY_OK)
            st = parity_map_create(&w.weights);
        if (st == ASSAY_OK)
            st = walk_rank(&w);
        gaps += w.gaps;
        parity_map_destroy(w.weights);
        parity_map_destroy(w.steps);
    }
    if (gaps > 0)
        check_note(
            c,
            "AdamW made steps between recorded ones (%lld times a parameter's step number grows by more than "
            "1): what happened there was not compared",
            (long long)gaps);
    return st;
}
