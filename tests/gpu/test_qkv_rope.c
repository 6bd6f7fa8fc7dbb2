/* Split, norm and rope in one launch: the bits of the operations by themselves, heads of every number of lanes, outputs that nobody wants,
 * what is refused. */
#include "tests/support/gpu_heads.h"

TestSuite(gpu_qkv_rope, .timeout = 240);

/* tokens, query heads, groups, head dimension, R/2 */
static const op_sizes sizes[] = {{{0, 2, 1, 16, 8}},  {{1, 1, 1, 1, 0}},    {{5, 4, 2, 3, 1}},
                                 {{7, 3, 1, 16, 8}},  {{5, 6, 3, 40, 8}},   {{4, 6, 3, 40, 20}},
                                 {{3, 2, 2, 96, 48}}, {{9, 4, 2, 64, 32}},  {{3, 5, 1, 128, 0}},
                                 {{2, 2, 1, 264, 8}}, {{3, 2, 1, 256, 128}}};

static void turned(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "qkv", act, mode, 2.0, 2, d[0], (d[1] + 2 * d[2]) * d[3]);
    angles(c, d);
    split_attrs(c, d);
}

static void normed(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    put(c, "q_gamma", act, 0.5, 1.5, 1, d[3]);
    put(c, "k_gamma", act, -1.5, -0.5, 1, d[3]);
    turned(c, act, mode, d);
    attr_d(c, "eps", (double)1e-6f);
}

Test(gpu_qkv_rope, is_within_the_bounds_of_its_parts)
{
    hold(&(op_law){"qkv_rope_fwd", "qkv_rope", 2, false, turned, OP_SIZES(sizes)});
}

Test(gpu_qkv_rope, with_a_norm_is_within_the_bounds_of_its_parts)
{
    hold(&(op_law){"qkv_norm_rope_fwd", "qkv_rope", 2, false, normed, OP_SIZES(sizes)});
}

/* An operation by itself on what another one, or the whole, was given or made. */
static void begin(op_call *c, gpu_ctx *ctx, const op_call *from, const char *slot, const char *from_slot)
{
    call_begin(c, ctx, 1);
    feed(c, slot, from, from_slot);
}

static void same_turn(gpu_ctx *ctx, const op_call *whole, const op_call *from, const char *from_slot,
                      const char *slot, assay_dtype act, const int64_t *d)
{
    op_call rope;
    const int64_t count = slot_count(output_of(from, from_slot));
    begin(&rope, ctx, from, "x", from_slot);
    rope.in[0].ndim = 3; /* a norm has rows of D */
    memcpy(rope.in[0].shape, (int64_t[]){d[0], count / (d[0] * d[3]), d[3]}, 3 * sizeof d[0]);
    copy_in(&rope, whole, "cos", "cos");
    copy_in(&rope, whole, "sin", "sin");
    copy_in(&rope, whole, "position", "position");
    run_op(&rope, "rope_fwd", act);
    is_highest(&rope, "rope_fwd");
    expect_same_bits(whole, slot, &rope, "y", d[3]);
    call_end(&rope);
}

static void same_norm(gpu_ctx *ctx, const op_call *whole, const op_call *split, int which, assay_dtype act,
                      const int64_t *d)
{
    static const char *const gamma[] = {"q_gamma", "k_gamma"}, *const raw[] = {"q", "k"},
                             *const y[] = {"q_norm", "k_norm"}, *const rstd[] = {"q_rstd", "k_rstd"};
    op_call norm;
    begin(&norm, ctx, split, "x", raw[which]);
    copy_in(&norm, whole, gamma[which], "gamma");
    attr_d(&norm, "eps", (double)1e-6f);
    run_op(&norm, "rmsnorm_fwd", act);
    is_highest(&norm, "rmsnorm_fwd");
    expect_same_bits(whole, y[which], &norm, "y", d[3]);
    expect_same_bits(whole, rstd[which], &norm, "rstd", d[3]);
    same_turn(ctx, whole, &norm, "y", raw[which], act, d);
    call_end(&norm);
}

static void same_as_parts(gpu_ctx *ctx, bool norm, assay_dtype act, const int64_t *d)
{
    op_call whole, split;
    call_begin(&whole, ctx, (uint64_t)(3 + d[3]));
    (norm ? normed : turned)(&whole, act, ZERO_MEAN, d);
    run_op(&whole, norm ? "qkv_norm_rope_fwd" : "qkv_rope_fwd", act);
    cr_expect_eq(whole.declared.variant, d[3] % 8 == 0 && d[4] % 8 == 0, "heads of %lld, %lld pairs: k%d",
                 (long long)d[3], (long long)d[4], whole.declared.variant);
    if (whole.declared.variant == 1) {
        call_begin(&split, ctx, 1);
        copy_in(&split, &whole, "qkv", "qkv");
        split_attrs(&split, d);
        run_op(&split, "qkv_split_fwd", act);
        is_highest(&split, "qkv_split_fwd");
        expect_same_bits(&whole, "q_raw", &split, "q", d[3]);
        expect_same_bits(&whole, "k_raw", &split, "k", d[3]);
        expect_same_bits(&whole, "v", &split, "v", d[3]);
        if (norm) {
            same_norm(ctx, &whole, &split, 0, act, d);
            same_norm(ctx, &whole, &split, 1, act, d);
        } else {
            same_turn(ctx, &whole, &split, "q", "q", act, d);
            same_turn(ctx, &whole, &split, "k", "k", act, d);
        }
        call_end(&split);
    }
    call_end(&whole);
}

/* Every number of lanes; rotated whole, in part and not at all; groups of one head and of several. */
Test(gpu_qkv_rope, has_the_bits_of_the_operations)
{
    static const int64_t shapes[][5] = {
        {7, 3, 1, 8, 0},   {9, 3, 1, 16, 8},    {5, 2, 2, 24, 8},   {5, 4, 2, 32, 16},   {5, 6, 3, 40, 8},
        {7, 3, 1, 48, 24}, {11, 4, 2, 64, 32},  {3, 8, 2, 80, 40},  {3, 2, 2, 96, 48},   {5, 5, 1, 128, 64},
        {3, 4, 4, 136, 8}, {3, 4, 1, 256, 128}, {2, 2, 1, 264, 24}, {2, 1, 1, 520, 256}, {3, 2, 1, 40, 20}};
    static const assay_dtype acts[] = {ASSAY_F32, ASSAY_BF16};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int a = 0; a < 2; a++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int norm = 0; norm < 2; norm++)
                same_as_parts(&ctx, norm, acts[a], shapes[i]);
    gpu_ctx_destroy(&ctx);
}

enum { T = 3, A = 2, G = 1, D = 16, HALF = 8 };
typedef struct memory {
    _Alignas(16) float qkv[T * (A + 2 * G) * D], gamma[D], table[POSITIONS * HALF], out[7][T * A * D];
    int64_t position[T];
} memory;

static assay_status launch(gpu_ctx *ctx, memory *m, bool norm, bool inside, const raw_operand *other)
{
    const gpu_tensor none = gpu_tensor_none(), gamma = gpu_tensor_1d(m->gamma, ASSAY_F32, D),
                     table = gpu_tensor_2d(m->table, ASSAY_F32, POSITIONS, HALF);
    raw_operand list[] = {RAW_T("qkv", gpu_tensor_2d(m->qkv, ASSAY_F32, T, (A + 2 * G) * D)),
                          RAW_T("cos", table),
                          RAW_T("sin", table),
                          RAW_T("position", gpu_tensor_1d(m->position, ASSAY_I64, T)),
                          RAW_T("q", heads(m->out[0], ASSAY_F32, T, A, D)),
                          RAW_T("k", heads(m->out[1], ASSAY_F32, T, G, D)),
                          RAW_T("v", heads(m->out[2], ASSAY_F32, T, G, D)),
                          RAW_T("q_raw", inside ? none : heads(m->out[3], ASSAY_F32, T, A, D)),
                          RAW_T("k_raw", inside ? none : heads(m->out[4], ASSAY_F32, T, G, D)),
                          {"heads", .number = A},
                          {"groups", .number = G},
                          {"head_dim", .number = D},
                          {.name = NULL},
                          {.name = NULL},
                          {.name = NULL},
                          {.name = NULL},
                          {.name = NULL},
                          {.name = NULL}};
    int n = 12;
    if (norm) {
        list[7].t = heads(m->out[3], ASSAY_F32, T, A, D);
        list[8].t = heads(m->out[4], ASSAY_F32, T, G, D);
        list[n++] = (raw_operand)RAW_T("q_gamma", gamma);
        list[n++] = (raw_operand)RAW_T("k_gamma", gamma);
        list[n++] = (raw_operand)RAW_T("q_rstd", gpu_tensor_1d(m->out[5], ASSAY_F32, (int64_t)T * A));
        list[n++] = (raw_operand)RAW_T("k_rstd", gpu_tensor_1d(m->out[6], ASSAY_F32, (int64_t)T * G));
        list[n++] = (raw_operand){"eps", .number = 1e-6};
    }
    for (int i = 0; i < n && other; i++)
        if (strcmp(list[i].name, other->name) == 0)
            list[i] = *other;
    return raw_run(ctx, norm ? "qkv_norm_rope_fwd" : "qkv_rope_fwd", list);
}

/* What only the launch itself needs may stay inside: the same results. */
Test(gpu_qkv_rope, outputs_that_nobody_wants_change_nothing)
{
    static memory stored, inside;
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int i = 0; i < T * (A + 2 * G) * D; i++)
        stored.qkv[i] = inside.qkv[i] = sinf(0.7f * (float)i);
    for (int i = 0; i < POSITIONS * HALF; i++)
        stored.table[i] = inside.table[i] = cosf((float)i);
    for (int v = 0; v < 2; v++) {
        set_variants(&ctx, v ? "qkv_rope=k1" : "qkv_rope=k0");
        cr_assert_eq(launch(&ctx, &stored, false, false, NULL), ASSAY_OK, "%s", assay_error_message());
        cr_assert_eq(launch(&ctx, &inside, false, true, NULL), ASSAY_OK, "%s", assay_error_message());
        cr_assert_eq(cudaStreamSynchronize(ctx.stream), cudaSuccess);
        cr_expect_eq(memcmp(stored.out, inside.out, 3 * sizeof inside.out[0]), 0, "k%d", v);
        cr_expect_eq(memcmp(stored.out[3], stored.qkv, 2 * D * sizeof(float)), 0, "k%d: q before it turns",
                     v);
        cr_expect_eq(inside.out[3][0], 0.0f, "k%d: what is absent was written", v);
    }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_qkv_rope, wrong_calls_are_refused)
{
    static memory m;
    gpu_ctx ctx;
    open_ctx(&ctx);
    const gpu_tensor qkv = heads(m.qkv, ASSAY_F32, T, A, D), wide = gpu_tensor_2d(m.table, ASSAY_F32, 6, D),
                     third = heads(m.out[0], ASSAY_F32, T, 3, D);
    const struct {
        bool norm;
        raw_operand other;
        const char *words;
    } rows[] = {
        {false, RAW_T("q", qkv), "q: expected memory of its own, found that of qkv"},
        {false, RAW_T("q_raw", heads(m.qkv, ASSAY_F32, T, A, D)), "q_raw: expected memory of its own"},
        {false, RAW_T("v", heads(m.out[1], ASSAY_F32, T, G, D)), "found that of k"},
        {false, RAW_T("sin", wide), "sin"},
        {false, RAW_T("position", gpu_tensor_1d(m.position, ASSAY_I64, T - 1)), "position"},
        {false, RAW_T("k", heads(m.out[1], ASSAY_F32, T, 0, D)), "expected a multiple of 0 heads"},
        {false, RAW_T("q", third), "qkv"},
        {true, RAW_T("q_gamma", gpu_tensor_1d(m.gamma, ASSAY_F32, D - 1)), "q_gamma"},
        {true, RAW_T("k_gamma", gpu_tensor_1d(m.gamma, ASSAY_BF16, D)), "k_gamma"},
        {true, RAW_T("q_rstd", gpu_tensor_1d(m.out[5], ASSAY_F32, T)), "q_rstd"},
        {true, RAW_T("q_raw", gpu_tensor_none()), "q_raw"},
        {false, {"head_dim", .number = D / 2}, "head_dim: expected 16 (columns of k), found 8"},
        {true, {"eps", .number = -1.0}, "eps: expected a number that is not negative"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_eq(launch(&ctx, &m, rows[i].norm, false, &rows[i].other), ASSAY_INVALID_ARGUMENT,
                     "row %zu was taken", i);
        cr_expect_not_null(strstr(assay_error_message(), rows[i].words), "row %zu: %s", i,
                           assay_error_message());
    }
    gpu_ctx_destroy(&ctx);
}
