/* What libraries of the reference read in the environment when they are loaded, before main could tell them: the program starts itself once
 * more.
 *
 *   OPENBLAS_CORETYPE     where OpenBLAS has chosen kernels that are too old for the CPU (ref/fast/blas_core.h)
 *   OMP_WAIT_POLICY       passive: threads that wait for the next loop sleep.  By themselves they turn for milliseconds, on processors that
 *                         engines and kernels under trial wait for; on a machine that does something else, too, `assay run` of one small
 *                         case took 8 to 15 s where it takes 1.6
 *   OPENBLAS_NUM_THREADS  1: what assay computes it computes on one thread of OpenBLAS (ref/fast.h), but the library starts one for
 *                         each processor when it is loaded, and again in a fork that speaks to it, which turn for some 20 ms before they
 *                         sleep: 4 million calls of sched_yield in one `assay run`, 4 % of it
 *
 * What the user has set stands: OPENBLAS_CORETYPE; OMP_WAIT_POLICY, GOMP_SPINCOUNT; OPENBLAS_NUM_THREADS; or OMP_NUM_THREADS=1, with which
 * nothing waits. */
#ifndef REF_FAST_RESTART_H
#define REF_FAST_RESTART_H

#include <stddef.h>

/* The beginning of main.  Returns when there is nothing to tell. */
void ref_restart(char *const argv[]);
/* Takes back what was told, before this process becomes a program of somebody else's, whose threads are not ours to choose. */
void ref_restart_untell(void);

/* "passive, chosen by assay" */
void ref_omp_wait_describe(char *out, size_t capacity);

#endif
