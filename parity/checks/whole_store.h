/* Runs of the reference on disk, so that the tasks of a case make each of them once.  Private to parity/checks/whole*.c. */
#ifndef PARITY_WHOLE_STORE_H
#define PARITY_WHOLE_STORE_H

#include "parity/checks/whole.h"

/* Hash of everything that decides a run of the reference besides its choices and its policy: model, training options,
 * batches, weights. */
assay_status parity_whole_identity(const parity_whole_cache *c, char out[ASSAY_SHA256_HEX]);

/* The result of ref_run(config, weights): read from `folder` where a task has left it, else computed and left there.
 * `key`: every other input of the run in words.  A second process that wants the same run waits for the first.
 * ASSAY_FORMAT: the file is not what its name says. */
assay_status parity_whole_run(const char *folder, const char *key, const ref_run_config *config,
                              double *const *weights, ref_run_result *result);

#endif
