/* Values, names and trace records. */
#include "gpu/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

gpu_dim gpu_dim_whole(int64_t n)
{
    return (gpu_dim){.global = n, .start = 0, .length = n, .blocks = 1};
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
    v->kind = forward->kind == ASSAY_PIECE_ROWS ? ASSAY_PIECE_ROWS : ASSAY_PIECE_SHARD;
    v->rows = forward->rows;
    v->shard = NULL;
    v->ndim = forward->ndim;
    memcpy(v->dim, forward->dim, sizeof v->dim);
    if (run->trace)
        snprintf(v->name, sizeof v->name, "%.*s.grad", (int)sizeof v->name - 6, forward->name);
}

int64_t gpu_value_count(const gpu_value *v)
{
    if (v->shard)
        return assay_shard_count(v->shard);
    int64_t n = 1;
    for (int d = 0; d < v->ndim; d++)
        n *= v->dim[d].length * v->dim[d].blocks;
    return n;
}

/* --- transfers ---------------------------------------------------------------------------------------------- */
assay_status gpu_run_download(gpu_run *run, void *dst, const void *src, size_t bytes, const char *where)
{
    /* A copy to pageable memory blocks the host until the stream is done: wait under the watchdog first. */
    ASSAY_TRY(gpu_comm_wait(&run->comm, run->ctx.stream, where));
    if (bytes > 0)
        CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, run->ctx.stream));
    return gpu_comm_wait(&run->comm, run->ctx.stream, where);
}

assay_status gpu_run_upload(gpu_run *run, void *dst, const void *src, size_t bytes, const char *where)
{
    if (bytes > 0)
        CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, run->ctx.stream));
    return gpu_comm_wait(&run->comm, run->ctx.stream, where);
}

/* --- records ------------------------------------------------------------------------------------------------ */
static void dims_to_shard(const gpu_value *v, assay_shard *s)
{
    memset(s, 0, sizeof *s);
    s->ndim = v->ndim;
    for (int d = 0; d < v->ndim; d++) {
        const gpu_dim *k = &v->dim[d];
        const int64_t block = k->global / k->blocks;
        s->global_shape[d] = k->global;
        s->local_shape[d] = k->length * k->blocks;
        if (k->length == 0)
            continue;
        if (k->length == block) { /* adjacent blocks are one segment */
            s->n_segments[d] = 1;
            s->segments[d][0] = (assay_segment){.start = 0, .length = k->global};
            continue;
        }
        s->n_segments[d] = k->blocks;
        for (int i = 0; i < k->blocks; i++)
            s->segments[d][i] = (assay_segment){.start = i * block + k->start, .length = k->length};
    }
}

static assay_status fill_record(const gpu_run *run, const gpu_value *v, assay_trace_tensor *t)
{
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", v->name);
    t->phase = v->phase;
    t->step = run->step;
    t->microbatch = v->microbatch;
    t->dtype = v->t.dtype;
    t->kind = v->kind;
    t->rows_id = -1;
    if (v->shard)
        t->shard = *v->shard;
    else
        dims_to_shard(v, &t->shard);
    if (v->kind == ASSAY_PIECE_PARTIAL)
        snprintf(t->partial_group, sizeof t->partial_group, "%s", assay_group_name(v->partial));
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

static assay_status write_value(gpu_run *run, const gpu_value *v, int64_t *id)
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
    return run->trace == NULL || run->dry ? ASSAY_OK : write_value(run, v, &id);
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

static assay_status write_slots(gpu_run *run, const gpu_operand *operands, int n, assay_trace_slot *slots,
                                int *n_slots)
{
    for (int i = 0; i < n; i++) {
        if (operands[i].value == NULL)
            continue;
        ASSAY_CHECK(*n_slots < ASSAY_MAX_SLOTS, ASSAY_INTERNAL, "trace: more than %d slots", ASSAY_MAX_SLOTS);
        assay_trace_slot *s = &slots[*n_slots];
        snprintf(s->slot, sizeof s->slot, "%s", operands[i].slot);
        ASSAY_TRY(write_value(run, operands[i].value, &s->tensor));
        (*n_slots)++;
    }
    return ASSAY_OK;
}

assay_status gpu_trace_begin(gpu_run *run, gpu_record *r, const char *op, const char *at,
                             const gpu_operand *inputs, int n_inputs)
{
    r->on = run->trace != NULL && !run->dry;
    if (!r->on)
        return ASSAY_OK;
    memset(&r->op, 0, sizeof r->op);
    snprintf(r->op.op, sizeof r->op.op, "%s", op);
    gpu_instance(run, at, r->op.instance);
    r->op.phase = run->phase;
    r->op.step = run->step;
    r->op.microbatch = run->microbatch;
    return write_slots(run, inputs, n_inputs, r->op.inputs, &r->op.n_inputs);
}

assay_status gpu_trace_end(gpu_run *run, gpu_record *r, const gpu_operand *outputs, int n_outputs,
                           json_t *attrs)
{
    assay_status st = ASSAY_OK;
    if (!r->on)
        goto done;
    r->op.variant = run->ctx.declared.variant;
    r->op.arith = run->ctx.declared.arith;
    snprintf(r->op.variant_name, sizeof r->op.variant_name, "%s",
             run->ctx.declared.variant_name ? run->ctx.declared.variant_name : "");
    r->op.attrs = attrs;
    ASSAY_TRY_GOTO(write_slots(run, outputs, n_outputs, r->op.outputs, &r->op.n_outputs), st, done);
    ASSAY_TRY_GOTO(assay_trace_write_op(run->trace, &r->op), st, done);
done:
    json_decref(attrs);
    return st;
}

assay_status gpu_trace_end_collective(gpu_run *run, gpu_record *r, assay_group group,
                                      const gpu_operand *outputs, int n_outputs, json_t *attrs)
{
    if (r->on) {
        const gpu_comm_group *g = &run->comm.group[group];
        snprintf(r->op.group, sizeof r->op.group, "%s", assay_group_name(group));
        r->op.n_group_ranks = g->size;
        r->op.group_ranks = g->ranks;
        run->ctx.declared =
            (gpu_declared){.variant_name = "nccl",
                           .arith = {.accumulate = n_outputs > 0 && outputs[0].value &&
                                                           outputs[0].value->t.dtype == ASSAY_F64
                                                       ? ASSAY_F64
                                                       : ASSAY_F32,
                                     .order = ASSAY_ORDER_SEQUENTIAL,
                                     .lanes = 1,
                                     .split = 1,
                                     .k_step = 1}};
    }
    return gpu_trace_end(run, r, outputs, n_outputs, attrs);
}
