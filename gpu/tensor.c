/* Tensor views, and the argument checks of the operations. */
#include "gpu/check.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

gpu_tensor gpu_tensor_make(void *data, assay_dtype dtype, int ndim, const int64_t *shape)
{
    gpu_tensor t;
    memset(&t, 0, sizeof t);
    t.data = data;
    t.dtype = dtype;
    t.ndim = ndim;
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; --i) {
        t.shape[i] = shape[i];
        t.stride[i] = stride;
        if (!assay_mul_i64(stride, shape[i], &stride))
            stride = 0; /* an absurd shape: the checks of the operations refuse it */
    }
    return t;
}

gpu_tensor gpu_tensor_1d(void *data, assay_dtype dtype, int64_t n)
{
    return gpu_tensor_make(data, dtype, 1, &n);
}

gpu_tensor gpu_tensor_2d(void *data, assay_dtype dtype, int64_t rows, int64_t cols)
{
    const int64_t shape[2] = {rows, cols};
    return gpu_tensor_make(data, dtype, 2, shape);
}

gpu_tensor gpu_tensor_none(void)
{
    gpu_tensor t;
    memset(&t, 0, sizeof t);
    return t;
}

bool gpu_tensor_present(gpu_tensor t)
{
    return t.data != NULL || t.ndim > 0;
}

int64_t gpu_tensor_count(gpu_tensor t)
{
    int64_t n = 0;
    if (!gpu_tensor_present(t) || !assay_shape_count(t.shape, t.ndim, &n))
        return 0;
    return n;
}

size_t gpu_tensor_bytes(gpu_tensor t)
{
    int64_t bytes = 0;
    if (!assay_mul_i64(gpu_tensor_count(t), assay_dtype_bytes(t.dtype), &bytes))
        return 0;
    return (size_t)bytes;
}

gpu_tensor gpu_tensor_rows(gpu_tensor t, int64_t start, int64_t length)
{
    gpu_tensor r = t;
    if (t.data != NULL)
        r.data = (char *)t.data + start * t.stride[0] * assay_dtype_bytes(t.dtype);
    r.shape[0] = length;
    return r;
}

int64_t gpu_tensor_cols(gpu_tensor t)
{
    return t.ndim > 0 ? t.shape[t.ndim - 1] : 0;
}

int64_t gpu_tensor_row_count(gpu_tensor t)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < t.ndim; ++i)
        if (!assay_mul_i64(rows, t.shape[i], &rows))
            return 0;
    return t.ndim > 0 ? rows : 0;
}

void gpu_tensor_describe(gpu_tensor t, char *out, size_t bytes)
{
    size_t used = 0;
    if (bytes == 0)
        return;
    out[0] = '\0';
    for (int i = 0; i < t.ndim && i < GPU_MAX_DIMS && used < bytes; ++i) {
        const int n = snprintf(out + used, bytes - used, "%s%" PRId64, i == 0 ? "[" : ",", t.shape[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    if (used < bytes)
        (void)snprintf(out + used, bytes - used, "%s", t.ndim > 0 ? "]" : "[]");
}

/* The same where a message needs it, and nowhere else: checks run before every launch. */
typedef struct described_tensor {
    char text[96];
} described_tensor;

static described_tensor described(gpu_tensor t)
{
    described_tensor d;
    gpu_tensor_describe(t, d.text, sizeof d.text);
    return d;
}

assay_status gpu_check_tensor(const char *op, const char *operand, gpu_tensor t, assay_dtype a, assay_dtype b)
{
    int64_t count = 0;
    ASSAY_CHECK(gpu_tensor_present(t), ASSAY_INVALID_ARGUMENT, "%s: %s: expected a tensor, found none", op,
                operand);
    ASSAY_CHECK(t.ndim >= 0 && t.ndim <= GPU_MAX_DIMS, ASSAY_INVALID_ARGUMENT,
                "%s: %s: expected at most %d dimensions, found %d", op, operand, GPU_MAX_DIMS, t.ndim);
    if (a == b)
        ASSAY_CHECK(t.dtype == a, ASSAY_INVALID_ARGUMENT, "%s: %s: expected dtype %s, found %s", op, operand,
                    assay_dtype_name(a), assay_dtype_name(t.dtype));
    else
        ASSAY_CHECK(t.dtype == a || t.dtype == b, ASSAY_INVALID_ARGUMENT,
                    "%s: %s: expected dtype %s or %s, found %s", op, operand, assay_dtype_name(a),
                    assay_dtype_name(b), assay_dtype_name(t.dtype));
    ASSAY_CHECK(assay_shape_count(t.shape, t.ndim, &count) && count <= INT64_MAX / 16, ASSAY_INVALID_ARGUMENT,
                "%s: %s: shape %s is negative or too large", op, operand, described(t).text);
    int64_t stride = 1;
    for (int i = t.ndim - 1; i >= 0; --i) {
        ASSAY_CHECK(count == 0 || t.shape[i] == 1 || t.stride[i] == stride, ASSAY_INVALID_ARGUMENT,
                    "%s: %s: expected a contiguous tensor: stride %" PRId64
                    " in dimension %d of %s, found %" PRId64,
                    op, operand, stride, i, described(t).text, t.stride[i]);
        stride *= t.shape[i];
    }
    ASSAY_CHECK(count == 0 || t.data != NULL, ASSAY_INVALID_ARGUMENT,
                "%s: %s: expected data for shape %s, found NULL", op, operand, described(t).text);
    ASSAY_CHECK(count == 0 || (uintptr_t)t.data % (uintptr_t)assay_dtype_bytes(t.dtype) == 0,
                ASSAY_INVALID_ARGUMENT, "%s: %s: expected an address aligned to %" PRId64 " bytes, found %p",
                op, operand, assay_dtype_bytes(t.dtype), t.data);
    return ASSAY_OK;
}

assay_status gpu_check_act(const char *op, const char *operand, gpu_tensor t)
{
    return gpu_check_tensor(op, operand, t, ASSAY_F32, ASSAY_BF16);
}

assay_status gpu_check_count(const char *op, const char *operand, gpu_tensor t, int64_t expected)
{
    ASSAY_CHECK(gpu_tensor_count(t) == expected, ASSAY_INVALID_ARGUMENT,
                "%s: %s: expected %" PRId64 " elements, found %" PRId64 " (shape %s)", op, operand, expected,
                gpu_tensor_count(t), described(t).text);
    return ASSAY_OK;
}

assay_status gpu_check_row_tokens(const char *op, gpu_tensor token, const char *operand, int64_t n)
{
    const int64_t t = gpu_tensor_count(token);
    ASSAY_TRY(gpu_check_tensor(op, "token", token, ASSAY_I64, ASSAY_I64));
    ASSAY_CHECK(t > 0 ? n % t == 0 : n == 0, ASSAY_INVALID_ARGUMENT,
                "%s: token: expected one for each row of %s, found %" PRId64 " for %" PRId64 " elements", op,
                operand, t, n);
    return ASSAY_OK;
}

assay_status gpu_check_shape2(const char *op, const char *operand, gpu_tensor t, int64_t d0, int64_t d1)
{
    ASSAY_CHECK(gpu_tensor_row_count(t) == d0 && gpu_tensor_cols(t) == d1, ASSAY_INVALID_ARGUMENT,
                "%s: %s: expected shape [%" PRId64 ",%" PRId64 "], found %s", op, operand, d0, d1,
                described(t).text);
    return ASSAY_OK;
}

assay_status gpu_check_same_dtype(const char *op, const char *operand, gpu_tensor t, const char *other,
                                  gpu_tensor o)
{
    ASSAY_CHECK(t.dtype == o.dtype, ASSAY_INVALID_ARGUMENT, "%s: %s: expected dtype %s as %s has, found %s",
                op, operand, assay_dtype_name(o.dtype), other, assay_dtype_name(t.dtype));
    return ASSAY_OK;
}

assay_status gpu_check_workspace(const char *op, const gpu_ctx *ctx, size_t bytes)
{
    ASSAY_CHECK(bytes <= ctx->workspace_bytes, ASSAY_LIMIT,
                "%s: expected a workspace of at least %zu bytes, found %zu", op, bytes, ctx->workspace_bytes);
    return ASSAY_OK;
}
