/* Attention over cp. */
#include "gpu/parallel/context.h"

#include <math.h>

#define ATTENTION_ATTRS(m, l, keys)                                                                          \
    GPU_I("batch", (m)->B), GPU_I("seq_q", (m)->sequence.region.length), GPU_I("seq_k", (keys)),             \
        GPU_I("heads", (m)->heads), GPU_I("groups", (m)->groups),                                            \
        GPU_I("head_dim", (m)->config->kv_channels), GPU_I("head_dim_v", (m)->config->kv_channels),          \
        GPU_F("scale", (double)(float)(1.0 / sqrt((double)(m)->config->kv_channels))),                       \
        GPU_I("window", (l)->window)

/* --- all_gather --------------------------------------------------------------------------------------------- */
/* *whole = the pieces of the cp ranks, one after the other. */
static assay_status gather(gpu_model *m, gpu_arena *arena, const char *at, gpu_value *whole, gpu_value *piece)
{
    *whole = gpu_value_describe(arena, piece->ndim, piece->dim, piece->merge);
    whole->dim[0] = gpu_dim_gathered(m);
    return gpu_call(m->run, &(gpu_call_args){.op = "all_gather",
                                             .at = at,
                                             .group = ASSAY_GROUP_CP,
                                             .counts = m->region_rows,
                                             .arg = {GPU_T("send", piece), GPU_T("recv", whole)}});
}

/* *dpiece = this rank's positions of the sum over cp of dwhole: the gradient of `piece`. */
static assay_status gather_bwd(gpu_model *m, const char *at, gpu_value *dpiece, gpu_value *dwhole,
                               const gpu_value *piece)
{
    *dpiece = gpu_partial_kv(m, gpu_grad_of(m, piece));
    return gpu_call(m->run, &(gpu_call_args){.op = "reduce_scatter",
                                             .at = at,
                                             .group = ASSAY_GROUP_CP,
                                             .counts = m->region_rows,
                                             .arg = {GPU_T("send", dwhole), GPU_W("reduction", "sum"),
                                                     GPU_T("recv", dpiece)}});
}

/* --- attention ---------------------------------------------------------------------------------------------- */
static gpu_value *key_positions(gpu_model *m)
{
    return m->cp > 1 ? &m->key_position : &m->position;
}

assay_status gpu_context_attention_fwd(gpu_model *m, gpu_arena *keep, const gpu_layer *l,
                                       gpu_attention_acts *a)
{
    const int64_t A = m->config->num_attention_heads;
    a->keys = a->k;
    a->values = a->v;
    if (m->cp > 1) {
        ASSAY_TRY(gather(m, keep, "self_attention.gather_k", &a->keys, &a->k));
        ASSAY_TRY(gather(m, keep, "self_attention.gather_v", &a->values, &a->v));
    }
    return GPU_CALL(
        m->run, "attention_fwd", "self_attention.core_attention", GPU_T("q", &a->q), GPU_T("k", &a->keys),
        GPU_T("v", &a->values), GPU_T("q_position", &m->position), GPU_T("k_position", key_positions(m)),
        ATTENTION_ATTRS(m, l, m->S),
        GPU_NEW("o", &a->o, gpu_tokens(m, keep, false, gpu_dim_tp(m, A * m->config->kv_channels, 1))),
        GPU_NEW("lse", &a->lse, gpu_tokens(m, keep, false, gpu_dim_tp(m, A, 1))));
}

assay_status gpu_context_attention_bwd(gpu_model *m, const gpu_layer *l, gpu_attention_acts *a, gpu_value *dq,
                                       gpu_value *dk, gpu_value *dv, gpu_value *d_o)
{
    gpu_value dkeys, dvalues;
    ASSAY_TRY(GPU_CALL(
        m->run, "attention_bwd", "self_attention.core_attention", GPU_T("do", d_o), GPU_T("q", &a->q),
        GPU_T("k", &a->keys), GPU_T("v", &a->values), GPU_T("o", &a->o), GPU_T("lse", &a->lse),
        GPU_T("q_position", &m->position), GPU_T("k_position", key_positions(m)), ATTENTION_ATTRS(m, l, m->S),
        GPU_NEW("dq", dq, gpu_grad_of(m, &a->q)),
        GPU_NEW("dk", &dkeys, gpu_partial_kv(m, gpu_partial(m, gpu_grad_of(m, &a->keys), ASSAY_GROUP_CP))),
        GPU_NEW("dv", &dvalues,
                gpu_partial_kv(m, gpu_partial(m, gpu_grad_of(m, &a->values), ASSAY_GROUP_CP)))));
    if (m->cp == 1) {
        *dk = dkeys;
        *dv = dvalues;
        return ASSAY_OK;
    }
    ASSAY_TRY(gather_bwd(m, "self_attention.gather_k", dk, &dkeys, &a->k));
    return gather_bwd(m, "self_attention.gather_v", dv, &dvalues, &a->v);
}
