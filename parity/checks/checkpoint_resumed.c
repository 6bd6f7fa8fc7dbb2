/* The result file of a run that went on from a checkpoint: its series hold the steps that were left, alone, with the numbers of the
 * run without interruption.  A run that began afresh has the same tensors at its end, but more steps. */
#include "core/files/tensorfile.h"
#include "parity/judge/judge.h"

#include <string.h>

/* A number, or a row of numbers, of every step. */
static bool is_series(const char *name)
{
    return strchr(name, '.') == NULL && strcmp(name, "logits") != 0;
}

/* Gradients are those of a run's own first step: parity_check_resumed_gradients() compares them with that step's. */
static bool is_gradient(const char *name)
{
    return strncmp(name, "grad.", 5) == 0;
}

static void start(const char *name, parity_result *r)
{
    parity_result_init(r);
    r->check = PARITY_CHECK_BITWISE;
    r->verdict = PARITY_PASS;
    snprintf(r->op, sizeof r->op, "restart");
    snprintf(r->tensor, sizeof r->tensor, "%.*s", ASSAY_NAME - 1, name);
}

static assay_status compare(const assay_tensor_info *whole, const assay_tensor_info *rest, int64_t left,
                            parity_gallery *g, parity_result *r)
{
    const bool series = is_series(whole->name);
    bool same = whole->dtype == rest->dtype && whole->ndim == rest->ndim && whole->ndim <= ASSAY_MAX_DIMS &&
                (!series || (whole->ndim > 0 && whole->shape[0] >= left));
    for (int d = 0; same && d < whole->ndim; d++)
        same = rest->shape[d] == (series && d == 0 ? left : whole->shape[d]);
    if (!same) {
        parity_result_fail(
            r,
            "%.200s of the run that loads the half-way checkpoint: expected %s%lld elements, "
            "found %lld%s",
            whole->name, series ? "those of the steps that were left, " : "",
            (long long)(series && whole->shape[0] > 0 ? whole->count / whole->shape[0] * left : whole->count),
            (long long)rest->count,
            series ? ": a run that begins afresh has all steps" : ", or another dtype");
        return ASSAY_OK;
    }
    if (is_gradient(whole->name))
        return ASSAY_OK;
    return parity_compare_bits(rest->data, (const char *)whole->data + (whole->bytes - rest->bytes),
                               rest->shape, rest->ndim, rest->count, rest->dtype, g, r);
}

static assay_status add_compared(const assay_tensor_info *whole, const assay_tensorfile *rest, int64_t left,
                                 parity_report *report)
{
    parity_result r;
    parity_gallery g = {0};
    assay_status st = ASSAY_OK;
    const assay_tensor_info *its = assay_tensorfile_find(rest, whole->name);
    start(whole->name, &r);
    if (its != NULL)
        st = compare(whole, its, left, &g, &r);
    else
        parity_result_fail(&r, "%.200s is missing from the result file of the run that was resumed",
                           whole->name);
    if (st == ASSAY_OK && is_gradient(whole->name) && r.verdict == PARITY_PASS)
        return ASSAY_OK; /* dtype and shape alone are no claim */
    st = st == ASSAY_OK ? parity_report_add_from(report, &g, &r) : st;
    parity_gallery_free(&g);
    return st;
}

assay_status parity_check_resumed(const char *whole, const char *rest, int64_t left, parity_report *report)
{
    assay_status st = ASSAY_OK;
    assay_tensorfile *a = NULL, *b = NULL;
    ASSAY_TRY_GOTO(assay_tensorfile_open(&a, whole), st, done);
    if (assay_tensorfile_open(&b, rest) != ASSAY_OK) { /* it ended well */
        parity_result r;
        start("", &r);
        parity_result_fail(&r, "the run that was resumed left no result file: %.400s", assay_error_message());
        assay_error_clear();
        st = parity_report_add(report, &r);
        goto done;
    }
    for (int64_t i = 0; i < assay_tensorfile_count(a); i++)
        ASSAY_TRY_GOTO(add_compared(assay_tensorfile_at(a, i), b, left, report), st, done);
    for (int64_t i = 0; i < assay_tensorfile_count(b); i++) {
        const char *name = assay_tensorfile_at(b, i)->name;
        parity_result r;
        if (assay_tensorfile_find(a, name) != NULL)
            continue;
        start(name, &r);
        parity_result_fail(&r, "%.200s of the run that was resumed is missing from the first run's", name);
        ASSAY_TRY_GOTO(parity_report_add(report, &r), st, done);
    }
done:
    assay_tensorfile_close(b);
    assay_tensorfile_close(a);
    return st;
}
