/* Choices of experts: whether a recorded one is one at all, and whether an honest implementation could have made it. */
#include "parity/judge/judge.h"

#include <math.h>
#include <string.h>

enum { STRIP = 40 }; /* experts whose choice is drawn */

static int64_t width_of(const ref_value *chosen)
{
    return chosen->ndim > 0 ? chosen->shape[chosen->ndim - 1] : 1;
}

static void put_list(parity_excerpt *e, int column, const int64_t *experts, int64_t n)
{
    char text[PARITY_EXCERPT_CELL + 32] = "";
    size_t used = 0;
    for (int64_t i = 0; i < n && used < PARITY_EXCERPT_CELL; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", i > 0 ? " " : "",
                                 (long long)experts[i]);
    parity_excerpt_cell(e, column, "%s", text);
}

static bool holds(const int64_t *experts, int64_t n, int64_t expert)
{
    for (int64_t i = 0; i < n; i++)
        if (experts[i] == expert)
            return true;
    return false;
}

/* One sign for each expert. */
static void put_strip(parity_excerpt *e, int column, const ref_decision *d, const int64_t *found, int64_t k,
                      int64_t experts)
{
    char text[3 * STRIP + 1] = "";
    for (int64_t i = 0; i < experts && experts <= STRIP; i++) {
        const bool wanted = holds(d->expected, d->n_expected, i), taken = holds(found, k, i);
        strcat(text, wanted ? (taken ? "\u25cf" : "\u25cb") : taken ? "\u2715" : "\u00b7");
    }
    parity_excerpt_cell(e, column, "%s", text);
}

static void put_decision(parity_excerpt *e, const ref_decision *d, const int64_t *found, int64_t k,
                         int64_t experts)
{
    const double margin = d->left_score - d->left_bound - (d->taken_score + d->taken_bound);
    if (!parity_excerpt_add(e, PARITY_ROW_WRONG))
        return;
    parity_excerpt_cell(e, 0, "%lld", (long long)d->row);
    put_list(e, 1, d->expected, d->n_expected);
    put_list(e, 2, found, k);
    put_strip(e, 3, d, found, k, experts);
    if (d->taken < 0) {
        parity_excerpt_cell(e, 5, "not %lld experts in ascending order", (long long)k);
        return;
    }
    parity_excerpt_cell(e, 4, "%.3g", margin);
    parity_excerpt_cell(e, 5, "%lld: %.6g \u00b1 %.1e, %lld: %.6g \u00b1 %.1e", (long long)d->left_out,
                        d->left_score, d->left_bound, (long long)d->taken, d->taken_score, d->taken_bound);
}

static assay_status draw(const ref_replay_result *result, const ref_value *chosen, parity_gallery *g,
                         parity_result *r)
{
    static const char *const heads[] = {
        "token", "expected", "found", "each expert", "margin", "scores: left out, taken", NULL};
    parity_excerpt *e = NULL;
    const int64_t k = width_of(chosen);
    ASSAY_TRY(parity_gallery_excerpt(g, &e, &r->excerpt));
    if (e == NULL)
        return ASSAY_OK;
    parity_excerpt_begin(
        e, heads,
        "Tokens that went to other experts: %d of %lld; \u25cf as expected, \u25cb left out, \u2715 "
        "taken instead; the margin is what lies beyond both bounds",
        result->n_shown, (long long)result->n_inadmissible);
    for (int i = 0; i < result->n_shown; i++)
        if ((result->shown[i].row + 1) * k <= chosen->count)
            put_decision(e, &result->shown[i], chosen->ivalue + result->shown[i].row * k, k,
                         result->n_experts);
    return ASSAY_OK;
}

assay_status parity_judge_choice(const ref_replay_result *result, const ref_value *chosen, parity_gallery *g,
                                 parity_result *r)
{
    r->count = result->n_decisions;
    r->n_bad = result->n_inadmissible;
    r->n_ambiguous = result->n_ambiguous;
    if (result->n_inadmissible == 0)
        return ASSAY_OK;
    const int64_t n_bad = result->n_inadmissible;
    r->index_ndim = 1;
    r->index[0] = result->first_inadmissible;
    parity_result_fail(r,
                       "%lld of %lld choices are not admissible, the first in row %lld; gap beyond the "
                       "bounds %.3g",
                       (long long)n_bad, (long long)result->n_decisions,
                       (long long)result->first_inadmissible, result->decision_gap);
    return g != NULL && chosen != NULL && chosen->ivalue != NULL ? draw(result, chosen, g, r) : ASSAY_OK;
}

/* The row that is none, between its neighbours. */
static assay_status draw_form(const ref_value *chosen, int64_t row, int64_t experts, parity_gallery *g,
                              parity_result *r)
{
    static const char *const heads[] = {"token", "expected", "found", NULL};
    const int64_t k = width_of(chosen), rows = chosen->count / (k > 0 ? k : 1);
    parity_excerpt *e = NULL;
    ASSAY_TRY(parity_gallery_excerpt(g, &e, &r->excerpt));
    if (e == NULL)
        return ASSAY_OK;
    parity_excerpt_begin(e, heads, "Which experts: token %lld and its neighbours", (long long)row);
    for (int64_t i = row > 2 ? row - 2 : 0; i < rows && i <= row + 2; i++) {
        if (!parity_excerpt_add(e, i == row ? PARITY_ROW_WRONG : PARITY_ROW_SAME))
            break;
        parity_excerpt_cell(e, 0, "%lld", (long long)i);
        parity_excerpt_cell(e, 1, "%lld ascending numbers below %lld", (long long)k, (long long)experts);
        put_list(e, 2, chosen->ivalue + i * k, k);
    }
    return ASSAY_OK;
}

assay_status parity_judge_choice_form(const ref_value *chosen, int64_t experts, parity_gallery *g,
                                      parity_result *r)
{
    const int64_t k = width_of(chosen);
    for (int64_t i = 0; i < chosen->count; i++) {
        const int64_t e = chosen->ivalue[i];
        const bool first = k <= 1 || i % k == 0;
        const bool good = e >= 0 && e < experts && (first || e > chosen->ivalue[i - 1]);
        if (good)
            continue;
        r->index_ndim = chosen->ndim;
        parity_unflatten(i, chosen->shape, chosen->ndim, r->index);
        r->found = (double)e;
        parity_result_fail(
            r, "row %lld chooses expert %lld in place %lld: expected ascending numbers below %lld",
            (long long)(k > 0 ? i / k : 0), (long long)e, (long long)(k > 0 ? i % k : 0), (long long)experts);
        return g != NULL ? draw_form(chosen, k > 0 ? i / k : 0, experts, g, r) : ASSAY_OK;
    }
    return ASSAY_OK;
}
