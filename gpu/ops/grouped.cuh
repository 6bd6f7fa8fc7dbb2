/* Grouped products, one for each expert, on matrix units: grouped_mma.cu (k2), grouped_sm90.cu (k3). */
#ifndef GPU_OPS_GROUPED_CUH
#define GPU_OPS_GROUPED_CUH

#include "gpu/ops/product.cuh"

/* More would not fit into a kernel's parameters. */
enum { GROUPED_MOST_EXPERTS = 384 };

/* Where the experts' rows lie, and how many tiles of rows lie before each; the last entry is all of them. */
typedef struct grouped_rows {
    int experts;
    int row[GROUPED_MOST_EXPERTS + 1], tile[GROUPED_MOST_EXPERTS + 1];
} grouped_rows;

static inline grouped_rows grouped_rows_of(const product *p, int tile)
{
    grouped_rows all = {};
    all.experts = (int)p->experts;
    for (int e = 0; e < all.experts; ++e) {
        all.row[e + 1] = all.row[e] + (int)p->tokens_per_expert[e];
        all.tile[e + 1] = all.tile[e] + (int)((p->tokens_per_expert[e] + tile - 1) / tile);
    }
    return all;
}

/* The last expert whose tiles begin at or before this one: it has rows. */
__device__ static __forceinline__ int grouped_expert(const grouped_rows &all, int tile)
{
    int e = 0;
    for (int end = all.experts; end - e > 1;) {
        const int middle = (e + end) / 2;
        if (all.tile[middle] <= tile)
            e = middle;
        else
            end = middle;
    }
    return e;
}

/* Whether k2 takes the product of all experts: bf16, widths that are multiples of 8, addresses of 16, 1 to 384 experts. */
bool gpu_grouped_takes_mma(const product *p);
/* In one launch; nothing is written for an expert without rows. */
assay_status gpu_grouped_mma(const gpu_work *w, const product *p);

/* The same of k3, whose code is for capability 9.0 alone: on another device gpu_grouped_takes_sm90 says no, and gpu_grouped_sm90
 * refuses (ASSAY_UNSUPPORTED). */
bool gpu_grouped_takes_sm90(const gpu_ctx *ctx, const product *p);
assay_status gpu_grouped_sm90(const gpu_work *w, const product *p);

#endif
