/* Integer tensors of the exchange of rows, from the recorded choices of experts. */
#include "parity/checks/plan.h"

#include <string.h>

int64_t plan_tokens_of(const plan *p, int rank)
{
    assay_coords at;
    assay_grid_coords(p->job->grid, rank, &at);
    const int64_t region = assay_sequence_region_length(p->job->grid, p->S, at.cp);
    return plan_piece(region, p->tp, at.tp, NULL) * p->B;
}

bool plan_has_capacity(const plan *p)
{
    return p->job->options->moe_expert_capacity_factor > 0.0;
}

plan_map plan_row_map(const plan *p)
{
    return plan_has_capacity(p) ? PLAN_ROUTED : PLAN_CHOSEN;
}

static int64_t entry(const assay_trace_tensor *t, int64_t i)
{
    return parity_decode_integer(t->data, i, ASSAY_I64);
}

/* A map [T,K] of a rank, or NULL when it is not recorded as such: ascending experts; what is routed is what was chosen, or
 * -1. */
static const assay_trace_tensor *find_map(plan *p, int rank, int64_t microbatch, int64_t layer, plan_map map)
{
    static const char *const ends[] = {[PLAN_CHOSEN] = "", [PLAN_AUX] = ".aux", [PLAN_ROUTED] = ".drop"};
    char instance[ASSAY_NAME];
    const plan_recorded *recorded = p->job->recorded;
    const assay_model_config *c = p->job->config;
    const assay_trace_tensor *chosen = NULL;
    if (recorded == NULL)
        return NULL;
    snprintf(instance, sizeof instance, "decoder.layers.%lld.mlp.router%s", (long long)layer, ends[map]);
    const assay_trace_tensor *t = plan_recorded_choice(recorded, rank, p->step, microbatch, instance, map);
    const int64_t n = plan_tokens_of(p, rank) * c->moe_router_topk;
    if (t == NULL || (t->data == NULL && n > 0) || t->dtype != ASSAY_I64 || assay_shard_count(&t->shard) != n)
        return NULL;
    if (map == PLAN_ROUTED) {
        chosen = find_map(p, rank, microbatch, layer, PLAN_CHOSEN);
        if (chosen == NULL)
            return NULL;
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t e = entry(t, i);
        const bool ascends = i % c->moe_router_topk == 0 || e > entry(t, i - 1);
        if (chosen ? e != -1 && e != entry(chosen, i) : e < 0 || e >= c->num_moe_experts || !ascends)
            return NULL;
    }
    return t;
}

const int64_t *plan_choice(plan *p, int rank, int64_t microbatch, int64_t layer, plan_map map)
{
    const assay_trace_tensor *t = find_map(p, rank, microbatch, layer, map);
    int64_t *out = t ? plan_integers(p, assay_shard_count(&t->shard)) : NULL;
    for (int64_t i = 0; out != NULL && i < assay_shard_count(&t->shard); i++)
        out[i] = entry(t, i);
    return out;
}

bool plan_choice_counts(plan *p, int rank, int64_t microbatch, int64_t layer, plan_map map, int64_t *counts)
{
    const assay_trace_tensor *t = find_map(p, rank, microbatch, layer, map);
    memset(counts, 0, (size_t)p->job->config->num_moe_experts * sizeof *counts);
    if (t == NULL)
        return false;
    for (int64_t i = 0; i < assay_shard_count(&t->shard); i++)
        if (entry(t, i) >= 0)
            counts[entry(t, i)]++;
    return true;
}

/* Rows in expert-major, then ascending token order. */
static void permute(plan *p, plan_rows *r, const assay_trace_tensor *t)
{
    const int64_t experts = p->job->config->num_moe_experts, k = p->job->config->moe_router_topk;
    int64_t *next = plan_integers(p, experts + 1);
    if (p->st != ASSAY_OK)
        return;
    for (int64_t i = 0; i < r->entries; i++)
        if (entry(t, i) >= 0)
            r->tokens_per_expert[entry(t, i)]++;
    for (int64_t e = 0; e < experts; e++)
        next[e + 1] = next[e] + r->tokens_per_expert[e];
    for (int64_t i = 0; i < r->entries; i++) {
        r->token_row[i] = -1;
        if (entry(t, i) < 0)
            continue;
        const int64_t row = next[entry(t, i)]++;
        r->row_token[row] = i / k;
        r->row_entry[row] = i;
        r->token_row[i] = row;
    }
}

assay_group plan_exchange_group(const plan *p)
{
    return p->etp > 1 ? ASSAY_GROUP_ETP_EP : ASSAY_GROUP_EP;
}

/* Counts of every rank that exchanges rows; its microbatch is the one at the same place in its own list. */
static bool gather_counts(plan *p, plan_rows *r)
{
    const int64_t experts = p->job->config->num_moe_experts;
    const int64_t index = p->microbatch - p->share.first_microbatch;
    const int members = p->etp * p->ep;
    int *ranks = plan_alloc(p, (size_t)members * sizeof *ranks);
    bool known = ranks != NULL && r->all_counts != NULL;
    if (!known)
        return false;
    (void)assay_grid_group(p->job->grid, plan_exchange_group(p), p->rank, ranks, NULL);
    for (int i = 0; i < members; i++) {
        assay_coords at;
        assay_batch_share share;
        assay_grid_coords(p->job->grid, ranks[i], &at);
        p->st = assay_batch_share_make(assay_needs_all_rows(p->job->options), p->job->batches->microbatches,
                                       p->job->batches->b, p->job->grid->p.data_parallel_size, at.dp, &share);
        if (p->st != ASSAY_OK)
            return false;
        known = plan_choice_counts(p, ranks[i], share.first_microbatch + index, p->layer, plan_row_map(p),
                                   r->all_counts + i * experts) &&
                known;
    }
    return known;
}

/* What the rank with coordinates etp = t, ep = i sends to local expert e of this one. */
static int64_t arriving(const plan *p, const plan_rows *r, int t, int i, int64_t e)
{
    const int64_t experts = p->job->config->num_moe_experts, local = experts / p->ep;
    return r->all_counts[(t + p->etp * i) * experts + p->at.ep * local + e];
}

static void count_exchange(plan *p, plan_rows *r)
{
    const int64_t experts = p->job->config->num_moe_experts, local = experts / p->ep;
    const int64_t *mine = r->all_counts + (p->at.etp + p->etp * p->at.ep) * experts;
    for (int i = 0; i < p->ep; i++)
        for (int64_t e = 0; e < local; e++) {
            r->send_counts[i] += mine[i * local + e];
            r->recv_counts[i] += arriving(p, r, p->at.etp, i, e);
            for (int t = 0; t < p->etp; t++) {
                r->etp_counts[t] += arriving(p, r, t, i, e);
                r->local_counts[e] += arriving(p, r, t, i, e);
            }
        }
    r->received = r->etp_counts[p->at.etp];
    for (int t = 0; t < p->etp; t++)
        r->gathered += r->etp_counts[t];
}

/* Rows lie as [etp, source, local expert] and leave as [local expert, etp, source], in their order. */
static void sort(plan *p, plan_rows *r)
{
    const int64_t local = p->job->config->num_moe_experts / p->ep;
    const int sources = p->etp * p->ep;
    int64_t *next = plan_integers(p, local * sources + 1), start = 0, row = 0;
    if (p->st != ASSAY_OK)
        return;
    for (int64_t e = 0; e < local; e++)
        for (int k = 0; k < sources; k++) {
            next[e * sources + k] = start;
            start += arriving(p, r, k / p->ep, k % p->ep, e);
        }
    for (int k = 0; k < sources; k++)
        for (int64_t e = 0; e < local; e++)
            for (int64_t n = arriving(p, r, k / p->ep, k % p->ep, e); n > 0; n--, row++) {
                const int64_t to = next[e * sources + k]++;
                r->sort[to] = row;
                r->unsort[row] = to;
            }
}

void plan_make_rows(plan *p, plan_rows *r)
{
    const assay_model_config *c = p->job->config;
    const assay_trace_tensor *mine = find_map(p, p->rank, p->microbatch, p->layer, plan_row_map(p));
    memset(r, 0, sizeof *r);
    if (mine == NULL)
        return;
    r->entries = plan_tokens_of(p, p->rank) * c->moe_router_topk;
    for (int64_t i = 0; i < r->entries; i++)
        r->rows += entry(mine, i) >= 0;
    r->row_token = plan_integers(p, r->rows);
    r->row_entry = plan_integers(p, r->rows);
    r->token_row = plan_integers(p, r->entries);
    r->tokens_per_expert = plan_integers(p, c->num_moe_experts);
    r->all_counts = plan_integers(p, p->etp * p->ep * c->num_moe_experts);
    r->local_counts = plan_integers(p, c->num_moe_experts / p->ep);
    int64_t *send = plan_integers(p, p->ep), *recv = plan_integers(p, p->ep), *etp = plan_integers(p, p->etp);
    if (p->st != ASSAY_OK || !gather_counts(p, r))
        return;
    r->send_counts = send;
    r->recv_counts = recv;
    r->etp_counts = etp;
    permute(p, r, mine);
    count_exchange(p, r);
    r->sort = plan_integers(p, r->gathered);
    r->unsort = plan_integers(p, r->gathered);
    if (plan_gathers_tokens(p)) /* permuted in the experts' order */
        for (int64_t i = 0; p->st == ASSAY_OK && i < r->gathered; i++)
            r->sort[i] = r->unsort[i] = i;
    else
        sort(p, r);
    r->padded = r->gathered;
    r->room = r->local_counts;
    if (plan_pads_rows(p))
        plan_pad_rows(p, r);
    r->known = p->st == ASSAY_OK;
}

/* --- the all-gather dispatcher ------------------------------------------------------------------------------ */

bool plan_gathers_tokens(const plan *p)
{
    return p->job->options->moe_token_dispatcher_type == ASSAY_DISPATCHER_ALLGATHER &&
           (p->ep > 1 || p->etp > 1);
}

/* The maps of all ranks of the group one after the other; NULL: one is not known. */
static int64_t *gather_maps(plan *p, const plan_rows *r)
{
    const int64_t k = p->job->config->moe_router_topk, index = p->microbatch - p->share.first_microbatch;
    const assay_group_shape shape = assay_grid_group_shape(p->job->grid, plan_exchange_group(p), p->rank);
    int64_t *all = plan_integers(p, r->n_all * k), n = 0;
    for (int i = 0; i < shape.size && all != NULL; i++) {
        const int rank = assay_group_member(&shape, i);
        assay_coords at;
        assay_batch_share share;
        assay_grid_coords(p->job->grid, rank, &at);
        p->st = assay_batch_share_make(assay_needs_all_rows(p->job->options), p->job->batches->microbatches,
                                       p->job->batches->b, p->job->grid->p.data_parallel_size, at.dp, &share);
        const assay_trace_tensor *t =
            p->st == ASSAY_OK ? find_map(p, rank, share.first_microbatch + index, p->layer, plan_row_map(p))
                              : NULL;
        if (t == NULL)
            return NULL;
        for (int64_t j = 0; j < r->token_counts[i] * k; j++)
            all[n++] = entry(t, j);
    }
    return all;
}

void plan_gather_rows(plan *p, plan_rows *r)
{
    const assay_model_config *c = p->job->config;
    const int64_t k = c->moe_router_topk, local = c->num_moe_experts / p->ep, first = p->at.ep * local;
    const assay_group_shape shape = assay_grid_group_shape(p->job->grid, plan_exchange_group(p), p->rank);
    r->token_counts = plan_integers(p, shape.size);
    for (int i = 0; i < shape.size && p->st == ASSAY_OK; i++) {
        r->token_counts[i] = plan_tokens_of(p, assay_group_member(&shape, i));
        r->n_all += r->token_counts[i];
    }
    const int64_t *all = r->known && p->st == ASSAY_OK ? gather_maps(p, r) : NULL;
    r->all_row_token = plan_integers(p, r->gathered);
    r->all_row_entry = plan_integers(p, r->gathered);
    r->all_tokens_per_expert = plan_integers(p, c->num_moe_experts);
    r->all_token_row = plan_integers(p, r->n_all * k);
    r->known = r->known && all != NULL && p->st == ASSAY_OK;
    if (!r->known)
        return;
    int64_t row = 0;
    for (int64_t i = 0; i < r->n_all * k; i++) {
        r->all_token_row[i] = -1;
        if (all[i] >= 0)
            r->all_tokens_per_expert[all[i]]++;
    }
    for (int64_t e = first; e < first + local; e++)
        for (int64_t i = 0; i < r->n_all * k; i++)
            if (all[i] == e) {
                r->all_row_token[row] = i / k;
                r->all_row_entry[row] = i;
                r->all_token_row[i] = row++;
            }
}
