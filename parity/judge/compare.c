/* Values of records: a slot as numbers, and one computed again against the one that was recorded. */
#include "parity/judge/judge.h"

#include "core/base/text.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

assay_status parity_value_of(const char *slot, const assay_trace_tensor *record, ref_value *out)
{
    memset(out, 0, sizeof *out);
    ASSAY_CHECK(!record->has_scale, ASSAY_UNSUPPORTED,
                "%s: scaled by record %lld; this judge reads unscaled values only", record->name,
                (long long)record->scale_id);
    assay_copy_text(out->slot, sizeof out->slot, slot);
    out->dtype = record->dtype;
    out->ndim = record->shard.ndim;
    for (int d = 0; d < out->ndim; d++)
        out->shape[d] = record->shard.local_shape[d];
    out->count = assay_shard_count(&record->shard);
    if (parity_is_integer(record->dtype))
        return parity_decode_integers(record->data, out->count, record->dtype, &out->ivalue);
    return parity_decode_all(record->data, out->count, record->dtype, &out->value);
}

void parity_value_free(ref_value *v)
{
    free(v->value);
    free(v->ivalue);
    free(v->bound);
    memset(v, 0, sizeof *v);
}

/* How far element i of a real output may be from the truth. */
static double allowance_of(const ref_value *truth, int64_t i, assay_dtype stored)
{
    const double bound = truth->bound ? truth->bound[i] : 0.0;
    return truth->kind == REF_VALUE_EXACT ? 0.0
                                          : bound + ref_ulp(fabs(truth->value[i]) + bound, stored) / 2.0;
}

void parity_value_as_asked(const char *instance, ref_value *truth)
{
    const bool random = strncmp(instance, "local.", 6) == 0;
    truth->signed_zeros = truth->kind == REF_VALUE_EXACT && (random || strncmp(instance, "exact.", 6) == 0);
    if (strncmp(instance, "local.nan.", 10) != 0 && strncmp(instance, "local.infinity.", 15) != 0)
        return;
    for (int64_t i = 0; truth->bound != NULL && truth->value != NULL && i < truth->count; i++)
        if (isfinite(truth->value[i]) && !isfinite(truth->bound[i]))
            truth->bound[i] = PARITY_ANY_NUMBER;
}

/* Of kind EXACT; what was found is stored: rounding leaves it as it is. */
static bool is_equal(const ref_value *truth, double found, double wanted)
{
    if (isnan(wanted))
        return isnan(found);
    return found == wanted &&
           (!truth->signed_zeros || found != 0.0 || (signbit(found) != 0) == (signbit(wanted) != 0));
}

bool parity_element_passes(const ref_value *truth, int64_t i, double found, assay_dtype stored, double *ratio)
{
    const double y = truth->value[i];
    if (truth->kind != REF_VALUE_EXACT)
        return ref_admissible(found, y, truth->bound != NULL ? truth->bound[i] : 0.0, stored, ratio);
    const bool same = is_equal(truth, found, ref_round(y, stored));
    *ratio = same ? 0.0 : (double)INFINITY;
    return same;
}

/* One element of a real output; its allowance is worked out where it is shown. */
static void compare_real(const ref_value *truth, double found, int64_t i, assay_dtype stored,
                         ref_format format, parity_worst *w)
{
    const double y = truth->value[i];
    double ratio = (double)INFINITY;
    if (truth->kind == REF_VALUE_EXACT) {
        const double wanted =
            found == y ? y : ref_round(y, stored); /* what was found is stored: round(y) is y */
        const bool same = is_equal(truth, found, wanted);
        parity_worst_add(w, i, found, wanted, 0.0, same ? 0.0 : ratio, same);
        return;
    }
    const double bound = truth->bound ? truth->bound[i] : 0.0;
    if (isfinite(y) && isfinite(found) && isfinite(bound) && bound >= 0.0 && format.precision > 0) {
        const double half = 0.5 * ref_format_ulp(format, fabs(y) + bound), err = fabs(found - y);
        const bool within = ref_within(err, bound, half, &ratio);
        parity_worst_add_share(w, i, found, y, 0.0, ratio, parity_share_of(err, bound, half, within), within);
        return;
    }
    const bool pass = parity_element_passes(truth, i, found, stored, &ratio);
    parity_worst_add_share(w, i, found, y, 0.0, ratio, parity_share(found, y, bound, stored, pass), pass);
}

static assay_status diagnose_reals(const ref_value *truth, const ref_value *candidate,
                                   const parity_scales *scales, parity_result *r)
{
    double *allowance = malloc(((size_t)truth->count + 1) * sizeof *allowance);
    ASSAY_CHECK(allowance, ASSAY_OUT_OF_MEMORY, "%lld allowances", (long long)truth->count);
    for (int64_t i = 0; i < truth->count; i++)
        allowance[i] = allowance_of(truth, i, candidate->dtype);
    parity_diagnose(candidate->value, truth->value, allowance, candidate->shape, candidate->ndim,
                    candidate->dtype, scales, r->diagnosis);
    free(allowance);
    return ASSAY_OK;
}

static void add_dominant(const ref_value *truth, parity_result *r)
{
    const size_t used = strlen(r->message);
    if (truth->dominant && truth->kind == REF_VALUE_REAL && used < sizeof r->message)
        snprintf(r->message + used, sizeof r->message - used, "; the bound is mostly %s", truth->dominant);
}

static assay_status compare_reals(const ref_value *truth, const ref_value *candidate,
                                  const parity_scales *scales, parity_gallery *g, parity_result *r)
{
    parity_worst w;
    const ref_format format = ref_format_of(candidate->dtype);
    parity_worst_init(&w);
    for (int64_t i = 0; i < truth->count; i++)
        compare_real(truth, candidate->value[i], i, candidate->dtype, format, &w);
    if (w.flat >= 0)
        w.allowance = allowance_of(truth, w.flat, candidate->dtype);
    parity_worst_to_result(&w, candidate->shape, candidate->ndim, r);
    if (r->verdict != PARITY_FAIL)
        return ASSAY_OK;
    add_dominant(truth, r);
    ASSAY_TRY(parity_worst_redraw(&w, g, candidate->shape, candidate->ndim, r));
    for (int64_t i = 0; i < truth->count && w.picture; i++)
        compare_real(truth, candidate->value[i], i, candidate->dtype, format, &w);
    return diagnose_reals(truth, candidate, scales, r);
}

static void compare_integers(const ref_value *truth, const ref_value *candidate, parity_worst *w)
{
    for (int64_t i = 0; i < truth->count; i++) {
        const bool same = truth->ivalue[i] == candidate->ivalue[i];
        parity_worst_add(w, i, (double)candidate->ivalue[i], (double)truth->ivalue[i], 0.0,
                         same ? 0.0 : (double)INFINITY, same);
    }
}

assay_status parity_compare_value(const ref_value *truth, const ref_value *candidate,
                                  const parity_scales *scales, parity_gallery *g, parity_result *r)
{
    const bool integer = truth->ivalue != NULL;
    if (truth->count != candidate->count || integer != (candidate->ivalue != NULL)) {
        parity_result_fail(r, "output %s: expected %lld %s, found %lld of dtype %s", candidate->slot,
                           (long long)truth->count, integer ? "integers" : "real values",
                           (long long)candidate->count, assay_dtype_name(candidate->dtype));
        return ASSAY_OK;
    }
    if (!integer)
        return compare_reals(truth, candidate, scales, g, r);
    parity_worst w;
    parity_worst_init(&w);
    compare_integers(truth, candidate, &w);
    parity_worst_to_result(&w, candidate->shape, candidate->ndim, r);
    parity_differences d = {.found = NULL};
    ASSAY_TRY(parity_worst_redraw_equal(&w, &d, g, candidate->shape, candidate->ndim, candidate->dtype, r));
    if (w.differences)
        compare_integers(truth, candidate, &w);
    return ASSAY_OK;
}

/* --- all slots of an operation ------------------------------------------------------------------------------ */

assay_status parity_read_slots(const assay_trace *t, const assay_trace_op *op, bool inputs, ref_value *values,
                               int *n, parity_result *problem)
{
    const int n_slots = inputs ? op->n_inputs : op->n_outputs;
    *n = 0;
    for (int i = 0; i < n_slots; i++) {
        const assay_trace_slot *s = inputs ? &op->inputs[i] : &op->outputs[i];
        const assay_trace_tensor *record = assay_trace_tensor_by_id(t, op->rank, s->tensor);
        if (!record) {
            parity_result_fail(problem, "slot %s names no record", s->slot);
            return ASSAY_OK;
        }
        const assay_status st = parity_value_of(s->slot, record, &values[*n]);
        if (st == ASSAY_UNSUPPORTED || st == ASSAY_NOT_FOUND) {
            parity_result_skip(problem, "slot %s: %.400s", s->slot, assay_error_message());
            return ASSAY_OK;
        }
        ASSAY_TRY(st);
        (*n)++;
    }
    return ASSAY_OK;
}

void parity_free_slots(ref_value *values, int n)
{
    for (int i = 0; i < n; i++)
        parity_value_free(&values[i]);
}

const ref_value *parity_find_value(const ref_value *values, int n, const char *slot)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(values[i].slot, slot) == 0)
            return &values[i];
    }
    return NULL;
}
