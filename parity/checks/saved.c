/* What a run leaves behind is what its trace says: the families of a checkpoint are the last masters, moments
 * and expert biases, the numbers of a result file the losses, norms, weights or gradients.  A save that mixes
 * up two families is caught here even when the load mixes them up the same way. */
#include "core/files/checkpoint.h"
#include "core/run/training.h"
#include "parity/judge/judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct saved {
    const assay_trace *trace;
    const parity_index *x;
    const assay_model_spec *spec;
    const assay_train_options *options;
    const assay_batches *batches;
    int64_t steps; /* of the run */
    parity_report *report;
} saved;

static void start(const saved *s, parity_check check, const char *claim, const char *instance,
                  const char *tensor, parity_result *r)
{
    parity_result_init(r);
    parity_result_from_trace(r, s->trace);
    r->check = check;
    r->verdict = PARITY_PASS;
    r->phase = ASSAY_PHASE_CHECKPOINT;
    r->step = s->steps - 1;
    snprintf(r->op, sizeof r->op, "%s", claim);
    snprintf(r->instance, sizeof r->instance, "%s", instance);
    snprintf(r->tensor, sizeof r->tensor, "%s", tensor);
}

/* The global tensor of the trace; not complete: *r fails with the reason. */
static assay_status from_trace(const saved *s, const char *name, assay_phase phase, int64_t step,
                               int64_t microbatch, parity_global *g, parity_result *r)
{
    const parity_entry *e = parity_index_find(s->x, name, phase, step, microbatch);
    parity_result finding;
    parity_result_init(&finding);
    memset(g, 0, sizeof *g);
    if (e == NULL) {
        parity_result_fail(r, "the trace has no %s in phase %s of step %lld", name, assay_phase_name(phase),
                           (long long)step);
        return ASSAY_OK;
    }
    ASSAY_TRY(parity_entry_assemble(s->x, e, g, &finding));
    if (!g->complete)
        parity_result_fail(r, "%s of the trace cannot be assembled: %.300s", name, finding.message);
    return ASSAY_OK;
}

/* --- checkpoint --------------------------------------------------------------------------------------------- */

/* Parameter `name` of a family against the trace's P.<family>, or P itself (suffixed false). */
static assay_status check_state(const saved *s, const assay_checkpoint *c, const char *family,
                                const char *name, bool suffixed)
{
    char traced[ASSAY_NAME + 16];
    parity_result r;
    parity_global g;
    assay_status st = ASSAY_OK;
    void *data = NULL;
    start(s, PARITY_CHECK_CHECKPOINT, "save", family, name, &r);
    snprintf(traced, sizeof traced, "%s%s%s", name, suffixed ? "." : "", suffixed ? family : "");
    ASSAY_TRY(from_trace(s, traced, ASSAY_PHASE_OPTIMIZER, s->steps - 1, -1, &g, &r));
    if (r.verdict == PARITY_PASS) {
        assay_shard whole;
        assay_shard_whole(&whole, g.shape, g.ndim);
        data = calloc((size_t)g.count + 1, (size_t)assay_dtype_bytes(g.dtype));
        ASSAY_CHECK_GOTO(data, ASSAY_OUT_OF_MEMORY, st, done, "%s/%s", family, name);
        const assay_status read = assay_checkpoint_read(c, family, name, g.dtype, &whole, data);
        if (read != ASSAY_OK) {
            parity_result_fail(&r, "the checkpoint: %.400s", assay_error_message());
            assay_error_clear();
        } else {
            parity_worst w;
            parity_worst_init(&w);
            parity_worst_add_bits(&w, data, g.data, g.count, g.dtype);
            parity_worst_to_result(&w, g.shape, g.ndim, &r);
        }
    }
    st = parity_report_add(s->report, &r);
done:
    free(data);
    parity_global_free(&g);
    return st;
}

static assay_status claim_header(const saved *s, const char *item, const char *wanted, const char *found)
{
    parity_result r;
    start(s, PARITY_CHECK_CHECKPOINT, "save", "header", item, &r);
    r.count = 1;
    if (found == NULL || strcmp(found, wanted) != 0)
        parity_result_fail(&r, "the checkpoint's header, %s: expected %s, found %s", item, wanted,
                           found ? found : "none");
    return parity_report_add(s->report, &r);
}

/* What the header says that it was trained with, which the next run will be held to. */
static assay_status claim_training(const saved *s, const json_t *header)
{
    parity_result r;
    assay_train_options asked = *s->options;
    asked.train_iters = asked.train_iters > 0 ? asked.train_iters : s->steps;
    asked.override_checkpoint_args = false;
    start(s, PARITY_CHECK_CHECKPOINT, "save", "header", "training", &r);
    r.count = 1;
    if (assay_training_check("header", header, &asked, NULL) != ASSAY_OK) {
        parity_result_fail(&r, "%.500s", assay_error_message());
        assay_error_clear();
    }
    return parity_report_add(s->report, &r);
}

static assay_status check_header(const saved *s, const json_t *header)
{
    char wanted[32], found[32];
    const json_t *step = json_object_get(header, "step");
    snprintf(wanted, sizeof wanted, "%lld", (long long)s->steps);
    snprintf(found, sizeof found, "%lld", (long long)json_integer_value(step));
    ASSAY_TRY(claim_header(s, "step", wanted, json_is_integer(step) ? found : NULL));
    ASSAY_TRY(claim_header(s, "precision", assay_precision_name(s->options->precision),
                           json_string_value(json_object_get(header, "precision"))));
    ASSAY_TRY(claim_training(s, header));
    assay_grid grid;
    char layout[ASSAY_LAYOUT_TEXT] = "(none)";
    if (parity_grid_from_trace(s->trace, &grid))
        assay_layout_format(&grid.p, layout);
    return claim_header(s, "layout", layout, json_string_value(json_object_get(header, "layout")));
}

static assay_status check_checkpoint(const saved *s, const assay_checkpoint *c)
{
    const char *const *states;
    const int n_states = assay_optimizer_states(s->options->optimizer, &states);
    int64_t wanted = 0;
    parity_result r;
    ASSAY_TRY(check_header(s, assay_checkpoint_header(c)));
    for (int64_t i = 0; i < s->spec->n_params; i++) {
        const assay_param_spec *p = &s->spec->params[i];
        for (int k = -1; k < n_states && p->trained; k++)
            ASSAY_TRY(check_state(s, c, k < 0 ? "main_param" : states[k], p->name, true));
        if (!p->trained)
            ASSAY_TRY(check_state(s, c, "expert_bias", p->name, false));
        wanted += p->trained ? 1 + n_states : 1;
    }
    start(s, PARITY_CHECK_CHECKPOINT, "save", "tensors", "", &r);
    r.count = wanted;
    if (assay_checkpoint_count(c) != wanted)
        parity_result_fail(&r, "the checkpoint: expected %lld tensors, found %lld", (long long)wanted,
                           (long long)assay_checkpoint_count(c));
    return parity_report_add(s->report, &r);
}

/* --- result file -------------------------------------------------------------------------------------------- */

/* A tensor of the file against doubles of its shape, bit for bit once they are rounded to F32. */
static void compare_values(const assay_tensorfile *f, const char *name, const double *wanted,
                           const int64_t *shape, int ndim, parity_result *r)
{
    const assay_tensor_info *t = assay_tensorfile_find(f, name);
    bool same = t != NULL && t->dtype == ASSAY_F32 && t->ndim == ndim;
    for (int d = 0; same && d < ndim; d++)
        same = t->shape[d] == shape[d];
    if (!same) {
        parity_result_fail(r, "the file: expected %.200s as F32 in its shape, found %s", name,
                           t ? "another dtype or shape" : "none");
        return;
    }
    parity_worst w;
    parity_worst_init(&w);
    for (int64_t i = 0; i < t->count; i++) {
        const double found = parity_decode(t->data, i, ASSAY_F32), expected = (double)(float)wanted[i];
        const bool pass = found == expected;
        parity_worst_add(&w, i, found, expected, 0.0, pass ? 0.0 : (double)INFINITY, pass);
    }
    parity_worst_to_result(&w, shape, ndim, r);
}

/* One number of every step. */
static assay_status check_series(const saved *s, const assay_tensorfile *f, const char *name, int64_t *seen)
{
    parity_result r;
    assay_status st = ASSAY_OK;
    double *wanted = calloc((size_t)s->steps + 1, sizeof *wanted);
    ASSAY_CHECK(wanted, ASSAY_OUT_OF_MEMORY, "%s of %lld steps", name, (long long)s->steps);
    start(s, PARITY_CHECK_BITWISE, "out", "", name, &r);
    for (int64_t step = 0; step < s->steps && r.verdict == PARITY_PASS; step++) {
        parity_global g;
        ASSAY_TRY_GOTO(from_trace(s, name, ASSAY_PHASE_OPTIMIZER, step, -1, &g, &r), st, done);
        if (r.verdict == PARITY_PASS && g.count == 1)
            wanted[step] = parity_decode(g.data, 0, g.dtype);
        parity_global_free(&g);
    }
    if (r.verdict == PARITY_PASS)
        compare_values(f, name, wanted, &s->steps, 1, &r);
    (*seen)++;
    st = parity_report_add(s->report, &r);
done:
    free(wanted);
    return st;
}

/* A parameter's tensor of the trace under its Hugging Face names. */
static assay_status check_param(const saved *s, const assay_tensorfile *f, const assay_param_spec *p,
                                const char *prefix, const char *traced, assay_phase phase, int64_t *seen)
{
    parity_result broken;
    parity_global g;
    double *whole = NULL, *part = NULL;
    assay_status st = ASSAY_OK;
    start(s, PARITY_CHECK_BITWISE, "out", p->name, traced, &broken);
    ASSAY_TRY(from_trace(s, traced, phase, s->steps - 1, -1, &g, &broken));
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
        start(s, PARITY_CHECK_BITWISE, "out", p->name, "", &r);
        snprintf(r.tensor, sizeof r.tensor, "%.*s", ASSAY_NAME - 1, name);
        ref_hf_extract(p, i, whole, part);
        compare_values(f, name, part, p->parts[i].shape, p->parts[i].ndim, &r);
        (*seen)++;
        ASSAY_TRY_GOTO(parity_report_add(s->report, &r), st, done);
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
    start(s, PARITY_CHECK_BITWISE, "out", "", "logits", &r);
    ASSAY_TRY(from_trace(s, "output_layer.y", ASSAY_PHASE_FORWARD, 0, 0, &g, &r));
    if (r.verdict == PARITY_PASS && g.count != shape[0] * shape[1] * v)
        parity_result_fail(&r, "output_layer.y of the trace: expected %lld elements, found %lld",
                           (long long)(shape[0] * shape[1] * v), (long long)g.count);
    if (r.verdict == PARITY_PASS) {
        ASSAY_TRY_GOTO(parity_decode_all(g.data, g.count, g.dtype, &found), st, done);
        wanted = malloc(((size_t)g.count + 1) * sizeof *wanted);
        ASSAY_CHECK_GOTO(wanted, ASSAY_OUT_OF_MEMORY, st, done, "logits");
        for (int64_t i = 0; i < b->s * b->b; i++)
            memcpy(wanted + (i % b->b * b->s + i / b->b) * v, found + i * v, (size_t)v * sizeof *wanted);
        compare_values(f, "logits", wanted, shape, 3, &r);
    }
    (*seen)++;
    st = parity_report_add(s->report, &r);
done:
    free(wanted);
    free(found);
    parity_global_free(&g);
    return st;
}

static assay_status check_params(const saved *s, const assay_tensorfile *f, int64_t *seen)
{
    const bool training = s->batches->training;
    for (int64_t i = 0; i < s->spec->n_params; i++) {
        const assay_param_spec *p = &s->spec->params[i];
        char traced[ASSAY_NAME + 16];
        if (!p->trained && !training)
            continue;
        snprintf(traced, sizeof traced, "%s%s", p->name,
                 !p->trained ? ""
                 : training  ? ".main_param"
                             : ".main_grad");
        ASSAY_TRY(check_param(s, f, p, training ? "weight." : "grad.", traced,
                              training ? ASSAY_PHASE_OPTIMIZER : ASSAY_PHASE_REDUCED_GRAD, seen));
    }
    return ASSAY_OK;
}

static assay_status check_out(const saved *s, const assay_tensorfile *f)
{
    int64_t seen = 0;
    parity_result r;
    ASSAY_TRY(check_series(s, f, "loss", &seen));
    if (s->batches->training)
        ASSAY_TRY(check_series(s, f, "grad_norm", &seen));
    else
        ASSAY_TRY(check_logits(s, f, &seen));
    ASSAY_TRY(check_params(s, f, &seen));
    start(s, PARITY_CHECK_BITWISE, "out", "tensors", "", &r);
    r.count = seen;
    if (assay_tensorfile_count(f) != seen)
        parity_result_fail(&r, "the file: expected %lld tensors, found %lld", (long long)seen,
                           (long long)assay_tensorfile_count(f));
    return parity_report_add(s->report, &r);
}

assay_status parity_check_saved(const assay_trace *t, const char *checkpoint, const char *out,
                                const assay_model_spec *spec, const assay_train_options *options,
                                const assay_batches *batches, parity_report *report)
{
    assay_status st = ASSAY_OK;
    parity_index *x = NULL;
    assay_checkpoint *c = NULL;
    assay_tensorfile *f = NULL;
    const int64_t wanted = batches->training ? options->train_iters : 0;
    saved s = {.trace = t,
               .spec = spec,
               .options = options,
               .batches = batches,
               .steps = wanted > 0 ? wanted : batches->steps,
               .report = report};
    ASSAY_TRY_GOTO(parity_index_create(&x, t), st, done);
    s.x = x;
    if (checkpoint != NULL) {
        ASSAY_TRY_GOTO(assay_checkpoint_open(&c, checkpoint), st, done);
        ASSAY_TRY_GOTO(check_checkpoint(&s, c), st, done);
    }
    if (out != NULL) {
        ASSAY_TRY_GOTO(assay_tensorfile_open(&f, out), st, done);
        ASSAY_TRY_GOTO(check_out(&s, f), st, done);
    }
done:
    assay_tensorfile_close(f);
    assay_checkpoint_close(c);
    parity_index_destroy(x);
    return st;
}
