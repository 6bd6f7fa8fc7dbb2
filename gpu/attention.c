/* The attention mixer: column-parallel qkv, heads, row-parallel projection.  docs/OPS.md section 9. */
#include "gpu/documents.h"
#include "gpu/layer.h"
#include "gpu/parallel/context.h"
#include "gpu/parallel/linear.h"
#include "gpu/parallel/tensor.h"
#include "gpu/qk_layernorm.h"
#include <stddef.h>

/* [S,B,heads,D] with this rank's heads (the operations see [T,heads,D]); d 0: [S,B,heads]. */
static gpu_value heads_of(const gpu_model *m, gpu_arena *arena, int64_t heads, int64_t d)
{
    const gpu_dim dim[4] = {gpu_dim_sequence(m, false), gpu_dim_batch(m),
                            gpu_dim_split(heads, 1, m->tp, m->at.tp), gpu_dim_whole(d)};
    return gpu_value_describe(arena, d > 0 ? 4 : 3, dim, 0);
}

/* The same with this rank's key/value heads. */
static gpu_value kv_heads_of(const gpu_model *m, gpu_arena *arena, int64_t d)
{
    const gpu_dim dim[4] = {gpu_dim_sequence(m, false), gpu_dim_batch(m), gpu_dim_kv(m), gpu_dim_whole(d)};
    return gpu_value_describe(arena, d > 0 ? 4 : 3, dim, 0);
}

#define SPLIT_ATTRS(m)                                                                                       \
    GPU_I("heads", (m)->heads), GPU_I("groups", (m)->groups), GPU_I("head_dim", (m)->config->kv_channels)
#define ROTATION(m, a)                                                                                       \
    GPU_T("cos", &(m)->cos_table), GPU_T("sin", &(m)->sin_table),                                            \
        GPU_T("position", gpu_documents_position(m, (a)->documents))

/* qkv -> q, k, v in one launch where there is a kernel for it: split and rotation. */
static assay_status heads_turned_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_attention_acts *a,
                                     gpu_value *qkv)
{
    const int64_t D = m->config->kv_channels, A = m->config->num_attention_heads;
    gpu_arena *keep = &mb->arena, *temp = &m->scratch, *own = gpu_context_own_arena(m, keep);
    const gpu_call_args parts[] = {
        {.op = "qkv_split_fwd",
         .at = "self_attention.qkv_split",
         .arg = {GPU_T("qkv", qkv), SPLIT_ATTRS(m), GPU_NEW("q", &a->q_raw, heads_of(m, temp, A, D)),
                 GPU_NEW("k", &a->k_raw, kv_heads_of(m, temp, D)),
                 GPU_NEW("v", &a->v, kv_heads_of(m, own, D))}},
        {.op = "rope_fwd",
         .at = "self_attention.rope_q",
         .arg = {GPU_T("x", &a->q_raw), ROTATION(m, a),
                 GPU_NEW("y", &a->q, heads_of(m, gpu_context_query_arena(m, keep), A, D))}},
        {.op = "rope_fwd",
         .at = "self_attention.rope_k",
         .arg = {GPU_T("x", &a->k_raw), ROTATION(m, a), GPU_NEW("y", &a->k, kv_heads_of(m, own, D))}},
    };
    return gpu_call_fused(m->run, "qkv_rope_fwd", parts, 3);
}

/* The same with a norm of each head of q and of k before it turns; what the norms read is kept for their backward. */
static assay_status heads_normed_fwd(gpu_model *m, gpu_microbatch_state *mb, const gpu_attention_params *w,
                                     gpu_attention_acts *a, gpu_value *qkv)
{
    const int64_t D = m->config->kv_channels, A = m->config->num_attention_heads;
    gpu_arena *keep = &mb->arena, *temp = &m->scratch, *own = gpu_context_own_arena(m, keep);
    const gpu_call_args parts[] = {
        {.op = "qkv_split_fwd",
         .at = "self_attention.qkv_split",
         .arg = {GPU_T("qkv", qkv), SPLIT_ATTRS(m), GPU_NEW("q", &a->q_raw, heads_of(m, keep, A, D)),
                 GPU_NEW("k", &a->k_raw, kv_heads_of(m, keep, D)),
                 GPU_NEW("v", &a->v, kv_heads_of(m, own, D))}},
        {.op = "rmsnorm_fwd",
         .at = "self_attention.q_layernorm",
         .arg = {GPU_T("x", &a->q_raw), GPU_T("gamma", gpu_param_use(m, w->q_layernorm)),
                 GPU_F("eps", m->eps), GPU_NEW("y", &a->q_norm, heads_of(m, temp, A, D)),
                 GPU_NEW("rstd", &a->q_rstd, gpu_qk_layernorm_rows(m, keep, GPU_QK_Q))}},
        {.op = "rmsnorm_fwd",
         .at = "self_attention.k_layernorm",
         .arg = {GPU_T("x", &a->k_raw), GPU_T("gamma", gpu_param_use(m, w->k_layernorm)),
                 GPU_F("eps", m->eps), GPU_NEW("y", &a->k_norm, kv_heads_of(m, temp, D)),
                 GPU_NEW("rstd", &a->k_rstd, gpu_qk_layernorm_rows(m, keep, GPU_QK_K))}},
        {.op = "rope_fwd",
         .at = "self_attention.rope_q",
         .arg = {GPU_T("x", &a->q_norm), ROTATION(m, a),
                 GPU_NEW("y", &a->q, heads_of(m, gpu_context_query_arena(m, keep), A, D))}},
        {.op = "rope_fwd",
         .at = "self_attention.rope_k",
         .arg = {GPU_T("x", &a->k_norm), ROTATION(m, a), GPU_NEW("y", &a->k, kv_heads_of(m, own, D))}},
    };
    return gpu_call_fused(m->run, "qkv_norm_rope_fwd", parts, 5);
}

/* qkv -> q, k, v after norm, clamp and rotation, each by itself: a clamp between them, or a norm over all heads, is in no launch with
 * others.  What a norm or a clamp reads is kept for its backward. */
static assay_status heads_apart_fwd(gpu_model *m, gpu_microbatch_state *mb, const gpu_attention_params *w,
                                    gpu_attention_acts *a, gpu_value *qkv)
{
    gpu_run *run = m->run;
    const assay_model_config *c = m->config;
    const bool clip = c->clip_qkv > 0.0;
    gpu_arena *keep = &mb->arena, *temp = &m->scratch, *raw = c->qk_layernorm || clip ? keep : temp,
              *normed = clip ? keep : temp, *own = gpu_context_own_arena(m, keep);
    const int64_t D = c->kv_channels, A = c->num_attention_heads;
    gpu_value *q = &a->q_raw, *k = &a->k_raw, *v = clip ? &a->v_raw : &a->v;
    ASSAY_TRY(GPU_CALL(run, "qkv_split_fwd", "self_attention.qkv_split", GPU_T("qkv", qkv), SPLIT_ATTRS(m),
                       GPU_NEW("q", q, heads_of(m, raw, A, D)), GPU_NEW("k", k, kv_heads_of(m, raw, D)),
                       GPU_NEW("v", v, kv_heads_of(m, clip ? keep : own, D))));
    if (c->qk_layernorm) {
        ASSAY_TRY(gpu_qk_layernorm_fwd(m, keep, GPU_QK_Q, w->q_layernorm,
                                       gpu_value_set(&a->q_norm, heads_of(m, normed, A, D)), &a->q_rstd, q));
        ASSAY_TRY(gpu_qk_layernorm_fwd(m, keep, GPU_QK_K, w->k_layernorm,
                                       gpu_value_set(&a->k_norm, kv_heads_of(m, normed, D)), &a->k_rstd, k));
        q = &a->q_norm;
        k = &a->k_norm;
    }
    if (clip) {
        ASSAY_TRY(GPU_CALL(run, "clamp_fwd", "self_attention.clip_q", GPU_T("x", q),
                           GPU_F("limit", c->clip_qkv), GPU_NEW("y", &a->q_clip, heads_of(m, temp, A, D))));
        ASSAY_TRY(GPU_CALL(run, "clamp_fwd", "self_attention.clip_k", GPU_T("x", k),
                           GPU_F("limit", c->clip_qkv), GPU_NEW("y", &a->k_clip, kv_heads_of(m, temp, D))));
        ASSAY_TRY(GPU_CALL(run, "clamp_fwd", "self_attention.clip_v", GPU_T("x", v),
                           GPU_F("limit", c->clip_qkv), GPU_NEW("y", &a->v, kv_heads_of(m, own, D))));
        q = &a->q_clip;
        k = &a->k_clip;
    }
    ASSAY_TRY(GPU_CALL(run, "rope_fwd", "self_attention.rope_q", GPU_T("x", q), ROTATION(m, a),
                       GPU_NEW("y", &a->q, heads_of(m, gpu_context_query_arena(m, keep), A, D))));
    return GPU_CALL(run, "rope_fwd", "self_attention.rope_k", GPU_T("x", k), ROTATION(m, a),
                    GPU_NEW("y", &a->k, kv_heads_of(m, own, D)));
}

static bool heads_are_apart(const assay_model_config *c)
{
    return c->clip_qkv > 0.0 || (c->qk_layernorm && c->qk_layernorm_full_width);
}

static assay_status heads_fwd(gpu_model *m, gpu_microbatch_state *mb, const gpu_attention_params *w,
                              gpu_attention_acts *a, gpu_value *qkv)
{
    const assay_model_config *c = m->config;
    if (heads_are_apart(c))
        return heads_apart_fwd(m, mb, w, a, qkv);
    return c->qk_layernorm ? heads_normed_fwd(m, mb, w, a, qkv) : heads_turned_fwd(m, mb, a, qkv);
}

static gpu_column_linear linear_qkv(const gpu_model *m, const gpu_attention_params *w)
{
    return (gpu_column_linear){.at = "self_attention.linear_qkv",
                               .reduce = "self_attention.reduce_grad",
                               .gather = "self_attention.gather",
                               .weight = w->linear_qkv,
                               .bias = w->linear_qkv_bias,
                               .sp = m->sp};
}

static gpu_row_linear linear_proj(const gpu_model *m, const gpu_attention_params *w)
{
    return (gpu_row_linear){.at = "self_attention.linear_proj",
                            .reduce = "self_attention.reduce",
                            .weight = w->linear_proj,
                            .bias = w->linear_proj_bias,
                            .sp = m->sp};
}

static assay_status attention_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *acts,
                                  gpu_value *y, gpu_value *x)
{
    const gpu_attention_params *w = &l->attention;
    gpu_attention_acts *a = &acts->attention;
    gpu_arena *temp = &m->scratch;
    gpu_value qkv;
    a->documents = m->packed ? &mb->documents : NULL;
    const gpu_column_linear columns = linear_qkv(m, w);
    const gpu_row_linear rows = linear_proj(m, w);
    qkv = gpu_tokens(m, temp, false, gpu_dim_qkv(m));
    ASSAY_TRY(gpu_column_linear_fwd(m, gpu_module_arena(m, mb, ASSAY_RECOMPUTE_LAYERNORM), &columns, &qkv,
                                    &a->whole, x));
    ASSAY_TRY(heads_fwd(m, mb, w, a, &qkv));
    ASSAY_TRY(gpu_context_attention_fwd(m, gpu_module_arena(m, mb, ASSAY_RECOMPUTE_CORE_ATTN), l, a));
    a->proj = gpu_partial(m, gpu_tokens(m, temp, false, gpu_dim_hidden(m)), ASSAY_GROUP_TP);
    return gpu_row_linear_fwd(m, temp, &rows, y, &a->proj, &a->o);
}

static assay_status attention_again(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l,
                                    gpu_layer_acts *acts)
{
    gpu_attention_acts *a = &acts->attention;
    if (m->recompute.modules & ASSAY_RECOMPUTE_LAYERNORM)
        ASSAY_TRY(gpu_column_parallel_input(m, &mb->arena, m->sp, "self_attention.gather", &a->whole,
                                            &acts->input_norm));
    if (m->recompute.modules & ASSAY_RECOMPUTE_CORE_ATTN)
        ASSAY_TRY(gpu_context_attention_fwd(m, &mb->arena, l, a));
    return ASSAY_OK;
}

static gpu_value product_grad(gpu_model *m)
{
    gpu_value dqkv = gpu_named(m, gpu_tokens(m, &m->scratch, false, gpu_dim_qkv(m)),
                               "self_attention.linear_qkv", "y.grad");
    if (m->kv_shared) /* whole of the query heads, a part of the key and value head */
        dqkv.kind = ASSAY_PIECE_LOCAL;
    return dqkv;
}

#define TURN_BACK(where, from, to)                                                                           \
    {                                                                                                        \
        .op = "rope_bwd", .at = (where), .arg = { GPU_T("dy", from), ROTATION(m, a), GPU_T("dx", to) }       \
    }
#define SPLIT_BACK(q, k, v, to)                                                                              \
    {                                                                                                        \
        .op = "qkv_split_bwd", .at = "self_attention.qkv_split", .arg = {                                    \
            GPU_T("dq", q),                                                                                  \
            GPU_T("dk", k),                                                                                  \
            GPU_T("dv", v),                                                                                  \
            SPLIT_ATTRS(m),                                                                                  \
            GPU_T("dqkv", to)                                                                                \
        }                                                                                                    \
    }

/* dq, dk, dv -> dqkv in one launch where there is a kernel for it: rotation and split. */
static assay_status heads_turned_bwd(gpu_model *m, gpu_attention_acts *a, gpu_value *dqkv, gpu_value *dq,
                                     gpu_value *dk, gpu_value *dv)
{
    gpu_value dq_raw = gpu_grad_of(m, &a->q_raw), dk_raw = gpu_partial_kv(m, gpu_grad_of(m, &a->k_raw));
    const gpu_call_args parts[] = {
        TURN_BACK("self_attention.rope_q", dq, &dq_raw),
        TURN_BACK("self_attention.rope_k", dk, &dk_raw),
        SPLIT_BACK(&dq_raw, &dk_raw, dv, dqkv),
    };
    return gpu_call_fused(m->run, "qkv_rope_bwd", parts, 3);
}

/* The same with the norms of q and k behind the rotation. */
static assay_status heads_normed_bwd(gpu_model *m, const gpu_attention_params *w, gpu_attention_acts *a,
                                     gpu_value *dqkv, gpu_value *dq, gpu_value *dk, gpu_value *dv)
{
    gpu_value dq_norm = gpu_grad_of(m, &a->q_norm), dk_norm = gpu_partial_kv(m, gpu_grad_of(m, &a->k_norm)),
              dq_raw = gpu_grad_of(m, &a->q_raw), dk_raw = gpu_partial_kv(m, gpu_grad_of(m, &a->k_raw));
    const gpu_call_args parts[] = {
        TURN_BACK("self_attention.rope_q", dq, &dq_norm),
        TURN_BACK("self_attention.rope_k", dk, &dk_norm),
        {.op = "rmsnorm_bwd",
         .at = "self_attention.q_layernorm",
         .arg = {GPU_T("dy", &dq_norm), GPU_T("x", &a->q_raw),
                 GPU_T("gamma", gpu_param_use(m, w->q_layernorm)), GPU_T("rstd", &a->q_rstd),
                 GPU_T("dgamma", gpu_param_grad(m, w->q_layernorm)), GPU_F("eps", m->eps),
                 GPU_T("dx", &dq_raw)}},
        {.op = "rmsnorm_bwd",
         .at = "self_attention.k_layernorm",
         .arg = {GPU_T("dy", &dk_norm), GPU_T("x", &a->k_raw),
                 GPU_T("gamma", gpu_param_use(m, w->k_layernorm)), GPU_T("rstd", &a->k_rstd),
                 GPU_T("dgamma", gpu_param_grad(m, w->k_layernorm)), GPU_F("eps", m->eps),
                 GPU_T("dx", &dk_raw)}},
        SPLIT_BACK(&dq_raw, &dk_raw, dv, dqkv),
    };
    return gpu_call_fused(m->run, "qkv_norm_rope_bwd", parts, 5);
}

/* The same, each by itself: as heads_apart_fwd. */
static assay_status heads_apart_bwd(gpu_model *m, const gpu_attention_params *w, gpu_attention_acts *a,
                                    gpu_value *dqkv, gpu_value *dq, gpu_value *dk, gpu_value *dv)
{
    gpu_run *run = m->run;
    const assay_model_config *c = m->config;
    const bool clip = c->clip_qkv > 0.0;
    gpu_value *q_in = c->qk_layernorm ? &a->q_norm : &a->q_raw,
              *k_in = c->qk_layernorm ? &a->k_norm : &a->k_raw;
    gpu_value dq_clip, dk_clip, dq_norm, dk_norm, dq_raw, dk_raw, dv_raw;
    gpu_value *q = gpu_value_set(&dq_clip, gpu_grad_of(m, clip ? &a->q_clip : q_in));
    gpu_value *k = gpu_value_set(&dk_clip, gpu_partial_kv(m, gpu_grad_of(m, clip ? &a->k_clip : k_in))),
              *v = dv;
    ASSAY_TRY(
        GPU_CALL(run, "rope_bwd", "self_attention.rope_q", GPU_T("dy", dq), ROTATION(m, a), GPU_T("dx", q)));
    ASSAY_TRY(
        GPU_CALL(run, "rope_bwd", "self_attention.rope_k", GPU_T("dy", dk), ROTATION(m, a), GPU_T("dx", k)));
    if (clip) {
        ASSAY_TRY(GPU_CALL(run, "clamp_bwd", "self_attention.clip_q", GPU_T("dy", q), GPU_T("x", q_in),
                           GPU_F("limit", c->clip_qkv), GPU_NEW("dx", &dq_norm, gpu_grad_of(m, q_in))));
        ASSAY_TRY(GPU_CALL(run, "clamp_bwd", "self_attention.clip_k", GPU_T("dy", k), GPU_T("x", k_in),
                           GPU_F("limit", c->clip_qkv),
                           GPU_NEW("dx", &dk_norm, gpu_partial_kv(m, gpu_grad_of(m, k_in)))));
        ASSAY_TRY(GPU_CALL(run, "clamp_bwd", "self_attention.clip_v", GPU_T("dy", dv), GPU_T("x", &a->v_raw),
                           GPU_F("limit", c->clip_qkv),
                           GPU_NEW("dx", &dv_raw, gpu_partial_kv(m, gpu_grad_of(m, &a->v_raw)))));
        q = &dq_norm;
        k = &dk_norm;
        v = &dv_raw;
    }
    if (c->qk_layernorm) {
        ASSAY_TRY(gpu_qk_layernorm_bwd(m, GPU_QK_Q, w->q_layernorm,
                                       gpu_value_set(&dq_raw, gpu_grad_of(m, &a->q_raw)), q, &a->q_raw,
                                       &a->q_rstd));
        ASSAY_TRY(gpu_qk_layernorm_bwd(m, GPU_QK_K, w->k_layernorm,
                                       gpu_value_set(&dk_raw, gpu_partial_kv(m, gpu_grad_of(m, &a->k_raw))),
                                       k, &a->k_raw, &a->k_rstd));
        q = &dq_raw;
        k = &dk_raw;
    }
    return GPU_CALL(run, "qkv_split_bwd", "self_attention.qkv_split", GPU_T("dq", q), GPU_T("dk", k),
                    GPU_T("dv", v), SPLIT_ATTRS(m), GPU_T("dqkv", dqkv));
}

/* dq, dk, dv (after rotation) -> dqkv */
static assay_status heads_bwd(gpu_model *m, const gpu_attention_params *w, gpu_attention_acts *a,
                              gpu_value *dqkv, gpu_value *dq, gpu_value *dk, gpu_value *dv)
{
    *dqkv = product_grad(m);
    if (heads_are_apart(m->config))
        return heads_apart_bwd(m, w, a, dqkv, dq, dk, dv);
    return m->config->qk_layernorm ? heads_normed_bwd(m, w, a, dqkv, dq, dk, dv)
                                   : heads_turned_bwd(m, a, dqkv, dq, dk, dv);
}

static assay_status attention_bwd(gpu_model *m, gpu_layer *l, gpu_layer_acts *acts, gpu_value *dx,
                                  gpu_value *dy)
{
    const gpu_attention_params *w = &l->attention;
    const gpu_column_linear columns = linear_qkv(m, w);
    const gpu_row_linear rows = linear_proj(m, w);
    gpu_attention_acts *a = &acts->attention;
    gpu_value d_o = gpu_grad_of(m, &a->o), dq, dk, dv, dqkv, dwhole;
    ASSAY_TRY(gpu_row_linear_bwd(m, &rows, &d_o, dy, &a->o, &a->proj));
    ASSAY_TRY(gpu_context_attention_bwd(m, l, a, &dq, &dk, &dv, &d_o));
    ASSAY_TRY(heads_bwd(m, w, a, &dqkv, &dq, &dk, &dv));
    dwhole = gpu_partial(m, gpu_grad_of(m, &a->whole), ASSAY_GROUP_TP);
    return gpu_column_linear_bwd(m, &columns, dx, &dwhole, &dqkv, &a->whole, &acts->input_norm);
}

static const gpu_kind_param params[] = {
    {"self_attention.linear_qkv.weight", offsetof(gpu_layer, attention.linear_qkv), true},
    {"self_attention.linear_qkv.bias", offsetof(gpu_layer, attention.linear_qkv_bias), false},
    {"self_attention.q_layernorm.weight", offsetof(gpu_layer, attention.q_layernorm), false},
    {"self_attention.k_layernorm.weight", offsetof(gpu_layer, attention.k_layernorm), false},
    {"self_attention.linear_proj.weight", offsetof(gpu_layer, attention.linear_proj), true},
    {"self_attention.linear_proj.bias", offsetof(gpu_layer, attention.linear_proj_bias), false},
    {0},
};
const gpu_layer_kind gpu_self_attention = {"attention", params, attention_fwd, attention_bwd,
                                           attention_again};
