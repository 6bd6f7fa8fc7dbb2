/* Descriptions, memory and places of values. */
#include "gpu/value.h"

#include <string.h>

gpu_dim gpu_dim_whole(int64_t n)
{
    return (gpu_dim){.global = n, .start = 0, .length = n, .blocks = 1};
}

gpu_dim gpu_dim_positions(int64_t global, const assay_sequence *sequence)
{
    return (gpu_dim){.global = global, .length = sequence->length, .blocks = 1, .sequence = sequence};
}

gpu_dim gpu_dim_piece(int64_t global, int64_t start, int64_t length)
{
    return (gpu_dim){.global = global, .start = start, .length = length, .blocks = 1};
}

gpu_dim gpu_dim_split(int64_t global, int blocks, int parts, int rank)
{
    gpu_dim d = {.global = global, .blocks = blocks};
    assay_split(global / blocks, parts, rank, &d.start, &d.length);
    return d;
}

gpu_value gpu_value_describe(gpu_arena *arena, int ndim, const gpu_dim *dim, int merge)
{
    gpu_value v;
    memset(&v, 0, sizeof v);
    v.arena = arena;
    v.merge = merge;
    v.ndim = ndim;
    for (int d = 0; d < ndim; d++)
        v.dim[d] = dim[d];
    return v;
}

gpu_value *gpu_value_set(gpu_value *v, gpu_value description)
{
    *v = description;
    return v;
}

void gpu_value_place(gpu_value *v, assay_dtype dtype, void *data)
{
    int64_t shape[GPU_MAX_DIMS] = {0};
    int n = 0;
    for (int d = 0; d < v->ndim; d++) {
        const int64_t length = v->dim[d].length * v->dim[d].blocks;
        if (v->merge >= 0 && d == v->merge + 1)
            shape[n - 1] *= length;
        else
            shape[n++] = length;
    }
    v->t = gpu_tensor_make(data, dtype, n, shape);
    v->arena = NULL; /* made: a second call that writes it keeps the memory */
}

assay_status gpu_value_make(gpu_value *v, assay_dtype dtype)
{
    gpu_arena *arena = v->arena;
    gpu_value_place(v, dtype, NULL);
    return gpu_arena_take(arena, gpu_tensor_bytes(v->t), &v->t.data);
}

gpu_value gpu_value_flat(const gpu_value *v)
{
    gpu_value flat = *v;
    flat.t = gpu_tensor_1d(v->t.data, v->t.dtype, gpu_tensor_count(v->t));
    return flat;
}

void gpu_value_shard(const gpu_value *v, assay_shard *s)
{
    if (v->shard) {
        *s = *v->shard;
        return;
    }
    memset(s, 0, sizeof *s);
    s->ndim = v->ndim;
    for (int d = 0; d < v->ndim; d++) {
        const gpu_dim *k = &v->dim[d];
        const int64_t block = k->global / k->blocks;
        if (k->sequence) {
            assay_sequence_place(k->sequence, k->global, s, d);
            continue;
        }
        s->global_shape[d] = k->global;
        s->local_shape[d] = k->length * k->blocks;
        if (k->length == 0) {
            assay_shard_set(s, d, NULL, 0);
            continue;
        }
        if (k->length == block) { /* adjacent blocks are one segment */
            assay_shard_set(s, d, &(assay_segment){.start = 0, .length = k->global}, 1);
            continue;
        }
        assay_segment cut[ASSAY_MAX_SEGMENTS];
        for (int i = 0; i < k->blocks; i++)
            cut[i] = (assay_segment){.start = i * block + k->start, .length = k->length};
        assay_shard_set(s, d, cut, k->blocks);
    }
}
