/* Multi-latent attention's split and rotations: every rung under the reference, both rungs the same bits, a head's bits alone, which calls
 * which rung takes, what is refused. */
#include "tests/support/gpu_heads.h"

TestSuite(gpu_mla_rope, .timeout = 240);

/* --- laws: tokens, heads, N, V, h; of the split: tokens, C, R ----------------------------------------------------- */
static const op_sizes split_sizes[] = {{{5, 7, 3}}, {{0, 4, 2}},   {{1, 1, 1}},   {{3, 0, 8}},
                                       {{4, 8, 0}}, {{33, 40, 8}}, {{2, 512, 64}}};
static const op_sizes sizes[] = {{{5, 3, 3, 5, 4}},      {{7, 1, 24, 8, 8}},  {{0, 2, 4, 2, 2}},
                                 {{9, 3, 0, 1, 1}},      {{3, 5, 0, 16, 8}},  {{3, 2, 8, 0, 8}},
                                 {{2, 3, 16, 24, 0}},    {{2, 131, 8, 8, 8}}, {{2, 70, 1, 2, 3}},
                                 {{4, 3, 128, 128, 32}}, {{1, 1, 1, 1, 1}},   {{33, 4, 8, 16, 8}}};

static void latent_attrs(op_call *c, const int64_t *d)
{
    attr_i(c, "kv_lora_rank", d[1]);
    attr_i(c, "qk_pos_emb_head_dim", d[2]);
}

static void split_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "kv_combined", act, mode, 1.0, 2, d[0], d[1] + d[2]);
    latent_attrs(c, d);
}

static void split_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "dkv_compressed", act, mode, 1.0, 2, d[0], d[1]);
    DRAW(c, "dk_pos_emb", act, mode, 1.0, 2, d[0], d[2]);
    latent_attrs(c, d);
}

static void q_attrs(op_call *c, const int64_t *d)
{
    angles(c, d);
    attr_i(c, "heads", d[1]);
    attr_i(c, "head_dim", d[2] + 2 * d[4]);
}

static void q_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "q", act, mode, 1.0, 2, d[0], d[1] * (d[2] + 2 * d[4]));
    q_attrs(c, d);
}

static void q_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "dy", act, mode, 1.0, 3, d[0], d[1], d[2] + 2 * d[4]);
    q_attrs(c, d);
}

static void kv_attrs(op_call *c, const int64_t *d)
{
    angles(c, d);
    attr_i(c, "heads", d[1]);
    attr_i(c, "qk_head_dim", d[2]);
    attr_i(c, "v_head_dim", d[3]);
}

static void kv_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "kv", act, mode, 1.0, 2, d[0], d[1] * (d[2] + d[3]));
    DRAW(c, "k_pos_emb", act, mode, 1.0, 2, d[0], 2 * d[4]);
    kv_attrs(c, d);
}

static void kv_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "dk", act, mode, 1.0, 3, d[0], d[1], d[2] + 2 * d[4]);
    DRAW(c, "dv", act, mode, 1.0, 3, d[0], d[1], d[3]);
    kv_attrs(c, d);
}

static const op_law laws[] = {
    {"kv_down_split_fwd", "elementwise", 2, false, split_fwd, OP_SIZES(split_sizes)},
    {"kv_down_split_bwd", "elementwise", 2, false, split_bwd, OP_SIZES(split_sizes)},
    {"mla_rope_q_fwd", "mla_rope", 2, false, q_fwd, OP_SIZES(sizes)},
    {"mla_rope_q_bwd", "mla_rope", 2, false, q_bwd, OP_SIZES(sizes)},
    {"mla_rope_kv_fwd", "mla_rope", 2, false, kv_fwd, OP_SIZES(sizes)},
    {"mla_rope_kv_bwd", "mla_rope", 2, false, kv_bwd, OP_SIZES(sizes)},
};
enum { N_LAWS = sizeof laws / sizeof *laws };

Test(gpu_mla_rope, kv_down_split_fwd)
{
    hold(&laws[0]);
}
Test(gpu_mla_rope, kv_down_split_bwd)
{
    hold(&laws[1]);
}
Test(gpu_mla_rope, mla_rope_q_fwd)
{
    hold(&laws[2]);
}
Test(gpu_mla_rope, mla_rope_q_bwd)
{
    hold(&laws[3]);
}
Test(gpu_mla_rope, mla_rope_kv_fwd)
{
    hold(&laws[4]);
}
Test(gpu_mla_rope, mla_rope_kv_bwd)
{
    hold(&laws[5]);
}

/* --- bits --------------------------------------------------------------------------------------------------- */
static const assay_dtype acts[] = {ASSAY_F32, ASSAY_BF16};

static bool is_of_eights(const op_law *l, const int64_t *d, assay_dtype act)
{
    const int64_t piece = act == ASSAY_F32 ? 4 : 8;
    if (l->build == split_fwd || l->build == split_bwd)
        return d[1] % piece == 0 && d[2] % piece == 0;
    return d[4] % 8 == 0 && d[2] % 8 == 0 && (d[3] % 8 == 0 || l->build == q_fwd || l->build == q_bwd);
}

/* Wide accesses are taken where every row allows them, and they change no bit: the arithmetic is one. */
Test(gpu_mla_rope, rungs_have_the_same_bits)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int i = 0; i < N_LAWS; i++)
        for (int a = 0; a < 2; a++)
            for (int row = 0; row < laws[i].n; row++) {
                const op_law *l = &laws[i];
                const int64_t *d = l->sizes[row].d;
                op_call plain, wide;
                set_variants(&ctx, "k0");
                call_begin(&plain, &ctx, 9);
                l->build(&plain, acts[a], ZERO_MEAN, d);
                run_op(&plain, l->op, acts[a]);
                cr_expect_eq(plain.declared.variant, 0);
                set_variants(&ctx, "k1");
                call_begin(&wide, &ctx, 9);
                l->build(&wide, acts[a], ZERO_MEAN, d);
                run_op(&wide, l->op, acts[a]);
                cr_expect_eq(wide.declared.variant, is_of_eights(l, d, acts[a]), "%s, row %d in %s: k%d",
                             l->op, row, assay_dtype_name(acts[a]), wide.declared.variant);
                for (int o = 0; o < plain.n_out; o++)
                    expect_same_bits(&wide, wide.out[o].slot, &plain, plain.out[o].slot, d[2]);
                call_end(&plain);
                call_end(&wide);
            }
    gpu_ctx_destroy(&ctx);
}

/* --- refusals ----------------------------------------------------------------------------------------------- */
enum { T = 3, A = 2, N = 8, V = 16, H = 8, D = N + 2 * H };
typedef struct memory {
    _Alignas(16) float in[3][T * A * (D + V)], table[POSITIONS * H], out[2][T * A * (D + V)];
    int64_t position[T];
} memory;

static gpu_tensor flat(float *data, int64_t columns)
{
    return gpu_tensor_2d(data, ASSAY_F32, T, columns);
}

static assay_status launch(gpu_ctx *ctx, memory *m, const char *op, const raw_operand *other)
{
    const bool back = strstr(op, "_bwd") != NULL, split = op[0] == 'k';
    const gpu_tensor table = gpu_tensor_2d(m->table, ASSAY_F32, POSITIONS, H),
                     position = gpu_tensor_1d(m->position, ASSAY_I64, T);
    raw_operand of_split[] = {RAW_T(back ? "dkv_compressed" : "kv_compressed", flat(m->out[0], N)),
                              RAW_T(back ? "dk_pos_emb" : "k_pos_emb", flat(m->out[1], V)),
                              RAW_T(back ? "dkv_combined" : "kv_combined", flat(m->in[0], N + V)),
                              {"kv_lora_rank", .number = N},
                              {"qk_pos_emb_head_dim", .number = V},
                              {.name = NULL}};
    raw_operand of_q[] = {RAW_T(back ? "dy" : "q", flat(m->in[0], A * D)),
                          RAW_T("cos", table),
                          RAW_T("sin", table),
                          RAW_T("position", position),
                          RAW_T(back ? "dx" : "y", flat(m->out[0], A * D)),
                          {"heads", .number = A},
                          {"head_dim", .number = D},
                          {.name = NULL}};
    raw_operand of_kv[] = {RAW_T(back ? "dkv" : "kv", flat(m->in[0], A * (N + V))),
                           RAW_T(back ? "dk_pos_emb" : "k_pos_emb", flat(m->in[1], 2 * H)),
                           RAW_T(back ? "dk" : "k", heads(m->out[0], ASSAY_F32, T, A, D)),
                           RAW_T(back ? "dv" : "v", heads(m->out[1], ASSAY_F32, T, A, V)),
                           RAW_T("cos", table),
                           RAW_T("sin", table),
                           RAW_T("position", position),
                           {"heads", .number = A},
                           {"qk_head_dim", .number = N},
                           {"v_head_dim", .number = V},
                           {.name = NULL}};
    raw_operand *list = split ? of_split : strstr(op, "_q_") ? of_q : of_kv;
    for (int i = 0; list[i].name && other; i++)
        if (strcmp(list[i].name, other->name) == 0)
            list[i] = *other;
    return raw_run(ctx, op, list);
}

Test(gpu_mla_rope, wrong_calls_are_refused)
{
    static memory m;
    gpu_ctx ctx;
    open_ctx(&ctx);
    const gpu_tensor wide = gpu_tensor_2d(m.in[2], ASSAY_F32, POSITIONS, D),
                     few = gpu_tensor_1d(m.position, ASSAY_I64, T - 1);
    const struct {
        const char *op;
        raw_operand other;
        const char *words;
    } rows[] = {
        {"kv_down_split_fwd", {"kv_lora_rank", .number = N + 1}, "kv_compressed: expected"},
        {"kv_down_split_bwd", {"qk_pos_emb_head_dim", .number = V - 1}, "dk_pos_emb: expected"},
        {"kv_down_split_fwd", RAW_T("kv_combined", flat(m.in[0], N + V + 1)), "kv_combined: expected"},
        {"kv_down_split_bwd", RAW_T("dkv_compressed", gpu_tensor_2d(m.out[0], ASSAY_BF16, T, N)),
         "dkv_compressed"},
        {"mla_rope_q_fwd", RAW_T("y", flat(m.in[0], A * D)),
         "y: expected memory of its own, found that of q"},
        {"mla_rope_q_bwd", RAW_T("dx", flat(m.in[0], A * D)), "dx: expected memory of its own"},
        {"mla_rope_q_fwd", {"head_dim", .number = 2 * H - 1}, "cos: expected at most 7 columns"},
        {"mla_rope_q_fwd", {"head_dim", .number = D + 1}, "q: expected"},
        {"mla_rope_q_bwd", {"heads", .number = 0}, "heads: expected at least 1"},
        {"mla_rope_q_fwd", RAW_T("sin", wide), "sin"},
        {"mla_rope_q_bwd", RAW_T("position", few), "dy: expected"},
        {"mla_rope_kv_fwd", RAW_T("v", heads(m.out[0], ASSAY_F32, T, A, V)), "v: expected memory of its own"},
        {"mla_rope_kv_bwd", RAW_T("dk_pos_emb", flat(m.in[0], 2 * H)),
         "dk_pos_emb: expected memory of its own"},
        {"mla_rope_kv_fwd", {"qk_head_dim", .number = N + 1}, "kv: expected"},
        {"mla_rope_kv_bwd", {"v_head_dim", .number = V - 8}, "dkv: expected"},
        {"mla_rope_kv_bwd", {"heads", .number = 0}, "heads: expected at least 1"},
        {"mla_rope_kv_fwd", {"qk_head_dim", .number = -1}, "expected"},
        {"mla_rope_kv_fwd", RAW_T("k_pos_emb", flat(m.in[1], H)), "k_pos_emb: expected"},
        {"mla_rope_kv_bwd", RAW_T("position", few), "dkv: expected"},
        {"mla_rope_kv_bwd", RAW_T("cos", gpu_tensor_2d(m.table, ASSAY_BF16, POSITIONS, H)), "cos"},
    };
    for (int i = 0; i < N_LAWS; i++)
        cr_assert_eq(launch(&ctx, &m, laws[i].op, NULL), ASSAY_OK, "%s", assay_error_message());
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_eq(launch(&ctx, &m, rows[i].op, &rows[i].other), ASSAY_INVALID_ARGUMENT,
                     "row %zu was taken", i);
        cr_expect_not_null(strstr(assay_error_message(), rows[i].words), "row %zu: %s", i,
                           assay_error_message());
    }
    gpu_ctx_destroy(&ctx);
}
