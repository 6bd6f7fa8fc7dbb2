/* Which executed operation is which expected one; what is missing, extra, out of order. */
#include "parity/checks/plan.h"

#include <stdlib.h>
#include <string.h>

enum { KEY = ASSAY_NAME + 128 };

/* Expected operations by key; equal ones are a chain in their order. */
typedef struct matcher {
    plan_findings *f;
    const plan *p;
    const assay_trace *t;
    parity_map *first; /* key -> 1 + number of the next expected one, 0: none is left */
    int64_t *next;     /* of each: 1 + number of the one after it with the same key, 0: none */
    plan_match both;
    int64_t farthest;                     /* expected operation of the latest pass seen so far, -1 */
    int64_t last_call[ASSAY_GROUP_COUNT]; /* expected number of the last collective of a group, -1 */
    plan_order order;                     /* of the last match: where an extra operation stands */
} matcher;

static void key_of(char out[KEY], const char *op, const char *instance, assay_phase phase, int64_t microbatch,
                   bool recompute)
{
    parity_key k = parity_key_begin(out, KEY);
    parity_key_text(&k, op);
    parity_key_text(&k, instance);
    parity_key_number(&k, (int64_t)phase);
    parity_key_number(&k, microbatch);
    parity_key_number(&k, recompute);
}

static plan_place place_of(const plan *p, const plan_op *o)
{
    return (plan_place){.op = o->op,
                        .instance = o->instance,
                        .phase = o->phase,
                        .rank = p->rank,
                        .step = p->step,
                        .microbatch = o->microbatch,
                        .order = o->order,
                        .wanted = o - p->ops + 1};
}

/* From the back, so that a chain runs forward. */
static assay_status index_plan(matcher *m)
{
    char key[KEY];
    for (int64_t i = m->p->n - 1; i >= 0; i--) {
        const plan_op *o = &m->p->ops[i];
        key_of(key, o->op, o->instance, o->phase, o->microbatch, o->recompute);
        const int64_t after = parity_map_get(m->first, key);
        m->next[i] = after > 0 ? after : 0;
        ASSAY_TRY(parity_map_put(m->first, key, i + 1));
    }
    return ASSAY_OK;
}

/* Passes follow the schedule; the collectives of a pass and group follow the plan. */
static assay_status check_order(matcher *m, int64_t i, const plan_place *at)
{
    const plan_op *o = &m->p->ops[i];
    const plan_op *far = m->farthest >= 0 ? &m->p->ops[m->farthest] : NULL;
    if (o->after >= 0 &&
        (far == NULL || o->block >= far->block)) { /* it may stand earlier than its block, not later */
        const plan_op *before = &m->p->ops[o->after];
        if (m->both.found_at[o->after] > 0)
            return plan_holds(m->f, at);
        return plan_fails(m->f, at, "order",
                          "order: expected behind %s %.100s (microbatch %lld), the last accumulation",
                          before->op, before->instance, (long long)before->microbatch);
    }
    if (far != NULL && o->block < far->block)
        return plan_fails(m->f, at, "order", "order: expected before %s %.100s (%s, microbatch %lld)",
                          far->op, far->instance, assay_phase_name(far->phase), (long long)far->microbatch);
    m->farthest = i;
    if (o->group < 0 || o->order.part != 1)
        return plan_holds(m->f, at);
    int64_t *last = &m->last_call[o->group];
    if (*last > i && m->p->ops[*last].block == o->block)
        return plan_fails(m->f, at, "order", "order: expected before %s %.100s of the same group",
                          m->p->ops[*last].op, m->p->ops[*last].instance);
    *last = i;
    return plan_holds(m->f, at);
}

static assay_status match_op(matcher *m, int64_t j)
{
    const assay_trace_op *found = m->both.ops[j];
    char key[KEY];
    key_of(key, found->op, found->instance, found->phase, found->microbatch, found->recompute);
    int64_t i = parity_map_get(m->first, key) - 1;
    if (i < 0) { /* the other way round, if such a one is wanted still */
        char other[KEY];
        key_of(other, found->op, found->instance, found->phase, found->microbatch, !found->recompute);
        const int64_t left = parity_map_get(m->first, other) - 1;
        if (left >= 0) {
            i = left;
            memcpy(key, other, sizeof key);
        }
    }
    if (i < 0) {
        const plan_place at = {.op = found->op,
                               .instance = found->instance,
                               .phase = found->phase,
                               .rank = m->p->rank,
                               .step = m->p->step,
                               .microbatch = found->microbatch,
                               .order = m->order,
                               .found = j + 1};
        return plan_fails(m->f, &at, "operation", "extra operation: %s %.160s (%s%s): expected %s", found->op,
                          found->instance, assay_phase_name(found->phase), found->recompute ? ", again" : "",
                          i == -1 ? "no more of it" : "none");
    }
    ASSAY_TRY(parity_map_put(m->first, key, m->next[i]));
    const plan_op *wanted = &m->p->ops[i];
    plan_place at = place_of(m->p, wanted);
    at.found = j + 1;
    m->both.found_at[i] = j + 1;
    m->both.wanted_of[j] = i + 1;
    m->order = wanted->order;
    ASSAY_TRY(check_order(m, i, &at));
    if (found->recompute != wanted->recompute)
        ASSAY_TRY(plan_fails(m->f, &at, "recompute", "expected an operation that %s, found one that %s",
                             wanted->recompute ? "runs again" : "runs for the first time",
                             found->recompute ? "runs again" : "runs for the first time"));
    return plan_compare_op(m->f, m->p, wanted, m->t, found, &at);
}

static assay_status name_missing(const matcher *m)
{
    for (int64_t i = 0; i < m->p->n; i++) {
        const plan_op *o = &m->p->ops[i];
        const plan_place at = place_of(m->p, o);
        if (m->both.found_at[i] == 0)
            ASSAY_TRY(plan_fails(m->f, &at, "operation", "missing operation: %s %.160s (%s%s)", o->op,
                                 o->instance, assay_phase_name(o->phase), o->recompute ? ", again" : ""));
    }
    return ASSAY_OK;
}

assay_status plan_compare(plan_findings *f, const plan *p, const assay_trace *t,
                          const assay_trace_op *const *ops, int64_t n)
{
    matcher m = {.f = f, .p = p, .t = t, .both = {.p = p, .ops = ops, .n = n}, .farthest = -1};
    assay_status st = ASSAY_OK;
    for (int g = 0; g < ASSAY_GROUP_COUNT; g++)
        m.last_call[g] = -1;
    m.next = calloc((size_t)p->n + 1, sizeof *m.next);
    m.both.found_at = calloc((size_t)p->n + 1, sizeof *m.both.found_at);
    m.both.wanted_of = calloc((size_t)n + 1, sizeof *m.both.wanted_of);
    ASSAY_CHECK_GOTO(m.next && m.both.found_at && m.both.wanted_of, ASSAY_OUT_OF_MEMORY, st, done,
                     "plan of %lld operations", (long long)p->n);
    ASSAY_TRY_GOTO(parity_map_create(&m.first), st, done);
    ASSAY_TRY_GOTO(index_plan(&m), st, done);
    for (int64_t i = 0; i < n; i++)
        ASSAY_TRY_GOTO(match_op(&m, i), st, done);
    ASSAY_TRY_GOTO(name_missing(&m), st, done);
    ASSAY_TRY_GOTO(plan_findings_draw(f, &m.both), st, done);
done:
    parity_map_destroy(m.first);
    free(m.next);
    free(m.both.found_at);
    free(m.both.wanted_of);
    return st;
}
