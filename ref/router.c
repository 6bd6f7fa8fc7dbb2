/* The router on lockstep tensors: logits, choice (own or replayed), combine weights.  Balancing losses: balancing.c. */
#include "ref/layer.h"
#include "ref/ops/vector.h"
#include "ref/parallel/collectives.h"

#include <stdlib.h>
#include <string.h>

ref_router_desc ref_router_describe(const ref_pass *p, int64_t tokens)
{
    const assay_model_config *c = p->e->config;
    return (ref_router_desc){.tokens = tokens,
                             .experts = c->num_moe_experts,
                             .topk = c->moe_router_topk,
                             .mode =
                                 ref_router_mode_of(c->moe_router_score_function, c->moe_router_pre_softmax),
                             .norm_topk_prob = c->norm_topk_prob,
                             .scaling_factor = c->moe_router_topk_scaling_factor,
                             .num_groups = c->moe_router_num_groups,
                             .group_topk = c->moe_router_group_topk};
}

/* --- replay ------------------------------------------------------------------------------------------------- */

/* Recorded experts ascend; what is routed is what was chosen, or -1 where a capacity let it go. */
static assay_status check_choice(const ref_pass *p, ref_routing_map map, const int64_t *indices,
                                 const int64_t *chosen, int64_t token, int64_t k)
{
    const int64_t e = p->e->config->num_moe_experts;
    for (int64_t j = 0; j < k; j++) {
        const bool good = map == REF_ROUTING_ROUTED
                              ? indices[j] == -1 || indices[j] == chosen[j]
                              : indices[j] >= 0 && indices[j] < e && (j == 0 || indices[j] > indices[j - 1]);
        ASSAY_CHECK(good, ASSAY_INVALID_ARGUMENT,
                    "replayed routing: layer %lld, step %lld, token %lld: expected ascending experts in "
                    "0..%lld, found %lld at place %lld",
                    (long long)p->layer, (long long)p->step, (long long)token, (long long)(e - 1),
                    (long long)indices[j], (long long)j);
    }
    return ASSAY_OK;
}

/* Overwrites a map of rank r's tokens [T,K] by the recorded one, if there is one.  The record is of the
 * whole microbatch: rows t = s*B + b with all B rows of the file. */
assay_status ref_router_replay(ref_pass *p, int r, ref_routing_map map, int64_t *indices,
                               const int64_t *chosen, int64_t k)
{
    const ref_engine *e = p->e;
    const ref_rank *rank = &p->ranks[r];
    const int64_t whole_b = e->run->batches->b, t = e->seq * whole_b;
    void *memory;
    if (!e->run->routing)
        return ASSAY_OK;
    ASSAY_TRY(ref_arena_alloc(&p->arena, t * k, sizeof(int64_t), &memory));
    int64_t *whole = memory;
    if (!e->run->routing(e->run->routing_user, p->step, ref_pass_microbatch(p, r), p->layer, map, whole, t,
                         k))
        return ASSAY_OK;
    for (int64_t s = 0; s < rank->sequence.shard.length; s++)
        for (int64_t b = 0; b < e->batch; b++) {
            const int64_t position = assay_sequence_position(&rank->sequence.shard, s);
            const int64_t from = position * whole_b + rank->share.first_row + b;
            const int64_t at = (s * e->batch + b) * k;
            ASSAY_TRY(check_choice(p, map, whole + from * k, chosen + at, from, k));
            memcpy(indices + at, whole + from * k, (size_t)k * sizeof *indices);
        }
    return ASSAY_OK;
}

/* --- router ------------------------------------------------------------------------------------------------- */

static assay_status choose(ref_pass *p, ref_router_acts *a, int r)
{
    const assay_model_config *c = p->e->config;
    const int64_t t = a->logits.at[r].rows, e = c->num_moe_experts, k = c->moe_router_topk;
    const int64_t bias = p->e->layer[p->layer].moe.expert_bias;
    const ref_router_desc d = ref_router_describe(p, t);
    ref_piece keys;
    ASSAY_TRY(ref_piece_new(&p->arena, &keys, t, e));
    ASSAY_TRY(ref_piece_new(&p->arena, &a->scores.at[r], t, e));
    ASSAY_TRY(ref_piece_new(&p->arena, &a->probs.at[r], t, k));
    ASSAY_TRY(ref_int_piece_new(&p->arena, &a->indices.at[r], t, k));
    ref_router_scores(a->scores.at[r].x, keys.x, a->logits.at[r].x,
                      bias >= 0 ? ref_pass_param(p, r, bias)->weight : NULL, &d);
    ref_router_topk(a->indices.at[r].x, keys.x, &d);
    ASSAY_TRY(ref_router_replay(p, r, REF_ROUTING_CHOICE, a->indices.at[r].x, a->indices.at[r].x, k));
    ref_router_probs(a->probs.at[r].x, a->scores.at[r].x, a->logits.at[r].x, a->indices.at[r].x, &d);
    return ASSAY_OK;
}

/* Indices, probs and global numbers of the tokens of a group, member after member. */
typedef struct all_tokens {
    ref_int_piece indices, token;
    ref_piece probs;
} all_tokens;

/* Number of token j of rank r in its microbatch, all ranks' tokens together. */
static int64_t token_number(const ref_pass *p, int r, int64_t j)
{
    const ref_rank *rank = &p->ranks[r];
    return assay_sequence_position(&rank->sequence.shard, j / p->e->batch) * p->e->run->batches->b +
           rank->share.first_row + j % p->e->batch;
}

/* Logits that balance the load, by global indices; nothing of a layout is in them. */
static assay_status random_logits(ref_pass *p, ref_router_acts *a)
{
    const int64_t e = p->e->config->num_moe_experts, all = p->e->seq * p->e->run->batches->b;
    ASSAY_TRY(ref_new(p, &a->logits, "mlp.router.random_logits", "y"));
    for (int r = 0; r < p->n; r++) {
        const int64_t t = a->gating.at[r].rows;
        const int64_t draw = p->step * p->e->run->batches->microbatches + ref_pass_microbatch(p, r);
        ref_int_piece token;
        ASSAY_TRY(ref_int_piece_new(&p->arena, &token, t, 1));
        ASSAY_TRY(ref_piece_new(&p->arena, &a->logits.at[r], t, e));
        for (int64_t j = 0; j < t; j++)
            token.x[j] = token_number(p, r, j);
        ref_random_logits(a->logits.at[r].x, token.x, t, e, p->layer, draw, all);
    }
    return ref_store(p, &a->logits, REF_STORE_EXACT);
}

static assay_status gather_tokens(ref_pass *p, const ref_router_acts *a, const assay_group_shape *g,
                                  all_tokens *all)
{
    const int64_t k = p->e->config->moe_router_topk;
    int64_t n = 0;
    for (int i = 0; i < g->size; i++)
        n += a->indices.at[assay_group_member(g, i)].rows;
    ASSAY_TRY(ref_int_piece_new(&p->arena, &all->indices, n, k));
    ASSAY_TRY(ref_int_piece_new(&p->arena, &all->token, n, 1));
    ASSAY_TRY(ref_piece_new(&p->arena, &all->probs, n, k));
    n = 0;
    for (int i = 0; i < g->size; i++) {
        const int r = assay_group_member(g, i);
        const int64_t t = a->indices.at[r].rows;
        memcpy(all->indices.x + n * k, a->indices.at[r].x, (size_t)(t * k) * sizeof(int64_t));
        memcpy(all->probs.x + n * k, a->probs.at[r].x, (size_t)(t * k) * sizeof(double));
        for (int64_t j = 0; j < t; j++, n++)
            all->token.x[n] = token_number(p, r, j);
    }
    return ASSAY_OK;
}

/* The experts' capacities over the whole microbatch, whatever the layout: `routed` from indices and probs. */
static assay_status drop(ref_pass *p, ref_router_acts *a)
{
    const assay_train_options *o = &p->e->options;
    const int64_t e = p->e->config->num_moe_experts, k = p->e->config->moe_router_topk;
    const bool alone = o->semantics == ASSAY_SEMANTICS_MEGATRON; /* every rank for itself */
    ref_int_piece counts;
    ASSAY_TRY(ref_ints_new(&p->arena, &a->routed, p->n));
    ASSAY_TRY(ref_int_piece_new(&p->arena, &counts, e, 1));
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g =
            alone ? (assay_group_shape){.start = r, .size = 1} : ref_pass_group(p, ref_sharing_group(p), r);
        all_tokens all;
        int64_t start = 0;
        if (g.size == 0)
            continue;
        ASSAY_TRY(gather_tokens(p, a, &g, &all));
        const int64_t capacity = ref_expert_capacity(all.indices.rows, k, e, o->moe_expert_capacity_factor);
        for (int i = 0; i < g.size; i++) {
            const int member = assay_group_member(&g, i);
            const int64_t t = a->indices.at[member].rows;
            ref_int_piece *routed = &a->routed.at[member];
            ASSAY_TRY(ref_int_piece_new(&p->arena, routed, t, k));
            ref_router_drop(routed->x, counts.x, all.indices.x,
                            o->moe_token_drop_policy == ASSAY_DROP_PROBS ? all.probs.x : NULL, all.token.x,
                            all.indices.rows, k, e, capacity, start, t);
            start += t;
        }
    }
    for (int r = 0; r < p->n; r++)
        ASSAY_TRY(ref_router_replay(p, r, REF_ROUTING_ROUTED, a->routed.at[r].x, a->indices.at[r].x, k));
    char name[ASSAY_NAME];
    const int64_t shape[3] = {p->e->seq, p->e->batch, k};
    ref_pass_name(p, "mlp.router.drop", "routed", name);
    return ref_trace_ints(p->e, name, p->phase, p->step, ref_pass_microbatch(p, 0), shape, 3,
                          a->routed.at[0].x, false);
}

/* y = x times numbers drawn by global indices: of what the router reads, and of its gradient. */
static assay_status jitter(ref_pass *p, ref_tensor *y, const ref_tensor *x)
{
    const int64_t all = p->e->seq * p->e->run->batches->b;
    for (int r = 0; r < p->n; r++) {
        const int64_t t = x->at[r].rows, h = x->at[r].cols;
        const ref_jitter j = {.eps = (double)(float)p->e->options.moe_input_jitter_eps,
                              .layer = p->layer,
                              .draw = p->step * p->e->run->batches->microbatches + ref_pass_microbatch(p, r),
                              .tokens = all};
        ref_int_piece token;
        ASSAY_TRY(ref_int_piece_new(&p->arena, &token, t, 1));
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], t, h));
        for (int64_t i = 0; i < t; i++)
            token.x[i] = token_number(p, r, i);
        ref_input_jitter(y->at[r].x, x->at[r].x, token.x, t, h, &j);
    }
    return ref_store(p, y, REF_STORE_ACT);
}

assay_status ref_router_route_fwd(ref_pass *p, ref_router_acts *a, const ref_tensor *tokens)
{
    const ref_moe_params *w = &p->e->layer[p->layer].moe;
    const ref_store_class stored =
        p->e->options.moe_router_dtype == ASSAY_ROUTER_MODEL ? REF_STORE_LINEAR : REF_STORE_ROUTER;
    a->tokens = *tokens;
    if (p->e->options.moe_input_jitter_eps > 0.0) {
        ASSAY_TRY(ref_new(p, &a->tokens, "mlp.router.input_jitter", "y"));
        ASSAY_TRY(jitter(p, &a->tokens, tokens));
    }
    ASSAY_TRY(ref_ranks_linear(p, &a->gating, &a->tokens, w->router, -1, false, "mlp.router.gating", stored));
    a->logits = a->gating;
    if (p->e->options.moe_router_force_load_balancing)
        ASSAY_TRY(random_logits(p, a));
    ASSAY_TRY(ref_new(p, &a->scores, "mlp.router", "scores"));
    ASSAY_TRY(ref_new(p, &a->probs, "mlp.router", "probs"));
    ASSAY_TRY(ref_ints_new(&p->arena, &a->indices, p->n));
    for (int r = 0; r < p->n; r++)
        ASSAY_TRY(choose(p, a, r));
    ASSAY_TRY(ref_store(p, &a->scores, REF_STORE_ROUTER));
    ASSAY_TRY(ref_store(p, &a->probs, REF_STORE_ROUTER));
    char name[ASSAY_NAME];
    const int64_t shape[3] = {p->e->seq, p->e->batch, a->indices.at[0].cols};
    ref_pass_name(p, "mlp.router", "indices", name);
    ASSAY_TRY(ref_trace_ints(p->e, name, p->phase, p->step, ref_pass_microbatch(p, 0), shape, 3,
                             a->indices.at[0].x, false));
    a->routed = a->indices;
    if (p->e->options.moe_expert_capacity_factor > 0.0)
        ASSAY_TRY(drop(p, a));
    return ref_has_balancing(p) ? ref_balancing_fwd(p, a) : ASSAY_OK;
}

/* dlogits = of the combine weights; magnitudes: of the terms, in place of the gradients. */
static assay_status choice_bwd(ref_pass *p, ref_tensor *dlogits, const ref_router_acts *a,
                               const ref_tensor *dprobs, bool magnitudes)
{
    for (int r = 0; r < p->n; r++) {
        const ref_piece *logits = &a->logits.at[r];
        ref_router_desc d = ref_router_describe(p, logits->rows);
        d.magnitudes = magnitudes;
        ASSAY_TRY(ref_piece_new(&p->arena, &dlogits->at[r], logits->rows, logits->cols));
        ref_router_bwd(dlogits->at[r].x, dprobs->at[r].x, a->indices.at[r].x, a->scores.at[r].x, logits->x,
                       &d);
    }
    return ASSAY_OK;
}

/* A perturbed run: what the terms' roundings leave where they cancel (one expert chosen and its weight normalised to 1, all of them
 * chosen, a load that is balanced). */
static void perturb_terms(ref_pass *p, ref_tensor *dlogits, const ref_tensor *magnitudes, const char *of)
{
    char name[ASSAY_NAME + 16];
    snprintf(name, sizeof name, "%s %s", dlogits->name, of);
    for (int r = 0; r < p->n; r++)
        ref_policy_cancel(&p->e->run->policy, ASSAY_OPS_ROUTER, name, p->step, ref_pass_microbatch(p, r),
                          dlogits->at[r].x, magnitudes->at[r].x, dlogits->at[r].rows * dlogits->at[r].cols);
}

assay_status ref_router_route_bwd(ref_pass *p, ref_tensor *dtokens, const ref_router_acts *a,
                                  const ref_tensor *dprobs)
{
    const bool perturbed = p->e->run->policy.perturb > 0.0;
    ref_tensor dlogits, magnitudes;
    ASSAY_TRY(ref_new_grad(p, &dlogits, &a->gating, NULL)); /* straight through random logits */
    ASSAY_TRY(ref_new_grad(p, &magnitudes, &a->gating, NULL));
    ASSAY_TRY(choice_bwd(p, &dlogits, a, dprobs, false));
    if (perturbed) {
        ASSAY_TRY(choice_bwd(p, &magnitudes, a, dprobs, true));
        perturb_terms(p, &dlogits, &magnitudes, "choice");
    }
    ASSAY_TRY(ref_store(p, &dlogits, REF_STORE_ROUTER));
    if (ref_has_balancing(p)) {
        ASSAY_TRY(ref_balancing_bwd(p, &dlogits, a, false));
        if (perturbed) {
            for (int r = 0; r < p->n; r++)
                ref_vec_zero(magnitudes.at[r].x, magnitudes.at[r].rows * magnitudes.at[r].cols);
            ASSAY_TRY(ref_balancing_bwd(p, &magnitudes, a, true));
            perturb_terms(p, &dlogits, &magnitudes, "balancing");
        }
        ASSAY_TRY(ref_store(p, &dlogits, REF_STORE_ROUTER));
    }
    if (!(p->e->options.moe_input_jitter_eps > 0.0))
        return ref_ranks_linear_bwd(p, dtokens, &dlogits, &a->tokens, p->e->layer[p->layer].moe.router, -1,
                                    "mlp.router.gating");
    ref_tensor djittered;
    ASSAY_TRY(ref_ranks_linear_bwd(p, &djittered, &dlogits, &a->tokens, p->e->layer[p->layer].moe.router, -1,
                                   "mlp.router.gating"));
    ASSAY_TRY(ref_new(p, dtokens, "mlp.router.input_jitter", "dx"));
    return jitter(p, dtokens, &djittered);
}
