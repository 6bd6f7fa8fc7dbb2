/* Law: a rung is passed over where the device has less shared memory than its blocks ask for. */
#include "tests/support/gpu_ops.h"

TestSuite(gpu_attention_devices);

static int chosen(size_t shared_most, int head_dim, int head_dim_v)
{
    static float data[256] __attribute__((aligned(16)));
    const raw_operand list[] = {{.name = "dq", .t = gpu_tensor_2d(data, ASSAY_F32, 1, head_dim)},
                                {.name = "dk", .t = gpu_tensor_2d(data, ASSAY_F32, 1, head_dim)},
                                {.name = "dv", .t = gpu_tensor_2d(data, ASSAY_F32, 1, head_dim_v)},
                                {.name = "do", .t = gpu_tensor_2d(data, ASSAY_F32, 1, head_dim_v)},
                                {.name = "q", .t = gpu_tensor_2d(data, ASSAY_F32, 1, head_dim)},
                                {.name = "k", .t = gpu_tensor_2d(data, ASSAY_F32, 1, head_dim)},
                                {.name = "v", .t = gpu_tensor_2d(data, ASSAY_F32, 1, head_dim_v)},
                                {.name = "o", .t = gpu_tensor_2d(data, ASSAY_F32, 1, head_dim_v)},
                                {.name = "lse", .t = gpu_tensor_1d(data, ASSAY_F32, 1)},
                                {.name = "q_position", .t = gpu_tensor_1d(data, ASSAY_I64, 1)},
                                {.name = "k_position", .t = gpu_tensor_1d(data, ASSAY_I64, 1)},
                                {.name = "batch", .number = 1},
                                {.name = "seq_q", .number = 1},
                                {.name = "seq_k", .number = 1},
                                {.name = "heads", .number = 1},
                                {.name = "groups", .number = 1},
                                {.name = "head_dim", .number = head_dim},
                                {.name = "head_dim_v", .number = head_dim_v},
                                {.name = "scale", .number = 1},
                                {.name = NULL}};
    static char room[4096];
    const gpu_operands o = raw_operands("attention_bwd", list);
    gpu_ctx ctx = {.sm_major = 8, .sm_minor = 9, .shared_most = shared_most};
    ctx.workspace = room;
    ctx.workspace_bytes = sizeof room;
    for (int f = 0; f < GPU_FAMILY_COUNT; f++)
        ctx.variant[f] = -1;
    return gpu_ladder_choose(gpu_ladder("attention_bwd"), &ctx, &o, 1);
}

Test(gpu_attention_devices, tiles_fit_into_shared_memory)
{
    enum { SM_80 = 163 << 10, SM_89 = 99 << 10, SM_90 = 227 << 10 };
    static const struct {
        int shared, head_dim, head_dim_v, rung;
    } rows[] = {{SM_89, 256, 256, 0}, {SM_89, 248, 256, 0}, {SM_89, 248, 248, 1}, {SM_89, 64, 64, 1},
                {SM_80, 256, 256, 1}, {SM_90, 256, 256, 1}, {0, 8, 8, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_expect_eq(chosen((size_t)rows[i].shared, rows[i].head_dim, rows[i].head_dim_v), rows[i].rung,
                     "row %zu", i);
}
