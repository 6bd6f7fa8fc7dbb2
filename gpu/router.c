/* Router of a mixture of experts: gating, choice, and their gradients; balancing losses: balancing.c.  docs/OPS.md sections 7 and 9. */
#include "gpu/layer.h"
#include "gpu/ops.h"
#include "gpu/parallel/exchange.h"
#include "gpu/parallel/tensor.h"
#include "gpu/weight_grads.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *gpu_score_word(const gpu_model *m)
{
    return m->config->moe_router_score_function == ASSAY_SCORE_SIGMOID ? "sigmoid" : "softmax";
}

#define SCORE_ATTRS(m) GPU_I("topk", (m)->config->moe_router_topk), GPU_W("score_function", gpu_score_word(m))
#define ROUTER_ATTRS(m)                                                                                      \
    SCORE_ATTRS(m), GPU_I("pre_softmax", (m)->config->moe_router_pre_softmax),                               \
        GPU_I("norm_topk_prob", (m)->config->norm_topk_prob),                                                \
        GPU_F("scaling_factor", (double)(float)(m)->config->moe_router_topk_scaling_factor),                 \
        GPU_I("num_groups", (m)->config->moe_router_num_groups),                                             \
        GPU_I("group_topk", (m)->config->moe_router_group_topk)
/* --- capacities --------------------------------------------------------------------------------------------- */
/* Tokens of the ranks that share a microbatch: how many each has, and their numbers in the microbatch, in staging. */
typedef struct shared_tokens {
    int64_t n, start, mine;
    int64_t *counts, *token;
} shared_tokens;

/* Megatron-LM's way: every rank decides over its own tokens. */
static bool drops_alone(const gpu_model *m)
{
    return m->options->semantics == ASSAY_SEMANTICS_MEGATRON;
}

static assay_status list_tokens(gpu_model *m, gpu_microbatch_state *mb, shared_tokens *all)
{
    const gpu_comm_group *g = &m->run->comm.group[gpu_sharing_group(m)];
    const int64_t whole = drops_alone(m) ? m->sl * m->B : m->S * m->B_global;
    *all = (shared_tokens){0};
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)g->size * sizeof(int64_t), (void **)&all->counts));
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)whole * sizeof(int64_t), (void **)&all->token));
    all->mine = m->sl * m->B;
    if (m->run->dry) {
        all->n = whole;
        return ASSAY_OK;
    }
    for (int i = 0; i < g->size; i++) {
        if (drops_alone(m) && i != g->rank)
            continue;
        assay_sequence_map map;
        assay_coords at;
        assay_grid_coords(m->grid, g->ranks[i], &at);
        ASSAY_TRY(assay_sequence_map_make(m->grid, g->ranks[i], m->S, &map));
        const int64_t row0 = m->rows_split ? at.dp * m->B : 0;
        if (i == g->rank)
            all->start = all->n;
        all->counts[i] = map.shard.length * m->B;
        for (int64_t t = 0; t < all->counts[i]; t++)
            all->token[all->n++] =
                assay_sequence_position(&map.shard, t / m->B) * m->B_global + row0 + t % m->B;
    }
    ASSAY_CHECK(all->n == whole, ASSAY_INTERNAL, "capacities: %lld of %lld tokens", (long long)all->n,
                (long long)whole);
    return ASSAY_OK;
}

/* Rows of all ranks that share the microbatch. */
static assay_status gather_shared(gpu_model *m, const char *at, const shared_tokens *all, gpu_value *whole,
                                  gpu_value *mine)
{
    const assay_group group = gpu_sharing_group(m);
    *whole = *mine;
    if (m->run->comm.group[group].size == 1 || drops_alone(m))
        return ASSAY_OK;
    *whole = gpu_local(&m->scratch, all->n, m->config->moe_router_topk);
    return gpu_call(m->run, &(gpu_call_args){.op = "all_gather",
                                             .at = at,
                                             .group = group,
                                             .counts = all->counts,
                                             .arg = {GPU_T("send", mine), GPU_T("recv", whole)}});
}

/* An expert's capacity is that of the whole microbatch: what it takes does not depend on the layout. */
static assay_status drop_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *a)
{
    const int64_t E = m->config->num_moe_experts, K = m->config->moe_router_topk;
    const bool by_probs = m->options->moe_token_drop_policy == ASSAY_DROP_PROBS;
    shared_tokens all;
    gpu_value indices, probs, token;
    ASSAY_TRY(list_tokens(m, mb, &all));
    const double share = (double)(all.n * K) / (double)E;
    ASSAY_TRY(gather_shared(m, "mlp.router.drop_indices", &all, &indices, &a->indices));
    if (by_probs)
        ASSAY_TRY(gather_shared(m, "mlp.router.drop_probs", &all, &probs, &a->probs));
    ASSAY_TRY(gpu_index_value(m, &m->scratch, &token, "mlp.router.drop", "token", all.n, all.token));
    a->routed_counts = gpu_local(&m->scratch, E, 0);
    return GPU_CALL(m->run, "router_drop", "mlp.router.drop", GPU_T("all_indices", &indices),
                    GPU_T("all_probs", by_probs ? &probs : NULL), GPU_T("token", &token), GPU_I("experts", E),
                    GPU_I("capacity", (int64_t)ceil(share * m->options->moe_expert_capacity_factor)),
                    GPU_I("start", all.start), GPU_I("length", all.mine),
                    GPU_NEW("routed", &a->routed, gpu_tokens(m, &mb->arena, true, gpu_dim_whole(K))),
                    GPU_T("tokens_per_expert", &a->routed_counts));
}

/* --- by global indices --------------------------------------------------------------------------------------- */
/* Numbers of this rank's tokens in the whole microbatch. */
static assay_status token_numbers(gpu_model *m, gpu_microbatch_state *mb, gpu_arena *arena, const char *at,
                                  gpu_value *token)
{
    const int64_t T = m->sl * m->B;
    int64_t *number;
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)T * sizeof *number, (void **)&number));
    for (int64_t t = 0; !m->run->dry && t < T; t++)
        number[t] = assay_sequence_position(&m->sequence.shard, t / m->B) * m->B_global + m->row0 + t % m->B;
    return gpu_index_value(m, arena, token, at, "token", T, number);
}

/* Of what the router reads, and of its gradient. */
static assay_status jitter(gpu_model *m, const gpu_moe_acts *a, gpu_value *y, gpu_value *x)
{
    gpu_value token = a->jitter_token;
    return GPU_CALL(m->run, "input_jitter", "mlp.router.input_jitter", GPU_T("x", x), GPU_T("token", &token),
                    GPU_F("eps", (double)(float)m->options->moe_input_jitter_eps),
                    GPU_I("layer", m->run->layer),
                    GPU_I("draw", m->run->step * m->step_microbatches + m->run->microbatch),
                    GPU_I("tokens", m->S * m->B_global), GPU_T("y", y));
}

static assay_status jitter_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *a)
{
    ASSAY_TRY(token_numbers(m, mb, &mb->arena, "mlp.router.input_jitter", &a->jitter_token));
    a->jittered = gpu_tokens(m, &mb->arena, true, a->tokens.dim[2]);
    return jitter(m, a, &a->jittered, &a->tokens);
}

/* Asked anew in the backward: tokens that run again lie elsewhere. */
static gpu_value *router_input(const gpu_model *m, gpu_moe_acts *a)
{
    return m->options->moe_input_jitter_eps > 0.0 ? &a->jittered : &a->tokens;
}

static assay_status jitter_bwd(gpu_model *m, gpu_moe_acts *a, gpu_value *dtokens, gpu_value *djittered)
{
    *dtokens = gpu_tokens(m, &m->scratch, true, a->tokens.dim[2]);
    gpu_value_name(m->run, dtokens, "mlp.router.input_jitter", "dx");
    return jitter(m, a, dtokens, djittered);
}

/* --- forced balancing --------------------------------------------------------------------------------------- */
/* Logits by global indices: nothing of a layout is in them. */
static assay_status random_logits(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_moe_acts *a)
{
    static const char at[] = "mlp.router.random_logits";
    const int64_t E = m->config->num_moe_experts;
    gpu_value token;
    ASSAY_TRY(token_numbers(m, mb, &m->scratch, at, &token));
    return GPU_CALL(m->run, "random_logits", at, GPU_T("token", &token), GPU_I("experts", E),
                    GPU_I("layer", l->number),
                    GPU_I("draw", m->run->step * m->step_microbatches + m->run->microbatch),
                    GPU_I("tokens", m->S * m->B_global),
                    GPU_NEW("y", &a->logits, gpu_tokens(m, &mb->arena, true, gpu_dim_whole(E))));
}

/* Whose activations the logits are stored as. */
static assay_op_class logits_class(const gpu_model *m)
{
    return m->options->moe_router_dtype == ASSAY_ROUTER_MODEL ? ASSAY_OPS_LINEAR : ASSAY_OPS_ROUTER;
}

/* The choice, and what the balancing losses need of the logits: one launch where there is a kernel for it. */
static assay_status choose_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_moe_acts *a,
                               gpu_balancing *statistics)
{
    gpu_arena *keep = &mb->arena;
    const gpu_dim E = gpu_dim_whole(m->config->num_moe_experts),
                  K = gpu_dim_whole(m->config->moe_router_topk);
    gpu_call_args parts[1 + GPU_STATISTICS];
    parts[0] = (gpu_call_args){
        .op = "router_fwd",
        .at = "mlp.router",
        .arg = {GPU_T("logits", &a->logits), GPU_T("expert_bias", gpu_param_use(m, l->moe.expert_bias)),
                ROUTER_ATTRS(m), GPU_NEW("indices", &a->indices, gpu_tokens(m, keep, true, K)),
                GPU_NEW("probs", &a->probs, gpu_tokens(m, keep, true, K)),
                GPU_NEW("scores", &a->scores, gpu_tokens(m, keep, true, E))}};
    if (!gpu_has_balancing(m))
        return gpu_call(m->run, parts);
    const int n = gpu_balancing_statistics(m, mb, a, statistics, parts + 1);
    if (n > 1 && m->B * m->config->num_moe_experts <= GPU_ROUTER_SEQ_SUMS)
        return gpu_call_fused(m->run, "router_balanced_seq_fwd", parts, 3);
    ASSAY_TRY(gpu_call_fused(m->run, "router_balanced_fwd", parts, 2));
    return n > 1 ? gpu_call(m->run, &parts[2]) : ASSAY_OK;
}

assay_status gpu_router_route_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_moe_acts *a)
{
    gpu_run *run = m->run;
    gpu_arena *keep = &mb->arena;
    const gpu_dim E = gpu_dim_whole(m->config->num_moe_experts);
    gpu_balancing statistics;
    if (m->options->moe_input_jitter_eps > 0.0)
        ASSAY_TRY(jitter_fwd(m, mb, a));
    ASSAY_TRY(GPU_CALL(run, "linear_fwd", "mlp.router.gating", GPU_T("x", router_input(m, a)),
                       GPU_T("weight", gpu_param_use(m, l->moe.router)),
                       GPU_W("dtype", assay_dtype_name(run->recipe->op[logits_class(m)].act)),
                       GPU_NEW("y", &a->gating, gpu_tokens(m, keep, true, E))));
    a->logits = a->gating;
    if (m->options->moe_router_force_load_balancing)
        ASSAY_TRY(random_logits(m, mb, l, a));
    ASSAY_TRY(choose_fwd(m, mb, l, a, &statistics));
    a->routed = a->indices;
    if (m->options->moe_expert_capacity_factor > 0.0)
        ASSAY_TRY(drop_fwd(m, mb, a));
    return gpu_has_balancing(m) ? gpu_balancing_fwd(m, mb, l, a, &statistics) : ASSAY_OK;
}

/* The gradient of the logits: that of the choice, and those of the balancing losses in the same launch. */
static assay_status choose_bwd(gpu_model *m, gpu_moe_acts *a, gpu_value *total, gpu_value *dprobs)
{
    static const char *const whole[] = {NULL, "router_balanced_bwd", "router_balanced_bwd_two",
                                        "router_balanced_bwd_three"};
    gpu_value dlogits[GPU_BALANCINGS + 1];
    gpu_call_args parts[GPU_BALANCINGS + 1];
    dlogits[0] = gpu_grad_of(m, &a->gating);
    if (gpu_has_balancing(m))
        gpu_value_name(m->run, &dlogits[0], "mlp.router", "dlogits");
    parts[0] = (gpu_call_args){.op = "router_bwd",
                               .at = "mlp.router",
                               .arg = {GPU_T("dprobs", dprobs), GPU_T("indices", &a->indices),
                                       GPU_T("scores", &a->scores), GPU_T("logits", &a->logits),
                                       ROUTER_ATTRS(m), GPU_T("dlogits", &dlogits[0])}};
    const int n = gpu_balancing_bwd(m, a, parts + 1, dlogits);
    ASSAY_TRY(n > 0 ? gpu_call_fused(m->run, whole[n], parts, n + 1) : gpu_call(m->run, parts));
    *total = dlogits[n];
    return ASSAY_OK;
}

assay_status gpu_router_route_bwd(gpu_model *m, gpu_layer *l, gpu_moe_acts *a, gpu_value *dtokens,
                                  gpu_value *dprobs)
{
    gpu_run *run = m->run;
    gpu_arena *temp = &m->scratch;
    const assay_dtype operand = run->recipe->op[ASSAY_OPS_LINEAR].grad;
    gpu_value total, narrow, *dy = &total;
    ASSAY_TRY(choose_bwd(m, a, &total, dprobs));
    if (operand != run->recipe->op[ASSAY_OPS_ROUTER].grad) { /* the product takes operands of one type */
        ASSAY_TRY(GPU_CALL(run, "cast", "mlp.router.gating_cast", GPU_T("x", &total),
                           GPU_W("dtype", assay_dtype_name(operand)),
                           GPU_NEW("y", &narrow, gpu_tokens(m, temp, true, total.dim[2]))));
        dy = &narrow;
    }
    ASSAY_TRY(gpu_linear_bwd_weight(m, "mlp.router.gating", dy, router_input(m, a), l->moe.router));
    gpu_value djittered, *dx = m->options->moe_input_jitter_eps > 0.0 ? &djittered : dtokens;
    ASSAY_TRY(GPU_CALL(run, "linear_bwd_input", "mlp.router.gating", GPU_T("dy", dy),
                       GPU_T("weight", gpu_param_use(m, l->moe.router)),
                       GPU_NEW("dx", dx, gpu_tokens(m, temp, true, a->tokens.dim[2]))));
    return dx == dtokens ? ASSAY_OK : jitter_bwd(m, a, dtokens, dx);
}

/* --- counts of a step --------------------------------------------------------------------------------------- */
assay_status gpu_step_tokens_per_expert(gpu_model *m, int64_t *sums)
{
    const int64_t E = m->config->num_moe_experts, n = m->n_microbatches, layers = gpu_model_layers(m);
    const size_t row = (size_t)E * sizeof(int64_t), all = (size_t)(layers * n) * row;
    assay_status st = ASSAY_OK;
    int64_t *total = calloc((size_t)(layers * (n + 1)) + 1, row);
    ASSAY_CHECK(total, ASSAY_OUT_OF_MEMORY, "counts of %lld layers and %lld microbatches", (long long)layers,
                (long long)n);
    const int64_t *counts = total + layers * E;
    ASSAY_TRY_GOTO(gpu_run_download(m->run, total + layers * E, m->expert_counts, all, "counts"), st, done);
    for (int64_t l = 0; l < layers; l++)
        for (int64_t i = 0; i < n * E; i++)
            total[l * E + i % E] += counts[l * n * E + i];
    ASSAY_TRY_GOTO(gpu_run_upload(m->run, sums, total, (size_t)layers * row, "counts"), st, done);
done:
    free(total);
    return st;
}

assay_status gpu_step_aux_losses(gpu_model *m, const gpu_layer *l, double sum[GPU_LOSSES])
{
    const size_t n = (size_t)m->n_microbatches * GPU_LOSSES;
    float *parts = malloc(n * sizeof *parts + 1);
    ASSAY_CHECK(parts, ASSAY_OUT_OF_MEMORY, "layer %lld: %zu losses", (long long)l->number, n);
    const assay_status st =
        gpu_run_download(m->run, parts, l->aux_losses, n * sizeof *parts, "losses of a router");
    memset(sum, 0, GPU_LOSSES * sizeof *sum);
    for (size_t i = 0; st == ASSAY_OK && i < n; i++)
        sum[i % GPU_LOSSES] += (double)parts[i];
    free(parts);
    return st;
}
