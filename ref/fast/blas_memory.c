/* Buffers of OpenBLAS, before it would wait for them. */
#include "ref/fast/blas_memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Of the library, not in its header; another BLAS has none, and nothing is known of its memory. */
extern void *blas_memory_alloc(int position) __attribute__((weak));
extern void blas_memory_free(void *buffer) __attribute__((weak));

/* BUFFER_SIZE of OpenBLAS's common_x86_64.h and common_arm64.h, the largest that it has, and a page beside it. */
static const size_t buffer_bytes = ((size_t)32 << 22) + 4096;

/* Whether n buffers can be mapped at the same time, and what was mapped is gone again. */
static bool can_map(int n, void **mapped)
{
    int got = 0;
    while (got < n) {
        mapped[got] = mmap(NULL, buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped[got] == MAP_FAILED)
            break;
        got++;
    }
    const int code = errno;
    for (int i = 0; i < got; i++)
        munmap(mapped[i], buffer_bytes);
    errno = code;
    return got == n;
}

assay_status ref_blas_reserve(int threads)
{
    static _Atomic int reserved; /* the library keeps what it has mapped; a forked child has it, too */
    if (threads <= reserved || blas_memory_alloc == NULL || blas_memory_free == NULL)
        return ASSAY_OK;
    void **buffers = calloc((size_t)threads, sizeof *buffers);
    ASSAY_CHECK(buffers != NULL, ASSAY_OUT_OF_MEMORY, "buffers of OpenBLAS");
    if (!can_map(threads - reserved, buffers)) {
        const int code = errno;
        free(buffers);
        ASSAY_FAIL(
            ASSAY_OUT_OF_MEMORY,
            "OpenBLAS needs %d MiB of address space for each thread (%d here) and would wait for it for "
            "ever: mmap: %s (ulimit -v; fewer threads: OMP_NUM_THREADS)",
            (int)(buffer_bytes >> 20), threads, strerror(code));
    }
    for (int i = 0; i < threads; i++)
        buffers[i] = blas_memory_alloc(0);
    for (int i = 0; i < threads; i++)
        blas_memory_free(buffers[i]);
    reserved = threads;
    free(buffers);
    return ASSAY_OK;
}
