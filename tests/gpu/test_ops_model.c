/* Attention, mixture of experts, loss and optimizer: every variant, dtype, data mode and size under the
 * reference. */
#include "tests/support/gpu_attention.h"

#include <assay_sim.h>

void assay_sim_set_matrix_truncates(int truncates);

/* --- attention: batch, seq_q, seq_k, heads, groups, D, Dv, window, 1 with documents + 2 with dropout -------------------------- */
static const op_sizes attention_sizes[] = {
    {{1, 1, 1, 1, 1, 1, 1, 0, 0}},
    {{2, 3, 3, 2, 1, 5, 5, 0, 0}},
    {{1, 5, 5, 4, 2, 8, 8, 2, 0}},
    {{2, 31, 31, 2, 2, 16, 16, 0, 0}},
    {{1, 33, 33, 3, 1, 7, 7, 5, 1}},
    {{1, 37, 70, 2, 1, 33, 40, 0, 0}},
    {{1, 65, 65, 1, 1, 64, 64, 1, 0}},
    {{1, 3, 3, 1, 1, 255, 256, 0, 1}},
    {{0, 4, 4, 2, 1, 4, 4, 0, 0}},
    {{1, 0, 3, 2, 1, 4, 4, 0, 0}},
    {{1, 3, 0, 2, 1, 4, 4, 0, 0}},
    {{3, 9, 9, 4, 4, 12, 12, 0, 1}},
    {{1, 34, 34, 3, 3, 48, 48, 17, 0}},
    {{1, 33, 33, 6, 2, 80, 80, 0, 0}},
    {{2, 33, 33, 4, 2, 24, 16, 0, 2}},
    {{1, 19, 70, 3, 1, 8, 40, 0, 2}},
    {{3, 9, 9, 4, 4, 12, 12, 5, 3}},
    /* tiles of matrix units: widths 64, 96, 128, 256, D and Dv of two widths, keys around a tile, windows and documents that begin
     * inside a step of 16, all rows of a block blind to a tile */
    {{1, 63, 64, 4, 2, 64, 64, 0, 0}},
    {{1, 65, 65, 2, 1, 96, 96, 0, 1}},
    {{2, 33, 33, 2, 2, 128, 128, 9, 0}},
    {{1, 33, 67, 1, 1, 256, 256, 0, 0}},
    {{1, 17, 33, 2, 2, 192, 128, 0, 0}},
    {{1, 129, 129, 2, 1, 32, 32, 21, 1}},
    {{1, 150, 150, 3, 1, 64, 40, 3, 0}},
    {{1, 70, 199, 1, 1, 48, 64, 50, 0}},
    /* widths above 128: 192 with values of 128 or less and of more, 256, D of one width and Dv of the other */
    {{1, 67, 67, 2, 1, 192, 128, 0, 1}},
    {{2, 35, 50, 2, 1, 176, 72, 19, 0}},
    {{1, 66, 66, 2, 1, 40, 136, 0, 0}},
    {{1, 19, 83, 2, 2, 152, 192, 33, 1}},
    {{1, 65, 97, 2, 1, 256, 256, 21, 1}},
    {{1, 40, 40, 3, 3, 136, 8, 0, 0}},
    {{1, 34, 34, 2, 1, 16, 248, 0, 0}},
    {{1, 20, 41, 1, 1, 232, 200, 0, 0}},
};

Test(gpu_ops, attention_fwd)
{
    hold(&(op_law){"attention_fwd", "attention", 4, false, attention_fwd, OP_SIZES(attention_sizes)});
}
/* What k2 and k3 declare is what they do: results that it has rounded P (and dS) for, or added in fp32, are refused under another
 * declaration.  All outputs of the backward are bf16 sums of rounded terms, beside which it does not show what adds them. */
static void refuses_lies(const char *op, int variant, int lies,
                         void (*fill)(op_call *, assay_dtype, data_mode, const int64_t *), int64_t width)
{
    const int64_t sizes[] = {1, 70, 70, 2, 1, width, width, 0, 0};
    char why[256];
    gpu_ctx ctx;
    open_ctx(&ctx);
    set_variants(&ctx, variant == 2 ? "attention=k2" : "attention=k3");
    assay_sim_set_matrix_truncates(1);
    for (int lie = 0; lie < lies; ++lie) {
        op_call c;
        call_begin(&c, &ctx, 11);
        fill(&c, ASSAY_BF16, ONE_SIGNED, sizes);
        run_op(&c, op, ASSAY_BF16);
        cr_assert_eq(c.declared.variant, variant);
        cr_assert(admitted(&c, op, why), "%s", why);
        if (lie == 0)
            c.declared.p_dtype = NULL;
        else
            c.declared.arith.all.accumulate = ASSAY_F64;
        cr_expect(!admitted(&c, op, why), "%s: lie %d passed", op, lie);
        call_end(&c);
    }
    assay_sim_set_matrix_truncates(0);
    gpu_ctx_destroy(&ctx);
}

Test(gpu_ops, attention_does_not_pass_under_what_it_is_not)
{
    static const int64_t widths[] = {128, 256};
    for (int w = 0; w < 2; ++w) {
        refuses_lies("attention_fwd", 2, 2, attention_fwd, widths[w]);
        refuses_lies("attention_fwd", 3, 2, attention_fwd, widths[w]);
        for (int variant = 2; variant <= (widths[w] > 128 ? 2 : 3); ++variant)
            refuses_lies("attention_bwd", variant, 1, attention_bwd, widths[w]);
    }
}

Test(gpu_ops, attention_bwd)
{
    hold(&(op_law){"attention_bwd", "attention", 4, false, attention_bwd, OP_SIZES(attention_sizes)});
}

/* --- qkv_split: T, heads, groups, D ------------------------------------------------------------------------- */
static const op_sizes split_sizes[] = {{{5, 6, 2, 3}}, {{0, 2, 1, 4}}, {{1, 1, 1, 1}}, {{33, 4, 4, 40}}};

static void split_attrs(op_call *c, const int64_t *d)
{
    attr_i(c, "heads", d[1]);
    attr_i(c, "groups", d[2]);
    attr_i(c, "head_dim", d[3]);
}

static void qkv_split_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "qkv", act, mode, 1.0, 2, d[0], (d[1] + 2 * d[2]) * d[3]);
    split_attrs(c, d);
}

static void qkv_split_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "dq", act, mode, 1.0, 3, d[0], d[1], d[3]);
    DRAW(c, "dk", act, mode, 1.0, 3, d[0], d[2], d[3]);
    DRAW(c, "dv", act, mode, 1.0, 3, d[0], d[2], d[3]);
    split_attrs(c, d);
}

Test(gpu_ops, qkv_split_fwd)
{
    hold(&(op_law){"qkv_split_fwd", "elementwise", 2, false, qkv_split_fwd, OP_SIZES(split_sizes)});
}
Test(gpu_ops, qkv_split_bwd)
{
    hold(&(op_law){"qkv_split_bwd", "elementwise", 2, false, qkv_split_bwd, OP_SIZES(split_sizes)});
}

/* --- merge: T, heads, D, o_a and o in F32 --------------------------------------------------------------------- */
static const op_sizes merge_sizes[] = {
    {{5, 3, 8, 0}}, {{0, 2, 4, 0}}, {{1, 1, 1, 1}}, {{33, 2, 40, 1}}, {{9, 4, 33, 0}}};

static void attention_merge(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    const assay_dtype wide = d[3] ? ASSAY_F32 : act;
    DRAW(c, "o_a", wide, mode, 1.0, 3, d[0], d[1], d[2]);
    DRAW(c, "lse_a", ASSAY_F32, mode, 6.0, 2, d[0], d[1]);
    DRAW(c, "o_b", act, mode, 1.0, 3, d[0], d[1], d[2]);
    DRAW(c, "lse_b", ASSAY_F32, mode, 6.0, 2, d[0], d[1]);
    attr_i(c, "heads", d[1]);
    attr_i(c, "head_dim", d[2]);
    attr_s(c, "dtype", assay_dtype_name(wide));
}

Test(gpu_ops, attention_merge)
{
    hold(&(op_law){"attention_merge", "attention", 2, false, attention_merge, OP_SIZES(merge_sizes)});
}

/* --- packed heads: T, heads, parts, D ------------------------------------------------------------------------- */
static const op_sizes pack_sizes[] = {{{5, 4, 2, 3}}, {{0, 2, 2, 4}}, {{3, 6, 3, 1}}, {{33, 4, 1, 40}}};

static void pack_attrs(op_call *c, const int64_t *d)
{
    attr_i(c, "heads", d[1]);
    attr_i(c, "head_dim", d[3]);
    attr_i(c, "parts", d[2]);
}

static void pack_heads(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "x", act, mode, 1.0, 3, d[0], d[1], d[3]);
    pack_attrs(c, d);
}

static void unpack_heads(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "x", act, mode, 1.0, 4, d[2], d[0], d[1] / d[2], d[3]);
    pack_attrs(c, d);
}

Test(gpu_ops, pack_heads)
{
    hold(&(op_law){"pack_heads", "attention", 2, false, pack_heads, OP_SIZES(pack_sizes)});
}
Test(gpu_ops, unpack_heads)
{
    hold(&(op_law){"unpack_heads", "attention", 2, false, unpack_heads, OP_SIZES(pack_sizes)});
}

/* --- router: T, E, K, mode, norm_topk_prob, bias, factor x 2, groups, group_topk ------------------------- */
enum { SOFTMAX_PRE, SOFTMAX_POST, SIGMOID };
static const op_sizes router_sizes[] = {
    {{3, 4, 1, SOFTMAX_POST, 0, 0, 2}},
    {{7, 8, 2, SOFTMAX_PRE, 1, 0, 2}},
    {{5, 33, 5, SOFTMAX_PRE, 0, 0, 5}},
    {{5, 64, 8, SIGMOID, 1, 1, 5, 8, 4}},
    {{4, 128, 8, SIGMOID, 1, 1, 2}},
    {{3, 256, 8, SIGMOID, 0, 0, 2, 8, 2}},
    {{2, 512, 32, SOFTMAX_POST, 0, 0, 2}},
    {{6, 5, 5, SOFTMAX_PRE, 1, 0, 2}},
    {{6, 6, 1, SIGMOID, 1, 0, 2}},
    {{0, 8, 2, SOFTMAX_PRE, 1, 0, 2}},
    {{4, 12, 2, SOFTMAX_POST, 0, 0, 2, 6, 2}},
    {{3, 120, 4, SIGMOID, 1, 0, 2, 40, 4}},
    {{35, 40, 6, SIGMOID, 1, 1, 3, 5, 2}},
};

static void router_attrs(op_call *c, const int64_t *d)
{
    attr_i(c, "topk", d[2]);
    attr_s(c, "score_function", d[3] == SIGMOID ? "sigmoid" : "softmax");
    attr_b(c, "pre_softmax", d[3] == SOFTMAX_PRE);
    attr_b(c, "norm_topk_prob", d[4]);
    attr_d(c, "scaling_factor", (double)d[6] / 2);
    attr_i(c, "num_groups", d[7]);
    attr_i(c, "group_topk", d[8]);
}

static void router_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "logits", act, mode, 4.0, 2, d[0], d[1]);
    if (d[5])
        DRAW(c, "expert_bias", ASSAY_F32, mode, 0.5, 1, d[1]);
    router_attrs(c, d);
}

static void router_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    op_call f;
    call_begin(&f, c->ctx, c->seed);
    router_fwd(&f, act, mode, d);
    run_op(&f, "router_fwd", act);
    c->seed = f.seed;
    DRAW(c, "dprobs", ASSAY_F32, mode, 1.0, 2, d[0], d[2]);
    feed(c, "indices", &f, "indices");
    feed(c, "scores", &f, "scores");
    put_values(c, "logits", act, f.value[0], d[0], d[1]);
    router_attrs(c, d);
    call_end(&f);
}

Test(gpu_ops, router_fwd)
{
    hold(&(op_law){"router_fwd", "router", 2, false, router_fwd, OP_SIZES(router_sizes)});
}
Test(gpu_ops, router_bwd)
{
    hold(&(op_law){"router_bwd", "router", 2, false, router_bwd, OP_SIZES(router_sizes)});
}

/* --- auxiliary losses: the same sizes; tokens of the group are 3 T + 1 --------------------------------------- */
static void router_aux_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "logits", act, mode, 3.0, 2, d[0], d[1]);
    attr_i(c, "topk", d[2]);
    attr_s(c, "score_function", d[3] == SIGMOID ? "sigmoid" : "softmax");
}

static void aux_attrs(op_call *c, const int64_t *d)
{
    attr_d(c, "aux_coeff", 0.5);
    attr_d(c, "z_coeff", 0.25);
    attr_i(c, "tokens", 3 * d[0] + 1);
    attr_i(c, "topk", d[2]);
}

static void router_aux_loss(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    op_call f;
    call_begin(&f, c->ctx, c->seed);
    router_aux_fwd(&f, act, mode, d);
    run_op(&f, "router_aux_fwd", act);
    feed(c, "score_sums", &f, "score_sums");
    put(c, "tokens_per_expert", ASSAY_I64, 0, (double)(3 * d[0] + 1), 1, d[1]);
    feed(c, "z_sum", &f, "z_sum");
    aux_attrs(c, d);
    call_end(&f);
}

static void router_aux_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "logits", act, mode, 3.0, 2, d[0], d[1]);
    put(c, "tokens_per_expert", ASSAY_I64, 0, (double)(3 * d[0] + 1), 1, d[1]);
    DRAW(c, "dlogits_in", ASSAY_F32, mode, 0.125, 2, d[0], d[1]);
    aux_attrs(c, d);
    attr_d(c, "loss_scale", 0.5);
    attr_s(c, "score_function", d[3] == SIGMOID ? "sigmoid" : "softmax");
}

/* Of d[2] interleaved sequences: whole rows of tokens. */
static void seq_aux_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    (void)act;
    (void)mode;
    DRAW(c, "aux_scores", ASSAY_F32, ONE_SIGNED, 1.0, 2, d[0] * d[2], d[1]);
    put(c, "aux_indices", ASSAY_I64, 0, (double)(d[1] - 1), 2, d[0] * d[2], (int64_t)2);
    attr_i(c, "rows", d[2]);
}

static void seq_attrs(op_call *c, const int64_t *d)
{
    attr_d(c, "aux_coeff", 0.5);
    attr_d(c, "z_coeff", 0.0);
    attr_i(c, "tokens", d[0]);
    attr_i(c, "topk", 1);
    attr_i(c, "divisor", 3);
}

static void seq_aux_loss(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    (void)act;
    DRAW(c, "score_sums", ASSAY_F32, mode, 3.0, 2, d[2], d[1]);
    put(c, "tokens_per_expert", ASSAY_I64, 0, (double)(d[0] + 1), 2, d[2], d[1]);
    seq_attrs(c, d);
}

static void seq_aux_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "logits", act, mode, 3.0, 2, d[0] * d[2], d[1]);
    put(c, "tokens_per_expert", ASSAY_I64, 0, (double)(d[0] + 1), 2, d[2], d[1]);
    DRAW(c, "dlogits_in", ASSAY_F32, mode, 0.125, 2, d[0] * d[2], d[1]);
    seq_attrs(c, d);
    attr_d(c, "loss_scale", 0.5);
    attr_s(c, "score_function", d[3] == SIGMOID ? "sigmoid" : "softmax");
}

static void running_counts(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    (void)act;
    put(c, "tokens_per_expert", ASSAY_I64, 0, 1000, 1, d[1]);
    if (mode != ONE_SIGNED)
        put(c, "previous", ASSAY_I64, 0, 100000, 1, d[1]);
}

Test(gpu_ops, router_seq_aux_fwd)
{
    hold(&(op_law){"router_seq_aux_fwd", "router", 3, true, seq_aux_fwd, OP_SIZES(router_sizes)});
}
Test(gpu_ops, router_aux_loss_of_sequences)
{
    hold(&(op_law){"router_aux_loss", "router", 2, true, seq_aux_loss, OP_SIZES(router_sizes)});
}
Test(gpu_ops, router_aux_bwd_of_sequences)
{
    hold(&(op_law){"router_aux_bwd", "router", 2, false, seq_aux_bwd, OP_SIZES(router_sizes)});
}
Test(gpu_ops, running_counts)
{
    hold(&(op_law){"running_counts", "router", 1, true, running_counts, OP_SIZES(router_sizes)});
}
Test(gpu_ops, router_aux_fwd)
{
    hold(&(op_law){"router_aux_fwd", "router", 3, false, router_aux_fwd, OP_SIZES(router_sizes)});
}
Test(gpu_ops, router_aux_loss)
{
    hold(&(op_law){"router_aux_loss", "router", 2, true, router_aux_loss, OP_SIZES(router_sizes)});
}
Test(gpu_ops, router_aux_bwd)
{
    hold(&(op_law){"router_aux_bwd", "router", 2, false, router_aux_bwd, OP_SIZES(router_sizes)});
}

/* --- rows of experts: T, E, K, H; experts without a token are common ----------------------------------------- */
static const op_sizes rows_sizes[] = {
    {{0, 4, 2, 3}}, {{1, 1, 1, 1}}, {{5, 8, 2, 5}}, {{33, 7, 3, 31}}, {{70, 40, 8, 33}}};

static void expert_bias_update(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    (void)act;
    DRAW(c, "bias_in", ASSAY_F32, mode, 1.0, 1, d[1]);
    put(c, "tokens_per_expert", ASSAY_I64, 0, 5, 1, d[1]);
    attr_d(c, "rate", 0.25);
}

/* K different experts for each token, ascending. */
static void put_choice(op_call *c, const char *slot, data_mode mode, const int64_t *d)
{
    double *index = put(c, slot, ASSAY_I64, 0, 1, 2, d[0], d[2]);
    for (int64_t row = 0; row < d[0]; ++row) {
        int64_t left = d[2];
        for (int64_t x = 0; x < d[1] && left > 0; ++x)
            if (mode == ONE_SIGNED || uniform(c) * (double)(d[1] - x) < (double)left) {
                index[row * d[2] + d[2] - left] = (double)x;
                --left;
            }
    }
    store_slot(c);
}

static void permute_plan(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    (void)act;
    put_choice(c, "indices", mode, d);
    attr_i(c, "experts", d[1]);
    attr_i(c, "rows", d[0] * d[2]);
}

/* All tokens are this rank's; half of them fit. */
static void router_drop(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    (void)act;
    put_choice(c, "all_indices", mode, d);
    DRAW(c, "all_probs", ASSAY_F32, mode, 1.0, 2, d[0], d[2]);
    double *token = put(c, "token", ASSAY_I64, 0, 1, 1, d[0]);
    for (int64_t i = 0; i < d[0]; ++i)
        token[i] = (double)(d[0] - i);
    store_slot(c);
    attr_i(c, "experts", d[1]);
    attr_i(c, "capacity", d[0] * d[2] / d[1] / 2 + 1);
    attr_i(c, "start", 0);
    attr_i(c, "length", d[0]);
}

static void random_logits(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    (void)act;
    (void)mode;
    put(c, "token", ASSAY_I64, 0, (double)(d[0] + 5), 1, d[0]);
    attr_i(c, "experts", d[1]);
    attr_i(c, "layer", d[2]);
    attr_i(c, "draw", 11);
    attr_i(c, "tokens", d[0] + 5);
}

static void input_jitter(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "x", act, mode, 1.0, 2, d[0], d[3]);
    put(c, "token", ASSAY_I64, 0, (double)(d[0] + 5), 1, d[0]);
    attr_d(c, "eps", 0.125);
    attr_i(c, "layer", d[2]);
    attr_i(c, "draw", 11);
    attr_i(c, "tokens", d[0] + 5);
}

static void gather_rows(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "x", act, mode, 1.0, 2, d[0] + 1, d[3]);
    put(c, "index", ASSAY_I64, 0, (double)(d[0] + 1), 1, d[0] * d[2]);
}

static void combine_rows(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    op_call p;
    call_begin(&p, c->ctx, c->seed);
    permute_plan(&p, act, mode, d);
    run_op(&p, "permute_plan", act);
    DRAW(c, "x", act, mode, 1.0, 2, d[0] * d[2], d[3]);
    feed(c, "token_row", &p, "token_row");
    call_end(&p);
}

Test(gpu_ops, expert_bias_update)
{
    hold(&(op_law){"expert_bias_update", "router", 2, true, expert_bias_update, OP_SIZES(rows_sizes)});
}
Test(gpu_ops, permute_plan)
{
    hold(&(op_law){"permute_plan", "router", 3, true, permute_plan, OP_SIZES(rows_sizes)});
}
Test(gpu_ops, router_drop)
{
    hold(&(op_law){"router_drop", "router", 2, true, router_drop, OP_SIZES(rows_sizes)});
}
Test(gpu_ops, random_logits)
{
    hold(&(op_law){"random_logits", "router", 2, true, random_logits, OP_SIZES(rows_sizes)});
}
Test(gpu_ops, input_jitter)
{
    hold(&(op_law){"input_jitter", "router", 2, false, input_jitter, OP_SIZES(rows_sizes)});
}
Test(gpu_ops, gather_rows)
{
    hold(&(op_law){"gather_rows", "elementwise", 2, false, gather_rows, OP_SIZES(rows_sizes)});
}
Test(gpu_ops, combine_rows)
{
    hold(&(op_law){"combine_rows", "elementwise", 2, false, combine_rows, OP_SIZES(rows_sizes)});
}

/* --- cross entropy: T, V, first id, pieces ------------------------------------------------------------------- */
static const op_sizes entropy_sizes[] = {
    {{5, 1, 3, 1}},   {{5, 2, 0, 2}},   {{4, 3, 3, 3}},    {{7, 31, 3, 1}},   {{1, 32, 0, 2}},
    {{33, 33, 5, 4}}, {{5, 257, 3, 1}}, {{5, 2100, 3, 2}}, {{2, 5003, 7, 1}}, {{0, 5, 0, 1}},
};

/* The first and last id of the piece, the neighbours outside, and ignored ones; the same in every piece. */
static void targets(op_call *c, const int64_t *d)
{
    const uint64_t seed = c->seed;
    c->seed = 99;
    double *y = put(c, "targets", ASSAY_I64, 0, (double)(d[2] + 2 * d[1] + 1), 1, d[0]);
    const double edge[5] = {(double)d[2], -100, (double)(d[2] + d[1] - 1), (double)(d[2] + d[1]), 0};
    for (int64_t i = 0; i < d[0] && i < 5; ++i)
        y[i] = edge[i];
    store_slot(c);
    c->seed = seed;
}

static void stats_of_piece(op_call *c, data_mode mode, const int64_t *d, int64_t piece)
{
    DRAW(c, "logits", ASSAY_F32, mode, 60.0, 2, d[0], d[1]);
    targets(c, d);
    attr_i(c, "vocab_start", d[2] + piece * d[1]);
}

static void cross_entropy_stats(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    (void)act;
    stats_of_piece(c, mode, d, 0);
}

/* Statistics of d[3] pieces as they come from the gather. */
static void cross_entropy_loss(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    double *all = malloc((size_t)(d[3] * 3 * d[0] + 1) * sizeof *all);
    const int64_t shape[3] = {d[3], 3, d[0]};
    op_call s;
    for (int64_t p = 0; p < d[3]; ++p) {
        call_begin(&s, c->ctx, c->seed + (uint64_t)p);
        stats_of_piece(&s, mode, d, p);
        run_op(&s, "cross_entropy_stats", act);
        memcpy(all + p * 3 * d[0], s.result[0], (size_t)(3 * d[0]) * sizeof *all);
        call_end(&s);
    }
    new_slot(c, "stats", ASSAY_F32, 3, shape);
    memcpy(c->value[0], all, (size_t)(d[3] * 3 * d[0]) * sizeof *all);
    store_slot(c);
    targets(c, d);
    free(all);
}

static void cross_entropy_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    (void)act;
    DRAW(c, "logits", ASSAY_F32, mode, 5.0, 2, d[0], d[1]);
    put(c, "lse", ASSAY_F32, 5, 9, 1, d[0]);
    targets(c, d);
    attr_i(c, "vocab_start", d[2]);
    attr_d(c, "scale", 0.125);
}

Test(gpu_ops, cross_entropy_stats)
{
    hold(&(op_law){"cross_entropy_stats", "cross_entropy", 3, true, cross_entropy_stats,
                   OP_SIZES(entropy_sizes)});
}
Test(gpu_ops, cross_entropy_loss)
{
    hold(&(op_law){"cross_entropy_loss", "cross_entropy", 3, true, cross_entropy_loss,
                   OP_SIZES(entropy_sizes)});
}
Test(gpu_ops, cross_entropy_bwd)
{
    hold(&(op_law){"cross_entropy_bwd", "cross_entropy", 3, false, cross_entropy_bwd,
                   OP_SIZES(entropy_sizes)});
}

/* --- adamw: n, step, weight decay x 10, grad_scale x 10 ------------------------------------------------------ */
static const op_sizes adamw_sizes[] = {
    {{0, 1, 0, 10}},  {{1, 1, 1, 10}},      {{3, 2, 0, 3}},
    {{255, 5, 1, 3}}, {{1025, 100, 0, 10}}, {{2311, 17, 1, 7}},
};

static void adamw(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    (void)act;
    DRAW(c, "main_param_in", ASSAY_F32, mode, 1.0, 1, d[0]);
    DRAW(c, "exp_avg_in", ASSAY_F32, mode, 0.1, 1, d[0]);
    put(c, "exp_avg_sq_in", ASSAY_F32, 0.0, 0.1, 1, d[0]);
    DRAW(c, "grad", ASSAY_F32, mode, 1.0, 1, d[0]);
    const double scale = (double)d[3] / 10;
    if (d[3] < 10) /* absent: 1 */
        put_values(c, "grad_scale", ASSAY_F64, &scale, 1, -1);
    attr_d(c, "lr", 1e-3);
    attr_d(c, "beta1", 0.9);
    attr_d(c, "beta2", 0.95);
    attr_d(c, "eps", 1e-8);
    attr_d(c, "weight_decay", (double)d[2] / 10);
    attr_i(c, "step", d[1]);
}

Test(gpu_ops, adamw)
{
    hold(&(op_law){"adamw", "adamw", 2, false, adamw, OP_SIZES(adamw_sizes)});
}
