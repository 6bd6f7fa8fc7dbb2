/* Records of what runs again for the backward pass: the plan demands exactly them, each holds the bits of its first run, and a
 * second forward that goes astray is named at the operation, in fp32 and in bf16. */
#include "tests/support/plan.h"

TestSuite(parity_recompute, .timeout = 300);

#define L0 "decoder.layers.0."
#define L1 "decoder.layers.1."
#define EVERYTHING "core_attn,layernorm,moe_act,shared_experts"
#define INPUT true

static parity_report *judge_bits(const assay_trace *t)
{
    parity_report *r = new_report();
    must(parity_check_recompute(t, r));
    return r;
}

/* A changed copy of the record of a second run. */
typedef struct fault {
    const char *kind, *op, *instance, *slot, *value;
    bool input;
    int rank;
    int64_t step, microbatch;
    const char *item; /* NULL: the slot */
    bool plan;        /* who has to name it: the plan, or the comparison with the first run */
} fault;

static void expect_named(const plan_cell *c, const fault *k)
{
    char dir[256], what[200];
    parity_mutation m = {
        .input = k->input, .rank = k->rank, .step = k->step, .microbatch = k->microbatch, .again = true};
    snprintf(m.kind, sizeof m.kind, "%s", k->kind);
    snprintf(m.op, sizeof m.op, "%s", k->op);
    snprintf(m.instance, sizeof m.instance, "%s", k->instance);
    snprintf(m.slot, sizeof m.slot, "%s", k->slot);
    snprintf(m.value, sizeof m.value, "%s", k->value);
    snprintf(what, sizeof what, "%s %s %s %s", k->kind, k->op, k->instance, k->slot);
    cr_assert_eq(parity_trace_mutate(c->trace, fresh_path(dir, "m"), &m), ASSAY_OK, "%s: %s", what,
                 assay_error_message());
    assay_trace *t = open_trace(dir);
    parity_report *r = k->plan ? plan_judge(c, t) : judge_bits(t);
    const parity_claim *f = first_failure(r);
    cr_expect(f != NULL, "%s: not caught", what);
    if (f != NULL)
        cr_expect(strcmp(f->op, k->op) == 0 && strcmp(f->instance, k->instance) == 0 &&
                      strcmp(f->tensor, k->item ? k->item : k->slot) == 0 && f->rank == k->rank &&
                      f->step == k->step && f->microbatch == k->microbatch,
                  "%s: named at %s %s %s: %s", what, f->op, f->instance, f->tensor, f->message);
    cr_expect_eq(n_failed(r), 1, "%s: %lld results fail", what, (long long)n_failed(r));
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
}

static void expect_all(const char *layout, const fault *faults, size_t n, int64_t least)
{
    static const assay_precision precisions[] = {ASSAY_PRECISION_FP32, ASSAY_PRECISION_BF16};
    for (int i = 0; i < 2; i++) {
        plan_cell c;
        plan_cell_run(&c, plan_model, layout, precisions[i], "");
        parity_report *plan = plan_judge(&c, c.trace), *bits = judge_bits(c.trace);
        print_failures(plan);
        print_failures(bits);
        cr_expect_eq(n_failed(plan) + n_failed(bits), 0, "%s", layout);
        cr_expect_geq(n_passed(bits), least, "%s: %lld slots ran again", layout, (long long)n_passed(bits));
        parity_report_destroy(bits);
        parity_report_destroy(plan);
        for (size_t k = 0; k < n; k++)
            expect_named(&c, &faults[k]);
        plan_cell_free(&c);
    }
}

static const fault of_layers[] = {
    {"drop_op", "linear_fwd", L0 "mlp.linear_fc1", "", "", false, 1, 0, 1, "operation", true},
    {"drop_op", "reduce_scatter", L1 "self_attention.reduce", "", "", false, 0, 1, 0, "operation", true},
    {"repeat_op", "rmsnorm_fwd", L1 "input_layernorm", "", "", false, 1, 1, 0, "operation", true},
    {"attr", "attention_fwd", L0 "self_attention.core_attention", "scale", "0.5", false, 0, 0, 1, NULL, true},
    {"rewire", "rmsnorm_fwd", L0 "input_layernorm", "x", "", INPUT, 1, 0, 1, NULL, true},
    {"value", "rmsnorm_fwd", L0 "input_layernorm", "x", "", INPUT, 1, 0, 1, NULL, false},
    {"value", "router_fwd", L1 "mlp.router", "expert_bias", "", INPUT, 0, 1, 0, NULL, false},
    {"element", "linear_fwd", L1 "self_attention.linear_qkv", "y", "", false, 1, 1, 1, NULL, false},
    {"value", "all_to_all", L1 "mlp.dispatch", "recv", "", false, 0, 0, 0, NULL, false},
};

Test(parity_recompute, whole_layers)
{
    expect_all("tp2,sp,ep2 full=2", of_layers, sizeof of_layers / sizeof *of_layers, 150);
}

/* Parameters of a group's first layer are gathered once more, and thrown away before the last one's are there. */
static const fault of_gathers[] = {
    {"drop_op", "all_gather", L0 "mlp.linear_fc1.weight", "", "", false, 1, 0, 3, "operation", true},
    {"repeat_op", "all_gather", L0 "self_attention.linear_qkv.weight", "", "", false, 0, 1, 0, "operation",
     true},
    {"group", "all_gather", L0 "input_layernorm.weight", "", "tp", false, 1, 1, 2, "group", true},
    {"value", "rmsnorm_fwd", L0 "input_layernorm", "gamma", "", INPUT, 1, 0, 2, NULL, false},
};

Test(parity_recompute, layers_of_gathered_parameters)
{
    expect_all("dp2,zero3 full=2", of_gathers, sizeof of_gathers / sizeof *of_gathers, 100);
    expect_all("tp2,dp2,zero3 full=2 overlap", NULL, 0, 100);
}

static const fault of_modules[] = {
    {"drop_op", "swiglu_fwd", L1 "mlp.experts.activation", "", "", false, 0, 0, 1, "operation", true},
    {"drop_op", "attention_fwd", L0 "self_attention.core_attention", "", "", false, 1, 1, 0, "operation",
     true},
    {"drop_op", "all_gather", L1 "mlp.shared_experts.gather", "", "", false, 1, 0, 0, "operation", true},
    {"repeat_op", "slice_rows", L1 "mlp.scatter", "", "", false, 0, 1, 1, "operation", true},
    {"value", "rmsnorm_fwd", L1 "pre_mlp_layernorm", "y", "", false, 1, 0, 0, NULL, false},
    {"value", "attention_fwd", L0 "self_attention.core_attention", "lse", "", false, 0, 1, 1, NULL, false},
};

Test(parity_recompute, modules_of_layers)
{
    expect_all("tp2 selective=" EVERYTHING, of_modules, sizeof of_modules / sizeof *of_modules, 20);
}

Test(parity_recompute, whole_mlps)
{
    static const fault faults[] = {
        {"drop_op", "permute_plan", L1 "mlp.permute_plan", "", "", false, 1, 0, 1, "operation", true},
        {"value", "router_fwd", L1 "mlp.router", "probs", "", false, 0, 1, 0, NULL, false},
    };
    expect_all("tp2,sp,ep2 selective=mlp,moe", faults, 2, 50);
}

/* The engine itself goes astray in the second forward alone; no number of the first is wrong. */
static void expect_astray(const char *planted, const char *op, const char *instance, const char *slot)
{
    static const assay_precision precisions[] = {ASSAY_PRECISION_FP32, ASSAY_PRECISION_BF16};
    for (int i = 0; i < 2; i++) {
        plan_cell c;
        plan_cell_run(&c, plan_model, "tp2 full=1", precisions[i], planted);
        parity_report *r = judge_bits(c.trace);
        const parity_claim *f = first_failure(r);
        cr_assert(f != NULL, "%s: not caught", planted);
        cr_expect(strcmp(f->op, op) == 0 && strcmp(f->instance, instance) == 0 &&
                      strcmp(f->tensor, slot) == 0,
                  "%s: named at %s %s %s: %s", planted, f->op, f->instance, f->tensor, f->message);
        parity_report_destroy(r);
        plan_cell_free(&c);
    }
}

Test(parity_recompute, the_input_of_another_microbatch)
{
    expect_astray("input:" L0 "input_layernorm:x@microbatch-1,run=2", "rmsnorm_fwd", L0 "input_layernorm",
                  "x");
}

Test(parity_recompute, an_operation_that_does_not_repeat)
{
    expect_astray("negate:" L1 "self_attention.linear_proj:y,run=2", "linear_fwd",
                  L1 "self_attention.linear_proj", "y");
}

Test(parity_recompute, a_router_without_its_expert_bias)
{
    expect_astray("drop:" L1 "mlp.router:expert_bias,run=2", "router_fwd", L1 "mlp.router", "expert_bias");
}
