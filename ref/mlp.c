/* SwiGLU MLP, column- then row-parallel: the dense MLP of a layer and the shared expert. */
#include "ref/layer.h"
#include "ref/parallel/tensor.h"

typedef struct mlp_names {
    char gather[64], fc1[64], activation[64], fc2[64], reduce[64];
} mlp_names;

static mlp_names names_of(const ref_mlp_weights *w)
{
    mlp_names n;
    snprintf(n.gather, sizeof n.gather, "%s.gather", w->instance);
    snprintf(n.fc1, sizeof n.fc1, "%s.linear_fc1", w->instance);
    snprintf(n.activation, sizeof n.activation, "%s.activation", w->instance);
    snprintf(n.fc2, sizeof n.fc2, "%s.linear_fc2", w->instance);
    snprintf(n.reduce, sizeof n.reduce, "%s.reduce", w->instance);
    return n;
}

assay_status ref_mlp_fwd(ref_pass *p, ref_mlp_acts *a, ref_tensor *y, const ref_tensor *x,
                         const ref_mlp_weights *w)
{
    const mlp_names n = names_of(w);
    ref_tensor partial;
    ASSAY_TRY(ref_column_parallel_input(p, &a->whole, x, w->sp, n.gather));
    ASSAY_TRY(ref_ranks_linear(p, &a->fc1, &a->whole, w->fc1, w->fc1_bias, false, n.fc1, REF_STORE_ACT));
    ASSAY_TRY(ref_ranks_swiglu(p, &a->activated, &a->fc1, NULL, n.activation));
    ASSAY_TRY(ref_ranks_linear(p, &partial, &a->activated, w->fc2, w->fc2_bias, true, n.fc2, REF_STORE_ACT));
    return ref_row_parallel_output(p, y, &partial, w->sp, n.reduce);
}

assay_status ref_mlp_bwd(ref_pass *p, ref_tensor *dx, const ref_mlp_acts *a, const ref_tensor *dy,
                         const ref_mlp_weights *w, const char *instance)
{
    const mlp_names n = names_of(w);
    ref_tensor dpartial, dactivated, dfc1, dwhole;
    ASSAY_TRY(ref_row_parallel_output_bwd(p, &dpartial, dy, w->sp, n.reduce));
    ASSAY_TRY(ref_ranks_linear_bwd(p, &dactivated, &dpartial, &a->activated, w->fc2, w->fc2_bias, NULL));
    ASSAY_TRY(ref_ranks_swiglu_bwd(p, &dfc1, NULL, &dactivated, &a->fc1, NULL));
    ASSAY_TRY(ref_ranks_linear_bwd(p, &dwhole, &dfc1, &a->whole, w->fc1, w->fc1_bias, instance));
    return ref_column_parallel_input_bwd(p, dx, &dwhole, w->sp, w->instance);
}

/* --- the dense MLP of a layer ---------------------------------------------------------------------------------- */

static ref_mlp_weights dense_weights(const ref_pass *p)
{
    const ref_layer_params *w = &p->e->layer[p->layer];
    return (ref_mlp_weights){.fc1 = w->fc1,
                             .fc1_bias = w->fc1_bias,
                             .fc2 = w->fc2,
                             .fc2_bias = w->fc2_bias,
                             .instance = "mlp",
                             .sp = p->e->grid.p.sequence_parallel};
}

assay_status ref_dense_fwd(ref_pass *p, ref_layer_acts *a, ref_tensor *y, const ref_tensor *x)
{
    const ref_mlp_weights w = dense_weights(p);
    return ref_mlp_fwd(p, &a->mlp, y, x, &w);
}

assay_status ref_dense_bwd(ref_pass *p, ref_tensor *dx, const ref_layer_acts *a, const ref_tensor *dy)
{
    const ref_mlp_weights w = dense_weights(p);
    return ref_mlp_bwd(p, dx, &a->mlp, dy, &w, NULL);
}
