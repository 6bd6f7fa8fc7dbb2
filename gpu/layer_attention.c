/* Self attention of a layer: column-parallel qkv, heads, row-parallel projection.  docs/OPS.md section 9. */
#include "gpu/layer.h"
#include "gpu/parallel/tensor.h"
#include <math.h>
#include <string.h>

/* [S,B,heads,D] with this rank's heads; the operations see [T,heads,D]. */
static assay_status heads_value(gpu_model *m, gpu_arena *arena, gpu_value *v, const char *at,
                                const char *slot, int64_t heads, int64_t d, assay_dtype dtype)
{
    memset(v, 0, sizeof *v);
    v->ndim = d > 0 ? 4 : 3;
    v->dim[0] = gpu_dim_sequence(m, false);
    v->dim[1] = gpu_dim_batch(m);
    v->dim[2] = gpu_dim_split(heads, 1, m->tp, m->at.tp);
    v->dim[3] = gpu_dim_whole(d);
    gpu_value_name(m->run, v, at, slot);
    return gpu_value_alloc(arena, v, dtype, 0);
}

/* --- self attention ----------------------------------------------------------------------------------------- */

static gpu_attention_desc attention_desc(const gpu_model *m, const gpu_layer *l)
{
    const assay_model_config *c = m->config;
    return (gpu_attention_desc){.batch = m->B,
                                .seq_q = m->S,
                                .seq_k = m->S,
                                .heads = m->heads,
                                .groups = m->groups,
                                .head_dim = c->kv_channels,
                                .head_dim_v = c->kv_channels,
                                .scale = (float)(1.0 / sqrt((double)c->kv_channels)),
                                .window = l->window};
}

/* qkv -> q, k, v after norm and rotation */
static assay_status heads_forward(gpu_model *m, gpu_slot_state *slot, gpu_layer *l, gpu_layer_saved *saved,
                                  gpu_value *qkv)
{
    gpu_run *run = m->run;
    const assay_model_config *c = m->config;
    gpu_attention_saved *a = &saved->attention;
    gpu_arena *keep = &slot->arena, *temp = &m->scratch;
    const int64_t D = c->kv_channels, A = c->num_attention_heads, G = c->num_query_groups;
    gpu_arena *raw = c->qk_layernorm ? keep : temp;
    ASSAY_TRY(heads_value(m, raw, &a->q_raw, "self_attention.qkv_split", "q", A, D, m->act));
    ASSAY_TRY(heads_value(m, raw, &a->k_raw, "self_attention.qkv_split", "k", G, D, m->act));
    ASSAY_TRY(heads_value(m, keep, &a->v, "self_attention.qkv_split", "v", G, D, m->act));
    ASSAY_TRY(gpu_run_qkv_split_fwd(run, "self_attention.qkv_split", &a->q_raw, &a->k_raw, &a->v, qkv));
    gpu_value q_norm, k_norm, *q = &a->q_raw, *k = &a->k_raw;
    if (c->qk_layernorm) {
        ASSAY_TRY(heads_value(m, temp, &q_norm, "self_attention.q_layernorm", "y", A, D, m->act));
        ASSAY_TRY(heads_value(m, temp, &k_norm, "self_attention.k_layernorm", "y", G, D, m->act));
        ASSAY_TRY(heads_value(m, keep, &a->q_rstd, "self_attention.q_layernorm", "rstd", A, 0, ASSAY_F32));
        ASSAY_TRY(heads_value(m, keep, &a->k_rstd, "self_attention.k_layernorm", "rstd", G, 0, ASSAY_F32));
        ASSAY_TRY(gpu_run_rmsnorm_fwd(run, "self_attention.q_layernorm", &q_norm, &a->q_rstd, q,
                                      gpu_param_use(m, l->q_layernorm), c->layernorm_epsilon));
        ASSAY_TRY(gpu_run_rmsnorm_fwd(run, "self_attention.k_layernorm", &k_norm, &a->k_rstd, k,
                                      gpu_param_use(m, l->k_layernorm), c->layernorm_epsilon));
        q = &q_norm;
        k = &k_norm;
    }
    ASSAY_TRY(heads_value(m, keep, &a->q, "self_attention.rope_q", "y", A, D, m->act));
    ASSAY_TRY(heads_value(m, keep, &a->k, "self_attention.rope_k", "y", G, D, m->act));
    ASSAY_TRY(gpu_run_rope(run, "self_attention.rope_q", &a->q, q, &m->cos_table, &m->sin_table, &m->position,
                           false));
    return gpu_run_rope(run, "self_attention.rope_k", &a->k, k, &m->cos_table, &m->sin_table, &m->position,
                        false);
}

assay_status gpu_attention_forward(gpu_model *m, gpu_slot_state *slot, gpu_layer *l, gpu_layer_saved *saved,
                                   gpu_value *branch)
{
    gpu_run *run = m->run;
    const assay_model_config *c = m->config;
    gpu_attention_saved *a = &saved->attention;
    gpu_arena *keep = &slot->arena, *temp = &m->scratch;
    const int64_t H = c->hidden_size, D = c->kv_channels, A = c->num_attention_heads, G = c->num_query_groups;
    ASSAY_TRY(gpu_token_value(m, keep, &a->norm, "input_layernorm", "y", m->sp, gpu_dim_whole(H), m->act));
    ASSAY_TRY(gpu_token_vector(m, keep, &a->rstd, "input_layernorm", "rstd", m->sp, ASSAY_F32));
    ASSAY_TRY(gpu_run_rmsnorm_fwd(run, "input_layernorm", &a->norm, &a->rstd, &saved->input,
                                  gpu_param_use(m, l->input_layernorm), c->layernorm_epsilon));
    gpu_value *x = &a->norm;
    if (m->sp) {
        x = &a->gathered;
        ASSAY_TRY(
            gpu_token_value(m, keep, x, "self_attention.gather", "recv", false, gpu_dim_whole(H), m->act));
        ASSAY_TRY(gpu_gather_from_sequence_parallel_region(m, "self_attention.gather", x, &a->norm));
    }
    gpu_value qkv;
    ASSAY_TRY(gpu_token_value(m, temp, &qkv, "self_attention.linear_qkv", "y", false,
                              gpu_dim_tp(m, (A + 2 * G) * D, 1), m->act));
    ASSAY_TRY(gpu_run_linear_fwd(run, "self_attention.linear_qkv", &qkv, x, gpu_param_use(m, l->linear_qkv),
                                 l->linear_qkv_bias ? gpu_param_use(m, l->linear_qkv_bias) : NULL));
    ASSAY_TRY(heads_forward(m, slot, l, saved, &qkv));
    ASSAY_TRY(gpu_token_value(m, keep, &a->o, "self_attention.core_attention", "o", false,
                              gpu_dim_tp(m, A * D, 1), m->act));
    ASSAY_TRY(heads_value(m, keep, &a->lse, "self_attention.core_attention", "lse", A, 0, ASSAY_F32));
    ASSAY_TRY(gpu_run_attention_fwd(run, "self_attention.core_attention", &a->o, &a->lse, &a->q, &a->k, &a->v,
                                    &m->position, attention_desc(m, l)));
    ASSAY_TRY(gpu_token_value(m, temp, &saved->proj, "self_attention.linear_proj", "y", false,
                              gpu_dim_whole(H), m->act));
    gpu_value_partial(m, &saved->proj, ASSAY_GROUP_TP);
    const bool bias = l->linear_proj_bias && m->at.tp == 0;
    ASSAY_TRY(gpu_run_linear_fwd(run, "self_attention.linear_proj", &saved->proj, &a->o,
                                 gpu_param_use(m, l->linear_proj),
                                 bias ? gpu_param_use(m, l->linear_proj_bias) : NULL));
    *branch = saved->proj;
    const bool skip = gpu_fault_here(m, GPU_FAULT_SKIP_ALL_REDUCE, l->number);
    if (m->tp == 1)
        return ASSAY_OK;
    ASSAY_TRY(
        gpu_token_value(m, temp, branch, "self_attention.reduce", "recv", m->sp, gpu_dim_whole(H), m->act));
    if (m->sp)
        return gpu_reduce_scatter_to_sequence_parallel_region(m, "self_attention.reduce", branch,
                                                              &saved->proj, skip);
    return gpu_all_reduce(m, "self_attention.reduce", ASSAY_GROUP_TP, branch, &saved->proj, skip);
}

/* dq, dk, dv (after rotation) -> dqkv */
static assay_status heads_backward(gpu_model *m, gpu_layer *l, gpu_layer_saved *saved, gpu_value *dqkv,
                                   gpu_value *dq, gpu_value *dk, gpu_value *dv)
{
    gpu_run *run = m->run;
    const assay_model_config *c = m->config;
    gpu_attention_saved *a = &saved->attention;
    gpu_arena *temp = &m->scratch;
    gpu_value dq_raw, dk_raw, dq_norm, dk_norm;
    ASSAY_TRY(gpu_grad_value(m, temp, &dq_raw, &a->q_raw, m->act));
    ASSAY_TRY(gpu_grad_value(m, temp, &dk_raw, &a->k_raw, m->act));
    gpu_value *q_to = &dq_raw, *k_to = &dk_raw;
    if (c->qk_layernorm) {
        ASSAY_TRY(heads_value(m, temp, &dq_norm, "self_attention.q_layernorm", "y.grad",
                              c->num_attention_heads, c->kv_channels, m->act));
        ASSAY_TRY(heads_value(m, temp, &dk_norm, "self_attention.k_layernorm", "y.grad", c->num_query_groups,
                              c->kv_channels, m->act));
        q_to = &dq_norm;
        k_to = &dk_norm;
    }
    ASSAY_TRY(gpu_run_rope(run, "self_attention.rope_q", q_to, dq, &m->cos_table, &m->sin_table, &m->position,
                           true));
    ASSAY_TRY(gpu_run_rope(run, "self_attention.rope_k", k_to, dk, &m->cos_table, &m->sin_table, &m->position,
                           true));
    if (c->qk_layernorm) {
        ASSAY_TRY(gpu_run_rmsnorm_bwd(
            run, "self_attention.q_layernorm", &dq_raw, gpu_param_grad(m, l->q_layernorm), &dq_norm,
            &a->q_raw, gpu_param_use(m, l->q_layernorm), &a->q_rstd, c->layernorm_epsilon, false));
        ASSAY_TRY(gpu_run_rmsnorm_bwd(
            run, "self_attention.k_layernorm", &dk_raw, gpu_param_grad(m, l->k_layernorm), &dk_norm,
            &a->k_raw, gpu_param_use(m, l->k_layernorm), &a->k_rstd, c->layernorm_epsilon, false));
    }
    return gpu_run_qkv_split_bwd(run, "self_attention.qkv_split", dqkv, &dq_raw, &dk_raw, dv);
}

assay_status gpu_attention_backward(gpu_model *m, gpu_layer *l, gpu_layer_saved *saved, gpu_value *dy,
                                    gpu_value *dinput_norm)
{
    gpu_run *run = m->run;
    const assay_model_config *c = m->config;
    gpu_attention_saved *a = &saved->attention;
    gpu_arena *temp = &m->scratch;
    const int64_t D = c->kv_channels, A = c->num_attention_heads, G = c->num_query_groups;
    gpu_value dproj, d_o, dq, dk, dv, dqkv, dx;
    ASSAY_TRY(gpu_gather_output_grad(m, "self_attention.reduce", &dproj, dy, &saved->proj));
    if (l->linear_proj_bias)
        ASSAY_TRY(gpu_run_linear_bwd_bias(run, "self_attention.linear_proj",
                                          gpu_param_grad(m, l->linear_proj_bias), &dproj));
    ASSAY_TRY(gpu_run_linear_bwd_weight(run, "self_attention.linear_proj", gpu_param_grad(m, l->linear_proj),
                                        &dproj, &a->o, false));
    ASSAY_TRY(gpu_grad_value(m, temp, &d_o, &a->o, m->act));
    ASSAY_TRY(gpu_run_linear_bwd_input(run, "self_attention.linear_proj", &d_o, &dproj,
                                       gpu_param_use(m, l->linear_proj)));
    ASSAY_TRY(gpu_grad_value(m, temp, &dq, &a->q, m->act));
    ASSAY_TRY(gpu_grad_value(m, temp, &dk, &a->k, m->act));
    ASSAY_TRY(gpu_grad_value(m, temp, &dv, &a->v, m->act));
    ASSAY_TRY(gpu_run_attention_bwd(run, "self_attention.core_attention", &dq, &dk, &dv, &d_o, &a->q, &a->k,
                                    &a->v, &a->o, &a->lse, &m->position, attention_desc(m, l)));
    ASSAY_TRY(gpu_token_value(m, temp, &dqkv, "self_attention.linear_qkv", "y.grad", false,
                              gpu_dim_tp(m, (A + 2 * G) * D, 1), m->act));
    ASSAY_TRY(heads_backward(m, l, saved, &dqkv, &dq, &dk, &dv));
    gpu_value *x = m->sp ? &a->gathered : &a->norm;
    if (l->linear_qkv_bias)
        ASSAY_TRY(gpu_run_linear_bwd_bias(run, "self_attention.linear_qkv",
                                          gpu_param_grad(m, l->linear_qkv_bias), &dqkv));
    const bool repeat = gpu_fault_here(m, GPU_FAULT_DOUBLE_MICROBATCH, l->number) && run->microbatch == 0;
    ASSAY_TRY(gpu_run_linear_bwd_weight(run, "self_attention.linear_qkv", gpu_param_grad(m, l->linear_qkv),
                                        &dqkv, x, repeat));
    ASSAY_TRY(gpu_grad_value(m, temp, &dx, x, m->act));
    gpu_value_partial(m, &dx, ASSAY_GROUP_TP);
    ASSAY_TRY(gpu_run_linear_bwd_input(run, "self_attention.linear_qkv", &dx, &dqkv,
                                       gpu_param_use(m, l->linear_qkv)));
    return gpu_reduce_input_grad(m, "self_attention.reduce_grad", "self_attention.gather", dinput_norm, &dx,
                                 &a->norm);
}
