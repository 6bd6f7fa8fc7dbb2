/* One task of `assay run`: what its files share.  Internal interface of run_task.c, run_request.c, run_bits.c and run_restart.c. */
#ifndef PARITY_RUN_TASK_H
#define PARITY_RUN_TASK_H

#include "parity/run/run.h"

typedef struct parity_task_state {
    const parity_run_options *o;
    const parity_engine *e;
    const parity_task *t;
    parity_report *report;
    json_t *facts;
    assay_train_options train; /* base options of every engine run of the task */
    double engine_s;
    double since; /* when the check at hand began */
} parity_task_state;

/* run_task.c: a file or folder of the task. */
assay_status parity_task_path(const parity_task *t, const char *name, char out[ASSAY_PATH]);
/* One run of the engine with changes to the base options; its log is NAME.log.  A failure names the run and its log. */
assay_status parity_task_engine(parity_task_state *s, const char *name, const assay_train_options *o);
/* A claim of the task that fails by more than any bound; its message is the caller's to write. */
parity_result parity_task_failure(parity_check check, const char *claim);

/* run_request.c: the request of the operations alone in the task's precision and for its ranks, written by the first task that
 * asks; it stays beside the tasks' folders.  ASSAY_IO where it cannot be written. */
assay_status parity_task_request(const parity_task *t, char out[ASSAY_PATH]);

/* run_bits.c: runs the training of `first_out` again, without a trace, with everything changed that must not change a
 * bit of the result file: communication beside compute or not, layers recomputed or kept.  On the way it leaves the
 * checkpoint of all but the last step in `half`.  Where bits differ, each change is run alone and named. */
assay_status parity_task_bits(parity_task_state *s, const char *first_out);

/* run_restart.c.  bitwise: a run goes on after all but one step; the end, states and all, must equal the run `first` without
 * interruption, and it must have made that one step alone.  Runs that load are given no weights: one that does not load has nothing to
 * begin with.  checkpoint: what was saved there, loaded and saved again by another layout, must hold the same global tensors.  Headers must be
 * those of the runs that wrote them.  *running: the check at hand, for the skip where it cannot be done. */
assay_status parity_task_restart(parity_task_state *s, const assay_train_options *first, bool bitwise,
                                 bool checkpoint, parity_check *running);

#endif
