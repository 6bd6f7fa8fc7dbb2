/* Attention over cp by all_to_all (Ulysses): the whole sequence of some heads instead of a piece of all. */
#include "gpu/parallel/context_internal.h"

#include "gpu/documents.h"

/* [P,T,width/P], meaningful here alone: the heads of every cp rank together. */
static gpu_value packed_of(gpu_model *m, int64_t width)
{
    const gpu_dim dim[4] = {gpu_dim_whole(m->cp), gpu_dim_whole(m->sequence.region.length),
                            gpu_dim_whole(m->B), gpu_dim_whole(width / m->cp)};
    gpu_value v = gpu_value_describe(&m->scratch, 4, dim, 1);
    v.kind = ASSAY_PIECE_LOCAL;
    return v;
}

/* Heads of this tp rank and the width of each. */
typedef struct widths {
    int64_t heads, dim;
} widths;

static widths of_queries(const gpu_model *m)
{
    return (widths){m->heads, m->config->kv_channels};
}

static widths of_keys(const gpu_model *m)
{
    return (widths){m->groups, m->config->kv_channels};
}

static widths of_values(const gpu_model *m)
{
    return (widths){m->groups, assay_config_value_dim(m->config)};
}

static widths of_output(const gpu_model *m)
{
    return (widths){m->heads, assay_config_value_dim(m->config)};
}

/* x and y: [T,heads,D] and [P,T,heads/P,D] of this rank, or the other way round. */
static assay_status repack(gpu_model *m, const char *op, const char *at, gpu_value *y, gpu_value *x, widths w)
{
    return GPU_CALL(m->run, op, at, GPU_T("x", x), GPU_I("heads", w.heads), GPU_I("head_dim", w.dim),
                    GPU_I("parts", m->cp), GPU_T("y", y));
}

/* outward: packed heads of the own positions -> own heads of all positions; else the way back. */
static assay_status exchange(gpu_model *m, const char *at, gpu_value *recv, gpu_value *send, bool outward)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "all_to_all",
                                             .at = at,
                                             .group = ASSAY_GROUP_CP,
                                             .counts = outward ? m->one_each : m->region_rows,
                                             .recv_counts = outward ? m->region_rows : m->one_each,
                                             .arg = {GPU_T("send", send), GPU_T("recv", recv)}});
}

/* *all = x [S,B,heads,D] with the heads dealt out and the sequence gathered. */
static assay_status heads_to_sequence(gpu_model *m, gpu_arena *keep, const char *pack, const char *a2a,
                                      gpu_value *all, gpu_value *x, widths w)
{
    gpu_value packed = packed_of(m, w.heads * w.dim);
    ASSAY_TRY(repack(m, "pack_heads", pack, &packed, x, w));
    *all = gpu_value_describe(keep, x->ndim, x->dim, x->merge);
    all->dim[0] = gpu_dim_gathered(m);
    all->dim[2] = gpu_context_dealt(m, x->dim[2].global, m->cp);
    return exchange(m, a2a, all, &packed, true);
}

static assay_status heads_to_sequence_bwd(gpu_model *m, const char *pack, const char *a2a, gpu_value *dx,
                                          gpu_value *dall, const gpu_value *x, widths w)
{
    gpu_value packed = gpu_named(m, packed_of(m, w.heads * w.dim), pack, "y.grad");
    ASSAY_TRY(exchange(m, a2a, &packed, dall, false));
    *dx = gpu_grad_of(m, x);
    return repack(m, "unpack_heads", pack, dx, &packed, w);
}

static gpu_context_attention over_heads(gpu_model *m, gpu_attention_acts *a)
{
    return (gpu_context_attention){.at = "self_attention.core_attention",
                                   .q = &a->queries,
                                   .k = &a->keys,
                                   .v = &a->values,
                                   .q_position = &m->key_position,
                                   .k_position = &m->key_position,
                                   .first_key = gpu_documents_start(a->documents, true),
                                   .seq_q = m->S,
                                   .seq_k = m->S,
                                   .parts = m->cp};
}

assay_status gpu_context_a2a_fwd(gpu_model *m, gpu_arena *keep, const gpu_layer *l, gpu_attention_acts *a)
{
    const gpu_context_attention x = over_heads(m, a);
    const widths out = of_output(m);
    gpu_value packed = packed_of(m, out.heads * out.dim);
    ASSAY_TRY(heads_to_sequence(m, keep, "self_attention.pack_q", "self_attention.a2a_q", &a->queries, &a->q,
                                of_queries(m)));
    ASSAY_TRY(heads_to_sequence(m, keep, "self_attention.pack_k", "self_attention.a2a_k", &a->keys, &a->k,
                                of_keys(m)));
    ASSAY_TRY(heads_to_sequence(m, keep, "self_attention.pack_v", "self_attention.a2a_v", &a->values, &a->v,
                                of_values(m)));
    a->attended = gpu_context_result(m, keep, &x, out.dim);
    a->lse = gpu_context_result(m, keep, &x, 1);
    ASSAY_TRY(gpu_context_call_fwd(m, l, &x, &a->attended, &a->lse));
    ASSAY_TRY(exchange(m, "self_attention.a2a_o", &packed, &a->attended, false));
    a->o = gpu_tokens(m, keep, false, gpu_dim_tp(m, m->config->num_attention_heads * out.dim, 1));
    return repack(m, "unpack_heads", "self_attention.unpack_o", &a->o, &packed, out);
}

assay_status gpu_context_a2a_bwd(gpu_model *m, const gpu_layer *l, gpu_attention_acts *a, gpu_value *dq,
                                 gpu_value *dk, gpu_value *dv, gpu_value *d_o)
{
    const gpu_context_attention x = over_heads(m, a);
    const widths out = of_output(m);
    gpu_value packed = gpu_named(m, packed_of(m, out.heads * out.dim), "self_attention.a2a_o", "recv.grad");
    gpu_value dattended = gpu_grad_of(m, &a->attended), dqueries = gpu_grad_of(m, &a->queries),
              dkeys = gpu_grad_of(m, &a->keys), dvalues = gpu_grad_of(m, &a->values);
    ASSAY_TRY(repack(m, "pack_heads", "self_attention.unpack_o", &packed, d_o, out));
    ASSAY_TRY(exchange(m, "self_attention.a2a_o", &dattended, &packed, true));
    ASSAY_TRY(gpu_context_call_bwd(m, l, &x, &dattended, &a->attended, &a->lse, &dqueries, &dkeys, &dvalues));
    ASSAY_TRY(heads_to_sequence_bwd(m, "self_attention.pack_q", "self_attention.a2a_q", dq, &dqueries, &a->q,
                                    of_queries(m)));
    ASSAY_TRY(heads_to_sequence_bwd(m, "self_attention.pack_k", "self_attention.a2a_k", dk, &dkeys, &a->k,
                                    of_keys(m)));
    return heads_to_sequence_bwd(m, "self_attention.pack_v", "self_attention.a2a_v", dv, &dvalues, &a->v,
                                 of_values(m));
}
