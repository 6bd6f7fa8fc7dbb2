/* Parameters on ranks: which rank holds which piece. */
#include "core/model/spec.h"

bool assay_param_on_rank(const assay_param_spec *p, const assay_grid *g, const assay_model_config *c,
                         int rank)
{
    assay_coords at;
    assay_grid_coords(g, rank, &at);
    if (p->layer >= 0) {
        int64_t first, count;
        assay_grid_stage_layers(g, c, at.pp, &first, &count);
        return p->layer >= first && p->layer < first + count;
    }
    return (p->on_first_stage && at.pp == 0) ||
           (p->on_last_stage && at.pp == g->p.pipeline_model_parallel_size - 1);
}

assay_status assay_param_shard(const assay_param_spec *p, const assay_grid *g, int rank, assay_shard *out)
{
    ASSAY_CHECK(rank >= 0 && rank < g->world, ASSAY_INVALID_ARGUMENT, "%s: rank %d of a world of %d", p->name,
                rank, g->world);
    assay_coords at;
    assay_grid_coords(g, rank, &at);
    assay_shard_whole(out, p->shape, p->ndim);
    for (int d = 0; d < p->ndim; d++) {
        if (p->axis[d] == ASSAY_AXIS_NONE)
            continue;
        const bool tp = p->axis[d] == ASSAY_AXIS_TP;
        const int parts = tp ? g->p.tensor_model_parallel_size : g->p.expert_model_parallel_size;
        const int index = tp ? at.tp : at.ep;
        const int64_t block = p->shape[d] / p->blocks[d];
        int64_t start, length;
        assay_split(block, parts, index, &start, &length);
        out->n_segments[d] = 0;
        for (int b = 0; b < p->blocks[d] && length > 0; b++) {
            out->segments[d][b] = (assay_segment){.start = b * block + start, .length = length};
            out->n_segments[d]++;
        }
        out->local_shape[d] = length * p->blocks[d];
    }
    return ASSAY_OK;
}

bool assay_param_sum_over_tp(const assay_param_spec *p, const assay_grid *g)
{
    return p->partial_over_tp && g->p.tensor_model_parallel_size > 1 &&
           (!p->sequence_parallel_only || g->p.sequence_parallel);
}

assay_group assay_param_reduce_group(const assay_param_spec *p)
{
    return p->is_expert ? ASSAY_GROUP_EDP : ASSAY_GROUP_DP_CP;
}

static bool is_cut_by(const assay_param_spec *p, assay_axis axis)
{
    for (int d = 0; d < p->ndim; d++) {
        if (p->axis[d] == axis)
            return true;
    }
    return false;
}

bool assay_param_counts_in_norm(const assay_param_spec *p, const assay_grid *g, const assay_model_config *c,
                                int rank)
{
    if (!p->trained || !assay_param_on_rank(p, g, c, rank))
        return false;
    assay_coords at;
    assay_grid_coords(g, rank, &at);
    /* A tied embedding lives on the first and the last stage: the first one counts. */
    if (p->layer < 0 && p->on_first_stage && at.pp != 0)
        return false;
    /* Experts are replicated along the expert grid, whose axes fold over tp, cp and dp. */
    if (p->is_expert)
        return at.edp == 0 && at.etp == 0 && (is_cut_by(p, ASSAY_AXIS_EP) || at.ep == 0);
    return at.dp == 0 && at.cp == 0 && (is_cut_by(p, ASSAY_AXIS_TP) || at.tp == 0);
}
