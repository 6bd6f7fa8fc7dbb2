/* Order of the microbatches of a stage, and the learning rate of a step. */
#include "parity/checks/plan.h"

#include <math.h>

void plan_schedule(int stages, int stage, int64_t n, plan_pass *out)
{
    const int64_t ahead = stages - 1 - stage, w = ahead < n ? ahead : n;
    int64_t k = 0;
    for (int64_t i = 0; i < w; i++)
        out[k++] = (plan_pass){.index = i};
    for (int64_t i = 0; i < n - w; i++) {
        out[k++] = (plan_pass){.index = w + i};
        out[k++] = (plan_pass){.index = i, .backward = true};
    }
    for (int64_t i = n - w; i < n; i++)
        out[k++] = (plan_pass){.index = i, .backward = true};
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
