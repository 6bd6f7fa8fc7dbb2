/* Cooperative groups; prints what tests/sim/test_cc.c expects. */
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/barrier>
#include <stdio.h>

namespace cg = cooperative_groups;

__device__ int in_any(cg::thread_group g, int *scratch, int v)
{
    for (int i = g.size() / 2; i > 0; i /= 2) {
        scratch[g.thread_rank()] = v;
        g.sync();
        if (g.thread_rank() < i)
            v += scratch[g.thread_rank() + i];
        g.sync();
    }
    return v;
}

__global__ void tiles(int *out, const int *in)
{
    __shared__ int copy[64], scratch[64];
    cg::thread_block block = cg::this_thread_block();
    cg::memcpy_async(block, copy, in, sizeof copy);
    cg::wait(block);
    const int r = block.thread_rank();
    cg::thread_block_tile<8> eight = cg::tiled_partition<8>(block);
    const int total = in_any(block, scratch, copy[r]);
    const int quarter = in_any(cg::tiled_partition(block, 16), scratch + r / 16 * 16, 1);
    const int sum = cg::reduce(eight, copy[r], cg::plus<int>());
    const int most = cg::reduce(eight, copy[r], cg::greater<int>());
    const int upto = cg::inclusive_scan(eight, copy[r]);
    const int before = cg::exclusive_scan(eight, copy[r], cg::plus<int>());
    const int next = eight.shfl_down(copy[r], 1), first = eight.shfl(copy[r], 0),
              pair = eight.shfl_xor(copy[r], 1);
    const unsigned odd = eight.ballot(r & 1);
    auto half = cg::binary_partition(eight, r % 2 == 0);
    int *o = out + 12 * r;
    o[0] = total;
    o[1] = quarter;
    o[2] = sum;
    o[3] = most;
    o[4] = upto;
    o[5] = before;
    o[6] = next;
    o[7] = first;
    o[8] = pair;
    o[9] = odd;
    o[10] = half.size() * 10 + half.thread_rank();
    o[11] = eight.meta_group_rank() * 100 + eight.meta_group_size() + eight.all(1);
}

/* Half of the warps make what the other half uses, in turns over two buffers. */
__global__ void stages(int *out, const int *in, int n)
{
    __shared__ cuda::barrier<cuda::thread_scope_block> full[2], empty[2];
    __shared__ int part[2][32];
    const int lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            init(&full[i], 64);
            init(&empty[i], 64);
        }
    }
    __syncthreads();
    for (int i = 0; i < n; ++i) {
        if (threadIdx.x < 32) {
            if (i >= 2)
                empty[i % 2].arrive_and_wait();
            cuda::memcpy_async(&part[i % 2][lane], &in[i], sizeof(int), full[i % 2]);
            full[i % 2].arrive();
        } else {
            full[i % 2].arrive_and_wait();
            if (lane == 0)
                out[i] = part[i % 2][31];
            if (i + 2 < n)
                (void)empty[i % 2].arrive();
        }
    }
}

__global__ void turn(int *x, int n)
{
    cg::grid_group grid = cg::this_grid();
    const int i = grid.thread_rank();
    x[i] = i;
    grid.sync();
    const int v = x[(i + 37) % n];
    cg::sync(grid);
    x[i] = v;
}

int main()
{
    int *d, *in, h[64 * 12];
    cudaMalloc(&d, sizeof h);
    cudaMallocManaged(&in, 64 * sizeof(int));
    for (int i = 0; i < 64; ++i)
        in[i] = i;
    tiles<<<1, 64>>>(d, in);
    cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost);
    for (int r = 0; r < 64; r += 21) {
        for (int i = 0; i < 12; ++i) {
            if (r == 0 || i > 1) /* the sum over a group is the first thread's */
                printf("%d ", h[12 * r + i]);
        }
        printf("\n");
    }
    stages<<<1, 64>>>(d, in, 9);
    cudaMemcpy(h, d, 9 * sizeof(int), cudaMemcpyDeviceToHost);
    for (int i = 0; i < 9; ++i)
        printf("%d ", h[i]);
    printf("\n");
    int n = 256;
    void *args[] = {&d, &n};
    cudaError_t e = cudaLaunchCooperativeKernel((void *)turn, 4, 64, args);
    printf("%s %s\n", cudaGetErrorName(e),
           cudaGetErrorName(cudaMemcpy(h, d, 256 * 4, cudaMemcpyDeviceToHost)));
    printf("%d %d\n", h[0], h[255]);
    e = cudaLaunchCooperativeKernel((void *)turn, 1000, 64, args);
    printf("%s\n", cudaGetErrorName(e));
    turn<<<4, 64>>>(d, n);
    printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    return 0;
}
