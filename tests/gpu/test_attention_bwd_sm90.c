/* Attention backward by warpgroups and tensor maps (gpu/ops/attention_bwd_sm90.cu, k3): the law of the backward where k3 takes the call, and
 * where it does not. */
#include "tests/support/gpu_attention.h"

#include <assay_sim.h>

void assay_sim_set_matrix_truncates(int truncates);

/* All widths and what lies below them, D and Dv apart; one key, several tiles and blocks, edges of both; several heads of a group;
 * windows and documents that begin inside a step, all rows of a block blind to a tile; more tiles than stages; batches. */
static const op_sizes sizes[] = {
    {{1, 1, 1, 1, 1, 8, 8, 0, 0}},
    {{2, 130, 130, 3, 1, 64, 64, 0, 0}},
    {{1, 70, 300, 2, 2, 48, 64, 50, 0}},
    {{1, 195, 195, 1, 1, 64, 40, 3, 1}},
    {{2, 33, 129, 4, 2, 96, 96, 0, 0}},
    {{1, 130, 130, 3, 1, 128, 128, 21, 1}},
    {{1, 40, 40, 3, 3, 16, 104, 0, 0}},
    {{1, 193, 193, 1, 1, 128, 72, 0, 1}},
    {{2, 150, 150, 2, 2, 24, 32, 100, 1}},
    {{1, 20, 400, 1, 1, 128, 64, 0, 0}},
    {{1, 17, 420, 2, 1, 40, 32, 0, 0}},
    {{1, 66, 130, 2, 1, 192, 128, 0, 0}},
    {{1, 70, 195, 2, 2, 160, 72, 40, 0}},
    {{1, 129, 129, 1, 1, 256, 256, 21, 1}},
    {{2, 33, 65, 3, 1, 136, 200, 0, 0}},
    {{1, 9, 200, 2, 1, 248, 64, 0, 1}},
    {{1, 131, 131, 1, 1, 136, 8, 5, 0}},
    {{1, 2120, 2120, 1, 1, 8, 8, 3, 0}}, /* more tiles than one look takes */
};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

static const op_law law = {"attention_bwd", "attention", 4, false, attention_bwd, N_SIZES, sizes};

Test(gpu_attention_bwd_sm90, within_what_it_declares)
{
    hold_rung(&law, 3);
}
Test(gpu_attention_bwd_sm90, within_what_it_declares_by_the_truncating_model)
{
    assay_sim_set_matrix_truncates(1);
    hold_rung(&law, 3);
}

/* Not in fp32, not at widths that a tensor map cannot have, without queries or keys, or with dropout. */
Test(gpu_attention_bwd_sm90, other_calls_go_to_lower_rungs)
{
    static const struct {
        assay_dtype act;
        int64_t d[9];
        int chosen;
    } rows[] = {
        {ASSAY_F32, {1, 9, 9, 2, 1, 64, 64, 0, 0}, 1},    {ASSAY_BF16, {1, 9, 9, 2, 1, 12, 8, 0, 0}, 1},
        {ASSAY_BF16, {1, 9, 9, 2, 1, 8, 12, 0, 0}, 1},    {ASSAY_BF16, {1, 3, 0, 2, 1, 8, 8, 0, 0}, 2},
        {ASSAY_BF16, {1, 0, 3, 2, 1, 8, 8, 0, 0}, 2},     {ASSAY_BF16, {1, 9, 9, 2, 1, 136, 8, 0, 0}, 3},
        {ASSAY_BF16, {1, 9, 9, 2, 1, 8, 136, 0, 0}, 3},   {ASSAY_BF16, {1, 9, 9, 2, 1, 64, 64, 0, 2}, 1},
        {ASSAY_BF16, {1, 9, 9, 2, 1, 256, 256, 0, 0}, 3}, {ASSAY_BF16, {0, 9, 9, 2, 1, 64, 64, 0, 0}, 2}};
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
Test(gpu_attention_bwd_sm90, devices_without_its_code)
{
    static float data[64] __attribute__((aligned(16)));
    static const char *const rows[] = {"dq", "dk", "dv", "do", "q", "k", "v", "o"}, *const ones[] = {
                                                                                        "batch", "seq_q",
                                                                                        "seq_k", "heads",
                                                                                        "groups"};
    raw_operand list[20] = {{.name = "lse", .t = gpu_tensor_1d(data, ASSAY_F32, 1)},
                            {.name = "q_position", .t = gpu_tensor_1d(data, ASSAY_I64, 1)},
                            {.name = "k_position", .t = gpu_tensor_1d(data, ASSAY_I64, 1)},
                            {.name = "head_dim", .number = 8},
                            {.name = "head_dim_v", .number = 8},
                            {.name = "scale", .number = 1}};
    int n = 6;
    for (int i = 0; i < 8; ++i)
        list[n++] = (raw_operand){.name = rows[i], .t = gpu_tensor_2d(data, ASSAY_BF16, 1, 8)};
    for (int i = 0; i < 5; ++i)
        list[n++] = (raw_operand){.name = ones[i], .number = 1};
    k3_of_devices("attention_bwd", list);
}
