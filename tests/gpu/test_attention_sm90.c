/* Attention by warpgroups and tensor maps (gpu/ops/attention_sm90.cu, k3): the law of the forward where k3 takes the call, and where it
 * does not. */
#include "tests/support/gpu_attention.h"

#include <assay_sim.h>

void assay_sim_set_matrix_truncates(int truncates);

/* Each pair of widths and what lies below it; one key, several tiles and blocks, edges of both; rows of several heads that no
 * warpgroup's 64 divide; windows and documents that begin inside a step, all rows of a block blind to a tile; batches. */
static const op_sizes sizes[] = {
    {{1, 1, 1, 1, 1, 8, 8, 0, 0}},         {{2, 130, 130, 3, 1, 64, 64, 0, 0}},
    {{1, 70, 300, 2, 2, 48, 64, 50, 0}},   {{1, 290, 290, 1, 1, 64, 40, 3, 1}},
    {{2, 33, 129, 4, 2, 96, 96, 0, 0}},    {{1, 150, 150, 5, 1, 128, 128, 21, 1}},
    {{1, 40, 40, 3, 3, 16, 104, 0, 0}},    {{2, 67, 140, 2, 1, 192, 128, 0, 1}},
    {{1, 35, 50, 2, 1, 136, 72, 19, 0}},   {{1, 66, 150, 2, 1, 256, 256, 0, 0}},
    {{1, 19, 83, 2, 2, 152, 192, 33, 1}},  {{1, 34, 34, 2, 1, 16, 248, 0, 0}},
    {{3, 257, 257, 2, 2, 24, 32, 100, 1}}, {{1, 20, 600, 1, 1, 128, 64, 0, 0}},
    {{1, 4, 4230, 1, 1, 8, 8, 0, 0}}, /* more tiles than the warp that loads looks at in one go */
};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

static const op_law law = {"attention_fwd", "attention", 4, false, attention_fwd, N_SIZES, sizes};

Test(gpu_attention_sm90, within_what_it_declares)
{
    hold_rung(&law, 3);
}
Test(gpu_attention_sm90, within_what_it_declares_by_the_truncating_model)
{
    assay_sim_set_matrix_truncates(1);
    hold_rung(&law, 3);
}

/* What is not finite in a value arrives where it is seen, and nowhere else: in tiles that all rows of a block see, in the one on the
 * diagonal, and in the last, that is not full.  Two heads of a group; the second tile holds nothing. */
static void hides_what_is_not_finite(int D)
{
    enum { S = 300, A = 2, NAN_KEY = 40, INF_KEY = 290 };
    static double k[S * 256], value[S * 256];
    double position[S];
    const int last = D - 5;
    gpu_ctx ctx;
    op_call c;
    open_ctx(&ctx);
    set_variants(&ctx, "attention=k3");
    call_begin(&c, &ctx, 3);
    attr_i(&c, "batch", 1), attr_i(&c, "seq_q", S), attr_i(&c, "seq_k", S);
    attr_i(&c, "heads", A), attr_i(&c, "groups", 1), attr_i(&c, "head_dim", D);
    attr_d(&c, "scale", 0.25);
    for (int i = 0; i < S; ++i)
        position[i] = i;
    for (int i = 0; i < S * D; ++i)
        value[i] = 1.0;
    value[NAN_KEY * D + 3] = (double)NAN;
    value[INF_KEY * D + last] = (double)INFINITY;
    put_values(&c, "q_position", ASSAY_I64, position, S, -1);
    put_values(&c, "k_position", ASSAY_I64, position, S, -1);
    put(&c, "q", ASSAY_BF16, 0.0, 0.0, 3, (int64_t)S, (int64_t)A, (int64_t)D);
    put_values(&c, "k", ASSAY_BF16, k, S, D);
    put_values(&c, "v", ASSAY_BF16, value, S, D);
    run_op(&c, "attention_fwd", ASSAY_BF16);
    cr_assert_eq(c.declared.variant, 3);
    for (int i = 0; i < S * A; ++i)
        for (int d = 0; d < D; ++d) {
            const double o = result(&c, "o")[i * D + d];
            if (i / A >= NAN_KEY && d == 3)
                cr_assert(isnan(o), "row %d: %g", i, o);
            else if (i / A >= INF_KEY && d == last)
                cr_assert(isinf(o), "row %d: %g", i, o);
            else
                cr_assert_eq(o, 1.0, "row %d, column %d: %g", i, d, o);
        }
    call_end(&c);
    gpu_ctx_destroy(&ctx);
}

Test(gpu_attention_sm90, hidden_nan_and_infinity_do_not_pass)
{
    static const int widths[] = {16, 64, 128, 192, 256};
    for (int w = 0; w < 5; ++w)
        hides_what_is_not_finite(widths[w]);
}

/* Not in fp32, not at widths that a tensor map cannot have, without keys or with dropout. */
Test(gpu_attention_sm90, other_calls_go_to_lower_rungs)
{
    static const struct {
        assay_dtype act;
        int64_t d[9];
        int chosen;
    } rows[] = {
        {ASSAY_F32, {1, 9, 9, 2, 1, 64, 64, 0, 0}, 1},  {ASSAY_BF16, {1, 9, 9, 2, 1, 12, 8, 0, 0}, 1},
        {ASSAY_BF16, {1, 9, 9, 2, 1, 8, 12, 0, 0}, 1},  {ASSAY_BF16, {1, 3, 0, 2, 1, 8, 8, 0, 0}, 2},
        {ASSAY_BF16, {1, 9, 9, 2, 1, 64, 64, 0, 2}, 1}, {ASSAY_BF16, {1, 9, 9, 2, 1, 64, 64, 0, 0}, 3}};
    gpu_ctx ctx;
    open_ctx(&ctx);
    cr_expect_eq(rung_of(&ctx, &law, ASSAY_BF16, sizes[1].d), 3, "130 queries and keys, the fastest");
    cr_expect_eq(rung_of(&ctx, &law, ASSAY_BF16, sizes[4].d), 2, "33 queries of two heads are no whole tile");
    set_variants(&ctx, "attention=k3");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_expect_eq(rung_of(&ctx, &law, rows[i].act, rows[i].d), rows[i].chosen, "row %zu", i);
    gpu_ctx_destroy(&ctx);
}

/* Its code is for 9.0: the ladder passes it over on others, and called all the same it refuses by name. */
Test(gpu_attention_sm90, devices_without_its_code)
{
    static float data[64] __attribute__((aligned(16)));
    const raw_operand list[] = {{.name = "o", .t = gpu_tensor_2d(data, ASSAY_BF16, 1, 8)},
                                {.name = "lse", .t = gpu_tensor_1d(data, ASSAY_F32, 1)},
                                {.name = "q", .t = gpu_tensor_2d(data, ASSAY_BF16, 1, 8)},
                                {.name = "k", .t = gpu_tensor_2d(data, ASSAY_BF16, 1, 8)},
                                {.name = "v", .t = gpu_tensor_2d(data, ASSAY_BF16, 1, 8)},
                                {.name = "q_position", .t = gpu_tensor_1d(data, ASSAY_I64, 1)},
                                {.name = "k_position", .t = gpu_tensor_1d(data, ASSAY_I64, 1)},
                                {.name = "batch", .number = 1},
                                {.name = "seq_q", .number = 1},
                                {.name = "seq_k", .number = 1},
                                {.name = "heads", .number = 1},
                                {.name = "groups", .number = 1},
                                {.name = "head_dim", .number = 8},
                                {.name = "head_dim_v", .number = 8},
                                {.name = "scale", .number = 1},
                                {.name = NULL}};
    k3_of_devices("attention_fwd", list);
}
