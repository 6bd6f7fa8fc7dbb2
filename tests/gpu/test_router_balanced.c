/* The router and its balancing statistics in one pass: within the bounds of the parts, the bits of the two operations, what is refused. */
#include "tests/support/gpu_judge.h"

TestSuite(gpu_router_balanced, .timeout = 120);

/* T, E, K, mode, norm_topk_prob, bias, groups, group_topk */
enum { SOFTMAX_PRE, SOFTMAX_POST, SIGMOID };
static const op_sizes sizes[] = {
    {{3, 4, 1, SOFTMAX_PRE, 0, 0}},     {{7, 8, 2, SOFTMAX_PRE, 1, 0}},
    {{5, 33, 5, SOFTMAX_POST, 0, 0}},   {{37, 64, 8, SIGMOID, 1, 1, 8, 4}},
    {{4, 65, 4, SIGMOID, 0, 1}},        {{9, 128, 8, SOFTMAX_PRE, 1, 0}},
    {{3, 256, 8, SIGMOID, 1, 0, 8, 2}}, {{33, 129, 6, SOFTMAX_POST, 0, 0, 3, 2}},
    {{2, 257, 8, SOFTMAX_PRE, 0, 0}},   {{3, 120, 4, SIGMOID, 1, 0, 40, 4}},
    {{0, 8, 2, SOFTMAX_PRE, 1, 0}},
};

static void scores_of(op_call *c, const int64_t *d)
{
    attr_i(c, "topk", d[2]);
    attr_s(c, "score_function", d[3] == SIGMOID ? "sigmoid" : "softmax");
}

static void balanced(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "logits", act, mode, 3.0, 2, d[0], d[1]);
    if (d[5])
        DRAW(c, "expert_bias", ASSAY_F32, mode, 0.5, 1, d[1]);
    scores_of(c, d);
    attr_b(c, "pre_softmax", d[3] == SOFTMAX_PRE);
    attr_b(c, "norm_topk_prob", d[4]);
    attr_d(c, "scaling_factor", 1.5);
    attr_i(c, "num_groups", d[6]);
    attr_i(c, "group_topk", d[7]);
}

Test(gpu_router_balanced, is_within_the_bounds_of_its_parts)
{
    hold(&(op_law){"router_balanced_fwd", "router_balanced", 2, false, balanced, OP_SIZES(sizes)});
}

static const gpu_slot *output(const op_call *c, const char *slot)
{
    for (int i = 0; i < c->n_out; i++)
        if (strcmp(c->out[i].slot, slot) == 0)
            return &c->out[i];
    cr_assert_fail("no output %s", slot);
    return NULL;
}

static void same_bits(const op_call *whole, const op_call *part, const int64_t *d)
{
    for (int i = 0; i < part->n_out; i++) {
        const gpu_slot *y = &part->out[i], *x = output(whole, y->slot);
        cr_assert_eq(slot_count(x), slot_count(y));
        cr_expect(memcmp(x->data, y->data, (size_t)(slot_count(x) * assay_dtype_bytes(x->dtype))) == 0,
                  "%s of %lld experts: other bits than the operation by itself", y->slot, (long long)d[1]);
    }
}

/* Every number of registers, every mode; above 256 experts and 32 groups k0 is what there is, and the engine runs the parts. */
Test(gpu_router_balanced, has_the_bits_of_the_two_operations)
{
    static const assay_dtype acts[] = {ASSAY_F32, ASSAY_BF16};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int a = 0; a < 2; a++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const int64_t *d = sizes[i].d;
            op_call whole, choice, aux;
            call_begin(&whole, &ctx, 3 + i);
            balanced(&whole, acts[a], ZERO_MEAN, d);
            run_op(&whole, "router_balanced_fwd", acts[a]);
            cr_expect_eq(whole.declared.variant, d[1] <= 256 && d[6] <= 32, "%lld experts, %lld groups",
                         (long long)d[1], (long long)d[6]);
            if (whole.declared.variant == 1) {
                call_begin(&choice, &ctx, 3 + i);
                balanced(&choice, acts[a], ZERO_MEAN, d);
                run_op(&choice, "router_fwd", acts[a]);
                call_begin(&aux, &ctx, 1);
                put_values(&aux, "logits", acts[a], whole.value[0], d[0], d[1]);
                scores_of(&aux, d);
                run_op(&aux, "router_aux_fwd", acts[a]);
                cr_expect(gpu_ladder_find("router_fwd", choice.declared.variant + 1) == NULL &&
                          gpu_ladder_find("router_aux_fwd", aux.declared.variant + 1) == NULL);
                same_bits(&whole, &choice, d);
                same_bits(&whole, &aux, d);
                call_end(&choice);
                call_end(&aux);
            }
            call_end(&whole);
        }
    gpu_ctx_destroy(&ctx);
}
