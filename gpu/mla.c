/* The MLA mixer (multi-latent attention): q and kv are compressed, normalised and expanded for each head; one key part with positions
 * is shared by all heads.  The compressing linears and their norms are whole on every rank of tp, the expanding ones and the
 * projection are cut by heads.  docs/OPS.md 9.6. */
#include "gpu/documents.h"
#include "gpu/layer.h"
#include "gpu/parallel/context.h"
#include "gpu/parallel/linear.h"
#include "gpu/parallel/tensor.h"
#include "gpu/weight_grads.h"
#include <stddef.h>

/* [S,B,heads,D] with this rank's heads (the operations see [T,heads,D]). */
static gpu_value heads_of(const gpu_model *m, gpu_arena *arena, int64_t d)
{
    const gpu_dim dim[4] = {gpu_dim_sequence(m, false), gpu_dim_batch(m),
                            gpu_dim_tp(m, m->config->num_attention_heads, 1), gpu_dim_whole(d)};
    return gpu_value_describe(arena, 4, dim, 0);
}

/* [S,B,heads*d]: what an expanding linear makes. */
static gpu_value expanded(gpu_model *m, int64_t d)
{
    return gpu_tokens(m, &m->scratch, false, gpu_dim_tp(m, m->config->num_attention_heads * d, 1));
}

#define ROTATION(m, a)                                                                                       \
    GPU_T("cos", &(m)->cos_table), GPU_T("sin", &(m)->sin_table),                                            \
        GPU_T("position", gpu_documents_position(m, (a)->documents))
#define KV_ATTRS(m)                                                                                          \
    GPU_I("heads", (m)->heads), GPU_I("qk_head_dim", (m)->config->qk_head_dim),                              \
        GPU_I("v_head_dim", (m)->config->v_head_dim)
#define INNER_EPS(m) GPU_F("eps", (double)(float)(m)->config->mla_layernorm_epsilon)
#define LATENT_ATTRS(m)                                                                                      \
    GPU_I("kv_lora_rank", (m)->config->kv_lora_rank),                                                        \
        GPU_I("qk_pos_emb_head_dim", (m)->config->qk_pos_emb_head_dim)
#define Q_ATTRS(m) GPU_I("heads", (m)->heads), GPU_I("head_dim", (m)->config->kv_channels)

static gpu_column_linear q_up(const gpu_model *m, const gpu_mla_params *w)
{
    if (w->linear_q_proj)
        return (gpu_column_linear){.at = "self_attention.linear_q_proj",
                                   .reduce = "self_attention.q_proj.reduce_grad",
                                   .gather = "self_attention.q_proj.gather",
                                   .weight = w->linear_q_proj,
                                   .sp = m->sp};
    return (gpu_column_linear){.at = "self_attention.linear_q_up_proj",
                               .reduce = "self_attention.q_up.reduce_grad",
                               .gather = "self_attention.q_up.gather",
                               .weight = w->linear_q_up_proj,
                               .sp = m->sp};
}

static gpu_column_linear kv_up(const gpu_model *m, const gpu_mla_params *w)
{
    return (gpu_column_linear){.at = "self_attention.linear_kv_up_proj",
                               .reduce = "self_attention.kv_up.reduce_grad",
                               .gather = "self_attention.kv_up.gather",
                               .weight = w->linear_kv_up_proj,
                               .sp = m->sp};
}

static gpu_row_linear linear_proj(const gpu_model *m, const gpu_mla_params *w)
{
    return (gpu_row_linear){.at = "self_attention.linear_proj",
                            .reduce = "self_attention.reduce",
                            .weight = w->linear_proj,
                            .sp = m->sp};
}

/* y (described) = x W^T of this rank's tokens. */
static assay_status down_fwd(gpu_model *m, const char *at, gpu_param *weight, gpu_value *y, gpu_value *x)
{
    return GPU_CALL(m->run, "linear_fwd", at, GPU_T("x", x), GPU_T("weight", gpu_param_use(m, weight)),
                    GPU_T("y", y));
}

/* The weight's gradient, and *dx: one contribution to that of x. */
static assay_status down_bwd(gpu_model *m, const char *at, gpu_param *weight, gpu_value *dx, gpu_value *dy,
                             gpu_value *x)
{
    ASSAY_TRY(gpu_linear_bwd_weight(m, at, dy, x, weight));
    return GPU_CALL(m->run, "linear_bwd_input", at, GPU_T("dy", dy),
                    GPU_T("weight", gpu_param_use(m, weight)),
                    GPU_NEW("dx", dx, gpu_tokens(m, &m->scratch, m->sp, gpu_dim_hidden(m))));
}

/* y of an inner norm, kept or made again; rstd is made the first time. */
static assay_status norm_fwd(gpu_model *m, gpu_microbatch_state *mb, const char *at, gpu_param *gamma,
                             gpu_value *y, gpu_value *rstd, gpu_value *x)
{
    gpu_arena *keep = gpu_module_arena(m, mb, ASSAY_RECOMPUTE_LAYERNORM);
    return GPU_CALL(m->run, "rmsnorm_fwd", at, GPU_T("x", x), GPU_T("gamma", gpu_param_use(m, gamma)),
                    INNER_EPS(m), GPU_NEW("y", y, gpu_tokens(m, keep, m->sp, x->dim[2])),
                    GPU_NEW("rstd", rstd, gpu_token_rows(m, &mb->arena, m->sp)));
}

static assay_status norm_bwd(gpu_model *m, const char *at, gpu_param *gamma, gpu_value *dx, gpu_value *dy,
                             gpu_value *x, gpu_value *rstd)
{
    return GPU_CALL(m->run, "rmsnorm_bwd", at, GPU_T("dy", dy), GPU_T("x", x),
                    GPU_T("gamma", gpu_param_use(m, gamma)), GPU_T("rstd", rstd),
                    GPU_T("dgamma", gpu_param_grad(m, gamma)), INNER_EPS(m),
                    GPU_NEW("dx", dx, gpu_grad_of(m, x)));
}

/* --- forward ------------------------------------------------------------------------------------------------ */
/* What the expanding linear of q reads: x, or what is compressed of it and normalised. */
static assay_status q_input_fwd(gpu_model *m, gpu_microbatch_state *mb, const gpu_mla_params *w,
                                gpu_mla_acts *a, gpu_value *x)
{
    a->q_normed = *x;
    if (w->linear_q_proj)
        return ASSAY_OK;
    a->q_compressed = gpu_tokens(m, &mb->arena, m->sp, gpu_dim_whole(m->config->q_lora_rank));
    ASSAY_TRY(down_fwd(m, "self_attention.linear_q_down_proj", w->linear_q_down_proj, &a->q_compressed, x));
    return norm_fwd(m, mb, "self_attention.q_layernorm", w->q_layernorm, &a->q_normed, &a->q_rstd,
                    &a->q_compressed);
}

static assay_status kv_input_fwd(gpu_model *m, gpu_microbatch_state *mb, const gpu_mla_params *w,
                                 gpu_mla_acts *a, gpu_value *x)
{
    const int64_t latent = m->config->kv_lora_rank, pos = m->config->qk_pos_emb_head_dim;
    gpu_arena *temp = &m->scratch;
    a->kv_combined = gpu_tokens(m, temp, m->sp, gpu_dim_whole(latent + pos));
    ASSAY_TRY(down_fwd(m, "self_attention.linear_kv_down_proj", w->linear_kv_down_proj, &a->kv_combined, x));
    ASSAY_TRY(GPU_CALL(
        m->run, "kv_down_split_fwd", "self_attention.kv_down_split", GPU_T("kv_combined", &a->kv_combined),
        LATENT_ATTRS(m),
        GPU_NEW("kv_compressed", &a->kv_compressed, gpu_tokens(m, &mb->arena, m->sp, gpu_dim_whole(latent))),
        GPU_NEW("k_pos_emb", &a->k_pos_emb, gpu_tokens(m, temp, m->sp, gpu_dim_whole(pos)))));
    return norm_fwd(m, mb, "self_attention.kv_layernorm", w->kv_layernorm, &a->kv_normed, &a->kv_rstd,
                    &a->kv_compressed);
}

static assay_status mla_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *acts,
                            gpu_value *y, gpu_value *x)
{
    const gpu_mla_params *w = &l->mla;
    const assay_model_config *c = m->config;
    gpu_mla_acts *a = &acts->mla;
    gpu_attention_acts *core = &acts->attention;
    gpu_arena *keep = &mb->arena, *temp = &m->scratch, *own = gpu_context_own_arena(m, keep),
              *gathered = gpu_module_arena(m, mb, ASSAY_RECOMPUTE_LAYERNORM);
    const gpu_column_linear q = q_up(m, w), kv = kv_up(m, w);
    const gpu_row_linear rows = linear_proj(m, w);
    core->documents = m->packed ? &mb->documents : NULL;
    ASSAY_TRY(q_input_fwd(m, mb, w, a, x));
    a->q = expanded(m, c->kv_channels);
    ASSAY_TRY(gpu_column_linear_fwd(m, gathered, &q, &a->q, &a->q_whole, &a->q_normed));
    ASSAY_TRY(kv_input_fwd(m, mb, w, a, x));
    a->kv = expanded(m, c->qk_head_dim + c->v_head_dim);
    ASSAY_TRY(gpu_column_linear_fwd(m, gathered, &kv, &a->kv, &a->kv_whole, &a->kv_normed));
    ASSAY_TRY(gpu_column_parallel_input(m, temp, m->sp, "self_attention.k_pos.gather", &a->k_pos_whole,
                                        &a->k_pos_emb));
    ASSAY_TRY(GPU_CALL(
        m->run, "mla_rope_q_fwd", "self_attention.rope_q", GPU_T("q", &a->q), ROTATION(m, core), Q_ATTRS(m),
        GPU_NEW("y", &core->q, heads_of(m, gpu_context_query_arena(m, keep), c->kv_channels))));
    ASSAY_TRY(GPU_CALL(m->run, "mla_rope_kv_fwd", "self_attention.rope_kv", GPU_T("kv", &a->kv),
                       GPU_T("k_pos_emb", &a->k_pos_whole), ROTATION(m, core), KV_ATTRS(m),
                       GPU_NEW("k", &core->k, heads_of(m, own, c->kv_channels)),
                       GPU_NEW("v", &core->v, heads_of(m, own, c->v_head_dim))));
    ASSAY_TRY(gpu_context_attention_fwd(m, gpu_module_arena(m, mb, ASSAY_RECOMPUTE_CORE_ATTN), l, core));
    core->proj = gpu_partial(m, gpu_tokens(m, temp, false, gpu_dim_hidden(m)), ASSAY_GROUP_TP);
    return gpu_row_linear_fwd(m, temp, &rows, y, &core->proj, &core->o);
}

static assay_status mla_again(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *acts)
{
    const gpu_mla_params *w = &l->mla;
    gpu_mla_acts *a = &acts->mla;
    const gpu_column_linear q = q_up(m, w), kv = kv_up(m, w);
    if (m->recompute.modules & ASSAY_RECOMPUTE_LAYERNORM) {
        a->q_normed = acts->input_norm;
        if (w->linear_q_proj == NULL)
            ASSAY_TRY(norm_fwd(m, mb, "self_attention.q_layernorm", w->q_layernorm, &a->q_normed, &a->q_rstd,
                               &a->q_compressed));
        ASSAY_TRY(gpu_column_parallel_input(m, &mb->arena, m->sp, q.gather, &a->q_whole, &a->q_normed));
        ASSAY_TRY(norm_fwd(m, mb, "self_attention.kv_layernorm", w->kv_layernorm, &a->kv_normed, &a->kv_rstd,
                           &a->kv_compressed));
        ASSAY_TRY(gpu_column_parallel_input(m, &mb->arena, m->sp, kv.gather, &a->kv_whole, &a->kv_normed));
    }
    if (m->recompute.modules & ASSAY_RECOMPUTE_CORE_ATTN)
        ASSAY_TRY(gpu_context_attention_fwd(m, &mb->arena, l, &acts->attention));
    return ASSAY_OK;
}

/* --- backward ----------------------------------------------------------------------------------------------- */
/* dk, dv -> gradient of x by way of keys and values.  That of the keys' shared part is a sum over heads, of which a rank of tp has a
 * part: it is summed over them as what the expanding linear reads is. */
static assay_status kv_bwd(gpu_model *m, const gpu_mla_params *w, gpu_layer_acts *acts, gpu_value *dx,
                           gpu_value *dk, gpu_value *dv)
{
    gpu_mla_acts *a = &acts->mla;
    const gpu_column_linear kv = kv_up(m, w);
    gpu_value dkv, dpos_whole, dpos, dwhole, dnormed, dcompressed, dcombined;
    dpos_whole = gpu_partial(m, gpu_grad_of(m, &a->k_pos_whole), ASSAY_GROUP_TP);
    ASSAY_TRY(GPU_CALL(m->run, "mla_rope_kv_bwd", "self_attention.rope_kv", GPU_T("dk", dk), GPU_T("dv", dv),
                       ROTATION(m, &acts->attention), KV_ATTRS(m),
                       GPU_NEW("dkv", &dkv, gpu_grad_of(m, &a->kv)), GPU_T("dk_pos_emb", &dpos_whole)));
    ASSAY_TRY(gpu_column_parallel_input_bwd(m, m->sp, "self_attention.k_pos.reduce_grad",
                                            "self_attention.k_pos.gather", &dpos, &dpos_whole,
                                            &a->k_pos_emb));
    dwhole = gpu_partial(m, gpu_grad_of(m, &a->kv_whole), ASSAY_GROUP_TP);
    ASSAY_TRY(gpu_column_linear_bwd(m, &kv, &dnormed, &dwhole, &dkv, &a->kv_whole, &a->kv_normed));
    ASSAY_TRY(norm_bwd(m, "self_attention.kv_layernorm", w->kv_layernorm, &dcompressed, &dnormed,
                       &a->kv_compressed, &a->kv_rstd));
    ASSAY_TRY(GPU_CALL(m->run, "kv_down_split_bwd", "self_attention.kv_down_split",
                       GPU_T("dkv_compressed", &dcompressed), GPU_T("dk_pos_emb", &dpos), LATENT_ATTRS(m),
                       GPU_NEW("dkv_combined", &dcombined, gpu_grad_of(m, &a->kv_combined))));
    return down_bwd(m, "self_attention.linear_kv_down_proj", w->linear_kv_down_proj, dx, &dcombined,
                    &acts->input_norm);
}

/* dq (after rotation) -> gradient of x by way of q */
static assay_status q_bwd(gpu_model *m, const gpu_mla_params *w, gpu_layer_acts *acts, gpu_value *dx,
                          gpu_value *drotated)
{
    gpu_mla_acts *a = &acts->mla;
    const gpu_column_linear q = q_up(m, w);
    gpu_value dq, dwhole, dnormed, dcompressed;
    ASSAY_TRY(GPU_CALL(m->run, "mla_rope_q_bwd", "self_attention.rope_q", GPU_T("dy", drotated),
                       ROTATION(m, &acts->attention), Q_ATTRS(m), GPU_NEW("dx", &dq, gpu_grad_of(m, &a->q))));
    if (w->linear_q_proj) { /* one contribution of two: a name of its own */
        dwhole = gpu_partial(m, gpu_tokens(m, &m->scratch, false, gpu_dim_hidden(m)), ASSAY_GROUP_TP);
        return gpu_column_linear_bwd(m, &q, dx, &dwhole, &dq, &a->q_whole, NULL);
    }
    dwhole = gpu_partial(m, gpu_grad_of(m, &a->q_whole), ASSAY_GROUP_TP);
    ASSAY_TRY(gpu_column_linear_bwd(m, &q, &dnormed, &dwhole, &dq, &a->q_whole, &a->q_normed));
    ASSAY_TRY(norm_bwd(m, "self_attention.q_layernorm", w->q_layernorm, &dcompressed, &dnormed,
                       &a->q_compressed, &a->q_rstd));
    return down_bwd(m, "self_attention.linear_q_down_proj", w->linear_q_down_proj, dx, &dcompressed,
                    &acts->input_norm);
}

static assay_status mla_bwd(gpu_model *m, gpu_layer *l, gpu_layer_acts *acts, gpu_value *dx, gpu_value *dy)
{
    const gpu_mla_params *w = &l->mla;
    const gpu_row_linear rows = linear_proj(m, w);
    gpu_attention_acts *core = &acts->attention;
    gpu_value d_o = gpu_grad_of(m, &core->o), dq, dk, dv, of_q, of_kv;
    ASSAY_TRY(gpu_row_linear_bwd(m, &rows, &d_o, dy, &core->o, &core->proj));
    ASSAY_TRY(gpu_context_attention_bwd(m, l, core, &dq, &dk, &dv, &d_o));
    ASSAY_TRY(kv_bwd(m, w, acts, &of_kv, &dk, &dv));
    ASSAY_TRY(q_bwd(m, w, acts, &of_q, &dq));
    *dx = gpu_grad_of(m, &acts->input_norm);
    return GPU_CALL(m->run, "add", "self_attention.input_grad", GPU_T("a", &of_q), GPU_T("b", &of_kv),
                    GPU_T("y", dx));
}

static const gpu_kind_param params[] = {
    {"self_attention.linear_q_proj.weight", offsetof(gpu_layer, mla.linear_q_proj), false},
    {"self_attention.linear_q_down_proj.weight", offsetof(gpu_layer, mla.linear_q_down_proj), false},
    {"self_attention.q_layernorm.weight", offsetof(gpu_layer, mla.q_layernorm), false},
    {"self_attention.linear_q_up_proj.weight", offsetof(gpu_layer, mla.linear_q_up_proj), false},
    {"self_attention.linear_kv_down_proj.weight", offsetof(gpu_layer, mla.linear_kv_down_proj), true},
    {"self_attention.kv_layernorm.weight", offsetof(gpu_layer, mla.kv_layernorm), true},
    {"self_attention.linear_kv_up_proj.weight", offsetof(gpu_layer, mla.linear_kv_up_proj), true},
    {"self_attention.linear_proj.weight", offsetof(gpu_layer, mla.linear_proj), true},
    {0},
};
const gpu_layer_kind gpu_mla = {"mla", params, mla_fwd, mla_bwd, mla_again};
