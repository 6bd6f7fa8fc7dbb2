/* The whole check: does the sharded run equal the unsharded run in double?
 *
 * The reference runs once in double and r = 4 times with every stored tensor rounded as the candidate's recipe rounds it and perturbed
 * besides, all on the candidate's own routing choices (which the routing check has judged) and clips (whole_clips.c).  Where those find
 * something it runs 16 times, and once in double, from the candidate's own masters behind each step (whole_masters.c).  The spread of the
 * perturbed runs is what rounding can do to a tensor:
 *
 *     || candidate - reference ||  <=  kappa * rms_i || perturbed_i - reference ||  +  u * || reference ||
 *
 * for the whole tensor and for every slice of it (row; expert; head), so that one wrong head is not diluted.
 * kappa is the quantile of Student's t that leaves what 4 standard deviations of the normal leave, for r
 * times the degrees of freedom that the slice's errors have (parity_whole_freedom); u is half an ulp of the stored type (the
 * last rounding). The perturbation of a stored value is half an ulp where the recipe stores it narrower than it adds; where it
 * adds in the type that it stores, sums of n terms err like a random walk, sqrt(n/3) half ulps.  No constant
 * is tuned.  Source: docs/TOLERANCES.md, section 7. */
#include "parity/checks/whole.h"
#include "parity/checks/plan.h"
#include "parity/checks/whole_subject.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct whole {
    const assay_trace *trace;
    const parity_index *x;
    const parity_index *other; /* of the run that takes the reference's place; NULL: none does */
    double widen;
    const parity_whole_runs *r;
    int runs; /* of them, however many there are: a verdict does not depend on what was judged before */
    bool from_masters; /* each of their steps begins with the candidate's masters of the step before */
    parity_table *table;
    parity_result base;
    parity_scales scales;
    int loss_curve, norm_curve; /* in the gallery of the table; 0: no step judged yet */
} whole;

static void start(const whole *h, const char *name, assay_phase phase, int64_t step, int64_t microbatch,
                  parity_result *r)
{
    *r = h->base;
    r->phase = phase;
    r->step = step;
    r->microbatch = microbatch;
    r->verdict = PARITY_PASS;
    snprintf(r->tensor, sizeof r->tensor, "%s", name);
}

static assay_status judge(const whole *h, const char *name, parity_whole_subject *s,
                          const assay_model_config *m, parity_result *r)
{
    return parity_whole_judge(s, name, m, h->other ? "the other run" : "the unsharded reference",
                              parity_table_gallery(h->table), &h->scales, r);
}

/* Assembles a run's tensor; *values NULL when it is missing or broken, which is a finding. */
static assay_status values_in(const parity_index *x, const char *name, assay_phase phase, int64_t step,
                              int64_t microbatch, int64_t count, parity_global *g, double **values,
                              parity_result *r)
{
    *values = NULL;
    const parity_entry *e = parity_index_find(x, name, phase, step, microbatch);
    if (!e) {
        parity_result_fail(r, "the trace has no %s in phase %s of step %lld", name, assay_phase_name(phase),
                           (long long)step);
        return ASSAY_OK;
    }
    parity_result finding;
    parity_result_init(&finding);
    ASSAY_TRY(parity_entry_assemble(x, e, g, &finding));
    if (!g->complete || g->count != count) {
        parity_result_fail(r, "%s cannot be assembled to %lld elements: %.300s", name, (long long)count,
                           finding.message);
        return ASSAY_OK;
    }
    return parity_decode_all(g->data, g->count, g->dtype, values);
}

/* What the other run holds of it [count]: s->wanted, kept in *kept.  *compared: whether there is anything to compare with. */
static assay_status take_wanted(const whole *h, const char *name, assay_phase phase, int64_t step,
                                int64_t microbatch, parity_whole_subject *s, double **kept, bool *compared)
{
    parity_global g = {0};
    parity_result unused;
    assay_status st = ASSAY_OK;
    *kept = NULL;
    s->wanted = s->truth;
    s->widen = 1.0;
    *compared = h->other == NULL || parity_index_find(h->other, name, phase, step, microbatch) != NULL;
    if (h->other == NULL || !*compared)
        return ASSAY_OK;
    parity_result_init(&unused);
    st = values_in(h->other, name, phase, step, microbatch, s->count, &g, kept, &unused);
    ASSAY_CHECK_GOTO(st != ASSAY_OK || *kept != NULL, ASSAY_MISMATCH, st, done, "the other run's %s: %.300s",
                     name, unused.message);
    s->wanted = *kept;
    s->widen = h->widen;
done:
    parity_global_free(&g);
    return st;
}

/* faults_alone: a claim that holds is not told of. */
static assay_status judge_named(const whole *h, const assay_model_config *m, const char *candidate,
                                assay_phase phase, const char *kind, const char *name, int64_t step,
                                bool faults_alone)
{
    parity_result r;
    parity_global g = {0};
    double *found = NULL, *wanted = NULL;
    bool compared = true;
    assay_status st = ASSAY_OK;
    const ref_named_tensor *truth = ref_result_find(&h->r->truth, kind, name, step);
    start(h, candidate, phase, step, -1, &r);
    parity_whole_subject s = {0};
    if (truth) {
        s = (parity_whole_subject){.runs = h->runs,
                                   .cluster = 1.0,
                                   .truth = truth->data,
                                   .shape = truth->shape,
                                   .ndim = truth->ndim,
                                   .count = 1};
        for (int d = 0; d < truth->ndim; d++)
            s.count *= truth->shape[d];
        for (int i = 0; i < h->runs; i++) {
            const ref_named_tensor *p = ref_result_find(&h->r->perturbed[i], kind, name, step);
            s.perturbed[i] = p ? p->data : truth->data;
        }
        ASSAY_TRY_GOTO(take_wanted(h, candidate, phase, step, -1, &s, &wanted, &compared), st, done);
        if (!compared)
            goto done;
        ASSAY_TRY_GOTO(values_in(h->x, candidate, phase, step, -1, s.count, &g, &found, &r), st, done);
    } else {
        parity_result_fail(&r, "the reference has no %s of %s", kind, name);
    }
    if (found) {
        s.found = found;
        s.stored = g.dtype;
        s.squares = strcmp(kind, "exp_avg_sq") == 0;
        if (strcmp(kind, "weight") == 0) {
            s.jump = h->r->jump;
            s.jump_rate = h->r->jump_rate;
            s.clusters = calloc((size_t)(s.ndim > 0 ? s.shape[0] : 0) + 1, sizeof *s.clusters);
            ASSAY_CHECK_GOTO(s.clusters, ASSAY_OUT_OF_MEMORY, st, done, "%s", name);
            for (int64_t i = 0; s.ndim > 0 && i < s.shape[0]; i++)
                s.clusters[i] = 1.0;
            s.cluster = parity_whole_clusters(&h->r->truth, name, s.clusters);
        }
        ASSAY_TRY_GOTO(judge(h, candidate, &s, m, &r), st, done);
    }
    if (!faults_alone || r.verdict == PARITY_FAIL)
        st = parity_table_merge(h->table, &r);
done:
    free(s.clusters);
    free(wanted);
    free(found);
    parity_global_free(&g);
    return st;
}

/* loss and grad_norm: numbers of a step. */
static assay_status judge_number(const whole *h, const assay_model_config *m, const char *name, int *curve,
                                 int64_t step, const double *truth,
                                 double *const perturbed[PARITY_WHOLE_RUNS])
{
    static const int64_t one[1] = {1};
    parity_result r;
    parity_global g = {0};
    double *found = NULL, *wanted = NULL;
    bool compared;
    start(h, name, ASSAY_PHASE_OPTIMIZER, step, -1, &r);
    parity_whole_subject s = {.runs = h->runs, .truth = truth + step, .shape = one, .ndim = 1, .count = 1};
    for (int i = 0; i < h->runs; i++)
        s.perturbed[i] = perturbed[i] + step;
    assay_status st = take_wanted(h, name, ASSAY_PHASE_OPTIMIZER, step, -1, &s, &wanted, &compared);
    if (st == ASSAY_OK && !compared)
        return ASSAY_OK;
    if (st == ASSAY_OK)
        st = values_in(h->x, name, ASSAY_PHASE_OPTIMIZER, step, -1, 1, &g, &found, &r);
    if (st == ASSAY_OK && found) {
        s.found = found;
        s.stored = ASSAY_F32; /* computed there, whatever it is stored in */
        st = judge(h, name, &s, m, &r);
        r.found = found[0];
        r.expected = s.wanted[0];
        r.is_distance = false;
        const parity_curve_point point = {step, r.found, r.expected, r.allowance};
        st = *curve == 0 ? parity_gallery_curve(parity_table_gallery(h->table), curve) : st;
        r.curve = *curve;
        if (st == ASSAY_OK)
            st = parity_curve_add(parity_gallery_curve_at(parity_table_gallery(h->table), *curve), &point);
    }
    if (st == ASSAY_OK)
        st = parity_table_merge(h->table, &r);
    free(wanted);
    free(found);
    parity_global_free(&g);
    return st;
}

/* Row (b, s) of the reference's logits [b,s,v] as row (s, b), the order of the trace [s,b,v]. */
static double *to_sequence_major(const ref_named_tensor *t)
{
    const int64_t b = t->shape[0], s = t->shape[1], v = t->shape[2];
    double *out = malloc(((size_t)(b * s * v) + 1) * sizeof *out);
    for (int64_t i = 0; out && i < b; i++) {
        for (int64_t j = 0; j < s; j++)
            memcpy(out + (j * b + i) * v, t->data + (i * s + j) * v, (size_t)v * sizeof *out);
    }
    return out;
}

static assay_status judge_logits(const whole *h, const assay_model_config *m)
{
    double *truth = NULL, *perturbed[PARITY_WHOLE_RUNS] = {NULL}, *found = NULL, *wanted = NULL;
    bool compared;
    parity_global g = {0};
    parity_result r;
    assay_status st = ASSAY_OK;
    start(h, "output_layer.y", ASSAY_PHASE_FORWARD, 0, 0, &r);
    const ref_named_tensor *t = ref_result_find(&h->r->logits_truth, "logits", "logits", 0);
    ASSAY_CHECK(t != NULL && t->ndim == 3, ASSAY_INTERNAL, "the reference's run has no logits");
    truth = to_sequence_major(t);
    for (int i = 0; i < h->runs; i++) {
        const ref_named_tensor *p = ref_result_find(&h->r->logits_perturbed[i], "logits", "logits", 0);
        perturbed[i] = to_sequence_major(p ? p : t);
        ASSAY_CHECK_GOTO(perturbed[i] && truth, ASSAY_OUT_OF_MEMORY, st, done, "logits");
    }
    const int64_t rows = t->shape[0] * t->shape[1], shape[2] = {rows, t->shape[2]};
    parity_whole_subject s = {
        .runs = h->runs, .truth = truth, .shape = shape, .ndim = 2, .count = rows * t->shape[2]};
    memcpy(s.perturbed, perturbed, sizeof s.perturbed);
    ASSAY_TRY_GOTO(take_wanted(h, "output_layer.y", ASSAY_PHASE_FORWARD, 0, 0, &s, &wanted, &compared), st,
                   done);
    if (!compared)
        goto done;
    ASSAY_TRY_GOTO(values_in(h->x, "output_layer.y", ASSAY_PHASE_FORWARD, 0, 0, s.count, &g, &found, &r), st,
                   done);
    if (found) {
        s.found = found;
        s.stored = g.dtype;
        ASSAY_TRY_GOTO(judge(h, "logits", &s, m, &r), st, done);
    }
    st = parity_table_merge(h->table, &r);
done:
    for (int i = 0; i < PARITY_WHOLE_RUNS; i++)
        free(perturbed[i]);
    free(truth);
    free(wanted);
    free(found);
    parity_global_free(&g);
    return st;
}

static assay_status judge_gradients(const whole *h, const assay_model_spec *spec, int64_t step)
{
    for (int64_t i = 0; i < spec->n_params; i++) {
        char name[ASSAY_NAME + 16];
        const assay_param_spec *p = &spec->params[i];
        if (!assay_param_needs_grad(p))
            continue;
        snprintf(name, sizeof name, "%s.main_grad", p->name);
        ASSAY_TRY(
            judge_named(h, &spec->config, name, ASSAY_PHASE_REDUCED_GRAD, "grad", p->name, step, false));
    }
    return ASSAY_OK;
}

static assay_status judge_states(const whole *h, const assay_model_spec *spec, assay_optimizer optimizer,
                                 int64_t step)
{
    const char *const *states;
    const int n_states = assay_optimizer_states(optimizer, &states);
    for (int64_t i = 0; i < spec->n_params; i++) {
        const assay_param_spec *p = &spec->params[i];
        for (int k = -1; assay_param_needs_grad(p) && k < n_states; k++) {
            char name[ASSAY_NAME + 16];
            snprintf(name, sizeof name, "%s.%s", p->name, k < 0 ? "main_param" : states[k]);
            ASSAY_TRY(judge_named(h, &spec->config, name, ASSAY_PHASE_OPTIMIZER, k < 0 ? "weight" : states[k],
                                  p->name, step, false));
        }
        if (!p->trained)
            ASSAY_TRY(judge_named(h, &spec->config, p->name, ASSAY_PHASE_OPTIMIZER, "expert_bias", p->name,
                                  step, false));
    }
    return ASSAY_OK;
}

/* The masters that the runs went on from: a second look alone asks, so it tells of what is wrong alone. */
static assay_status judge_masters(const whole *h, const assay_model_spec *spec, int64_t step)
{
    for (int64_t i = 0; i < spec->n_params; i++) {
        char name[ASSAY_NAME + 16];
        const assay_param_spec *p = &spec->params[i];
        snprintf(name, sizeof name, "%s.main_param", p->name);
        if (assay_param_needs_grad(p) && parity_index_find(h->x, name, ASSAY_PHASE_OPTIMIZER, step, -1))
            ASSAY_TRY(
                judge_named(h, &spec->config, name, ASSAY_PHASE_OPTIMIZER, "weight", p->name, step, true));
    }
    return ASSAY_OK;
}

static assay_status judge_zeros(const whole *h, const assay_model_spec *spec, int64_t step)
{
    parity_result r;
    start(h, "num_zeros_in_grad", ASSAY_PHASE_OPTIMIZER, step, -1, &r);
    ASSAY_TRY(parity_whole_zeros(h->x, spec, step, &r));
    return parity_table_merge(h->table, &r);
}

static assay_status judge_everything(whole *h, const parity_whole_cache *c)
{
    const ref_run_result *truth = &h->r->truth;
    const bool training = c->batches->training;
    double *loss[PARITY_WHOLE_RUNS] = {NULL}, *norm[PARITY_WHOLE_RUNS] = {NULL};
    for (int i = 0; i < h->runs; i++) {
        loss[i] = h->r->perturbed[i].loss;
        norm[i] = h->r->perturbed[i].grad_norm;
    }
    if (h->r->has_logits)
        ASSAY_TRY(judge_logits(h, &c->spec->config));
    for (int64_t step = 0; step < truth->steps; step++) {
        ASSAY_TRY(judge_number(h, &c->spec->config, "loss", &h->loss_curve, step, truth->loss, loss));
        ASSAY_TRY(judge_gradients(h, c->spec, step));
        if (training)
            ASSAY_TRY(
                judge_number(h, &c->spec->config, "grad_norm", &h->norm_curve, step, truth->grad_norm, norm));
        if (training && c->options.log_num_zeros_in_grad)
            ASSAY_TRY(judge_zeros(h, c->spec, step));
        if (h->from_masters && step + 1 < truth->steps)
            ASSAY_TRY(judge_masters(h, c->spec, step));
    }
    return training ? judge_states(h, c->spec, c->options.optimizer, truth->steps - 1) : ASSAY_OK;
}

/* Thresholds are those of the precision that was asked for; a header that says another is a finding. */
static assay_status judge_header(const whole *h, assay_precision wanted)
{
    const char *name = json_string_value(json_object_get(assay_trace_header(h->trace), "precision"));
    parity_result r;
    if (name && strcmp(name, assay_precision_name(wanted)) == 0)
        return ASSAY_OK;
    start(h, "precision", ASSAY_PHASE_FORWARD, 0, -1, &r);
    parity_result_fail(&r, "the trace's header: expected precision %s, found %s",
                       assay_precision_name(wanted), name ? name : "none");
    return parity_table_merge(h->table, &r);
}

/* Routing is replayed as it was recorded.  What other people's modules record of it is the map's business. */
static assay_status judge_choices(const whole *h, const parity_whole_choices *c)
{
    parity_result r;
    if (c->refused.verdict != PARITY_FAIL || assay_trace_is_foreign(h->trace))
        return ASSAY_OK;
    start(h, c->refused.tensor, c->refused.phase, c->refused.step, c->refused.microbatch, &r);
    parity_result_fail(&r, "%s", c->refused.message);
    return parity_table_merge(h->table, &r);
}

/* By the operation that makes the tensor in an unsharded step; the header stands before all. */
static int64_t execution_order(void *user, const parity_claim *c)
{
    return strcmp(c->tensor, "precision") == 0 ? -1 : parity_plan_tensors_order(user, c->tensor);
}

/* Under semantics megatron the objective is that of the traced layout. */
static void take_objective(parity_whole_cache *c, const assay_trace *t)
{
    const char *layout = json_string_value(json_object_get(assay_trace_header(t), "layout"));
    c->objective[0] = '\0';
    if (c->options.semantics == ASSAY_SEMANTICS_MEGATRON && layout != NULL)
        snprintf(c->objective, sizeof c->objective, "%s", layout);
}

static assay_status look(whole *h, parity_whole_cache *cache, assay_precision precision,
                         parity_whole_choices *choice, int runs)
{
    parity_whole_runs *r;
    ASSAY_TRY(parity_whole_find_runs(cache, precision, choice, runs, &r));
    ASSAY_TRY(parity_table_create(&h->table, PARITY_CHECK_WHOLE));
    h->r = r;
    h->runs = runs;
    ASSAY_TRY(judge_header(h, precision));
    ASSAY_TRY(judge_choices(h, choice));
    return judge_everything(h, cache);
}

static assay_status check_whole(parity_whole_cache *cache, const assay_trace *t, const parity_index *other,
                                double widen, parity_report *report)
{
    assay_status st = ASSAY_OK;
    parity_index *x = NULL;
    parity_whole_choices choice = {0};
    whole h = {.trace = t, .other = other, .widen = widen};
    parity_plan_tensors *tensors = NULL;
    const assay_precision precision = cache->options.precision;
    const int64_t wanted = cache->batches->training ? cache->options.train_iters : 0;
    const int64_t steps = wanted > 0 ? wanted : cache->batches->steps;
    parity_result_init(&h.base);
    h.base.check = PARITY_CHECK_WHOLE;
    parity_result_from_trace(&h.base, t);
    parity_scales_from_trace(t, &h.scales);
    take_objective(cache, t);
    ASSAY_TRY_GOTO(parity_index_create(&x, t), st, done);
    ASSAY_TRY_GOTO(parity_whole_read_choices(cache, x, steps, &choice), st, done);
    h.x = x;
    ASSAY_TRY_GOTO(look(&h, cache, precision, &choice, PARITY_WHOLE_FIRST_RUNS), st, done);
    if (parity_table_fails(h.table)) {
        parity_table_destroy(h.table);
        h.table = NULL;
        h.loss_curve = h.norm_curve = 0;
        h.from_masters = other == NULL && cache->batches->training && steps > 1;
        if (h.from_masters)
            ASSAY_TRY_GOTO(parity_whole_read_masters(x, &choice), st, done);
        ASSAY_TRY_GOTO(look(&h, cache, precision, &choice, PARITY_WHOLE_RUNS), st, done);
    }
    ASSAY_TRY_GOTO(parity_plan_tensors_create(&tensors, cache->spec, &cache->options, cache->batches), st,
                   done);
    ASSAY_TRY_GOTO(parity_table_flush_ordered(h.table, execution_order, tensors, report), st, done);
done:
    parity_plan_tensors_destroy(tensors);
    parity_table_destroy(h.table);
    parity_whole_free_choices(&choice);
    parity_index_destroy(x);
    return st;
}

assay_status parity_check_whole(parity_whole_cache *cache, const assay_trace *t, parity_report *report)
{
    return check_whole(cache, t, NULL, 1.0, report);
}

assay_status parity_check_whole_against(parity_whole_cache *cache, const assay_trace *t,
                                        const assay_trace *other, double widen, parity_report *report)
{
    parity_index *x;
    ASSAY_TRY(parity_index_create(&x, other));
    const assay_status st = check_whole(cache, t, x, widen, report);
    parity_index_destroy(x);
    return st;
}
