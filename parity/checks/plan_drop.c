/* Capacities of experts: which tokens they take is decided over the whole microbatch, by the ranks that share it. */
#include "parity/checks/plan.h"

#include <math.h>

/* Tokens of the ranks that share the microbatch, in the order of the group. */
typedef struct shared_tokens {
    int members;
    bool even;
    int64_t n, start;
    int64_t *counts, *numbers; /* [members]; [n]: position in the sequence times rows, plus row */
} shared_tokens;

static void list_tokens(plan *p, assay_group group, shared_tokens *all)
{
    const assay_group_shape shape = assay_grid_group_shape(p->job->grid, group, p->rank);
    const int64_t rows = p->job->batches->b;
    *all = (shared_tokens){.members = shape.size, .even = true};
    all->counts = plan_integers(p, shape.size);
    all->numbers = plan_integers(p, p->S * rows);
    for (int i = 0; i < shape.size && p->st == ASSAY_OK; i++) {
        const int rank = assay_group_member(&shape, i);
        assay_sequence_map map;
        assay_coords at;
        assay_grid_coords(p->job->grid, rank, &at);
        p->st = assay_sequence_map_make(p->job->grid, rank, p->S, &map);
        const int64_t first = p->share.rows_split ? at.dp * p->B : 0;
        if (rank == p->rank)
            all->start = all->n;
        all->counts[i] = plan_tokens_of(p, rank);
        all->even = all->even && all->counts[i] == all->counts[0];
        for (int64_t t = 0; t < all->counts[i] && p->st == ASSAY_OK; t++)
            all->numbers[all->n++] = assay_sequence_position(&map.shard, t / p->B) * rows + first + t % p->B;
    }
}

static plan_tensor gather(plan *p, const char *at, assay_group group, const shared_tokens *all,
                          plan_tensor mine)
{
    if (all->members == 1)
        return mine;
    const plan_tensor whole = plan_value(p, at, "recv", mine.dtype);
    plan_add_collective(p, "all_gather", at, group, mine.dtype);
    plan_in(p, "send", mine);
    plan_out(p, "recv", whole);
    if (!all->even)
        plan_list(p, "counts", all->counts, all->members);
    return whole;
}

plan_tensor plan_drop(plan *p, assay_group group, plan_tensor indices, plan_tensor probs)
{
    static const char at[] = "mlp.router.drop";
    const assay_model_config *c = p->job->config;
    const assay_train_options *o = p->job->options;
    const double share =
        (double)(p->S * p->job->batches->b * c->moe_router_topk) / (double)c->num_moe_experts;
    const bool by_probs = o->moe_token_drop_policy == ASSAY_DROP_PROBS;
    shared_tokens all;
    plan_tensor all_probs = {0};
    list_tokens(p, group, &all);
    const plan_tensor all_indices = gather(p, "mlp.router.drop_indices", group, &all, indices);
    if (by_probs)
        all_probs = gather(p, "mlp.router.drop_probs", group, &all, probs);
    const plan_tensor token = plan_with_integers(plan_value(p, at, "token", ASSAY_I64), all.numbers, all.n);
    const plan_tensor routed = plan_value(p, at, "routed", ASSAY_I64);
    int64_t *left = plan_integers(p, c->num_moe_experts);
    plan_tensor counts = plan_value(p, at, "tokens_per_expert", ASSAY_I64);
    if (left != NULL && plan_choice_counts(p, p->rank, p->microbatch, p->layer, PLAN_ROUTED, left))
        counts = plan_with_integers(counts, left, c->num_moe_experts);
    plan_add(p, "router_drop", at);
    plan_in(p, "all_indices", all_indices);
    if (by_probs)
        plan_in(p, "all_probs", all_probs);
    plan_in(p, "token", token);
    plan_out(p, "routed", routed);
    plan_out(p, "tokens_per_expert", counts);
    plan_int(p, "experts", c->num_moe_experts);
    plan_int(p, "capacity", (int64_t)ceil(share * o->moe_expert_capacity_factor));
    plan_int(p, "start", all.start);
    plan_int(p, "length", plan_tokens_of(p, p->rank));
    return routed;
}
