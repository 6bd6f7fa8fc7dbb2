/* Products that add into the gradient of a weight. */
#include "gpu/weight_grads.h"

#include "gpu/call.h"

/* Whether something of the step (with zero2 and zero3: of the microbatch) is in the gradient; else the product is the gradient. */
static bool accumulates(const gpu_model *m, gpu_param *p)
{
    if (m->run->dry)
        p->by_product = true;
    return p->main_grad.microbatch >= 0;
}

assay_status gpu_linear_bwd_weight(gpu_model *m, const char *at, gpu_value *dy, gpu_value *x,
                                   gpu_param *weight)
{
    gpu_value *dweight = gpu_param_grad(m, weight);
    if (dweight == NULL)
        return ASSAY_OK;
    return GPU_CALL(m->run, "linear_bwd_weight", at, GPU_T("dy", dy), GPU_T("x", x),
                    GPU_T("dweight", dweight), GPU_FUSION(m), GPU_I("accumulate", accumulates(m, weight)));
}

assay_status gpu_linear_bwd_bias(gpu_model *m, const char *at, gpu_value *dy, gpu_param *bias)
{
    gpu_value *dbias = bias != NULL ? gpu_param_grad(m, bias) : NULL;
    if (dbias == NULL)
        return ASSAY_OK;
    return GPU_CALL(m->run, "linear_bwd_bias", at, GPU_T("dy", dy), GPU_T("dbias", dbias),
                    GPU_I("accumulate", accumulates(m, bias)));
}

assay_status gpu_grouped_linear_bwd_weight(gpu_model *m, const char *at, gpu_value *dy, gpu_value *x,
                                           gpu_value *tokens_per_expert, gpu_param *weight)
{
    gpu_value *dweight = gpu_param_grad(m, weight);
    if (dweight == NULL)
        return ASSAY_OK;
    return GPU_CALL(m->run, "grouped_linear_bwd_weight", at, GPU_T("dy", dy), GPU_T("x", x),
                    GPU_T("tokens_per_expert", tokens_per_expert), GPU_T("dweight", dweight), GPU_FUSION(m),
                    GPU_I("accumulate", accumulates(m, weight)));
}
