/* SwiGLU MLP, column- then row-parallel: the dense MLP of a layer and the shared expert.  docs/OPS.md section 9. */
#include "gpu/layer.h"
#include "gpu/parallel/linear.h"
#include "gpu/parallel/tensor.h"
#include <stddef.h>

static gpu_column_linear linear_fc1(const gpu_mlp_desc *d)
{
    return (gpu_column_linear){.at = d->linear_fc1,
                               .reduce = d->reduce_grad,
                               .gather = d->gather,
                               .weight = d->params->linear_fc1,
                               .bias = d->params->linear_fc1_bias,
                               .sp = d->sp};
}

static gpu_row_linear linear_fc2(const gpu_mlp_desc *d)
{
    return (gpu_row_linear){.at = d->linear_fc2,
                            .reduce = d->reduce,
                            .weight = d->params->linear_fc2,
                            .bias = d->params->linear_fc2_bias,
                            .sp = d->sp};
}

assay_status gpu_mlp_fwd(gpu_model *m, gpu_microbatch_state *mb, const gpu_mlp_desc *d, gpu_mlp_acts *a,
                         gpu_arena *arena, gpu_value *y, gpu_value *x)
{
    gpu_run *run = m->run;
    const gpu_column_linear columns = linear_fc1(d);
    const gpu_row_linear rows = linear_fc2(d);
    gpu_arena *keep = gpu_module_arena(m, mb, d->module),
              *of_input = gpu_module_arena(m, mb, d->module | ASSAY_RECOMPUTE_LAYERNORM);
    a->fc1 = gpu_tokens(m, keep, false, gpu_dim_tp(m, 2 * d->width, 2));
    ASSAY_TRY(gpu_column_linear_fwd(m, of_input, &columns, &a->fc1, &a->whole, x));
    ASSAY_TRY(GPU_CALL(run, "swiglu_fwd", d->activation, GPU_T("x", &a->fc1),
                       GPU_NEW("y", &a->act, gpu_tokens(m, keep, false, gpu_dim_tp(m, d->width, 1)))));
    a->fc2 = gpu_partial(m, gpu_tokens(m, arena, false, gpu_dim_hidden(m)), ASSAY_GROUP_TP);
    return gpu_row_linear_fwd(m, arena, &rows, y, &a->fc2, &a->act);
}

assay_status gpu_mlp_input_again(gpu_model *m, gpu_microbatch_state *mb, const gpu_mlp_desc *d,
                                 gpu_mlp_acts *a, gpu_value *x)
{
    return gpu_column_parallel_input(m, &mb->arena, d->sp, d->gather, &a->whole, x);
}

assay_status gpu_mlp_bwd(gpu_model *m, const gpu_mlp_desc *d, gpu_mlp_acts *a, gpu_value *dx, gpu_value *dy,
                         const gpu_value *x)
{
    gpu_run *run = m->run;
    const gpu_column_linear columns = linear_fc1(d);
    const gpu_row_linear rows = linear_fc2(d);
    gpu_value dact = gpu_grad_of(m, &a->act), dfc1, dwhole;
    ASSAY_TRY(gpu_row_linear_bwd(m, &rows, &dact, dy, &a->act, &a->fc2));
    ASSAY_TRY(GPU_CALL(run, "swiglu_bwd", d->activation, GPU_T("dy", &dact), GPU_T("x", &a->fc1),
                       GPU_NEW("dx", &dfc1, gpu_grad_of(m, &a->fc1))));
    dwhole =
        d->only_branch ? gpu_grad_of(m, &a->whole) : gpu_tokens(m, &m->scratch, false, gpu_dim_hidden(m));
    dwhole = gpu_partial(m, dwhole, ASSAY_GROUP_TP);
    return gpu_column_linear_bwd(m, &columns, dx, &dwhole, &dfc1, &a->whole, d->only_branch ? x : NULL);
}

/* --- the dense MLP of a layer ------------------------------------------------------------------------------- */
static gpu_mlp_desc describe(const gpu_model *m, const gpu_layer *l)
{
    return (gpu_mlp_desc){.params = &l->dense,
                          .width = m->config->ffn_hidden_size,
                          .sp = m->sp,
                          .only_branch = true,
                          .gather = "mlp.gather",
                          .linear_fc1 = "mlp.linear_fc1",
                          .activation = "mlp.activation",
                          .linear_fc2 = "mlp.linear_fc2",
                          .reduce = "mlp.reduce",
                          .reduce_grad = "mlp.reduce_grad"};
}

static assay_status dense_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a,
                              gpu_value *y, gpu_value *x)
{
    const gpu_mlp_desc d = describe(m, l);
    return gpu_mlp_fwd(m, mb, &d, &a->mlp, &m->scratch, y, x);
}

static assay_status dense_bwd(gpu_model *m, gpu_layer *l, gpu_layer_acts *a, gpu_value *dx, gpu_value *dy)
{
    const gpu_mlp_desc d = describe(m, l);
    return gpu_mlp_bwd(m, &d, &a->mlp, dx, dy, &a->norm);
}

static assay_status dense_again(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a)
{
    const gpu_mlp_desc d = describe(m, l);
    return m->recompute.modules & ASSAY_RECOMPUTE_LAYERNORM
               ? gpu_mlp_input_again(m, mb, &d, &a->mlp, &a->norm)
               : ASSAY_OK;
}

static const gpu_kind_param params[] = {
    {"mlp.linear_fc1.weight", offsetof(gpu_layer, dense.linear_fc1), true},
    {"mlp.linear_fc1.bias", offsetof(gpu_layer, dense.linear_fc1_bias), false},
    {"mlp.linear_fc2.weight", offsetof(gpu_layer, dense.linear_fc2), true},
    {"mlp.linear_fc2.bias", offsetof(gpu_layer, dense.linear_fc2_bias), false},
    {0},
};
const gpu_layer_kind gpu_dense = {"dense", params, dense_fwd, dense_bwd, dense_again};
