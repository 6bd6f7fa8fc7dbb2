/* What --out of training steps holds beside losses, norms and weights, which no golden file has. */
#ifndef TESTS_TRAINING_OUT_H
#define TESTS_TRAINING_OUT_H

#include "core/files/tensorfile.h"

#include <stdbool.h>
#include <string.h>

static inline bool training_more(const char *name)
{
    static const char *const begin[] = {"grad.", "exp_avg.", "exp_avg_sq."};
    static const char *const whole[] = {"learning_rate", "aux_loss", "seq_aux_loss", "global_aux_loss",
                                        "z_loss"};
    bool more = false;
    for (size_t i = 0; i < sizeof begin / sizeof *begin; i++)
        more = more || strncmp(name, begin[i], strlen(begin[i])) == 0;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        more = more || strcmp(name, whole[i]) == 0;
    return more;
}

/* How many tensors a result of training steps has that `expected` need not have: first gradient and two moments of every weight,
 * the learning rate, and the balancing losses that there are.  -1: it lacks one of them, or is no result of training (no weights)
 * and has more than it should. */
static inline int64_t training_extras(const assay_tensorfile *found, const assay_tensorfile *expected)
{
    int64_t extras = 0, weights = 0;
    for (int64_t i = 0; i < assay_tensorfile_count(found); i++) {
        const char *name = assay_tensorfile_at(found, i)->name;
        weights += strncmp(name, "weight.", 7) == 0;
        extras += training_more(name) && assay_tensorfile_find(expected, name) == NULL;
    }
    return extras == 0 || (weights > 0 && extras >= 3 * weights + 1) ? extras : -1;
}

#endif
