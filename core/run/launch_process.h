/* Starting one program.  Used by launch.c only. */
#ifndef ASSAY_CORE_RUN_LAUNCH_PROCESS_H
#define ASSAY_CORE_RUN_LAUNCH_PROCESS_H

#include "core/base/status.h"
#include <sys/types.h>

typedef struct assay_process_start {
    char *const *argv; /* argv[0]: the program's path */
    char *const *envp;
    int out, err; /* become standard output and standard error; standard input is /dev/null */
} assay_process_start;

/* *pid: a child that executes the program, leads a process group of its own and dies with the calling thread; 127 is its exit code
 * where it cannot execute.  The caller's memory is not copied: its thread waits until the program is executed.  *ended: a descriptor
 * that poll finds readable when the process has ended, -1 where the system has none (before Linux 5.3).  ASSAY_IO, ASSAY_OUT_OF_MEMORY. */
assay_status assay_process_begin(const assay_process_start *start, pid_t *pid, int *ended);

#endif
