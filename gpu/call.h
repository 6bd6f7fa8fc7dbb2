/* The one call of the engine: every operation, compute or collective, goes through it.
 *
 *     ASSAY_TRY(GPU_CALL(run, "rmsnorm_fwd", "pre_mlp_layernorm", GPU_T("x", hidden), GPU_T("gamma", use(m, l->gamma)),
 *                        GPU_NEW("y", &norm, description), GPU_NEW("rstd", &rstd, description), GPU_F("eps", eps)));
 *
 * It finds the operation's row, makes the outputs that are only described (name, phase, dtype, memory), in dry mode notes the
 * workspace and stops, plants faults, records the inputs as they are, enqueues (between the run's observer's begin and end), lets the run's
 * substitute replace results, and records outputs, attributes and the declared arithmetic of each.  docs/OPS.md names slots and attributes. */
#ifndef GPU_CALL_H
#define GPU_CALL_H

#include "gpu/operands.h"
#include "gpu/trace.h"

ASSAY_BEGIN_DECLS

/* A slot with its value (NULL: an optional one that is absent), or an attribute. */
typedef struct gpu_arg {
    const char *
        name; /* of the row; "x_in" for what an in-out slot was before, where it has another name; "send.1" for pieces */
    gpu_value *value;
    double number;
    int64_t integer;
    const char *word; /* WORD, DTYPE */
} gpu_arg;
#define GPU_T(slot, v)                                                                                       \
    {                                                                                                        \
        .name = (slot), .value = (v)                                                                         \
    }
/* An output that the call makes from its description. */
#define GPU_NEW(slot, v, ...)                                                                                \
    {                                                                                                        \
        .name = (slot), .value = gpu_value_set((v), __VA_ARGS__)                                             \
    }
#define GPU_F(attr, x)                                                                                       \
    {                                                                                                        \
        .name = (attr), .number = (x)                                                                        \
    }
#define GPU_I(attr, n)                                                                                       \
    {                                                                                                        \
        .name = (attr), .integer = (n)                                                                       \
    }
#define GPU_W(attr, text)                                                                                    \
    {                                                                                                        \
        .name = (attr), .word = (text)                                                                       \
    }

enum { GPU_CALL_ARGS = 36 };
typedef struct gpu_call_args {
    const char *op, *at; /* at: instance without the layer's prefix */
    gpu_arg arg[GPU_CALL_ARGS];
    /* collectives */
    assay_group group;
    const int64_t *counts;      /* rows for (all_gather: from) each rank of the group; NULL: even */
    const int64_t *recv_counts; /* all_to_all: rows from each rank */
} gpu_call_args;

assay_status gpu_call(gpu_run *run, const gpu_call_args *args);
#define GPU_CALL(run, operation, instance, ...)                                                              \
    gpu_call((run), &(gpu_call_args){.op = (operation), .at = (instance), .arg = {__VA_ARGS__}})

/* The parts of the fused operation `op` (docs/OPS.md 10), in their order.  One launch does them where a kernel of it above k0 takes the
 * call, each part would run its highest rung (whose bits the kernel has), and no fault, rule or substitute is about a part; else
 * each is a call.  The records are those of the parts either way; those of one launch say so (`fused`).
 * What one part makes for another and the row of `op` calls optional is not stored where nobody records it: the caller does not read
 * it.  A described value of an in-out slot whose "x_in" is another value lies where that lies, and beside it where one launch makes both
 * for somebody who looks. */
assay_status gpu_call_fused(gpu_run *run, const char *op, const gpu_call_args *parts, int n);

/* n calls of one operation as one list: records of each around one launch.  launch NULL: the operation's own (adamw, sumsq);
 * else it does the work of all (buckets of gradients). */
typedef assay_status (*gpu_launch)(void *user);
assay_status gpu_call_list(gpu_run *run, const gpu_call_args *args, int64_t n, gpu_launch launch, void *user);

/* Sends and receives in one NCCL group, each at its own place of the schedule.  Two between the same ranks meet in the
 * order of the list. */
enum { GPU_EXCHANGE_TRANSFERS = 4 };
typedef struct gpu_transfer {
    gpu_call_args args;
    assay_phase phase;
    int64_t microbatch;
} gpu_transfer;
assay_status gpu_call_exchange(gpu_run *run, const gpu_transfer *list, int n);

ASSAY_END_DECLS

#endif
