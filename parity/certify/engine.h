/* The engine's own kernels under trial: what the files of `--engine` share.  Private to parity/certify/. */
#ifndef PARITY_CERTIFY_ENGINE_H
#define PARITY_CERTIFY_ENGINE_H

#include "parity/certify/certify.h"
#include "parity/run/engine.h"
#include <sys/types.h>

/* The trial of one dtype of activations. */
typedef struct engine_trial {
    const certify_options *o;
    const parity_engine *e;
    const json_t *operations; /* what the engine says of its kernels (doctor --ops) */
    const char *work;         /* folder */
    const char *act;          /* "F32", "BF16" */
    certify_result *results;
    int n;
    bool ahead; /* engine_run_ahead has made these runs */
} engine_trial;

/* "WORK/what.ACT" */
void engine_path(char out[ASSAY_PATH], const engine_trial *t, const char *what);
/* Runs the engine's `ops` on the request `asked` into `what`; more: further options, ended by NULL, or NULL. */
assay_status engine_answer(const engine_trial *t, const char *asked, const char *what,
                           const char *const *more, double limit);
certify_result *engine_result_of(const engine_trial *t, const char *op);

/* What the engine says of an operation's variants, from k0 on; NULL: it has none. */
const json_t *engine_variants_of(const engine_trial *t, const char *op);
/* Whether a library chooses the algorithm of this variant, by shapes and alignment. */
bool engine_by_library(const engine_trial *t, const char *op, int variant);

/* engine_ran.c: adds the records of an answer to subject.ran and subject.description.declared of the results. */
assay_status engine_note_ran(const engine_trial *t, const assay_trace *answer);
/* --variant is there: a kN of one operation that has less rungs would be another variant's certificate. */
assay_status engine_check_variant(const engine_trial *t);
/* The machine, and the device with its libraries where it is one. */
json_t *engine_where(const parity_engine *e);

/* engine_runs.c: trials `repeat` and `written`, and in the simulator `threads`: the request again, against the answer `answer`. */
assay_status engine_try_places(const engine_trial *t);
assay_status engine_try_orders(const engine_trial *t);

/* engine_runs.c: starts a process that runs `request`, which is written, in every way in which these trials look at it, while the other dtype
 * is tried; -1: none.  engine_join_ahead waits for it, or ends it where its runs are not wanted any more.  ASSAY_CHILD where one ended badly,
 * ASSAY_IO. */
pid_t engine_run_ahead(const engine_trial *t);
assay_status engine_join_ahead(engine_trial *t, pid_t pid, bool wanted);

/* engine_rows.c: trial `batch`. */
assay_status engine_try_rows(const engine_trial *t);

/* engine_illegal.c: trial `arguments`.  The records of `request` in every way that breaks the contract. */
assay_status engine_try_illegal(const engine_trial *t);

#endif
