/* Checks that every kernel of these examples makes of a call before it writes anything. */
#ifndef CERTIFY_CHECK_H
#define CERTIFY_CHECK_H

#include "assay_kernel.h" /* -I PREFIX/include/assay of an installed assay, -I parity of a checkout */
#include "assay_kernel_ops.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* A dense tensor of this dtype and rank with data where it has elements. */
static inline int32_t check_tensor(const assay_kernel_tensor *t, int32_t dtype, int32_t ndim)
{
    int64_t stride = 1;
    if (t == NULL || t->size < offsetof(assay_kernel_tensor, host) || t->ndim != ndim)
        return ASSAY_KERNEL_INVALID;
    if (t->dtype != dtype)
        return ASSAY_KERNEL_UNSUPPORTED;
    for (int d = ndim - 1; d >= 0; d--) {
        if (t->shape[d] < 0)
            return ASSAY_KERNEL_INVALID;
        if (t->stride[d] != stride && t->shape[d] > 1)
            return ASSAY_KERNEL_UNSUPPORTED;
        stride *= t->shape[d];
    }
    return stride == 0 || t->data != NULL ? ASSAY_KERNEL_OK : ASSAY_KERNEL_INVALID;
}

static inline bool check_call(const assay_kernel_call *c)
{
    return c != NULL && c->size >= offsetof(assay_kernel_call, shadow);
}

/* Element i of F32 or BF16 data. */
static inline float load(const void *data, int64_t i, int32_t dtype)
{
    float x;
    if (dtype == ASSAY_KERNEL_F32) {
        memcpy(&x, (const char *)data + 4 * i, 4);
        return x;
    }
    uint16_t half;
    memcpy(&half, (const char *)data + 2 * i, 2);
    const uint32_t bits = (uint32_t)half << 16;
    memcpy(&x, &bits, 4);
    return x;
}

static inline void store(void *data, int64_t i, int32_t dtype, float x)
{
    uint32_t bits;
    if (dtype == ASSAY_KERNEL_F32) {
        memcpy((char *)data + 4 * i, &x, 4);
        return;
    }
    memcpy(&bits, &x, 4);
    /* to nearest, ties to even; a NaN stays one */
    const uint32_t rounded = x != x ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const uint16_t half = (uint16_t)rounded;
    memcpy((char *)data + 2 * i, &half, 2);
}

#endif
