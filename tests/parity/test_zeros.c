/* Laws: zeros in the gradients are counted once, by whom the norm counts, and what a run says of them is what its gradients
 * have (docs/OPS.md 9.13). */
#include "parity/checks/whole.h"
#include "tests/support/plan_faults.h"

/* Replicated norms counted twice, a piece that nobody counts, a sum over other ranks, rows that are not there. */
static const fault counts[] = {
    {"drop_op", "count_zeros", A0 "linear_qkv.weight", "", "", false, 1, 0, -1, "operation"},
    {"repeat_op", "count_zeros", "decoder.final_layernorm.weight", "", "", false, 0, 1, -1, "operation"},
    {"repeat_op", "count_zeros", EMBEDDING, "", "", false, 1, 0, -1, "operation"},
    {"group", "all_reduce", "num_zeros_in_grad.reduce", "", "tp", false, 3, 0, -1, "group"},
    {"group", "all_reduce", "num_zeros_in_grad.reduce", "", "dp_cp", false, 2, 1, -1, "group"},
    {"value", "total", "num_zeros_in_grad.total", "x", "", INPUT, 1, 0, -1, NULL},
    {"rewire", "all_reduce", "num_zeros_in_grad.reduce", "send", "grad_norm.total.y", INPUT, 1, 0, -1, NULL},
    {"drop_op", "count_zeros", M1 "experts.linear_fc1.weight", "", "", false, 1, 0, -1, "operation"},
};

Test(zeros, faults_of_the_record)
{
    static const assay_precision precisions[] = {ASSAY_PRECISION_FP32, ASSAY_PRECISION_BF16};
    for (int p = 0; p < 2; p++)
        expect_faults(plan_model, "tp2,sp,ep2,dp2 zeros", precisions[p], 0.0, ASSAY_DISPATCHER_ALLTOALL,
                      counts, sizeof counts / sizeof *counts);
}

/* The model with ids that no text has, so that rows of its embedding have no gradient; untied, but for two stages. */
static const char *sparse(const char *model, bool tied)
{
    static char text[4096];
    snprintf(text, sizeof text, "%s", model);
    memcpy(strstr(text, "\"vocab_size\":41"), "\"vocab_size\":97", strlen("\"vocab_size\":97"));
    char *tie = strstr(text, "\"tie_word_embeddings\":true}");
    if (tie && !tied)
        memcpy(tie, "\"tie_word_embeddings\":false}", strlen("\"tie_word_embeddings\":false}") + 1);
    return text;
}

static int64_t said(const plan_cell *c, int64_t step)
{
    parity_index *x;
    must(parity_index_create(&x, c->trace));
    const parity_entry *e = parity_index_find(x, "num_zeros_in_grad", ASSAY_PHASE_OPTIMIZER, step, -1);
    cr_assert(e != NULL && e->n == c->grid.world);
    const int64_t n = parity_decode_integer(e->pieces[0].record->data, 0, ASSAY_I64);
    parity_index_destroy(x);
    return n;
}

/* The number is that of the assembled gradients: replicas, shared key heads, ties, experts and cut parts count once. */
Test(zeros, every_layout_counts_every_element_once)
{
    static const char *const layouts[] = {
        "1",         "tp4,sp",           "pp2,dp2,zero1",       "cp2,dp2,zero2",
        "dp4,zero3", "tp2,ep2,etp2,dp2", "tp2,dp2,zero1,hsdp2", "pp2",
        "ep2,cp2",   "dp2,zero2"};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char text[64];
        plan_cell c;
        snprintf(text, sizeof text, "%s zeros", layouts[i]);
        const bool tied = i == 7;
        plan_cell_run(&c, sparse(i == 1 ? plan_full_width_model : plan_model, tied), text,
                      ASSAY_PRECISION_FP32, "");
        parity_report *report = plan_judge(&c, c.trace);
        print_failures(report);
        cr_expect_eq(n_failed(report), 0, "%s", layouts[i]);
        parity_report_destroy(report);
        parity_index *x;
        must(parity_index_create(&x, c.trace));
        for (int64_t step = 0; step < 2; step++) {
            parity_result r;
            parity_result_init(&r);
            r.verdict = PARITY_PASS;
            must(parity_whole_zeros(x, c.spec, step, &r));
            cr_expect_eq(r.verdict, PARITY_PASS, "%s: %s", layouts[i], r.message);
            cr_expect_geq(r.expected, tied ? 0.0 : 56.0 * 16.0);
            cr_expect_eq(r.found, r.expected);
        }
        parity_index_destroy(x);
        plan_cell_free(&c);
    }
}

/* A number that the gradients do not have is seen without the plan, too: a sum over half of the ranks. */
Test(zeros, a_sum_over_the_wrong_group_is_named)
{
    plan_cell honest, c;
    plan_cell_run(&honest, sparse(plan_model, false), "tp2,sp,dp2 zeros", ASSAY_PRECISION_FP32, "");
    plan_cell_run(&c, sparse(plan_model, false), "tp2,sp,dp2 zeros", ASSAY_PRECISION_FP32,
                  "group:num_zeros_in_grad.reduce:dp_cp");
    cr_assert_neq(said(&honest, 0), said(&c, 0));
    parity_report *report = plan_judge(&c, c.trace);
    const parity_claim *f = first_failure(report);
    cr_assert_not_null(f);
    cr_expect_str_eq(f->instance, "num_zeros_in_grad.reduce");
    cr_expect_str_eq(f->tensor, "group");
    parity_report_destroy(report);
    parity_index *x;
    must(parity_index_create(&x, c.trace));
    parity_result r;
    parity_result_init(&r);
    r.verdict = PARITY_PASS;
    must(parity_whole_zeros(x, c.spec, 0, &r));
    cr_expect_eq(r.verdict, PARITY_FAIL);
    cr_expect(strstr(r.message, "zeros of the assembled gradients"), "%s", r.message);
    parity_index_destroy(x);
    plan_cell_free(&honest);
    plan_cell_free(&c);
}
