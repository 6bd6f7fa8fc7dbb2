/* Intrinsics of assay_sim_more.h against what they are defined to be; prints what tests/sim/test_cc.c expects. */
#include <cuComplex.h>
#include <math_constants.h>
#include <stdio.h>

__device__ int bad;

#define EXPECT(condition)                                                                                    \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            printf("wrong: %s\n", #condition);                                                               \
            atomicAdd(&bad, 1);                                                                              \
        }                                                                                                    \
    } while (0)

/* Neighbours of a quotient that is no float: down < up, and they are adjacent. */
__device__ bool brackets(float down, float up, double exact)
{
    return (double)down < exact && exact < (double)up && nextafterf(down, INFINITY) == up;
}

__global__ void check()
{
    EXPECT(brackets(__fdiv_rd(1.0f, 3.0f), __fdiv_ru(1.0f, 3.0f), 1.0 / 3.0));
    EXPECT(brackets(__fdiv_rd(-1.0f, 3.0f), __fdiv_ru(-1.0f, 3.0f), -1.0 / 3.0));
    EXPECT(__fdiv_rz(-1.0f, 3.0f) == __fdiv_ru(-1.0f, 3.0f) &&
           __fdiv_rz(1.0f, 3.0f) == __fdiv_rd(1.0f, 3.0f));
    EXPECT(brackets(__fadd_rd(1.0f, 1e-10f), __fadd_ru(1.0f, 1e-10f), 1.0 + 1e-10));
    EXPECT(brackets(__fmul_rd(1.1f, 1.1f), __fmul_ru(1.1f, 1.1f), (double)1.1f * 1.1f));
    EXPECT(brackets(__fsqrt_rd(2.0f), __fsqrt_ru(2.0f), sqrt(2.0)));
    EXPECT(brackets(__fmaf_rd(1.1f, 1.1f, 1.0f), __fmaf_ru(1.1f, 1.1f, 1.0f), fma((double)1.1f, 1.1f, 1.0)));
    EXPECT(brackets(__int2float_rd(16777217), __int2float_ru(16777217), 16777217.0));
    EXPECT(__dadd_rd(1.0, 1e-30) == 1.0 && __dadd_ru(1.0, 1e-30) == nextafter(1.0, 2.0));
    EXPECT(__fadd_rn(1.0f, 1e-10f) == 1.0f); /* the mode is what it was */
    EXPECT(__mul24(-3, 5) == -15 && __mul24(0x1000003, 2) == 6 && __umul24(0xff000002u, 3u) == 6u);
    EXPECT(__mul24(0x7fffff, 0x7fffff) == (int)(0x7fffffll * 0x7fffff));
    EXPECT(__mul64hi(-1, 1) == -1 && __mul64hi(1ll << 62, 4) == 1);
    EXPECT(umin(1u, ~0u) == 1u && umax(1u, ~0u) == ~0u && llmin(-1, 1) == -1 && ullmax(1, ~0ull) == ~0ull);
    EXPECT(__sad(-3, 4, 10u) == 17u && __usad(3u, 4u, 10u) == 11u);
    EXPECT(__brevll(1) == 1ull << 63 && __brevll(0x8000000000000001ull) == 0x8000000000000001ull);
    EXPECT(__vadd4(0x01ff7f80u, 0x01010101u) == 0x02008081u &&
           __vsub4(0x00000001u, 0x01010101u) == 0xffffff00u);
    EXPECT(__vaddss4(0x7f800102u, 0x01ff0101u) == 0x7f800203u &&
           __vabsdiffu4(0x00ff0102u, 0xff000201u) == 0xffff0101u);
    EXPECT(__vcmpgtu4(0x02010300u, 0x01020300u) == 0xff000000u &&
           __vmaxu4(0x01ff0203u, 0xff010302u) == 0xffff0303u);
    EXPECT(__dp4a((int)0xff020304, 0x01010101, 5) == 5 - 1 + 2 + 3 + 4 &&
           __dp4a(0xff020304u, 0x01010101u, 5u) == 269u);
    EXPECT(__double2hiint(-2.0) == (int)0xc0000000 && __double2loint(1.5) == 0);
    EXPECT(__hiloint2double(0x3ff80000, 0) == 1.5);
    EXPECT(__double2uint_ru(2.1) == 3u && __double2uint_rz(-5.0) == 0u && __double2int_rd(-2.1) == -3);
    EXPECT(sinpif(0.5f) == 1.0f && cospif(1.0f) == -1.0f && sinpi(1e15) == 0.0);
    EXPECT(normcdf(0.0) == 0.5 && normcdfinvf(0.5f) == 0.0f &&
           fabs(normcdfinv(0.975) - 1.959963984540054) < 1e-14);
    EXPECT(fabs(normcdfinv(1e-10) + 6.361340902404056) < 1e-12 && isinf(normcdfinv(1.0)) &&
           isnan(normcdfinv(1.5)));
    EXPECT(fabs(erf(erfinv(0.3)) - 0.3) < 1e-15 && fabs(erfc(erfcinv(1e-5)) / 1e-5 - 1) < 1e-12);
    EXPECT(rhypotf(3.0f, 4.0f) == 0.2f && norm3df(2.0f, 3.0f, 6.0f) == 7.0f && fdividef(1.0f, 4.0f) == 0.25f);
    EXPECT(isnan(CUDART_NAN_F) && CUDART_INF_F > 3e38f && CUDART_PI_F == 3.14159274f &&
           CUDART_MIN_DENORM_F > 0);
    const cuFloatComplex z = cuCmulf(make_cuFloatComplex(1, 2), make_cuFloatComplex(3, -1));
    EXPECT(cuCrealf(z) == 5 && cuCimagf(z) == 5 && cuCabsf(make_cuComplex(3, 4)) == 5);
    int all;
    EXPECT(__match_all_sync(0xffffffffu, 7, &all) == 0xffffffffu && all);
    EXPECT(__match_all_sync(0xffffffffu, threadIdx.x, &all) == 0 && !all);
    unsigned lane, below;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm("mov.u32 %0, %lanemask_lt;" : "=r"(below));
    EXPECT(lane == threadIdx.x && below == (1u << threadIdx.x) - 1u);
    EXPECT(atomicCAS_block(&bad, 12345, 1) != 12345);
}

int main()
{
    int n = 1;
    float word[4];
    check<<<1, 32>>>();
    const cudaError_t e = cudaMemcpyFromSymbol(&n, bad, sizeof n);
    printf("%s %d wrong\n", cudaGetErrorName(e), n);
    printf("%s\n", cudaGetErrorName(cudaMemcpyToSymbol(bad, word, sizeof word)));
    printf("%s\n", cudaGetErrorName(cudaMemcpyFromSymbol(word, bad, 2, 3)));
    printf("%s\n", cudaGetErrorName(cudaMemcpyToSymbol(bad, word, 4, 0, cudaMemcpyDeviceToHost)));
    void *at = nullptr;
    size_t bytes = 0;
    cudaPointerAttributes a;
    cudaGetSymbolAddress(&at, bad);
    cudaGetSymbolSize(&bytes, bad);
    cudaPointerGetAttributes(&a, at);
    printf("%zu %d %s\n", bytes, a.type == cudaMemoryTypeDevice, cudaGetErrorName(cudaFree(at)));
    return 0;
}
