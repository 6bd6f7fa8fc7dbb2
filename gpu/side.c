/* The second compute stream. */
#include "gpu/side.h"

#include "gpu/fault.h"

assay_status gpu_side_create(gpu_run *run)
{
    gpu_side *s = &run->side;
    if (s->stream != NULL)
        return ASSAY_OK;
    CUDA_TRY(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&s->begun, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming));
    if (run->ctx.workspace_bytes > 0)
        CUDA_TRY(cudaMalloc(&s->workspace, run->ctx.workspace_bytes));
    s->workspace_bytes = run->ctx.workspace_bytes;
    ASSAY_TRY(gpu_ctx_make_ticket(&s->ticket));
    return ASSAY_OK;
}

/* The context's stream with its workspace and ticket, and those of the side. */
static void swap(gpu_run *run)
{
    gpu_side *s = &run->side;
    gpu_ctx *ctx = &run->ctx;
    const cudaStream_t stream = ctx->stream;
    void *const workspace = ctx->workspace;
    const size_t bytes = ctx->workspace_bytes;
    unsigned *const ticket = ctx->ticket;
    ctx->stream = s->stream;
    ctx->workspace = s->workspace;
    ctx->workspace_bytes = s->workspace_bytes;
    ctx->ticket = s->ticket;
    s->stream = stream;
    s->workspace = workspace;
    s->workspace_bytes = bytes;
    s->ticket = ticket;
    s->open = !s->open;
}

void gpu_side_destroy(gpu_run *run)
{
    gpu_side *s = &run->side;
    if (s->open) /* an operation failed between begin and end */
        swap(run);
    if (s->stream != NULL)
        (void)cudaStreamDestroy(s->stream);
    if (s->begun != NULL)
        (void)cudaEventDestroy(s->begun);
    if (s->done != NULL)
        (void)cudaEventDestroy(s->done);
    if (s->workspace != NULL)
        (void)cudaFree(s->workspace);
    if (s->ticket != NULL)
        (void)cudaFree(s->ticket);
    *s = (gpu_side){0};
}

assay_status gpu_side_begin(gpu_run *run)
{
    gpu_side *s = &run->side;
    CUDA_TRY(cudaEventRecord(s->begun, run->ctx.stream));
    if (!gpu_fault_switch(run, GPU_SWITCH_UNWAITED_TOKENS))
        CUDA_TRY(cudaStreamWaitEvent(s->stream, s->begun, 0));
    swap(run);
    return ASSAY_OK;
}

assay_status gpu_side_end(gpu_run *run)
{
    CUDA_TRY(cudaEventRecord(run->side.done, run->ctx.stream));
    swap(run);
    return ASSAY_OK;
}

assay_status gpu_side_join(gpu_run *run)
{
    if (!gpu_fault_switch(run, GPU_SWITCH_UNWAITED_SHARED_EXPERT))
        CUDA_TRY(cudaStreamWaitEvent(run->ctx.stream, run->side.done, 0));
    return ASSAY_OK;
}
