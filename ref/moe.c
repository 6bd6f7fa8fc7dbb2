/* Mixture of experts on token shards: every tp rank routes its own piece of the sequence, with or without
 * sequence parallelism (docs/OPS.md 9). */
#include "ref/layer.h"
#include "ref/parallel/tensor.h"

#include <stddef.h>

/* The residual stream is whole on every tp rank, the experts work on pieces of it. */
static bool must_cut(const ref_pass *p)
{
    return p->e->grid.p.tensor_model_parallel_size > 1 && !p->e->grid.p.sequence_parallel;
}

static ref_mlp_desc shared_expert(const ref_pass *p)
{
    return (ref_mlp_desc){
        .params = &p->e->layer[p->layer].moe.shared, .instance = "mlp.shared_experts", .sp = true};
}

/* y = routed + shared(tokens), gated by sigmoid(w tokens) when there is a gate */
static assay_status shared_fwd(ref_pass *p, ref_moe_acts *a, ref_tensor *y, const ref_tensor *routed)
{
    const ref_moe_params *w = &p->e->layer[p->layer].moe;
    const ref_mlp_desc shared = shared_expert(p);
    ref_tensor gated;
    ASSAY_TRY(ref_mlp_fwd(p, &a->shared, &a->shared_y, &a->tokens, &shared));
    gated = a->shared_y;
    if (w->shared_gate >= 0) {
        ASSAY_TRY(ref_ranks_linear(p, &a->shared_gate, &a->tokens, w->shared_gate, -1, false,
                                   "mlp.shared_experts.gating", REF_STORE_LINEAR));
        ASSAY_TRY(
            ref_ranks_sigmoid_gate(p, &gated, &a->shared_y, &a->shared_gate, "mlp.shared_experts.gate"));
    }
    return ref_ranks_add(p, y, routed, &gated, "mlp.shared_experts.add");
}

/* dsum = dtokens + the shared expert's contribution */
static assay_status shared_bwd(ref_pass *p, ref_tensor *dsum, const ref_moe_acts *a, const ref_tensor *dy,
                               const ref_tensor *dtokens)
{
    const ref_moe_params *w = &p->e->layer[p->layer].moe;
    const ref_mlp_desc shared = shared_expert(p);
    ref_tensor dshared = *dy, dgating, dx;
    if (w->shared_gate >= 0) {
        ref_tensor dgate;
        ASSAY_TRY(ref_ranks_sigmoid_gate_bwd(p, &dshared, &dgate, dy, &a->shared_y, &a->shared_gate));
        ASSAY_TRY(ref_ranks_linear_bwd(p, &dgating, &dgate, &a->tokens, w->shared_gate, -1,
                                       "mlp.shared_experts.gating"));
    }
    ASSAY_TRY(ref_mlp_bwd(p, &dx, &a->shared, &dshared, &shared, "mlp.shared_experts.linear_fc1"));
    if (w->shared_gate >= 0) {
        const ref_tensor of_mlp = dx;
        ASSAY_TRY(ref_ranks_add(p, &dx, &of_mlp, &dgating, "mlp.shared_experts.gate_grad"));
    }
    return ref_ranks_add_grad(p, dsum, dtokens, &dx, &a->tokens);
}

static assay_status moe_fwd(ref_pass *p, ref_layer_acts *acts, ref_tensor *y, const ref_tensor *x)
{
    ref_moe_acts *a = &acts->moe;
    const ref_moe_params *w = &p->e->layer[p->layer].moe;
    ref_tensor out;
    a->tokens = *x;
    if (must_cut(p))
        ASSAY_TRY(ref_scatter_to_sequence_parallel_region(p, &a->tokens, x, "mlp.scatter"));
    ASSAY_TRY(ref_router_route_fwd(p, &a->router, &a->tokens));
    ASSAY_TRY(ref_token_dispatch_fwd(p, &a->dispatch, &a->rows, &a->row_probs, &a->tokens, &a->router.probs,
                                     &a->router.routed));
    const ref_ints *counts = &a->dispatch.rows_per_expert;
    ASSAY_TRY(
        ref_ranks_grouped_linear(p, &a->fc1, &a->rows, counts, w->experts_fc1, "mlp.experts.linear_fc1"));
    ASSAY_TRY(ref_ranks_swiglu(p, &a->activated, &a->fc1, &a->row_probs, "mlp.experts.activation"));
    ASSAY_TRY(ref_ranks_grouped_linear(p, &a->expert_out, &a->activated, counts, w->experts_fc2,
                                       "mlp.experts.linear_fc2"));
    ASSAY_TRY(ref_token_combine_fwd(p, &a->dispatch, &out, &a->expert_out));
    if (w->shared.linear_fc1 >= 0) {
        const ref_tensor routed = out;
        ASSAY_TRY(shared_fwd(p, a, &out, &routed));
    }
    if (must_cut(p))
        return ref_gather_from_sequence_parallel_region(p, y, &out, "mlp.gather_tokens");
    *y = out;
    return ASSAY_OK;
}

static assay_status moe_bwd(ref_pass *p, ref_tensor *dx, const ref_layer_acts *acts, const ref_tensor *dy)
{
    const ref_moe_acts *a = &acts->moe;
    const ref_moe_params *w = &p->e->layer[p->layer].moe;
    const ref_ints *counts = &a->dispatch.rows_per_expert;
    ref_tensor dout = *dy, dexpert_out, dactivated, dfc1, drow_probs, drows;
    ref_tensor dpermuted, dprobs, drouter, dtokens;
    /* What mlp.gather_tokens gave is used by every tp rank alike, so its backward takes the own rows and adds
     * nothing (Megatron-LM: tensor_parallel_output_grad = False). */
    if (must_cut(p))
        ASSAY_TRY(ref_scatter_to_sequence_parallel_region(p, &dout, dy, "mlp.gather_tokens.grad"));
    ASSAY_TRY(ref_token_combine_bwd(p, &a->dispatch, &dexpert_out, &dout));
    ASSAY_TRY(
        ref_ranks_grouped_linear_bwd(p, &dactivated, &dexpert_out, &a->activated, counts, w->experts_fc2));
    ASSAY_TRY(ref_ranks_swiglu_bwd(p, &dfc1, &drow_probs, &dactivated, &a->fc1, &a->row_probs));
    ASSAY_TRY(ref_ranks_grouped_linear_bwd(p, &drows, &dfc1, &a->rows, counts, w->experts_fc1));
    ASSAY_TRY(ref_token_dispatch_bwd(p, &a->dispatch, &dpermuted, &dprobs, &drows, &drow_probs));
    ASSAY_TRY(ref_router_route_bwd(p, &drouter, &a->router, &dprobs));
    if (w->shared.linear_fc1 < 0) {
        ASSAY_TRY(ref_ranks_add_grad(p, &dtokens, &dpermuted, &drouter, &a->tokens));
    } else { /* no gradient of what the layer reads before the shared expert's is there */
        ref_tensor routed;
        ASSAY_TRY(ref_ranks_add(p, &routed, &dpermuted, &drouter, "mlp.router.input_grad"));
        ASSAY_TRY(shared_bwd(p, &dtokens, a, &dout, &routed));
    }
    if (must_cut(p))
        return ref_scatter_to_sequence_parallel_region_bwd(p, dx, &dtokens, "mlp.scatter.grad");
    *dx = dtokens;
    return ASSAY_OK;
}

static const ref_kind_param params[] = {
    {"mlp.router.weight", offsetof(ref_layer, moe.router), true},
    {"mlp.router.expert_bias", offsetof(ref_layer, moe.expert_bias), false},
    {"mlp.experts.linear_fc1.weight", offsetof(ref_layer, moe.experts_fc1), true},
    {"mlp.experts.linear_fc2.weight", offsetof(ref_layer, moe.experts_fc2), true},
    {"mlp.shared_experts.linear_fc1.weight", offsetof(ref_layer, moe.shared.linear_fc1), false},
    {"mlp.shared_experts.linear_fc2.weight", offsetof(ref_layer, moe.shared.linear_fc2), false},
    {"mlp.shared_experts.gate_weight", offsetof(ref_layer, moe.shared_gate), false},
    {0},
};
const ref_layer_kind ref_moe = {"moe", params, moe_fwd, moe_bwd};
