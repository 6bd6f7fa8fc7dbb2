/* `ops --time N`: how long the operations of a request take, by events, beside what the device can do. */
#include "gpu/bench.h"
#include "gpu/check.h"
#include "gpu/execute.h"
#include "gpu/ladder.h"
#include "gpu/main.h"

#include "core/base/json.h"
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_BYTES = 64 << 20, WARMUP = 3 };
/* Copied before every run, so that none finds its operands in a cache: several times any L2. */
static const size_t device_scratch = (size_t)256 << 20, simulated_scratch = (size_t)1 << 20;

typedef struct timer {
    int64_t n;
    double *seconds; /* [n] */
    cudaEvent_t from, to;
    char *scratch; /* two of `bytes` */
    size_t bytes;
} timer;

static assay_status run_timed(void *user, gpu_ctx *ctx, gpu_operands *o, int *variant)
{
    timer *t = user;
    for (int64_t i = -WARMUP; i < t->n; i++) {
        float ms;
        CUDA_TRY(cudaMemcpyAsync(t->scratch + t->bytes, t->scratch, t->bytes, cudaMemcpyDeviceToDevice,
                                 ctx->stream));
        CUDA_TRY(cudaEventRecord(t->from, ctx->stream));
        ASSAY_TRY(gpu_ladder_run(ctx, o, 1, ctx->stream, variant));
        CUDA_TRY(cudaEventRecord(t->to, ctx->stream));
        CUDA_TRY(cudaEventSynchronize(t->to));
        CUDA_TRY(cudaEventElapsedTime(&ms, t->from, t->to));
        if (i >= 0)
            t->seconds[i] = 1e-3 * (double)ms;
    }
    return ASSAY_OK;
}

static json_t *operation_json(const timer *t, const assay_trace_op *op, const gpu_declared *declared)
{
    json_t *seconds = json_array();
    for (int64_t i = 0; i < t->n; i++)
        json_array_append_new(seconds, json_real(t->seconds[i]));
    return json_pack("{s:s, s:s, s:i, s:s, s:o}", "op", op->op, "instance", op->instance, "variant",
                     declared->variant, "variant_name",
                     declared->variant_name != NULL ? declared->variant_name : "", "seconds", seconds);
}

static assay_status time_record(gpu_ctx *ctx, timer *t, const assay_trace *request, const assay_trace_op *op,
                                json_t *list)
{
    gpu_slot in[ASSAY_MAX_SLOTS], out[ASSAY_MAX_SLOTS];
    gpu_declared declared = {0};
    const gpu_execute_form form = {.run = run_timed, .user = t};
    char text[32] = "F32";
    assay_dtype act;
    int n_out = 0;
    if (!gpu_execute_knows(op->op)) {
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:b}", "op", op->op, "instance", op->instance, "unknown", 1));
        return ASSAY_OK;
    }
    memset(in, 0, sizeof in);
    memset(out, 0, sizeof out);
    assay_status st = assay_json_get_string(op->attrs, "act", false, op->op, text, sizeof text);
    if (st == ASSAY_OK)
        st = assay_dtype_from_name(text, &act);
    if (st == ASSAY_OK)
        st = gpu_execute_read_inputs(request, op, 0, in);
    if (st == ASSAY_OK)
        st = gpu_execute_as(ctx, op->op, op->attrs, act, in, op->n_inputs, &form, out, &n_out, &declared);
    if (st == ASSAY_OK)
        json_array_append_new(list, operation_json(t, op, &declared));
    else
        st = assay_context(st, "op %lld, %s %s", (long long)op->sequence, op->op, op->instance);
    for (int i = 0; i < ASSAY_MAX_SLOTS; i++) {
        free(in[i].data);
        free(out[i].data);
    }
    return st;
}

static assay_status make_timer(timer *t, const gpu_ctx *ctx, int64_t n)
{
    *t = (timer){.n = n, .bytes = ctx->simulated ? simulated_scratch : device_scratch};
    t->seconds = calloc((size_t)n, sizeof *t->seconds);
    ASSAY_CHECK(t->seconds != NULL, ASSAY_OUT_OF_MEMORY, "ops: --time: %lld times", (long long)n);
    CUDA_TRY(cudaEventCreate(&t->from));
    CUDA_TRY(cudaEventCreate(&t->to));
    CUDA_TRY(cudaMalloc((void **)&t->scratch, 2 * t->bytes));
    CUDA_TRY(cudaMemset(t->scratch, 0, 2 * t->bytes));
    return ASSAY_OK;
}

static void free_timer(timer *t)
{
    if (t->from)
        (void)cudaEventDestroy(t->from);
    if (t->to)
        (void)cudaEventDestroy(t->to);
    if (t->scratch)
        (void)cudaFree(t->scratch);
    free(t->seconds);
}

/* The product in the activations' dtype of the request. */
static assay_status peak_of(gpu_ctx *ctx, const assay_trace *request, gpu_bench_peak *out)
{
    char text[32] = "F32";
    assay_dtype act = ASSAY_F32;
    if (assay_trace_n_ops(request, 0) > 0)
        ASSAY_TRY(assay_json_get_string(assay_trace_op_at(request, 0, 0)->attrs, "act", false, "act", text,
                                        sizeof text));
    ASSAY_TRY(assay_dtype_from_name(text, &act));
    return gpu_bench_measure_peak(ctx, act, 0, 0, out);
}

assay_status gpu_ops_time_verb(const char *request_dir, const char *out, const char *variants, int64_t times)
{
    assay_status st = ASSAY_OK;
    assay_trace *request = NULL;
    gpu_ctx ctx = {0};
    gpu_bench_peak peak;
    timer t = {.n = 0};
    int devices = 0;
    json_t *list = json_array(), *root = NULL;
    ASSAY_TRY_GOTO(assay_trace_open(&request, request_dir, true), st, done);
    ASSAY_CHECK_GOTO(assay_trace_world(request) == 1, ASSAY_INVALID_ARGUMENT, st, done,
                     "%s: --time: expected a request of one rank, found %d", request_dir,
                     assay_trace_world(request));
    (void)cudaGetDeviceCount(&devices);
    ASSAY_TRY_GOTO(gpu_ctx_init(&ctx, devices > 0 ? 0 : -1, WORKSPACE_BYTES), st, done);
    ASSAY_TRY_GOTO(gpu_ctx_set_variants(&ctx, variants), st, done);
    ASSAY_TRY_GOTO(peak_of(&ctx, request, &peak), st, done);
    ASSAY_TRY_GOTO(make_timer(&t, &ctx, times), st, done);
    for (int64_t i = 0; i < assay_trace_n_ops(request, 0); i++)
        ASSAY_TRY_GOTO(time_record(&ctx, &t, request, assay_trace_op_at(request, 0, i), list), st, done);
    root = json_pack("{s:s, s:s, s:b, s:{s:s, s:I, s:I, s:f, s:f}, s:O}", "format", "assay-ops-times-1",
                     "device", ctx.device_name, "simulated", ctx.simulated, "peak", "dtype",
                     assay_dtype_name(peak.dtype), "product", (json_int_t)peak.size, "copy_bytes",
                     (json_int_t)peak.copy_bytes, "flops_per_s", peak.flops_per_s, "copy_bytes_per_s",
                     peak.copy_bytes_per_s, "operations", list);
    ASSAY_CHECK_GOTO(root != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s", out);
    ASSAY_TRY_GOTO(assay_json_save(root, out), st, done);
done:
    json_decref(root);
    json_decref(list);
    free_timer(&t);
    assay_trace_close(request);
    gpu_ctx_destroy(&ctx);
    return st;
}
