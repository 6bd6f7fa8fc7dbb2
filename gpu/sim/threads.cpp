/* Exercises what several operating system threads share: ranks as threads of one process, blocks on worker
 * threads, a watchdog that asks for errors while another thread waits.  Prints what failed; exit code 0 when
 * nothing did.  Made for the thread sanitizer. */
#define ASSAY_SIM 1
#include <cuda_runtime.h>
#include <nccl.h>

#include <assay_sim.h>
#include <atomic>
#include <stdio.h>
#include <thread>
#include <vector>

static std::atomic<int> failures{0};

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            ++failures;                                                                                      \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                          \
        }                                                                                                    \
    } while (0)

__global__ void count(int *total, int *per_block)
{
    const int n = __syncthreads_count(threadIdx.x % 2 == 0);
    atomicAdd(total, 1);
    if (threadIdx.x == 0)
        per_block[blockIdx.x] = n + static_cast<int>(__popc(__ballot_sync(1u, 1)));
}

static void blocks_on_threads()
{
    int *d = nullptr, h[201];
    assay_sim_set_threads(4);
    CHECK(cudaMalloc(&d, sizeof h) == cudaSuccess && cudaMemset(d, 0, sizeof h) == cudaSuccess);
    for (int run = 0; run < 5; ++run) {
        CHECK(assay_sim::launch("count", 0, count, dim3(200), dim3(64), 0, nullptr, d, d + 1) == cudaSuccess);
    }
    CHECK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(h[0] == 5 * 200 * 64);
    for (int b = 0; b < 200; ++b)
        CHECK(h[1 + b] == 33);
    CHECK(cudaFree(d) == cudaSuccess);
}

static void rank(int r, int ranks, ncclUniqueId id, std::atomic<bool> *stop)
{
    const size_t n = 40000;
    ncclComm_t comm = nullptr, part = nullptr;
    cudaStream_t stream = nullptr;
    float *d = nullptr;
    std::vector<float> h(n);
    CHECK(cudaSetDevice(r) == cudaSuccess);
    CHECK(ncclCommInitRank(&comm, ranks, id, r) == ncclSuccess);
    std::thread watchdog([comm, stop] {
        ncclResult_t e = ncclSuccess;
        while (!*stop) {
            CHECK(ncclCommGetAsyncError(comm, &e) == ncclSuccess && e == ncclSuccess);
            std::this_thread::yield();
        }
    });
    CHECK(ncclCommSplit(comm, r % 2, r, &part, nullptr) == ncclSuccess);
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaMalloc(&d, n * sizeof(float)) == cudaSuccess);
    for (int turn = 0; turn < 20; ++turn) {
        for (size_t i = 0; i < n; ++i)
            h[i] = static_cast<float>(r + turn);
        CHECK(cudaMemcpyAsync(d, h.data(), n * sizeof(float), cudaMemcpyHostToDevice, stream) == cudaSuccess);
        CHECK(ncclAllReduce(d, d, n, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
        CHECK(ncclAllReduce(d, d, n, ncclFloat, ncclMax, part, stream) == ncclSuccess);
        ncclGroupStart();
        CHECK(ncclSend(d, n / 2, ncclFloat, (r + 1) % ranks, comm, stream) == ncclSuccess);
        CHECK(ncclRecv(d + n / 2, n / 2, ncclFloat, (r + ranks - 1) % ranks, comm, stream) == ncclSuccess);
        CHECK(ncclGroupEnd() == ncclSuccess);
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
        CHECK(cudaMemcpy(h.data(), d, n * sizeof(float), cudaMemcpyDeviceToHost) == cudaSuccess);
        const float want = static_cast<float>(ranks * (ranks - 1) / 2 + ranks * turn);
        for (size_t i = 0; i < n; i += 997)
            CHECK(h[i] == want);
    }
    *stop = true;
    watchdog.join();
    CHECK(ncclCommDestroy(part) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess && cudaFree(d) == cudaSuccess);
}

static void ranks_as_threads()
{
    const int ranks = 4;
    ncclUniqueId id;
    std::vector<std::thread> threads;
    std::atomic<bool> stop[4] = {};
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    for (int r = 0; r < ranks; ++r)
        threads.emplace_back(rank, r, ranks, id, &stop[r]);
    for (std::thread &t : threads)
        t.join();
}

int main()
{
    blocks_on_threads();
    ranks_as_threads();
    printf("%d failures\n", failures.load());
    return failures != 0;
}
