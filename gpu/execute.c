/* gpu_execute: slots of a row between guards, poison, and the checks after the run. */
#include "core/model/ops.h"
#include "gpu/check.h"
#include "gpu/execute_internal.h"
#include "gpu/ladder.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 256, GUARD_PATTERN = 0xA5, ALIGNMENT = 256 };
/* Of each place.  0xFF: NaN in F32, BF16, F64; -1 in I64. */
static const unsigned char poisons[GPU_PLACES] = {0xFF, 0x5A, 0x33};

/* A buffer on the device with guards; data NULL: poisoned.  unit: bytes of an element, 0: the workspace, which stays aligned.  Waits
 * for the copy, so `data` may go away. */
static char *make_buffer(gpu_job *j, const char *slot, const void *data, size_t bytes, size_t unit,
                         bool is_input, int output)
{
    static const size_t later[GPU_PLACES] = {0, ALIGNMENT, ALIGNMENT};
    const size_t shift = j->form->place == GPU_PLACE_ODD && unit > 0 ? unit : later[j->form->place];
    if (j->st != ASSAY_OK)
        return NULL;
    if (j->n_buffers == GPU_JOB_BUFFERS || bytes > SIZE_MAX / 2) {
        j->st = ASSAY_ERROR(ASSAY_LIMIT, "%s: %s: too many slots, or %zu bytes are too large", j->op->name,
                            slot, bytes);
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
    const cudaError_t e = b->image != NULL ? cudaMalloc(&device, whole + shift) : cudaErrorMemoryAllocation;
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        j->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s: %s: %zu bytes", j->op->name, slot, whole);
        return NULL;
    }
    b->memory = device;
    b->device = b->memory + shift;
    memset(b->image, GUARD_PATTERN, whole);
    if (data != NULL && bytes > 0)
        memcpy(b->image + GUARD_BYTES, data, bytes);
    else
        memset(b->image + GUARD_BYTES, poisons[j->form->place], bytes);
    cudaError_t copied = cudaMemcpyAsync(b->device, b->image, whole, cudaMemcpyHostToDevice, j->ctx->stream);
    if (copied == cudaSuccess)
        copied = cudaStreamSynchronize(j->ctx->stream);
    if (copied != cudaSuccess) {
        j->st = gpu_cuda_error(copied, slot, __FILE__, __LINE__, __func__);
        return NULL;
    }
    return b->device + GUARD_BYTES;
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
                j->op->name, s->slot, GPU_MAX_DIMS, assay_dtype_name(s->dtype), s->ndim,
                s->data == NULL ? "no data" : "data");
        return false;
    }
    *bytes = (size_t)n;
    return true;
}

static const gpu_slot *find_input(const gpu_job *j, const char *name, const char *suffix)
{
    const size_t n = strlen(name);
    for (int i = 0; i < j->n_inputs; ++i)
        if (strncmp(j->inputs[i].slot, name, n) == 0 && strcmp(j->inputs[i].slot + n, suffix) == 0)
            return &j->inputs[i];
    return NULL;
}

/* Every element lies in [0, high), or is -1 where the row allows that. */
static assay_status check_range(const gpu_job *j, const assay_op_slot *row, const gpu_slot *s)
{
    int64_t high = 0, count = 0;
    const int64_t *v = s->data;
    if (row->below == NULL || !assay_shape_count(s->shape, s->ndim, &count) || count == 0)
        return ASSAY_OK;
    ASSAY_CHECK(assay_op_symbol(&j->binding, row->below, &high), ASSAY_INTERNAL, "%s: %s: no value for %s",
                j->op->name, s->slot, row->below);
    for (int64_t i = 0; i < count; ++i)
        ASSAY_CHECK((v[i] >= 0 && v[i] < high) || (row->or_minus_one && v[i] == -1), ASSAY_INVALID_ARGUMENT,
                    "%s: %s[%" PRId64 "]: expected an index in [0,%" PRId64 "), found %" PRId64, j->op->name,
                    s->slot, i, high, v[i]);
    return ASSAY_OK;
}

static assay_status upload(gpu_job *j, int index, const gpu_slot *s)
{
    size_t bytes = 0;
    if (s == NULL)
        return ASSAY_OK;
    if (!job_slot_bytes(j, s, &bytes))
        return j->st;
    ASSAY_TRY(check_range(j, &j->op->slots[index], s));
    char *device = make_buffer(j, s->slot, s->data, bytes, (size_t)assay_dtype_bytes(s->dtype), true, -1);
    ASSAY_TRY(j->st);
    j->o.slot[index] = gpu_tensor_make(device, s->dtype, s->ndim, s->shape);
    j->o.host[index] = s->dtype == ASSAY_I64 ? s->data : NULL;
    return ASSAY_OK;
}

/* A new output, poisoned; an in-out slot starts as a copy of its input. */
static assay_status make_output(gpu_job *j, int index, const gpu_slot *before)
{
    const assay_op_slot *row = &j->op->slots[index];
    gpu_slot *s = &j->outputs[j->n_outputs];
    size_t bytes = 0;
    memset(s, 0, sizeof *s);
    (void)snprintf(s->slot, sizeof s->slot, "%s", row->name);
    if (before) {
        s->dtype = before->dtype;
        s->ndim = before->ndim;
        memcpy(s->shape, before->shape, sizeof s->shape);
    } else {
        int64_t shape[ASSAY_OP_DIMS];
        ASSAY_TRY(assay_op_output(j->op, row, j->attrs, j->operands, j->n_inputs, &j->binding, &s->dtype,
                                  &s->ndim, shape));
        ASSAY_CHECK(s->ndim <= GPU_MAX_DIMS, ASSAY_LIMIT, "%s: %s: more than %d dimensions", j->op->name,
                    row->name, GPU_MAX_DIMS);
        memcpy(s->shape, shape, (size_t)s->ndim * sizeof shape[0]);
    }
    if (before != NULL && !job_slot_bytes(j, before, &bytes))
        return j->st;
    s->data = s; /* present for the check */
    const bool known = job_slot_bytes(j, s, &bytes);
    s->data = NULL;
    if (!known)
        return j->st;
    char *device = make_buffer(j, row->name, before ? before->data : NULL, bytes,
                               (size_t)assay_dtype_bytes(s->dtype), false, j->n_outputs);
    ASSAY_TRY(j->st);
    j->o.slot[index] = gpu_tensor_make(device, s->dtype, s->ndim, s->shape);
    j->n_outputs++;
    return ASSAY_OK;
}

/* Slots of the row in its order: inputs first, because outputs follow from them. */
static assay_status place_slots(gpu_job *j)
{
    for (int i = 0; i < assay_op_n_slots(j->op); ++i)
        if (j->op->slots[i].role == ASSAY_SLOT_IN)
            ASSAY_TRY(upload(j, i, find_input(j, j->op->slots[i].name, "")));
    for (int i = 0; i < assay_op_n_slots(j->op); ++i) {
        const assay_op_slot *row = &j->op->slots[i];
        const gpu_slot *before = row->role == ASSAY_SLOT_INOUT ? find_input(j, row->name, "_in") : NULL;
        if (row->role == ASSAY_SLOT_INOUT && (before != NULL || !row->optional))
            ASSAY_TRY(make_output(j, i, before));
        else if (row->role == ASSAY_SLOT_OUT && !(j->again && gpu_job_may_leave(row)) &&
                 !(row->optional && row->like && !find_input(j, row->like, "")))
            ASSAY_TRY(make_output(j, i, NULL));
    }
    return ASSAY_OK;
}

/* A guarded workspace of exactly the size that the operation asks for replaces ctx->workspace.  The size follows from shapes alone. */
static assay_status place_workspace(gpu_job *j)
{
    gpu_operands shapes = j->o;
    for (int i = 0; i < ASSAY_OP_SLOTS; ++i) {
        shapes.slot[i].data = NULL;
        shapes.host[i] = NULL;
    }
    const size_t bytes = gpu_ladder_workspace(j->ctx, &j->o), blind = gpu_ladder_workspace(j->ctx, &shapes);
    ASSAY_CHECK(bytes == blind, ASSAY_INTERNAL,
                "%s asks for a workspace of %zu bytes, and of %zu without data: it has to follow from shapes",
                j->op->name, bytes, blind);
    char *device = make_buffer(j, "workspace", NULL, bytes, 0, false, -1);
    ASSAY_TRY(j->st);
    j->ctx->workspace = device;
    j->ctx->workspace_bytes = bytes;
    return ASSAY_OK;
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
    ASSAY_CHECK(before < 0, ASSAY_INTERNAL, "%s wrote %" PRId64 " bytes before the start of %s", j->op->name,
                GUARD_BYTES - before, b->slot);
    ASSAY_CHECK(behind < 0, ASSAY_INTERNAL, "%s wrote past the end of %s (byte %" PRId64 " behind it)",
                j->op->name, b->slot, behind);
    if (b->is_input)
        ASSAY_CHECK(memcmp(after, b->image, b->bytes + 2 * GUARD_BYTES) == 0, ASSAY_INTERNAL,
                    "%s changed its input %s", j->op->name, b->slot);
    if (b->output < 0)
        return ASSAY_OK;
    gpu_slot *s = &j->outputs[b->output];
    s->data = malloc(b->bytes > 0 ? b->bytes : 1);
    ASSAY_CHECK(s->data != NULL, ASSAY_OUT_OF_MEMORY, "%s: %s: %zu bytes", j->op->name, b->slot, b->bytes);
    memcpy(s->data, after + GUARD_BYTES, b->bytes);
    return ASSAY_OK;
}

static assay_status job_collect(gpu_job *j)
{
    for (int i = 0; i < j->n_buffers; ++i) {
        gpu_job_buffer *b = &j->buffers[i];
        const size_t whole = b->bytes + 2 * GUARD_BYTES;
        char *after = malloc(whole);
        ASSAY_CHECK(after != NULL, ASSAY_OUT_OF_MEMORY, "%s: %s: %zu bytes", j->op->name, b->slot, whole);
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

/* Behind a refusal every buffer holds what it held. */
static assay_status job_untouched(gpu_job *j, assay_status refused)
{
    char why[256];
    snprintf(why, sizeof why, "%s", assay_error_message());
    for (int i = 0; i < j->n_buffers; ++i) {
        const gpu_job_buffer *b = &j->buffers[i];
        const size_t whole = b->bytes + 2 * GUARD_BYTES;
        char *after = malloc(whole);
        ASSAY_CHECK(after != NULL, ASSAY_OUT_OF_MEMORY, "%s: %s: %zu bytes", j->op->name, b->slot, whole);
        cudaError_t e = cudaMemcpyAsync(after, b->device, whole, cudaMemcpyDeviceToHost, j->ctx->stream);
        if (e == cudaSuccess)
            e = cudaStreamSynchronize(j->ctx->stream);
        const bool same = e == cudaSuccess && memcmp(after, b->image, whole) == 0;
        free(after);
        if (e != cudaSuccess)
            return gpu_cuda_error(e, b->slot, __FILE__, __LINE__, __func__);
        ASSAY_CHECK(same, ASSAY_INTERNAL, "%s wrote %s although it refused the call (%s)", j->op->name,
                    b->slot, why);
    }
    return refused;
}

static void free_buffers(gpu_job *j)
{
    for (int i = 0; i < j->n_buffers; ++i) {
        if (j->buffers[i].memory != NULL)
            (void)cudaFree(j->buffers[i].memory);
        free(j->buffers[i].image);
    }
    j->n_buffers = 0;
}

static void job_destroy(gpu_job *j, bool keep_outputs)
{
    free_buffers(j);
    for (int i = 0; i < j->n_outputs && !keep_outputs; ++i)
        free(j->outputs[i].data);
}

static assay_status job_run(gpu_job *j)
{
    for (int i = 0; i < j->n_inputs; ++i)
        j->operands[i] =
            (assay_op_operand){j->inputs[i].slot, j->inputs[i].dtype, j->inputs[i].ndim, j->inputs[i].shape};
    ASSAY_TRY(
        assay_op_check(j->op, j->attrs, j->act, j->act, j->operands, j->n_inputs, NULL, -1, &j->binding));
    gpu_operands_init(&j->o, j->op);
    ASSAY_TRY(gpu_operands_from_json(&j->o, j->attrs));
    ASSAY_TRY(place_slots(j));
    ASSAY_TRY(place_workspace(j));
    int variant;
    if (j->form->spoil != NULL)
        j->form->spoil(j->form->user, j->ctx, &j->o);
    const assay_status st = j->form->run != NULL ? j->form->run(j->form->user, j->ctx, &j->o, &variant)
                                                 : gpu_ladder_run(j->ctx, &j->o, 1, j->ctx->stream, &variant);
    if (gpu_job_refused(st))
        return job_untouched(j, st);
    ASSAY_TRY(st);
    ASSAY_TRY(gpu_ladder_declare(j->ctx, &j->o, variant, &j->declared));
    ASSAY_TRY(gpu_ctx_sync(j->ctx, j->op->name));
    return job_collect(j);
}

/* The same call without the outputs that its row lets go; the first run's memory is given back before. */
static assay_status run_again(gpu_job *first)
{
    gpu_job *j = calloc(1, sizeof *j);
    const int wish = first->ctx->call_variant;
    ASSAY_CHECK(j != NULL, ASSAY_OUT_OF_MEMORY, "%s: %zu bytes", first->op->name, sizeof *j);
    const gpu_execute_form form = gpu_job_begin_again(j, first);
    j->form = &form;
    free_buffers(first);
    const assay_status st = gpu_job_compare(first, j, job_run(j));
    (void)cudaStreamSynchronize(j->ctx->stream);
    j->ctx->call_variant = wish;
    job_destroy(j, false);
    free(j);
    return st;
}

assay_status gpu_execute_as(gpu_ctx *ctx, const char *op, const json_t *attrs, assay_dtype act,
                            const gpu_slot *inputs, int n_inputs, const gpu_execute_form *form,
                            gpu_slot *outputs, int *n_outputs, gpu_declared *declared)
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
    j->op = assay_op_find(op);
    j->attrs = attrs != NULL ? attrs : none;
    j->act = act;
    j->form = form;
    j->inputs = inputs;
    j->n_inputs = n_inputs;
    assay_status st = job_run(j);
    if (st == ASSAY_OK && gpu_job_runs_again(j))
        st = run_again(j);
    ctx->workspace = workspace;
    ctx->workspace_bytes = workspace_bytes;
    (void)cudaStreamSynchronize(ctx->stream);
    if (st == ASSAY_OK) {
        *n_outputs = j->n_outputs;
        memcpy(outputs, j->outputs, (size_t)j->n_outputs * sizeof outputs[0]);
        if (declared)
            *declared = j->declared;
    }
    job_destroy(j, st == ASSAY_OK);
    free(j);
    json_decref(none);
    return st;
}

assay_status gpu_execute(gpu_ctx *ctx, const char *op, const json_t *attrs, assay_dtype act,
                         const gpu_slot *inputs, int n_inputs, gpu_slot *outputs, int *n_outputs,
                         gpu_declared *declared)
{
    const gpu_execute_form plain = {0};
    return gpu_execute_as(ctx, op, attrs, act, inputs, n_inputs, &plain, outputs, n_outputs, declared);
}

assay_status gpu_execute_read_inputs(const assay_trace *request, const assay_trace_op *op, int rank,
                                     gpu_slot *slots)
{
    for (int i = 0; i < op->n_inputs; i++) {
        const assay_trace_tensor *t = assay_trace_tensor_by_id(request, rank, op->inputs[i].tensor);
        ASSAY_CHECK(t && (t->data || t->bytes == 0), ASSAY_FORMAT,
                    "%s %s: input '%s' has no data; the request must not be a hash-only trace", op->op,
                    op->instance, op->inputs[i].slot);
        gpu_slot *s = &slots[i];
        memset(s, 0, sizeof *s);
        snprintf(s->slot, sizeof s->slot, "%s", op->inputs[i].slot);
        s->dtype = t->dtype;
        s->ndim = t->shard.ndim;
        memcpy(s->shape, t->shard.local_shape, (size_t)t->shard.ndim * sizeof(int64_t));
        s->data = malloc(t->bytes + 1); /* mapped data may lie at any alignment */
        ASSAY_CHECK(s->data, ASSAY_OUT_OF_MEMORY, "%s: %zu bytes", op->op, t->bytes);
        if (t->bytes > 0)
            memcpy(s->data, t->data, t->bytes);
    }
    return ASSAY_OK;
}

bool gpu_execute_knows(const char *op)
{
    return gpu_ladder(op) != NULL;
}
