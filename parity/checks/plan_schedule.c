/* Order of the microbatches of a stage, and the learning rate of a step. */
#include "parity/checks/plan.h"

#include <math.h>

/* Where pass number j of a direction stands among all: w forwards, then forward w+j and backward j in turn while there are
 * forwards, then the other backwards. */
static int64_t place_of(int64_t j, bool backward, int64_t w, int64_t total)
{
    if (backward)
        return j < total - w ? w + 2 * j + 1 : total + j;
    return j < w ? j : 2 * j - w;
}

void plan_schedule(int stages, int chunks, int stage, int64_t n, plan_pass *out)
{
    const int64_t total = n * chunks, behind = stages - 1 - stage;
    const int64_t ahead = chunks > 1 ? 2 * behind + (int64_t)(chunks - 1) * stages : behind;
    const int64_t w = ahead < total ? ahead : total;
    for (int backward = 0; backward < 2; backward++) {
        /* Groups of as many microbatches as stages (the last may be smaller), each through one chunk after the other,
         * back from the last chunk to the first. */
        int64_t j = 0;
        for (int64_t group = 0; group < n; group += stages)
            for (int c = 0; c < chunks; c++)
                for (int64_t i = group; i < n && i < group + stages; i++, j++) {
                    const int64_t place = place_of(j, backward != 0, w, total);
                    out[place] = (plan_pass){.index = i,
                                             .round = chunks == 1 ? place
                                                      : backward  ? w + j
                                                                  : j,
                                             .chunk = backward ? chunks - 1 - c : c,
                                             .backward = backward != 0};
                }
    }
}

/* Share of lr - min_lr in the decay phase of WSD. */
static double wsd_coefficient(const assay_train_options *o, int64_t last, int64_t done)
{
    const int64_t begin = last - o->lr_wsd_decay_iters;
    if (done <= begin || o->lr_wsd_decay_iters <= 0)
        return 1.0;
    const double u = (double)(done - begin) / (double)o->lr_wsd_decay_iters;
    switch (o->lr_wsd_decay_style) {
    case ASSAY_WSD_LINEAR:
        return 1.0 - u;
    case ASSAY_WSD_COSINE:
        return 0.5 * (cos(acos(-1.0) * u) + 1.0);
    case ASSAY_WSD_EXPONENTIAL:
        return 2.0 * exp2(-u) - 1.0;
    case ASSAY_WSD_MINUS_SQRT:
        return 1.0 - sqrt(u);
    }
    return (double)NAN;
}

double plan_learning_rate(const assay_train_options *o, int64_t iterations, int64_t done)
{
    const int64_t w = o->lr_warmup_iters, last = o->lr_decay_iters > 0 ? o->lr_decay_iters : iterations;
    if (w > 0 && done <= w)
        return o->lr_warmup_init + (o->lr - o->lr_warmup_init) * ((double)done / (double)w);
    if (o->lr_decay_style == ASSAY_LR_CONSTANT)
        return o->lr;
    if (done > last || last <= w)
        return o->min_lr;
    const double r = (double)(done - w) / (double)(last - w);
    double c = (double)NAN;
    if (o->lr_decay_style == ASSAY_LR_LINEAR)
        c = 1.0 - r;
    if (o->lr_decay_style == ASSAY_LR_COSINE)
        c = 0.5 * (cos(acos(-1.0) * r) + 1.0);
    if (o->lr_decay_style == ASSAY_LR_WSD)
        c = wsd_coefficient(o, last, done);
    return o->min_lr + c * (o->lr - o->min_lr);
}
