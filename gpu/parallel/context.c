/* Attention over cp: one call of it, keys by all_gather, and which way a layout takes. */
#include "gpu/parallel/context_internal.h"

#include "gpu/documents.h"
#include "gpu/dropout.h"
#include "gpu/yarn.h"

#define ATTENTION_SLOTS(x)                                                                                   \
    GPU_T("q", (x)->q), GPU_T("k", (x)->k), GPU_T("v", (x)->v), GPU_T("q_position", (x)->q_position),        \
        GPU_T("k_position", (x)->k_position), GPU_T("first_key", (x)->first_key)
#define ATTENTION_ATTRS(m, l, x)                                                                             \
    GPU_I("batch", (m)->B), GPU_I("seq_q", (x)->seq_q), GPU_I("seq_k", (x)->seq_k),                          \
        GPU_I("heads", (m)->heads / (x)->parts), GPU_I("groups", (m)->groups / (x)->parts),                  \
        GPU_I("head_dim", (m)->config->kv_channels),                                                         \
        GPU_I("head_dim_v", assay_config_value_dim((m)->config)),                                            \
        GPU_F("scale", (double)(float)gpu_yarn_softmax_scale((m)->config)), GPU_I("window", (l)->window)

/* This rank's piece of n things that tp cuts, and cp, too, where the heads are dealt out. */
gpu_dim gpu_context_dealt(const gpu_model *m, int64_t n, int64_t parts)
{
    const gpu_dim whole = gpu_dim_tp(m, n, 1);
    const int64_t each = whole.length / parts;
    return gpu_dim_piece(n, whole.start + (parts > 1 ? m->at.cp * each : 0), each);
}

/* o (or lse: d = 1) of `x`. */
gpu_value gpu_context_result(const gpu_model *m, gpu_arena *arena, const gpu_context_attention *x, int64_t d)
{
    const gpu_dim dim[3] = {x->parts > 1 ? gpu_dim_gathered(m) : gpu_dim_sequence(m, false), gpu_dim_batch(m),
                            gpu_context_dealt(m, m->config->num_attention_heads * d, x->parts)};
    return gpu_value_describe(arena, 3, dim, 0);
}

/* Where probabilities are dropped: which mask, and which part of it.  Without dropout the call has no such attribute. */
static void add_dropout(gpu_model *m, const gpu_layer *l, const gpu_context_attention *x, gpu_call_args *args)
{
    const double p = m->options->attention_dropout;
    const gpu_mask_attrs mask = gpu_dropout_mask(m, GPU_DROP_PROBS, l->number);
    const gpu_arg attrs[] = {
        GPU_F("dropout_p", p),
        GPU_I("seed", mask.seed),
        GPU_I("stream", mask.stream),
        GPU_I("draw", mask.draw),
        GPU_I("first_row", m->row0),
        GPU_I("all_rows", m->B_global),
        GPU_I("first_head", gpu_context_dealt(m, m->config->num_attention_heads, x->parts).start),
        GPU_I("all_heads", m->config->num_attention_heads),
        GPU_I("all_keys", m->S)};
    int n = 0;
    while (n < GPU_CALL_ARGS && args->arg[n].name)
        n++;
    for (size_t i = 0; p > 0.0 && i < sizeof attrs / sizeof attrs[0]; i++)
        args->arg[n++] = attrs[i];
}

/* o and lse are described. */
assay_status gpu_context_call_fwd(gpu_model *m, const gpu_layer *l, const gpu_context_attention *x,
                                  gpu_value *o, gpu_value *lse)
{
    gpu_call_args args = {
        .op = "attention_fwd",
        .at = x->at,
        .arg = {ATTENTION_SLOTS(x), ATTENTION_ATTRS(m, l, x), GPU_T("o", o), GPU_T("lse", lse)}};
    add_dropout(m, l, x, &args);
    return gpu_call(m->run, &args);
}

/* dq, dk, dv are described. */
assay_status gpu_context_call_bwd(gpu_model *m, const gpu_layer *l, const gpu_context_attention *x,
                                  gpu_value *d_o, gpu_value *o, gpu_value *lse, gpu_value *dq, gpu_value *dk,
                                  gpu_value *dv)
{
    gpu_call_args args = {.op = "attention_bwd",
                          .at = x->at,
                          .arg = {GPU_T("do", d_o), ATTENTION_SLOTS(x), GPU_T("o", o), GPU_T("lse", lse),
                                  ATTENTION_ATTRS(m, l, x), GPU_T("dq", dq), GPU_T("dk", dk),
                                  GPU_T("dv", dv)}};
    add_dropout(m, l, x, &args);
    return gpu_call(m->run, &args);
}

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

static gpu_context_attention over_gathered(gpu_model *m, gpu_attention_acts *a)
{
    return (gpu_context_attention){.at = "self_attention.core_attention",
                                   .q = &a->queries,
                                   .k = &a->keys,
                                   .v = &a->values,
                                   .q_position = &m->position,
                                   .k_position = m->cp > 1 ? &m->key_position : &m->position,
                                   .first_key = gpu_documents_start(a->documents, false),
                                   .seq_q = m->sequence.region.length,
                                   .seq_k = m->S,
                                   .parts = 1};
}

static assay_status all_gather_fwd(gpu_model *m, gpu_arena *keep, const gpu_layer *l, gpu_attention_acts *a)
{
    const gpu_context_attention x = over_gathered(m, a);
    a->queries = a->q;
    a->keys = a->k;
    a->values = a->v;
    if (m->cp > 1) {
        ASSAY_TRY(gather(m, keep, "self_attention.gather_k", &a->keys, &a->k));
        ASSAY_TRY(gather(m, keep, "self_attention.gather_v", &a->values, &a->v));
    }
    a->o = gpu_context_result(m, keep, &x, assay_config_value_dim(m->config));
    a->lse = gpu_context_result(m, keep, &x, 1);
    ASSAY_TRY(gpu_context_call_fwd(m, l, &x, &a->o, &a->lse));
    a->attended = a->o;
    return ASSAY_OK;
}

static assay_status all_gather_bwd(gpu_model *m, const gpu_layer *l, gpu_attention_acts *a, gpu_value *dq,
                                   gpu_value *dk, gpu_value *dv, gpu_value *d_o)
{
    const gpu_context_attention x = over_gathered(m, a);
    gpu_value dkeys = gpu_partial_kv(m, gpu_partial(m, gpu_grad_of(m, &a->keys), ASSAY_GROUP_CP));
    gpu_value dvalues = gpu_partial_kv(m, gpu_partial(m, gpu_grad_of(m, &a->values), ASSAY_GROUP_CP));
    *dq = gpu_grad_of(m, &a->q);
    ASSAY_TRY(gpu_context_call_bwd(m, l, &x, d_o, &a->attended, &a->lse, dq, &dkeys, &dvalues));
    *dk = dkeys;
    *dv = dvalues;
    if (m->cp == 1)
        return ASSAY_OK;
    ASSAY_TRY(gather_bwd(m, "self_attention.gather_k", dk, &dkeys, &a->k));
    return gather_bwd(m, "self_attention.gather_v", dv, &dvalues, &a->v);
}

/* --- the ways to reach the keys of the other ranks; with cp = 1 the first ------------------------------------ */
static const struct {
    assay_status (*fwd)(gpu_model *m, gpu_arena *keep, const gpu_layer *l, gpu_attention_acts *a);
    assay_status (*bwd)(gpu_model *m, const gpu_layer *l, gpu_attention_acts *a, gpu_value *dq, gpu_value *dk,
                        gpu_value *dv, gpu_value *d_o);
} comm[ASSAY_CP_COMM_COUNT] = {
    [ASSAY_CP_ALL_GATHER] = {all_gather_fwd, all_gather_bwd},
    [ASSAY_CP_A2A] = {gpu_context_a2a_fwd, gpu_context_a2a_bwd},
    [ASSAY_CP_P2P] = {gpu_context_p2p_fwd, gpu_context_p2p_bwd},
};

gpu_arena *gpu_context_own_arena(gpu_model *m, gpu_arena *keep)
{
    const bool again = (m->recompute.modules & ASSAY_RECOMPUTE_CORE_ATTN) != 0;
    return m->cp > 1 && m->grid->p.cp_comm_type != ASSAY_CP_P2P && !again ? &m->scratch : keep;
}

gpu_arena *gpu_context_query_arena(gpu_model *m, gpu_arena *keep)
{
    const bool again = (m->recompute.modules & ASSAY_RECOMPUTE_CORE_ATTN) != 0;
    return m->grid->p.cp_comm_type == ASSAY_CP_A2A && !again ? &m->scratch : keep;
}

assay_status gpu_context_attention_fwd(gpu_model *m, gpu_arena *keep, const gpu_layer *l,
                                       gpu_attention_acts *a)
{
    return comm[m->grid->p.cp_comm_type].fwd(m, keep, l, a);
}

assay_status gpu_context_attention_bwd(gpu_model *m, const gpu_layer *l, gpu_attention_acts *a, gpu_value *dq,
                                       gpu_value *dk, gpu_value *dv, gpu_value *d_o)
{
    return comm[m->grid->p.cp_comm_type].bwd(m, l, a, dq, dk, dv, d_o);
}
