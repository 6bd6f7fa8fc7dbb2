/* Tensor and sequence parallel collectives. */
#include "gpu/parallel/tensor.h"

#include <stdlib.h>

assay_status gpu_all_reduce(gpu_model *m, const char *at, assay_group group, gpu_value *recv, gpu_value *send,
                            bool skip)
{
    gpu_run *run = m->run;
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"send", send}}, out[] = {{"recv", recv}};
    const gpu_comm_call call = {.op = GPU_COMM_ALL_REDUCE,
                                .group = group,
                                .send = send->t.data,
                                .recv = recv->t.data,
                                .count = gpu_tensor_count(send->t),
                                .dtype = send->t.dtype};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "all_reduce", at, in, 1));
    if (skip && recv->t.data != send->t.data)
        CUDA_TRY(cudaMemcpyAsync(recv->t.data, send->t.data, gpu_tensor_bytes(send->t),
                                 cudaMemcpyDeviceToDevice, run->ctx.stream));
    else if (!skip && call.count > 0)
        ASSAY_TRY(gpu_comm_enqueue(&run->comm, &call, run->ctx.stream));
    return gpu_trace_end_collective(
        run, &r, group, out, 1,
        GPU_ATTRS(run, "{s:s, s:s}", "reduction", "sum", "dtype", assay_dtype_name(send->t.dtype)));
}

/* Elements of every tp rank's sequence piece when one row of s has `row` elements; NULL: out of memory. */
static int64_t *sequence_counts(const gpu_model *m, int64_t row)
{
    int64_t *counts = calloc((size_t)m->tp, sizeof *counts);
    for (int r = 0; counts && r < m->tp; r++) {
        int64_t start;
        assay_split(m->S, m->tp, r, &start, &counts[r]);
        counts[r] *= row;
    }
    return counts;
}

/* [rows of s for each rank], or NULL when they are equal or nobody reads them. */
static json_t *uneven_rows(const gpu_model *m)
{
    if (m->run->trace == NULL || m->S % m->tp == 0)
        return NULL;
    json_t *rows = json_array();
    for (int r = 0; r < m->tp; r++) {
        int64_t start, length;
        assay_split(m->S, m->tp, r, &start, &length);
        json_array_append_new(rows, json_integer(length));
    }
    return rows;
}

static json_t *sequence_attrs(const gpu_model *m, const char *reduction, assay_dtype dtype)
{
    json_t *attrs = GPU_ATTRS(m->run, "{s:s}", "dtype", assay_dtype_name(dtype));
    json_t *rows = uneven_rows(m);
    if (attrs && reduction)
        json_object_set_new(attrs, "reduction", json_string(reduction));
    if (attrs && rows)
        json_object_set_new(attrs, "counts", rows);
    return attrs;
}

assay_status gpu_gather_from_sequence_parallel_region(gpu_model *m, const char *at, gpu_value *recv,
                                                      gpu_value *send)
{
    gpu_run *run = m->run;
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"send", send}}, out[] = {{"recv", recv}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "all_gather", at, in, 1));
    int64_t *counts = sequence_counts(m, gpu_tensor_count(recv->t) / m->S);
    ASSAY_CHECK(counts, ASSAY_OUT_OF_MEMORY, "all_gather: counts of %d ranks", m->tp);
    const assay_status st = gpu_comm_all_gather_v(&run->comm, ASSAY_GROUP_TP, send->t.data, recv->t.data,
                                                  counts, send->t.dtype, run->ctx.stream);
    free(counts);
    ASSAY_TRY(st);
    return gpu_trace_end_collective(run, &r, ASSAY_GROUP_TP, out, 1, sequence_attrs(m, NULL, send->t.dtype));
}

assay_status gpu_reduce_scatter_to_sequence_parallel_region(gpu_model *m, const char *at, gpu_value *recv,
                                                            gpu_value *send, bool skip)
{
    gpu_run *run = m->run;
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"send", send}}, out[] = {{"recv", recv}};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "reduce_scatter", at, in, 1));
    int64_t *counts = sequence_counts(m, gpu_tensor_count(send->t) / m->S);
    ASSAY_CHECK(counts, ASSAY_OUT_OF_MEMORY, "reduce_scatter: counts of %d ranks", m->tp);
    assay_status st = ASSAY_OK;
    if (skip)
        (void)cudaMemcpyAsync(recv->t.data, gpu_tensor_rows(send->t, m->s0 * m->B, m->sl * m->B).data,
                              gpu_tensor_bytes(recv->t), cudaMemcpyDeviceToDevice, run->ctx.stream);
    else
        st = gpu_comm_reduce_scatter_v(&run->comm, ASSAY_GROUP_TP, send->t.data, recv->t.data, counts,
                                       send->t.dtype, run->ctx.stream);
    free(counts);
    ASSAY_TRY(st);
    return gpu_trace_end_collective(run, &r, ASSAY_GROUP_TP, out, 1, sequence_attrs(m, "sum", send->t.dtype));
}

assay_status gpu_all_gather(gpu_model *m, const char *at, assay_group group, gpu_value *recv, gpu_value *send)
{
    gpu_run *run = m->run;
    if (run->dry)
        return ASSAY_OK;
    const gpu_operand in[] = {{"send", send}}, out[] = {{"recv", recv}};
    const gpu_comm_call call = {.op = GPU_COMM_ALL_GATHER,
                                .group = group,
                                .send = send->t.data,
                                .recv = recv->t.data,
                                .count = gpu_tensor_count(send->t),
                                .dtype = send->t.dtype};
    gpu_record r;
    ASSAY_TRY(gpu_trace_begin(run, &r, "all_gather", at, in, 1));
    if (call.count > 0)
        ASSAY_TRY(gpu_comm_enqueue(&run->comm, &call, run->ctx.stream));
    return gpu_trace_end_collective(run, &r, group, out, 1,
                                    GPU_ATTRS(run, "{s:s}", "dtype", assay_dtype_name(send->t.dtype)));
}
