/* The weights of an objective that depends on the layout, in a run that is not cut. */
#include "ref/objective.h"

#include <string.h>

bool ref_has_objective(const ref_pass *p)
{
    return p->e->run->objective != NULL && p->e->options.semantics == ASSAY_SEMANTICS_MEGATRON;
}

/* What the tokens of one rank weigh: those of its routers (of a sequence) over the targets of the step, or the mean over its
 * targets. */
typedef enum { OF_TOKENS, OF_SEQUENCES, OF_TARGETS } weight_kind;

static double weight_of(const ref_pass *p, weight_kind kind, const assay_sequence *held,
                        const assay_batch_share *share, const int64_t *targets)
{
    const ref_engine *e = p->e;
    int64_t n = 0;
    if (kind != OF_TARGETS)
        return (double)(held->length * (kind == OF_TOKENS ? share->n_rows : 1)) / (double)e->targets;
    for (int64_t i = 0; i < held->length; i++)
        for (int64_t b = 0; b < share->n_rows; b++)
            n += targets[assay_sequence_position(held, i) * e->batch + share->first_row + b] !=
                 ASSAY_IGNORE_INDEX;
    const assay_parallel_config *o = &e->run->objective->p;
    const int ranks = o->context_parallel_size * (share->rows_split ? o->data_parallel_size : 1);
    return 1.0 / ((double)e->run->batches->microbatches * (double)ranks * (double)(n > 0 ? n : 1));
}

/* Auxiliary losses by sequence-parallel pieces, targets by what a context-parallel rank holds. */
static assay_status fill(const ref_pass *p, weight_kind kind, const int64_t *targets, double *weights)
{
    const ref_engine *e = p->e;
    const assay_grid *g = e->run->objective;
    for (int rank = 0; rank < g->world; rank++) {
        assay_coords at;
        assay_batch_share share;
        assay_sequence_map map;
        assay_grid_coords(g, rank, &at);
        ASSAY_TRY(assay_batch_share_make(assay_needs_all_rows(&e->options), e->run->batches->microbatches,
                                         e->run->batches->b, g->p.data_parallel_size, at.dp, &share));
        const bool runs = p->microbatch >= share.first_microbatch &&
                          p->microbatch < share.first_microbatch + share.n_microbatches;
        if (at.pp != 0 || !runs || (kind == OF_TARGETS && at.tp != 0))
            continue;
        ASSAY_TRY(assay_sequence_map_make(g, rank, e->seq, &map));
        const assay_sequence *held = kind == OF_TARGETS ? &map.region : &map.shard;
        const double weight = weight_of(p, kind, held, &share, targets);
        for (int64_t i = 0; i < held->length; i++)
            for (int64_t b = 0; b < share.n_rows; b++)
                weights[assay_sequence_position(held, i) * e->batch + share.first_row + b] = weight;
    }
    return ASSAY_OK;
}

assay_status ref_objective_tokens(const ref_pass *p, int rank, int64_t *tokens)
{
    const ref_engine *e = p->e;
    const assay_grid *g = e->run->objective;
    assay_coords at;
    assay_batch_share share;
    assay_sequence_map map;
    *tokens = 0;
    assay_grid_coords(g, rank, &at);
    ASSAY_TRY(assay_batch_share_make(assay_needs_all_rows(&e->options), e->run->batches->microbatches,
                                     e->run->batches->b, g->p.data_parallel_size, at.dp, &share));
    if (at.pp != 0 || p->microbatch < share.first_microbatch ||
        p->microbatch >= share.first_microbatch + share.n_microbatches)
        return ASSAY_OK;
    ASSAY_TRY(assay_sequence_map_make(g, rank, e->seq, &map));
    *tokens = map.shard.length * share.n_rows;
    return ASSAY_OK;
}

assay_status ref_objective_aux_weights(const ref_pass *p, bool seq, double *weights)
{
    return fill(p, seq ? OF_SEQUENCES : OF_TOKENS, NULL, weights);
}

assay_status ref_objective_target_weights(const ref_pass *p, const int64_t *targets, double *weights)
{
    return fill(p, OF_TARGETS, targets, weights);
}

bool ref_objective_looks_ahead(const ref_engine *e)
{
    return e->run->objective != NULL && e->options.semantics == ASSAY_SEMANTICS_MEGATRON &&
           assay_balancing_coeff(&e->options, ASSAY_BALANCING_GLOBAL_AUX) > 0.0;
}

assay_status ref_objective_global_counts(const ref_pass *p, int64_t *total, int64_t *microbatches, int *ranks)
{
    const ref_engine *e = p->e;
    const int64_t experts = e->config->num_moe_experts, layers = e->config->num_layers;
    const int dp = e->run->objective->p.data_parallel_size;
    assay_batch_share share;
    ASSAY_TRY(
        assay_batch_share_make(false, e->run->batches->microbatches, e->run->batches->b, dp, 0, &share));
    const int64_t turns = p->microbatch % share.n_microbatches + 1;
    *microbatches = turns;
    *ranks = share.rows_split ? 1 : dp;
    memset(total, 0, (size_t)experts * sizeof *total);
    for (int rank = 0; rank < *ranks; rank++)
        for (int64_t m = 0; m < turns; m++) {
            const int64_t place = (rank * share.n_microbatches + m) * layers + p->layer;
            for (int64_t i = 0; i < experts; i++)
                total[i] += p->ranks[0].global_counts[place * experts + i];
        }
    return ASSAY_OK;
}
