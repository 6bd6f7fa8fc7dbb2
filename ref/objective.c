/* The weights of an objective that depends on the layout, in a run that is not cut. */
#include "ref/objective.h"

bool ref_has_objective(const ref_pass *p)
{
    return p->e->run->objective != NULL && p->e->options.semantics == ASSAY_SEMANTICS_MEGATRON;
}

/* The weight of one rank's tokens: rows of its routers over the targets of the step, or the mean over its targets. */
static double weight_of(const ref_pass *p, const assay_sequence *held, const assay_batch_share *share,
                        const int64_t *targets)
{
    const ref_engine *e = p->e;
    int64_t n = 0;
    if (targets == NULL)
        return (double)(held->length * share->n_rows) / (double)e->targets;
    for (int64_t i = 0; i < held->length; i++)
        for (int64_t b = 0; b < share->n_rows; b++)
            n += targets[assay_sequence_position(held, i) * e->batch + share->first_row + b] !=
                 ASSAY_IGNORE_INDEX;
    return 1.0 / ((double)e->run->batches->microbatches * (double)e->run->objective->p.context_parallel_size *
                  (double)(n > 0 ? n : 1));
}

/* targets NULL: of auxiliary losses, by sequence-parallel pieces; else by what a context-parallel rank holds. */
static assay_status fill(const ref_pass *p, const int64_t *targets, double *weights)
{
    const ref_engine *e = p->e;
    const assay_grid *g = e->run->objective;
    for (int rank = 0; rank < g->world; rank++) {
        assay_coords at;
        assay_batch_share share;
        assay_sequence_map map;
        assay_grid_coords(g, rank, &at);
        ASSAY_TRY(assay_batch_share_make(e->run->batches->microbatches, e->run->batches->b,
                                         g->p.data_parallel_size, at.dp, &share));
        const bool runs = p->microbatch >= share.first_microbatch &&
                          p->microbatch < share.first_microbatch + share.n_microbatches;
        if (at.pp != 0 || !runs || (targets != NULL && at.tp != 0))
            continue;
        ASSAY_TRY(assay_sequence_map_make(g, rank, e->seq, &map));
        const assay_sequence *held = targets != NULL ? &map.region : &map.shard;
        const double weight = weight_of(p, held, &share, targets);
        for (int64_t i = 0; i < held->length; i++)
            for (int64_t b = 0; b < share.n_rows; b++)
                weights[assay_sequence_position(held, i) * e->batch + share.first_row + b] = weight;
    }
    return ASSAY_OK;
}

assay_status ref_objective_aux_weights(const ref_pass *p, double *weights)
{
    return fill(p, NULL, weights);
}

assay_status ref_objective_target_weights(const ref_pass *p, const int64_t *targets, double *weights)
{
    return fill(p, targets, weights);
}
