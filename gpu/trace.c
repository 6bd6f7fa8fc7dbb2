/* Names and trace records. */
#include "gpu/trace.h"

#include "core/base/text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gpu_instance(const gpu_run *run, const char *at, char out[ASSAY_NAME])
{
    if (run->layer >= 0)
        snprintf(out, ASSAY_NAME, "decoder.layers.%lld.%s", (long long)run->layer, at);
    else
        snprintf(out, ASSAY_NAME, "%s", at);
}

void gpu_value_name(const gpu_run *run, gpu_value *v, const char *at, const char *slot)
{
    v->phase = run->phase;
    v->microbatch = run->microbatch;
    if (run->trace == NULL)
        return;
    char instance[ASSAY_NAME];
    gpu_instance(run, at, instance);
    snprintf(v->name, sizeof v->name, "%.*s.%s", (int)sizeof v->name - 26, instance, slot);
}

void gpu_value_rename(const gpu_run *run, gpu_value *v, const char *name)
{
    v->phase = run->phase;
    v->microbatch = run->microbatch;
    if (run->trace)
        snprintf(v->name, sizeof v->name, "%s", name);
}

void gpu_value_grad(const gpu_run *run, gpu_value *v, const gpu_value *forward)
{
    v->phase = run->phase;
    v->microbatch = run->microbatch;
    v->kind = forward->kind == ASSAY_PIECE_ROWS || forward->kind == ASSAY_PIECE_LOCAL ? forward->kind
                                                                                      : ASSAY_PIECE_SHARD;
    v->rows = forward->rows;
    v->shard = NULL;
    v->ndim = forward->ndim;
    memcpy(v->dim, forward->dim, sizeof v->dim);
    v->merge = forward->merge;
    if (run->trace)
        snprintf(v->name, sizeof v->name, "%.*s.grad", (int)sizeof v->name - 6, forward->name);
}

void gpu_value_touch(const gpu_run *run, gpu_value *v)
{
    v->phase = run->phase;
    v->microbatch = run->microbatch;
}

/* --- transfers ---------------------------------------------------------------------------------------------- */
assay_status gpu_run_download(gpu_run *run, void *dst, const void *src, size_t bytes, const char *where)
{
    const int64_t waits = run->comm.waits;
    /* A copy to pageable memory blocks the host until the stream is done: wait under the watchdog first. */
    ASSAY_TRY(gpu_comm_wait(&run->comm, run->ctx.stream, where));
    if (bytes > 0)
        CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, run->ctx.stream));
    ASSAY_TRY(gpu_comm_wait(&run->comm, run->ctx.stream, where));
    run->comm.waits = waits + 1; /* one, before and behind the copy */
    return ASSAY_OK;
}

assay_status gpu_run_upload(gpu_run *run, void *dst, const void *src, size_t bytes, const char *where)
{
    if (bytes > 0)
        CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, run->ctx.stream));
    return gpu_comm_wait(&run->comm, run->ctx.stream, where);
}

/* --- records ------------------------------------------------------------------------------------------------ */
static assay_status fill_record(const gpu_run *run, const gpu_value *v, assay_trace_tensor *t)
{
    memset(t, 0, sizeof *t);
    assay_copy_text(t->name, sizeof t->name, v->name);
    t->phase = v->phase;
    t->step = run->step;
    t->microbatch = v->microbatch;
    t->dtype = v->t.dtype;
    t->kind = v->kind;
    t->rows_id = -1;
    gpu_value_shard(v, &t->shard);
    if (v->kind == ASSAY_PIECE_PARTIAL)
        assay_copy_text(t->partial_group, sizeof t->partial_group, assay_group_name(v->partial));
    if (v->kind == ASSAY_PIECE_ROWS) {
        ASSAY_CHECK(v->rows && v->rows->record >= 0, ASSAY_INTERNAL, "trace: %s: row ids were not written",
                    v->name);
        t->rows_id = v->rows->record;
    }
    if (v->kind == ASSAY_PIECE_ROWS || v->kind == ASSAY_PIECE_LOCAL) {
        int64_t shape[ASSAY_MAX_DIMS];
        memcpy(shape, t->shard.local_shape, sizeof shape);
        const int ndim = t->shard.ndim;
        assay_shard_whole(&t->shard, shape, ndim);
    }
    ASSAY_CHECK(assay_shard_count(&t->shard) == gpu_tensor_count(v->t), ASSAY_INTERNAL,
                "trace: %s: the piece has %lld elements, the tensor %lld", v->name,
                (long long)assay_shard_count(&t->shard), (long long)gpu_tensor_count(v->t));
    ASSAY_CHECK(v->name[0] != '\0', ASSAY_INTERNAL, "trace: a tensor of %lld elements has no name",
                (long long)gpu_tensor_count(v->t));
    return ASSAY_OK;
}

static assay_status host_room(gpu_run *run, size_t bytes)
{
    if (bytes <= run->host_bytes)
        return ASSAY_OK;
    char *grown = realloc(run->host, bytes);
    ASSAY_CHECK(grown, ASSAY_OUT_OF_MEMORY, "trace: %zu bytes of host memory", bytes);
    run->host = grown;
    run->host_bytes = bytes;
    return ASSAY_OK;
}

assay_status gpu_trace_write(gpu_run *run, const gpu_value *v, int64_t *id)
{
    assay_trace_tensor t;
    ASSAY_TRY(fill_record(run, v, &t));
    const size_t bytes = gpu_tensor_bytes(v->t);
    ASSAY_TRY(host_room(run, bytes > 0 ? bytes : 1));
    ASSAY_TRY(gpu_run_download(run, run->host, v->t.data, bytes, v->name));
    ASSAY_TRY(assay_trace_write_tensor(run->trace, &t, run->host));
    *id = t.id;
    return ASSAY_OK;
}

assay_status gpu_trace_value(gpu_run *run, const gpu_value *v)
{
    int64_t id;
    return run->trace == NULL || run->dry ? ASSAY_OK : gpu_trace_write(run, v, &id);
}

assay_status gpu_trace_host(gpu_run *run, const char *name, assay_phase phase, assay_dtype dtype,
                            const assay_shard *shard, const void *data)
{
    if (run->trace == NULL)
        return ASSAY_OK;
    assay_trace_tensor t = {.phase = phase, .step = run->step, .microbatch = -1, .dtype = dtype};
    snprintf(t.name, sizeof t.name, "%s", name);
    t.kind = ASSAY_PIECE_SHARD;
    t.shard = *shard;
    t.rows_id = -1;
    return assay_trace_write_tensor(run->trace, &t, data);
}

assay_status gpu_trace_rows(gpu_run *run, gpu_rows *rows, const char *at)
{
    if (run->trace == NULL)
        return ASSAY_OK;
    char instance[ASSAY_NAME];
    gpu_instance(run, at, instance);
    assay_trace_tensor t = {.phase = run->phase,
                            .step = run->step,
                            .microbatch = run->microbatch,
                            .dtype = ASSAY_I64,
                            .kind = ASSAY_PIECE_LOCAL,
                            .rows_id = -1};
    snprintf(t.name, sizeof t.name, "%.*s.row_ids", (int)sizeof t.name - 10, instance);
    assay_shard_whole(&t.shard, &rows->n, 1);
    ASSAY_TRY(assay_trace_write_tensor(run->trace, &t, rows->ids));
    rows->record = t.id;
    return ASSAY_OK;
}
