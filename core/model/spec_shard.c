/* Parameters on ranks: which rank holds which piece. */
#include "core/model/spec.h"

int assay_param_chunk(const assay_param_spec *p, const assay_grid *g, const assay_model_config *c, int rank)
{
    const int pp = assay_grid_coord(g, ASSAY_AXIS_PP, rank);
    const int last = g->p.virtual_pipeline_model_parallel_size - 1;
    if (p->layer >= 0) {
        int stage, chunk;
        assay_grid_layer_stage(g, c, p->layer, &stage, &chunk);
        return stage == pp ? chunk : -1;
    }
    if (p->on_first_stage && pp == 0)
        return 0;
    return p->on_last_stage && pp == g->size[ASSAY_AXIS_PP] - 1 ? last : -1;
}

bool assay_param_on_rank(const assay_param_spec *p, const assay_grid *g, const assay_model_config *c,
                         int rank)
{
    return assay_param_chunk(p, g, c, rank) >= 0;
}

/* Rows of a query group that several tp ranks share: their part of its query heads, and its key and value head. */
static void cut_query_group(const assay_param_spec *p, const assay_grid *g, int rank, assay_shard *out)
{
    const int64_t block = p->shape[0] / p->query_groups, queries = block - p->kv_rows;
    const int64_t base = assay_grid_coord(g, ASSAY_AXIS_KV_HEAD, rank) * block;
    int64_t start, length;
    assay_split(queries, g->size[ASSAY_AXIS_KV], assay_grid_coord(g, ASSAY_AXIS_KV, rank), &start, &length);
    const assay_segment rows[2] = {{.start = base + start, .length = length},
                                   {.start = base + queries, .length = p->kv_rows}};
    assay_shard_set(out, 0, rows, 2);
    out->local_shape[0] = length + p->kv_rows;
}

int64_t assay_param_elements(const assay_param_spec *p)
{
    int64_t n = 1;
    for (int d = 0; d < p->ndim; d++)
        n *= p->shape[d];
    return n;
}

int64_t assay_param_shared_from(const assay_param_spec *p, const assay_grid *g, int64_t count)
{
    const int replicas = g->size[ASSAY_AXIS_KV];
    if (replicas == 1)
        return count;
    if (p->axis[0] == ASSAY_AXIS_KV_HEAD)
        return 0;
    if (p->query_groups == 0)
        return count;
    const int64_t queries = (p->shape[0] / p->query_groups - p->kv_rows) / replicas;
    return count / (queries + p->kv_rows) * queries;
}

assay_status assay_param_shard(const assay_param_spec *p, const assay_grid *g, int rank, assay_shard *out)
{
    ASSAY_CHECK(rank >= 0 && rank < g->world, ASSAY_INVALID_ARGUMENT, "%s: rank %d of a world of %d", p->name,
                rank, g->world);
    assay_shard_whole(out, p->shape, p->ndim);
    const bool shared = p->query_groups > 0 && g->size[ASSAY_AXIS_KV] > 1;
    if (shared)
        cut_query_group(p, g, rank, out);
    for (int d = shared ? 1 : 0; d < p->ndim; d++) {
        if (p->axis[d] == ASSAY_AXIS_NONE)
            continue;
        const int parts = g->size[p->axis[d]], index = assay_grid_coord(g, p->axis[d], rank);
        const int64_t block = p->shape[d] / p->blocks[d];
        int64_t start, length;
        assay_split(block, parts, index, &start, &length);
        assay_segment cut[ASSAY_MAX_SEGMENTS];
        int n = 0;
        for (int b = 0; b < p->blocks[d] && length > 0; b++)
            cut[n++] = (assay_segment){.start = b * block + start, .length = length};
        assay_shard_set(out, d, cut, n);
        out->local_shape[d] = length * p->blocks[d];
    }
    return ASSAY_OK;
}

bool assay_param_sum_over_tp(const assay_param_spec *p, const assay_grid *g)
{
    return p->partial_over_tp && g->p.tensor_model_parallel_size > 1 &&
           (!p->sequence_parallel_only || g->p.sequence_parallel);
}

bool assay_param_needs_grad(const assay_param_spec *p)
{
    return p->trained && !p->frozen;
}

assay_group assay_param_reduce_group(const assay_param_spec *p)
{
    return p->is_expert ? ASSAY_GROUP_EDP : ASSAY_GROUP_DP_CP;
}

assay_group assay_param_shard_group(const assay_param_spec *p, const assay_grid *g)
{
    if (g->p.num_distributed_optimizer_instances == 1)
        return assay_param_reduce_group(p);
    return p->is_expert ? ASSAY_GROUP_INTRA_EDP : ASSAY_GROUP_INTRA_DP_CP;
}

assay_group assay_param_replica_group(const assay_param_spec *p)
{
    return p->is_expert ? ASSAY_GROUP_INTER_EDP : ASSAY_GROUP_INTER_DP_CP;
}

static bool is_cut_by(const assay_param_spec *p, assay_axis axis)
{
    for (int d = 0; d < p->ndim; d++) {
        if (p->axis[d] == axis || (p->axis[d] == ASSAY_AXIS_KV_HEAD && axis == ASSAY_AXIS_TP))
            return true;
    }
    return false;
}

bool assay_param_is_first_replica(const assay_param_spec *p, const assay_grid *g, const assay_model_config *c,
                                  int rank)
{
    if (!assay_param_on_rank(p, g, c, rank))
        return false;
    /* A tied embedding lives on the first and the last stage: the first one counts. */
    if (p->layer < 0 && p->on_first_stage && assay_grid_coord(g, ASSAY_AXIS_PP, rank) != 0)
        return false;
    /* Experts are replicated along the expert grid, whose axes fold over tp, cp and dp. */
    static const assay_axis dense[] = {ASSAY_AXIS_TP, ASSAY_AXIS_CP, ASSAY_AXIS_DP};
    static const assay_axis expert[] = {ASSAY_AXIS_ETP, ASSAY_AXIS_EP, ASSAY_AXIS_EDP};
    const assay_axis *axes = p->is_expert ? expert : dense;
    for (int i = 0; i < 3; i++)
        if (!is_cut_by(p, axes[i]) && assay_grid_coord(g, axes[i], rank) != 0)
            return false;
    return true;
}

bool assay_param_counts_in_norm(const assay_param_spec *p, const assay_grid *g, const assay_model_config *c,
                                int rank)
{
    return assay_param_needs_grad(p) && assay_param_is_first_replica(p, g, c, rank);
}

/* Elements of the piece, from the first on, that no rank before has. */
static int64_t first_elements(const assay_param_spec *p, const assay_grid *g, const assay_model_config *c,
                              int rank, int64_t count)
{
    if (!assay_param_is_first_replica(p, g, c, rank))
        return 0;
    return assay_grid_coord(g, ASSAY_AXIS_KV, rank) == 0 ? count : assay_param_shared_from(p, g, count);
}

int64_t assay_param_counted(const assay_param_spec *p, const assay_grid *g, const assay_model_config *c,
                            int rank, int64_t count)
{
    return assay_param_needs_grad(p) ? first_elements(p, g, c, rank, count) : 0;
}

assay_status assay_param_first_shard(const assay_param_spec *p, const assay_grid *g,
                                     const assay_model_config *c, int rank, assay_shard *out)
{
    ASSAY_TRY(assay_param_shard(p, g, rank, out));
    const int64_t count = assay_shard_count(out), rows = out->local_shape[0];
    const int64_t first = first_elements(p, g, c, rank, count);
    return assay_shard_narrow(out, 0, 0, count > 0 ? first / (count / rows) : 0);
}
