/* The second compute stream. */
#include "gpu/side.h"

#include "gpu/fault.h"

assay_status gpu_side_create(gpu_run *run)
{
    gpu_side *s = &run->side;
    if (s->own.stream != NULL)
        return ASSAY_OK;
    CUDA_TRY(cudaStreamCreateWithFlags(&s->own.stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&s->begun, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming));
    if (run->ctx.workspace_bytes > 0)
        CUDA_TRY(cudaMalloc(&s->own.workspace, run->ctx.workspace_bytes));
    s->own.workspace_bytes = run->ctx.workspace_bytes;
    ASSAY_TRY(gpu_ctx_make_ticket(&s->own.ticket));
    return ASSAY_OK;
}

static void swap(gpu_run *run)
{
    gpu_ctx_swap_stream(&run->ctx, &run->side.own);
    run->side.open = !run->side.open;
}

void gpu_side_destroy(gpu_run *run)
{
    gpu_side *s = &run->side;
    if (s->open) /* an operation failed between begin and end */
        swap(run);
    if (s->own.stream != NULL)
        (void)cudaStreamDestroy(s->own.stream);
    if (s->begun != NULL)
        (void)cudaEventDestroy(s->begun);
    if (s->done != NULL)
        (void)cudaEventDestroy(s->done);
    if (s->own.workspace != NULL)
        (void)cudaFree(s->own.workspace);
    if (s->own.ticket != NULL)
        (void)cudaFree(s->own.ticket);
    *s = (gpu_side){0};
}

assay_status gpu_side_begin(gpu_run *run)
{
    gpu_side *s = &run->side;
    CUDA_TRY(cudaEventRecord(s->begun, run->ctx.stream));
    if (!gpu_fault_switch(run, GPU_SWITCH_UNWAITED_TOKENS))
        CUDA_TRY(cudaStreamWaitEvent(s->own.stream, s->begun, 0));
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
