/* Local pieces of global tensors: segments, and which rank holds what. */
#include "core/model/spec.h"

#include "core/base/dtype.h"
#include <string.h>

void assay_shard_whole(assay_shard *s, const int64_t *shape, int ndim)
{
    memset(s, 0, sizeof *s);
    s->ndim = ndim;
    for (int d = 0; d < ndim; d++) {
        s->global_shape[d] = shape[d];
        s->local_shape[d] = shape[d];
        s->n_segments[d] = shape[d] > 0 ? 1 : 0;
        s->segments[d][0] = (assay_segment){.start = 0, .length = shape[d]};
    }
}

assay_status assay_shard_narrow(assay_shard *s, int dim, int64_t start, int64_t length)
{
    ASSAY_CHECK(dim >= 0 && dim < s->ndim, ASSAY_INVALID_ARGUMENT,
                "shard: dimension %d of a piece with %d dimensions", dim, s->ndim);
    const int64_t local = s->local_shape[dim];
    ASSAY_CHECK(start >= 0 && length >= 0 && start <= local && length <= local - start,
                ASSAY_INVALID_ARGUMENT, "shard: dimension %d: range [%lld, +%lld) of a piece of length %lld",
                dim, (long long)start, (long long)length, (long long)local);
    assay_segment kept[ASSAY_MAX_SEGMENTS];
    int n_kept = 0;
    int64_t skip = start, left = length;
    for (int i = 0; i < s->n_segments[dim] && left > 0; i++) {
        const assay_segment *from = &s->segments[dim][i];
        if (skip >= from->length) {
            skip -= from->length;
            continue;
        }
        const int64_t room = from->length - skip;
        const int64_t take = left < room ? left : room;
        kept[n_kept++] = (assay_segment){.start = from->start + skip, .length = take};
        skip = 0;
        left -= take;
    }
    memset(s->segments[dim], 0, sizeof s->segments[dim]);
    memcpy(s->segments[dim], kept, (size_t)n_kept * sizeof kept[0]);
    s->n_segments[dim] = n_kept;
    s->local_shape[dim] = length;
    return ASSAY_OK;
}

int64_t assay_shard_global_index(const assay_shard *s, int dim, int64_t local)
{
    for (int i = 0; i < s->n_segments[dim]; i++) {
        const assay_segment *segment = &s->segments[dim][i];
        if (local < segment->length)
            return segment->start + local;
        local -= segment->length;
    }
    return -1;
}

static assay_status check_dimension(const assay_shard *s, int d, const char *what)
{
    const int64_t extent = s->global_shape[d];
    ASSAY_CHECK(extent >= 0 && s->local_shape[d] >= 0, ASSAY_FORMAT,
                "%s: dimension %d: negative extent (global %lld, local %lld)", what, d, (long long)extent,
                (long long)s->local_shape[d]);
    ASSAY_CHECK(s->n_segments[d] >= 0 && s->n_segments[d] <= ASSAY_MAX_SEGMENTS, ASSAY_FORMAT,
                "%s: dimension %d: %d segments, at most %d are supported", what, d, s->n_segments[d],
                ASSAY_MAX_SEGMENTS);
    int64_t total = 0;
    for (int i = 0; i < s->n_segments[d]; i++) {
        const assay_segment a = s->segments[d][i];
        ASSAY_CHECK(a.start >= 0 && a.length > 0 && a.start <= extent && a.length <= extent - a.start,
                    ASSAY_FORMAT, "%s: dimension %d: segment [%lld, +%lld) is not inside [0, %lld)", what, d,
                    (long long)a.start, (long long)a.length, (long long)extent);
        for (int j = 0; j < i; j++) {
            const assay_segment b = s->segments[d][j];
            ASSAY_CHECK(a.start >= b.start + b.length || b.start >= a.start + a.length, ASSAY_FORMAT,
                        "%s: dimension %d: segments [%lld, +%lld) and [%lld, +%lld) overlap", what, d,
                        (long long)b.start, (long long)b.length, (long long)a.start, (long long)a.length);
        }
        total += a.length; /* disjoint parts of [0, extent): no overflow */
    }
    ASSAY_CHECK(total == s->local_shape[d], ASSAY_FORMAT,
                "%s: dimension %d: segments hold %lld, local shape says %lld", what, d, (long long)total,
                (long long)s->local_shape[d]);
    return ASSAY_OK;
}

assay_status assay_shard_check(const assay_shard *s, const char *what)
{
    ASSAY_CHECK(s->ndim >= 0 && s->ndim <= ASSAY_MAX_DIMS, ASSAY_FORMAT,
                "%s: %d dimensions, at most %d are supported", what, s->ndim, ASSAY_MAX_DIMS);
    for (int d = 0; d < s->ndim; d++)
        ASSAY_TRY(check_dimension(s, d, what));
    int64_t count;
    ASSAY_CHECK(assay_shape_count(s->global_shape, s->ndim, &count), ASSAY_LIMIT,
                "%s: the global shape has more than 2^63 - 1 elements", what);
    return ASSAY_OK;
}

int64_t assay_shard_count(const assay_shard *s)
{
    int64_t count = 1;
    for (int d = 0; d < s->ndim; d++)
        count *= s->local_shape[d];
    return count;
}

/* --- parameters on ranks ------------------------------------------------------------------------------------ */

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

assay_status assay_param_shard(const assay_param_spec *p, const assay_grid *g, int rank, assay_shard *out)
{
    ASSAY_CHECK(rank >= 0 && rank < g->world, ASSAY_INVALID_ARGUMENT, "%s: rank %d of a world of %d", p->name,
                rank, g->world);
    assay_shard_whole(out, p->shape, p->ndim);
    for (int d = 0; d < p->ndim; d++) {
        if (p->axis[d] == ASSAY_AXIS_NONE)
            continue;
        const int parts = g->size[p->axis[d]], index = assay_grid_coord(g, p->axis[d], rank);
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

bool assay_param_needs_grad(const assay_param_spec *p)
{
    return p->trained;
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
    if (!assay_param_needs_grad(p) || !assay_param_on_rank(p, g, c, rank))
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
