/* The way back of split, norm and rope in one launch: the bits of the operations by themselves, heads of every number of lanes, rows of
 * several turns of the blocks, outputs that nobody wants, what is refused. */
#include "tests/support/gpu_heads.h"

TestSuite(gpu_qkv_rope_bwd, .timeout = 240);

/* tokens, query heads, groups, head dimension, R/2, whether gamma is frozen: 1 that of q, 2 that of k */
static const op_sizes sizes[] = {
    {{0, 2, 1, 16, 8}},    {{1, 1, 1, 1, 0}},   {{5, 4, 2, 3, 1}},      {{7, 3, 1, 16, 8}},
    {{5, 6, 3, 40, 8, 1}}, {{4, 6, 3, 40, 20}}, {{3, 2, 2, 96, 48, 2}}, {{9, 4, 2, 64, 32, 3}},
    {{3, 5, 1, 128, 0}},   {{2, 2, 1, 264, 8}}, {{3, 2, 1, 256, 128}},  {{21, 4, 2, 136, 64}},
};

static void gradients(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "dq", act, mode, 1.0, 3, d[0], d[1], d[3]);
    DRAW(c, "dk", act, mode, 2.0, 3, d[0], d[2], d[3]);
    DRAW(c, "dv", act, mode, 2.0, 3, d[0], d[2], d[3]);
    angles(c, d);
    split_attrs(c, d);
}

static void normed(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    gradients(c, act, mode, d);
    DRAW(c, "q_raw", act, mode, 2.0, 3, d[0], d[1], d[3]);
    DRAW(c, "k_raw", act, mode, 1.0, 3, d[0], d[2], d[3]);
    put(c, "q_gamma", act, 0.5, 1.5, 1, d[3]);
    put(c, "k_gamma", act, -1.5, -0.5, 1, d[3]);
    put(c, "q_rstd", ASSAY_F32, 0.1, 2.0, 2, d[0], d[1]);
    put(c, "k_rstd", ASSAY_F32, 0.1, 2.0, 2, d[0], d[2]);
    if ((d[5] & 1) == 0)
        DRAW(c, "q_dgamma_in", ASSAY_F32, mode, 1.0, 1, d[3]);
    if ((d[5] & 2) == 0)
        DRAW(c, "k_dgamma_in", ASSAY_F32, mode, 1.0, 1, d[3]);
}

Test(gpu_qkv_rope_bwd, is_within_the_bounds_of_its_parts)
{
    hold(&(op_law){"qkv_rope_bwd", "qkv_rope", 2, false, gradients, OP_SIZES(sizes)});
}

Test(gpu_qkv_rope_bwd, with_a_norm_is_within_the_bounds_of_its_parts)
{
    hold(&(op_law){"qkv_norm_rope_bwd", "qkv_rope", 2, false, normed, OP_SIZES(sizes)});
}

/* rope_bwd of queries or keys by itself. */
static void turn_back(op_call *rope, gpu_ctx *ctx, const op_call *whole, int which, assay_dtype act)
{
    call_begin(rope, ctx, 1);
    copy_in(rope, whole, which ? "dk" : "dq", "dy");
    copy_in(rope, whole, "cos", "cos");
    copy_in(rope, whole, "sin", "sin");
    copy_in(rope, whole, "position", "position");
    run_op(rope, "rope_bwd", act);
    is_highest(rope, "rope_bwd");
}

/* rmsnorm_bwd of queries or keys by itself, on what turned back. */
static void norm_back(op_call *norm, gpu_ctx *ctx, const op_call *whole, const op_call *rope, int which,
                      assay_dtype act, const int64_t *d)
{
    static const char *const slot[2][6] = {
        {"q_raw", "q_gamma", "q_rstd", "q_dgamma_in", "q_dgamma", "dq_raw"},
        {"k_raw", "k_gamma", "k_rstd", "k_dgamma_in", "k_dgamma", "dk_raw"}};
    const char *const *name = slot[which];
    const bool trained = (d[5] & (1 << which)) == 0;
    call_begin(norm, ctx, 1);
    feed(norm, "dy", rope, "dx");
    copy_in(norm, whole, name[0], "x");
    copy_in(norm, whole, name[1], "gamma");
    copy_in(norm, whole, name[2], "rstd");
    if (trained)
        copy_in(norm, whole, name[3], "dgamma_in");
    run_op(norm, "rmsnorm_bwd", act);
    is_highest(norm, "rmsnorm_bwd");
    expect_same_bits(whole, name[5], norm, "dx", d[3]);
    if (trained)
        expect_same_bits(whole, name[4], norm, "dgamma", d[3]);
    cr_expect_eq(output_of(whole, name[4]) == NULL, !trained);
}

static void same_as_parts(gpu_ctx *ctx, const op_call *whole, bool norm, assay_dtype act, const int64_t *d)
{
    static const char *const turned[2][2] = {{"dq_raw", "dk_raw"}, {"dq_norm", "dk_norm"}}, *const into[] = {
                                                                                                "dq", "dk"};
    op_call rope[2], back[2], split;
    call_begin(&split, ctx, 1);
    for (int k = 0; k < 2; k++) {
        turn_back(&rope[k], ctx, whole, k, act);
        expect_same_bits(whole, turned[norm][k], &rope[k], "dx", d[3]);
        if (norm)
            norm_back(&back[k], ctx, whole, &rope[k], k, act, d);
        feed(&split, into[k], norm ? &back[k] : &rope[k], "dx");
        split.in[k].ndim = 3;
        memcpy(split.in[k].shape, (int64_t[]){d[0], d[1 + k], d[3]}, 3 * sizeof d[0]);
    }
    copy_in(&split, whole, "dv", "dv");
    split_attrs(&split, d);
    run_op(&split, "qkv_split_bwd", act);
    is_highest(&split, "qkv_split_bwd");
    expect_same_bits(whole, "dqkv", &split, "dqkv", d[3]);
    call_end(&split);
    for (int k = 0; k < 2; k++) {
        call_end(&rope[k]);
        if (norm)
            call_end(&back[k]);
    }
}

/* Every number of lanes; rotated whole, in part and not at all; groups of one head and of several; more rows than one turn of all blocks
 * takes; frozen gammas. */
Test(gpu_qkv_rope_bwd, has_the_bits_of_the_operations)
{
    static const int64_t shapes[][6] = {
        {7, 3, 1, 8, 0, 0},    {9, 3, 1, 16, 8, 1},   {5, 2, 2, 24, 8, 2},   {5, 4, 2, 32, 16, 3},
        {5, 6, 3, 40, 8, 0},   {7, 3, 1, 48, 24, 0},  {11, 4, 2, 64, 32, 0}, {3, 8, 2, 80, 40, 0},
        {3, 2, 2, 96, 48, 0},  {5, 5, 1, 128, 64, 0}, {3, 4, 4, 136, 8, 0},  {3, 4, 1, 256, 128, 0},
        {2, 2, 1, 264, 24, 0}, {3, 2, 1, 40, 20, 0},  {690, 6, 2, 8, 0, 0},  {300, 8, 1, 136, 16, 0},
        {700, 12, 1, 16, 8, 0}};
    static const assay_dtype acts[] = {ASSAY_F32, ASSAY_BF16};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int a = 0; a < 2; a++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int norm = 0; norm < 2; norm++) {
                const int64_t *d = shapes[i];
                op_call whole;
                call_begin(&whole, &ctx, (uint64_t)(3 + d[3]));
                (norm ? normed : gradients)(&whole, acts[a], ZERO_MEAN, d);
                run_op(&whole, norm ? "qkv_norm_rope_bwd" : "qkv_rope_bwd", acts[a]);
                cr_expect_eq(whole.declared.variant, d[3] % 8 == 0 && d[4] % 8 == 0 && (!norm || d[3] <= 256),
                             "heads of %lld, %lld pairs: k%d", (long long)d[3], (long long)d[4],
                             whole.declared.variant);
                if (whole.declared.variant == 1)
                    same_as_parts(&ctx, &whole, norm, acts[a], d);
                call_end(&whole);
            }
    gpu_ctx_destroy(&ctx);
}

enum { T = 3, A = 2, G = 1, D = 16, HALF = 8 };
typedef struct memory {
    _Alignas(16) float in[5][T * A * D], gamma[D], rstd[16], table[POSITIONS * HALF];
    _Alignas(16) float dqkv[T * (A + 2 * G) * D], dgamma[2][D], inside[4][T * A * D];
    int64_t position[T];
} memory;

static assay_status launch(gpu_ctx *ctx, memory *m, bool norm, bool inside, const raw_operand *other)
{
    const gpu_tensor none = gpu_tensor_none(), gamma = gpu_tensor_1d(m->gamma, ASSAY_F32, D),
                     table = gpu_tensor_2d(m->table, ASSAY_F32, POSITIONS, HALF);
    raw_operand list[24] = {RAW_T("dq", heads(m->in[0], ASSAY_F32, T, A, D)),
                            RAW_T("dk", heads(m->in[1], ASSAY_F32, T, G, D)),
                            RAW_T("dv", heads(m->in[2], ASSAY_F32, T, G, D)),
                            RAW_T("cos", table),
                            RAW_T("sin", table),
                            RAW_T("position", gpu_tensor_1d(m->position, ASSAY_I64, T)),
                            RAW_T("dqkv", gpu_tensor_2d(m->dqkv, ASSAY_F32, T, (A + 2 * G) * D)),
                            RAW_T("dq_raw", inside ? none : heads(m->inside[0], ASSAY_F32, T, A, D)),
                            RAW_T("dk_raw", inside ? none : heads(m->inside[1], ASSAY_F32, T, G, D)),
                            {"heads", .number = A},
                            {"groups", .number = G},
                            {"head_dim", .number = D}};
    int n = 12;
    if (norm) {
        list[n++] = (raw_operand)RAW_T("dq_norm", inside ? none : heads(m->inside[2], ASSAY_F32, T, A, D));
        list[n++] = (raw_operand)RAW_T("dk_norm", inside ? none : heads(m->inside[3], ASSAY_F32, T, G, D));
        list[n++] = (raw_operand)RAW_T("q_raw", heads(m->in[3], ASSAY_F32, T, A, D));
        list[n++] = (raw_operand)RAW_T("k_raw", heads(m->in[4], ASSAY_F32, T, G, D));
        list[n++] = (raw_operand)RAW_T("q_gamma", gamma);
        list[n++] = (raw_operand)RAW_T("k_gamma", gamma);
        list[n++] = (raw_operand)RAW_T("q_rstd", gpu_tensor_1d(m->rstd, ASSAY_F32, (int64_t)T * A));
        list[n++] = (raw_operand)RAW_T("k_rstd", gpu_tensor_1d(m->rstd, ASSAY_F32, (int64_t)T * G));
        list[n++] = (raw_operand)RAW_T("q_dgamma", gpu_tensor_1d(m->dgamma[0], ASSAY_F32, D));
        list[n++] = (raw_operand)RAW_T("k_dgamma", gpu_tensor_1d(m->dgamma[1], ASSAY_F32, D));
    }
    for (int i = 0; i < n && other; i++)
        if (strcmp(list[i].name, other->name) == 0)
            list[i] = *other;
    return raw_run(ctx, norm ? "qkv_norm_rope_bwd" : "qkv_rope_bwd", list);
}

static void fill(memory *m)
{
    memset(m, 0, sizeof *m);
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < T * A * D; i++)
            m->in[k][i] = sinf(0.7f * (float)i + (float)k);
    for (int i = 0; i < D; i++)
        m->gamma[i] = m->rstd[i] = 0.5f + 0.01f * (float)i;
    for (int i = 0; i < POSITIONS * HALF; i++)
        m->table[i] = cosf((float)i);
    for (int i = 0; i < T; i++)
        m->position[i] = 2 * i + 1;
}

/* What only the launch itself needs may stay inside: the same results, and nothing else is written. */
Test(gpu_qkv_rope_bwd, outputs_that_nobody_wants_change_nothing)
{
    static memory stored, inside, before;
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 4; v++) {
        const bool norm = v & 1;
        fill(&stored);
        fill(&inside);
        fill(&before);
        set_variants(&ctx, v & 2 ? "qkv_rope=k1" : "qkv_rope=k0");
        cr_assert_eq(launch(&ctx, &stored, norm, false, NULL), ASSAY_OK, "%s", assay_error_message());
        cr_assert_eq(launch(&ctx, &inside, norm, true, NULL), ASSAY_OK, "%s", assay_error_message());
        cr_assert_eq(cudaStreamSynchronize(ctx.stream), cudaSuccess);
        cr_expect_eq(memcmp(stored.dqkv, inside.dqkv, sizeof stored.dqkv), 0, "row %d", v);
        cr_expect_eq(memcmp(stored.dgamma, inside.dgamma, sizeof stored.dgamma), 0, "row %d", v);
        cr_expect_eq(stored.dgamma[0][0] != 0.0f && stored.dgamma[1][0] != 0.0f, norm);
        cr_expect_eq(memcmp(stored.inside[0], stored.dqkv, 2 * D * sizeof(float)), 0, "row %d: dq_raw", v);
        cr_expect_eq(memcmp(inside.inside, before.inside, sizeof inside.inside), 0, "row %d", v);
        cr_expect_eq(memcmp(stored.in[2], stored.dqkv + 3 * D, D * sizeof(float)), 0, "row %d: dv", v);
    }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_qkv_rope_bwd, wrong_calls_are_refused)
{
    static memory m;
    gpu_ctx ctx;
    open_ctx(&ctx);
    const gpu_tensor dqkv = heads(m.dqkv, ASSAY_F32, T, A, D), wide = gpu_tensor_2d(m.table, ASSAY_F32, 6, D);
    const struct {
        bool norm;
        raw_operand other;
        const char *words;
    } rows[] = {
        {false, RAW_T("dq", dqkv), "dqkv: expected memory of its own, found that of dq"},
        {false, RAW_T("dq_raw", heads(m.in[0], ASSAY_F32, T, A, D)), "dq_raw: expected memory of its own"},
        {false, RAW_T("dv", heads(m.in[2], ASSAY_F32, T, A, D)), "dv"},
        {false, RAW_T("sin", wide), "sin"},
        {false, RAW_T("position", gpu_tensor_1d(m.position, ASSAY_I64, T - 1)), "position"},
        {false, RAW_T("dk", heads(m.in[1], ASSAY_F32, T, 0, D)), "dq: expected a multiple of 0 heads"},
        {false, RAW_T("dq", heads(m.in[0], ASSAY_F32, T, 3, D)), "dqkv"},
        {false, {"head_dim", .number = D / 2}, "head_dim: expected 16 (columns of dk), found 8"},
        {true, RAW_T("q_gamma", gpu_tensor_1d(m.gamma, ASSAY_F32, D - 1)), "q_gamma"},
        {true, RAW_T("k_gamma", gpu_tensor_1d(m.gamma, ASSAY_BF16, D)), "k_gamma"},
        {true, RAW_T("q_rstd", gpu_tensor_1d(m.rstd, ASSAY_F32, T)), "q_rstd"},
        {true, RAW_T("k_raw", gpu_tensor_none()), "k_raw"},
        {true, RAW_T("dk_norm", heads(m.inside[3], ASSAY_BF16, T, G, D)), "dk_norm"},
        {true, RAW_T("q_dgamma", gpu_tensor_1d(m.dgamma[0], ASSAY_BF16, D)), "q_dgamma"},
        {true, RAW_T("k_dgamma", gpu_tensor_1d(m.dgamma[1], ASSAY_F32, D + 1)), "k_dgamma"},
        {true, RAW_T("k_dgamma", gpu_tensor_1d(m.dgamma[0], ASSAY_F32, D)), "found that of q_dgamma"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_eq(launch(&ctx, &m, rows[i].norm, false, &rows[i].other), ASSAY_INVALID_ARGUMENT,
                     "row %zu was taken", i);
        cr_expect_not_null(strstr(assay_error_message(), rows[i].words), "row %zu: %s", i,
                           assay_error_message());
    }
    gpu_ctx_destroy(&ctx);
}
