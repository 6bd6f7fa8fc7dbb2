/* The ladder: the variants of every operation, k0 plain and readable first, each with what it buys and its arithmetic for every
 * output.  A rung stands in the .cu file of its kernels; a new variant is a new rung there and nothing else here. */
#ifndef GPU_LADDER_H
#define GPU_LADDER_H

#include "gpu/gpu.h"
#include <jansson.h>

ASSAY_BEGIN_DECLS

typedef struct gpu_rung {
    const char *op;
    int variant;            /* k0, k1, ... */
    const char *buys;       /* one line */
    const char *arithmetic; /* of each output, in words; what a call declares is in its record */
    int least_capability;   /* 10 * major + minor; 0: any device */
} gpu_rung;

/* One array in each .cu file, ended by a rung without op. */
extern const gpu_rung gpu_activation_rungs[], gpu_attention_rungs[], gpu_attention_bwd_rungs[],
    gpu_embedding_rungs[], gpu_experts_rungs[], gpu_linear_rungs[], gpu_loss_rungs[], gpu_norm_rungs[],
    gpu_optimizer_rungs[], gpu_rope_rungs[], gpu_router_rungs[], gpu_router_aux_rungs[], gpu_sum_rungs[];

/* NULL: the operation has no such variant. */
const gpu_rung *gpu_ladder_find(const char *op, int variant);
/* Highest variant of any operation of the family; -1: no such family. */
int gpu_ladder_highest(const char *family);
/* [{"op":..., "family":..., "variants":[{"name":"k0", "buys":..., "arithmetic":..., "least_capability":...}]}] */
json_t *gpu_ladder_json(void);

ASSAY_END_DECLS

#endif
