/* Groups of the rank grid as NCCL communicators.  docs/LAYOUTS.md. */
#ifndef GPU_PARALLEL_GROUPS_H
#define GPU_PARALLEL_GROUPS_H

#include "gpu/comm.h"

ASSAY_BEGIN_DECLS

/* Fills c->group from the grid and splits a communicator for every kind that the engine talks over, in the
 * order of assay_group.  Kinds whose groups all have one member get none.  c->group[WORLD] must be ready. */
assay_status gpu_groups_create(gpu_comm *c, const assay_grid *grid);
void gpu_groups_destroy(gpu_comm *c, bool failed);

ASSAY_END_DECLS

#endif
