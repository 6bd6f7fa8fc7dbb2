/* Parameters that the run left out where it has others of their kind: of the gradients, of the optimizer. */
#include "parity/run/check.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN = 3 };

/* Names of what is missing, the first few, and how many. */
typedef struct list {
    int64_t missing, there;
    char text[SHOWN * (ASSAY_NAME + 2)];
} list;

static void add(list *l, const char *name, bool there)
{
    l->there += there;
    if (there || l->missing++ >= SHOWN)
        return;
    const size_t n = strlen(l->text);
    snprintf(l->text + n, sizeof l->text - n, "%s%s", n > 0 ? ", " : "", name);
}

static const char *more(const list *l)
{
    return l->missing > SHOWN ? ", ..." : "";
}

static bool has_gradient(const check_state *c, const char *name, int64_t step)
{
    static const assay_phase phases[] = {ASSAY_PHASE_GRAD, ASSAY_PHASE_REDUCED_GRAD, ASSAY_PHASE_OPTIMIZER};
    char gradient[ASSAY_NAME + 8];
    snprintf(gradient, sizeof gradient, "%s.grad", name);
    for (int i = c->optimizer_gradients ? 2 : 0; i < (c->optimizer_gradients ? 3 : 2); i++)
        if (parity_index_find(c->index, gradient, phases[i], step, -1) != NULL)
            return true;
    return false;
}

static bool is_parameter(const check_state *c, const char *name)
{
    assay_name_match match[ASSAY_NAME_MATCHES];
    const int n = assay_names_find(c->names->names, name, ASSAY_PHASE_FORWARD, match);
    for (int i = 0; i < n; i++)
        if (match[i].row->parameter && strcmp(match[i].row->theirs, name) == 0)
            return true;
    return false;
}

/* Whether any gradient of a parameter is recorded in these phases. */
static bool any_gradient(const check_state *c, int64_t step, assay_phase a, assay_phase b)
{
    for (int64_t i = 0; i < c->index->n; i++) {
        const parity_entry *e = &c->index->entries[i];
        const size_t n = strlen(e->name), suffix = strlen(".grad");
        if (e->step == step && (e->phase == a || e->phase == b) && n > suffix &&
            strcmp(e->name + n - suffix, ".grad") == 0)
            return true;
    }
    return false;
}

/* What a forward of the step read, and no gradient came. */
static void note_gradients(check_state *c, int64_t step)
{
    list l = {0};
    bool backward = false;
    const bool cleared = !any_gradient(c, step, ASSAY_PHASE_GRAD, ASSAY_PHASE_REDUCED_GRAD);
    c->optimizer_gradients = cleared && any_gradient(c, step, ASSAY_PHASE_OPTIMIZER, ASSAY_PHASE_OPTIMIZER);
    const bool none = cleared && !c->optimizer_gradients; /* whatever parameters are recorded */
    for (int64_t i = 0; i < c->index->n; i++) {
        const parity_entry *e = &c->index->entries[i];
        backward = backward || (e->step == step && e->phase == ASSAY_PHASE_BACKWARD);
        /* a bias of the router is no parameter of the optimizer's */
        if (e->step == step && e->phase == ASSAY_PHASE_FORWARD && e->microbatch < 0 &&
            is_parameter(c, e->name) && strstr(e->name, "e_score_correction_bias") == NULL)
            add(&l, e->name, has_gradient(c, e->name, step));
    }
    if ((none || (l.missing > 0 && l.there == 0)) && backward && c->unchecked[CHECK_WHOLE][0] == '\0')
        snprintf(c->unchecked[CHECK_WHOLE], PARITY_TEXT,
                 "no gradient of a parameter is recorded in step %lld, though it has a backward: they were "
                 "cleared before the step ended (zero_grad inside of trace.step()), or everything is frozen",
                 (long long)step);
    if (l.missing > 0 && l.there > 0)
        check_note(
            c,
            "%lld of %lld parameters have no gradient in step %lld: %s%s: frozen (requires_grad is false), "
            "or the loss does not depend on them",
            (long long)l.missing, (long long)(l.missing + l.there), (long long)step, l.text, more(&l));
}

static bool has_step(const check_state *c, const char *name, int64_t step)
{
    char state[ASSAY_NAME + 16];
    snprintf(state, sizeof state, "%s.main_param", name);
    return parity_index_find(c->index, state, ASSAY_PHASE_OPTIMIZER, step, -1) != NULL;
}

/* Whether the next recorded step reads other bytes; true also where nobody knows. */
static bool changes_after(const check_state *c, const char *name, int64_t step)
{
    const parity_entry *a = parity_index_find(c->index, name, ASSAY_PHASE_FORWARD, step, -1);
    const parity_entry *b = parity_index_find(c->index, name, ASSAY_PHASE_FORWARD, step + 1, -1);
    return a == NULL || b == NULL || !assay_trace_same_content(a->pieces[0].record, b->pieces[0].record);
}

/* Counts the parameters with a gradient of the step by what `there` says of them. */
static void each_gradient(const check_state *c, int64_t step,
                          bool (*there)(const check_state *c, const char *name, int64_t step), list *l)
{
    for (int64_t i = 0; i < c->index->n; i++) {
        const parity_entry *e = &c->index->entries[i];
        char name[ASSAY_NAME];
        const size_t n = strlen(e->name), suffix = strlen(".grad");
        if (e->step != step || (e->phase != ASSAY_PHASE_GRAD && e->phase != ASSAY_PHASE_REDUCED_GRAD) ||
            n <= suffix || strcmp(e->name + n - suffix, ".grad") != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(n - suffix), e->name);
        add(l, name, there(c, name, step));
    }
}

/* A gradient that no step of the optimizer takes, or that changes nothing, where others do. */
static void check_optimizer(check_state *c, int64_t step)
{
    list steps = {0}, changes = {0};
    each_gradient(c, step, has_step, &steps);
    each_gradient(c, step, changes_after, &changes);
    if (steps.missing > 0 && steps.there > 0)
        check_note(
            c,
            "%lld of %lld parameters with a gradient have no step of the optimizer in step %lld: %s%s: left "
            "out of its groups, or stepped by another",
            (long long)steps.missing, (long long)(steps.missing + steps.there), (long long)step, steps.text,
            more(&steps));
    if (changes.missing > 0 && changes.there > 0)
        check_note(
            c,
            "%lld of %lld parameters with a gradient are in step %lld what they were in step %lld, where "
            "the others changed: %s%s: nothing steps them, the change is below their rounding, or what is "
            "stepped is not what the model reads",
            (long long)changes.missing, (long long)(changes.missing + changes.there), (long long)step + 1,
            (long long)step, changes.text, more(&changes));
}

/* Of the first recorded step, which the reference runs. */
assay_status check_missing(check_state *c)
{
    int64_t first = INT64_MAX;
    for (int64_t i = 0; i < c->index->n; i++)
        first = c->index->entries[i].step < first ? c->index->entries[i].step : first;
    note_gradients(c, first);
    check_optimizer(c, first);
    return ASSAY_OK;
}
