/* The numbers of a result file are what the trace of its run says. */
#include "parity/checks/saved.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double as_stored(double x, assay_dtype dtype)
{
    return dtype == ASSAY_F32 ? (double)(float)x : x;
}

static void compare_elements(const assay_tensor_info *t, const double *wanted, parity_worst *w)
{
    for (int64_t i = 0; i < t->count; i++) {
        const double found = t->dtype == ASSAY_I64 ? (double)parity_decode_integer(t->data, i, t->dtype)
                                                   : parity_decode(t->data, i, t->dtype),
                     expected = as_stored(wanted[i], t->dtype);
        const bool pass = found == expected;
        parity_worst_add(w, i, found, expected, 0.0, pass ? 0.0 : (double)INFINITY, pass);
    }
}

/* A tensor of the file against doubles of its shape, bit for bit once they are rounded to its dtype (counts: I64). */
static assay_status compare_stored(const assay_tensorfile *f, const char *name, const double *wanted,
                                   const int64_t *shape, int ndim, assay_dtype dtype, parity_gallery *g,
                                   parity_result *r)
{
    const assay_tensor_info *t = assay_tensorfile_find(f, name);
    bool same = t != NULL && t->dtype == dtype && t->ndim == ndim;
    for (int d = 0; same && d < ndim; d++)
        same = t->shape[d] == shape[d];
    if (!same) {
        parity_result_fail(r, "the file: expected %.200s as %s in its shape, found %s", name,
                           assay_dtype_name(dtype), t ? "another dtype or shape" : "none");
        return ASSAY_OK;
    }
    parity_worst w;
    parity_differences d = {.found = NULL};
    parity_worst_init(&w);
    compare_elements(t, wanted, &w);
    parity_worst_to_result(&w, shape, ndim, r);
    ASSAY_TRY(parity_worst_redraw_equal(&w, &d, g, shape, ndim, dtype, r));
    if (w.differences)
        compare_elements(t, wanted, &w);
    return ASSAY_OK;
}

/* The same where nothing has failed before, and the result added to the report. */
static assay_status report_stored(const saved *s, const assay_tensorfile *f, const char *name,
                                  const double *wanted, const int64_t *shape, int ndim, assay_dtype dtype,
                                  parity_result *r)
{
    parity_gallery g = {0};
    assay_status st = ASSAY_OK;
    if (r->verdict == PARITY_PASS)
        st = compare_stored(f, name, wanted, shape, ndim, dtype, &g, r);
    st = st == ASSAY_OK ? parity_report_add_from(s->report, &g, r) : st;
    parity_gallery_free(&g);
    return st;
}

/* One number of every step. */
static assay_status check_series(const saved *s, const assay_tensorfile *f, const char *name,
                                 assay_dtype dtype, int64_t *seen)
{
    parity_result r;
    assay_status st = ASSAY_OK;
    double *wanted = calloc((size_t)s->steps + 1, sizeof *wanted);
    ASSAY_CHECK(wanted, ASSAY_OUT_OF_MEMORY, "%s of %lld steps", name, (long long)s->steps);
    saved_start(s, PARITY_CHECK_BITWISE, s->result, "", name, &r);
    for (int64_t step = 0; step < s->steps && r.verdict == PARITY_PASS; step++) {
        parity_global g;
        ASSAY_TRY_GOTO(saved_from_trace(s, name, ASSAY_PHASE_OPTIMIZER, step, -1, &g, &r), st, done);
        if (r.verdict == PARITY_PASS && g.count == 1)
            wanted[step] = g.dtype == ASSAY_I64 ? (double)parity_decode_integer(g.data, 0, g.dtype)
                                                : parity_decode(g.data, 0, g.dtype);
        parity_global_free(&g);
    }
    (*seen)++;
    st = report_stored(s, f, name, wanted, &s->steps, 1, dtype, &r);
done:
    free(wanted);
    return st;
}

/* What every update of a step was told. */
static assay_status check_rates(const saved *s, const assay_tensorfile *f, int64_t *seen)
{
    parity_result r;
    double *wanted = calloc((size_t)s->steps + 1, sizeof *wanted);
    int64_t told = 0;
    ASSAY_CHECK(wanted, ASSAY_OUT_OF_MEMORY, "learning_rate of %lld steps", (long long)s->steps);
    saved_start(s, PARITY_CHECK_BITWISE, s->result, "", "learning_rate", &r);
    for (int rank = 0; rank < assay_trace_world(s->trace) && told < s->steps; rank++) {
        for (int64_t i = 0; i < assay_trace_n_ops(s->trace, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(s->trace, rank, i);
            if (strcmp(op->op, "adamw") != 0 || op->step != told || told == s->steps)
                continue;
            wanted[told++] = json_number_value(json_object_get(op->attrs, "lr"));
        }
    }
    if (told != s->steps)
        parity_result_fail(&r, "the trace has no adamw in step %lld", (long long)told);
    (*seen)++;
    const assay_status st = report_stored(s, f, "learning_rate", wanted, &s->steps, 1, ASSAY_F32, &r);
    free(wanted);
    return st;
}

/* --- losses of layers --------------------------------------------------------------------------------------- */

/* Loss k of a layer's router, over all ranks and microbatches of a step; *size: sum of magnitudes. */
static assay_status sum_of_layer(const saved *s, int64_t step, int64_t layer, int k, double *sum,
                                 double *size, parity_result *r)
{
    char name[ASSAY_NAME];
    const int at = k == 1; /* the z-loss is the second of aux_loss */
    snprintf(name, sizeof name, "decoder.layers.%lld.mlp.router.%s.losses", (long long)layer,
             assay_router_loss_name(k - at));
    *sum = *size = 0.0;
    for (int64_t m = 0; m < s->batches->microbatches && r->verdict == PARITY_PASS; m++) {
        parity_global g;
        ASSAY_TRY(saved_from_trace(s, name, ASSAY_PHASE_FORWARD, step, m, &g, r));
        if (r->verdict == PARITY_PASS && g.count == 2) {
            const double x = parity_decode(g.data, at, g.dtype);
            *sum += x;
            *size += fabs(x);
        } else if (r->verdict == PARITY_PASS) {
            parity_result_fail(r, "%s of the trace: expected 2 elements, found %lld", name,
                               (long long)g.count);
        }
        parity_global_free(&g);
    }
    return ASSAY_OK;
}

/* Roundings between the parts and the file: each rank's sum and quotient, the sum over ranks in doubles, F32 at last. */
static double layer_allowance(const saved *s, double wanted, double size)
{
    const double terms = (double)(s->batches->microbatches * assay_trace_world(s->trace)) + 8.0;
    return ldexp(fabs(wanted), -24) + ldexp(size, -53) * terms + ldexp(1.0, -150);
}

/* [steps, layers] as Megatron-LM logs them: mean over microbatches, without the coefficient, 0 for a layer without experts. */
static assay_status check_layer_losses(const saved *s, const assay_tensorfile *f, int k, int64_t *seen)
{
    const char *name = assay_router_loss_name(k);
    const double coeff = assay_router_loss_coeff(s->options, k);
    const assay_model_config *c = &s->spec->config;
    const int64_t shape[2] = {s->steps, c->num_layers};
    const double share = 1.0 / (coeff * (double)s->batches->microbatches);
    parity_result r;
    parity_worst w;
    if (c->num_moe_experts == 0 || !(coeff > 0.0))
        return ASSAY_OK;
    parity_worst_init(&w);
    saved_start(s, PARITY_CHECK_BITWISE, s->result, "", name, &r);
    const assay_tensor_info *t = assay_tensorfile_find(f, name);
    if (!t || t->dtype != ASSAY_F32 || t->ndim != 2 || t->shape[0] != shape[0] || t->shape[1] != shape[1])
        parity_result_fail(&r, "the file: expected %s as F32 [%lld,%lld], found %s", name,
                           (long long)shape[0], (long long)shape[1], t ? "another dtype or shape" : "none");
    for (int64_t i = 0; i < shape[0] * shape[1] && r.verdict == PARITY_PASS; i++) {
        double sum = 0.0, size = 0.0;
        if (c->mlp[i % shape[1]] == ASSAY_MLP_MOE)
            ASSAY_TRY(sum_of_layer(s, i / shape[1], i % shape[1], k, &sum, &size, &r));
        const double wanted = sum * share, found = parity_decode(t->data, i, ASSAY_F32);
        const double bound = layer_allowance(s, wanted, size * share), error = fabs(found - wanted);
        parity_worst_add(&w, i, found, wanted, bound, error / bound, error <= bound);
    }
    if (r.verdict == PARITY_PASS)
        parity_worst_to_result(&w, shape, 2, &r);
    (*seen)++;
    return parity_report_add(s->report, &r);
}

/* A parameter's tensor of the trace under its Hugging Face names. */
static assay_status check_param(const saved *s, const assay_tensorfile *f, const assay_param_spec *p,
                                const char *prefix, const char *traced, assay_phase phase, int64_t step,
                                int64_t *seen)
{
    parity_result broken;
    parity_global g;
    double *whole = NULL, *part = NULL;
    assay_status st = ASSAY_OK;
    saved_start(s, PARITY_CHECK_BITWISE, s->result, p->name, traced, &broken);
    broken.step = step;
    ASSAY_TRY(saved_from_trace(s, traced, phase, step, -1, &g, &broken));
    if (broken.verdict != PARITY_PASS) {
        *seen += p->n_parts;
        st = parity_report_add(s->report, &broken);
        goto done;
    }
    ASSAY_TRY_GOTO(parity_decode_all(g.data, g.count, g.dtype, &whole), st, done);
    part = malloc(((size_t)g.count + 1) * sizeof *part);
    ASSAY_CHECK_GOTO(part, ASSAY_OUT_OF_MEMORY, st, done, "%s", p->name);
    for (int i = 0; i < p->n_parts; i++) {
        char name[ASSAY_NAME + 16];
        parity_result r;
        snprintf(name, sizeof name, "%s%s", prefix, p->parts[i].name);
        saved_start(s, PARITY_CHECK_BITWISE, s->result, p->name, "", &r);
        r.step = step;
        snprintf(r.tensor, sizeof r.tensor, "%.*s", ASSAY_NAME - 1, name);
        ref_hf_extract(p, i, whole, part);
        (*seen)++;
        ASSAY_TRY_GOTO(report_stored(s, f, name, part, p->parts[i].shape, p->parts[i].ndim, ASSAY_F32, &r),
                       st, done);
    }
done:
    free(part);
    free(whole);
    parity_global_free(&g);
    return st;
}

/* Logits of a single forward pass: [b,s,v] in the file, sequence outermost in the trace. */
static assay_status check_logits(const saved *s, const assay_tensorfile *f, int64_t *seen)
{
    const assay_batches *b = s->batches;
    const int64_t shape[3] = {b->b, b->s, s->spec->config.vocab_size}, v = shape[2];
    parity_result r;
    parity_global g;
    double *found = NULL, *wanted = NULL;
    assay_status st = ASSAY_OK;
    saved_start(s, PARITY_CHECK_BITWISE, s->result, "", "logits", &r);
    ASSAY_TRY(saved_from_trace(s, "output_layer.y", ASSAY_PHASE_FORWARD, 0, 0, &g, &r));
    if (r.verdict == PARITY_PASS && g.count != shape[0] * shape[1] * v)
        parity_result_fail(&r, "output_layer.y of the trace: expected %lld elements, found %lld",
                           (long long)(shape[0] * shape[1] * v), (long long)g.count);
    if (r.verdict == PARITY_PASS) {
        ASSAY_TRY_GOTO(parity_decode_all(g.data, g.count, g.dtype, &found), st, done);
        wanted = malloc(((size_t)g.count + 1) * sizeof *wanted);
        ASSAY_CHECK_GOTO(wanted, ASSAY_OUT_OF_MEMORY, st, done, "logits");
        for (int64_t i = 0; i < b->s * b->b; i++)
            memcpy(wanted + (i % b->b * b->s + i / b->b) * v, found + i * v, (size_t)v * sizeof *wanted);
    }
    (*seen)++;
    st = report_stored(s, f, "logits", wanted, shape, 3, ASSAY_F32, &r);
done:
    free(wanted);
    free(found);
    parity_global_free(&g);
    return st;
}

/* One tensor of every parameter: of the trace P.<family>, in the file <prefix>.<its names>. */
static assay_status check_family(const saved *s, const assay_tensorfile *f, const char *prefix,
                                 const char *family, assay_phase phase, int64_t step, int64_t *seen)
{
    for (int64_t i = 0; i < s->spec->n_params; i++) {
        const assay_param_spec *p = &s->spec->params[i];
        char traced[ASSAY_NAME + 16];
        if (!assay_param_needs_grad(p))
            continue;
        snprintf(traced, sizeof traced, "%s.%s", p->name, family);
        ASSAY_TRY(check_param(s, f, p, prefix, traced, phase, step, seen));
    }
    return ASSAY_OK;
}

/* Gradients of the first step; masters, moments and buffers of the last. */
static assay_status check_params(const saved *s, const assay_tensorfile *f, int64_t *seen)
{
    const char *const *states;
    const int n_states = assay_optimizer_states(s->options->optimizer, &states);
    const int64_t last = s->steps - 1;
    ASSAY_TRY(check_family(s, f, "grad.", "main_grad", ASSAY_PHASE_REDUCED_GRAD, 0, seen));
    if (!s->batches->training)
        return ASSAY_OK;
    ASSAY_TRY(check_family(s, f, "weight.", "main_param", ASSAY_PHASE_OPTIMIZER, last, seen));
    for (int k = 0; k < n_states; k++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "%s.", states[k]);
        ASSAY_TRY(check_family(s, f, prefix, states[k], ASSAY_PHASE_OPTIMIZER, last, seen));
    }
    for (int64_t i = 0; i < s->spec->n_params; i++) {
        const assay_param_spec *p = &s->spec->params[i];
        if (!assay_param_needs_grad(p)) /* a buffer; a frozen weight, which no step writes */
            ASSAY_TRY(check_param(s, f, p, "weight.", p->name,
                                  p->trained ? ASSAY_PHASE_FORWARD : ASSAY_PHASE_OPTIMIZER, last, seen));
    }
    return ASSAY_OK;
}

assay_status saved_check_gradients(const saved *s, const assay_tensorfile *f, int64_t step)
{
    int64_t seen = 0;
    return check_family(s, f, "grad.", "main_grad", ASSAY_PHASE_REDUCED_GRAD, step, &seen);
}

assay_status saved_check_out(const saved *s, const assay_tensorfile *f)
{
    int64_t seen = 0;
    parity_result r;
    ASSAY_TRY(check_series(s, f, "loss", ASSAY_F32, &seen));
    if (s->batches->training) {
        ASSAY_TRY(check_series(s, f, "grad_norm", ASSAY_F32, &seen));
        if (s->options->log_num_zeros_in_grad)
            ASSAY_TRY(check_series(s, f, "num_zeros_in_grad", ASSAY_I64, &seen));
        ASSAY_TRY(check_rates(s, f, &seen));
        for (int k = 0; k < ASSAY_ROUTER_LOSSES; k++)
            ASSAY_TRY(check_layer_losses(s, f, k, &seen));
    } else
        ASSAY_TRY(check_logits(s, f, &seen));
    ASSAY_TRY(check_params(s, f, &seen));
    saved_start(s, PARITY_CHECK_BITWISE, s->result, "tensors", "", &r);
    r.count = seen;
    if (assay_tensorfile_count(f) != seen)
        parity_result_fail(&r, "the file: expected %lld tensors, found %lld", (long long)seen,
                           (long long)assay_tensorfile_count(f));
    return parity_report_add(s->report, &r);
}
