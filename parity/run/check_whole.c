/* The run against the reference's on the recorded batch, in the run's order of execution. */
#include "parity/run/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static assay_status values_of(const parity_index *x, const char *name, assay_phase phase, int64_t step,
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

/* Mean over the recorded logits [b,s,v] where the target of position i is the label of i + shift. */
static double loss_of_shift(const check_state *c, const double *logits, int64_t microbatch, int64_t shift)
{
    const assay_batches *b = &c->reference->batches;
    const int64_t *labels = assay_batches_labels(b, 0, microbatch), vocab = c->names->config->vocab_size;
    double sum = 0.0, n = 0.0;
    for (int64_t row = 0; row < b->b; row++)
        for (int64_t i = 0; i + shift < b->s; i++) {
            const int64_t target = labels[row * b->s + i + shift];
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
    ASSAY_TRY(values_of(c->reference->truth_index, "output_layer.y", ASSAY_PHASE_FORWARD, 0, microbatch,
                        &ours, count));
    if (ours != NULL && *count == b * s * vocab)
        *out = malloc(((size_t)*count + 1) * sizeof **out);
    for (int64_t i = 0; *out != NULL && i < b * s; i++)
        memcpy(*out + i * vocab, ours + ((i % s) * b + i / s) * vocab, (size_t)vocab * sizeof **out);
    free(ours);
    return ASSAY_OK;
}

/* The recorded loss from the recorded logits: another shift of the labels, another factor. */
assay_status check_explain_loss(const check_state *c, int64_t microbatch, char text[PARITY_TEXT])
{
    double *logits = NULL, *loss = NULL;
    int64_t n_logits, n_loss;
    const int64_t step = c->reference->step, vocab = c->names->config->vocab_size;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(values_of(c->index, "logits", ASSAY_PHASE_FORWARD, step, microbatch, &logits, &n_logits),
                   st, done);
    if (logits == NULL)
        ASSAY_TRY_GOTO(
            values_of(c->index, "lm_head", ASSAY_PHASE_FORWARD, step, microbatch, &logits, &n_logits), st,
            done);
    ASSAY_TRY_GOTO(values_of(c->index, "loss", ASSAY_PHASE_FORWARD, step, microbatch, &loss, &n_loss), st,
                   done);
    if (loss == NULL)
        ASSAY_TRY_GOTO(
            values_of(c->index, "loss_function", ASSAY_PHASE_FORWARD, step, microbatch, &loss, &n_loss), st,
            done);
    const bool recorded = logits != NULL;
    if (!recorded && c->reference->truth_index != NULL) /* nobody saw them: the reference's */
        ASSAY_TRY_GOTO(reference_logits(c, microbatch, &logits, &n_logits), st, done);
    if (logits == NULL || n_loss != 1 ||
        n_logits != c->reference->batches.b * c->reference->batches.s * vocab)
        goto done;
    const double right = loss_of_shift(c, logits, microbatch, 1);
    const double close = 1e-3 * fabs(loss[0]);
    for (int64_t shift = 0; shift <= 2; shift += 2)
        if (fabs(loss_of_shift(c, logits, microbatch, shift) - loss[0]) <= close)
            snprintf(
                text, PARITY_TEXT,
                shift == 0
                    ? "the labels are not shifted: the recorded loss is that of each token predicting itself"
                    : "the labels are shifted twice: the recorded loss is that of the token after the next");
    if (recorded && text[0] == '\0' && fabs(right - loss[0]) > close)
        snprintf(text, PARITY_TEXT,
                 "the recorded loss is %.6g times the mean cross entropy %.6g of the recorded logits",
                 loss[0] / right, right);
done:
    free(loss);
    free(logits);
    return st;
}

static assay_status explain_probs(const check_state *c, const diff_pair *p, char text[PARITY_TEXT])
{
    double *found = NULL;
    int64_t count;
    ASSAY_TRY(values_of(c->index, p->e->name, p->e->phase, p->e->step, p->e->microbatch, &found, &count));
    if (found != NULL)
        check_explain_probs(c, found, count, c->reference->batches.b * c->reference->batches.s, text);
    free(found);
    return ASSAY_OK;
}

/* --- the comparison ----------------------------------------------------------------------------------------- */

static assay_status report_failure(check_state *c, const diff_pair *p, const parity_result *r,
                                   const diff_statistics *s)
{
    char why[PARITY_TEXT] = "", microbatch[48] = "";
    if (p->e->microbatch >= 0)
        snprintf(microbatch, sizeof microbatch, ", microbatch %lld", (long long)p->e->microbatch);
    if (c->failed[CHECK_WHOLE] > 0) {
        check_fail(c, CHECK_WHOLE, "%.150s = %.150s (phase %s, rank %d, step %lld%s): %.3g times", p->e->name,
                   p->o->name, assay_phase_name(p->e->phase), p->e->pieces[0].record->rank,
                   (long long)p->e->step, microbatch, r->ratio);
        return ASSAY_OK;
    }
    if (strcmp(p->o->name, "loss.loss") == 0)
        ASSAY_TRY(check_explain_loss(c, p->e->microbatch, why));
    else if (strstr(p->o->name, "router.probs") != NULL)
        ASSAY_TRY(explain_probs(c, p, why));
    if (why[0] == '\0')
        snprintf(why, sizeof why, "%s", r->diagnosis);
    char amount[PARITY_TEXT];
    if (strncmp(r->message, "another shape", 13) != 0)
        snprintf(amount, sizeof amount, "%.3g times what rounding explains (relative distance %.3g)",
                 r->ratio, s->relative);
    else /* never compared: of another shape */
        snprintf(amount, sizeof amount, "%.300s", r->message);
    check_fail(c, CHECK_WHOLE,
               "the first tensor that differs from the reference is %.150s = %.150s (phase %s, rank %d, step "
               "%lld%s): %.300s%s%.400s",
               p->e->name, p->o->name, assay_phase_name(p->e->phase), p->e->pieces[0].record->rank,
               (long long)p->e->step, microbatch, amount, why[0] != '\0' ? "; looks like: " : "", why);
    return ASSAY_OK;
}

static int compare_orders(const void *a, const void *b)
{
    const parity_entry *const *x = a, *const *y = b;
    const assay_trace_tensor *s = (*x)->pieces[0].record, *t = (*y)->pieces[0].record;
    if (s->rank != t->rank && (*x)->phase != (*y)->phase)
        return (int)(*x)->phase - (int)(*y)->phase;
    if (s->rank == t->rank)
        return (s->id > t->id) - (s->id < t->id);
    return s->rank - t->rank;
}

static assay_status compare_all(check_state *c, diff_compare *d)
{
    const parity_entry **order = malloc(((size_t)c->index->n + 1) * sizeof *order);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(order != NULL, ASSAY_OUT_OF_MEMORY, "order");
    for (int64_t i = 0; i < c->index->n; i++)
        order[i] = &c->index->entries[i];
    qsort(order, (size_t)c->index->n, sizeof *order, compare_orders);
    for (int64_t i = 0; i < c->index->n && st == ASSAY_OK; i++) {
        parity_entry shifted = *order[i];
        parity_result r;
        diff_statistics s;
        diff_pair p = {.e = order[i], .walked_is_second = true, .position = i};
        if (order[i]->step != c->reference->step || order[i]->phase == ASSAY_PHASE_OPTIMIZER)
            continue;
        shifted.step = 0; /* the reference's only one */
        p.o = parity_aligner_find(c->names, c->reference->truth_index, &shifted, &p.row);
        if (p.o == NULL || !parity_entry_assembles(p.e))
            continue;
        st = diff_compare_pair(d, &p, &r, &s, NULL);
        if (st == ASSAY_OK && r.verdict == PARITY_PASS && p.e->later != NULL) {
            p.e = p.e->later; /* what its reader was given */
            st = diff_compare_pair(d, &p, &r, &s, NULL);
            diff_say_later(&r);
        }
        c->passed[CHECK_WHOLE] += st == ASSAY_OK && r.verdict == PARITY_PASS;
        if (st == ASSAY_OK && r.verdict == PARITY_FAIL)
            st = report_failure(c, &p, &r, &s);
        if (st == ASSAY_OK && r.verdict == PARITY_SKIP && c->skipped[CHECK_WHOLE]++ == 0)
            snprintf(c->unchecked[CHECK_WHOLE], PARITY_TEXT, "%.150s: %.300s", p.e->name, r.message);
    }
    free(order);
    return st;
}

/* The loss of a microbatch counts one part in as many as there are: what arrives at it says whether it does. */
static assay_status check_loss_scale(check_state *c)
{
    const int64_t n = c->reference->batches.microbatches;
    const double later =
        diff_gradient_scale(c->trace); /* what the reduction over data-parallel ranks will make of it */
    for (int64_t m = 0; m < n; m++) {
        double *gradient = NULL;
        int64_t count;
        ASSAY_TRY(
            values_of(c->index, "loss.grad", ASSAY_PHASE_BACKWARD, c->reference->step, m, &gradient, &count));
        const double found = count == 1 ? later * gradient[0] : 1.0 / (double)n, wanted = 1.0 / (double)n;
        free(gradient);
        if (fabs(found - wanted) > 0.004 * wanted)
            check_fail(c, CHECK_WHOLE,
                       "the gradient that arrives at the loss of microbatch %lld (step %lld) is %.6g, "
                       "expected %.6g for "
                       "the mean over %lld microbatches: the loss is scaled %.6g times",
                       (long long)m, (long long)c->reference->step, found, wanted, (long long)n,
                       found / wanted);
    }
    return ASSAY_OK;
}

assay_status check_whole(check_state *c)
{
    const bool bf16 = strcmp(assay_trace_header_text(c->trace, "precision"), "bf16") == 0;
    parity_noise noise = {.unit = bf16 ? ASSAY_BF16 : ASSAY_F32, .longest = 1.0, .against_truth = true};
    diff_compare d = {.other = NULL, .walked = c->index, .tolerance = -1.0, .noise = &noise};
    if (c->reference == NULL)
        return ASSAY_OK;
    ASSAY_TRY(check_loss_scale(c));
    const int64_t scale_failures = c->failed[CHECK_WHOLE];
    const size_t listed = json_array_size(c->others);
    char first[CHECK_TEXT];
    snprintf(first, sizeof first, "%s", c->first[CHECK_WHOLE]);
    noise.runs = c->reference;
    parity_scales_from_trace(c->trace, &d.scales);
    d.scale[0] = 1.0;
    d.scale[1] = diff_gradient_scale(c->trace);
    /* another framework rounds where the reference does and up to twice in between: sqrt(3) times the deviation */
    c->reference->perturb = sqrt(3.0);
    for (int runs = PARITY_REFERENCE_FIRST;; runs = PARITY_REFERENCE_RUNS) {
        c->passed[CHECK_WHOLE] = c->skipped[CHECK_WHOLE] = 0;
        c->failed[CHECK_WHOLE] = scale_failures;
        while (json_array_size(c->others) > listed)
            json_array_remove(c->others, json_array_size(c->others) - 1);
        snprintf(c->first[CHECK_WHOLE], CHECK_TEXT, "%s", first);
        ASSAY_TRY(parity_reference_run(c->reference, runs));
        d.other = c->reference->truth_index;
        ASSAY_TRY(compare_all(c, &d));
        if (runs == PARITY_REFERENCE_RUNS || c->failed[CHECK_WHOLE] == scale_failures)
            return ASSAY_OK;
    }
}
