/* One decoder layer: norms and residuals around attention and MLP; the regions and descriptions that its parts share.
 * docs/OPS.md section 9. */
#include "gpu/layer.h"

#include "gpu/fault.h"
#include "gpu/parallel/tensor.h"
#include <string.h>

/* --- descriptions ------------------------------------------------------------------------------------------- */
gpu_dim gpu_dim_sequence(const gpu_model *m, bool piece)
{
    return piece ? gpu_dim_piece(m->S, m->s0, m->sl) : gpu_dim_whole(m->S);
}

gpu_dim gpu_dim_batch(const gpu_model *m)
{
    return gpu_dim_piece(m->B_global, m->row0, m->B);
}

gpu_dim gpu_dim_tp(const gpu_model *m, int64_t global, int blocks)
{
    return gpu_dim_split(global, blocks, m->tp, m->at.tp);
}

gpu_dim gpu_dim_hidden(const gpu_model *m)
{
    return gpu_dim_whole(m->config->hidden_size);
}

gpu_value gpu_tokens(const gpu_model *m, gpu_arena *arena, bool piece, gpu_dim last)
{
    const gpu_dim dim[3] = {gpu_dim_sequence(m, piece), gpu_dim_batch(m), last};
    return gpu_value_describe(arena, 3, dim, 0);
}

gpu_value gpu_token_rows(const gpu_model *m, gpu_arena *arena, bool piece)
{
    const gpu_dim dim[2] = {gpu_dim_sequence(m, piece), gpu_dim_batch(m)};
    return gpu_value_describe(arena, 2, dim, 0);
}

gpu_value gpu_grad_of(gpu_model *m, const gpu_value *forward)
{
    gpu_value v = gpu_value_describe(&m->scratch, 0, NULL, -1);
    gpu_value_grad(m->run, &v, forward);
    return v;
}

gpu_value gpu_local(gpu_arena *arena, int64_t n, int64_t last)
{
    const gpu_dim dim[2] = {gpu_dim_whole(n), gpu_dim_whole(last)};
    gpu_value v = gpu_value_describe(arena, last > 0 ? 2 : 1, dim, -1);
    v.kind = ASSAY_PIECE_LOCAL;
    return v;
}

gpu_value gpu_named(gpu_model *m, gpu_value description, const char *at, const char *slot)
{
    gpu_value_name(m->run, &description, at, slot);
    return description;
}

gpu_value gpu_partial(const gpu_model *m, gpu_value description, assay_group group)
{
    if (m->run->comm.group[group].size > 1) {
        description.kind = ASSAY_PIECE_PARTIAL;
        description.partial = group;
    }
    return description;
}

gpu_value *gpu_row_bias(gpu_model *m, gpu_param *bias)
{
    if (bias == NULL)
        return NULL;
    return m->at.tp == 0 || gpu_fault_switch(m->run, GPU_SWITCH_BIAS_EVERYWHERE) ? gpu_param_use(m, bias)
                                                                                 : NULL;
}

/* --- regions ------------------------------------------------------------------------------------------------ */
assay_status gpu_reduce_input_grad(gpu_model *m, const char *at_reduce, const char *at_gather, gpu_value *out,
                                   gpu_value *partial, const gpu_value *forward)
{
    *out = *partial;
    if (m->tp == 1)
        return ASSAY_OK;
    if (m->sp) {
        *out = gpu_grad_of(m, forward);
        return gpu_reduce_scatter_to_sequence_parallel_region(m, at_gather, out, partial);
    }
    *out = gpu_tokens(m, &m->scratch, false, partial->dim[2]);
    return gpu_all_reduce(m, at_reduce, ASSAY_GROUP_TP, out, partial);
}

assay_status gpu_gather_output_grad(gpu_model *m, const char *at, gpu_value *whole, gpu_value *dy,
                                    const gpu_value *forward)
{
    *whole = *dy;
    if (!m->sp)
        return ASSAY_OK;
    *whole = gpu_grad_of(m, forward);
    return gpu_gather_from_sequence_parallel_region(m, at, whole, dy);
}

assay_status gpu_reduce_output(gpu_model *m, gpu_arena *arena, const char *at, gpu_value *out,
                               gpu_value *partial)
{
    *out = *partial;
    if (m->tp == 1)
        return ASSAY_OK;
    *out = gpu_tokens(m, arena, m->sp, gpu_dim_hidden(m));
    if (m->sp)
        return gpu_reduce_scatter_to_sequence_parallel_region(m, at, out, partial);
    return gpu_all_reduce(m, at, ASSAY_GROUP_TP, out, partial);
}

/* --- the layer ---------------------------------------------------------------------------------------------- */
assay_status gpu_layer_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a)
{
    gpu_run *run = m->run;
    gpu_arena *keep = &mb->arena;
    const gpu_dim H = gpu_dim_hidden(m);
    const size_t mark = m->scratch.used;
    gpu_value branch;
    run->layer = l->number;
    ASSAY_TRY(gpu_attention_branch(m, mb, l, a, &branch));
    ASSAY_TRY(GPU_CALL(run, "add", "self_attention.residual", GPU_T("a", &a->input), GPU_T("b", &branch),
                       GPU_NEW("y", &a->hidden, gpu_tokens(m, keep, m->sp, H))));
    ASSAY_TRY(GPU_CALL(run, "rmsnorm_fwd", "pre_mlp_layernorm", GPU_T("x", &a->hidden),
                       GPU_T("gamma", gpu_param_use(m, l->pre_mlp_layernorm)), GPU_F("eps", m->eps),
                       GPU_NEW("y", &a->norm, gpu_tokens(m, keep, m->sp, H)),
                       GPU_NEW("rstd", &a->rstd, gpu_token_rows(m, keep, m->sp))));
    if (l->moe)
        ASSAY_TRY(gpu_moe_fwd(m, mb, l, a, &branch));
    else
        ASSAY_TRY(gpu_mlp_fwd(m, mb, l, a, &branch));
    gpu_value_name(run, &a->output, "mlp.residual", "y");
    ASSAY_TRY(GPU_CALL(run, "add", "mlp.residual", GPU_T("a", &a->hidden), GPU_T("b", &branch),
                       GPU_T("y", &a->output)));
    run->layer = -1;
    gpu_arena_reset(&m->scratch, mark);
    return ASSAY_OK;
}

assay_status gpu_layer_bwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a,
                           gpu_value *dy, gpu_value *dx)
{
    gpu_run *run = m->run;
    gpu_arena *temp = &m->scratch;
    const gpu_dim H = gpu_dim_hidden(m);
    const size_t mark = temp->used;
    gpu_value dnorm, dcontribution, dhidden, dattention;
    (void)mb;
    run->layer = l->number;
    if (l->moe)
        ASSAY_TRY(gpu_moe_bwd(m, l, a, dy, &dnorm));
    else
        ASSAY_TRY(gpu_mlp_bwd(m, l, a, dy, &dnorm));
    ASSAY_TRY(GPU_CALL(run, "rmsnorm_bwd", "pre_mlp_layernorm", GPU_T("dy", &dnorm), GPU_T("x", &a->hidden),
                       GPU_T("gamma", gpu_param_use(m, l->pre_mlp_layernorm)), GPU_T("rstd", &a->rstd),
                       GPU_T("dgamma", gpu_param_grad(m, l->pre_mlp_layernorm)), GPU_F("eps", m->eps),
                       GPU_NEW("dx", &dcontribution, gpu_tokens(m, temp, m->sp, H))));
    ASSAY_TRY(GPU_CALL(run, "add", "mlp.residual_grad", GPU_T("a", dy), GPU_T("b", &dcontribution),
                       GPU_NEW("y", &dhidden, gpu_grad_of(m, &a->hidden))));
    ASSAY_TRY(gpu_attention_branch_bwd(m, l, a, &dhidden, &dnorm));
    ASSAY_TRY(GPU_CALL(run, "rmsnorm_bwd", "input_layernorm", GPU_T("dy", &dnorm), GPU_T("x", &a->input),
                       GPU_T("gamma", gpu_param_use(m, l->input_layernorm)),
                       GPU_T("rstd", &a->attention.rstd),
                       GPU_T("dgamma", gpu_param_grad(m, l->input_layernorm)), GPU_F("eps", m->eps),
                       GPU_NEW("dx", &dattention, gpu_tokens(m, temp, m->sp, H))));
    gpu_value_grad(run, dx, &a->input);
    ASSAY_TRY(GPU_CALL(run, "add", "self_attention.residual_grad", GPU_T("a", &dhidden),
                       GPU_T("b", &dattention), GPU_T("y", dx)));
    run->layer = -1;
    gpu_arena_reset(temp, mark);
    return ASSAY_OK;
}
