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

/* Whether the product is the gradient is asked once: each part has experts of its own. */
assay_status gpu_grouped_linear_bwd_weight_parts(gpu_model *m, const char *at, const gpu_expert_part *part,
                                                 int n, gpu_param *weight)
{
    gpu_value *dweight = gpu_param_grad(m, weight);
    if (dweight == NULL)
        return ASSAY_OK;
    const bool accumulate = accumulates(m, weight);
    for (int i = 0; i < n; i++) {
        gpu_value mine = *dweight;
        mine.t = gpu_tensor_rows(dweight->t, part[i].first, part[i].experts);
        ASSAY_TRY(GPU_CALL(m->run, "grouped_linear_bwd_weight", at, GPU_T("dy", part[i].dy),
                           GPU_T("x", part[i].x), GPU_T("tokens_per_expert", part[i].tokens_per_expert),
                           GPU_T("dweight", &mine), GPU_FUSION(m), GPU_I("accumulate", accumulate)));
    }
    if (!m->run->dry)
        gpu_value_touch(m->run, dweight);
    return ASSAY_OK;
}
