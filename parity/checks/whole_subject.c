/* Distances of a tensor and of each of its slices, and what rounding allows of them; the method is in whole.c. */
#include "parity/checks/whole_subject.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double value_of(const parity_whole_subject *s, double x)
{
    return s->squares ? sqrt(x) : x;
}

/* Of an element that lies `allowed` from `wanted` at most, as it is stored. */
static double as_stored(const parity_whole_subject *s, double wanted, double allowed)
{
    return s->squares ? allowed * (2.0 * sqrt(fabs(wanted)) + allowed) : allowed;
}

/* Elements [first, first+n): error, allowance, verdict. */
static void compare_slice(const parity_whole_subject *s, int64_t first, int64_t n, double cluster,
                          double *error, double *allowed)
{
    const int runs = s->runs;
    double e = 0.0, norm = 0.0, spread = 0.0, gram[PARITY_WHOLE_RUNS][PARITY_WHOLE_RUNS] = {{0.0}};
    for (int64_t i = first; i < first + n; i++) {
        const double truth = value_of(s, s->truth[i]);
        const double d = value_of(s, s->found[i]) - value_of(s, s->wanted[i]);
        double p[PARITY_WHOLE_RUNS];
        e += d * d;
        norm += truth * truth;
        for (int k = 0; k < runs; k++) {
            p[k] = value_of(s, s->perturbed[k][i]) - truth;
            for (int l = 0; l <= k; l++)
                gram[k][l] += p[k] * p[l];
        }
    }
    for (int k = 0; k < runs; k++) {
        spread += gram[k][k];
        for (int l = 0; l < k; l++)
            gram[l][k] = gram[k][l];
    }
    const int precision = assay_dtype_precision(s->stored);
    const double unit = ldexp(1.0, -(precision > 24 || precision == 0 ? 24 : precision) - s->squares);
    *error = sqrt(e);
    *allowed = parity_whole_kappa(runs * parity_whole_freedom(gram, runs, n)) * sqrt(spread / runs);
    if (s->jump > 0.0)
        *allowed = fmax(*allowed, s->jump * sqrt(parity_whole_jump_count((double)n, s->jump_rate, cluster)));
    *allowed = s->widen * (*allowed + unit * sqrt(norm));
    for (int64_t i = first; i < first + n && s->allowance; i++)
        s->allowance[i] = as_stored(s, s->wanted[i], *allowed / sqrt((double)n));
}

static void judge_slices(const parity_whole_subject *s, int64_t slices, parity_worst *w)
{
    const int64_t n = slices > 0 ? s->count / slices : 0;
    for (int64_t k = 0; k < slices && n > 0; k++) {
        double error, allowed;
        const double cluster = slices > 1 && s->clusters ? s->clusters[k] : s->cluster;
        compare_slice(s, k * n, n, cluster, &error, &allowed);
        /* an infinite one, of a perturbed run that overflowed, decides nothing */
        const bool pass = error == 0.0 || (isfinite(allowed) && error <= allowed);
        const double ratio = error == 0.0 ? 0.0 : error / allowed;
        parity_worst_add(w, k, error, 0.0, allowed, ratio, pass);
    }
}

/* Slices of a tensor: rows or experts of dimension 0, heads of a one-dimensional qkv bias; one for the rest.
 */
static int64_t slices_of(const parity_whole_subject *s, const char *name, const assay_model_config *m)
{
    if (s->ndim >= 2)
        return s->shape[0];
    if (strstr(name, "linear_qkv.bias") && m->kv_channels > 0 && s->count % m->kv_channels == 0)
        return s->count / m->kv_channels;
    return 1;
}

static void describe(const parity_worst *w, int64_t slices, const char *than, bool squares, parity_result *r)
{
    r->n_bad = w->n_bad;
    r->ratio = w->ratio;
    r->found = w->found;
    r->expected = 0.0;
    r->is_distance = true;
    r->allowance = w->allowance;
    r->verdict = w->n_bad == 0 ? PARITY_PASS : PARITY_FAIL;
    r->index_ndim = slices > 1 ? 1 : 0;
    r->index[0] = w->flat > 0 ? w->flat : 0;
    if (w->n_bad > 0)
        snprintf(r->message, sizeof r->message,
                 "%lld of %lld slices differ from %s by more than rounding can; worst slice "
                 "%lld: distance%s %.3g, expected at most %.3g",
                 (long long)w->n_bad, (long long)slices, than, (long long)w->flat,
                 squares ? " of square roots" : "", w->found, w->allowance);
}

assay_status parity_whole_judge(parity_whole_subject *s, const char *name, const assay_model_config *m,
                                const char *than, parity_gallery *gallery, const parity_scales *scales,
                                parity_result *r)
{
    parity_worst all, parts;
    parity_worst_init(&all);
    parity_worst_init(&parts);
    s->allowance = calloc((size_t)s->count + 1, sizeof *s->allowance);
    ASSAY_CHECK(s->allowance, ASSAY_OUT_OF_MEMORY, "%s", name);
    const int64_t slices = slices_of(s, name, m);
    judge_slices(s, 1, &all);
    judge_slices(s, slices, &parts);
    const bool worse = all.n_bad > 0 && parts.n_bad == 0;
    describe(worse ? &all : &parts, worse ? 1 : slices, than, s->squares, r);
    assay_status st = ASSAY_OK;
    if (!worse && slices > 1)
        ASSAY_TRY_GOTO(parity_worst_redraw(&parts, gallery, &slices, 1, r), st, done);
    if (!worse && slices > 1 && parts.picture)
        judge_slices(s, slices, &parts);
    r->ratio = all.ratio > r->ratio ? all.ratio : r->ratio;
    r->share = r->ratio;
    r->count = s->count;
    if (r->verdict == PARITY_FAIL)
        parity_diagnose(s->found, s->wanted, s->allowance, s->shape, s->ndim, s->stored, scales,
                        r->diagnosis);
done:
    free(s->allowance);
    s->allowance = NULL;
    return st;
}
