/* One decoder layer: dense MLP and residuals; what the layer's parts share.  docs/OPS.md section 9. */
#include "gpu/layer.h"

#include "gpu/parallel/tensor.h"
#include <string.h>

/* --- values with the model's dimensions --------------------------------------------------------------------- */
gpu_dim gpu_dim_sequence(const gpu_model *m, bool piece)
{
    return piece ? gpu_dim_piece(m->S, m->s0, m->sl) : gpu_dim_whole(m->S);
}

gpu_dim gpu_dim_batch(const gpu_model *m)
{
    return gpu_dim_piece(m->B_global, m->row0, m->B);
}

assay_status gpu_token_value(gpu_model *m, gpu_arena *arena, gpu_value *v, const char *at, const char *slot,
                             bool piece, gpu_dim last, assay_dtype dtype)
{
    memset(v, 0, sizeof *v);
    v->ndim = 3;
    v->dim[0] = gpu_dim_sequence(m, piece);
    v->dim[1] = gpu_dim_batch(m);
    v->dim[2] = last;
    gpu_value_name(m->run, v, at, slot);
    return gpu_value_alloc(arena, v, dtype, 0);
}

assay_status gpu_token_vector(gpu_model *m, gpu_arena *arena, gpu_value *v, const char *at, const char *slot,
                              bool piece, assay_dtype dtype)
{
    memset(v, 0, sizeof *v);
    v->ndim = 2;
    v->dim[0] = gpu_dim_sequence(m, piece);
    v->dim[1] = gpu_dim_batch(m);
    gpu_value_name(m->run, v, at, slot);
    return gpu_value_alloc(arena, v, dtype, 0);
}

assay_status gpu_grad_value(gpu_model *m, gpu_arena *arena, gpu_value *v, const gpu_value *forward,
                            assay_dtype dtype)
{
    memset(v, 0, sizeof *v);
    gpu_value_grad(m->run, v, forward);
    v->t = gpu_tensor_make(NULL, dtype, forward->t.ndim, forward->t.shape);
    return gpu_arena_take(arena, gpu_tensor_bytes(v->t), &v->t.data);
}

void gpu_value_partial(gpu_model *m, gpu_value *v, assay_group group)
{
    if (m->run->comm.group[group].size > 1) {
        v->kind = ASSAY_PIECE_PARTIAL;
        v->partial = group;
    }
}

gpu_dim gpu_dim_tp(const gpu_model *m, int64_t global, int blocks)
{
    return gpu_dim_split(global, blocks, m->tp, m->at.tp);
}

bool gpu_fault_here(const gpu_model *m, gpu_fault fault, int64_t layer)
{
    return m->fault == fault && layer == 0;
}

bool gpu_is_first_moe(const gpu_model *m, const gpu_layer *l)
{
    for (int64_t n = 0; n < l->number; n++)
        if (m->config->mlp[n] == ASSAY_MLP_MOE)
            return false;
    return true;
}

assay_status gpu_reduce_input_grad(gpu_model *m, const char *at_reduce, const char *at_gather, gpu_value *out,
                                   gpu_value *partial, const gpu_value *forward)
{
    *out = *partial;
    if (m->tp == 1)
        return ASSAY_OK;
    if (m->sp) {
        ASSAY_TRY(gpu_grad_value(m, &m->scratch, out, forward, m->act));
        return gpu_reduce_scatter_to_sequence_parallel_region(m, at_gather, out, partial, false);
    }
    ASSAY_TRY(gpu_token_value(m, &m->scratch, out, at_reduce, "recv", false, partial->dim[2], m->act));
    return gpu_all_reduce(m, at_reduce, ASSAY_GROUP_TP, out, partial, false);
}

assay_status gpu_gather_output_grad(gpu_model *m, const char *at, gpu_value *whole, gpu_value *dy,
                                    const gpu_value *forward)
{
    *whole = *dy;
    if (!m->sp)
        return ASSAY_OK;
    ASSAY_TRY(gpu_grad_value(m, &m->scratch, whole, forward, m->act));
    return gpu_gather_from_sequence_parallel_region(m, at, whole, dy);
}

/* --- dense MLP ---------------------------------------------------------------------------------------------- */
static assay_status dense_forward(gpu_model *m, gpu_slot_state *slot, gpu_layer *l, gpu_layer_saved *saved,
                                  gpu_value *branch)
{
    gpu_run *run = m->run;
    gpu_dense_saved *d = &saved->dense;
    gpu_arena *keep = &slot->arena, *temp = &m->scratch;
    const int64_t H = m->config->hidden_size, F = m->config->ffn_hidden_size;
    gpu_value *x = &saved->norm;
    if (m->sp) {
        x = &d->gathered;
        ASSAY_TRY(gpu_token_value(m, keep, x, "mlp.gather", "recv", false, gpu_dim_whole(H), m->act));
        ASSAY_TRY(gpu_gather_from_sequence_parallel_region(m, "mlp.gather", x, &saved->norm));
    }
    ASSAY_TRY(
        gpu_token_value(m, keep, &d->fc1, "mlp.linear_fc1", "y", false, gpu_dim_tp(m, 2 * F, 2), m->act));
    ASSAY_TRY(gpu_run_linear_fwd(run, "mlp.linear_fc1", &d->fc1, x, gpu_param_use(m, l->linear_fc1),
                                 l->linear_fc1_bias ? gpu_param_use(m, l->linear_fc1_bias) : NULL));
    ASSAY_TRY(gpu_token_value(m, keep, &d->act, "mlp.activation", "y", false, gpu_dim_tp(m, F, 1), m->act));
    ASSAY_TRY(gpu_run_swiglu_fwd(run, "mlp.activation", &d->act, &d->fc1, NULL));
    ASSAY_TRY(gpu_token_value(m, temp, &d->fc2, "mlp.linear_fc2", "y", false, gpu_dim_whole(H), m->act));
    gpu_value_partial(m, &d->fc2, ASSAY_GROUP_TP);
    const bool bias = l->linear_fc2_bias && m->at.tp == 0;
    ASSAY_TRY(gpu_run_linear_fwd(run, "mlp.linear_fc2", &d->fc2, &d->act, gpu_param_use(m, l->linear_fc2),
                                 bias ? gpu_param_use(m, l->linear_fc2_bias) : NULL));
    *branch = d->fc2;
    if (m->tp == 1)
        return ASSAY_OK;
    ASSAY_TRY(gpu_token_value(m, temp, branch, "mlp.reduce", "recv", m->sp, gpu_dim_whole(H), m->act));
    if (m->sp)
        return gpu_reduce_scatter_to_sequence_parallel_region(m, "mlp.reduce", branch, &d->fc2, false);
    return gpu_all_reduce(m, "mlp.reduce", ASSAY_GROUP_TP, branch, &d->fc2, false);
}

static assay_status dense_backward(gpu_model *m, gpu_layer *l, gpu_layer_saved *saved, gpu_value *dy,
                                   gpu_value *dnorm)
{
    gpu_run *run = m->run;
    gpu_dense_saved *d = &saved->dense;
    gpu_arena *temp = &m->scratch;
    gpu_value dfc2, dact, dfc1, dx;
    ASSAY_TRY(gpu_gather_output_grad(m, "mlp.reduce", &dfc2, dy, &d->fc2));
    if (l->linear_fc2_bias)
        ASSAY_TRY(
            gpu_run_linear_bwd_bias(run, "mlp.linear_fc2", gpu_param_grad(m, l->linear_fc2_bias), &dfc2));
    ASSAY_TRY(gpu_run_linear_bwd_weight(run, "mlp.linear_fc2", gpu_param_grad(m, l->linear_fc2), &dfc2,
                                        &d->act, false));
    ASSAY_TRY(gpu_grad_value(m, temp, &dact, &d->act, m->act));
    ASSAY_TRY(gpu_run_linear_bwd_input(run, "mlp.linear_fc2", &dact, &dfc2, gpu_param_use(m, l->linear_fc2)));
    ASSAY_TRY(gpu_grad_value(m, temp, &dfc1, &d->fc1, m->act));
    ASSAY_TRY(gpu_run_swiglu_bwd(run, "mlp.activation", &dfc1, NULL, &dact, &d->fc1, NULL));
    gpu_value *x = m->sp ? &d->gathered : &saved->norm;
    if (l->linear_fc1_bias)
        ASSAY_TRY(
            gpu_run_linear_bwd_bias(run, "mlp.linear_fc1", gpu_param_grad(m, l->linear_fc1_bias), &dfc1));
    ASSAY_TRY(
        gpu_run_linear_bwd_weight(run, "mlp.linear_fc1", gpu_param_grad(m, l->linear_fc1), &dfc1, x, false));
    ASSAY_TRY(gpu_grad_value(m, temp, &dx, x, m->act));
    gpu_value_partial(m, &dx, ASSAY_GROUP_TP);
    ASSAY_TRY(gpu_run_linear_bwd_input(run, "mlp.linear_fc1", &dx, &dfc1, gpu_param_use(m, l->linear_fc1)));
    return gpu_reduce_input_grad(m, "mlp.reduce_grad", "mlp.gather", dnorm, &dx, &saved->norm);
}

/* --- the layer ---------------------------------------------------------------------------------------------- */
assay_status gpu_layer_forward(gpu_model *m, gpu_slot_state *slot, gpu_layer *l, gpu_layer_saved *saved)
{
    gpu_run *run = m->run;
    const assay_model_config *c = m->config;
    const int64_t H = c->hidden_size;
    const size_t mark = m->scratch.used;
    gpu_value branch;
    run->layer = l->number;
    ASSAY_TRY(gpu_attention_forward(m, slot, l, saved, &branch));
    ASSAY_TRY(gpu_token_value(m, &slot->arena, &saved->hidden, "self_attention.residual", "y", m->sp,
                              gpu_dim_whole(H), m->act));
    ASSAY_TRY(gpu_run_add(run, "self_attention.residual", &saved->hidden, &saved->input, &branch));
    ASSAY_TRY(gpu_token_value(m, &slot->arena, &saved->norm, "pre_mlp_layernorm", "y", m->sp,
                              gpu_dim_whole(H), m->act));
    ASSAY_TRY(gpu_token_vector(m, &slot->arena, &saved->rstd, "pre_mlp_layernorm", "rstd", m->sp, ASSAY_F32));
    ASSAY_TRY(gpu_run_rmsnorm_fwd(run, "pre_mlp_layernorm", &saved->norm, &saved->rstd, &saved->hidden,
                                  gpu_param_use(m, l->pre_mlp_layernorm), c->layernorm_epsilon));
    if (l->moe)
        ASSAY_TRY(gpu_moe_forward(m, slot, l, saved, &branch));
    else
        ASSAY_TRY(dense_forward(m, slot, l, saved, &branch));
    ASSAY_TRY(gpu_token_value(m, &slot->arena, &saved->output, "mlp.residual", "y", m->sp, gpu_dim_whole(H),
                              m->act));
    ASSAY_TRY(gpu_run_add(run, "mlp.residual", &saved->output, &saved->hidden, &branch));
    run->layer = -1;
    gpu_arena_reset(&m->scratch, mark);
    return ASSAY_OK;
}

assay_status gpu_layer_backward(gpu_model *m, gpu_slot_state *slot, gpu_layer *l, gpu_layer_saved *saved,
                                gpu_value *dy, gpu_value *dx)
{
    gpu_run *run = m->run;
    const double eps = m->config->layernorm_epsilon;
    const gpu_dim H = gpu_dim_whole(m->config->hidden_size);
    const size_t mark = m->scratch.used;
    gpu_value dnorm, dcontribution, dhidden, dattention;
    run->layer = l->number;
    if (l->moe)
        ASSAY_TRY(gpu_moe_backward(m, slot, l, saved, dy, &dnorm));
    else
        ASSAY_TRY(dense_backward(m, l, saved, dy, &dnorm));
    ASSAY_TRY(gpu_token_value(m, &m->scratch, &dcontribution, "pre_mlp_layernorm", "dx", m->sp, H, m->act));
    ASSAY_TRY(gpu_run_rmsnorm_bwd(run, "pre_mlp_layernorm", &dcontribution,
                                  gpu_param_grad(m, l->pre_mlp_layernorm), &dnorm, &saved->hidden,
                                  gpu_param_use(m, l->pre_mlp_layernorm), &saved->rstd, eps, false));
    ASSAY_TRY(gpu_grad_value(m, &m->scratch, &dhidden, &saved->hidden, m->act));
    ASSAY_TRY(gpu_run_add(run, "mlp.residual_grad", &dhidden, dy, &dcontribution));
    ASSAY_TRY(gpu_attention_backward(m, l, saved, &dhidden, &dnorm));
    ASSAY_TRY(gpu_token_value(m, &m->scratch, &dattention, "input_layernorm", "dx", m->sp, H, m->act));
    ASSAY_TRY(gpu_run_rmsnorm_bwd(run, "input_layernorm", &dattention, gpu_param_grad(m, l->input_layernorm),
                                  &dnorm, &saved->input, gpu_param_use(m, l->input_layernorm),
                                  &saved->attention.rstd, eps,
                                  gpu_fault_here(m, GPU_FAULT_FLIPPED_SIGN, l->number)));
    gpu_value_grad(run, dx, &saved->input);
    ASSAY_TRY(gpu_run_add(run, "self_attention.residual_grad", dx, &dhidden, &dattention));
    run->layer = -1;
    gpu_arena_reset(&m->scratch, mark);
    return ASSAY_OK;
}
