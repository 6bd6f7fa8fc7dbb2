/* cuBLAS against loops; prints what tests/sim/test_cc.c expects. */
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <stdio.h>
#include <vector>

static int bad;

static void expect(const char *what, bool good)
{
    if (!good) {
        printf("wrong: %s\n", what);
        ++bad;
    }
}

/* Small whole numbers: every order of additions gives the same bits. */
template <class T> static T *device(const std::vector<T> &v)
{
    T *d;
    cudaMalloc(&d, v.size() * sizeof(T));
    cudaMemcpy(d, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice);
    return d;
}
template <class T> static std::vector<T> host(const T *d, size_t n)
{
    std::vector<T> v(n);
    cudaMemcpy(v.data(), d, n * sizeof(T), cudaMemcpyDeviceToHost);
    return v;
}
static int value(int i)
{
    return i * 7 % 11 - 5;
}

int main()
{
    const int m = 5, n = 3, k = 7, batches = 2, lda = 8, ldb = 9, ldc = 6;
    cublasHandle_t h;
    expect("create", cublasCreate(&h) == CUBLAS_STATUS_SUCCESS);
    for (int form = 0; form < 4; ++form) {
        const bool ta = form & 1, tb = form & 2;
        const int acols = ta ? m : k, bcols = tb ? k : n;
        std::vector<float> a(lda * acols * batches), b(ldb * bcols * batches), c(ldc * n * batches);
        for (size_t i = 0; i < a.size(); ++i)
            a[i] = value(i);
        for (size_t i = 0; i < b.size(); ++i)
            b[i] = value(i + 3);
        for (size_t i = 0; i < c.size(); ++i)
            c[i] = value(i + 5);
        float *da = device(a), *db = device(b), *dc = device(c);
        const float alpha = 2, beta = 3;
        expect("gemm",
               cublasSgemmStridedBatched(h, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N, m,
                                         n, k, &alpha, da, lda, lda * acols, db, ldb, ldb * bcols, &beta, dc,
                                         ldc, ldc * n, batches) == CUBLAS_STATUS_SUCCESS);
        const std::vector<float> r = host(dc, c.size());
        for (int batch = 0; batch < batches; ++batch)
            for (int j = 0; j < n; ++j)
                for (int i = 0; i < ldc; ++i) {
                    float s = 0;
                    for (int l = 0; l < k && i < m; ++l)
                        s += a[batch * lda * acols + (ta ? l + i * lda : i + l * lda)] *
                             b[batch * ldb * bcols + (tb ? j + l * ldb : l + j * ldb)];
                    const size_t at = batch * ldc * n + i + j * ldc;
                    expect("element of gemm", r[at] == (i < m ? 2 * s + 3 * c[at] : c[at]));
                }
    }
    std::vector<double> x(12), y(12);
    for (int i = 0; i < 12; ++i) {
        x[i] = value(i);
        y[i] = value(i + 1);
    }
    double *dx = device(x), *dy = device(y), result, two = 2, want = 0;
    expect("dot", cublasDdot(h, 4, dx, 3, dy, 2, &result) == CUBLAS_STATUS_SUCCESS);
    for (int i = 0; i < 4; ++i)
        want += x[3 * i] * y[2 * i];
    expect("value of dot", result == want);
    cublasDaxpy(h, 6, &two, dx, -2, dy, 2); /* backwards through x */
    const std::vector<double> r = host(dy, 12);
    for (int i = 0; i < 12; ++i)
        expect("element of axpy", r[i] == (i % 2 ? y[i] : y[i] + 2 * x[10 - i]));
    int index;
    cublasIdamax(h, 12, dx, 1, &index);
    expect("amax", index == 1);
    const double one = 1, zero = 0;
    double *dv = device(std::vector<double>(12, 0.0));
    expect("gemv",
           cublasDgemv(h, CUBLAS_OP_T, 3, 4, &one, dx, 3, dx, 2, &zero, dv, 3) == CUBLAS_STATUS_SUCCESS);
    const std::vector<double> v = host(dv, 12);
    for (int j = 0; j < 4; ++j) {
        want = 0;
        for (int i = 0; i < 3; ++i)
            want += x[i + 3 * j] * x[2 * i];
        expect("element of gemv", v[3 * j] == want);
    }
    std::vector<__nv_bfloat16> hb(4);
    for (int i = 0; i < 4; ++i)
        hb[i] = __float2bfloat16(i + 1.0f);
    __nv_bfloat16 *d16 = device(hb);
    float *d32 = device(std::vector<float>(4));
    const float f1 = 1, f0 = 0;
    expect("GemmEx", cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &f1, d16, CUDA_R_16BF, 2, d16,
                                  CUDA_R_16BF, 2, &f0, d32, CUDA_R_32F, 2, CUBLAS_COMPUTE_32F,
                                  CUBLAS_GEMM_DEFAULT_TENSOR_OP) == CUBLAS_STATUS_SUCCESS);
    const std::vector<float> g = host(d32, 4);
    expect("elements of GemmEx", g[0] == 7 && g[1] == 10 && g[2] == 15 && g[3] == 22);
    expect("past the end is refused",
           cublasDdot(h, 13, dx, 1, dx, 1, &result) == CUBLAS_STATUS_INVALID_VALUE);
    expect("int8 is refused", cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &f1, d16, CUDA_R_8I, 2, d16,
                                           CUDA_R_8I, 2, &f0, d32, CUDA_R_32I, 2, CUBLAS_COMPUTE_32I,
                                           CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_NOT_SUPPORTED);
    expect("destroy", cublasDestroy(h) == CUBLAS_STATUS_SUCCESS);
    printf("%d wrong\n", bad);
    return bad != 0;
}
