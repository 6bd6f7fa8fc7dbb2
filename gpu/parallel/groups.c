/* One communicator for each group kind, split from the world in a fixed order. */
#include "gpu/parallel/groups.h"

#include <stdlib.h>

/* Kinds that the engine talks over; the others are only looked up in the grid. */
static bool kind_is_used(assay_group kind, const assay_grid *grid)
{
    switch (kind) {
    case ASSAY_GROUP_TP:
    case ASSAY_GROUP_CP:
    case ASSAY_GROUP_KV:
    case ASSAY_GROUP_DP_CP:
    case ASSAY_GROUP_TP_CP:
    case ASSAY_GROUP_TP_DP_CP:
    case ASSAY_GROUP_PP:
    case ASSAY_GROUP_EP:
    case ASSAY_GROUP_ETP:
    case ASSAY_GROUP_EDP:
        return true;
    case ASSAY_GROUP_KV_HEAD: /* without shared heads the same ranks as tp */
        return grid->size[ASSAY_AXIS_KV] > 1;
    case ASSAY_GROUP_INTRA_DP_CP:
    case ASSAY_GROUP_INTER_DP_CP:
    case ASSAY_GROUP_INTRA_EDP:
    case ASSAY_GROUP_INTER_EDP:
        return grid->p.num_distributed_optimizer_instances > 1;
    case ASSAY_GROUP_EMBEDDING:
        return grid->p.pipeline_model_parallel_size > 1;
    case ASSAY_GROUP_ETP_EP: /* without etp the same ranks as ep */
        return grid->p.expert_tensor_parallel_size > 1;
    default:
        return false;
    }
}

/* Whether any group of the kind has two members: the same answer on every rank, so that all split or none.  Groups of a
 * kind are of one size, but for the middle stages' embedding groups, which have none; rank 0 is on the first stage. */
static bool kind_has_company(assay_group kind, const assay_grid *grid)
{
    return assay_grid_group_shape(grid, kind, 0).size > 1;
}

static assay_status create_group(gpu_comm_group *group, const assay_grid *grid, int rank, assay_group kind)
{
    gpu_comm_group *g = &group[kind];
    g->size = assay_grid_group(grid, kind, rank, NULL, &g->rank);
    g->ranks = calloc(g->size > 0 ? (size_t)g->size : 1, sizeof *g->ranks);
    ASSAY_CHECK(g->ranks, ASSAY_OUT_OF_MEMORY, "groups: %d ranks", g->size);
    (void)assay_grid_group(grid, kind, rank, g->ranks, NULL);
    if (!kind_is_used(kind, grid) || !kind_has_company(kind, grid))
        return ASSAY_OK;
    const int color = assay_grid_color(grid, kind, rank);
    NCCL_TRY(ncclCommSplit(group[ASSAY_GROUP_WORLD].comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, rank,
                           &g->comm, NULL),
             group[ASSAY_GROUP_WORLD].comm);
    return ASSAY_OK;
}

assay_status gpu_groups_create(gpu_comm_group *group, const assay_grid *grid, int rank)
{
    for (int kind = ASSAY_GROUP_WORLD + 1; kind < ASSAY_GROUP_COUNT; kind++)
        ASSAY_TRY(create_group(group, grid, rank, (assay_group)kind));
    return ASSAY_OK;
}

void gpu_groups_destroy(gpu_comm_group *group, bool failed)
{
    for (int kind = ASSAY_GROUP_COUNT - 1; kind >= 0; kind--) {
        gpu_comm_group *g = &group[kind];
        if (g->comm && failed)
            (void)ncclCommAbort(g->comm);
        else if (g->comm)
            (void)ncclCommDestroy(g->comm);
        free(g->ranks);
        *g = (gpu_comm_group){.rank = -1};
    }
}
