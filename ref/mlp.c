/* SwiGLU MLP, column- then row-parallel: the dense MLP of a layer and the shared expert. */
#include "ref/layer.h"
#include "ref/parallel/tensor.h"

#include <stddef.h>

typedef struct mlp_names {
    char gather[64], fc1[64], activation[64], fc2[64], reduce[64];
} mlp_names;

static mlp_names names_of(const ref_mlp_desc *d)
{
    mlp_names n;
    snprintf(n.gather, sizeof n.gather, "%s.gather", d->instance);
    snprintf(n.fc1, sizeof n.fc1, "%s.linear_fc1", d->instance);
    snprintf(n.activation, sizeof n.activation, "%s.activation", d->instance);
    snprintf(n.fc2, sizeof n.fc2, "%s.linear_fc2", d->instance);
    snprintf(n.reduce, sizeof n.reduce, "%s.reduce", d->instance);
    return n;
}

assay_status ref_mlp_fwd(ref_pass *p, ref_mlp_acts *a, ref_tensor *y, const ref_tensor *x,
                         const ref_mlp_desc *d)
{
    const mlp_names n = names_of(d);
    const ref_mlp_params *w = d->params;
    ref_tensor partial;
    ASSAY_TRY(ref_column_parallel_input(p, &a->whole, x, d->sp, n.gather));
    ASSAY_TRY(ref_ranks_linear(p, &a->fc1, &a->whole, w->linear_fc1, w->linear_fc1_bias, false, n.fc1,
                               REF_STORE_LINEAR));
    ASSAY_TRY(ref_ranks_swiglu(p, &a->activated, &a->fc1, NULL, n.activation));
    ASSAY_TRY(ref_ranks_linear(p, &partial, &a->activated, w->linear_fc2, w->linear_fc2_bias, true, n.fc2,
                               REF_STORE_LINEAR));
    return ref_row_parallel_output(p, y, &partial, d->sp, n.reduce);
}

assay_status ref_mlp_bwd(ref_pass *p, ref_tensor *dx, const ref_mlp_acts *a, const ref_tensor *dy,
                         const ref_mlp_desc *d, const char *instance)
{
    const mlp_names n = names_of(d);
    const ref_mlp_params *w = d->params;
    ref_tensor dpartial, dactivated, dfc1, dwhole;
    ASSAY_TRY(ref_row_parallel_output_bwd(p, &dpartial, dy, d->sp, n.reduce));
    ASSAY_TRY(ref_ranks_linear_bwd(p, &dactivated, &dpartial, &a->activated, w->linear_fc2,
                                   w->linear_fc2_bias, NULL));
    ASSAY_TRY(ref_ranks_swiglu_bwd(p, &dfc1, NULL, &dactivated, &a->fc1, NULL));
    ASSAY_TRY(
        ref_ranks_linear_bwd(p, &dwhole, &dfc1, &a->whole, w->linear_fc1, w->linear_fc1_bias, instance));
    return ref_column_parallel_input_bwd(p, dx, &dwhole, d->sp, d->instance);
}

/* --- the dense MLP of a layer ---------------------------------------------------------------------------------- */

static ref_mlp_desc describe(const ref_pass *p)
{
    return (ref_mlp_desc){
        .params = &p->e->layer[p->layer].dense, .instance = "mlp", .sp = p->e->grid.p.sequence_parallel};
}

static assay_status dense_fwd(ref_pass *p, ref_layer_acts *a, ref_tensor *y, const ref_tensor *x)
{
    const ref_mlp_desc d = describe(p);
    return ref_mlp_fwd(p, &a->mlp, y, x, &d);
}

static assay_status dense_bwd(ref_pass *p, ref_tensor *dx, const ref_layer_acts *a, const ref_tensor *dy)
{
    const ref_mlp_desc d = describe(p);
    return ref_mlp_bwd(p, dx, &a->mlp, dy, &d, NULL);
}

static const ref_kind_param params[] = {
    {"mlp.linear_fc1.weight", offsetof(ref_layer, dense.linear_fc1), true},
    {"mlp.linear_fc1.bias", offsetof(ref_layer, dense.linear_fc1_bias), false},
    {"mlp.linear_fc2.weight", offsetof(ref_layer, dense.linear_fc2), true},
    {"mlp.linear_fc2.bias", offsetof(ref_layer, dense.linear_fc2_bias), false},
    {0},
};
const ref_layer_kind ref_dense = {"dense", params, dense_fwd, dense_bwd};
