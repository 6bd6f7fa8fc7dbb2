/* Collectives: NCCL communicators by group, one door for every call, a log of the last calls and a watchdog.
 *
 * The world communicator comes from ncclGetUniqueId with NCCL_COMM_ID=host:port in the environment (NCCL's
 * own bootstrap); every group is split from it with ncclCommSplit in the order of assay_group, the same on
 * all ranks. Every call is enqueued on a stream and returns; waiting goes through gpu_comm_wait, which polls
 * the stream and the communicators' asynchronous errors under a time limit, so that a missing or mismatched
 * rank ends the run with the last calls of this rank on stderr instead of a hang.
 *
 * Several communicators can be in flight at once: buckets of gradients on the communication stream, sums and rows of activations
 * that have products beside them on another (gpu/beside.h), the shared expert's on the side's, everything else on the compute stream.
 * One communicator's calls on two streams are ordered by events.  Where devices run different communicators' calls in different
 * orders, NCCL's kernels wait for each other for ever.  One thread of a rank issues all calls, from one schedule that all ranks of a
 * stage share (the plan holds every rank's records to it), and
 * NCCL_LAUNCH_ORDER_IMPLICIT=1 (NCCL 2.26) makes the device keep that order across communicators and streams.  An older NCCL does not know it,
 * and another value that is set already turns it off: several ranks are refused then. */
#ifndef GPU_COMM_H
#define GPU_COMM_H

#include "core/base/arith.h"
#include "core/model/grid.h"
#include "core/run/rank_env.h"
#include "gpu/parallel/groups.h"

ASSAY_BEGIN_DECLS

enum { GPU_COMM_LOG = 16 };

typedef enum {
    GPU_COMM_ALL_REDUCE,
    GPU_COMM_ALL_GATHER,     /* count = elements of one piece */
    GPU_COMM_REDUCE_SCATTER, /* count = elements of one piece */
    GPU_COMM_BROADCAST,      /* root */
    GPU_COMM_REDUCE,         /* root */
    GPU_COMM_SEND,           /* root = peer */
    GPU_COMM_RECV            /* root = peer */
} gpu_comm_op;

typedef struct gpu_comm_call {
    gpu_comm_op op;
    assay_group group;
    const void *send;
    void *recv;
    int64_t count; /* elements */
    assay_dtype dtype;
    bool max; /* reduction: maximum instead of sum */
    int root; /* rank in the group: root or peer */
} gpu_comm_call;

typedef struct gpu_comm_log {
    int64_t sequence;
    gpu_comm_call call;
} gpu_comm_log;

typedef struct gpu_comm {
    int rank, world;
    gpu_comm_group group[ASSAY_GROUP_COUNT];
    double timeout_s, allowance_s;
    int64_t sequence; /* calls so far */
    gpu_comm_log log[GPU_COMM_LOG];
    bool log_printed;
    int64_t waits; /* of the host for the device, so far */
} gpu_comm;

/* grid NULL: the world group alone.  A world of one creates no communicator unless always_world. */
assay_status gpu_comm_create(gpu_comm *c, const assay_rank_env *env, const assay_grid *grid,
                             bool always_world);
/* Seconds that a stream may need between two waits; 0: ASSAY_COLLECTIVE_TIMEOUT_S, else 300, which is what a new one has. */
void gpu_comm_limit(gpu_comm *c, double seconds);
/* From here on waits may take so much longer, for files of `bytes` that one rank writes while others wait for it: a minute and what a disk
 * of 16 MiB/s takes.  0: no longer. */
void gpu_comm_allow_files(gpu_comm *c, double bytes);
/* Whether communicators of several ranks keep their order with this NCCL (22600: 2.26) and this value of NCCL_LAUNCH_ORDER_IMPLICIT. */
assay_status gpu_comm_check_order(int nccl, const char *implicit);
/* failed: communicators are aborted and the last calls printed (once); else destroyed. */
void gpu_comm_destroy(gpu_comm *c, bool failed);

/* The one door.  Every pointer is device memory.  In a group of one rank a call is a copy (send to itself is
 * refused). */
assay_status gpu_comm_enqueue(gpu_comm *c, const gpu_comm_call *call, cudaStream_t stream);
assay_status gpu_comm_group_start(gpu_comm *c);
assay_status gpu_comm_group_end(gpu_comm *c);

/* Waits for the stream.  ASSAY_NCCL: a communicator reports an error, or the time limit passed (the last
 * calls of this rank are printed); ASSAY_CUDA: a fault of a kernel.  `where` names the place in messages. */
assay_status gpu_comm_wait(gpu_comm *c, cudaStream_t stream, const char *where);
/* The same for an event. */
assay_status gpu_comm_wait_event(gpu_comm *c, cudaEvent_t event, const char *where);
/* All ranks of the world arrive before any leaves. */
assay_status gpu_comm_barrier(gpu_comm *c, void *scratch_f32, cudaStream_t stream);

/* Uneven pieces, counts[i] elements from or for rank i of the group, in order: one NCCL call when all are
 * equal, else grouped broadcasts (gather) or reduces (scatter). */
assay_status gpu_comm_all_gather_v(gpu_comm *c, assay_group group, const void *send, void *recv,
                                   const int64_t *counts, assay_dtype dtype, cudaStream_t stream);
assay_status gpu_comm_reduce_scatter_v(gpu_comm *c, assay_group group, const void *send, void *recv,
                                       const int64_t *counts, assay_dtype dtype, cudaStream_t stream);
/* send_counts[i] elements go to rank i, recv_counts[i] come from rank i; both buffers in rank order. */
assay_status gpu_comm_all_to_all_v(gpu_comm *c, assay_group group, const void *send,
                                   const int64_t *send_counts, void *recv, const int64_t *recv_counts,
                                   assay_dtype dtype, cudaStream_t stream);

const char *gpu_comm_op_name(gpu_comm_op op);

/* What a collective of `ranks` ranks declares.  The simulator's NCCL adds in rank order.  NCCL's rings begin at another rank for
 * every chunk and its trees join neighbours, so beyond two ranks the order is unknown; two terms have but one sum. */
assay_arith gpu_comm_arith(bool simulated, int ranks, assay_dtype dtype);

ASSAY_END_DECLS

#endif
