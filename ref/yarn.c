#include "ref/yarn.h"

#include <math.h>

static double mscale(const assay_model_config *c, double a)
{
    return c->rope_factor <= 1.0 ? 1.0 : 0.1 * a * log(c->rope_factor) + 1.0;
}

double ref_yarn_attention_factor(const assay_model_config *c)
{
    if (c->rope_type != ASSAY_ROPE_YARN)
        return 1.0;
    if (c->rope_attention_factor > 0.0)
        return c->rope_attention_factor;
    return mscale(c, c->rope_mscale) / mscale(c, c->rope_mscale_all_dim);
}

double ref_yarn_softmax_scale(const assay_model_config *c)
{
    const double scale = 1.0 / sqrt((double)c->kv_channels);
    if (!assay_config_is_mla(c) || !(c->rope_mscale_all_dim > 0.0))
        return scale;
    return scale * mscale(c, c->rope_mscale_all_dim) * mscale(c, c->rope_mscale_all_dim);
}
