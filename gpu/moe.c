/* Mixture of experts on token shards.  Every tp rank works on its own sequence piece whether sequence_parallel is on or
 * not.  docs/OPS.md sections 7 and 9. */
#include "gpu/fault.h"
#include "gpu/layer.h"
#include "gpu/parallel/expert.h"
#include "gpu/parallel/halves.h"
#include "gpu/parallel/tensor.h"
#include "gpu/side.h"
#include "gpu/weight_grads.h"
#include <stddef.h>

/* Every tp rank holds whole sequences and takes its piece. */
static bool must_cut(const gpu_model *m)
{
    return m->tp > 1 && !m->sp;
}

/* --- experts ------------------------------------------------------------------------------------------------ */
/* A value with the rows of the local experts; with etp a rank has its columns of it, or a part of a sum. */
static gpu_value expert_rows(const gpu_model *m, gpu_arena *arena, const gpu_moe_acts *a, int64_t last)
{
    gpu_value v = gpu_local(arena, a->expert_rows.n, last);
    v.kind = m->etp > 1 ? ASSAY_PIECE_LOCAL : ASSAY_PIECE_ROWS;
    v.rows = &a->expert_rows;
    return v;
}

/* The gradient of what every etp rank read whole: a part of it. */
static gpu_value part_of_grad(gpu_model *m, const gpu_value *forward)
{
    gpu_value v = gpu_grad_of(m, forward);
    v.kind = m->etp > 1 ? ASSAY_PIECE_LOCAL : v.kind;
    return v;
}

static assay_status activation_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *a)
{
    const int64_t F = m->config->moe_ffn_hidden_size / m->etp;
    return GPU_CALL(
        m->run, "swiglu_fwd", "mlp.experts.activation", GPU_T("x", &a->fc1), GPU_T("probs", &a->expert_probs),
        GPU_NEW("y", &a->act, expert_rows(m, gpu_module_arena(m, mb, ASSAY_RECOMPUTE_MOE_ACT), a, F)));
}

/* The weights of the experts that a is about: all local ones, or with halves some of them, in *some. */
static gpu_value *weight_of(gpu_model *m, gpu_param *weight, const gpu_moe_acts *a, gpu_value *some)
{
    gpu_value *all = gpu_param_use(m, weight);
    if (a->n_experts == 0)
        return all;
    *some = *all;
    some->t = gpu_tensor_rows(all->t, a->first_expert, a->n_experts);
    return some;
}

static assay_status experts_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_moe_acts *a)
{
    gpu_run *run = m->run;
    const int64_t H = m->config->hidden_size, F = m->config->moe_ffn_hidden_size / m->etp;
    gpu_value some;
    ASSAY_TRY(GPU_CALL(run, "grouped_linear_fwd", "mlp.experts.linear_fc1", GPU_T("x", &a->expert_in),
                       GPU_T("weight", weight_of(m, l->moe.experts_fc1, a, &some)),
                       GPU_T("tokens_per_expert", &a->local_counts),
                       GPU_NEW("y", &a->fc1, expert_rows(m, &mb->arena, a, 2 * F))));
    ASSAY_TRY(activation_fwd(m, mb, a));
    return GPU_CALL(run, "grouped_linear_fwd", "mlp.experts.linear_fc2", GPU_T("x", &a->act),
                    GPU_T("weight", weight_of(m, l->moe.experts_fc2, a, &some)),
                    GPU_T("tokens_per_expert", &a->local_counts),
                    GPU_NEW("y", &a->fc2, expert_rows(m, &m->scratch, a, H)));
}

/* Gradients inside the experts. */
typedef struct expert_grads {
    gpu_value dfc2, dact, dfc1, drows, dprobs;
} expert_grads;

/* dfc2 -> dact, dfc1, dprobs */
static assay_status activation_bwd(gpu_model *m, gpu_layer *l, gpu_moe_acts *a, expert_grads *g)
{
    gpu_value some;
    ASSAY_TRY(GPU_CALL(m->run, "grouped_linear_bwd_input", "mlp.experts.linear_fc2", GPU_T("dy", &g->dfc2),
                       GPU_T("weight", weight_of(m, l->moe.experts_fc2, a, &some)),
                       GPU_T("tokens_per_expert", &a->local_counts),
                       GPU_NEW("dx", &g->dact, gpu_grad_of(m, &a->act))));
    return GPU_CALL(m->run, "swiglu_bwd", "mlp.experts.activation", GPU_T("dy", &g->dact),
                    GPU_T("x", &a->fc1), GPU_T("probs", &a->expert_probs),
                    GPU_NEW("dx", &g->dfc1, gpu_grad_of(m, &a->fc1)),
                    GPU_NEW("dprobs", &g->dprobs, part_of_grad(m, &a->expert_probs)));
}

/* dfc1 -> drows */
static assay_status expert_rows_bwd(gpu_model *m, gpu_layer *l, gpu_moe_acts *a, expert_grads *g)
{
    gpu_value some;
    return GPU_CALL(m->run, "grouped_linear_bwd_input", "mlp.experts.linear_fc1", GPU_T("dy", &g->dfc1),
                    GPU_T("weight", weight_of(m, l->moe.experts_fc1, a, &some)),
                    GPU_T("tokens_per_expert", &a->local_counts),
                    GPU_NEW("dx", &g->drows, part_of_grad(m, &a->expert_in)));
}

static assay_status experts_bwd(gpu_model *m, gpu_layer *l, gpu_moe_acts *a, expert_grads *g)
{
    gpu_value *counts = &a->local_counts;
    ASSAY_TRY(gpu_grouped_linear_bwd_weight(m, "mlp.experts.linear_fc2", &g->dfc2, &a->act, counts,
                                            l->moe.experts_fc2));
    ASSAY_TRY(activation_bwd(m, l, a, g));
    ASSAY_TRY(gpu_grouped_linear_bwd_weight(m, "mlp.experts.linear_fc1", &g->dfc1, &a->expert_in, counts,
                                            l->moe.experts_fc1));
    return expert_rows_bwd(m, l, a, g);
}

/* --- experts in halves -------------------------------------------------------------------------------------- */
/* The rows of the second half travel while the first computes, those of the first go back while the second does. */
static assay_status halves_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_moe_acts *a)
{
    ASSAY_TRY(gpu_halves_open_fwd(m, a));
    for (int h = 0; h < GPU_HALVES; h++) {
        ASSAY_TRY(gpu_halves_arrive_fwd(m, mb, a, h));
        ASSAY_TRY(experts_fwd(m, mb, l, &a->half[h]));
        ASSAY_TRY(gpu_halves_leave_fwd(m, a, h));
    }
    return gpu_halves_join(m);
}

/* The same backward; gradients of weights come last, beside the second half's way back. */
static assay_status halves_bwd(gpu_model *m, gpu_layer *l, gpu_moe_acts *a, gpu_value *dpermuted,
                               gpu_value *dprobs, gpu_value *dreturned)
{
    expert_grads g[GPU_HALVES];
    gpu_value arrived[GPU_HALVES];
    gpu_expert_part fc1[GPU_HALVES], fc2[GPU_HALVES];
    ASSAY_TRY(gpu_halves_combine_bwd(m, a, arrived, dreturned));
    ASSAY_TRY(gpu_halves_open_bwd(m, a, dpermuted, dprobs));
    for (int h = 0; h < GPU_HALVES; h++) {
        gpu_moe_acts *half = &a->half[h];
        ASSAY_TRY(gpu_halves_arrive_bwd(m, a, h, &g[h].dfc2, &arrived[h]));
        ASSAY_TRY(activation_bwd(m, l, half, &g[h]));
        ASSAY_TRY(expert_rows_bwd(m, l, half, &g[h]));
        ASSAY_TRY(gpu_halves_leave_bwd(m, a, h, dpermuted, dprobs, &g[h].drows, &g[h].dprobs));
        fc1[h] = (gpu_expert_part){&g[h].dfc1, &half->expert_in, &half->local_counts, half->first_expert,
                                   half->n_experts};
        fc2[h] = (gpu_expert_part){&g[h].dfc2, &half->act, &half->local_counts, half->first_expert,
                                   half->n_experts};
    }
    ASSAY_TRY(gpu_grouped_linear_bwd_weight_parts(m, "mlp.experts.linear_fc2", fc2, GPU_HALVES,
                                                  l->moe.experts_fc2));
    ASSAY_TRY(gpu_grouped_linear_bwd_weight_parts(m, "mlp.experts.linear_fc1", fc1, GPU_HALVES,
                                                  l->moe.experts_fc1));
    return gpu_halves_join(m);
}

/* --- shared expert ------------------------------------------------------------------------------------------ */
/* On the token shard, in the sequence parallel form whether sp is on or not. */
static gpu_mlp_desc shared_expert(const gpu_model *m, const gpu_layer *l)
{
    return (gpu_mlp_desc){.params = &l->moe.shared,
                          .width = m->config->moe_shared_expert_intermediate_size,
                          .sp = true,
                          .module = ASSAY_RECOMPUTE_SHARED_EXPERTS,
                          .gather = "mlp.shared_experts.gather",
                          .linear_fc1 = "mlp.shared_experts.linear_fc1",
                          .activation = "mlp.shared_experts.activation",
                          .linear_fc2 = "mlp.shared_experts.linear_fc2",
                          .reduce = "mlp.shared_experts.reduce"};
}

/* y = shared(tokens), gated by sigmoid(w tokens) when there is a gate */
static assay_status shared_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_moe_acts *a,
                               gpu_value *y)
{
    gpu_run *run = m->run;
    const gpu_mlp_desc d = shared_expert(m, l);
    gpu_arena *keep = gpu_module_arena(m, mb, ASSAY_RECOMPUTE_SHARED_EXPERTS);
    ASSAY_TRY(gpu_mlp_fwd(m, mb, &d, &a->shared, keep, &a->shared_out, &a->tokens));
    *y = a->shared_out;
    if (l->moe.shared_gate == NULL)
        return ASSAY_OK;
    ASSAY_TRY(GPU_CALL(run, "linear_fwd", "mlp.shared_experts.gating", GPU_T("x", &a->tokens),
                       GPU_T("weight", gpu_param_use(m, l->moe.shared_gate)),
                       GPU_NEW("y", &a->shared_gate, gpu_tokens(m, keep, true, gpu_dim_whole(1)))));
    return GPU_CALL(run, "sigmoid_gate_fwd", "mlp.shared_experts.gate", GPU_T("x", &a->shared_out),
                    GPU_T("gate", &a->shared_gate),
                    GPU_NEW("y", y, gpu_tokens(m, &m->scratch, true, gpu_dim_hidden(m))));
}

/* dy -> gradient of the shared expert's output before the gate (*dout) and of the tokens through the gate */
static assay_status gate_bwd(gpu_model *m, gpu_layer *l, gpu_moe_acts *a, gpu_value *dout, gpu_value *dtokens,
                             gpu_value *dy)
{
    gpu_run *run = m->run;
    gpu_value dgate;
    ASSAY_TRY(GPU_CALL(run, "sigmoid_gate_bwd", "mlp.shared_experts.gate", GPU_T("dy", dy),
                       GPU_T("x", &a->shared_out), GPU_T("gate", &a->shared_gate),
                       GPU_NEW("dx", dout, gpu_grad_of(m, &a->shared_out)),
                       GPU_NEW("dgate", &dgate, gpu_grad_of(m, &a->shared_gate))));
    ASSAY_TRY(gpu_linear_bwd_weight(m, "mlp.shared_experts.gating", &dgate, &a->tokens, l->moe.shared_gate));
    return GPU_CALL(run, "linear_bwd_input", "mlp.shared_experts.gating", GPU_T("dy", &dgate),
                    GPU_T("weight", gpu_param_use(m, l->moe.shared_gate)),
                    GPU_NEW("dx", dtokens, gpu_tokens(m, &m->scratch, true, gpu_dim_hidden(m))));
}

/* dtokens: the shared expert's contribution, through the MLP and the gate */
static assay_status shared_bwd(gpu_model *m, gpu_layer *l, gpu_moe_acts *a, gpu_value *dtokens, gpu_value *dy)
{
    const gpu_mlp_desc d = shared_expert(m, l);
    gpu_value dout = *dy, dmlp, dgated;
    if (l->moe.shared_gate == NULL)
        return gpu_mlp_bwd(m, &d, &a->shared, dtokens, &dout, &a->tokens);
    ASSAY_TRY(gate_bwd(m, l, a, &dout, &dgated, dy));
    ASSAY_TRY(gpu_mlp_bwd(m, &d, &a->shared, &dmlp, &dout, &a->tokens));
    return GPU_CALL(m->run, "add", "mlp.shared_experts.gate_grad", GPU_T("a", &dmlp), GPU_T("b", &dgated),
                    GPU_NEW("y", dtokens, gpu_tokens(m, &m->scratch, true, gpu_dim_hidden(m))));
}

/* Whether the shared expert runs beside the dispatch: it is issued before it, and waited for where its result is added. */
static bool runs_beside(const gpu_model *m, const gpu_layer *l)
{
    return l->moe.shared.linear_fc1 && m->run->side.own.stream && !m->run->dry && !gpu_run_is_watched(m->run);
}

/* --- the MLP of a layer ------------------------------------------------------------------------------------- */
/* The token shard of this rank. */
static assay_status tokens_fwd(gpu_model *m, gpu_moe_acts *a, gpu_value *x)
{
    a->tokens = *x;
    return must_cut(m) ? gpu_scatter_to_sequence_parallel_region(m, "mlp.scatter", "y", &a->tokens, x)
                       : ASSAY_OK;
}

static assay_status moe_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *acts,
                            gpu_value *y, gpu_value *x)
{
    gpu_run *run = m->run;
    gpu_moe_acts *a = &acts->moe;
    gpu_value out, shared;
    a->half = acts->half;
    ASSAY_TRY(tokens_fwd(m, a, x));
    if (runs_beside(m, l)) {
        ASSAY_TRY(gpu_side_begin(run));
        ASSAY_TRY(shared_fwd(m, mb, l, a, &shared));
        ASSAY_TRY(gpu_side_end(run));
    }
    ASSAY_TRY(gpu_router_route_fwd(m, mb, l, a));
    ASSAY_TRY(gpu_token_dispatch_fwd(m, mb, l, a));
    ASSAY_TRY(gpu_has_halves(m) ? halves_fwd(m, mb, l, a) : experts_fwd(m, mb, l, a));
    ASSAY_TRY(gpu_token_combine_fwd(m, a, &a->unpermuted, &a->fc2));
    out = a->unpermuted;
    if (l->moe.shared.linear_fc1) {
        ASSAY_TRY(runs_beside(m, l) ? gpu_side_join(run) : shared_fwd(m, mb, l, a, &shared));
        ASSAY_TRY(GPU_CALL(run, "add", "mlp.shared_experts.add", GPU_T("a", &a->unpermuted),
                           GPU_T("b", &shared),
                           GPU_NEW("y", &out, gpu_tokens(m, &m->scratch, true, gpu_dim_hidden(m)))));
    }
    *y = out;
    if (!must_cut(m))
        return ASSAY_OK;
    *y = gpu_tokens(m, &m->scratch, false, gpu_dim_hidden(m));
    return gpu_gather_from_sequence_parallel_region(m, "mlp.gather_tokens", y, &out);
}

static assay_status moe_bwd(gpu_model *m, gpu_layer *l, gpu_layer_acts *acts, gpu_value *dx, gpu_value *dy)
{
    gpu_run *run = m->run;
    gpu_moe_acts *a = &acts->moe;
    gpu_value dout = *dy, dprobs, dpermute, dgating, dshared, sum, dtokens;
    expert_grads g;
    if (must_cut(m)) /* dy is whole on every tp rank: the piece of this one */
        ASSAY_TRY(gpu_scatter_to_sequence_parallel_region(m, "mlp.gather_tokens", "send.grad", &dout, dy));
    if (runs_beside(m, l)) {
        ASSAY_TRY(gpu_side_begin(run));
        ASSAY_TRY(shared_bwd(m, l, a, &dshared, &dout));
        ASSAY_TRY(gpu_side_end(run));
    }
    ASSAY_TRY(gpu_token_combine_bwd(m, a, &g.dfc2, &dout));
    ASSAY_TRY(gpu_has_halves(m) ? halves_bwd(m, l, a, &g.drows, &g.dprobs, &g.dfc2)
                                : experts_bwd(m, l, a, &g));
    ASSAY_TRY(gpu_token_dispatch_bwd(m, a, &dpermute, &dprobs, &g.drows, &g.dprobs));
    ASSAY_TRY(gpu_router_route_bwd(m, l, a, &dgating, &dprobs));
    dtokens = gpu_grad_of(m, &a->tokens);
    if (l->moe.shared.linear_fc1) {
        ASSAY_TRY(GPU_CALL(run, "add", "mlp.router.input_grad", GPU_T("a", &dpermute), GPU_T("b", &dgating),
                           GPU_NEW("y", &sum, gpu_tokens(m, &m->scratch, true, gpu_dim_hidden(m)))));
        ASSAY_TRY(runs_beside(m, l) ? gpu_side_join(run) : shared_bwd(m, l, a, &dshared, &dout));
        ASSAY_TRY(GPU_CALL(run, "add", "mlp.shared_experts.input_grad", GPU_T("a", &sum),
                           GPU_T("b", &dshared), GPU_T("y", &dtokens)));
    } else {
        ASSAY_TRY(GPU_CALL(run, "add", "mlp.router.input_grad", GPU_T("a", &dpermute), GPU_T("b", &dgating),
                           GPU_T("y", &dtokens)));
    }
    *dx = dtokens;
    if (!must_cut(m))
        return ASSAY_OK;
    *dx = gpu_grad_of(m, &acts->norm);
    return gpu_scatter_to_sequence_parallel_region_bwd(m, "mlp.scatter", dx, &dtokens);
}

static assay_status activation_again(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *a)
{
    if (!gpu_has_halves(m))
        return activation_fwd(m, mb, a);
    for (int h = 0; h < GPU_HALVES; h++)
        ASSAY_TRY(activation_fwd(m, mb, &a->half[h]));
    return ASSAY_OK;
}

static assay_status moe_again(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *acts)
{
    gpu_moe_acts *a = &acts->moe;
    const unsigned modules = m->recompute.modules;
    const gpu_mlp_desc d = shared_expert(m, l);
    gpu_value shared;
    if (modules & ASSAY_RECOMPUTE_LAYERNORM)
        ASSAY_TRY(tokens_fwd(m, a, &acts->norm));
    if (modules & ASSAY_RECOMPUTE_MOE_ACT)
        ASSAY_TRY(activation_again(m, mb, a));
    if (l->moe.shared.linear_fc1 == NULL)
        return ASSAY_OK;
    if (modules & ASSAY_RECOMPUTE_SHARED_EXPERTS)
        return shared_fwd(m, mb, l, a, &shared);
    return modules & ASSAY_RECOMPUTE_LAYERNORM ? gpu_mlp_input_again(m, mb, &d, &a->shared, &a->tokens)
                                               : ASSAY_OK;
}

static const gpu_kind_param params[] = {
    {"mlp.router.weight", offsetof(gpu_layer, moe.router), true},
    {"mlp.router.expert_bias", offsetof(gpu_layer, moe.expert_bias), false},
    {"mlp.experts.linear_fc1.weight", offsetof(gpu_layer, moe.experts_fc1), true},
    {"mlp.experts.linear_fc2.weight", offsetof(gpu_layer, moe.experts_fc2), true},
    {"mlp.shared_experts.linear_fc1.weight", offsetof(gpu_layer, moe.shared.linear_fc1), false},
    {"mlp.shared_experts.linear_fc2.weight", offsetof(gpu_layer, moe.shared.linear_fc2), false},
    {"mlp.shared_experts.gate_weight", offsetof(gpu_layer, moe.shared_gate), false},
    {0},
};
const gpu_layer_kind gpu_moe = {"moe", params, moe_fwd, moe_bwd, moe_again};
