/* Grouped products by warpgroups and tensor maps (gpu/ops/grouped_sm90.cu, k3): the laws of grouped linear layers where k3 takes the
 * call, and where it does not. */
#include "tests/support/gpu_grouped.h"

void assay_sim_set_matrix_truncates(int truncates);

/* N, K, experts, rows of each: several tiles, edges of rows, columns and terms, empty experts first, in the middle and last. */
static const op_sizes sizes[] = {
    {{136, 72, 2, 130, 7}},           {{8, 200, 3, 1, 0, 129}}, {{48, 40, 4, 0, 3, 34, 0}},
    {{64, 64, 5, 64, 65, 63, 1, 16}}, {{24, 8, 1, 300}},        {{8, 8, 3, 0, 0, 0}},
    {{264, 136, 2, 129, 3}}, /* three tiles of 128 columns, and one of 256 that is half empty */
};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

static void bwd_weight_stored(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    grouped_linear_bwd_weight(c, act, mode, d);
    attr_b(c, "gradient_accumulation_fusion", false);
}

static void bwd_weight_first(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    grouped_linear_bwd_weight(c, act, mode, d);
    op_unread(c);
}

#define LAW(op, build)                                                                                       \
    {                                                                                                        \
        op, "linear", 4, false, build, N_SIZES, sizes                                                        \
    }
static const op_law laws[] = {
    LAW("grouped_linear_fwd", grouped_linear_fwd), LAW("grouped_linear_bwd_input", grouped_linear_bwd_input),
    LAW("grouped_linear_bwd_weight", grouped_linear_bwd_weight),
    LAW("grouped_linear_bwd_weight", bwd_weight_stored), LAW("grouped_linear_bwd_weight", bwd_weight_first)};
enum { N_LAWS = sizeof laws / sizeof laws[0] };

static void hold_all(void)
{
    for (int k = 0; k < N_LAWS; ++k)
        hold_rung(&laws[k], 3);
}

Test(gpu_grouped_sm90, within_what_it_declares)
{
    hold_all();
}
Test(gpu_grouped_sm90, within_what_it_declares_by_the_truncating_model)
{
    assay_sim_set_matrix_truncates(1);
    hold_all();
}

/* Not in fp32, not at widths that a tensor map cannot have. */
Test(gpu_grouped_sm90, other_calls_go_to_lower_rungs)
{
    static const int64_t odd[] = {12, 16, 1, 5}, odd_too[] = {16, 12, 1, 5};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int k = 0; k < N_LAWS; ++k) {
        cr_expect_eq(rung_of(&ctx, &laws[k], ASSAY_BF16, sizes[6].d), 3, "%s: the fastest", laws[k].op);
        cr_expect_eq(rung_of(&ctx, &laws[k], ASSAY_BF16, sizes[3].d), 2, "%s: no tile is whole", laws[k].op);
        set_variants(&ctx, "linear=k3");
        cr_expect_eq(rung_of(&ctx, &laws[k], ASSAY_F32, sizes[0].d), 2, "%s: tiles of fma", laws[k].op);
        cr_expect_eq(rung_of(&ctx, &laws[k], ASSAY_BF16, odd), 2, "%s: one number at a time", laws[k].op);
        cr_expect_eq(rung_of(&ctx, &laws[k], ASSAY_BF16, odd_too), 2, "%s: so, too", laws[k].op);
        gpu_ctx_destroy(&ctx);
        open_ctx(&ctx);
    }
    gpu_ctx_destroy(&ctx);
}

/* Both warpgroups clear terms: the second one columns from 64 on, which the first one multiplies, too.  Numbers of the next expert's rows, which a tile brings along, reach nobody, whatever they are. */
Test(gpu_grouped_sm90, infinities_of_the_next_expert_stay_there)
{
    enum { N = 16, K = 72, ROWS = 70, MINE = 37 };
    static double dy[ROWS * N], x[ROWS * K];
    const double counts[2] = {MINE, ROWS - MINE};
    gpu_ctx ctx;
    op_call c;
    for (int i = 0; i < ROWS * N; ++i)
        dy[i] = i / N < MINE ? 1.0 : (double)INFINITY;
    for (int i = 0; i < ROWS * K; ++i)
        x[i] = i / K < MINE ? 1.0 : (double)INFINITY;
    open_ctx(&ctx);
    set_variants(&ctx, "linear=k3");
    call_begin(&c, &ctx, 1);
    put_values(&c, "tokens_per_expert", ASSAY_I64, counts, 2, -1);
    put_values(&c, "dy", ASSAY_BF16, dy, ROWS, N);
    put_values(&c, "x", ASSAY_BF16, x, ROWS, K);
    put(&c, "dweight_in", ASSAY_F32, 0.0, 0.0, 3, (int64_t)2, (int64_t)N, (int64_t)K);
    run_op(&c, "grouped_linear_bwd_weight", ASSAY_BF16);
    cr_assert_eq(c.declared.variant, 3);
    for (int i = 0; i < N * K; ++i) {
        cr_expect_eq(c.result[0][i], (double)MINE, "element %d of the first expert: %g", i, c.result[0][i]);
        cr_expect(isinf(c.result[0][N * K + i]), "element %d of the second expert: %g", i,
                  c.result[0][N * K + i]);
    }
    call_end(&c);
    gpu_ctx_destroy(&ctx);
}

/* Its code is for 9.0: the ladder passes it over on others, and called all the same it refuses by name. */
Test(gpu_grouped_sm90, devices_without_its_code)
{
    static const int64_t counts[1] = {3}, shape[3] = {1, 16, 8};
    static float data[64] __attribute__((aligned(16)));
    const gpu_tensor weight = gpu_tensor_make(data, ASSAY_BF16, 3, shape);
    const raw_operand list[] = {
        {.name = "y", .t = gpu_tensor_2d(data, ASSAY_BF16, 3, 16)},
        {.name = "x", .t = gpu_tensor_2d(data, ASSAY_BF16, 3, 8)},
        {.name = "weight", .t = weight},
        {.name = "tokens_per_expert", .t = gpu_tensor_1d(data, ASSAY_I64, 1), .host = counts},
        {.name = NULL}};
    k3_of_devices("grouped_linear_fwd", list);
}
