/* The attention mixer, and its operations on lockstep tensors. */
#include "ref/fast.h"
#include "ref/layer.h"
#include "ref/lockstep.h"
#include "ref/parallel/context.h"
#include "ref/parallel/tensor.h"
#include "ref/qk_layernorm.h"
#include "ref/yarn.h"

#include <stddef.h>

#define EACH_RANK(p, r) for (int r = 0; r < (p)->n; r++)

/* Columns of one head; every rank holds cols / D of them. */
static int64_t head_dim(const ref_pass *p)
{
    return p->e->config->kv_channels;
}

assay_status ref_ranks_qkv_split(ref_pass *p, ref_tensor *q, ref_tensor *k, ref_tensor *v,
                                 const ref_tensor *qkv)
{
    const assay_model_config *c = p->e->config;
    const int64_t d = head_dim(p), tp = p->e->grid.p.tensor_model_parallel_size;
    const int64_t heads = c->num_attention_heads / tp;
    const int64_t groups = c->num_query_groups < tp ? 1 : c->num_query_groups / tp;
    ASSAY_TRY(ref_new(p, q, "self_attention.qkv_split", "q"));
    ASSAY_TRY(ref_new(p, k, "self_attention.qkv_split", "k"));
    ASSAY_TRY(ref_new(p, v, "self_attention.qkv_split", "v"));
    q->heads = heads;
    k->heads = v->heads = groups;
    EACH_RANK(p, r)
    {
        const int64_t t = qkv->at[r].rows;
        ASSAY_TRY(ref_piece_new(&p->arena, &q->at[r], t, heads * d));
        ASSAY_TRY(ref_piece_new(&p->arena, &k->at[r], t, groups * d));
        ASSAY_TRY(ref_piece_new(&p->arena, &v->at[r], t, groups * d));
        ref_qkv_split_fwd(q->at[r].x, k->at[r].x, v->at[r].x, qkv->at[r].x, t, heads, groups, d);
    }
    ASSAY_TRY(ref_store(p, q, REF_STORE_EXACT));
    ASSAY_TRY(ref_store(p, k, REF_STORE_EXACT));
    return ref_store(p, v, REF_STORE_EXACT);
}

assay_status ref_ranks_qkv_split_bwd(ref_pass *p, ref_tensor *dqkv, const ref_tensor *dq,
                                     const ref_tensor *dk, const ref_tensor *dv, const ref_tensor *qkv)
{
    ASSAY_TRY(ref_new_grad(p, dqkv, qkv, NULL));
    EACH_RANK(p, r)
    {
        ASSAY_TRY(ref_piece_new(&p->arena, &dqkv->at[r], qkv->at[r].rows, qkv->at[r].cols));
        ref_qkv_split_bwd(dqkv->at[r].x, dq->at[r].x, dk->at[r].x, dv->at[r].x, qkv->at[r].rows, dq->heads,
                          dk->heads, head_dim(p));
    }
    return ref_store(p, dqkv, REF_STORE_EXACT);
}

assay_status ref_ranks_rope(ref_pass *p, ref_tensor *y, const ref_tensor *x, const char *instance)
{
    const ref_engine *e = p->e;
    ASSAY_TRY(ref_new(p, y, instance, "y"));
    y->heads = x->heads;
    EACH_RANK(p, r)
    {
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], x->at[r].rows, x->at[r].cols));
        ref_rope_fwd(y->at[r].x, x->at[r].x, e->rope_cos, e->rope_sin, p->position_ids.at[r].x,
                     assay_config_rotary_dim(e->config), x->at[r].rows, x->heads, head_dim(p));
    }
    return ref_store(p, y, REF_STORE_ACT);
}

assay_status ref_ranks_rope_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dy, const ref_tensor *x)
{
    const ref_engine *e = p->e;
    ASSAY_TRY(ref_new_grad(p, dx, x, NULL));
    EACH_RANK(p, r)
    {
        ASSAY_TRY(ref_piece_new(&p->arena, &dx->at[r], x->at[r].rows, x->at[r].cols));
        ref_rope_bwd(dx->at[r].x, dy->at[r].x, e->rope_cos, e->rope_sin, p->position_ids.at[r].x,
                     assay_config_rotary_dim(e->config), x->at[r].rows, x->heads, head_dim(p));
    }
    return ref_store(p, dx, REF_STORE_ACT);
}

/* Rank r's queries and keys at their positions, causal, in the query's document, this layer's window. */
static ref_attention_desc describe(const ref_pass *p, int64_t heads, int64_t groups, int r,
                                   const ref_seen *seen)
{
    const ref_int_piece *q_position = &seen->q_position.at[r], *k_position = &seen->k_position.at[r];
    const ref_engine *e = p->e;
    const ref_rank *rank = &p->ranks[r];
    const int64_t all_heads = e->config->num_attention_heads, tp = e->grid.p.tensor_model_parallel_size;
    /* a2a deals the heads of a tp rank out over cp */
    const int64_t first_head =
        rank->at.tp * (all_heads / tp) + (heads < all_heads / tp ? rank->at.cp * heads : 0);
    return (ref_attention_desc){
        .dropout = ref_pass_dropout(p, r, e->options.attention_dropout, REF_DROP_PROBS),
        .first_row = rank->share.first_row,
        .all_rows = e->run->batches->b,
        .first_head = first_head,
        .all_heads = all_heads,
        .all_keys = e->seq,
        .batch = e->batch,
        .seq_q = q_position->rows / e->batch,
        .seq_k = k_position->rows / e->batch,
        .heads = heads,
        .groups = groups,
        .head_dim = head_dim(p),
        .head_dim_v = assay_config_value_dim(e->config),
        .scale = ref_yarn_softmax_scale(e->config),
        .window = e->config->window[p->layer],
        .q_position = q_position->x,
        .k_position = k_position->x,
        .first_key = seen->document_start.at ? seen->document_start.at[r].x : NULL,
    };
}

assay_status ref_ranks_attention(ref_pass *p, ref_tensor *o, ref_tensor *lse, const ref_tensor *q,
                                 const ref_tensor *k, const ref_tensor *v, const ref_seen *seen,
                                 const char *instance)
{
    ASSAY_TRY(ref_new(p, o, instance, "o"));
    ASSAY_TRY(ref_new(p, lse, instance, "lse"));
    EACH_RANK(p, r)
    {
        const ref_attention_desc d = describe(p, q->heads, k->heads, r, seen);
        ASSAY_TRY(ref_piece_new(&p->arena, &o->at[r], q->at[r].rows, q->heads * d.head_dim_v));
        ASSAY_TRY(ref_piece_new(&p->arena, &lse->at[r], q->at[r].rows, q->heads));
        ref_fast_attention_fwd(o->at[r].x, lse->at[r].x, q->at[r].x, k->at[r].x, v->at[r].x, &d);
    }
    ASSAY_TRY(ref_store(p, lse, REF_STORE_LSE));
    return ref_store(p, o, REF_STORE_ATTENTION);
}

assay_status ref_ranks_attention_bwd(ref_pass *p, ref_tensor *dq, ref_tensor *dk, ref_tensor *dv,
                                     const ref_tensor *dout, const ref_tensor *q, const ref_tensor *k,
                                     const ref_tensor *v, const ref_tensor *o, const ref_tensor *lse,
                                     const ref_seen *seen)
{
    ASSAY_TRY(ref_new_grad(p, dq, q, NULL));
    ASSAY_TRY(ref_new_grad(p, dk, k, NULL));
    ASSAY_TRY(ref_new_grad(p, dv, v, NULL));
    EACH_RANK(p, r)
    {
        const ref_attention_desc d = describe(p, q->heads, k->heads, r, seen);
        ASSAY_TRY(ref_piece_new(&p->arena, &dq->at[r], q->at[r].rows, q->at[r].cols));
        ASSAY_TRY(ref_piece_new(&p->arena, &dk->at[r], k->at[r].rows, k->at[r].cols));
        ASSAY_TRY(ref_piece_new(&p->arena, &dv->at[r], v->at[r].rows, v->at[r].cols));
        ref_fast_attention_bwd(dq->at[r].x, dk->at[r].x, dv->at[r].x, dout->at[r].x, q->at[r].x, k->at[r].x,
                               v->at[r].x, o->at[r].x, lse->at[r].x, &d);
    }
    ASSAY_TRY(ref_store(p, dq, REF_STORE_ATTENTION));
    ASSAY_TRY(ref_store(p, dk, REF_STORE_ATTENTION));
    return ref_store(p, dv, REF_STORE_ATTENTION);
}

/* --- the mixer ------------------------------------------------------------------------------------------------ */

static assay_status attention_fwd(ref_pass *p, ref_layer_acts *acts, ref_tensor *y, const ref_tensor *x)
{
    const ref_attention_params *w = &p->e->layer[p->layer].attention;
    const bool sp = p->e->grid.p.sequence_parallel;
    const double limit = p->e->config->clip_qkv;
    ref_attention_acts *a = &acts->attention;
    ref_tensor projected;
    ASSAY_TRY(ref_column_parallel_input(p, &a->whole, x, sp, "self_attention.gather"));
    ASSAY_TRY(ref_ranks_linear(p, &a->qkv, &a->whole, w->linear_qkv, w->linear_qkv_bias, false,
                               "self_attention.linear_qkv", REF_STORE_LINEAR));
    ASSAY_TRY(ref_ranks_qkv_split(p, &a->q, &a->k, &a->v, &a->qkv));
    a->q_normed = a->q;
    a->k_normed = a->k;
    if (w->q_layernorm >= 0) {
        ASSAY_TRY(ref_qk_layernorm_fwd(p, &a->q_normed, &a->q_rstd, &a->q, REF_QK_Q, w->q_layernorm));
        ASSAY_TRY(ref_qk_layernorm_fwd(p, &a->k_normed, &a->k_rstd, &a->k, REF_QK_K, w->k_layernorm));
    }
    a->q_clipped = a->q_normed;
    a->k_clipped = a->k_normed;
    a->v_clipped = a->v;
    if (limit > 0.0) {
        ASSAY_TRY(ref_ranks_clamp(p, &a->q_clipped, &a->q_normed, limit, "self_attention.clip_q"));
        ASSAY_TRY(ref_ranks_clamp(p, &a->k_clipped, &a->k_normed, limit, "self_attention.clip_k"));
        ASSAY_TRY(ref_ranks_clamp(p, &a->v_clipped, &a->v, limit, "self_attention.clip_v"));
    }
    ASSAY_TRY(ref_ranks_rope(p, &a->q_rotated, &a->q_clipped, "self_attention.rope_q"));
    ASSAY_TRY(ref_ranks_rope(p, &a->k_rotated, &a->k_clipped, "self_attention.rope_k"));
    ASSAY_TRY(ref_context_attention_fwd(p, &a->context, &a->o, &a->q_rotated, &a->k_rotated, &a->v_clipped));
    ASSAY_TRY(ref_ranks_linear(p, &projected, &a->o, w->linear_proj, w->linear_proj_bias, true,
                               "self_attention.linear_proj", REF_STORE_LINEAR));
    return ref_row_parallel_output(p, y, &projected, sp, "self_attention.reduce");
}

static assay_status attention_bwd(ref_pass *p, ref_tensor *dx, const ref_layer_acts *acts,
                                  const ref_tensor *dy)
{
    const ref_attention_params *w = &p->e->layer[p->layer].attention;
    const bool sp = p->e->grid.p.sequence_parallel;
    const double limit = p->e->config->clip_qkv;
    const ref_attention_acts *a = &acts->attention;
    ref_tensor dprojected, d_o, dq, dk, dv, dq_normed, dk_normed, dqkv, dwhole;
    ASSAY_TRY(ref_row_parallel_output_bwd(p, &dprojected, dy, sp, "self_attention.reduce"));
    ASSAY_TRY(ref_ranks_linear_bwd(p, &d_o, &dprojected, &a->o, w->linear_proj, w->linear_proj_bias, NULL));
    ASSAY_TRY(ref_context_attention_bwd(p, &dq, &dk, &dv, &a->context, &d_o, &a->q_rotated, &a->k_rotated,
                                        &a->v_clipped));
    ASSAY_TRY(ref_ranks_rope_bwd(p, &dq_normed, &dq, &a->q_clipped));
    ASSAY_TRY(ref_ranks_rope_bwd(p, &dk_normed, &dk, &a->k_clipped));
    if (limit > 0.0) {
        const ref_tensor dq_clipped = dq_normed, dk_clipped = dk_normed, dv_clipped = dv;
        ASSAY_TRY(ref_ranks_clamp_bwd(p, &dq_normed, &dq_clipped, &a->q_normed, limit, REF_CLIP_Q));
        ASSAY_TRY(ref_ranks_clamp_bwd(p, &dk_normed, &dk_clipped, &a->k_normed, limit, REF_CLIP_K));
        ASSAY_TRY(ref_ranks_clamp_bwd(p, &dv, &dv_clipped, &a->v, limit, REF_CLIP_V));
    }
    if (w->q_layernorm >= 0) {
        ASSAY_TRY(ref_qk_layernorm_bwd(p, &dq, &dq_normed, &a->q, &a->q_rstd, REF_QK_Q, w->q_layernorm));
        ASSAY_TRY(ref_qk_layernorm_bwd(p, &dk, &dk_normed, &a->k, &a->k_rstd, REF_QK_K, w->k_layernorm));
    } else {
        dq = dq_normed;
        dk = dk_normed;
    }
    ASSAY_TRY(ref_ranks_qkv_split_bwd(p, &dqkv, &dq, &dk, &dv, &a->qkv));
    ASSAY_TRY(ref_ranks_linear_bwd(p, &dwhole, &dqkv, &a->whole, w->linear_qkv, w->linear_qkv_bias, NULL));
    return ref_column_parallel_input_bwd(p, dx, &dwhole, sp, "self_attention");
}

static const ref_kind_param params[] = {
    {"self_attention.linear_qkv.weight", offsetof(ref_layer, attention.linear_qkv), true},
    {"self_attention.linear_qkv.bias", offsetof(ref_layer, attention.linear_qkv_bias), false},
    {"self_attention.q_layernorm.weight", offsetof(ref_layer, attention.q_layernorm), false},
    {"self_attention.k_layernorm.weight", offsetof(ref_layer, attention.k_layernorm), false},
    {"self_attention.linear_proj.weight", offsetof(ref_layer, attention.linear_proj), true},
    {"self_attention.linear_proj.bias", offsetof(ref_layer, attention.linear_proj_bias), false},
    {0},
};
const ref_layer_kind ref_self_attention = {"attention", params, attention_fwd, attention_bwd};
