/* Random logits of a router whose load is forced to balance: Philox4x32-10 by global indices.  docs/OPS.md 7.
 *
 *   k0  one thread an element     integers and one rounding: exact
 *
 * Source: Salmon, Moraes, Dror, Shaw 2011. */
#include "gpu/device.cuh"
#include "gpu/ops/philox.cuh"

/* Seed of the stream; Megatron-LM's own default seed. */
#define RANDOM_LOGITS_SEED 1234ull
/* sqrt(3) * 2^-32: the sum of four words, centred, has variance 1 behind it */
#define RANDOM_UNIT 0x1.bb67ae8584caap-32

__device__ static long long philox_sum(unsigned long long seed, unsigned long long stream,
                                       unsigned long long index)
{
    const gpu_philox_block c = gpu_philox(seed, stream, index);
    return (long long)c.word[0] + c.word[1] + c.word[2] + c.word[3] - 2ll * 0xFFFFFFFFll;
}

__global__ void random_logits_k0(float *y, const int64_t *token, int64_t t, int64_t experts, int64_t layer,
                                 int64_t draw, int64_t tokens)
{
    for (int64_t i = gpu_thread(); i < t * experts; i += gpu_threads()) {
        const int64_t index = (draw * tokens + token[i / experts]) * experts + i % experts;
        const long long z =
            philox_sum(RANDOM_LOGITS_SEED, (unsigned long long)layer, (unsigned long long)index);
        y[i] = (float)((double)z * RANDOM_UNIT);
    }
}

static assay_status random_logits(const gpu_work *w)
{
    const gpu_tensor y = gpu_operand(w->o, "y"), token = gpu_operand(w->o, "token");
    const int64_t experts = gpu_operand_int(w->o, "experts"), n = gpu_tensor_count(token);
    const char *op = "random_logits";
    ASSAY_TRY(gpu_check_tensor(op, "token", token, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_count(op, "y", y, n * experts));
    if (n * experts > 0)
        GPU_LAUNCHED(GPU_LAUNCH_NO_BARRIER(random_logits_k0, gpu_grid(n * experts, GPU_BLOCK),
                                           dim3(GPU_BLOCK), 0, w->stream, (float *)y.data,
                                           (const int64_t *)token.data, n, experts,
                                           gpu_operand_int(w->o, "layer"), gpu_operand_int(w->o, "draw"),
                                           gpu_operand_int(w->o, "tokens")),
                     op);
    return ASSAY_OK;
}

GPU_LADDER(random_logits) = {
    GPU_RUNG("one thread an element", random_logits, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
