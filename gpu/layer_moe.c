/* Mixture of experts on token shards: router, experts, shared expert.  Every tp rank works on its own
 * sequence piece whether sequence_parallel is on or not.  docs/OPS.md sections 7 and 9. */
#include "gpu/layer.h"
#include "gpu/parallel/expert.h"
#include "gpu/parallel/tensor.h"
#include <string.h>

static gpu_router_desc router_desc(const gpu_model *m)
{
    const assay_model_config *c = m->config;
    return (gpu_router_desc){.topk = c->moe_router_topk,
                             .score_function = (int)c->moe_router_score_function,
                             .pre_softmax = c->moe_router_pre_softmax,
                             .norm_topk_prob = c->norm_topk_prob,
                             .scaling_factor = (float)c->moe_router_topk_scaling_factor,
                             .num_groups = c->moe_router_num_groups,
                             .group_topk = c->moe_router_group_topk};
}

static bool has_aux(const gpu_model *m)
{
    return m->options->moe_aux_loss_coeff > 0.0 || m->options->moe_z_loss_coeff > 0.0;
}

static gpu_router_aux_desc aux_desc(const gpu_model *m)
{
    return (gpu_router_aux_desc){.aux_coeff = m->options->moe_aux_loss_coeff,
                                 .z_coeff = m->options->moe_z_loss_coeff,
                                 .loss_scale = 1.0 / (double)m->step_microbatches,
                                 .group_tokens = m->S * m->B_global,
                                 .router = router_desc(m)};
}

/* The ranks that share the tokens of one microbatch. */
static assay_group aux_group(const gpu_model *m)
{
    return m->rows_split ? ASSAY_GROUP_TP_DP_CP : ASSAY_GROUP_TP_CP;
}

static assay_status vector_value(gpu_model *m, gpu_arena *arena, gpu_value *v, const char *at,
                                 const char *slot, int64_t n, assay_dtype dtype)
{
    memset(v, 0, sizeof *v);
    v->ndim = 1;
    v->dim[0] = gpu_dim_whole(n);
    gpu_value_name(m->run, v, at, slot);
    return gpu_value_alloc(arena, v, dtype, -1);
}

/* --- router ------------------------------------------------------------------------------------------------- */
static assay_status aux_forward(gpu_model *m, gpu_slot_state *slot, gpu_layer_saved *saved)
{
    gpu_run *run = m->run;
    gpu_moe_saved *s = &saved->moe;
    gpu_arena *temp = &m->scratch;
    const assay_group group = aux_group(m);
    const int64_t E = m->config->num_moe_experts, K = m->config->moe_router_topk;
    const gpu_router_aux_desc d = aux_desc(m);
    gpu_value scores, indices, counts, sums, z, losses;
    ASSAY_TRY(
        gpu_token_value(m, temp, &scores, "mlp.router.aux", "aux_scores", true, gpu_dim_whole(E), ASSAY_F32));
    ASSAY_TRY(gpu_token_value(m, temp, &indices, "mlp.router.aux", "aux_indices", true, gpu_dim_whole(K),
                              ASSAY_I64));
    ASSAY_TRY(vector_value(m, &slot->arena, &counts, "mlp.router.aux", "tokens_per_expert", E, ASSAY_I64));
    ASSAY_TRY(vector_value(m, temp, &sums, "mlp.router.aux", "score_sums", E, ASSAY_F32));
    ASSAY_TRY(vector_value(m, temp, &z, "mlp.router.aux", "z_sum", 1, ASSAY_F32));
    ASSAY_TRY(vector_value(m, temp, &losses, "mlp.router.aux_loss", "losses", 2, ASSAY_F32));
    gpu_value_partial(m, &counts, group);
    gpu_value_partial(m, &sums, group);
    gpu_value_partial(m, &z, group);
    gpu_value_partial(m, &losses, group);
    ASSAY_TRY(gpu_run_router_aux_fwd(run, "mlp.router.aux", &scores, &indices, &counts, &sums, &z, &s->logits,
                                     &d.router));
    s->aux_counts = counts;
    if (run->comm.group[group].size > 1) {
        ASSAY_TRY(
            vector_value(m, &slot->arena, &s->aux_counts, "mlp.router.aux_counts", "recv", E, ASSAY_I64));
        ASSAY_TRY(gpu_all_reduce(m, "mlp.router.aux_counts", group, &s->aux_counts, &counts, false));
    }
    return gpu_run_router_aux_loss(run, "mlp.router.aux_loss", &losses, &sums, &s->aux_counts, &z, &d);
}

static assay_status router_forward(gpu_model *m, gpu_slot_state *slot, gpu_layer *l, gpu_layer_saved *saved)
{
    gpu_run *run = m->run;
    gpu_moe_saved *s = &saved->moe;
    gpu_arena *keep = &slot->arena;
    const gpu_dim E = gpu_dim_whole(m->config->num_moe_experts),
                  K = gpu_dim_whole(m->config->moe_router_topk);
    const gpu_router_desc d = router_desc(m);
    ASSAY_TRY(gpu_token_value(m, keep, &s->logits, "mlp.router.gating", "y", true, E, ASSAY_F32));
    ASSAY_TRY(gpu_token_value(m, keep, &s->indices, "mlp.router", "indices", true, K, ASSAY_I64));
    ASSAY_TRY(gpu_token_value(m, keep, &s->probs, "mlp.router", "probs", true, K, ASSAY_F32));
    ASSAY_TRY(gpu_token_value(m, keep, &s->scores, "mlp.router", "scores", true, E, ASSAY_F32));
    ASSAY_TRY(gpu_run_linear_fwd(run, "mlp.router.gating", &s->logits, &s->tokens,
                                 gpu_param_use(m, l->router), NULL));
    ASSAY_TRY(gpu_run_router_fwd(run, "mlp.router", &s->indices, &s->probs, &s->scores, &s->logits,
                                 l->expert_bias ? gpu_param_use(m, l->expert_bias) : NULL, &d,
                                 gpu_is_first_moe(m, l) && m->fault == GPU_FAULT_WRONG_EXPERT));
    return has_aux(m) ? aux_forward(m, slot, saved) : ASSAY_OK;
}

/* dprobs -> gradients of the router's weight and of the tokens (instance mlp.router.gating, slot dx) */
static assay_status router_backward(gpu_model *m, gpu_layer *l, gpu_layer_saved *saved, gpu_value *dprobs,
                                    gpu_value *dtokens)
{
    gpu_run *run = m->run;
    gpu_moe_saved *s = &saved->moe;
    gpu_arena *temp = &m->scratch;
    const gpu_router_desc d = router_desc(m);
    const gpu_router_aux_desc aux = aux_desc(m);
    gpu_value dlogits, total;
    ASSAY_TRY(gpu_grad_value(m, temp, &dlogits, &s->logits, ASSAY_F32));
    total = dlogits;
    if (has_aux(m))
        gpu_value_name(run, &dlogits, "mlp.router", "dlogits");
    ASSAY_TRY(
        gpu_run_router_bwd(run, "mlp.router", &dlogits, dprobs, &s->indices, &s->scores, &s->logits, &d));
    if (has_aux(m))
        ASSAY_TRY(gpu_run_router_aux_bwd(run, "mlp.router.aux", &total, &dlogits, &s->logits, &s->aux_counts,
                                         &aux));
    gpu_value *dy = &total, narrow;
    if (m->act != ASSAY_F32) { /* the product takes operands of one type */
        ASSAY_TRY(
            gpu_token_value(m, temp, &narrow, "mlp.router.gating_cast", "y", true, total.dim[2], m->act));
        ASSAY_TRY(gpu_run_cast(run, "mlp.router.gating_cast", &narrow, &total));
        dy = &narrow;
    }
    ASSAY_TRY(gpu_run_linear_bwd_weight(run, "mlp.router.gating", gpu_param_grad(m, l->router), dy,
                                        &s->tokens, false));
    ASSAY_TRY(gpu_token_value(m, temp, dtokens, "mlp.router.gating", "dx", true, s->tokens.dim[2], m->act));
    return gpu_run_linear_bwd_input(run, "mlp.router.gating", dtokens, dy, gpu_param_use(m, l->router));
}

/* --- experts ------------------------------------------------------------------------------------------------ */
/* A value with the rows of the local experts. */
static assay_status expert_value(gpu_model *m, gpu_arena *arena, gpu_value *v, const gpu_moe_saved *s,
                                 const char *at, int64_t last)
{
    memset(v, 0, sizeof *v);
    v->kind = ASSAY_PIECE_ROWS;
    v->rows = &s->expert_rows;
    v->ndim = 2;
    v->dim[0] = gpu_dim_whole(s->expert_rows.n);
    v->dim[1] = gpu_dim_whole(last);
    gpu_value_name(m->run, v, at, "y");
    return gpu_value_alloc(arena, v, m->act, -1);
}

static assay_status experts_forward(gpu_model *m, gpu_slot_state *slot, gpu_layer *l, gpu_layer_saved *saved)
{
    gpu_run *run = m->run;
    gpu_moe_saved *s = &saved->moe;
    gpu_arena *keep = &slot->arena;
    const int64_t H = m->config->hidden_size, F = m->config->moe_ffn_hidden_size;
    ASSAY_TRY(expert_value(m, keep, &s->fc1, s, "mlp.experts.linear_fc1", 2 * F));
    ASSAY_TRY(gpu_run_grouped_linear_fwd(run, "mlp.experts.linear_fc1", &s->fc1, &s->expert_in,
                                         gpu_param_use(m, l->experts_fc1), s->counts, &s->local_counts));
    ASSAY_TRY(expert_value(m, keep, &s->act, s, "mlp.experts.activation", F));
    ASSAY_TRY(gpu_run_swiglu_fwd(run, "mlp.experts.activation", &s->act, &s->fc1, &s->expert_probs));
    ASSAY_TRY(expert_value(m, &m->scratch, &s->fc2, s, "mlp.experts.linear_fc2", H));
    return gpu_run_grouped_linear_fwd(run, "mlp.experts.linear_fc2", &s->fc2, &s->act,
                                      gpu_param_use(m, l->experts_fc2), s->counts, &s->local_counts);
}

static assay_status experts_backward(gpu_model *m, gpu_layer *l, gpu_layer_saved *saved, gpu_value *dfc2,
                                     gpu_value *drows, gpu_value *dprobs)
{
    gpu_run *run = m->run;
    gpu_moe_saved *s = &saved->moe;
    gpu_arena *temp = &m->scratch;
    gpu_value dact, dfc1;
    ASSAY_TRY(gpu_run_grouped_linear_bwd_weight(run, "mlp.experts.linear_fc2",
                                                gpu_param_grad(m, l->experts_fc2), dfc2, &s->act, s->counts,
                                                &s->local_counts));
    ASSAY_TRY(gpu_grad_value(m, temp, &dact, &s->act, m->act));
    ASSAY_TRY(gpu_run_grouped_linear_bwd_input(run, "mlp.experts.linear_fc2", &dact, dfc2,
                                               gpu_param_use(m, l->experts_fc2), s->counts,
                                               &s->local_counts));
    ASSAY_TRY(gpu_grad_value(m, temp, &dfc1, &s->fc1, m->act));
    ASSAY_TRY(gpu_grad_value(m, temp, dprobs, &s->expert_probs, ASSAY_F32));
    ASSAY_TRY(
        gpu_run_swiglu_bwd(run, "mlp.experts.activation", &dfc1, dprobs, &dact, &s->fc1, &s->expert_probs));
    ASSAY_TRY(gpu_run_grouped_linear_bwd_weight(run, "mlp.experts.linear_fc1",
                                                gpu_param_grad(m, l->experts_fc1), &dfc1, &s->expert_in,
                                                s->counts, &s->local_counts));
    ASSAY_TRY(gpu_grad_value(m, temp, drows, &s->expert_in, m->act));
    return gpu_run_grouped_linear_bwd_input(run, "mlp.experts.linear_fc1", drows, &dfc1,
                                            gpu_param_use(m, l->experts_fc1), s->counts, &s->local_counts);
}

/* --- the layer's MLP ---------------------------------------------------------------------------------------- */
assay_status gpu_moe_forward(gpu_model *m, gpu_slot_state *slot, gpu_layer *l, gpu_layer_saved *saved,
                             gpu_value *branch)
{
    gpu_run *run = m->run;
    gpu_moe_saved *s = &saved->moe;
    const gpu_dim H = gpu_dim_whole(m->config->hidden_size);
    const bool cut = m->tp > 1 && !m->sp;
    s->tokens = saved->norm;
    if (cut) {
        s->tokens.dim[0] = gpu_dim_sequence(m, true);
        gpu_value_name(run, &s->tokens, "mlp.scatter", "y");
        ASSAY_TRY(gpu_run_slice_rows(run, "mlp.scatter", &s->tokens, &saved->norm, m->s0, m->sl));
    }
    ASSAY_TRY(router_forward(m, slot, l, saved));
    ASSAY_TRY(gpu_token_dispatch(m, slot, l, saved));
    ASSAY_TRY(experts_forward(m, slot, l, saved));
    gpu_value y;
    ASSAY_TRY(gpu_token_value(m, &m->scratch, &y, "mlp.unpermute", "y", true, H, m->act));
    ASSAY_TRY(gpu_token_combine(m, saved, &s->fc2, &y));
    s->unpermuted = y;
    if (l->shared_fc1) {
        gpu_value shared;
        ASSAY_TRY(gpu_shared_forward(m, slot, l, saved, &shared));
        ASSAY_TRY(gpu_token_value(m, &m->scratch, &y, "mlp.shared_experts.add", "y", true, H, m->act));
        ASSAY_TRY(gpu_run_add(run, "mlp.shared_experts.add", &y, &s->unpermuted, &shared));
    }
    *branch = y;
    if (!cut)
        return ASSAY_OK;
    ASSAY_TRY(gpu_token_value(m, &m->scratch, branch, "mlp.gather_tokens", "recv", false, H, m->act));
    return gpu_gather_from_sequence_parallel_region(m, "mlp.gather_tokens", branch, &y);
}

assay_status gpu_moe_backward(gpu_model *m, gpu_slot_state *slot, gpu_layer *l, gpu_layer_saved *saved,
                              gpu_value *dy, gpu_value *dnorm)
{
    gpu_run *run = m->run;
    gpu_arena *temp = &m->scratch;
    const gpu_dim H = gpu_dim_whole(m->config->hidden_size);
    const bool cut = m->tp > 1 && !m->sp;
    gpu_value dtoken = *dy, dfc2, drows, dprobs_rows, dprobs, dpermute, dgating, sum, total;
    (void)slot;
    if (cut) { /* dy is whole on every tp rank: the piece of this one */
        dtoken.dim[0] = gpu_dim_sequence(m, true);
        gpu_value_name(run, &dtoken, "mlp.gather_tokens", "send.grad");
        ASSAY_TRY(gpu_run_slice_rows(run, "mlp.gather_tokens", &dtoken, dy, m->s0, m->sl));
    }
    ASSAY_TRY(gpu_token_combine_backward(m, saved, &dtoken, &dfc2));
    ASSAY_TRY(experts_backward(m, l, saved, &dfc2, &drows, &dprobs_rows));
    ASSAY_TRY(gpu_token_dispatch_backward(m, saved, &drows, &dprobs_rows, &dpermute, &dprobs));
    ASSAY_TRY(router_backward(m, l, saved, &dprobs, &dgating));
    ASSAY_TRY(gpu_grad_value(m, temp, &total, &saved->moe.tokens, m->act));
    sum = total;
    if (l->shared_fc1)
        ASSAY_TRY(gpu_token_value(m, temp, &sum, "mlp.router.input_grad", "y", true, H, m->act));
    ASSAY_TRY(gpu_run_add(run, "mlp.router.input_grad", &sum, &dpermute, &dgating));
    if (l->shared_fc1) {
        gpu_value dshared;
        ASSAY_TRY(gpu_shared_backward(m, l, saved, &dtoken, &dshared));
        ASSAY_TRY(gpu_run_add(run, "mlp.shared_experts.input_grad", &total, &sum, &dshared));
    }
    *dnorm = total;
    if (!cut)
        return ASSAY_OK;
    ASSAY_TRY(gpu_grad_value(m, temp, dnorm, &saved->norm, m->act));
    return gpu_gather_from_sequence_parallel_region(m, "mlp.scatter", dnorm, &total);
}
