/* All rungs together. */
#include "gpu/ladder.h"

#include "core/model/ops.h"
#include <stdio.h>
#include <string.h>

static const gpu_rung *const ladders[] = {
    gpu_activation_rungs, gpu_attention_rungs, gpu_attention_bwd_rungs, gpu_embedding_rungs,
    gpu_experts_rungs,    gpu_linear_rungs,    gpu_loss_rungs,          gpu_norm_rungs,
    gpu_optimizer_rungs,  gpu_rope_rungs,      gpu_router_rungs,        gpu_router_aux_rungs,
    gpu_sum_rungs,
};
enum { N_LADDERS = sizeof ladders / sizeof ladders[0] };

const gpu_rung *gpu_ladder_find(const char *op, int variant)
{
    for (int i = 0; i < N_LADDERS; i++)
        for (const gpu_rung *r = ladders[i]; r->op; r++)
            if (strcmp(r->op, op) == 0 && r->variant == variant)
                return r;
    return NULL;
}

int gpu_ladder_highest(const char *family)
{
    int highest = -1;
    for (int i = 0; i < N_LADDERS; i++)
        for (const gpu_rung *r = ladders[i]; r->op; r++) {
            const assay_op *op = assay_op_find(r->op);
            if (op && strcmp(op->family, family) == 0 && r->variant > highest)
                highest = r->variant;
        }
    return highest;
}

json_t *gpu_ladder_json(void)
{
    json_t *all = json_array();
    for (int i = 0; assay_op_at(i); i++) {
        const assay_op *op = assay_op_at(i);
        json_t *variants = json_array();
        const gpu_rung *r;
        for (int k = 0; (r = gpu_ladder_find(op->name, k)) != NULL; k++) {
            char name[8];
            snprintf(name, sizeof name, "k%d", k);
            json_array_append_new(variants, json_pack("{s:s, s:s, s:s, s:i}", "name", name, "buys", r->buys,
                                                      "arithmetic", r->arithmetic, "least_capability",
                                                      r->least_capability));
        }
        json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:o}", "op", op->name, "family", op->family,
                                             "sums", op->sums, "variants", variants));
    }
    return all;
}
