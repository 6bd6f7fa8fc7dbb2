/* Memory of lockstep tensors. */
#include "ref/tensor.h"

#include "core/base/dtype.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A header in front of every block; the data behind it keeps 64-byte alignment. */
struct ref_block {
    struct ref_block *next;
    char padding[64 - sizeof(struct ref_block *)];
};
static_assert(sizeof(struct ref_block) == 64, "data starts on a cache line");

static assay_status new_block(ref_arena *a, int64_t n, size_t element_bytes, void **out)
{
    int64_t bytes;
    *out = NULL;
    ASSAY_CHECK(assay_mul_i64(n, (int64_t)element_bytes, &bytes) && assay_add_i64(bytes, 128, &bytes),
                ASSAY_LIMIT, "%lld elements of %zu bytes", (long long)n, element_bytes);
    bytes = bytes / 64 * 64; /* aligned_alloc wants a multiple; 128 left room for header and rounding */
    struct ref_block *block = aligned_alloc(64, (size_t)bytes);
    ASSAY_CHECK(block, ASSAY_OUT_OF_MEMORY, "out of memory: %lld bytes", (long long)bytes);
    block->next = a->blocks;
    a->blocks = block;
    *out = block + 1;
    return ASSAY_OK;
}

assay_status ref_arena_alloc(ref_arena *a, int64_t n, size_t element_bytes, void **out)
{
    ASSAY_TRY(new_block(a, n, element_bytes, out));
    memset(*out, 0, (size_t)n * element_bytes);
    return ASSAY_OK;
}

void ref_arena_free(ref_arena *a)
{
    while (a->blocks) {
        struct ref_block *next = a->blocks->next;
        free(a->blocks);
        a->blocks = next;
    }
}

assay_status ref_tensor_new(ref_arena *a, ref_tensor *t, int n, const char *name)
{
    void *at, *text;
    const size_t length = strlen(name) + 1;
    ASSAY_TRY(ref_arena_alloc(a, n, sizeof *t->at, &at));
    ASSAY_TRY(ref_arena_alloc(a, (int64_t)length, 1, &text));
    memcpy(text, name, length);
    *t = (ref_tensor){.at = at, .n = n, .name = text, .token_rows = true};
    return ASSAY_OK;
}

assay_status ref_piece_new(ref_arena *a, ref_piece *p, int64_t rows, int64_t cols)
{
    int64_t count;
    void *x;
    ASSAY_CHECK(assay_mul_i64(rows, cols, &count), ASSAY_LIMIT, "a tensor of %lld x %lld elements",
                (long long)rows, (long long)cols);
    ASSAY_TRY(new_block(a, count, sizeof *p->x, &x));
    *p = (ref_piece){.x = x, .rows = rows, .cols = cols};
    return ASSAY_OK;
}

assay_status ref_ints_new(ref_arena *a, ref_ints *t, int n)
{
    void *at;
    ASSAY_TRY(ref_arena_alloc(a, n, sizeof *t->at, &at));
    *t = (ref_ints){.at = at, .n = n};
    return ASSAY_OK;
}

assay_status ref_int_piece_new(ref_arena *a, ref_int_piece *p, int64_t rows, int64_t cols)
{
    int64_t count;
    void *x;
    ASSAY_CHECK(assay_mul_i64(rows, cols, &count), ASSAY_LIMIT, "a tensor of %lld x %lld elements",
                (long long)rows, (long long)cols);
    ASSAY_TRY(ref_arena_alloc(a, count, sizeof *p->x, &x));
    *p = (ref_int_piece){.x = x, .rows = rows, .cols = cols};
    return ASSAY_OK;
}
