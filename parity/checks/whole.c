/* The whole check: does the sharded run equal the unsharded run in double?
 *
 * The reference runs once in double and r = 4 times, where those find something 16 times, with every stored tensor rounded as the candidate's
 * recipe rounds it and perturbed besides, all on the candidate's own routing choices (which the routing check
 * has judged) and clips (whole_clips.c).  The spread of the perturbed runs is what rounding can do to a tensor:
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
    parity_table *table;
    parity_result base;
    parity_scales scales;
    int loss_curve, norm_curve; /* in the gallery of the table; 0: no step judged yet */
} whole;

/* One tensor: the candidate's values, the reference's, the perturbed ones. */
typedef struct subject {
    const double *found, *truth, *perturbed[PARITY_WHOLE_RUNS];
    const double *wanted; /* the truth, or another run's values */
    double widen;
    int runs;
    int64_t count;
    const int64_t *shape;
    int ndim;
    assay_dtype stored;
    double jump, jump_rate; /* masters; else 0 */
    double cluster;         /* of jumps, in the whole tensor */
    double *clusters;       /* [shape[0]] of jumps, in a slice */
    double *allowance;      /* [count] out: of an element, its slice's share */
} subject;

/* Elements [first, first+n): error, allowance, verdict. */
static void compare_slice(const subject *s, int64_t first, int64_t n, double cluster, double *error,
                          double *allowed)
{
    const int runs = s->runs;
    double e = 0.0, norm = 0.0, spread = 0.0, gram[PARITY_WHOLE_RUNS][PARITY_WHOLE_RUNS] = {{0.0}};
    for (int64_t i = first; i < first + n; i++) {
        const double d = s->found[i] - s->wanted[i];
        double p[PARITY_WHOLE_RUNS];
        e += d * d;
        norm += s->truth[i] * s->truth[i];
        for (int k = 0; k < runs; k++) {
            p[k] = s->perturbed[k][i] - s->truth[i];
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
    const double unit = ldexp(1.0, -(precision > 24 || precision == 0 ? 24 : precision));
    *error = sqrt(e);
    *allowed = parity_whole_kappa(runs * parity_whole_freedom(gram, runs, n)) * sqrt(spread / runs);
    if (s->jump > 0.0)
        *allowed = fmax(*allowed, s->jump * sqrt(parity_whole_jump_count((double)n, s->jump_rate, cluster)));
    *allowed = s->widen * (*allowed + unit * sqrt(norm));
    for (int64_t i = first; i < first + n && s->allowance; i++)
        s->allowance[i] = *allowed / sqrt((double)n);
}

static void judge_slices(const subject *s, int64_t slices, parity_worst *w)
{
    const int64_t n = slices > 0 ? s->count / slices : 0;
    for (int64_t k = 0; k < slices && n > 0; k++) {
        double error, allowed;
        const double cluster = slices > 1 && s->clusters ? s->clusters[k] : s->cluster;
        compare_slice(s, k * n, n, cluster, &error, &allowed);
        const bool pass = error <= allowed;
        const double ratio = error == 0.0 ? 0.0 : error / allowed;
        parity_worst_add(w, k, error, 0.0, allowed, ratio, pass);
    }
}

/* Slices of a tensor: rows or experts of dimension 0, heads of a one-dimensional qkv bias; one for the rest.
 */
static int64_t slices_of(const subject *s, const char *name, const assay_model_config *m)
{
    if (s->ndim >= 2)
        return s->shape[0];
    if (strstr(name, "linear_qkv.bias") && m->kv_channels > 0 && s->count % m->kv_channels == 0)
        return s->count / m->kv_channels;
    return 1;
}

static void describe(const parity_worst *w, int64_t slices, const char *than, parity_result *r)
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
                 "%lld: distance %.3g, expected at most %.3g",
                 (long long)w->n_bad, (long long)slices, than, (long long)w->flat, w->found, w->allowance);
}

static assay_status judge_subject(const whole *h, const char *name, subject *s, const assay_model_config *m,
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
    describe(worse ? &all : &parts, worse ? 1 : slices,
             h->other ? "the other run" : "the unsharded reference", r);
    assay_status st = ASSAY_OK;
    if (!worse && slices > 1)
        ASSAY_TRY_GOTO(parity_worst_redraw(&parts, parity_table_gallery(h->table), &slices, 1, r), st, done);
    if (!worse && slices > 1 && parts.picture)
        judge_slices(s, slices, &parts);
    r->ratio = all.ratio > r->ratio ? all.ratio : r->ratio;
    r->share = r->ratio;
    r->count = s->count;
    if (r->verdict == PARITY_FAIL)
        parity_diagnose(s->found, s->wanted, s->allowance, s->shape, s->ndim, s->stored, &h->scales,
                        r->diagnosis);
done:
    free(s->allowance);
    s->allowance = NULL;
    return st;
}

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
                                int64_t microbatch, subject *s, double **kept, bool *compared)
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

static assay_status judge_named(const whole *h, const assay_model_config *m, const char *candidate,
                                assay_phase phase, const char *kind, const char *name, int64_t step)
{
    parity_result r;
    parity_global g = {0};
    double *found = NULL, *wanted = NULL;
    bool compared = true;
    assay_status st = ASSAY_OK;
    const ref_named_tensor *truth = ref_result_find(&h->r->truth, kind, name, step);
    start(h, candidate, phase, step, -1, &r);
    subject s = {0};
    if (truth) {
        s = (subject){.runs = h->runs,
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
        if (strcmp(kind, "weight") == 0) {
            s.jump = h->r->jump;
            s.jump_rate = h->r->jump_rate;
            s.clusters = calloc((size_t)(s.ndim > 0 ? s.shape[0] : 0) + 1, sizeof *s.clusters);
            ASSAY_CHECK_GOTO(s.clusters, ASSAY_OUT_OF_MEMORY, st, done, "%s", name);
            for (int64_t i = 0; s.ndim > 0 && i < s.shape[0]; i++)
                s.clusters[i] = 1.0;
            s.cluster = parity_whole_clusters(&h->r->truth, name, s.clusters);
        }
        ASSAY_TRY_GOTO(judge_subject(h, candidate, &s, m, &r), st, done);
    }
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
    subject s = {.runs = h->runs, .truth = truth + step, .shape = one, .ndim = 1, .count = 1};
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
        st = judge_subject(h, name, &s, m, &r);
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
    subject s = {.runs = h->runs, .truth = truth, .shape = shape, .ndim = 2, .count = rows * t->shape[2]};
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
        ASSAY_TRY_GOTO(judge_subject(h, "logits", &s, m, &r), st, done);
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
        ASSAY_TRY(judge_named(h, &spec->config, name, ASSAY_PHASE_REDUCED_GRAD, "grad", p->name, step));
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
                                  p->name, step));
        }
        if (!p->trained)
            ASSAY_TRY(
                judge_named(h, &spec->config, p->name, ASSAY_PHASE_OPTIMIZER, "expert_bias", p->name, step));
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

static assay_status check_whole(parity_whole_cache *cache, const assay_trace *t, const parity_index *other,
                                double widen, parity_report *report)
{
    assay_status st = ASSAY_OK;
    parity_index *x = NULL;
    parity_whole_runs *r = NULL;
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
    for (int runs = PARITY_WHOLE_FIRST_RUNS;; runs = PARITY_WHOLE_RUNS) {
        ASSAY_TRY_GOTO(parity_whole_find_runs(cache, precision, &choice, runs, &r), st, done);
        ASSAY_TRY_GOTO(parity_table_create(&h.table, PARITY_CHECK_WHOLE), st, done);
        h.r = r;
        h.runs = runs;
        ASSAY_TRY_GOTO(judge_header(&h, precision), st, done);
        ASSAY_TRY_GOTO(judge_choices(&h, &choice), st, done);
        ASSAY_TRY_GOTO(judge_everything(&h, cache), st, done);
        if (runs == PARITY_WHOLE_RUNS || !parity_table_fails(h.table))
            break;
        parity_table_destroy(h.table);
        h.table = NULL;
        h.loss_curve = h.norm_curve = 0;
    }
    ASSAY_TRY_GOTO(parity_plan_tensors_create(&tensors, cache->spec, &cache->options, cache->batches), st,
                   done);
    ASSAY_TRY_GOTO(parity_table_flush_ordered(h.table, execution_order, tensors, report), st, done);
done:
    parity_plan_tensors_destroy(tensors);
    parity_table_destroy(h.table);
    free(choice.indices);
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
