/* The router and its balancing statistics in one launch: within the bounds of the parts, the bits of the operations, in every order of blocks;
 * the ticket of the last block. */
#include "tests/support/gpu_judge.h"

TestSuite(gpu_router_balanced, .timeout = 120);

/* T, E, K, mode, norm_topk_prob, bias, groups, group_topk, rows: with one, sums of so many sequences */
enum { SOFTMAX_PRE, SOFTMAX_POST, SIGMOID, ROWS = 8 };
static const op_sizes sizes[] = {
    {{3, 4, 1, SOFTMAX_PRE, 0, 0, 0, 0, 1}},    {{7, 8, 2, SOFTMAX_PRE, 1, 0, 0, 0, 7}},
    {{5, 33, 5, SOFTMAX_POST, 0, 0, 0, 0, 5}},  {{37, 64, 8, SIGMOID, 1, 1, 8, 4, 1}},
    {{4, 65, 4, SIGMOID, 0, 1, 0, 0, 2}},       {{9, 128, 8, SOFTMAX_PRE, 1, 0, 0, 0, 3}},
    {{4, 256, 8, SIGMOID, 1, 0, 8, 2, 4}},      {{33, 129, 6, SOFTMAX_POST, 0, 0, 3, 2, 3}},
    {{2, 257, 8, SOFTMAX_PRE, 0, 0, 0, 0, 2}},  {{3, 120, 4, SIGMOID, 1, 0, 40, 4, 3}},
    {{10, 205, 3, SOFTMAX_PRE, 1, 0, 0, 0, 5}}, {{0, 8, 2, SOFTMAX_PRE, 1, 0, 0, 0, 2}},
};
/* Fewer, for what is slow: an odd number of rows, one token a row, two tiles, sums over 1024. */
static const op_sizes seq_sizes[] = {
    {{7, 8, 2, SOFTMAX_PRE, 1, 0, 0, 0, 7}},     {{6, 33, 5, SOFTMAX_POST, 0, 0, 0, 0, 3}},
    {{4, 65, 4, SIGMOID, 0, 1, 0, 0, 2}},        {{40, 12, 2, SIGMOID, 1, 1, 3, 2, 4}},
    {{10, 205, 3, SOFTMAX_PRE, 1, 0, 0, 0, 10}}, {{0, 8, 2, SOFTMAX_PRE, 1, 0, 0, 0, 2}},
};
/* More rounds of blocks than one: an odd number of rows, one that slots share, and both. */
static const op_sizes long_sizes[] = {
    {{4230, 5, 2, SIGMOID, 0, 0, 0, 0, 6}},
    {{8320, 3, 1, SOFTMAX_PRE, 0, 0, 0, 0, 64}},
    {{12297, 2, 1, SOFTMAX_PRE, 0, 0, 0, 0, 3}},
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

static void balanced_seq(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    balanced(c, act, mode, d);
    attr_i(c, "rows", d[ROWS]);
}

Test(gpu_router_balanced, is_within_the_bounds_of_its_parts)
{
    hold(&(op_law){"router_balanced_fwd", "router_balanced", 2, false, balanced, OP_SIZES(sizes)});
}

Test(gpu_router_balanced, is_within_the_bounds_with_sequences)
{
    hold(
        &(op_law){"router_balanced_seq_fwd", "router_balanced", 2, false, balanced_seq, OP_SIZES(seq_sizes)});
}

/* What the whole calls the part's slot has the part's bits. */
static void same_bits(const op_call *whole, const char *op, int number, const op_call *part, int64_t experts)
{
    for (int i = 0; i < part->n_out; i++) {
        const char *slot = part->out[i].slot;
        expect_same_bits(whole, assay_op_part_slot(assay_op_find(op), number, slot), part, slot, experts);
    }
}

/* The rung of the part is its highest: the whole has to have the bits of that one. */
static void run_highest(op_call *c, const char *op, assay_dtype act)
{
    run_op(c, op, act);
    cr_expect(gpu_ladder_find(op, c->declared.variant + 1) == NULL, "%s: k%d", op, c->declared.variant);
}

static void hold_parts(gpu_ctx *ctx, assay_dtype act, uint64_t seed, const int64_t *d, bool sequences)
{
    const char *const op = sequences ? "router_balanced_seq_fwd" : "router_balanced_fwd";
    char why[256] = "";
    op_call whole, choice, aux, seq;
    call_begin(&whole, ctx, seed);
    (sequences ? balanced_seq : balanced)(&whole, act, ZERO_MEAN, d);
    run_op(&whole, op, act);
    cr_expect_eq(whole.declared.variant, d[1] <= 256 && d[6] <= 32 && (!sequences || d[1] * d[ROWS] <= 1024),
                 "%lld experts, %lld groups, %lld rows", (long long)d[1], (long long)d[6],
                 (long long)d[ROWS]);
    if (whole.declared.variant == 1) {
        call_begin(&choice, ctx, seed);
        balanced(&choice, act, ZERO_MEAN, d);
        run_highest(&choice, "router_fwd", act);
        call_begin(&aux, ctx, 1);
        put_values(&aux, "logits", act, whole.value[0], d[0], d[1]);
        scores_of(&aux, d);
        run_highest(&aux, "router_aux_fwd", act);
        cr_expect(admitted(&whole, op, why), "%s, %lld tokens: %s", op, (long long)d[0], why);
        same_bits(&whole, op, 0, &choice, d[1]);
        same_bits(&whole, op, 1, &aux, d[1]);
        if (sequences) {
            call_begin(&seq, ctx, 1);
            feed(&seq, "aux_scores", &whole, "aux_scores");
            feed(&seq, "aux_indices", &whole, "aux_indices");
            attr_i(&seq, "rows", d[ROWS]);
            run_highest(&seq, "router_seq_aux_fwd", ASSAY_F32);
            same_bits(&whole, op, 2, &seq, d[1]);
            call_end(&seq);
        }
        call_end(&choice);
        call_end(&aux);
    }
    call_end(&whole);
}

/* Every number of registers, every mode; above 256 experts, 32 groups and 1024 sums of sequences k0 is what there is. */
Test(gpu_router_balanced, has_the_bits_of_the_operations)
{
    static const assay_dtype acts[] = {ASSAY_F32, ASSAY_BF16};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int a = 0; a < 2; a++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int sequences = 0; sequences < 2; sequences++)
                hold_parts(&ctx, acts[a], 3 + i, sizes[i].d, sequences == 1);
    for (size_t i = 0; i < sizeof long_sizes / sizeof *long_sizes; i++)
        for (int sequences = 0; sequences < 2; sequences++)
            hold_parts(&ctx, ASSAY_F32, 3 + i, long_sizes[i].d, sequences == 1);
    gpu_ctx_destroy(&ctx);
}

/* The last block turns the ticket back: what it is between two launches, of one block and of all of them. */
static unsigned ticket_of(const gpu_ctx *ctx)
{
    unsigned found = ~0u;
    cr_assert_eq(cudaMemcpy(&found, ctx->ticket, sizeof found, cudaMemcpyDeviceToHost), cudaSuccess);
    return found;
}

Test(gpu_router_balanced, the_ticket_is_back_at_zero)
{
    static const int64_t tokens[] = {0, 1, 33, 5000};
    gpu_ctx ctx, other;
    open_ctx(&ctx);
    open_ctx(&other);
    cr_expect(ctx.ticket != other.ticket,
              "two contexts run beside one another: each has a ticket of its own");
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        const int64_t d[MAX_SIZES] = {tokens[i], 5, 2, SOFTMAX_PRE, 1, 0, 0, 0, 1};
        op_call c;
        call_begin(&c, &ctx, 7);
        balanced_seq(&c, ASSAY_F32, ZERO_MEAN, d);
        run_op(&c, "router_balanced_seq_fwd", ASSAY_F32);
        cr_expect_eq(ticket_of(&ctx), 0, "%lld tokens: %u", (long long)tokens[i], ticket_of(&ctx));
        call_end(&c);
    }
    cr_expect_eq(ticket_of(&other), 0);
    gpu_ctx_destroy(&ctx);
    gpu_ctx_destroy(&other);
}
