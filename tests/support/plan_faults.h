/* Faults planted in copies of a trace, and where the plan must name them: operation, instance, slot or attribute, rank, step and
 * microbatch. */
#ifndef TESTS_PLAN_FAULTS_SUPPORT_H
#define TESTS_PLAN_FAULTS_SUPPORT_H

#include "tests/support/plan.h"

#define L0 "decoder.layers.0."
#define L1 "decoder.layers.1."
#define A0 L0 "self_attention."
#define M1 L1 "mlp."
#define EMBEDDING "embedding.word_embeddings.weight"
#define INPUT true

typedef struct fault {
    const char *kind, *op, *instance, *slot, *value;
    bool input;
    int rank;
    int64_t step, microbatch;
    const char *item; /* NULL: the slot */
} fault;

static inline void expect_named(const plan_cell *c, const fault *k)
{
    char dir[256], what[200];
    parity_mutation m = {.input = k->input, .rank = k->rank, .step = k->step, .microbatch = k->microbatch};
    snprintf(m.kind, sizeof m.kind, "%s", k->kind);
    snprintf(m.op, sizeof m.op, "%s", k->op);
    snprintf(m.instance, sizeof m.instance, "%s", k->instance);
    snprintf(m.slot, sizeof m.slot, "%s", k->slot);
    snprintf(m.value, sizeof m.value, "%s", k->value);
    snprintf(what, sizeof what, "%s %s %s %s", k->kind, k->op, k->instance, k->slot);
    cr_expect_eq(parity_trace_mutate(c->trace, fresh_path(dir, "m"), &m), ASSAY_OK, "%s: %s", what,
                 assay_error_message());
    assay_trace *t = open_trace(dir);
    parity_report *r = plan_judge(c, t);
    const parity_claim *f = first_failure(r);
    cr_expect(f != NULL, "%s: not caught", what);
    if (f != NULL) {
        cr_expect(strcmp(f->op, k->op) == 0 && strcmp(f->instance, k->instance) == 0 &&
                      strcmp(f->tensor, k->item ? k->item : k->slot) == 0 && f->rank == k->rank &&
                      f->step == k->step && f->microbatch == k->microbatch,
                  "%s: named at %s %s %s: %s", what, f->op, f->instance, f->tensor, f->message);
        cr_expect(strstr(f->message, "expected") || strstr(f->message, "missing"), "%s: %s", what,
                  f->message);
        /* A sum of squares or count that is not made or made twice is also missing from, or twice in, what is reduced. */
        const int64_t most = strcmp(k->op, "sumsq") == 0 || strcmp(k->op, "count_zeros") == 0 ? 2 : 1;
        cr_expect_leq(n_failed(r), most, "%s: %lld results fail", what, (long long)n_failed(r));
    }
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
}

/* An honest run of the layout holds the plan, and every fault of the table is named. */
static inline void expect_faults(const char *model, const char *layout, assay_precision precision,
                                 double capacity, assay_token_dispatcher dispatcher, const fault *faults,
                                 size_t n)
{
    plan_cell c;
    plan_cell_run_with(&c, model, layout, precision, "", capacity, dispatcher);
    parity_report *r = plan_judge(&c, c.trace);
    print_failures(r);
    cr_assert_eq(n_failed(r), 0);
    cr_assert_gt(n_passed(r), 150);
    parity_report_destroy(r);
    for (size_t i = 0; i < n; i++)
        expect_named(&c, &faults[i]);
    plan_cell_free(&c);
}

#define TABLE(x) x, sizeof(x) / sizeof(x)[0]

#endif
