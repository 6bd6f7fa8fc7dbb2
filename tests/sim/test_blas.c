/* cuBLASLt against the declared chain of fused multiply-adds, bit for bit, and against double loops. */
#include "tests/support/sim.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    int m, n, k, batch;
    bool ta, tb, row_a, row_b, row_d; /* stored row-major */
    cudaDataType in, out;
    float alpha, beta;
    bool bias;
} product;

static float widen(const void *p, int64_t i, cudaDataType type)
{
    if (type == CUDA_R_32F) {
        return ((const float *)p)[i];
    }
    const uint16_t h = ((const uint16_t *)p)[i];
    if (type == CUDA_R_16BF) {
        const uint32_t u = (uint32_t)h << 16;
        float f;
        memcpy(&f, &u, 4);
        return f;
    }
    const int e = h >> 10 & 31;
    const float man = (float)(h & 1023) / 1024.0f;
    const float v = e == 0 ? ldexpf(man, -14) : ldexpf(1.0f + man, e - 15);
    return h & 0x8000 ? -v : v;
}

static size_t bytes_of(cudaDataType type)
{
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

/* Values of few bits, so that every type stores them exactly; results still round. */
static void fill(void *p, int64_t n, cudaDataType type, uint32_t seed)
{
    for (int64_t i = 0; i < n; ++i) {
        seed = seed * 1664525u + 1013904223u;
        const float f = ((float)(seed >> 24) - 128.0f) * (1.0f / 64.0f);
        if (type == CUDA_R_64F) {
            ((double *)p)[i] = (double)f + (double)(seed >> 8) * 1e-9;
        } else if (type == CUDA_R_32F) {
            ((float *)p)[i] = f + (float)(seed >> 8) * 1e-9f;
        } else if (type == CUDA_R_16BF) {
            uint32_t u;
            memcpy(&u, &f, 4);
            ((uint16_t *)p)[i] = (uint16_t)(u >> 16);
        } else {
            int e;
            const float m = frexpf(fabsf(f), &e);
            const int man = f == 0.0f ? 0 : (int)((m * 2.0f - 1.0f) * 1024.0f);
            ((uint16_t *)p)[i] =
                (uint16_t)((f < 0.0f ? 0x8000 : 0) | (f == 0.0f ? 0 : (e - 1 + 15) << 10) | man);
        }
    }
}

typedef struct {
    int64_t rows, cols, ld, stride, elements;
    bool row;
    void *host, *device;
    cublasLtMatrixLayout_t layout;
} matrix;

static int64_t at(const matrix *x, int64_t batch, int64_t i, int64_t j)
{
    return batch * x->stride + (x->row ? i * x->ld + j : j * x->ld + i);
}

static matrix make(int64_t rows, int64_t cols, bool row, int batch, cudaDataType type, uint32_t seed)
{
    matrix x = {rows, cols, (row ? cols : rows) + 3, 0, 0, row, NULL, NULL, NULL};
    const cublasLtOrder_t order = row ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
    x.stride = x.ld * (row ? rows : cols) + 5;
    x.elements = x.stride * batch;
    x.host = malloc((size_t)x.elements * bytes_of(type));
    fill(x.host, x.elements, type, seed);
    cr_assert(cudaMalloc(&x.device, (size_t)x.elements * bytes_of(type)) == cudaSuccess);
    cudaMemcpy(x.device, x.host, (size_t)x.elements * bytes_of(type), cudaMemcpyHostToDevice);
    cr_assert(cublasLtMatrixLayoutCreate(&x.layout, type, (uint64_t)rows, (uint64_t)cols, x.ld) ==
              CUBLAS_STATUS_SUCCESS);
    cublasLtMatrixLayoutSetAttribute(x.layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order);
    const int32_t count = batch;
    cublasLtMatrixLayoutSetAttribute(x.layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    cublasLtMatrixLayoutSetAttribute(x.layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &x.stride,
                                     sizeof x.stride);
    return x;
}

static void drop(matrix *x)
{
    cudaFree(x->device);
    cublasLtMatrixLayoutDestroy(x->layout);
    free(x->host);
}

/* bf16 by the definition: nearest even at bit 16. */
static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static void check_result(const product *p, const matrix *a, const matrix *b, const matrix *d,
                         const void *bias, const void *got)
{
    for (int64_t z = 0; z < p->batch; ++z) {
        for (int64_t i = 0; i < p->m; ++i) {
            for (int64_t j = 0; j < p->n; ++j) {
                float acc = 0.0f;
                for (int64_t k = 0; k < p->k; ++k) {
                    acc = fmaf(widen(a->host, p->ta ? at(a, z, k, i) : at(a, z, i, k), p->in),
                               widen(b->host, p->tb ? at(b, z, j, k) : at(b, z, k, j), p->in), acc);
                }
                float want = p->alpha * acc;
                if (p->beta != 0.0f) {
                    want = fmaf(p->beta, widen(d->host, at(d, z, i, j), p->out), want);
                }
                if (p->bias) {
                    want = want + widen(bias, i, p->out);
                }
                const int64_t e = at(d, z, i, j);
                if (p->out == CUDA_R_32F) {
                    cr_assert(memcmp((const float *)got + e, &want, 4) == 0, "[%d][%d][%d] of %d x %d x %d",
                              (int)z, (int)i, (int)j, p->m, p->n, p->k);
                } else if (p->out == CUDA_R_16BF) {
                    cr_assert(((const uint16_t *)got)[e] == to_bf16(want), "[%d][%d][%d]", (int)z, (int)i,
                              (int)j);
                } else {
                    cr_assert(fabsf(widen(got, e, p->out) - want) <= fabsf(want) * 0x1p-11f + 0x1p-25f);
                }
            }
        }
    }
}

static void run(const product *p)
{
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t how;
    matrix a = make(p->ta ? p->k : p->m, p->ta ? p->m : p->k, p->row_a, p->batch, p->in, 1);
    matrix b = make(p->tb ? p->n : p->k, p->tb ? p->k : p->n, p->row_b, p->batch, p->in, 2);
    matrix d = make(p->m, p->n, p->row_d, p->batch, p->out, 3);
    matrix bias = make(p->m, 1, false, 1, p->out, 4);
    cr_assert(cublasLtCreate(&lt) == CUBLAS_STATUS_SUCCESS);
    cr_assert(cublasLtMatmulDescCreate(&how, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
    const cublasOperation_t ta = p->ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb = p->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    if (p->bias) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.device,
                                       sizeof bias.device);
    }
    int found = 0;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t h;
    cublasLtMatmulPreferenceCreate(&pref);
    cr_assert(cublasLtMatmulAlgoGetHeuristic(lt, how, a.layout, b.layout, d.layout, d.layout, pref, 1, &h,
                                             &found) == CUBLAS_STATUS_SUCCESS &&
              found == 1);
    cr_assert(cublasLtMatmul(lt, how, &p->alpha, a.device, a.layout, b.device, b.layout, &p->beta, d.device,
                             d.layout, d.device, d.layout, &h.algo, NULL, 0, NULL) == CUBLAS_STATUS_SUCCESS);
    const size_t bytes = (size_t)d.elements * bytes_of(p->out);
    unsigned char *got = malloc(bytes);
    cr_assert(cudaMemcpy(got, d.device, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    check_result(p, &a, &b, &d, bias.host, got);
    /* What lies between the columns and between the batches is untouched. */
    const unsigned char *before = d.host;
    for (int64_t z = 0; z < p->batch; ++z) {
        for (int64_t outer = 0; outer < (p->row_d ? p->m : p->n); ++outer) {
            const int64_t gap = z * d.stride + outer * d.ld + (p->row_d ? p->n : p->m);
            cr_assert(memcmp(got + (size_t)gap * bytes_of(p->out), before + (size_t)gap * bytes_of(p->out),
                             3 * bytes_of(p->out)) == 0);
        }
    }
    free(got);
    drop(&a);
    drop(&b);
    drop(&d);
    drop(&bias);
    cublasLtMatmulPreferenceDestroy(pref);
    cublasLtMatmulDescDestroy(how);
    cublasLtDestroy(lt);
}

Test(sim_blas, every_transposition_order_and_odd_size)
{
    const int sizes[][3] = {{1, 1, 1},   {2, 3, 5},   {6, 16, 7},   {7, 17, 31},
                            {5, 15, 64}, {13, 33, 1}, {1, 40, 129}, {31, 1, 3}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
        for (int bits = 0; bits < 32; ++bits) {
            const product p = {sizes[s][0],
                               sizes[s][1],
                               sizes[s][2],
                               1,
                               bits & 1,
                               (bits & 2) != 0,
                               (bits & 4) != 0,
                               (bits & 8) != 0,
                               (bits & 16) != 0,
                               CUDA_R_32F,
                               CUDA_R_32F,
                               1.0f,
                               0.0f,
                               false};
            run(&p);
        }
    }
}

Test(sim_blas, alpha_beta_bias_and_batches)
{
    const float alphas[] = {1.0f, 0.3f, -2.0f}, betas[] = {0.0f, 1.0f, 0.7f};
    for (int i = 0; i < 18; ++i) {
        const product p = {9,    19,         23,         3,          i & 1,         !(i & 1),         false,
                           true, i % 3 == 0, CUDA_R_32F, CUDA_R_32F, alphas[i % 3], betas[i / 3 % 3], i >= 9};
        run(&p);
    }
}

Test(sim_blas, short_types_with_both_outputs)
{
    const cudaDataType in[] = {CUDA_R_16BF, CUDA_R_16F};
    for (int i = 0; i < 8; ++i) {
        const product p = {11,
                           18,
                           37,
                           2,
                           i & 1,
                           false,
                           false,
                           false,
                           false,
                           in[i / 2 % 2],
                           i & 1 ? CUDA_R_32F : in[i / 2 % 2],
                           1.0f,
                           i & 4 ? 1.0f : 0.0f,
                           i >= 4};
        run(&p);
    }
}

Test(sim_blas, double_precision)
{
    enum { M = 7, N = 18, K = 29 };
    matrix a = make(M, K, false, 1, CUDA_R_64F, 5), b = make(K, N, false, 1, CUDA_R_64F, 6);
    matrix d = make(M, N, false, 1, CUDA_R_64F, 7);
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t how;
    const double alpha = 1.5, beta = 0.25;
    double *got = malloc((size_t)d.elements * 8);
    cublasLtCreate(&lt);
    cublasLtMatmulDescCreate(&how, CUBLAS_COMPUTE_64F, CUDA_R_64F);
    cr_assert(cublasLtMatmul(lt, how, &alpha, a.device, a.layout, b.device, b.layout, &beta, d.device,
                             d.layout, d.device, d.layout, NULL, NULL, 0, NULL) == CUBLAS_STATUS_SUCCESS);
    cudaMemcpy(got, d.device, (size_t)d.elements * 8, cudaMemcpyDeviceToHost);
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) {
            double acc = 0.0;
            for (int64_t k = 0; k < K; ++k) {
                acc = fma(((double *)a.host)[at(&a, 0, i, k)], ((double *)b.host)[at(&b, 0, k, j)], acc);
            }
            cr_assert(got[at(&d, 0, i, j)] == fma(beta, ((double *)d.host)[at(&d, 0, i, j)], alpha * acc));
        }
    }
    free(got);
    drop(&a);
    drop(&b);
    drop(&d);
    cublasLtMatmulDescDestroy(how);
    cublasLtDestroy(lt);
}

/* An unwritten C is not read when beta is 0, and an empty sum is 0. */
Test(sim_blas, beta_zero_does_not_read_c_and_k_zero_gives_zero)
{
    float *d = NULL, h[4], one = 1.0f, zero = 0.0f;
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t la, lb, ld;
    cudaMalloc((void **)&d, sizeof h); /* poisoned with NaN */
    cublasLtCreate(&lt);
    cublasLtMatmulDescCreate(&how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&la, CUDA_R_32F, 2, 0, 2);
    cublasLtMatrixLayoutCreate(&lb, CUDA_R_32F, 0, 2, 1);
    cublasLtMatrixLayoutCreate(&ld, CUDA_R_32F, 2, 2, 2);
    cr_assert(cublasLtMatmul(lt, how, &one, NULL, la, NULL, lb, &zero, NULL, ld, d, ld, NULL, NULL, 0,
                             NULL) == CUBLAS_STATUS_SUCCESS);
    cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 4; ++i) {
        cr_expect(h[i] == 0.0f);
    }
    cublasLtMatrixLayoutDestroy(la);
    cublasLtMatrixLayoutDestroy(lb);
    cublasLtMatrixLayoutDestroy(ld);
    cublasLtMatmulDescDestroy(how);
    cublasLtDestroy(lt);
}

Test(sim_blas, what_is_not_supported_is_refused_by_name)
{
    float *x = NULL, one = 1.0f, zero = 0.0f;
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t l, odd, fp8;
    const int relu = CUBLASLT_EPILOGUE_RELU;
    quiet();
    cudaMalloc((void **)&x, 16 * sizeof *x);
    cublasLtCreate(&lt);
    cublasLtMatmulDescCreate(&how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&l, CUDA_R_32F, 4, 4, 4);
    cublasLtMatrixLayoutCreate(&odd, CUDA_R_32F, 3, 4, 3);
    cublasLtMatrixLayoutCreate(&fp8, CUDA_R_8F_E4M3, 4, 4, 4);
    cr_expect(cublasLtMatmul(lt, how, &one, x, l, x, odd, &zero, x, l, x, l, NULL, NULL, 0, NULL) ==
              CUBLAS_STATUS_INVALID_VALUE);
    expect_report("op(A) 4 x 4", "op(B) 3 x 4", "do not fit");
    cr_expect(cublasLtMatmul(lt, how, &one, x, fp8, x, fp8, &zero, x, l, x, l, NULL, NULL, 0, NULL) ==
              CUBLAS_STATUS_NOT_SUPPORTED);
    expect_report("unsupported", "data type", "28");
    cr_expect(cublasLtMatmul(lt, how, &one, x + 1, l, x, l, &zero, x, l, x, l, NULL, NULL, 0, NULL) ==
              CUBLAS_STATUS_INVALID_VALUE);
    expect_report("out of bounds: cublasLtMatmul: matrix A", "16 elements", "");
    cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_EPILOGUE, &relu, sizeof relu);
    cr_expect(cublasLtMatmul(lt, how, &one, x, l, x, l, &zero, x, l, x, l, NULL, NULL, 0, NULL) ==
              CUBLAS_STATUS_NOT_SUPPORTED);
    expect_report("unsupported", "epilogue", "2");
    void *scale = x;
    cr_expect(cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale,
                                             sizeof scale) == CUBLAS_STATUS_NOT_SUPPORTED);
    cr_expect(strcmp(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED") == 0);
    cublasLtMatrixLayoutDestroy(l);
    cublasLtMatrixLayoutDestroy(odd);
    cublasLtMatrixLayoutDestroy(fp8);
    cublasLtMatmulDescDestroy(how);
    cublasLtDestroy(lt);
}
