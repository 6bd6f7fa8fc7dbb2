/* Products that add into the gradient of a weight. */
#include "gpu/weight_grads.h"

#include "gpu/beside.h"
#include "gpu/call.h"
#include "gpu/fault.h"
#include "gpu/parallel/tensor.h"

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

/* --- column-parallel linears -------------------------------------------------------------------------------- */
static assay_status parameter_grads(gpu_model *m, const gpu_column_linear *c, gpu_value *dy, gpu_value *whole)
{
    ASSAY_TRY(gpu_linear_bwd_bias(m, c->at, dy, c->bias));
    return gpu_linear_bwd_weight(m, c->at, dy, whole, c->weight);
}

static assay_status input_grad(gpu_model *m, const gpu_column_linear *c, gpu_value *dwhole, gpu_value *dy)
{
    return GPU_CALL(m->run, "linear_bwd_input", c->at, GPU_T("dy", dy),
                    GPU_T("weight", gpu_param_use(m, c->weight)), GPU_T("dx", dwhole));
}

static bool sums_beside(const gpu_model *m)
{
    return m->tp > 1 && m->options->async_tensor_model_parallel_allreduce && m->run->beside.stream != NULL &&
           !m->run->dry && !gpu_run_is_watched(m->run);
}

assay_status gpu_column_linear_bwd(gpu_model *m, const gpu_column_linear *c, gpu_value *dx, gpu_value *dwhole,
                                   gpu_value *dy, gpu_value *whole, const gpu_value *x)
{
    gpu_run *run = m->run;
    if (!sums_beside(m)) {
        ASSAY_TRY(parameter_grads(m, c, dy, whole));
        ASSAY_TRY(input_grad(m, c, dwhole, dy));
        return gpu_column_parallel_input_bwd(m, c->sp, c->reduce, c->gather, dx, dwhole, x);
    }
    ASSAY_TRY(input_grad(m, c, dwhole, dy));
    ASSAY_TRY(gpu_beside_begin(run, GPU_BESIDE_SUM, GPU_SWITCH_UNWAITED_INPUT_GRADIENT));
    ASSAY_TRY(gpu_column_parallel_input_bwd(m, c->sp, c->reduce, c->gather, dx, dwhole, x));
    ASSAY_TRY(gpu_beside_mark(run, GPU_BESIDE_SUM));
    ASSAY_TRY(gpu_beside_end(run));
    ASSAY_TRY(parameter_grads(m, c, dy, whole));
    return gpu_beside_join(run, GPU_BESIDE_SUM, GPU_SWITCH_UNWAITED_SUM);
}
