/* What the whole check takes from the candidate: its choices of experts, its clips, and in a second look its masters. */
#include "parity/run/trace_mutate.h"
#include "tests/support/whole.h"

#include <math.h>

/* A decision of the candidate's that no whole tensor can be made of is not replaced by the reference's own. */
static void expect_unreadable(setting *s, const char *record)
{
    char dir[256], other[256];
    assay_trace *t = candidate(s, dir, true);
    parity_mutation m = {.kind = "local", .step = 0, .microbatch = 0};
    snprintf(m.instance, sizeof m.instance, "%s", record);
    must(parity_trace_mutate(t, fresh_path(other, "m"), &m));
    assay_trace *changed = open_trace(other);
    parity_report *r = judge(s, changed);
    const parity_claim *x = result_of(r, record);
    cr_assert_eq(x->verdict, PARITY_FAIL);
    cr_assert(strstr(x->message, "recorded and cannot be read"), "%s", x->message);
    parity_report_destroy(r);
    assay_trace_close(changed);
    assay_trace_close(t);
    remove_path(other);
    remove_path(dir);
}

Test(parity_whole_replayed, a_choice_that_cannot_be_read_fails)
{
    setting s;
    set_up(&s);
    expect_unreadable(&s, "decoder.layers.0.mlp.router.indices");
    tear_down(&s);
}

Test(parity_whole_replayed, a_clip_that_cannot_be_read_fails)
{
    setting s;
    set_up_with_clip(&s, 0.5);
    expect_unreadable(&s, "decoder.layers.0.self_attention.clip_k.y");
    tear_down(&s);
}

/* The first layer's q behind a clamp in step 0, or its gradient. */
static double *clipped_q(assay_trace *t, assay_phase phase, int64_t *n)
{
    parity_index *x;
    parity_global g = {0};
    parity_result finding;
    double *value;
    must(parity_index_create(&x, t));
    parity_result_init(&finding);
    const char *name = phase == ASSAY_PHASE_BACKWARD ? "decoder.layers.0.self_attention.clip_q.y.grad"
                                                     : "decoder.layers.0.self_attention.clip_q.y";
    const parity_entry *e = parity_index_find(x, name, phase, 0, 0);
    cr_assert_not_null(e);
    must(parity_entry_assemble(x, e, &g, &finding));
    must(parity_decode_all(g.data, g.count, g.dtype, &value));
    *n = g.count;
    parity_global_free(&g);
    parity_index_destroy(x);
    return value;
}

/* A limit that a value of q reaches in bf16 and does not reach in double: of those with a gradient above the average, the one farthest away,
 * which other roundings hardly take there. */
static double limit_that_rounding_crosses(void)
{
    static const assay_precision in[] = {ASSAY_PRECISION_BF16, ASSAY_PRECISION_FP64};
    double *q[2], *gradient[2], limit = 0.0, farthest = 0.0, average = 0.0;
    int64_t n = 0;
    for (int k = 0; k < 2; k++) {
        setting s;
        char dir[256];
        set_up_with_clip(&s, 1e6);
        assay_trace *t = candidate_in(&s, dir, true, in[k], NULL);
        q[k] = clipped_q(t, ASSAY_PHASE_FORWARD, &n);
        gradient[k] = clipped_q(t, ASSAY_PHASE_BACKWARD, &n);
        assay_trace_close(t);
        remove_path(dir);
        tear_down(&s);
    }
    for (int64_t i = 0; i < n; i++)
        average += fabs(gradient[0][i]) / (double)n;
    for (int64_t i = 0; i < n; i++) {
        const double crossed = 1.0 - fabs(q[1][i]) / fabs(q[0][i]);
        if (fabs(gradient[0][i]) > average && crossed > farthest) {
            limit = fabs(q[0][i]);
            farthest = crossed;
        }
    }
    for (int k = 0; k < 2; k++) {
        free(q[k]);
        free(gradient[k]);
    }
    return limit;
}

static bool lets_all_pass(void *user, int64_t step, int64_t microbatch, int64_t layer,
                          ref_clip_operand operand, bool *passes, int64_t n)
{
    (void)user, (void)step, (void)microbatch, (void)layer, (void)operand;
    for (int64_t i = 0; i < n; i++)
        passes[i] = true;
    return true;
}

/* A value that rounding carries across clip_qkv loses its whole gradient: no rounding of a gradient, and no fault. */
Test(parity_whole_replayed, a_clip_is_decided_as_the_candidate_decided_it)
{
    const double limit = limit_that_rounding_crosses();
    const ref_run_config told = {.clip = lets_all_pass};
    cr_assert_gt(limit, 0.0);
    for (int k = 0; k < 2; k++) {
        setting s;
        char dir[256];
        set_up_with_clip(&s, limit);
        s.options.precision = ASSAY_PRECISION_BF16;
        assay_trace *t = candidate_in(&s, dir, true, ASSAY_PRECISION_BF16, k == 0 ? NULL : &told);
        parity_report *r = judge(&s, t);
        if (k == 0)
            print_failures(r);
        cr_expect_eq(n_failed(r) > 0, k == 1, "%s", k == 0 ? "an honest candidate" : "nothing is held back");
        parity_report_destroy(r);
        assay_trace_close(t);
        remove_path(dir);
        tear_down(&s);
    }
}

/* Few tokens: a second look is twenty runs and more. */
static void set_up_two_steps(setting *s)
{
    set_up(s);
    s->options.train_iters = 2;
    s->batches.microbatches = s->batches.b = 1;
}

/* A column of a matrix takes two steps too many in the other direction behind step 0. */
typedef struct wrong_update {
    const setting *s;
    int64_t param, column;
} wrong_update;

static bool go_the_wrong_way(void *user, int64_t step, int64_t param, double *master, int64_t n)
{
    const wrong_update *u = user;
    const assay_param_spec *p = &u->s->spec->params[u->param];
    const int64_t columns = p->shape[p->ndim - 1];
    const double *before = u->s->weights[u->param];
    if (step != 0 || param != u->param)
        return false;
    for (int64_t i = u->column; i < n; i += columns)
        master[i] = (double)(float)(before[i] - (master[i] - before[i]));
    return true;
}

/* What follows from a wrong master is its consequence: the runs go on from it, and it is named where it came to be, alone. */
Test(parity_whole_replayed, a_wrong_master_is_named_at_its_step_and_nothing_behind_it)
{
    static const char *const names[] = {"output_layer.weight",
                                        "decoder.layers.0.mlp.experts.linear_fc1.weight"};
    setting s;
    set_up_two_steps(&s);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char dir[256], master[ASSAY_NAME + 16];
        int64_t looks;
        wrong_update wrong = {
            .s = &s, .param = assay_spec_find(s.spec, names[i]) - s.spec->params, .column = 3};
        const ref_run_config told = {.master = go_the_wrong_way, .routing_user = &wrong};
        assay_trace *t = candidate_in(&s, dir, true, ASSAY_PRECISION_FP32, &told);
        parity_report *r = judge_and_count(&s, t, &looks);
        snprintf(master, sizeof master, "%s.main_param", names[i]);
        cr_expect_eq(looks, 2);
        cr_expect_eq(n_failed(r), 2, "%s: one claim, judged twice, found %lld", names[i],
                     (long long)n_failed(r));
        cr_expect_str_eq(first_failure(r)->tensor, master);
        cr_expect_eq(first_failure(r)->step, 0);
        parity_report_destroy(r);
        assay_trace_close(t);
        remove_path(dir);
    }
    tear_down(&s);
}

/* A master that cannot be read is not gone on from, and it does not get away either. */
Test(parity_whole_replayed, a_master_that_cannot_be_read_fails)
{
    setting s;
    char dir[256], other[256];
    set_up_two_steps(&s);
    assay_trace *t = candidate(&s, dir, true);
    parity_mutation m = {
        .kind = "local", .instance = "output_layer.weight.main_param", .step = 0, .microbatch = -1};
    must(parity_trace_mutate(t, fresh_path(other, "m"), &m));
    assay_trace *changed = open_trace(other);
    parity_mutation loss = {
        .kind = "nan", .instance = "loss", .step = 1, .microbatch = -1}; /* a second look */
    char third[256];
    must(parity_trace_mutate(changed, fresh_path(third, "m"), &loss));
    assay_trace *both = open_trace(third);
    parity_report *r = judge(&s, both);
    const parity_claim *x = result_of(r, "output_layer.weight.main_param");
    cr_assert_eq(x->verdict, PARITY_FAIL);
    parity_report_destroy(r);
    assay_trace_close(both);
    assay_trace_close(changed);
    assay_trace_close(t);
    remove_path(third);
    remove_path(other);
    remove_path(dir);
    tear_down(&s);
}
