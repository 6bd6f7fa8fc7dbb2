#include "gpu/yarn.h"

#include <math.h>

/* m(a), which grows with the logarithm of how much longer positions are. */
static double grown(double factor, double a)
{
    return factor > 1.0 ? 1.0 + 0.1 * a * log(factor) : 1.0;
}

double gpu_yarn_attention_factor(const assay_model_config *config)
{
    const double given = config->rope_attention_factor;
    if (config->rope_type != ASSAY_ROPE_YARN)
        return 1.0;
    return given > 0.0 ? given
                       : grown(config->rope_factor, config->rope_mscale) /
                             grown(config->rope_factor, config->rope_mscale_all_dim);
}

double gpu_yarn_softmax_scale(const assay_model_config *config)
{
    double m = 1.0;
    if (assay_config_is_mla(config))
        m = grown(config->rope_factor, config->rope_mscale_all_dim);
    return m * m / sqrt((double)config->kv_channels);
}
