/* Laws of the plan: 1F1B, the learning rate, the order of tensors; what a header, a number of a step and a
 * precision claim; an empty trace lacks every operation. */
#include "parity/checks/plan.h"
#include "tests/support/plan.h"

/* --- schedule ----------------------------------------------------------------------------------------------- */

/* "F0 B0 ...", with chunks "F0a F0b ..."; passes of one round are joined by '+'. */
static void expect_schedule(int stages, int chunks, int stage, int64_t n, const char *text)
{
    plan_pass passes[32];
    char found[200] = "";
    size_t used = 0;
    plan_schedule(stages, chunks, stage, n, passes);
    for (int64_t i = 0; i < 2 * n * chunks; i++) {
        const char *between = i == 0 ? "" : passes[i].round == passes[i - 1].round ? "+" : " ";
        used += (size_t)snprintf(found + used, sizeof found - used, "%s%c%lld", between,
                                 passes[i].backward ? 'B' : 'F', (long long)passes[i].index);
        if (chunks > 1)
            used += (size_t)snprintf(found + used, sizeof found - used, "%c", 'a' + passes[i].chunk);
    }
    cr_assert_str_eq(found, text);
}

/* Megatron-LM, forward_backward_pipelining_without_interleaving. */
Test(parity_plan, stages_run_their_microbatches_as_1f1b)
{
    expect_schedule(1, 1, 0, 3, "F0 B0 F1 B1 F2 B2");
    expect_schedule(2, 1, 0, 4, "F0 F1 B0 F2 B1 F3 B2 B3");
    expect_schedule(2, 1, 1, 3, "F0 B0 F1 B1 F2 B2");
    expect_schedule(4, 1, 0, 4, "F0 F1 F2 F3 B0 B1 B2 B3");
    expect_schedule(4, 1, 1, 4, "F0 F1 F2 B0 F3 B1 B2 B3");
    expect_schedule(4, 1, 0, 2, "F0 F1 B0 B1");
}

/* Megatron-LM, forward_backward_pipelining_with_interleaving: the schedule tables of its tests, by hand. */
Test(parity_plan, chunks_are_interleaved)
{
    expect_schedule(2, 2, 0, 1, "F0a F0b B0b B0a");
    expect_schedule(2, 2, 1, 2, "F0a F1a F0b+B0b F1b+B1b B0a B1a");
    expect_schedule(2, 2, 0, 4, "F0a F1a F0b F1b F2a+B0b F3a+B1b F2b+B0a F3b+B1a B2b B3b B2a B3a");
    expect_schedule(2, 2, 1, 4, "F0a F1a F0b+B0b F1b+B1b F2a+B0a F3a+B1a F2b+B2b F3b+B3b B2a B3a");
}

/* --- learning rate ------------------------------------------------------------------------------------------ */

static void expect_rate(assay_lr_decay_style style, assay_wsd_decay_style wsd, int64_t done, double wanted)
{
    assay_train_options o;
    assay_train_options_default(&o);
    o.lr = 1.0;
    o.min_lr = 0.1;
    o.lr_warmup_init = 0.2;
    o.lr_warmup_iters = 2;
    o.lr_decay_iters = 10;
    o.lr_wsd_decay_iters = 4;
    o.lr_decay_style = style;
    o.lr_wsd_decay_style = wsd;
    const double found = plan_learning_rate(&o, 100, done);
    cr_assert(fabs(found - wanted) < 1e-15, "style %d at %lld: expected %.17g, found %.17g", (int)style,
              (long long)done, wanted, found);
    cr_assert(fabs(found - ref_learning_rate(&o, done)) < 1e-15, "the reference has %.17g",
              ref_learning_rate(&o, done));
}

Test(parity_plan, learning_rates_follow_the_schedules)
{
    expect_rate(ASSAY_LR_CONSTANT, ASSAY_WSD_LINEAR, 0, 0.2);
    expect_rate(ASSAY_LR_CONSTANT, ASSAY_WSD_LINEAR, 1, 0.6);
    expect_rate(ASSAY_LR_CONSTANT, ASSAY_WSD_LINEAR, 7, 1.0);
    expect_rate(ASSAY_LR_LINEAR, ASSAY_WSD_LINEAR, 6, 0.55);
    expect_rate(ASSAY_LR_LINEAR, ASSAY_WSD_LINEAR, 11, 0.1);
    expect_rate(ASSAY_LR_COSINE, ASSAY_WSD_LINEAR, 6, 0.55);
    expect_rate(ASSAY_LR_WSD, ASSAY_WSD_LINEAR, 6, 1.0);
    expect_rate(ASSAY_LR_WSD, ASSAY_WSD_LINEAR, 8, 0.55);
    expect_rate(ASSAY_LR_WSD, ASSAY_WSD_MINUS_SQRT, 7, 0.55);
    expect_rate(ASSAY_LR_WSD, ASSAY_WSD_EXPONENTIAL, 10, 0.1);
    expect_rate(ASSAY_LR_WSD, ASSAY_WSD_COSINE, 8, 0.55);
}

/* --- order of tensors --------------------------------------------------------------------------------------- */

Test(parity_plan, tensors_stand_in_the_order_of_execution)
{
    static const char *const names[] = {"decoder.layers.0.mlp.residual.y",
                                        "output_layer.y",
                                        "loss.sum.y",
                                        "decoder.final_layernorm.weight.main_grad",
                                        "decoder.layers.1.mlp.router.weight.main_grad",
                                        "decoder.layers.0.self_attention.linear_qkv.weight.main_grad",
                                        "decoder.layers.0.self_attention.linear_qkv.weight.main_param"};
    plan_cell c;
    parity_plan_tensors *t;
    plan_cell_make(&c, "1", ASSAY_PRECISION_FP32);
    must(parity_plan_tensors_create(&t, c.spec, &c.options, &c.batches));
    for (size_t i = 1; i < sizeof names / sizeof names[0]; i++)
        cr_assert_lt(parity_plan_tensors_order(t, names[i - 1]), parity_plan_tensors_order(t, names[i]), "%s",
                     names[i]);
    cr_assert_eq(parity_plan_tensors_order(t, "nothing"), INT64_MAX);
    parity_plan_tensors_destroy(t);
    plan_cell_free(&c);
}

/* --- headers, numbers, precision ---------------------------------------------------------------------------- */

static parity_report *judge_copy(const plan_cell *c, const char *kind, const char *instance, const char *slot,
                                 const char *value)
{
    char dir[256];
    parity_mutation m = {.step = -1, .microbatch = -1};
    snprintf(m.kind, sizeof m.kind, "%s", kind);
    snprintf(m.instance, sizeof m.instance, "%s", instance);
    snprintf(m.slot, sizeof m.slot, "%s", slot);
    snprintf(m.value, sizeof m.value, "%s", value);
    must(parity_trace_mutate(c->trace, fresh_path(dir, "m"), &m));
    assay_trace *t = open_trace(dir);
    parity_report *r = plan_judge(c, t);
    assay_trace_close(t);
    remove_path(dir);
    return r;
}

static void expect_first(parity_report *r, const char *instance, const char *item, const char *text)
{
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f, "%s", text);
    cr_assert_str_eq(f->instance, instance, "%s", f->message);
    cr_assert_str_eq(f->tensor, item);
    cr_assert(strstr(f->message, text), "%s", f->message);
    parity_report_destroy(r);
}

Test(parity_plan, header_and_numbers_of_a_step_are_claims)
{
    plan_cell c;
    plan_cell_make(&c, "1", ASSAY_PRECISION_FP32);
    expect_first(judge_copy(&c, "header", "", "precision", "bf16"), "trace", "precision",
                 "expected fp32, found bf16");
    expect_first(judge_copy(&c, "header", "", "layout", "tp2"), "trace", "layout", "expected 1, found tp2");
    expect_first(judge_copy(&c, "double", "loss", "", ""), "loss", "loss", "from the recorded sums");
    expect_first(judge_copy(&c, "double", "grad_norm", "", ""), "grad_norm", "grad_norm",
                 "from the recorded sums");
    expect_first(judge_copy(&c, "repeat", "loss", "", ""), "loss", "loss",
                 "expected one number in phase optimizer, found several");
    plan_cell_free(&c);
}

Test(parity_plan, bf16_under_an_fp32_header_is_named_at_the_first_tensor)
{
    plan_cell c;
    plan_cell_make(&c, "1", ASSAY_PRECISION_BF16);
    c.options.precision = ASSAY_PRECISION_FP32;
    expect_first(judge_copy(&c, "header", "", "precision", "fp32"), "embedding", "weight",
                 "expected dtype F32, found BF16");
    plan_cell_free(&c);
}

/* --- nothing, and too much ---------------------------------------------------------------------------------- */

Test(parity_plan, an_empty_trace_lacks_every_operation)
{
    char dir[256];
    plan_cell c;
    plan_cell_make(&c, "1", ASSAY_PRECISION_FP32);
    assay_trace_writer *w = open_writer(fresh_path(dir, "t"), 0, 1, "1");
    assay_trace_op o = op_of("linear_fwd", "decoder.layers.99.mlp.linear_fc1", ASSAY_PHASE_FORWARD);
    must(assay_trace_write_op(w, &o));
    o.step = 7;
    must(assay_trace_write_op(w, &o));
    close_writer(w);
    assay_trace *t = open_trace(dir);
    parity_report *r = plan_judge(&c, t);
    int64_t missing = 0, extra = 0;
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        missing += strstr(parity_report_at(r, i)->message, "missing operation: ") != NULL;
        extra += strstr(parity_report_at(r, i)->message, "extra operation: linear_fwd") != NULL;
    }
    cr_assert_eq(n_passed(r), 0);
    cr_assert_gt(missing, 150);
    cr_assert_eq(extra, 1);
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
    plan_cell_free(&c);
}
