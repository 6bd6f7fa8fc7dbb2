/* Which rank this process is: a rank is a process, started by us or by a cluster's launcher. */
#ifndef ASSAY_CORE_RANK_ENV_H
#define ASSAY_CORE_RANK_ENV_H

#include "core/base/status.h"
#include <stdbool.h>

ASSAY_BEGIN_DECLS

/* Who started this process, read from the environment: torchrun (RANK, WORLD_SIZE, LOCAL_RANK,
 * LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Open MPI (OMPI_COMM_WORLD_*), Slurm (SLURM_PROCID,
 * SLURM_NTASKS, SLURM_LOCALID, first host of SLURM_STEP_NODELIST / SLURM_JOB_NODELIST), or nobody (rank 0 of
 * 1).  Contradictory or unparsable values are errors. ASSAY_RANK/ASSAY_WORLD_SIZE/ASSAY_LOCAL_RANK, set by
 * assay_launch, win. */
typedef struct assay_rank_env {
    int rank, world, local_rank, local_world;
    bool launched;          /* false: started by hand, rank 0 of 1 */
    char launcher[16];      /* "assay", "torchrun", "openmpi", "slurm", "none" */
    char nccl_comm_id[288]; /* host:port for NCCL_COMM_ID, "" when world is 1 */
} assay_rank_env;
assay_status assay_rank_env_read(assay_rank_env *out);

ASSAY_END_DECLS

#endif
