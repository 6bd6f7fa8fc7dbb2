/* Rows of zeros beside those of tokens: docs/OPS.md 9.9. */
#include "parity/checks/plan.h"

#include <math.h>

bool plan_pads_rows(const plan *p)
{
    const assay_train_options *o = p->job->options;
    return o->moe_pad_expert_input_to_capacity ||
           o->moe_router_padding_for_quantization != ASSAY_PADDING_NONE;
}

bool plan_sorts_rows(const plan *p)
{
    return plan_pads_rows(p) || ((p->ep > 1 || p->etp > 1) && !plan_gathers_tokens(p));
}

/* What an expert takes of n tokens. */
static int64_t taken(const plan *p, int64_t n)
{
    const assay_model_config *c = p->job->config;
    const double share = (double)(n * c->moe_router_topk) / (double)c->num_moe_experts;
    const double capacity = ceil(share * p->job->options->moe_expert_capacity_factor);
    return capacity < (double)n ? (int64_t)capacity : n;
}

/* The first microbatch and row of the data-parallel rank that a rank belongs to: ranks that agree share a microbatch. */
static bool same_microbatch(plan *p, int a, int b)
{
    assay_coords x, y;
    assay_grid_coords(p->job->grid, a, &x);
    assay_grid_coords(p->job->grid, b, &y);
    return p->share.rows_split || x.dp == y.dp;
}

/* Rows that tokens can have at an expert of this rank. */
static int64_t most_rows(plan *p)
{
    const assay_group_shape shape = assay_grid_group_shape(p->job->grid, plan_exchange_group(p), p->rank);
    int64_t most = 0;
    for (int i = 0; i < shape.size; i++) {
        const int rank = assay_group_member(&shape, i);
        int seen = 0;
        while (seen < i && !same_microbatch(p, assay_group_member(&shape, seen), rank))
            seen++;
        if (p->job->options->semantics == ASSAY_SEMANTICS_MEGATRON)
            most += taken(p, plan_tokens_of(p, rank));
        else if (seen == i)
            most += taken(p, p->S * p->job->batches->b);
    }
    return most;
}

void plan_pad_rows(plan *p, plan_rows *r)
{
    static const int64_t multiples[] = {
        [ASSAY_PADDING_NONE] = 1, [ASSAY_PADDING_FP8] = 16, [ASSAY_PADDING_MXFP8] = 32};
    const int64_t local = p->job->config->num_moe_experts / p->ep;
    const int64_t multiple = multiples[p->job->options->moe_router_padding_for_quantization];
    const int64_t most = p->job->options->moe_pad_expert_input_to_capacity ? most_rows(p) : -1;
    int64_t *room = plan_integers(p, local), from = 0, to = 0;
    r->padded = 0;
    for (int64_t e = 0; room != NULL && e < local; e++) {
        room[e] = most >= 0 ? most : r->local_counts[e];
        room[e] += (multiple - room[e] % multiple) % multiple;
        r->padded += room[e] < r->local_counts[e] ? r->local_counts[e] : room[e];
    }
    int64_t *sort = plan_integers(p, r->padded);
    if (p->st != ASSAY_OK)
        return;
    for (int64_t i = 0; i < r->padded; i++)
        sort[i] = -1;
    for (int64_t e = 0; e < local; e++) {
        for (int64_t i = 0; i < r->local_counts[e]; i++, from++) {
            sort[to + i] = r->sort[from];
            r->unsort[r->sort[from]] = to + i;
        }
        to += room[e] < r->local_counts[e] ? r->local_counts[e] : room[e];
    }
    r->sort = sort;
    r->room = room;
}
