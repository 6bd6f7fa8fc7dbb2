/* Descriptions of values with the model's dimensions. */
#include "gpu/describe.h"

gpu_dim gpu_dim_sequence(const gpu_model *m, bool piece)
{
    return gpu_dim_positions(m->S, piece ? &m->sequence.shard : &m->sequence.region);
}

gpu_dim gpu_dim_gathered(const gpu_model *m)
{
    return gpu_dim_positions(m->S, &m->gathered);
}

gpu_dim gpu_dim_batch(const gpu_model *m)
{
    return gpu_dim_piece(m->B_global, m->row0, m->B);
}

gpu_dim gpu_dim_tp(const gpu_model *m, int64_t global, int blocks)
{
    return gpu_dim_split(global, blocks, m->tp, m->at.tp);
}

gpu_dim gpu_dim_kv(const gpu_model *m)
{
    return gpu_dim_split(m->config->num_query_groups, 1, m->grid->size[ASSAY_AXIS_KV_HEAD],
                         assay_grid_coord(m->grid, ASSAY_AXIS_KV_HEAD, m->run->comm.rank));
}

gpu_dim gpu_dim_qkv(const gpu_model *m)
{
    const int64_t n =
        (m->config->num_attention_heads + 2 * m->config->num_query_groups) * m->config->kv_channels;
    return m->kv_shared ? gpu_dim_positions(n, &m->qkv_columns) : gpu_dim_tp(m, n, 1);
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

gpu_value gpu_partial_kv(const gpu_model *m, gpu_value description)
{
    if (m->kv_shared) {
        description.partial = description.kind == ASSAY_PIECE_PARTIAL ? ASSAY_GROUP_TP_CP : ASSAY_GROUP_TP;
        description.kind = ASSAY_PIECE_PARTIAL;
    }
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
