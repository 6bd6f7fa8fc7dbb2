/* Contiguous main gradients and their reduction by buckets. */
#include "gpu/parallel/grad_buffer.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN_ELEMENTS = 64 }; /* parameters start on 256-byte boundaries */

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static assay_status close_bucket(gpu_grad_buffer *b, int64_t start, int64_t *end)
{
    ASSAY_CHECK(b->n_buckets < GPU_MAX_BUCKETS, ASSAY_LIMIT, "gradient buffer: more than %d buckets",
                GPU_MAX_BUCKETS);
    const int64_t length = round_up(*end - start, (int64_t)ALIGN_ELEMENTS * b->size);
    b->buckets[b->n_buckets].start = start;
    b->buckets[b->n_buckets++].length = length;
    *end = start + length;
    return ASSAY_OK;
}

assay_status gpu_grad_buffer_create(gpu_grad_buffer *b, gpu_model *m, assay_group group,
                                    int64_t bucket_elements)
{
    memset(b, 0, sizeof *b);
    const gpu_comm_group *g = &m->run->comm.group[group];
    b->group = group;
    b->size = g->size;
    b->rank = g->rank;
    b->act = m->run->recipe->op[ASSAY_OPS_LINEAR].weight;
    b->params = calloc((size_t)m->n_params, sizeof *b->params);
    b->offsets = calloc((size_t)m->n_params, sizeof *b->offsets);
    b->buckets = calloc(GPU_MAX_BUCKETS, sizeof *b->buckets);
    b->ready = calloc(GPU_MAX_BUCKETS, sizeof *b->ready);
    ASSAY_CHECK(b->params && b->offsets && b->buckets && b->ready, ASSAY_OUT_OF_MEMORY,
                "gradient buffer: %lld parameters", (long long)m->n_params);
    int64_t at = 0, bucket_start = 0;
    for (int64_t i = 0; i < m->n_params; i++) {
        gpu_param *p = &m->params[i];
        if (!assay_param_needs_grad(p->spec) || assay_param_reduce_group(p->spec) != group)
            continue;
        ASSAY_CHECK(b->n_buckets < GPU_MAX_BUCKETS, ASSAY_LIMIT, "gradient buffer: more than %d buckets",
                    GPU_MAX_BUCKETS);
        p->bucket = b->n_buckets;
        b->buckets[p->bucket].n_params++;
        b->params[b->n_params] = p;
        b->offsets[b->n_params++] = at;
        at += round_up(p->count, ALIGN_ELEMENTS);
        if (at - bucket_start >= bucket_elements) {
            ASSAY_TRY(close_bucket(b, bucket_start, &at));
            bucket_start = at;
        }
    }
    if (at > bucket_start)
        ASSAY_TRY(close_bucket(b, bucket_start, &at));
    b->length = at;
    return ASSAY_OK;
}

void gpu_grad_buffer_destroy(gpu_grad_buffer *b)
{
    free(b->params);
    free(b->offsets);
    free(b->buckets);
    free(b->ready);
    memset(b, 0, sizeof *b);
}

assay_status gpu_grad_buffer_alloc(gpu_grad_buffer *b, gpu_arena *arena)
{
    void *data, *params;
    const int64_t bytes = assay_dtype_bytes(b->act);
    ASSAY_TRY(gpu_arena_take(arena, (size_t)b->length * sizeof(float), &data));
    ASSAY_TRY(gpu_arena_take(arena, (size_t)(b->length * bytes), &params));
    b->data = data;
    b->param_data = params;
    for (int64_t i = 0; data && i < b->n_params; i++) {
        b->params[i]->main_grad.t.data = b->data + b->offsets[i];
        b->params[i]->weight.t.data = b->param_data + b->offsets[i] * bytes;
    }
    return ASSAY_OK;
}

assay_status gpu_grad_buffer_zero(gpu_grad_buffer *b, gpu_model *m)
{
    if (b->length > 0)
        CUDA_TRY(cudaMemsetAsync(b->data, 0, (size_t)b->length * sizeof(float), m->run->ctx.stream));
    b->n_ready = 0;
    for (int k = 0; k < b->n_buckets; k++)
        b->buckets[k].n_pending = b->buckets[k].n_params;
    for (int64_t i = 0; i < b->n_params; i++) {
        b->params[i]->main_grad.phase = ASSAY_PHASE_BACKWARD;
        b->params[i]->main_grad.microbatch = -1;
    }
    return ASSAY_OK;
}

assay_status gpu_grad_buffer_ready(gpu_grad_buffer *b, const gpu_param *p)
{
    gpu_bucket *k = &b->buckets[p->bucket];
    ASSAY_CHECK(k->n_pending > 0, ASSAY_INTERNAL, "%s: more gradients of its bucket are ready than it has",
                p->spec->name);
    if (--k->n_pending == 0)
        b->ready[b->n_ready++] = p->bucket;
    return ASSAY_OK;
}

void gpu_bucket_part(const gpu_grad_buffer *b, int index, int rank, int64_t *start, int64_t *length)
{
    const gpu_bucket *k = &b->buckets[index];
    *length = k->length / b->size;
    *start = k->start + rank * *length;
}

assay_status gpu_start_grad_sync(gpu_grad_buffer *b, gpu_model *m, int index, bool scatter)
{
    gpu_run *run = m->run;
    const gpu_bucket *k = &b->buckets[index];
    gpu_comm_call call = {.op = GPU_COMM_ALL_REDUCE,
                          .group = b->group,
                          .send = b->data + k->start,
                          .recv = b->data + k->start,
                          .count = k->length,
                          .dtype = ASSAY_F32};
    if (b->size == 1)
        return ASSAY_OK;
    CUDA_TRY(cudaEventRecord(run->compute_done, run->ctx.stream));
    CUDA_TRY(cudaStreamWaitEvent(run->comm_stream, run->compute_done, 0));
    if (scatter) {
        int64_t start, length;
        gpu_bucket_part(b, index, b->rank, &start, &length);
        call.op = GPU_COMM_REDUCE_SCATTER;
        call.recv = b->data + start;
        call.count = length;
    }
    return gpu_comm_enqueue(&run->comm, &call, run->comm_stream);
}

assay_status gpu_finish_grad_sync(gpu_model *m)
{
    gpu_run *run = m->run;
    CUDA_TRY(cudaEventRecord(run->comm_done, run->comm_stream));
    CUDA_TRY(cudaStreamWaitEvent(run->ctx.stream, run->comm_done, 0));
    return ASSAY_OK;
}

assay_status gpu_param_sync(gpu_grad_buffer *b, gpu_model *m, bool f32)
{
    gpu_run *run = m->run;
    char *base = f32 ? (char *)b->data : b->param_data;
    const assay_dtype dtype = f32 ? ASSAY_F32 : b->act;
    const int64_t bytes = assay_dtype_bytes(dtype);
    if (b->size == 1)
        return ASSAY_OK;
    for (int i = 0; i < b->n_buckets; i++) {
        int64_t start, length;
        gpu_bucket_part(b, i, b->rank, &start, &length);
        const gpu_comm_call call = {.op = GPU_COMM_ALL_GATHER,
                                    .group = b->group,
                                    .send = base + start * bytes,
                                    .recv = base + b->buckets[i].start * bytes,
                                    .count = length,
                                    .dtype = dtype};
        ASSAY_TRY(gpu_comm_enqueue(&run->comm, &call, run->ctx.stream));
    }
    return ASSAY_OK;
}

/* --- rectangles --------------------------------------------------------------------------------------------- */
typedef struct rectangles {
    int n;
    assay_shard *out;
    int64_t *flat_start;
} rectangles;

/* Cuts [start, start+length) of the box `s`, whose dimensions before `dim` have extent 1. */
static void cut(rectangles *r, const assay_shard *s, int dim, int64_t start, int64_t length, int64_t flat)
{
    if (length == 0 || r->n == GPU_MAX_PIECES)
        return;
    int64_t row = 1;
    for (int d = dim + 1; d < s->ndim; d++)
        row *= s->local_shape[d];
    const int64_t first = start / row, head = start % row;
    if (head != 0 || length < row) { /* a part of one row, then the rest */
        const int64_t n = head + length < row ? length : row - head;
        assay_shard one = *s;
        (void)assay_shard_narrow(&one, dim, first, 1);
        cut(r, &one, dim + 1, head, n, flat);
        cut(r, s, dim, start + n, length - n, flat + n);
        return;
    }
    assay_shard rows = *s;
    (void)assay_shard_narrow(&rows, dim, first, length / row);
    r->out[r->n] = rows;
    r->flat_start[r->n++] = flat;
    const int64_t done = length / row * row;
    cut(r, s, dim, start + done, length - done, flat + done);
}

int gpu_flat_rectangles(const assay_shard *piece, int64_t start, int64_t length, assay_shard *out,
                        int64_t *flat_start)
{
    rectangles r = {.out = out, .flat_start = flat_start};
    cut(&r, piece, 0, start, length, start);
    return r.n;
}
