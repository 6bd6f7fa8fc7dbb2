/* The loss: what it is of the tokens, what each microbatch counts in the objective, and what a wrong one looks like. */
#include "parity/run/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

assay_status check_values(const parity_index *x, const char *name, assay_phase phase, int64_t step,
                          int64_t microbatch, double **out, int64_t *count)
{
    parity_global g = {0};
    parity_result finding;
    assay_status st = ASSAY_OK;
    const parity_entry *e = parity_index_find(x, name, phase, step, microbatch);
    *out = NULL;
    *count = 0;
    if (e == NULL || !e->pieces[0].record->data)
        return ASSAY_OK;
    parity_result_init(&finding);
    ASSAY_TRY_GOTO(parity_entry_assemble(x, e, &g, &finding), st, done);
    if (!g.complete)
        goto done;
    *count = g.count;
    st = parity_decode_all(g.data, g.count, g.dtype, out);
done:
    parity_global_free(&g);
    return st;
}

assay_status check_scaler(const check_state *c, int64_t step, double *scale)
{
    double *found = NULL;
    int64_t n;
    ASSAY_TRY(check_values(c->index, "grad_scaler.scale", ASSAY_PHASE_OPTIMIZER, step, -1, &found, &n));
    *scale = n == 1 && isfinite(found[0]) && found[0] > 0.0 ? found[0] : 1.0;
    free(found);
    return ASSAY_OK;
}

/* --- what a loss looks like --------------------------------------------------------------------------------- */

static double cross_entropy(const double *logits, int64_t vocab, int64_t target)
{
    double largest = logits[0], sum = 0.0;
    for (int64_t v = 1; v < vocab; v++)
        largest = fmax(largest, logits[v]);
    for (int64_t v = 0; v < vocab; v++)
        sum += exp(logits[v] - largest);
    return log(sum) + largest - logits[target];
}

/* Mean over the logits [b,s,v] where position i is asked for the label of i + shift; labels may stand where they are asked. */
static double loss_of_shift(const check_state *c, const double *logits, int64_t microbatch, int64_t shift)
{
    const assay_batches *b = &c->reference->batches;
    const int64_t *labels = assay_batches_labels(b, 0, microbatch), vocab = c->names->config->vocab_size;
    const int64_t ahead = b->shifted ? shift - 1 : shift;
    double sum = 0.0, n = 0.0;
    for (int64_t row = 0; row < b->b; row++)
        for (int64_t i = 0; i < b->s; i++) {
            const int64_t at = i + ahead;
            const int64_t target = at >= 0 && at < b->s ? labels[row * b->s + at] : ASSAY_IGNORE_INDEX;
            if (target == ASSAY_IGNORE_INDEX)
                continue;
            sum += cross_entropy(logits + (row * b->s + i) * vocab, vocab, target);
            n += 1.0;
        }
    return sum / n;
}

/* The reference's [s,b,v] as [b,s,v]. */
static assay_status reference_logits(const check_state *c, int64_t microbatch, double **out, int64_t *count)
{
    const int64_t b = c->reference->batches.b, s = c->reference->batches.s,
                  vocab = c->names->config->vocab_size;
    double *ours = NULL;
    *out = NULL;
    ASSAY_TRY(check_values(c->reference->truth_index, "output_layer.y", ASSAY_PHASE_FORWARD, 0, microbatch,
                           &ours, count));
    if (ours != NULL && *count == b * s * vocab)
        *out = malloc(((size_t)*count + 1) * sizeof **out);
    for (int64_t i = 0; *out != NULL && i < b * s; i++)
        memcpy(*out + i * vocab, ours + ((i % s) * b + i / s) * vocab, (size_t)vocab * sizeof **out);
    free(ours);
    return ASSAY_OK;
}

/* Recorded logits, else the reference's; *recorded says which.  NULL: of another size than the batch's. */
static assay_status logits_of(const check_state *c, int64_t microbatch, double **out, bool *recorded)
{
    static const char *const names[] = {"logits", "lm_head"};
    const int64_t wanted = c->reference->batches.b * c->reference->batches.s * c->names->config->vocab_size;
    int64_t n = 0;
    *out = NULL;
    for (int i = 0; i < 2 && *out == NULL; i++)
        ASSAY_TRY(
            check_values(c->index, names[i], ASSAY_PHASE_FORWARD, c->reference->step, microbatch, out, &n));
    *recorded = *out != NULL;
    if (!*recorded && c->reference->truth_index != NULL)
        ASSAY_TRY(reference_logits(c, microbatch, out, &n));
    if (n != wanted) {
        free(*out);
        *out = NULL;
    }
    return ASSAY_OK;
}

/* The recorded loss as a mean over the microbatch's targets; NAN: none, or a loss for every target. */
static assay_status mean_loss(const check_state *c, int64_t microbatch, double *mean, double *floor)
{
    static const char *const names[] = {"loss", "loss_function"};
    *mean = (double)NAN;
    for (int i = 0; i < 2 && isnan(*mean); i++) {
        const parity_entry *e =
            parity_index_find(c->index, names[i], ASSAY_PHASE_FORWARD, c->reference->step, microbatch);
        double *loss = NULL, factor;
        int64_t n;
        if (e == NULL)
            continue;
        ASSAY_TRY(check_loss_factor(c, e, &factor));
        ASSAY_TRY(
            check_values(c->index, names[i], ASSAY_PHASE_FORWARD, c->reference->step, microbatch, &loss, &n));
        if (n == 1 && factor != 0.0)
            *mean = loss[0] * factor;
        *floor = fmax(*floor, ldexp(4.0, -assay_dtype_precision(e->pieces[0].record->dtype)));
        free(loss);
    }
    return ASSAY_OK;
}

/* The recorded loss from the recorded logits: another shift of the labels where theirs does not fit, another factor. */
assay_status check_explain_loss(const check_state *c, int64_t microbatch, char text[PARITY_TEXT])
{
    static const char *const shifted[] = {
        "the labels are not shifted: the recorded loss is that of each token predicting itself", NULL,
        "the labels are shifted twice: the recorded loss is that of the token after the next"};
    double *logits = NULL, loss = (double)NAN, floor = 1e-5; /* what a loss in F32 may lie off */
    bool recorded = false;
    assay_status st = ASSAY_OK;
    if (!c->reference->known || microbatch < 0 || microbatch >= c->reference->batches.microbatches)
        return ASSAY_OK;
    ASSAY_TRY_GOTO(logits_of(c, microbatch, &logits, &recorded), st, done);
    ASSAY_TRY_GOTO(mean_loss(c, microbatch, &loss, &floor), st, done);
    if (logits == NULL || isnan(loss))
        goto done;
    const double right = loss_of_shift(c, logits, microbatch, 1), off = fabs(right - loss),
                 close = 1e-3 * fabs(loss);
    /* near initialization every shift gives the logarithm of the vocabulary's size */
    for (int64_t shift = 0; shift <= 2 && off > floor * fabs(loss); shift += 2) {
        const double other = fabs(loss_of_shift(c, logits, microbatch, shift) - loss);
        if (other <= close && other < 0.1 * off)
            snprintf(text, PARITY_TEXT, "%s", shifted[shift]);
    }
    if (recorded && text[0] == '\0' && off > close)
        snprintf(text, PARITY_TEXT,
                 "the recorded loss is %.6g times the mean cross entropy %.6g of the recorded logits",
                 loss / right, right);
done:
    free(logits);
    return st;
}

/* --- what a microbatch counts ------------------------------------------------------------------------------- */

/* How far a weight may lie off: the gradient of a loss may be BF16. */
static const double weight_tolerance = 0.004;

static int64_t all_targets(const check_state *c)
{
    int64_t n = 0;
    for (int64_t m = 0; m < c->reference->batches.microbatches; m++)
        n += c->reference->microbatches[m].targets;
    return n;
}

/* Microbatches that are part of the objective: one whose targets are all masked is, with a loss of 0 (docs/SEMANTICS.md). */
static int64_t all_counting(const check_state *c)
{
    int64_t n = 0;
    for (int64_t m = 0; m < c->reference->batches.microbatches; m++)
        n += !c->reference->microbatches[m].evaluation;
    return n;
}

/* The weight of the mean of a microbatch's losses in the objective. */
static double wanted_weight(const check_state *c, int64_t microbatch, bool means)
{
    return means ? 1.0 / (double)all_counting(c)
                 : (double)c->reference->microbatches[microbatch].targets / (double)all_targets(c);
}

/* What a gradient of this run is multiplied by to be the objective's: by the reduction over data-parallel ranks, by a scaler's
 * unscaling. */
static assay_status units(const check_state *c, double *factor)
{
    double scale;
    ASSAY_TRY(check_scaler(c, c->reference->step, &scale));
    *factor = diff_gradient_scale(c->trace) / scale;
    return ASSAY_OK;
}

/* What arrives at the model's loss, in these units; NAN: not recorded. */
static assay_status arriving(const check_state *c, int64_t microbatch, double *out)
{
    double *gradient = NULL, factor;
    int64_t n;
    ASSAY_TRY(units(c, &factor));
    ASSAY_TRY(check_values(c->index, "loss.grad", ASSAY_PHASE_BACKWARD, c->reference->step, microbatch,
                           &gradient, &n));
    *out = n == 1 ? factor * gradient[0] : (double)NAN;
    free(gradient);
    return ASSAY_OK;
}

/* What the run gives the mean of a microbatch: by what its cross entropy's backward multiplies each target by, else by what arrives at
 * the loss, which is the mean or its part of the mean over the step.  NAN: nobody recorded it. */
static assay_status found_weight(const check_state *c, int64_t microbatch, double *weight)
{
    const parity_reference *r = c->reference;
    const assay_trace_op *op = parity_reference_op(c->trace, "cross_entropy_bwd", r->step, microbatch);
    const json_t *scale = op != NULL ? json_object_get(op->attrs, "scale") : NULL;
    double *logits = NULL, *loss = NULL, factor;
    int64_t n = 0;
    bool recorded;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(units(c, &factor));
    if (json_is_number(scale)) {
        *weight = factor * json_number_value(scale) * (double)r->microbatches[microbatch].targets;
        return ASSAY_OK;
    }
    ASSAY_TRY(arriving(c, microbatch, weight));
    if (isnan(*weight) || all_counting(c) == 1)
        return ASSAY_OK;
    ASSAY_TRY_GOTO(logits_of(c, microbatch, &logits, &recorded), st, done);
    ASSAY_TRY_GOTO(check_values(c->index, "loss", ASSAY_PHASE_FORWARD, r->step, microbatch, &loss, &n), st,
                   done);
    const double part = wanted_weight(c, microbatch, false);
    if (logits != NULL && n == 1) {
        const double ratio = loss[0] / loss_of_shift(c, logits, microbatch, 1);
        if (fabs(ratio - part) < fabs(ratio - 1.0))
            *weight *= part;
    }
done:
    free(loss);
    free(logits);
    return st;
}

assay_status check_loss_factor(const check_state *c, const parity_entry *e, double *factor)
{
    double arrives, weight;
    int64_t targets;
    ASSAY_TRY(diff_loss_factor(c->trace, e, factor, &targets));
    if (*factor != 1.0 || strcmp(e->name, "loss") != 0 || !c->reference->known || e->microbatch < 0 ||
        e->microbatch >= c->reference->batches.microbatches ||
        c->reference->microbatches[e->microbatch].targets == 0)
        return ASSAY_OK;
    ASSAY_TRY(arriving(c, e->microbatch, &arrives));
    weight = wanted_weight(c, e->microbatch, c->reference->means);
    if (c->scaled) /* said already: as much as the run makes of it */
        ASSAY_TRY(found_weight(c, e->microbatch, &weight));
    if (!isnan(arrives) && !isnan(weight) && arrives != 0.0 && weight != 0.0)
        *factor = arrives / weight;
    return ASSAY_OK;
}

/* Largest deviation of the found weights from a convention, the smallest and the largest factor to it. */
typedef struct weight_fit {
    double off, least, most;
} weight_fit;

static weight_fit fit(const check_state *c, const double *found, bool means)
{
    weight_fit f = {.off = 0.0, .least = (double)INFINITY, .most = 0.0};
    for (int64_t m = 0; m < c->reference->batches.microbatches; m++) {
        if (c->reference->microbatches[m].targets == 0 || isnan(found[m]))
            continue;
        const double factor = found[m] / wanted_weight(c, m, means);
        f.off = fmax(f.off, fabs(factor - 1.0));
        f.least = fmin(f.least, factor);
        f.most = fmax(f.most, factor);
    }
    return f;
}

static bool same_counts(const check_state *c)
{
    int64_t least = INT64_MAX, most = 0;
    for (int64_t m = 0; m < c->reference->batches.microbatches; m++) {
        const int64_t n = c->reference->microbatches[m].targets;
        least = n > 0 && n < least ? n : least;
        most = n > most ? n : most;
    }
    return least >= most;
}

static void note_convention(check_state *c)
{
    const parity_reference *r = c->reference;
    int64_t least = -1, most = -1;
    if (same_counts(c))
        return;
    for (int64_t m = 0; m < r->batches.microbatches; m++) {
        const int64_t n = r->microbatches[m].targets;
        least = n > 0 && (least < 0 || n < r->microbatches[least].targets) ? m : least;
        most = n > 0 && (most < 0 || n > r->microbatches[most].targets) ? m : most;
    }
    if (!r->means)
        check_note(c, "gradients are the mean over the step's %lld targets (step %lld)",
                   (long long)all_targets(c), (long long)r->step);
    else
        check_note(
            c,
            "gradients are the mean of the means of %lld microbatches (step %lld), which weighs a target of "
            "microbatch %lld (%lld targets) %.3g times one of microbatch %lld (%lld targets)",
            (long long)all_counting(c), (long long)r->step, (long long)least,
            (long long)r->microbatches[least].targets,
            (double)r->microbatches[most].targets / (double)r->microbatches[least].targets, (long long)most,
            (long long)r->microbatches[most].targets);
}

/* Neither convention fits: the factor to the one that all microbatches agree on. */
static void fail_scale(check_state *c, const double *found, const weight_fit *tokens, const weight_fit *means)
{
    const bool same = same_counts(c);
    const bool by_means = same || means->most / means->least <= tokens->most / tokens->least;
    const int64_t n = all_counting(c);
    char what[160];
    if (by_means)
        snprintf(what, sizeof what, "the mean over %lld microbatches", (long long)n);
    else
        snprintf(what, sizeof what, "the mean over the step's %lld targets", (long long)all_targets(c));
    for (int64_t m = 0; m < c->reference->batches.microbatches; m++) {
        if (c->reference->microbatches[m].targets == 0 || isnan(found[m]))
            continue;
        const double wanted = wanted_weight(c, m, by_means);
        if (fabs(found[m] / wanted - 1.0) > weight_tolerance)
            check_fail(
                c, CHECK_WHOLE,
                "the gradient that arrives at the loss of microbatch %lld (step %lld) is %.6g, "
                "expected %.6g for %s: the loss is scaled %.6g times (each of its %lld targets counts %.6g, "
                "expected %.6g)",
                (long long)m, (long long)c->reference->step, found[m], wanted, what, found[m] / wanted,
                (long long)c->reference->microbatches[m].targets,
                found[m] / (double)c->reference->microbatches[m].targets,
                wanted / (double)c->reference->microbatches[m].targets);
    }
    c->scaled = true;
}

/* The targets' mean or the mean of means: the run's own, which the reference takes. */
assay_status check_loss_scale(check_state *c)
{
    parity_reference *r = c->reference;
    double *found = malloc(((size_t)r->batches.microbatches + 1) * sizeof *found);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(found != NULL, ASSAY_OUT_OF_MEMORY, "weights of microbatches");
    for (int64_t m = 0; m < r->batches.microbatches; m++)
        ASSAY_TRY_GOTO(found_weight(c, m, &found[m]), st, done);
    const weight_fit tokens = fit(c, found, false), means = fit(c, found, true);
    r->means = means.off < tokens.off;
    if (fmin(tokens.off, means.off) > weight_tolerance) {
        r->means = means.most / means.least <= tokens.most / tokens.least;
        fail_scale(c, found, &tokens, &means);
    } else if (tokens.most > 0.0) {
        note_convention(c);
    }
    r->means =
        r->means && !same_counts(c); /* the same number, and what is asked of the reference stays one thing */
    if (r->means && all_counting(c) < r->batches.microbatches) {
        snprintf(c->unchecked[CHECK_WHOLE], PARITY_TEXT,
                 "the gradients are the mean of the means of %lld of %lld microbatches, the others are "
                 "evaluations: no run of the reference has that",
                 (long long)all_counting(c), (long long)r->batches.microbatches);
        c->no_gradients = true;
    }
done:
    free(found);
    return st;
}
