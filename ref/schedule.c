/* Learning-rate schedules of Megatron-LM (optimizer_param_scheduler), in optimizer steps. */
#include "ref/ref.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* The part of the way from min_lr to lr that is left at `done` (0..1) of a WSD decay. */
static double wsd_left(assay_wsd_decay_style style, double done)
{
    switch (style) {
    case ASSAY_WSD_LINEAR:
        return 1.0 - done;
    case ASSAY_WSD_COSINE:
        return 0.5 * (cos(pi * done) + 1.0);
    case ASSAY_WSD_EXPONENTIAL:
        return 2.0 * pow(0.5, done) - 1.0;
    case ASSAY_WSD_MINUS_SQRT:
        return 1.0 - sqrt(done);
    }
    return 1.0;
}

double ref_learning_rate(const assay_train_options *o, int64_t step)
{
    const int64_t warmup = o->lr_warmup_iters;
    const int64_t decay = o->lr_decay_iters > 0 ? o->lr_decay_iters : o->train_iters;
    if (warmup > 0 && step <= warmup)
        return o->lr_warmup_init + (o->lr - o->lr_warmup_init) * (double)step / (double)warmup;
    if (o->lr_decay_style == ASSAY_LR_CONSTANT)
        return o->lr;
    if (step > decay)
        return o->min_lr;
    /* step <= decay and step > warmup, or warmup is 0: decay - warmup is 0 only at step 0 of an empty decay.
     */
    const double ratio = decay > warmup ? (double)(step - warmup) / (double)(decay - warmup) : 0.0;
    double left = 1.0;
    if (o->lr_decay_style == ASSAY_LR_LINEAR) {
        left = 1.0 - ratio;
    } else if (o->lr_decay_style == ASSAY_LR_COSINE) {
        left = 0.5 * (cos(pi * ratio) + 1.0);
    } else {
        const int64_t start = decay - o->lr_wsd_decay_iters;
        if (step > start && o->lr_wsd_decay_iters > 0)
            left = wsd_left(o->lr_wsd_decay_style, (double)(step - start) / (double)o->lr_wsd_decay_iters);
    }
    return o->min_lr + left * (o->lr - o->min_lr);
}
