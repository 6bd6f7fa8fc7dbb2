/* Thresholds from what rounding does; the two ways are in noise.h. */
#include "parity/checks/noise.h"

#include "parity/checks/whole.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Standard deviations that are allowed, as in the whole check. */
static const double deviations = 4.0;

static double unit_of(const parity_noise *n)
{
    return ldexp(1.0, -assay_dtype_precision(n->unit));
}

static int64_t slices_of(const parity_noise_subject *s)
{
    return s->ndim >= 2 && s->shape[0] > 0 ? s->shape[0] : 1;
}

/* --- from the dtype ----------------------------------------------------------------------------------------- */

/* Allowed distance of n elements of a tensor whose elements have the root of the mean square `rms`. */
static double from_dtype(const parity_noise *n, const parity_noise_subject *s, double rms, int64_t elements)
{
    const double walk = n->unit == ASSAY_BF16 ? 1.0 : fmax(1.0, sqrt(n->longest / 3.0));
    return deviations * unit_of(n) * walk * sqrt((double)(s->position + 1)) * rms * sqrt((double)elements) *
           sqrt(2.0);
}

/* --- from runs ---------------------------------------------------------------------------------------------- */

typedef struct spread {
    int runs;
    double *truth, *perturbed[PARITY_REFERENCE_RUNS];
} spread;

static void spread_free(spread *p)
{
    free(p->truth);
    for (int i = 0; i < PARITY_REFERENCE_RUNS; i++)
        free(p->perturbed[i]);
}

static assay_status values_in(const parity_index *x, const parity_noise_subject *s, int64_t step,
                              double **out)
{
    parity_global g = {0}, common = {0};
    parity_result finding;
    assay_status st = ASSAY_OK;
    const parity_entry *e = parity_index_find(x, s->name, s->phase, step, s->microbatch);
    ASSAY_CHECK(e != NULL, ASSAY_NOT_FOUND, "%s: not in a trace of the reference", s->name);
    parity_result_init(&finding);
    ASSAY_TRY_GOTO(parity_entry_assemble(x, e, &g, &finding), st, done);
    ASSAY_CHECK_GOTO(g.complete, ASSAY_INTERNAL, st, done, "%s: %.300s", s->name, finding.message);
    ASSAY_TRY_GOTO(parity_align_ours(s->row, &g, s->targets, &common), st, done);
    ASSAY_CHECK_GOTO(common.count == s->count, ASSAY_MISMATCH, st, done,
                     "%s: expected %lld elements, found %lld", s->name, (long long)common.count,
                     (long long)s->count);
    st = parity_decode_all(common.data, common.count, common.dtype, out);
done:
    parity_global_free(&common);
    parity_global_free(&g);
    return st;
}

static assay_status read_spread(const parity_noise *n, const parity_noise_subject *s, spread *p)
{
    const int64_t step = s->step - n->runs->step;
    memset(p, 0, sizeof *p);
    p->runs = n->runs->n;
    ASSAY_TRY(values_in(n->runs->truth_index, s, step, &p->truth));
    for (int i = 0; i < p->runs; i++)
        ASSAY_TRY(values_in(n->runs->index[i], s, step, &p->perturbed[i]));
    return ASSAY_OK;
}

static double from_runs(const parity_noise *n, const spread *p, int64_t first, int64_t elements, double norm)
{
    double gram[PARITY_WHOLE_RUNS][PARITY_WHOLE_RUNS] = {{0.0}}, energy = 0.0;
    for (int64_t i = first; i < first + elements; i++) {
        double d[PARITY_REFERENCE_RUNS];
        for (int k = 0; k < p->runs; k++) {
            d[k] = p->perturbed[k][i] - p->truth[i];
            for (int l = 0; l <= k; l++)
                gram[l][k] = gram[k][l] += d[k] * d[l];
        }
    }
    for (int k = 0; k < p->runs; k++)
        energy += gram[k][k];
    const double kappa = parity_whole_kappa(p->runs * parity_whole_freedom(gram, p->runs, elements));
    return kappa * sqrt(energy / p->runs) * (n->against_truth ? 1.0 : sqrt(2.0)) + unit_of(n) * norm;
}

/* --- the verdict -------------------------------------------------------------------------------------------- */

static void judge_slices(const parity_noise *n, const parity_noise_subject *s, const spread *p, double rms,
                         int64_t slices, double *allowance, parity_worst *w)
{
    const int64_t elements = s->count / slices;
    for (int64_t k = 0; k < slices && elements > 0; k++) {
        const int64_t first = k * elements;
        double error = 0.0, norm = 0.0;
        for (int64_t i = first; i < first + elements; i++) {
            const double d = s->second[i] == s->first[i] ? 0.0 : s->second[i] - s->first[i];
            error += d * d;
            norm += s->first[i] * s->first[i];
        }
        error = sqrt(error);
        const double allowed = n->runs != NULL
                                   ? from_runs(n, p, first, elements, sqrt(norm))
                                   : from_dtype(n, s, fmax(rms, sqrt(norm / (double)elements)), elements);
        parity_worst_add(w, k, error, 0.0, allowed, error == 0.0 ? 0.0 : error / allowed,
                         error == 0.0 || (isfinite(allowed) && error <= allowed));
        for (int64_t i = first; i < first + elements; i++)
            allowance[i] = fmin(allowance[i], allowed / (slices > 1 ? sqrt((double)elements) : 1.0));
    }
}

assay_status parity_noise_judge(const parity_noise *n, const parity_noise_subject *s, double *allowance,
                                parity_result *r)
{
    spread p = {0};
    parity_worst all, parts;
    double energy = 0.0;
    const int64_t slices = slices_of(s);
    assay_status st = ASSAY_OK;
    if (n->runs != NULL)
        ASSAY_TRY_GOTO(read_spread(n, s, &p), st, done);
    parity_worst_init(&all);
    parity_worst_init(&parts);
    for (int64_t i = 0; i < s->count; i++) {
        energy += s->first[i] * s->first[i];
        allowance[i] = (double)INFINITY;
    }
    const double rms = s->count > 0 ? sqrt(energy / (double)s->count) : 0.0;
    judge_slices(n, s, &p, rms, 1, allowance, &all);
    if (slices > 1)
        judge_slices(n, s, &p, rms, slices, allowance, &parts);
    const bool slice = parts.n_bad > 0;
    const parity_worst *w = slice || all.n_bad == 0 ? (slices > 1 ? &parts : &all) : &all;
    r->verdict = all.n_bad + parts.n_bad > 0 ? PARITY_FAIL : PARITY_PASS;
    r->count = s->count;
    r->n_bad = w->n_bad;
    r->ratio = fmax(all.ratio, parts.ratio);
    r->found = w->found;
    r->expected = 0.0;
    r->is_distance = true;
    r->allowance = w->allowance;
    r->index_ndim = slice ? 1 : 0;
    r->index[0] = w->flat > 0 ? w->flat : 0;
    if (r->verdict == PARITY_FAIL && slice)
        snprintf(
            r->message, sizeof r->message,
            "%lld of %lld slices lie further apart than rounding can put them; worst slice %lld: distance "
            "%.3g, rounding explains %.3g (%.3g times)",
            (long long)w->n_bad, (long long)slices, (long long)w->flat, w->found, w->allowance, w->ratio);
    else if (r->verdict == PARITY_FAIL)
        snprintf(r->message, sizeof r->message, "distance %.3g, rounding explains %.3g (%.3g times)",
                 w->found, w->allowance, w->ratio);
done:
    spread_free(&p);
    return st;
}
