/* The algorithms that the simulated cuBLASLt offers: which, what each computes, and the call that one does not take. */
#include "tests/support/sim.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdint.h>

TestSuite(sim_blas_algorithms, .timeout = 60);

/* A product [4,4] of 8 terms at `shift` elements behind an aligned address, each sum one whose rounding shows the order of k. */
typedef struct offered_call {
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t ab, d;
    cublasLtMatmulHeuristicResult_t offered[8];
    float *a, *out;
    void *workspace;
} offered_call;

static const float offered_terms[8] = {1.0f, 0x1p-24f, -1.0f, 0x1p-24f, 4.0f, 0x1p-23f, -4.0f, 0x1p-26f};

static void offered_begin(offered_call *c)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    float host[32 + 32 + 64];
    for (int i = 0; i < 32; ++i) {
        host[i] = 1.0f;
        host[32 + i] = offered_terms[i % 8];
    }
    cr_assert(cublasLtCreate(&c->lt) == CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulDescCreate(&c->how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(c->how, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    cublasLtMatrixLayoutCreate(&c->ab, CUDA_R_32F, 8, 4, 8);
    cublasLtMatrixLayoutCreate(&c->d, CUDA_R_32F, 4, 4, 4);
    cr_assert(cudaMalloc((void **)&c->a, sizeof host) == cudaSuccess);
    cr_assert(cudaMalloc(&c->workspace, 4096) == cudaSuccess);
    cr_assert(cudaMemcpy(c->a, host, 64 * sizeof(float), cudaMemcpyHostToDevice) == cudaSuccess);
    c->out = c->a + 64;
}

static void offered_end(offered_call *c)
{
    cudaFree(c->a);
    cudaFree(c->workspace);
    cublasLtMatrixLayoutDestroy(c->ab);
    cublasLtMatrixLayoutDestroy(c->d);
    cublasLtMatmulDescDestroy(c->how);
    cublasLtDestroy(c->lt);
}

static int offers(offered_call *c, uint32_t align, uint64_t workspace, int most)
{
    int n = -1;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulPreferenceCreate(&pref);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align,
                                         sizeof align);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                         sizeof workspace);
    cr_assert(cublasLtMatmulAlgoGetHeuristic(c->lt, c->how, c->ab, c->ab, c->d, c->d, pref, most, c->offered,
                                             &n) == CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulPreferenceDestroy(pref);
    return n;
}

static cublasStatus_t multiply_by(offered_call *c, const cublasLtMatmulAlgo_t *algo, int shift,
                                  void *workspace, size_t bytes)
{
    const float one = 1.0f, zero = 0.0f;
    return cublasLtMatmul(c->lt, c->how, &one, c->a, c->ab, c->a + 32, c->ab, &zero, c->out + shift, c->d,
                          c->out + shift, c->d, algo, workspace, bytes, NULL);
}

static void set_epilogue(offered_call *c, cublasLtEpilogue_t epilogue)
{
    const void *bias = c->a;
    cublasLtMatmulDescSetAttribute(c->how, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    cublasLtMatmulDescSetAttribute(c->how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

Test(sim_blas_algorithms, algorithms_that_fit_are_offered)
{
    offered_call c;
    offered_begin(&c);
    cr_expect_eq(offers(&c, 256, 4096, 8), 4);
    cr_expect_eq(offers(&c, 256, 4096, 1), 1);
    cr_expect_eq(offers(&c, 256, 4095, 8), 3);
    cr_expect_eq(offers(&c, 8, 4096, 8), 1);
    set_epilogue(&c, CUBLASLT_EPILOGUE_BIAS);
    cr_expect_eq(offers(&c, 256, 4096, 8), 3);
    offered_end(&c);
}

/* Each is one chain; where it begins and which way it goes is the algorithm's. */
Test(sim_blas_algorithms, algorithms_differ_in_the_order_of_k)
{
    static const int begin[4] = {0, 0, 7, 4}, step[4] = {1, 1, 7, 1};
    offered_call c;
    float got[16], want[4];
    unsigned char used = 0;
    offered_begin(&c);
    cr_assert_eq(offers(&c, 256, 4096, 8), 4);
    for (int i = 0; i < 4; ++i) {
        want[i] = 0.0f;
        for (int k = 0; k < 8; ++k)
            want[i] += offered_terms[(begin[i] + k * step[i]) % 8];
        cr_assert(multiply_by(&c, &c.offered[i].algo, 0, c.workspace, 4096) == CUBLAS_STATUS_SUCCESS);
        cr_assert(cudaMemcpy(got, c.out, sizeof got, cudaMemcpyDeviceToHost) == cudaSuccess);
        for (int e = 0; e < 16; ++e)
            cr_expect_eq(got[e], want[i], "algorithm %d: expected %a, found %a", i, (double)want[i],
                         (double)got[e]);
    }
    cr_expect(want[0] == want[1] && want[0] != want[2] && want[2] != want[3] && want[0] != want[3]);
    cr_assert(cudaMemcpy(&used, c.workspace, 1, cudaMemcpyDeviceToHost) == cudaSuccess);
    cr_expect_eq(used, 0xff, "the last one writes its workspace");
    cr_expect_eq(assay_sim_reports(), 0);
    offered_end(&c);
}

Test(sim_blas_algorithms, an_algorithm_that_does_not_fit_is_refused)
{
    offered_call c;
    cublasLtMatmulAlgo_t unknown = {{0x5e7, 99}}, foreign = {{1, 0}};
    offered_begin(&c);
    cr_assert_eq(offers(&c, 256, 4096, 8), 4);
    cr_expect(multiply_by(&c, &c.offered[0].algo, 1, NULL, 0) == CUBLAS_STATUS_NOT_SUPPORTED, "alignment");
    cr_expect(multiply_by(&c, &c.offered[1].algo, 1, NULL, 0) == CUBLAS_STATUS_SUCCESS, "takes any");
    cr_expect(multiply_by(&c, NULL, 1, NULL, 0) == CUBLAS_STATUS_SUCCESS, "the library's choice takes any");
    cr_expect(multiply_by(&c, &c.offered[3].algo, 0, c.workspace, 4095) == CUBLAS_STATUS_NOT_SUPPORTED);
    cr_expect(multiply_by(&c, &c.offered[3].algo, 0, NULL, 4096) == CUBLAS_STATUS_NOT_SUPPORTED);
    cr_expect(multiply_by(&c, &unknown, 0, c.workspace, 4096) == CUBLAS_STATUS_INVALID_VALUE);
    cr_expect(multiply_by(&c, &foreign, 0, c.workspace, 4096) == CUBLAS_STATUS_INVALID_VALUE);
    set_epilogue(&c, CUBLASLT_EPILOGUE_BIAS);
    cr_expect(multiply_by(&c, &c.offered[2].algo, 0, NULL, 0) == CUBLAS_STATUS_NOT_SUPPORTED, "epilogue");
    cr_expect(multiply_by(&c, &c.offered[0].algo, 0, NULL, 0) == CUBLAS_STATUS_SUCCESS);
    cr_expect_eq(assay_sim_reports(), 6);
    offered_end(&c);
}
