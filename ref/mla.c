/* The MLA mixer (multi-latent attention): q and kv are compressed, normalised and expanded for each head; one key part with positions
 * is shared by all heads.  The compressing linears and their norms are whole on every rank of tp.  docs/OPS.md 9.6. */
#include "ref/layer.h"
#include "ref/lockstep.h"
#include "ref/parallel/context.h"
#include "ref/parallel/tensor.h"

#include <stddef.h>

#define EACH_RANK(p, r) for (int r = 0; r < (p)->n; r++)

/* Heads of every tp rank. */
static int64_t heads_of(const ref_pass *p)
{
    return p->e->config->num_attention_heads / p->e->grid.p.tensor_model_parallel_size;
}

/* --- operations on lockstep tensors --------------------------------------------------------------------------- */

/* kv_combined [T,CKV+2h] -> what is compressed, and the shared part of the keys */
static assay_status down_split_fwd(ref_pass *p, ref_mla_acts *a)
{
    const assay_model_config *c = p->e->config;
    const int64_t latent = c->kv_lora_rank, pos = c->qk_pos_emb_head_dim;
    ASSAY_TRY(ref_new(p, &a->kv_compressed, "self_attention.kv_down_split", "kv_compressed"));
    ASSAY_TRY(ref_new(p, &a->k_pos_emb, "self_attention.kv_down_split", "k_pos_emb"));
    EACH_RANK(p, r)
    {
        const int64_t t = a->kv_combined.at[r].rows;
        ASSAY_TRY(ref_piece_new(&p->arena, &a->kv_compressed.at[r], t, latent));
        ASSAY_TRY(ref_piece_new(&p->arena, &a->k_pos_emb.at[r], t, pos));
        ref_kv_down_split_fwd(a->kv_compressed.at[r].x, a->k_pos_emb.at[r].x, a->kv_combined.at[r].x, t,
                              latent, pos);
    }
    ASSAY_TRY(ref_store(p, &a->kv_compressed, REF_STORE_EXACT));
    return ref_store(p, &a->k_pos_emb, REF_STORE_EXACT);
}

static assay_status down_split_bwd(ref_pass *p, ref_tensor *dkv_combined, const ref_tensor *dkv_compressed,
                                   const ref_tensor *dk_pos_emb, const ref_tensor *kv_combined)
{
    const assay_model_config *c = p->e->config;
    ASSAY_TRY(ref_new_grad(p, dkv_combined, kv_combined, NULL));
    EACH_RANK(p, r)
    {
        const ref_piece *like = &kv_combined->at[r];
        ASSAY_TRY(ref_piece_new(&p->arena, &dkv_combined->at[r], like->rows, like->cols));
        ref_kv_down_split_bwd(dkv_combined->at[r].x, dkv_compressed->at[r].x, dk_pos_emb->at[r].x, like->rows,
                              c->kv_lora_rank, c->qk_pos_emb_head_dim);
    }
    return ref_store(p, dkv_combined, REF_STORE_EXACT);
}

static assay_status rope_q_fwd(ref_pass *p, ref_mla_acts *a)
{
    const ref_engine *e = p->e;
    const int64_t heads = heads_of(p);
    ASSAY_TRY(ref_new(p, &a->q_rotated, "self_attention.rope_q", "y"));
    a->q_rotated.heads = heads;
    EACH_RANK(p, r)
    {
        const ref_piece *q = &a->q.at[r];
        ASSAY_TRY(ref_piece_new(&p->arena, &a->q_rotated.at[r], q->rows, q->cols));
        ref_mla_rope_q_fwd(a->q_rotated.at[r].x, q->x, e->rope_cos, e->rope_sin, p->position_ids.at[r].x,
                           e->config->qk_pos_emb_head_dim, q->rows, heads, e->config->kv_channels);
    }
    return ref_store(p, &a->q_rotated, REF_STORE_ACT);
}

static assay_status rope_q_bwd(ref_pass *p, ref_tensor *dq, const ref_tensor *drotated, const ref_tensor *q)
{
    const ref_engine *e = p->e;
    ASSAY_TRY(ref_new_grad(p, dq, q, NULL));
    EACH_RANK(p, r)
    {
        const ref_piece *like = &q->at[r];
        ASSAY_TRY(ref_piece_new(&p->arena, &dq->at[r], like->rows, like->cols));
        ref_mla_rope_q_bwd(dq->at[r].x, drotated->at[r].x, e->rope_cos, e->rope_sin, p->position_ids.at[r].x,
                           e->config->qk_pos_emb_head_dim, like->rows, heads_of(p), e->config->kv_channels);
    }
    return ref_store(p, dq, REF_STORE_ACT);
}

static assay_status rope_kv_fwd(ref_pass *p, ref_mla_acts *a)
{
    const ref_engine *e = p->e;
    const assay_model_config *c = e->config;
    const int64_t heads = heads_of(p);
    ASSAY_TRY(ref_new(p, &a->k, "self_attention.rope_kv", "k"));
    ASSAY_TRY(ref_new(p, &a->v, "self_attention.rope_kv", "v"));
    a->k.heads = a->v.heads = heads;
    EACH_RANK(p, r)
    {
        const int64_t t = a->kv.at[r].rows;
        ASSAY_TRY(ref_piece_new(&p->arena, &a->k.at[r], t, heads * c->kv_channels));
        ASSAY_TRY(ref_piece_new(&p->arena, &a->v.at[r], t, heads * c->v_head_dim));
        ref_mla_rope_kv_fwd(a->k.at[r].x, a->v.at[r].x, a->kv.at[r].x, a->k_pos_whole.at[r].x, e->rope_cos,
                            e->rope_sin, p->position_ids.at[r].x, c->qk_pos_emb_head_dim, t, heads,
                            c->qk_head_dim, c->v_head_dim);
    }
    ASSAY_TRY(ref_store(p, &a->k, REF_STORE_ACT));
    return ref_store(p, &a->v, REF_STORE_EXACT);
}

static assay_status rope_kv_bwd(ref_pass *p, ref_tensor *dkv, ref_tensor *dk_pos_emb, const ref_mla_acts *a,
                                const ref_tensor *dk, const ref_tensor *dv)
{
    const ref_engine *e = p->e;
    const assay_model_config *c = e->config;
    ASSAY_TRY(ref_new_grad(p, dkv, &a->kv, NULL));
    ASSAY_TRY(ref_new_grad(p, dk_pos_emb, &a->k_pos_whole, NULL));
    EACH_RANK(p, r)
    {
        const ref_piece *kv = &a->kv.at[r], *pos = &a->k_pos_whole.at[r];
        ASSAY_TRY(ref_piece_new(&p->arena, &dkv->at[r], kv->rows, kv->cols));
        ASSAY_TRY(ref_piece_new(&p->arena, &dk_pos_emb->at[r], pos->rows, pos->cols));
        ref_mla_rope_kv_bwd(dkv->at[r].x, dk_pos_emb->at[r].x, dk->at[r].x, dv->at[r].x, e->rope_cos,
                            e->rope_sin, p->position_ids.at[r].x, c->qk_pos_emb_head_dim, kv->rows,
                            heads_of(p), c->qk_head_dim, c->v_head_dim);
    }
    ASSAY_TRY(ref_store(p, dkv, REF_STORE_EXACT));
    return ref_store(p, dk_pos_emb, REF_STORE_ACT);
}

/* --- the mixer ------------------------------------------------------------------------------------------------ */

/* x -> q of this rank's heads, before it turns */
static assay_status q_fwd(ref_pass *p, ref_mla_acts *a, const ref_tensor *x)
{
    const ref_mla_params *w = &p->e->layer[p->layer].mla;
    const bool sp = p->e->grid.p.sequence_parallel;
    if (w->linear_q_proj >= 0) {
        ASSAY_TRY(ref_column_parallel_input(p, &a->q_whole, x, sp, "self_attention.q_proj.gather"));
        return ref_ranks_linear(p, &a->q, &a->q_whole, w->linear_q_proj, -1, false,
                                "self_attention.linear_q_proj", REF_STORE_LINEAR);
    }
    ASSAY_TRY(ref_ranks_linear(p, &a->q_compressed, x, w->linear_q_down_proj, -1, false,
                               "self_attention.linear_q_down_proj", REF_STORE_LINEAR));
    ASSAY_TRY(ref_ranks_rmsnorm_of(p, &a->q_normed, &a->q_rstd, &a->q_compressed, w->q_layernorm,
                                   p->e->config->mla_layernorm_epsilon, "self_attention.q_layernorm"));
    ASSAY_TRY(ref_column_parallel_input(p, &a->q_whole, &a->q_normed, sp, "self_attention.q_up.gather"));
    return ref_ranks_linear(p, &a->q, &a->q_whole, w->linear_q_up_proj, -1, false,
                            "self_attention.linear_q_up_proj", REF_STORE_LINEAR);
}

/* x -> kv of this rank's heads, and the shared part of the keys of all tokens */
static assay_status kv_fwd(ref_pass *p, ref_mla_acts *a, const ref_tensor *x)
{
    const ref_mla_params *w = &p->e->layer[p->layer].mla;
    const bool sp = p->e->grid.p.sequence_parallel;
    ASSAY_TRY(ref_ranks_linear(p, &a->kv_combined, x, w->linear_kv_down_proj, -1, false,
                               "self_attention.linear_kv_down_proj", REF_STORE_LINEAR));
    ASSAY_TRY(down_split_fwd(p, a));
    ASSAY_TRY(ref_ranks_rmsnorm_of(p, &a->kv_normed, &a->kv_rstd, &a->kv_compressed, w->kv_layernorm,
                                   p->e->config->mla_layernorm_epsilon, "self_attention.kv_layernorm"));
    ASSAY_TRY(ref_column_parallel_input(p, &a->kv_whole, &a->kv_normed, sp, "self_attention.kv_up.gather"));
    ASSAY_TRY(
        ref_column_parallel_input(p, &a->k_pos_whole, &a->k_pos_emb, sp, "self_attention.k_pos.gather"));
    return ref_ranks_linear(p, &a->kv, &a->kv_whole, w->linear_kv_up_proj, -1, false,
                            "self_attention.linear_kv_up_proj", REF_STORE_LINEAR);
}

static assay_status mla_fwd(ref_pass *p, ref_layer_acts *acts, ref_tensor *y, const ref_tensor *x)
{
    const ref_mla_params *w = &p->e->layer[p->layer].mla;
    ref_mla_acts *a = &acts->mla;
    ref_tensor projected;
    a->x = *x;
    ASSAY_TRY(q_fwd(p, a, x));
    ASSAY_TRY(kv_fwd(p, a, x));
    ASSAY_TRY(rope_q_fwd(p, a));
    ASSAY_TRY(rope_kv_fwd(p, a));
    ASSAY_TRY(ref_context_attention_fwd(p, &a->context, &a->o, &a->q_rotated, &a->k, &a->v));
    ASSAY_TRY(ref_ranks_linear(p, &projected, &a->o, w->linear_proj, -1, true, "self_attention.linear_proj",
                               REF_STORE_LINEAR));
    return ref_row_parallel_output(p, y, &projected, p->e->grid.p.sequence_parallel, "self_attention.reduce");
}

/* The gradient of x by way of q. */
static assay_status q_bwd(ref_pass *p, ref_tensor *dx, const ref_mla_acts *a, const ref_tensor *dq)
{
    const ref_mla_params *w = &p->e->layer[p->layer].mla;
    const bool sp = p->e->grid.p.sequence_parallel;
    ref_tensor dwhole, dnormed, dcompressed;
    if (w->linear_q_proj >= 0) {
        ASSAY_TRY(ref_ranks_linear_bwd(p, &dwhole, dq, &a->q_whole, w->linear_q_proj, -1,
                                       "self_attention.linear_q_proj"));
        return ref_column_parallel_input_bwd(p, dx, &dwhole, sp, "self_attention.q_proj");
    }
    ASSAY_TRY(ref_ranks_linear_bwd(p, &dwhole, dq, &a->q_whole, w->linear_q_up_proj, -1, NULL));
    ASSAY_TRY(ref_column_parallel_input_bwd(p, &dnormed, &dwhole, sp, "self_attention.q_up"));
    ASSAY_TRY(
        ref_ranks_rmsnorm_bwd(p, &dcompressed, &dnormed, &a->q_compressed, &a->q_rstd, w->q_layernorm, NULL));
    return ref_ranks_linear_bwd(p, dx, &dcompressed, &a->x, w->linear_q_down_proj, -1,
                                "self_attention.linear_q_down_proj");
}

/* The gradient of x by way of keys and values.  That of the shared part of the keys is a sum over the heads: over those of all tp ranks, as
 * what the expanding linear reads. */
static assay_status kv_bwd(ref_pass *p, ref_tensor *dx, const ref_mla_acts *a, const ref_tensor *dk,
                           const ref_tensor *dv)
{
    const ref_mla_params *w = &p->e->layer[p->layer].mla;
    const bool sp = p->e->grid.p.sequence_parallel;
    ref_tensor dkv, dpos_whole, dpos, dwhole, dnormed, dcompressed, dcombined;
    ASSAY_TRY(rope_kv_bwd(p, &dkv, &dpos_whole, a, dk, dv));
    ASSAY_TRY(ref_column_parallel_input_bwd(p, &dpos, &dpos_whole, sp, "self_attention.k_pos"));
    ASSAY_TRY(ref_ranks_linear_bwd(p, &dwhole, &dkv, &a->kv_whole, w->linear_kv_up_proj, -1, NULL));
    ASSAY_TRY(ref_column_parallel_input_bwd(p, &dnormed, &dwhole, sp, "self_attention.kv_up"));
    ASSAY_TRY(ref_ranks_rmsnorm_bwd(p, &dcompressed, &dnormed, &a->kv_compressed, &a->kv_rstd,
                                    w->kv_layernorm, NULL));
    ASSAY_TRY(down_split_bwd(p, &dcombined, &dcompressed, &dpos, &a->kv_combined));
    return ref_ranks_linear_bwd(p, dx, &dcombined, &a->x, w->linear_kv_down_proj, -1,
                                "self_attention.linear_kv_down_proj");
}

static assay_status mla_bwd(ref_pass *p, ref_tensor *dx, const ref_layer_acts *acts, const ref_tensor *dy)
{
    const ref_mla_params *w = &p->e->layer[p->layer].mla;
    const ref_mla_acts *a = &acts->mla;
    ref_tensor dprojected, d_o, drotated, dk, dv, dq, dx_of_q, dx_of_kv;
    ASSAY_TRY(ref_row_parallel_output_bwd(p, &dprojected, dy, p->e->grid.p.sequence_parallel,
                                          "self_attention.reduce"));
    ASSAY_TRY(ref_ranks_linear_bwd(p, &d_o, &dprojected, &a->o, w->linear_proj, -1, NULL));
    ASSAY_TRY(
        ref_context_attention_bwd(p, &drotated, &dk, &dv, &a->context, &d_o, &a->q_rotated, &a->k, &a->v));
    ASSAY_TRY(kv_bwd(p, &dx_of_kv, a, &dk, &dv));
    ASSAY_TRY(rope_q_bwd(p, &dq, &drotated, &a->q));
    ASSAY_TRY(q_bwd(p, &dx_of_q, a, &dq));
    return ref_ranks_add_grad(p, dx, &dx_of_q, &dx_of_kv, &a->x);
}

static const ref_kind_param params[] = {
    {"self_attention.linear_q_proj.weight", offsetof(ref_layer, mla.linear_q_proj), false},
    {"self_attention.linear_q_down_proj.weight", offsetof(ref_layer, mla.linear_q_down_proj), false},
    {"self_attention.q_layernorm.weight", offsetof(ref_layer, mla.q_layernorm), false},
    {"self_attention.linear_q_up_proj.weight", offsetof(ref_layer, mla.linear_q_up_proj), false},
    {"self_attention.linear_kv_down_proj.weight", offsetof(ref_layer, mla.linear_kv_down_proj), true},
    {"self_attention.kv_layernorm.weight", offsetof(ref_layer, mla.kv_layernorm), true},
    {"self_attention.linear_kv_up_proj.weight", offsetof(ref_layer, mla.linear_kv_up_proj), true},
    {"self_attention.linear_proj.weight", offsetof(ref_layer, mla.linear_proj), true},
    {0},
};
const ref_layer_kind ref_mla = {"mla", params, mla_fwd, mla_bwd};
