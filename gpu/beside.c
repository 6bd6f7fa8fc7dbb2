/* The communication stream beside products. */
#include "gpu/beside.h"

#include "gpu/fault.h"

assay_status gpu_beside_create(gpu_run *run)
{
    gpu_beside *b = &run->beside;
    CUDA_TRY(cudaStreamCreateWithFlags(&b->own.stream, cudaStreamNonBlocking));
    for (int i = 0; i < GPU_BESIDE_SLOTS; i++) {
        CUDA_TRY(cudaEventCreateWithFlags(&b->begun[i], cudaEventDisableTiming));
        CUDA_TRY(cudaEventCreateWithFlags(&b->done[i], cudaEventDisableTiming));
    }
    return ASSAY_OK;
}

static void swap(gpu_run *run)
{
    gpu_ctx_swap_stream(&run->ctx, &run->beside.own);
    run->beside.open = !run->beside.open;
}

void gpu_beside_destroy(gpu_run *run)
{
    gpu_beside *b = &run->beside;
    if (b->open) /* an operation failed between begin and end */
        swap(run);
    if (b->own.stream != NULL)
        (void)cudaStreamDestroy(b->own.stream);
    for (int i = 0; i < GPU_BESIDE_SLOTS; i++) {
        if (b->begun[i] != NULL)
            (void)cudaEventDestroy(b->begun[i]);
        if (b->done[i] != NULL)
            (void)cudaEventDestroy(b->done[i]);
    }
    *b = (gpu_beside){0};
}

assay_status gpu_beside_begin(gpu_run *run, int slot, const char *fault)
{
    gpu_beside *b = &run->beside;
    CUDA_TRY(cudaEventRecord(b->begun[slot], run->ctx.stream));
    if (!gpu_fault_switch(run, fault))
        CUDA_TRY(cudaStreamWaitEvent(b->own.stream, b->begun[slot], 0));
    swap(run);
    return ASSAY_OK;
}

assay_status gpu_beside_mark(gpu_run *run, int slot)
{
    CUDA_TRY(cudaEventRecord(run->beside.done[slot], run->ctx.stream));
    return ASSAY_OK;
}

assay_status gpu_beside_end(gpu_run *run)
{
    swap(run);
    return ASSAY_OK;
}

assay_status gpu_beside_join(gpu_run *run, int slot, const char *fault)
{
    if (!gpu_fault_switch(run, fault))
        CUDA_TRY(cudaStreamWaitEvent(run->ctx.stream, run->beside.done[slot], 0));
    return ASSAY_OK;
}
