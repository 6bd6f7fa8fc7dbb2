/* gpu_execute: buffers between guards, poison, and the checks after the run.  The table of operations is in
 * execute_ops.c. */
#include "core/model/ops.h"
#include "gpu/execute_job.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 256, GUARD_PATTERN = 0xA5, POISON = 0xFF /* NaN in F32, BF16, F64; -1 in I64 */ };

/* A buffer on the device with guards; data NULL: poisoned.  Waits for the copy, so `data` may go away. */
static char *job_buffer(gpu_job *j, const char *slot, const void *data, size_t bytes, bool is_input,
                        int output)
{
    if (j->st != ASSAY_OK)
        return NULL;
    if (j->n_buffers == GPU_JOB_BUFFERS || bytes > SIZE_MAX / 2) {
        j->st = ASSAY_ERROR(ASSAY_LIMIT, "%s: %s: too many slots, or %zu bytes are too large", j->op, slot,
                            bytes);
        return NULL;
    }
    gpu_job_buffer *b = &j->buffers[j->n_buffers++];
    memset(b, 0, sizeof *b);
    (void)snprintf(b->slot, sizeof b->slot, "%s", slot);
    b->bytes = bytes;
    b->is_input = is_input;
    b->output = output;
    const size_t whole = bytes + 2 * GUARD_BYTES;
    b->image = malloc(whole);
    void *device = NULL;
    const cudaError_t e = b->image != NULL ? cudaMalloc(&device, whole) : cudaErrorMemoryAllocation;
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        j->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s: %s: %zu bytes", j->op, slot, whole);
        return NULL;
    }
    b->device = device;
    memset(b->image, GUARD_PATTERN, whole);
    if (data != NULL && bytes > 0)
        memcpy(b->image + GUARD_BYTES, data, bytes);
    else
        memset(b->image + GUARD_BYTES, POISON, bytes);
    cudaError_t copied = cudaMemcpyAsync(b->device, b->image, whole, cudaMemcpyHostToDevice, j->ctx->stream);
    if (copied == cudaSuccess)
        copied = cudaStreamSynchronize(j->ctx->stream);
    if (copied != cudaSuccess) {
        j->st = gpu_cuda_error(copied, slot, __FILE__, __LINE__, __func__);
        return NULL;
    }
    return b->device + GUARD_BYTES;
}

static const gpu_slot *job_find(gpu_job *j, const char *slot, bool required)
{
    for (int i = 0; i < j->n_inputs; ++i)
        if (strcmp(j->inputs[i].slot, slot) == 0) {
            j->used[i] = true;
            return &j->inputs[i];
        }
    if (required && j->st == ASSAY_OK)
        j->st = ASSAY_ERROR(ASSAY_NOT_FOUND, "%s: expected an input in slot %s, found none", j->op, slot);
    return NULL;
}

/* Bytes of a slot after checking its shape. */
static bool job_slot_bytes(gpu_job *j, const gpu_slot *s, size_t *bytes)
{
    int64_t count = 0, n = 0;
    const bool known =
        s->dtype == ASSAY_F32 || s->dtype == ASSAY_BF16 || s->dtype == ASSAY_F64 || s->dtype == ASSAY_I64;
    if (!known || s->ndim < 0 || s->ndim > GPU_MAX_DIMS || !assay_shape_count(s->shape, s->ndim, &count) ||
        !assay_mul_i64(count, assay_dtype_bytes(s->dtype), &n) || (n > 0 && s->data == NULL)) {
        if (j->st == ASSAY_OK)
            j->st = ASSAY_ERROR(
                ASSAY_INVALID_ARGUMENT,
                "%s: %s: expected F32, BF16, F64 or I64 data of at most %d dimensions, found dtype "
                "%s, %d dimensions, %s",
                j->op, s->slot, GPU_MAX_DIMS, assay_dtype_name(s->dtype), s->ndim,
                s->data == NULL ? "no data" : "data");
        return false;
    }
    *bytes = (size_t)n;
    return true;
}

static gpu_tensor job_upload(gpu_job *j, const gpu_slot *s)
{
    size_t bytes = 0;
    if (s == NULL || !job_slot_bytes(j, s, &bytes))
        return gpu_tensor_none();
    char *device = job_buffer(j, s->slot, s->data, bytes, true, -1);
    return device != NULL ? gpu_tensor_make(device, s->dtype, s->ndim, s->shape) : gpu_tensor_none();
}

gpu_tensor gpu_job_in(gpu_job *j, const char *slot)
{
    return job_upload(j, job_find(j, slot, true));
}

gpu_tensor gpu_job_optional(gpu_job *j, const char *slot)
{
    return job_upload(j, job_find(j, slot, false));
}

const int64_t *gpu_job_host_i64(gpu_job *j, const char *slot, int64_t *count)
{
    static const int64_t nothing = 0;
    const gpu_slot *s = job_find(j, slot, true);
    size_t bytes = 0;
    *count = 0;
    if (s == NULL || !job_slot_bytes(j, s, &bytes))
        return &nothing;
    if (s->dtype != ASSAY_I64 && j->st == ASSAY_OK)
        j->st = ASSAY_ERROR(ASSAY_INVALID_ARGUMENT, "%s: %s: expected dtype I64, found %s", j->op, slot,
                            assay_dtype_name(s->dtype));
    if (j->st != ASSAY_OK)
        return &nothing;
    *count = (int64_t)(bytes / sizeof(int64_t));
    return s->data != NULL ? s->data : &nothing;
}

void gpu_job_range(gpu_job *j, const char *slot, int64_t low, int64_t high, int64_t or_else)
{
    int64_t count = 0;
    if (j->st != ASSAY_OK)
        return;
    const int64_t *v = gpu_job_host_i64(j, slot, &count);
    for (int64_t i = 0; i < count; ++i)
        if (v[i] != or_else && !(v[i] >= low && v[i] < high)) {
            j->st = ASSAY_ERROR(ASSAY_INVALID_ARGUMENT,
                                "%s: %s[%" PRId64 "]: expected an index in [%" PRId64 ",%" PRId64
                                "), found %" PRId64,
                                j->op, slot, i, low, high, v[i]);
            return;
        }
}

gpu_tensor gpu_job_out(gpu_job *j, const char *slot, assay_dtype dtype, int ndim, const int64_t *shape)
{
    gpu_slot s;
    size_t bytes = 0;
    if (j->st != ASSAY_OK || j->n_outputs == ASSAY_MAX_SLOTS)
        return gpu_tensor_none();
    memset(&s, 0, sizeof s);
    (void)snprintf(s.slot, sizeof s.slot, "%s", slot);
    s.dtype = dtype;
    s.ndim = ndim;
    for (int i = 0; i < ndim; ++i)
        s.shape[i] = shape[i];
    s.data = &s; /* present for the check below */
    if (!job_slot_bytes(j, &s, &bytes))
        return gpu_tensor_none();
    s.data = NULL;
    char *device = job_buffer(j, slot, NULL, bytes, false, j->n_outputs);
    if (device == NULL)
        return gpu_tensor_none();
    j->outputs[j->n_outputs++] = s;
    return gpu_tensor_make(device, dtype, ndim, shape);
}

gpu_tensor gpu_job_out1(gpu_job *j, const char *slot, assay_dtype dtype, int64_t n)
{
    return gpu_job_out(j, slot, dtype, 1, &n);
}

gpu_tensor gpu_job_out2(gpu_job *j, const char *slot, assay_dtype dtype, int64_t rows, int64_t cols)
{
    const int64_t shape[2] = {rows, cols};
    return gpu_job_out(j, slot, dtype, 2, shape);
}

gpu_tensor gpu_job_out_like(gpu_job *j, const char *slot, assay_dtype dtype, gpu_tensor like)
{
    return gpu_job_out(j, slot, dtype, like.ndim, like.shape);
}

gpu_tensor gpu_job_out_from(gpu_job *j, const char *slot, const char *slot_in)
{
    const gpu_slot *s = job_find(j, slot_in, true);
    size_t bytes = 0;
    if (s == NULL || !job_slot_bytes(j, s, &bytes))
        return gpu_tensor_none();
    const gpu_tensor t = gpu_job_out(j, slot, s->dtype, s->ndim, s->shape);
    if (j->st == ASSAY_OK && bytes > 0) {
        gpu_job_buffer *b = &j->buffers[j->n_buffers - 1];
        memcpy(b->image + GUARD_BYTES, s->data, bytes);
        cudaError_t e = cudaMemcpyAsync(t.data, s->data, bytes, cudaMemcpyHostToDevice, j->ctx->stream);
        if (e == cudaSuccess)
            e = cudaStreamSynchronize(j->ctx->stream);
        if (e != cudaSuccess)
            j->st = gpu_cuda_error(e, slot, __FILE__, __LINE__, __func__);
    }
    return t;
}

void gpu_job_workspace(gpu_job *j, size_t bytes)
{
    char *device = job_buffer(j, "workspace", NULL, bytes, false, -1);
    if (device != NULL) {
        j->ctx->workspace = device;
        j->ctx->workspace_bytes = bytes;
    }
}

int64_t gpu_job_i64(gpu_job *j, const char *key, bool required, int64_t otherwise)
{
    int64_t v = otherwise;
    if (j->st == ASSAY_OK)
        j->st = assay_json_get_i64(j->attrs, key, required, INT64_MIN, INT64_MAX, j->op, &v);
    return v;
}

double gpu_job_double(gpu_job *j, const char *key, bool required, double otherwise)
{
    double v = otherwise;
    if (j->st == ASSAY_OK)
        j->st = assay_json_get_double(j->attrs, key, required, -1e300, 1e300, j->op, &v);
    return v;
}

bool gpu_job_bool(gpu_job *j, const char *key, bool otherwise)
{
    bool v = otherwise;
    if (j->st == ASSAY_OK)
        j->st = assay_json_get_bool(j->attrs, key, false, j->op, &v);
    return v;
}

void gpu_job_text(gpu_job *j, const char *key, const char *otherwise, char *out, size_t bytes)
{
    (void)snprintf(out, bytes, "%s", otherwise != NULL ? otherwise : "");
    if (j->st == ASSAY_OK)
        j->st = assay_json_get_string(j->attrs, key, otherwise == NULL, j->op, out, bytes);
}

static int64_t guard_damage(const char *guard)
{
    for (int64_t i = 0; i < GUARD_BYTES; ++i)
        if ((unsigned char)guard[i] != GUARD_PATTERN)
            return i;
    return -1;
}

/* Guards are whole, an input is unchanged, an output goes to the caller's host copy. */
static assay_status job_check(gpu_job *j, gpu_job_buffer *b, char *after)
{
    const int64_t before = guard_damage(after), behind = guard_damage(after + GUARD_BYTES + b->bytes);
    ASSAY_CHECK(before < 0, ASSAY_INTERNAL, "%s wrote %" PRId64 " bytes before the start of %s", j->op,
                GUARD_BYTES - before, b->slot);
    ASSAY_CHECK(behind < 0, ASSAY_INTERNAL, "%s wrote past the end of %s (byte %" PRId64 " behind it)", j->op,
                b->slot, behind);
    if (b->is_input)
        ASSAY_CHECK(memcmp(after, b->image, b->bytes + 2 * GUARD_BYTES) == 0, ASSAY_INTERNAL,
                    "%s changed its input %s", j->op, b->slot);
    if (b->output < 0)
        return ASSAY_OK;
    gpu_slot *s = &j->outputs[b->output];
    s->data = malloc(b->bytes > 0 ? b->bytes : 1);
    ASSAY_CHECK(s->data != NULL, ASSAY_OUT_OF_MEMORY, "%s: %s: %zu bytes", j->op, b->slot, b->bytes);
    memcpy(s->data, after + GUARD_BYTES, b->bytes);
    return ASSAY_OK;
}

static assay_status job_collect(gpu_job *j)
{
    for (int i = 0; i < j->n_buffers; ++i) {
        gpu_job_buffer *b = &j->buffers[i];
        const size_t whole = b->bytes + 2 * GUARD_BYTES;
        char *after = malloc(whole);
        ASSAY_CHECK(after != NULL, ASSAY_OUT_OF_MEMORY, "%s: %s: %zu bytes", j->op, b->slot, whole);
        assay_status st = ASSAY_OK;
        cudaError_t e = cudaMemcpyAsync(after, b->device, whole, cudaMemcpyDeviceToHost, j->ctx->stream);
        if (e == cudaSuccess)
            e = cudaStreamSynchronize(j->ctx->stream);
        st = e == cudaSuccess ? job_check(j, b, after)
                              : gpu_cuda_error(e, b->slot, __FILE__, __LINE__, __func__);
        free(after);
        ASSAY_TRY(st);
    }
    return ASSAY_OK;
}

static void job_destroy(gpu_job *j, bool keep_outputs)
{
    for (int i = 0; i < j->n_buffers; ++i) {
        if (j->buffers[i].device != NULL)
            (void)cudaFree(j->buffers[i].device);
        free(j->buffers[i].image);
    }
    for (int i = 0; i < j->n_outputs && !keep_outputs; ++i)
        free(j->outputs[i].data);
}

/* What the table of operations does not allow is refused before anything is copied to the device. */
static assay_status check_request(gpu_job *j)
{
    assay_op_operand in[ASSAY_MAX_SLOTS];
    const assay_op *row = assay_op_find(j->op);
    ASSAY_CHECK(row, ASSAY_INTERNAL, "%s: not in the table of operations", j->op);
    for (int i = 0; i < j->n_inputs; ++i)
        in[i] =
            (assay_op_operand){j->inputs[i].slot, j->inputs[i].dtype, j->inputs[i].ndim, j->inputs[i].shape};
    return assay_op_check(row, j->attrs, j->act, j->act, in, j->n_inputs, NULL, -1, NULL);
}

static assay_status job_run(gpu_job *j)
{
    ASSAY_TRY(check_request(j));
    ASSAY_TRY(gpu_job_run(j));
    for (int i = 0; i < j->n_inputs; ++i)
        ASSAY_CHECK(j->used[i], ASSAY_INVALID_ARGUMENT, "%s: the operation has no slot %s", j->op,
                    j->inputs[i].slot);
    ASSAY_TRY(gpu_ctx_sync(j->ctx, j->op));
    return job_collect(j);
}

assay_status gpu_execute(gpu_ctx *ctx, const char *op, const json_t *attrs, assay_dtype act,
                         const gpu_slot *inputs, int n_inputs, gpu_slot *outputs, int *n_outputs)
{
    *n_outputs = 0;
    ASSAY_CHECK(gpu_execute_knows(op), ASSAY_NOT_FOUND, "operation %s: unknown (docs/OPS.md lists them)", op);
    ASSAY_CHECK(n_inputs >= 0 && n_inputs <= ASSAY_MAX_SLOTS, ASSAY_LIMIT,
                "%s: expected at most %d inputs, found %d", op, ASSAY_MAX_SLOTS, n_inputs);
    ASSAY_CHECK(act == ASSAY_F32 || act == ASSAY_BF16, ASSAY_UNSUPPORTED,
                "%s: expected an activation dtype F32 or BF16, found %s", op, assay_dtype_name(act));
    gpu_job *j = calloc(1, sizeof *j);
    ASSAY_CHECK(j != NULL, ASSAY_OUT_OF_MEMORY, "%s: %zu bytes", op, sizeof *j);
    json_t *none = attrs == NULL ? json_object() : NULL;
    void *const workspace = ctx->workspace;
    const size_t workspace_bytes = ctx->workspace_bytes;
    j->ctx = ctx;
    j->op = op;
    j->attrs = attrs != NULL ? attrs : none;
    j->act = act;
    j->inputs = inputs;
    j->n_inputs = n_inputs;
    const assay_status st = job_run(j);
    ctx->workspace = workspace;
    ctx->workspace_bytes = workspace_bytes;
    (void)cudaStreamSynchronize(ctx->stream);
    if (st == ASSAY_OK) {
        *n_outputs = j->n_outputs;
        memcpy(outputs, j->outputs, (size_t)j->n_outputs * sizeof outputs[0]);
    }
    job_destroy(j, st == ASSAY_OK);
    free(j);
    json_decref(none);
    return st;
}
