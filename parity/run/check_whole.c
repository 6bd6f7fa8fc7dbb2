/* The run against the reference's on the recorded batch, in the run's order of execution. */
#include "parity/run/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static assay_status explain_probs(const check_state *c, const diff_pair *p, char text[PARITY_TEXT])
{
    double *found = NULL;
    int64_t count;
    ASSAY_TRY(check_values(c->index, p->e->name, p->e->phase, p->e->step, p->e->microbatch, &found, &count));
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
    else if (c->reference->batches.position_ids != NULL && strstr(p->o->name, "core_attention.o") != NULL)
        snprintf(why, sizeof why,
                 "the documents of a row, whose position_ids start again, are not hidden from each other");
    if (why[0] == '\0')
        snprintf(why, sizeof why, "%s", r->diagnosis);
    char amount[PARITY_TEXT];
    const bool apart = strstr(r->message, "replicas differ") != NULL;
    if (!apart && strncmp(r->message, "another shape", 13) != 0)
        snprintf(amount, sizeof amount, "%.3g times what rounding explains (relative distance %.3g)",
                 r->ratio, s->relative);
    else /* never compared: of another shape, or ranks that hold one tensor and disagree */
        snprintf(amount, sizeof amount, "%.300s", r->message);
    check_fail(c, CHECK_WHOLE,
               "the first tensor that differs from the reference is %.150s = %.150s (phase %s, rank %d, step "
               "%lld%s): %.300s%s%.400s",
               p->e->name, p->o->name, assay_phase_name(p->e->phase), p->e->pieces[0].record->rank,
               (long long)p->e->step, microbatch, amount, why[0] != '\0' ? "; looks like: " : "", why);
    return ASSAY_OK;
}

/* One rank records in order of execution. */
static int compare_records(const void *a, const void *b)
{
    const parity_entry *const *x = a, *const *y = b;
    const int64_t s = (*x)->pieces[0].record->id, t = (*y)->pieces[0].record->id;
    return (s > t) - (s < t);
}

/* Of several ranks: stages follow each other forward, and the other way round backward. */
static int compare_ranks(const void *a, const void *b)
{
    const parity_entry *const *x = a, *const *y = b;
    const int s = (*x)->pieces[0].record->rank, t = (*y)->pieces[0].record->rank;
    if ((*x)->step != (*y)->step)
        return (*x)->step < (*y)->step ? -1 : 1;
    if ((*x)->phase != (*y)->phase)
        return (int)(*x)->phase - (int)(*y)->phase;
    if ((*x)->microbatch != (*y)->microbatch)
        return (*x)->microbatch < (*y)->microbatch ? -1 : 1;
    if (s != t)
        return (*x)->phase == ASSAY_PHASE_BACKWARD ? t - s : s - t;
    return compare_records(a, b);
}

static bool is_evaluation(const check_state *c, int64_t microbatch)
{
    return microbatch >= 0 && microbatch < c->reference->batches.microbatches &&
           c->reference->microbatches[microbatch].evaluation;
}

/* What follows from targets that nobody recorded, or from an objective that the reference does not have. */
static bool is_left_out(const check_state *c, const diff_pair *p)
{
    const assay_phase phase = p->e->phase;
    const bool gradient = phase == ASSAY_PHASE_BACKWARD || phase == ASSAY_PHASE_GRAD ||
                          phase == ASSAY_PHASE_REDUCED_GRAD || phase == ASSAY_PHASE_OPTIMIZER;
    const bool loss = p->row->relation == ASSAY_RELATION_MEAN;
    if (phase == ASSAY_PHASE_BACKWARD && is_evaluation(c, p->e->microbatch))
        return true;
    return (!c->reference->known && (gradient || loss)) || (c->no_gradients && gradient);
}

/* A loss of every target, or of none: its operation is judged. */
static assay_status is_no_mean(const check_state *c, diff_pair *p, bool *no)
{
    const int64_t m = p->e->microbatch;
    *no = false;
    if (p->row->relation != ASSAY_RELATION_MEAN)
        return ASSAY_OK;
    ASSAY_TRY(check_loss_factor(c, p->e, &p->factor));
    *no = p->factor == 0.0 ||
          (m >= 0 && m < c->reference->batches.microbatches && c->reference->microbatches[m].targets == 0);
    return ASSAY_OK;
}

static assay_status compare_one(check_state *c, const diff_compare *d, diff_pair *p)
{
    parity_result r;
    diff_statistics s;
    bool no_mean = false;
    ASSAY_TRY(is_no_mean(c, p, &no_mean));
    if (no_mean)
        return ASSAY_OK;
    ASSAY_TRY(diff_compare_pair(d, p, &r, &s, NULL));
    if (r.verdict == PARITY_PASS && p->e->later != NULL) {
        p->e = p->e->later; /* what its reader was given */
        ASSAY_TRY(diff_compare_pair(d, p, &r, &s, NULL));
        diff_say_later(&r);
    }
    c->passed[CHECK_WHOLE] += r.verdict == PARITY_PASS;
    if (r.verdict == PARITY_FAIL)
        ASSAY_TRY(report_failure(c, p, &r, &s));
    if (r.verdict == PARITY_SKIP && c->skipped[CHECK_WHOLE]++ == 0 && c->unchecked[CHECK_WHOLE][0] == '\0')
        snprintf(c->unchecked[CHECK_WHOLE], PARITY_TEXT, "%.150s: %.300s", p->e->name, r.message);
    return ASSAY_OK;
}

/* labels=input_ids of the model's call is one record: taken for the labels where that gives the recorded loss, and for nothing
 * where it does not. */
static assay_status confirm_labels(check_state *c, const diff_compare *d)
{
    static const char *const names[] = {"loss", "loss_function"};
    parity_reference *r = c->reference;
    int64_t confirmed = 0;
    for (int64_t m = 0; m < r->batches.microbatches && r->known && r->assumed; m++) {
        int64_t here = 0;
        for (int i = 0; i < 2 && !r->microbatches[m].known && !r->microbatches[m].evaluation; i++) {
            const parity_entry *e = parity_index_find(c->index, names[i], ASSAY_PHASE_FORWARD, r->step, m);
            parity_entry shifted;
            parity_result one;
            diff_statistics s;
            diff_pair p = {.e = e, .walked_is_second = true};
            if (e == NULL || !check_as_gradient(c, e, &shifted))
                continue;
            p.o = parity_aligner_find(c->names, r->truth_index, &shifted, &p.row);
            if (p.o == NULL)
                continue;
            ASSAY_TRY(check_loss_factor(c, e, &p.factor));
            ASSAY_TRY(diff_compare_pair(d, &p, &one, &s, NULL));
            here += one.verdict == PARITY_PASS;
            r->known = r->known && one.verdict == PARITY_PASS;
        }
        r->known = r->known && (here > 0 || r->microbatches[m].known || r->microbatches[m].evaluation);
        confirmed += here > 0;
    }
    if (r->known && confirmed > 0 && !c->labels_noted) {
        check_note(
            c, "the labels of step %lld are not recorded; input_ids as labels give its loss: taken for them",
            (long long)r->step);
        c->labels_noted = true;
    }
    return ASSAY_OK;
}

/* 0: nothing.  What the backward left is scaled, what the optimizer took is not. */
static double factor_of(assay_phase phase, double clip, double scale)
{
    const bool scaled =
        phase == ASSAY_PHASE_BACKWARD || phase == ASSAY_PHASE_GRAD || phase == ASSAY_PHASE_REDUCED_GRAD;
    return phase == ASSAY_PHASE_OPTIMIZER ? 1.0 / clip : scaled && scale != 1.0 ? 1.0 / scale : 0.0;
}

static assay_status compare_all(check_state *c, diff_compare *d)
{
    assay_status st = ASSAY_OK;
    int64_t left_out = 0;
    double clip, scale;
    ASSAY_TRY(check_clip(c, &clip));
    ASSAY_TRY(check_scaler(c, c->reference->step, &scale));
    const parity_entry **order = malloc(((size_t)c->index->n + 1) * sizeof *order);
    ASSAY_CHECK(order != NULL, ASSAY_OUT_OF_MEMORY, "order");
    for (int64_t i = 0; i < c->index->n; i++)
        order[i] = &c->index->entries[i];
    qsort(order, (size_t)c->index->n, sizeof *order,
          assay_trace_world(c->trace) > 1 ? compare_ranks : compare_records);
    for (int64_t i = 0; i < c->index->n && st == ASSAY_OK; i++) {
        parity_entry shifted;
        diff_pair p = {.e = order[i], .walked_is_second = true, .position = i};
        if (order[i]->step != c->reference->step || !check_as_gradient(c, order[i], &shifted))
            continue;
        p.factor = factor_of(order[i]->phase, clip, scale);
        p.o = parity_aligner_find(c->names, c->reference->truth_index, &shifted, &p.row);
        if (p.o == NULL || !parity_entry_assembles(p.e))
            continue;
        if (!is_left_out(c, &p))
            st = compare_one(c, d, &p);
        else if (!c->reference->known)
            left_out++;
    }
    if (left_out > 0 && c->unchecked[CHECK_WHOLE][0] == '\0')
        snprintf(
            c->unchecked[CHECK_WHOLE], PARITY_TEXT,
            "what the tokens of step %lld are asked for is not recorded, neither labels of the model's call "
            "nor a cross entropy of as many targets: %lld losses and gradients were not compared",
            (long long)c->reference->step, (long long)left_out);
    free(order);
    return st;
}

assay_status check_whole(check_state *c)
{
    const bool bf16 = strcmp(assay_trace_header_text(c->trace, "precision"), "bf16") == 0;
    parity_noise noise = {.unit = bf16 ? ASSAY_BF16 : ASSAY_F32, .longest = 1.0, .against_truth = true};
    diff_compare d = {.other = NULL, .walked = c->index, .tolerance = -1.0, .noise = &noise};
    if (c->reference == NULL)
        return ASSAY_OK;
    for (int64_t m = 0; m < c->reference->batches.microbatches; m++)
        if (is_evaluation(c, m))
            check_note(c,
                       "microbatch %lld of step %lld has no backward, where others have one: an evaluation, "
                       "compared in its forward alone",
                       (long long)m, (long long)c->reference->step);
    check_targets(c);
    if (c->reference->known)
        ASSAY_TRY(check_loss_scale(c));
    const int64_t before = c->failed[CHECK_WHOLE];
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
        c->failed[CHECK_WHOLE] = before;
        while (json_array_size(c->others) > listed)
            json_array_remove(c->others, json_array_size(c->others) - 1);
        snprintf(c->first[CHECK_WHOLE], CHECK_TEXT, "%s", first);
        ASSAY_TRY(parity_reference_run(c->reference, runs));
        d.other = c->reference->truth_index;
        ASSAY_TRY(confirm_labels(c, &d));
        ASSAY_TRY(compare_all(c, &d));
        if (runs == PARITY_REFERENCE_RUNS || c->failed[CHECK_WHOLE] == before)
            return ASSAY_OK;
    }
}
