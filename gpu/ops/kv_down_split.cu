/* The compressed keys and values of multi-latent attention apart from the key part that is rotated.  docs/OPS.md 4.
 *
 *   k0  one thread for each element                            copies
 *   k1  16 bytes for each thread, rows along the grid          copies */
#include "gpu/vector.cuh"

/* One thread for each element of the rows of both; BACK: to them. */
template <class T, bool BACK>
__global__ void kv_down_split_k0(T *compressed, T *pos, T *combined, int64_t tokens, int64_t latent,
                                 int64_t rotary)
{
    const int64_t width = latent + rotary;
    for (int64_t e = gpu_thread(); e < tokens * width; e += gpu_threads()) {
        const int64_t row = e / width, i = e % width;
        T *other = i < latent ? compressed + row * latent + i : pos + row * rotary + i - latent;
        if (BACK)
            combined[e] = *other;
        else
            *other = combined[e];
    }
}

/* Pieces of 16 bytes of a row. */
template <bool BACK>
__global__ void kv_down_split_k1(uint4 *compressed, uint4 *pos, uint4 *combined, int64_t tokens, int latent,
                                 int rotary)
{
    GPU_EACH_PIECE(row, i, tokens, latent + rotary, 1)
    {
        uint4 *other = i < latent ? compressed + row * latent + i : pos + row * rotary + i - latent;
        uint4 *whole = combined + row * (latent + rotary) + i;
        if (BACK)
            *whole = *other;
        else
            *other = *whole;
    }
}

template <class T>
static cudaError_t launch(const gpu_work *w, bool back, gpu_tensor compressed, gpu_tensor pos,
                          gpu_tensor combined, int64_t tokens, int64_t latent, int64_t rotary)
{
    const dim3 grid = gpu_grid(tokens * (latent + rotary), GPU_BLOCK);
    if (back)
        return GPU_LAUNCH_NO_BARRIER((kv_down_split_k0<T, true>), grid, dim3(GPU_BLOCK), 0, w->stream,
                                     (T *)compressed.data, (T *)pos.data, (T *)combined.data, tokens, latent,
                                     rotary);
    return GPU_LAUNCH_NO_BARRIER((kv_down_split_k0<T, false>), grid, dim3(GPU_BLOCK), 0, w->stream,
                                 (T *)compressed.data, (T *)pos.data, (T *)combined.data, tokens, latent,
                                 rotary);
}

template <bool BACK>
static cudaError_t launch_pieces(const gpu_work *w, gpu_tensor compressed, gpu_tensor pos,
                                 gpu_tensor combined, int64_t tokens, int latent, int rotary)
{
    const gpu_pieces_launch shape = gpu_pieces_of(tokens, latent + rotary);
    return GPU_LAUNCH_NO_BARRIER(kv_down_split_k1<BACK>, shape.grid, shape.block, 0, w->stream,
                                 (uint4 *)compressed.data, (uint4 *)pos.data, (uint4 *)combined.data, tokens,
                                 latent, rotary);
}

static assay_status kv_down_split(const gpu_work *w, bool back)
{
    static const char *const names[2][3] = {{"kv_compressed", "k_pos_emb", "kv_combined"},
                                            {"dkv_compressed", "dk_pos_emb", "dkv_combined"}};
    const char *op = w->o->op->name, *const *name = names[back];
    const gpu_tensor compressed = gpu_operand(w->o, name[0]), pos = gpu_operand(w->o, name[1]),
                     combined = gpu_operand(w->o, name[2]);
    const int64_t latent = gpu_operand_int(w->o, "kv_lora_rank"),
                  rotary = gpu_operand_int(w->o, "qk_pos_emb_head_dim");
    ASSAY_TRY(gpu_check_act(op, name[2], combined));
    ASSAY_TRY(gpu_check_tensor(op, name[0], compressed, combined.dtype, combined.dtype));
    ASSAY_TRY(gpu_check_tensor(op, name[1], pos, combined.dtype, combined.dtype));
    const int64_t tokens = gpu_tensor_row_count(combined);
    ASSAY_TRY(gpu_check_shape2(op, name[0], compressed, tokens, latent));
    ASSAY_TRY(gpu_check_shape2(op, name[1], pos, tokens, rotary));
    ASSAY_TRY(gpu_check_shape2(op, name[2], combined, tokens, latent + rotary));
    if (gpu_tensor_count(combined) == 0)
        return ASSAY_OK;
    if (w->variant == 0) {
        GPU_LAUNCHED(
            GPU_BY_ACT(combined.dtype, launch, w, back, compressed, pos, combined, tokens, latent, rotary),
            op);
        return ASSAY_OK;
    }
    const int c = gpu_16_bytes(w->o, combined.dtype, latent), r = gpu_16_bytes(w->o, combined.dtype, rotary);
    GPU_LAUNCHED(back ? launch_pieces<true>(w, compressed, pos, combined, tokens, c, r)
                      : launch_pieces<false>(w, compressed, pos, combined, tokens, c, r),
                 op);
    return ASSAY_OK;
}

static assay_status kv_down_split_fwd(const gpu_work *w)
{
    return kv_down_split(w, false);
}

static assay_status kv_down_split_bwd(const gpu_work *w)
{
    return kv_down_split(w, true);
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
/* A width of 0 has no pieces, and is none that they cannot copy. */
static bool rows_of_16_bytes(const gpu_ctx *, const gpu_operands *o)
{
    const int64_t latent = gpu_operand_int(o, "kv_lora_rank"),
                  rotary = gpu_operand_int(o, "qk_pos_emb_head_dim");
    const assay_dtype dtype = o->slot[0].dtype;
    return (latent == 0 || gpu_16_bytes(o, dtype, latent) > 0) &&
           (rotary == 0 || gpu_16_bytes(o, dtype, rotary) > 0) && gpu_16_bytes(o, dtype, latent + rotary) > 0;
}

#define SPLIT_RUNGS(run, outputs)                                                                            \
    GPU_RUNG("one thread an element", run, GPU_DECLARES(outputs, GPU_ELEMENTWISE(0))),                       \
        GPU_RUNG_IF("16 bytes a thread, rows along the grid", run, NULL, rows_of_16_bytes, NULL, GPU_SM_80,  \
                    GPU_DECLARES(outputs, GPU_ELEMENTWISE(0))),                                              \
        GPU_LADDER_END
GPU_LADDER(kv_down_split_fwd) = {SPLIT_RUNGS(kv_down_split_fwd, "kv_compressed k_pos_emb")};
GPU_LADDER(kv_down_split_bwd) = {SPLIT_RUNGS(kv_down_split_bwd, "dkv_combined")};
