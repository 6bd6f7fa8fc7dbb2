/* Groups of the rank grid as NCCL communicators.  docs/LAYOUTS.md. */
#ifndef GPU_PARALLEL_GROUPS_H
#define GPU_PARALLEL_GROUPS_H

#include "core/model/grid.h"
#include "gpu/gpu.h"

ASSAY_BEGIN_DECLS

typedef struct gpu_comm_group {
    ncclComm_t comm; /* NULL when the group has one member or was not created */
    int size, rank;  /* rank: position of this process, -1 when it is in no group of the kind */
    int *ranks;      /* global ranks, ascending */
} gpu_comm_group;

/* Fills group [ASSAY_GROUP_COUNT] of `rank` from the grid and splits a communicator for every kind that the engine talks
 * over, in the order of assay_group.  Kinds whose groups all have one member get none.  group[WORLD] must be ready. */
assay_status gpu_groups_create(gpu_comm_group *group, const assay_grid *grid, int rank);
void gpu_groups_destroy(gpu_comm_group *group, bool failed);

ASSAY_END_DECLS

#endif
