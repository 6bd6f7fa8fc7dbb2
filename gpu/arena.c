/* Arenas on the device.  One cudaMalloc for the life of the arena; pieces are dealt out in order. */
#include "gpu/gpu.h"
#include <string.h>

enum { ARENA_ALIGN = 256 };

assay_status gpu_arena_create(gpu_arena *a, size_t capacity)
{
    memset(a, 0, sizeof *a);
    if (capacity == 0)
        return ASSAY_OK;
    void *base = NULL;
    const cudaError_t e = cudaMalloc(&base, capacity);
    if (e != cudaSuccess)
        (void)cudaGetLastError();
    ASSAY_CHECK(e == cudaSuccess, ASSAY_OUT_OF_MEMORY, "device arena of %zu bytes: %s", capacity,
                cudaGetErrorString(e));
    a->base = base;
    a->capacity = capacity;
    return ASSAY_OK;
}

void gpu_arena_destroy(gpu_arena *a)
{
    if (a == NULL)
        return;
    if (a->base != NULL)
        (void)cudaFree(a->base);
    memset(a, 0, sizeof *a);
}

assay_status gpu_arena_take(gpu_arena *a, size_t bytes, void **out)
{
    *out = NULL;
    ASSAY_CHECK(bytes <= SIZE_MAX - ARENA_ALIGN, ASSAY_OUT_OF_MEMORY, "device arena: %zu bytes asked", bytes);
    const size_t rounded = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (a->counting) {
        ASSAY_CHECK(rounded <= SIZE_MAX - a->used, ASSAY_OUT_OF_MEMORY,
                    "device arena: the sizes of a dry run overflow at %zu bytes", a->used);
    } else {
        ASSAY_CHECK(rounded <= a->capacity - a->used, ASSAY_OUT_OF_MEMORY,
                    "device arena: asked %zu bytes, used %zu of capacity %zu", bytes, a->used, a->capacity);
        *out = a->base != NULL ? a->base + a->used : NULL;
    }
    a->used += rounded;
    if (a->used > a->peak)
        a->peak = a->used;
    return ASSAY_OK;
}

void gpu_arena_reset(gpu_arena *a, size_t mark)
{
    if (mark <= a->used)
        a->used = mark;
}
