/* Collectives of the `ops` verb: host data in, host data out, over the world. */
#include "gpu/main.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                    "broadcast",  "send",       "recv",           NULL};
enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, SEND, RECV };

static int find_name(const char *op)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], op) == 0)
            return i;
    return -1;
}

bool gpu_ops_is_collective(const char *op)
{
    return find_name(op) >= 0;
}

typedef struct job {
    gpu_run *run;
    const assay_trace_op *op;
    int kind;
    int64_t rows, width;           /* of send */
    int64_t *counts, *recv_counts; /* rows by rank */
    int64_t out_rows;
    int ndim;
    int64_t shape[ASSAY_MAX_DIMS];
    assay_dtype dtype;
    void *send, *recv; /* device */
} job;

/* Rows for each rank from an attribute, else a balanced split of `total`. */
static assay_status read_counts(const job *j, const char *key, int64_t total, int64_t *out)
{
    const int world = j->run->comm.world;
    const json_t *list = json_object_get(j->op->attrs, key);
    int64_t sum = 0;
    if (list == NULL) {
        for (int r = 0; r < world; r++) {
            int64_t start;
            assay_split(total, world, r, &start, &out[r]);
        }
        return ASSAY_OK;
    }
    ASSAY_CHECK(json_is_array(list) && json_array_size(list) == (size_t)world, ASSAY_FORMAT,
                "%s: attribute %s: expected a list of %d integers", j->op->op, key, world);
    for (int r = 0; r < world; r++) {
        const json_t *v = json_array_get(list, (size_t)r);
        ASSAY_CHECK(json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < (1 << 30),
                    ASSAY_FORMAT, "%s: attribute %s: entry %d", j->op->op, key, r);
        out[r] = (int64_t)json_integer_value(v);
        sum += out[r];
    }
    ASSAY_CHECK(total < 0 || sum == total, ASSAY_FORMAT, "%s: attribute %s: %lld rows, send has %lld",
                j->op->op, key, (long long)sum, (long long)total);
    return ASSAY_OK;
}

static int64_t sum_counts(const int64_t *counts, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

static assay_status recv_shape(job *j)
{
    const json_t *list = json_object_get(j->op->attrs, "shape");
    char text[32];
    ASSAY_TRY(assay_json_get_string(j->op->attrs, "dtype", true, j->op->op, text, sizeof text));
    ASSAY_TRY(assay_dtype_from_name(text, &j->dtype));
    ASSAY_CHECK(json_is_array(list) && json_array_size(list) >= 1 && json_array_size(list) <= ASSAY_MAX_DIMS,
                ASSAY_FORMAT, "recv: attribute shape: expected 1 to %d extents", ASSAY_MAX_DIMS);
    j->ndim = (int)json_array_size(list);
    j->width = 1;
    for (int d = 0; d < j->ndim; d++) {
        const json_t *v = json_array_get(list, (size_t)d);
        ASSAY_CHECK(json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < (1 << 24),
                    ASSAY_FORMAT, "recv: attribute shape: extent %d", d);
        j->shape[d] = (int64_t)json_integer_value(v);
        if (d > 0)
            j->width *= j->shape[d];
    }
    j->out_rows = j->shape[0];
    return ASSAY_OK;
}

static assay_status prepare(job *j, const assay_trace_tensor *send)
{
    const int world = j->run->comm.world, me = j->run->comm.rank;
    if (j->kind == RECV)
        return recv_shape(j);
    ASSAY_CHECK(send, ASSAY_NOT_FOUND, "%s %s: no input slot 'send'", j->op->op, j->op->instance);
    j->dtype = send->dtype;
    j->ndim = send->shard.ndim > 0 ? send->shard.ndim : 1;
    j->shape[0] = 1;
    memcpy(j->shape, send->shard.local_shape, (size_t)send->shard.ndim * sizeof(int64_t));
    j->rows = j->shape[0];
    j->width = 1;
    for (int d = 1; d < j->ndim; d++)
        j->width *= j->shape[d];
    j->out_rows = j->rows;
    if (j->kind == ALL_GATHER) {
        if (json_object_get(j->op->attrs, "counts"))
            ASSAY_TRY(read_counts(j, "counts", -1, j->counts));
        else
            for (int r = 0; r < world; r++)
                j->counts[r] = j->rows;
        ASSAY_CHECK(j->counts[me] == j->rows, ASSAY_FORMAT, "all_gather: counts say %lld rows, send has %lld",
                    (long long)j->counts[me], (long long)j->rows);
        j->out_rows = sum_counts(j->counts, world);
    } else if (j->kind == REDUCE_SCATTER) {
        ASSAY_TRY(read_counts(j, "counts", j->rows, j->counts));
        j->out_rows = j->counts[me];
    } else if (j->kind == ALL_TO_ALL) {
        ASSAY_TRY(read_counts(j, "counts", j->rows, j->counts));
        ASSAY_TRY(read_counts(j, "recv_counts", json_object_get(j->op->attrs, "recv_counts") ? -1 : j->rows,
                              j->recv_counts));
        j->out_rows = sum_counts(j->recv_counts, world);
    }
    j->shape[0] = j->out_rows;
    return ASSAY_OK;
}

static assay_status run_job(job *j)
{
    gpu_comm *c = &j->run->comm;
    const cudaStream_t stream = j->run->ctx.stream;
    char reduction[16] = "sum";
    int64_t root = 0;
    ASSAY_TRY(
        assay_json_get_string(j->op->attrs, "reduction", false, j->op->op, reduction, sizeof reduction));
    ASSAY_CHECK(strcmp(reduction, "sum") == 0 || (strcmp(reduction, "max") == 0 && j->kind == ALL_REDUCE),
                ASSAY_UNSUPPORTED, "%s: reduction %s: expected sum%s", j->op->op, reduction,
                j->kind == ALL_REDUCE ? " or max" : "");
    ASSAY_TRY(assay_json_get_i64(j->op->attrs, j->kind == BROADCAST ? "root" : "peer",
                                 j->kind == SEND || j->kind == RECV, 0, c->world - 1, j->op->op, &root));
    for (int r = 0; r < c->world; r++) {
        j->counts[r] *= j->width;
        j->recv_counts[r] *= j->width;
    }
    gpu_comm_call call = {.group = ASSAY_GROUP_WORLD,
                          .send = j->send,
                          .recv = j->recv,
                          .count = j->out_rows * j->width,
                          .dtype = j->dtype,
                          .max = strcmp(reduction, "max") == 0,
                          .root = (int)root};
    switch (j->kind) {
    case ALL_GATHER:
        return gpu_comm_all_gather_v(c, ASSAY_GROUP_WORLD, j->send, j->recv, j->counts, j->dtype, stream);
    case REDUCE_SCATTER:
        return gpu_comm_reduce_scatter_v(c, ASSAY_GROUP_WORLD, j->send, j->recv, j->counts, j->dtype, stream);
    case ALL_TO_ALL:
        return gpu_comm_all_to_all_v(c, ASSAY_GROUP_WORLD, j->send, j->counts, j->recv, j->recv_counts,
                                     j->dtype, stream);
    case BROADCAST:
        call.op = GPU_COMM_BROADCAST;
        break;
    case SEND:
        call.op = GPU_COMM_SEND;
        call.count = j->rows * j->width;
        break;
    case RECV:
        call.op = GPU_COMM_RECV;
        break;
    default:
        call.op = GPU_COMM_ALL_REDUCE;
        break;
    }
    return gpu_comm_enqueue(c, &call, stream);
}

assay_status gpu_ops_collective(gpu_run *run, const assay_trace_op *op, const assay_trace_tensor *send,
                                void *(*allocate)(size_t), void **out, assay_dtype *dtype, int *ndim,
                                int64_t *shape)
{
    assay_status st = ASSAY_OK;
    job j = {.run = run, .op = op, .kind = find_name(op->op)};
    *out = NULL;
    j.counts = calloc(2 * (size_t)run->comm.world, sizeof *j.counts);
    ASSAY_CHECK(j.counts, ASSAY_OUT_OF_MEMORY, "%s: counts of %d ranks", op->op, run->comm.world);
    j.recv_counts = j.counts + run->comm.world;
    ASSAY_TRY_GOTO(prepare(&j, send), st, done);
    const int64_t size = assay_dtype_bytes(j.dtype);
    const size_t bytes = (size_t)(j.out_rows * j.width * size);
    if (cudaMalloc(&j.send, (send ? send->bytes : 0) + 1) != cudaSuccess ||
        cudaMalloc(&j.recv, bytes + 1) != cudaSuccess) {
        st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s: %zu bytes of device memory", op->op, bytes);
        goto done;
    }
    if (send)
        ASSAY_TRY_GOTO(gpu_run_upload(run, j.send, send->data, send->bytes, op->op), st, done);
    ASSAY_TRY_GOTO(run_job(&j), st, done);
    *dtype = j.dtype;
    *ndim = j.ndim;
    memcpy(shape, j.shape, sizeof j.shape);
    if (j.kind == SEND) {
        st = gpu_comm_wait(&run->comm, run->ctx.stream, op->op);
        goto done;
    }
    *out = allocate(bytes + 1);
    ASSAY_CHECK_GOTO(*out, ASSAY_OUT_OF_MEMORY, st, done, "%s: %zu bytes", op->op, bytes);
    ASSAY_TRY_GOTO(gpu_run_download(run, *out, j.recv, bytes, op->op), st, done);
done:
    free(j.counts);
    if (st != ASSAY_OK)
        gpu_comm_destroy(&run->comm, true); /* cudaFree would wait for a collective that never ends */
    if (j.send)
        (void)cudaFree(j.send);
    if (j.recv)
        (void)cudaFree(j.recv);
    if (st != ASSAY_OK) {
        free(*out);
        *out = NULL;
    }
    return st;
}
