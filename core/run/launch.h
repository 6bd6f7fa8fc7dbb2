/* Starting ranks: a rank is a process. */
#ifndef ASSAY_CORE_LAUNCH_H
#define ASSAY_CORE_LAUNCH_H

#include "core/base/status.h"
#include <stdbool.h>
#include <stdint.h>

ASSAY_BEGIN_DECLS

typedef struct assay_launch_options {
    int world;
    double timeout_s;     /* 0 = none; the whole run */
    bool prefix_output;   /* "[rank 2] " before each line of a rank's output */
    const char *log_path; /* append all output here too; NULL = no */
    bool graceful;        /* SIGINT and SIGTERM ask the ranks to stop behind a step; a second one ends them */
    bool quiet;           /* nothing to our stdout/stderr, only to the log */
    bool distinct_nccl_hosts; /* set a different NCCL_HOSTID per rank, NCCL_NET=Socket on lo (ranks outnumber
                                 devices) */
    int n_devices; /* 0: simulator; else several ranks get CUDA_MODULE_LOADING=EAGER (unless it is set), and
                      CUDA_VISIBLE_DEVICES is entry rank % n_devices of the inherited list,
                      or that number when there is none */
} assay_launch_options;

typedef struct assay_launch_result {
    int failed_rank; /* first that died, -1 */
    int exit_code;   /* of that rank, -1 when killed by a signal */
    int signal;
    bool timed_out;
    double wall_s;
} assay_launch_result;

/* Executes argv (NULL-terminated; argv[0] a path) once per rank, sets the ASSAY_* variables and
 * NCCL_COMM_ID on a free loopback port, forwards output, kills the rest when one dies (SIGTERM, two seconds
 * later SIGKILL), waits for all.  Ranks read /dev/null, die with the launcher, and leave no process behind.
 * A rank that ends with code 0 is not a death.  `result` may be NULL. ASSAY_CHILD: "rank 2 died of signal 11
 * (Segmentation fault)" or "rank 1 exited with code 2"; ASSAY_TIMEOUT. */
assay_status assay_launch(const char *const *argv, const assay_launch_options *o,
                          assay_launch_result *result);

/* Path of a program that sits beside the running one (/proc/self/exe); ASSAY_NOT_FOUND when it is not
 * executable. */
assay_status assay_sibling_program(const char *name, char *out, uint64_t capacity);

ASSAY_END_DECLS

#endif
