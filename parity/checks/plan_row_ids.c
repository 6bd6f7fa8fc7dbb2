/* Row ids of permuted token rows, from the recorded choices of experts: docs/OPS.md 9.2. */
#include "parity/checks/plan_moe.h"

/* The permuted rows of one rank of the exchange. */
typedef struct sender {
    int64_t n, *ids, *first; /* first[e]: the first row of expert e; [E + 1] */
} sender;

/* The rank's row ids in expert-major, then ascending token order; false: its choice is not known. */
static bool ids_of(plan *p, int rank, sender *out)
{
    const assay_model_config *c = p->job->config;
    const int64_t experts = c->num_moe_experts, k = c->moe_router_topk, b = p->job->batches->b;
    assay_coords at;
    assay_batch_share share;
    assay_sequence_map map;
    assay_grid_coords(p->job->grid, rank, &at);
    p->st = assay_batch_share_make(assay_needs_all_rows(p->job->options), p->job->batches->microbatches, b,
                                   p->job->grid->p.data_parallel_size, at.dp, &share);
    if (p->st == ASSAY_OK)
        p->st = assay_sequence_map_make(p->job->grid, rank, p->S, &map);
    if (p->st != ASSAY_OK)
        return false;
    const int64_t microbatch = share.first_microbatch + p->microbatch - p->share.first_microbatch;
    const int64_t entries = map.shard.length * share.n_rows * k;
    const int64_t *chosen = plan_choice(p, rank, microbatch, p->layer, plan_row_map(p));
    out->ids = plan_integers(p, entries);
    out->first = plan_integers(p, experts + 1);
    if (chosen == NULL || out->ids == NULL || out->first == NULL)
        return false;
    const bool hidden = at.dp != p->at.dp && !p->share.rows_split;
    for (int64_t e = 0; e < experts; e++) {
        out->first[e] = out->n;
        for (int64_t i = 0; i < entries; i++) {
            const int64_t token = i / k;
            const int64_t position = assay_sequence_position(&map.shard, token / share.n_rows);
            const int64_t row = share.first_row + token % share.n_rows;
            if (chosen[i] == e)
                out->ids[out->n++] = hidden ? -1 : (position * b + row) * experts + e;
        }
    }
    out->first[experts] = out->n;
    return true;
}

/* Appends what the sender has for this rank's experts. */
static void append(const plan *p, const sender *s, plan_row_ids *to)
{
    const int64_t local = p->job->config->num_moe_experts / p->ep;
    for (int64_t i = s->first[p->at.ep * local]; i < s->first[(p->at.ep + 1) * local]; i++)
        to->ids[to->n++] = s->ids[i];
}

static plan_row_ids *new_ids(plan *p, int64_t n)
{
    plan_row_ids *out = plan_alloc(p, sizeof *out);
    if (out == NULL)
        return NULL;
    out->ids = plan_integers(p, n);
    out->failed = -1;
    return out->ids ? out : NULL;
}

static plan_row_ids *sorted(plan *p, const plan_row_ids *gathered, const plan_rows *r)
{
    plan_row_ids *out = new_ids(p, r->padded);
    for (int64_t i = 0; out != NULL && i < r->padded; i++)
        out->ids[out->n++] = r->sort[i] < 0 ? -1 : gathered->ids[r->sort[i]];
    return out;
}

/* allgather: rows of the local experts one expert after the other, of each the tokens of every rank in the group's order. */
static plan_row_ids *of_gathered_tokens(plan *p, const plan_rows *r)
{
    const assay_group_shape shape = assay_grid_group_shape(p->job->grid, plan_exchange_group(p), p->rank);
    const int64_t local = p->job->config->num_moe_experts / p->ep;
    plan_row_ids *out = new_ids(p, r->gathered);
    sender *all = plan_alloc(p, (size_t)shape.size * sizeof *all);
    bool known = out != NULL && all != NULL;
    for (int i = 0; i < shape.size && known; i++)
        known = ids_of(p, assay_group_member(&shape, i), &all[i]);
    for (int64_t e = p->at.ep * local; e < (p->at.ep + 1) * local && known; e++)
        for (int i = 0; i < shape.size; i++)
            for (int64_t j = all[i].first[e]; j < all[i].first[e + 1]; j++)
                out->ids[out->n++] = all[i].ids[j];
    return known ? out : NULL;
}

static void unknown_ids(plan *p, plan_rows *r)
{
    plan_row_ids *any = new_ids(p, 0);
    if (any != NULL)
        any->any = true;
    r->mine = r->dispatched = r->gathered_ids = r->of_experts = any;
}

void plan_make_row_ids(plan *p, plan_rows *r)
{
    const assay_group_shape shape = assay_grid_group_shape(p->job->grid, plan_exchange_group(p), p->rank);
    const bool exchanges = p->ep > 1 || p->etp > 1;
    plan_row_ids *mine = new_ids(p, r->rows), *dispatched = new_ids(p, r->received),
                 *gathered = new_ids(p, r->gathered);
    bool known = r->known && mine && dispatched && gathered;
    if (known && plan_gathers_tokens(p)) {
        mine = of_gathered_tokens(p, r);
        r->mine = r->dispatched = r->gathered_ids = mine;
        r->of_experts = mine && plan_pads_rows(p) ? sorted(p, mine, r) : mine;
        if (mine == NULL)
            unknown_ids(p, r);
        return;
    }
    for (int t = 0; t < p->etp && known; t++)
        for (int i = 0; i < p->ep && known; i++) {
            sender s = {0};
            known = ids_of(p, exchanges ? assay_group_member(&shape, t + p->etp * i) : p->rank, &s);
            if (!known)
                break;
            append(p, &s, gathered);
            if (t == p->at.etp)
                append(p, &s, dispatched);
            for (int64_t row = 0; t == p->at.etp && i == p->at.ep && row < s.n; row++)
                mine->ids[mine->n++] = s.ids[row];
        }
    if (!known) {
        unknown_ids(p, r);
        return;
    }
    r->mine = mine;
    r->dispatched = p->ep > 1 ? dispatched : mine;
    r->gathered_ids = p->etp > 1 ? gathered : r->dispatched;
    r->of_experts = plan_sorts_rows(p) ? sorted(p, gathered, r) : mine;
}

plan_tensor plan_with_rows(plan_tensor t, plan_row_ids *ids)
{
    t.rows = ids;
    return t;
}

plan_tensor plan_whole_rows(const plan *p, plan_tensor t, plan_row_ids *ids)
{
    return plan_with_rows(t, p->etp > 1 ? NULL : ids);
}
