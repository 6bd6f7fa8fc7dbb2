/* What nvcuda::wmma must not be given: one mistake for each argument. */
#include <mma.h>
#include <stdio.h>
#include <string.h>

using namespace nvcuda;

typedef wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> matrix_a;
typedef wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> matrix_b;
typedef wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;

__global__ void alignment(half *x)
{
    matrix_a a;
    wmma::load_matrix_sync(a, x + 8, 16);
}
__global__ void leading_dimension(half *x)
{
    matrix_a a;
    wmma::load_matrix_sync(a, x, 20);
}
__global__ void pointers(half *x)
{
    matrix_a a;
    wmma::load_matrix_sync(a, x + (threadIdx.x < 30 ? 0 : 256), 16);
}
__global__ void never_loaded(half *x)
{
    matrix_a a;
    matrix_b b;
    sum c;
    wmma::load_matrix_sync(a, x, 16);
    wmma::fill_fragment(c, 0.0f);
    wmma::mma_sync(c, a, b, c);
}
__global__ void never_filled(half *x)
{
    matrix_a a;
    matrix_b b;
    sum c;
    wmma::load_matrix_sync(a, x, 16);
    wmma::load_matrix_sync(b, x, 16);
    wmma::mma_sync(c, a, b, c);
}
__global__ void stored_unset(half *x)
{
    sum c;
    wmma::store_matrix_sync(reinterpret_cast<float *>(x), c, 16, wmma::mem_row_major);
}
__global__ void overlapping(half *x)
{
    sum c;
    wmma::fill_fragment(c, 0.0f);
    wmma::store_matrix_sync(reinterpret_cast<float *>(x), c, 8, wmma::mem_row_major);
}
__global__ void half_a_warp(half *x)
{
    matrix_a a;
    if (threadIdx.x < 16)
        wmma::load_matrix_sync(a, x, 16);
}
__global__ void in_a_branch(half *x)
{
    matrix_a a;
    if (threadIdx.x < 16)
        wmma::load_matrix_sync(a, x, 16);
    else
        wmma::load_matrix_sync(a, x, 16);
}
__global__ void one_copy(half *x)
{
    matrix_a a;
    matrix_b b;
    sum c;
    wmma::load_matrix_sync(a, x, 16);
    wmma::load_matrix_sync(b, x, 16);
    wmma::fill_fragment(c, 0.0f);
    a.x[0] = half(5.0f);
    wmma::mma_sync(c, a, b, c);
}
__global__ void not_rounded(half *x)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> c;
    wmma::fill_fragment(a, 0.1f);
    wmma::fill_fragment(b, wmma::__float_to_tf32(0.1f));
    wmma::fill_fragment(c, 0.0f);
    wmma::mma_sync(c, a, b, c);
    wmma::store_matrix_sync(reinterpret_cast<float *>(x), c, 16, wmma::mem_row_major);
}
__global__ void behind_the_end(half *x)
{
    matrix_a a;
    wmma::load_matrix_sync(a, x + 512, 64);
    x[threadIdx.x] = a.x[15];
}
/* A race: another warp reads what this one stores. */
__global__ void no_barrier(half *x)
{
    __shared__ __align__(32) float s[256];
    sum c;
    wmma::fill_fragment(c, 0.0f);
    if (threadIdx.x < 32)
        wmma::store_matrix_sync(s, c, 16, wmma::mem_row_major);
    else
        wmma::load_matrix_sync(c, s, 16, wmma::mem_row_major);
    x[threadIdx.x] = half(c.x[0]);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*kernel)(half *);
        int threads;
    } all[] = {
        {"alignment", alignment, 32},
        {"leading_dimension", leading_dimension, 32},
        {"pointers", pointers, 32},
        {"never_loaded", never_loaded, 32},
        {"never_filled", never_filled, 32},
        {"stored_unset", stored_unset, 32},
        {"overlapping", overlapping, 32},
        {"half_a_warp", half_a_warp, 32},
        {"half_a_block", alignment, 16},
        {"in_a_branch", in_a_branch, 32},
        {"one_copy", one_copy, 32},
        {"not_rounded", not_rounded, 32},
        {"behind_the_end", behind_the_end, 32},
        {"no_barrier", no_barrier, 64},
    };
    for (const auto &k : all) {
        half *x;
        if (argc > 1 && strcmp(argv[1], k.name) != 0)
            continue;
        fprintf(stderr, "%s:\n", k.name);
        cudaMalloc(&x, 1024 * sizeof *x);
        cudaMemset(x, 0, 1024 * sizeof *x);
        k.kernel<<<1, k.threads>>>(x);
        cudaDeviceSynchronize();
        cudaFree(x);
        cudaDeviceReset();
    }
    return 0;
}
