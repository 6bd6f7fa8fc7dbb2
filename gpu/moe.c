/* Mixture of experts on token shards.  Every tp rank works on its own sequence piece whether sequence_parallel is on or
 * not.  docs/OPS.md sections 7 and 9. */
#include "gpu/layer.h"
#include "gpu/parallel/expert.h"
#include "gpu/parallel/tensor.h"

/* Every tp rank holds whole sequences and takes its piece. */
static bool must_cut(const gpu_model *m)
{
    return m->tp > 1 && !m->sp;
}

/* This rank's sequence piece of v, as a view: instance `at`, slot `slot`. */
static assay_status cut(gpu_model *m, const char *at, const char *slot, gpu_value *v, gpu_value *piece)
{
    *piece = *v;
    piece->dim[0] = gpu_dim_sequence(m, true);
    piece->t = gpu_tensor_rows(v->t, m->s0 * m->B, m->sl * m->B);
    gpu_value_name(m->run, piece, at, slot);
    return GPU_CALL(m->run, "slice_rows", at, GPU_T("x", v), GPU_I("start", m->s0), GPU_I("length", m->sl),
                    GPU_T("y", piece));
}

/* --- experts ------------------------------------------------------------------------------------------------ */
/* A value with the rows of the local experts. */
static gpu_value expert_rows(gpu_arena *arena, const gpu_moe_acts *a, int64_t last)
{
    gpu_value v = gpu_local(arena, a->expert_rows.n, last);
    v.kind = ASSAY_PIECE_ROWS;
    v.rows = &a->expert_rows;
    return v;
}

static assay_status experts_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_moe_acts *a)
{
    gpu_run *run = m->run;
    gpu_arena *keep = &mb->arena;
    const int64_t H = m->config->hidden_size, F = m->config->moe_ffn_hidden_size;
    ASSAY_TRY(GPU_CALL(run, "grouped_linear_fwd", "mlp.experts.linear_fc1", GPU_T("x", &a->expert_in),
                       GPU_T("weight", gpu_param_use(m, l->experts_fc1)),
                       GPU_T("tokens_per_expert", &a->local_counts),
                       GPU_NEW("y", &a->fc1, expert_rows(keep, a, 2 * F))));
    ASSAY_TRY(GPU_CALL(run, "swiglu_fwd", "mlp.experts.activation", GPU_T("x", &a->fc1),
                       GPU_T("probs", &a->expert_probs), GPU_NEW("y", &a->act, expert_rows(keep, a, F))));
    return GPU_CALL(run, "grouped_linear_fwd", "mlp.experts.linear_fc2", GPU_T("x", &a->act),
                    GPU_T("weight", gpu_param_use(m, l->experts_fc2)),
                    GPU_T("tokens_per_expert", &a->local_counts),
                    GPU_NEW("y", &a->fc2, expert_rows(&m->scratch, a, H)));
}

static assay_status experts_bwd(gpu_model *m, gpu_layer *l, gpu_moe_acts *a, gpu_value *dfc2,
                                gpu_value *drows, gpu_value *dprobs)
{
    gpu_run *run = m->run;
    gpu_value dact, dfc1, *counts = &a->local_counts;
    ASSAY_TRY(GPU_CALL(run, "grouped_linear_bwd_weight", "mlp.experts.linear_fc2", GPU_T("dy", dfc2),
                       GPU_T("x", &a->act), GPU_T("tokens_per_expert", counts),
                       GPU_T("dweight", gpu_param_grad(m, l->experts_fc2))));
    ASSAY_TRY(GPU_CALL(run, "grouped_linear_bwd_input", "mlp.experts.linear_fc2", GPU_T("dy", dfc2),
                       GPU_T("weight", gpu_param_use(m, l->experts_fc2)), GPU_T("tokens_per_expert", counts),
                       GPU_NEW("dx", &dact, gpu_grad_of(m, &a->act))));
    ASSAY_TRY(GPU_CALL(run, "swiglu_bwd", "mlp.experts.activation", GPU_T("dy", &dact), GPU_T("x", &a->fc1),
                       GPU_T("probs", &a->expert_probs), GPU_NEW("dx", &dfc1, gpu_grad_of(m, &a->fc1)),
                       GPU_NEW("dprobs", dprobs, gpu_grad_of(m, &a->expert_probs))));
    ASSAY_TRY(GPU_CALL(run, "grouped_linear_bwd_weight", "mlp.experts.linear_fc1", GPU_T("dy", &dfc1),
                       GPU_T("x", &a->expert_in), GPU_T("tokens_per_expert", counts),
                       GPU_T("dweight", gpu_param_grad(m, l->experts_fc1))));
    return GPU_CALL(run, "grouped_linear_bwd_input", "mlp.experts.linear_fc1", GPU_T("dy", &dfc1),
                    GPU_T("weight", gpu_param_use(m, l->experts_fc1)), GPU_T("tokens_per_expert", counts),
                    GPU_NEW("dx", drows, gpu_grad_of(m, &a->expert_in)));
}

/* --- the layer's MLP ---------------------------------------------------------------------------------------- */
assay_status gpu_moe_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *acts,
                         gpu_value *branch)
{
    gpu_moe_acts *a = &acts->moe;
    const gpu_dim H = gpu_dim_hidden(m);
    gpu_value y, shared;
    a->tokens = acts->norm;
    if (must_cut(m))
        ASSAY_TRY(cut(m, "mlp.scatter", "y", &acts->norm, &a->tokens));
    ASSAY_TRY(gpu_router_step(m, mb, l, acts));
    ASSAY_TRY(gpu_token_dispatch(m, mb, l, a));
    ASSAY_TRY(experts_fwd(m, mb, l, a));
    ASSAY_TRY(gpu_token_combine(m, a, &a->fc2, &a->unpermuted));
    y = a->unpermuted;
    if (l->shared_fc1) {
        ASSAY_TRY(gpu_shared_fwd(m, mb, l, acts, &shared));
        ASSAY_TRY(GPU_CALL(m->run, "add", "mlp.shared_experts.add", GPU_T("a", &a->unpermuted),
                           GPU_T("b", &shared), GPU_NEW("y", &y, gpu_tokens(m, &m->scratch, true, H))));
    }
    *branch = y;
    if (!must_cut(m))
        return ASSAY_OK;
    *branch = gpu_tokens(m, &m->scratch, false, H);
    return gpu_gather_from_sequence_parallel_region(m, "mlp.gather_tokens", branch, &y);
}

assay_status gpu_moe_bwd(gpu_model *m, gpu_layer *l, gpu_layer_acts *acts, gpu_value *dy, gpu_value *dnorm)
{
    gpu_run *run = m->run;
    gpu_moe_acts *a = &acts->moe;
    gpu_arena *temp = &m->scratch;
    gpu_value dtoken = *dy, dfc2, drows, dprobs_rows, dprobs, dpermute, dgating, dshared, sum, total;
    if (must_cut(m)) /* dy is whole on every tp rank: the piece of this one */
        ASSAY_TRY(cut(m, "mlp.gather_tokens", "send.grad", dy, &dtoken));
    ASSAY_TRY(gpu_token_combine_bwd(m, a, &dtoken, &dfc2));
    ASSAY_TRY(experts_bwd(m, l, a, &dfc2, &drows, &dprobs_rows));
    ASSAY_TRY(gpu_token_dispatch_bwd(m, a, &drows, &dprobs_rows, &dpermute, &dprobs));
    ASSAY_TRY(gpu_router_step_bwd(m, l, acts, &dprobs, &dgating));
    total = gpu_grad_of(m, &a->tokens);
    if (l->shared_fc1) {
        ASSAY_TRY(GPU_CALL(run, "add", "mlp.router.input_grad", GPU_T("a", &dpermute), GPU_T("b", &dgating),
                           GPU_NEW("y", &sum, gpu_tokens(m, temp, true, gpu_dim_hidden(m)))));
        ASSAY_TRY(gpu_shared_bwd(m, l, acts, &dtoken, &dshared));
        ASSAY_TRY(GPU_CALL(run, "add", "mlp.shared_experts.input_grad", GPU_T("a", &sum),
                           GPU_T("b", &dshared), GPU_T("y", &total)));
    } else {
        ASSAY_TRY(GPU_CALL(run, "add", "mlp.router.input_grad", GPU_T("a", &dpermute), GPU_T("b", &dgating),
                           GPU_T("y", &total)));
    }
    *dnorm = total;
    if (!must_cut(m))
        return ASSAY_OK;
    *dnorm = gpu_grad_of(m, &acts->norm);
    return gpu_gather_from_sequence_parallel_region(m, "mlp.scatter", dnorm, &total);
}
