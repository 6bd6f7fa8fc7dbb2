/* ASSAY_SIM_DEVICE_PRIVATE=1: device memory that the host cannot touch, as on a device; copies, fills and kernels can. */
#include "tests/support/sim.h"

#include "gpu/launch.cuh"

#include <atomic>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void setup(void)
{
    setenv("ASSAY_SIM_DEVICE_PRIVATE", "1", 1);
}

TestSuite(sim_private, .init = setup, .timeout = 60);

__global__ void doubled(float *y, const float *x, int n)
{
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        y[i] = 2.0f * x[i];
}

enum { N = 100 };

static float *device_array(void)
{
    float *p = nullptr;
    cr_assert(cudaMalloc(&p, N * sizeof *p) == cudaSuccess);
    cr_assert(cudaMemset(p, 0, N * sizeof *p) == cudaSuccess);
    return p;
}

/* What a child that calls `touch` says on stderr; how it ended in *status. */
static void child_says(void (*touch)(volatile float *), char *text, size_t bytes, int *status)
{
    int ends[2];
    cr_assert(pipe(ends) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        float *p = nullptr;
        if (cudaMalloc(&p, N * sizeof *p) == cudaSuccess && cudaMemset(p, 0, N * sizeof *p) == cudaSuccess &&
            cudaDeviceSynchronize() == cudaSuccess)
            touch(p);
        _exit(0);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; n + 1 < bytes && (got = read(ends[0], text + n, bytes - n - 1)) > 0;)
        n += static_cast<size_t>(got);
    text[n] = '\0';
    close(ends[0]);
    waitpid(pid, status, 0);
}

static void read_it(volatile float *p)
{
    (void)p[3];
}
static void write_it(volatile float *p)
{
    p[5] = 1.0f;
}
static void CUDART_CB read_in_callback(void *p)
{
    (void)static_cast<volatile float *>(p)[7];
}
static void read_between_copies(volatile float *p)
{
    float *device = const_cast<float *>(p), host[N];
    cr_assert(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost) == cudaSuccess);
    (void)p[9];
}
static void call_back(volatile float *p)
{
    (void)cudaLaunchHostFunc(nullptr, read_in_callback, const_cast<float *>(p));
    (void)cudaDeviceSynchronize();
}

static std::atomic<bool> enqueued{false};
static void *read_again_and_again(void *p)
{
    while (!enqueued)
        usleep(1000);
    for (int i = 0; i < 30000; ++i, usleep(1000)) /* the first read behind the closing ends it */
        (void)static_cast<volatile float *>(p)[11];
    _exit(0);
}
/* The other rank never comes: this one's host waits in a synchronization, and another thread of it reads meanwhile. */
static void read_beside_a_collective(volatile float *p)
{
    float *device = const_cast<float *>(p);
    ncclUniqueId id;
    ncclComm_t comm;
    pthread_t reader;
    cr_assert(ncclGetUniqueId(&id) == ncclSuccess);
    const pid_t parent = getpid();
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent && ncclCommInitRank(&comm, 2, id, 1) == ncclSuccess)
            pause();
        _exit(1);
    }
    cr_assert(ncclCommInitRank(&comm, 2, id, 0) == ncclSuccess);
    cr_assert(pthread_create(&reader, nullptr, read_again_and_again, device) == 0);
    cr_assert(ncclAllReduce(device, device, N, ncclFloat, ncclSum, comm, nullptr) == ncclSuccess);
    enqueued = true;
    (void)cudaDeviceSynchronize();
}

static const struct {
    const char *what;
    void (*touch)(volatile float *);
    const char *words;
} forms[] = {{"a read", read_it, "device memory read by the host: a read at byte 12 of device block"},
             {"a write", write_it, "device memory written by the host: a write at byte 20 of device block"},
             {"a read after a copy", read_between_copies,
              "device memory read by the host: a read at byte 36 of device block"},
             {"a read in a host function", call_back,
              "device memory read by the host: a read at byte 28 of device block"},
             {"a read of another thread beside a collective that waits", read_beside_a_collective,
              "device memory read by the host: a read at byte 44 of device block"}};

Test(sim_private, the_host_is_stopped_and_told_what_it_touched)
{
    for (const auto &form : forms) {
        char text[4096];
        int status = 0;
        child_says(form.touch, text, sizeof text, &status);
        cr_expect(!(WIFEXITED(status) && WEXITSTATUS(status) == 0), "%s: nothing stopped it", form.what);
#if defined(__SANITIZE_ADDRESS__) /* which handles the fault itself, and names the address */
        cr_expect(strstr(text, "AddressSanitizer") != nullptr, "%s: %s", form.what, text);
#else
        cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "%s", form.what);
        cr_expect(strstr(text, form.words) != nullptr, "%s: expected \"%s\" in \"%s\"", form.what, form.words,
                  text);
        cr_expect(strstr(text, "(400 bytes, device 0)") != nullptr, "%s: %s", form.what, text);
#endif
    }
}

/* Without the switch the same read is not seen: what docs/SIMULATOR.md says. */
Test(sim_private, it_is_a_switch, .init = nullptr)
{
    unsetenv("ASSAY_SIM_DEVICE_PRIVATE");
    char text[4096];
    int status = 0;
    child_says(read_it, text, sizeof text, &status);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s", text);
}

Test(sim_private, kernels_copies_and_fills_work)
{
    float host[N], back[N];
    float *x = device_array(), *y = device_array();
    for (int i = 0; i < N; ++i)
        host[i] = static_cast<float>(i);
    cr_assert(cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice) == cudaSuccess);
    cr_assert(GPU_LAUNCH_NO_BARRIER(doubled, 1, 128, 0, nullptr, y, x, N) == cudaSuccess);
    cr_assert(cudaMemcpy(x, y, sizeof host, cudaMemcpyDeviceToDevice) == cudaSuccess);
    cr_assert(cudaMemcpy(back, x, sizeof back, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int i = 0; i < N; ++i)
        cr_expect(back[i] == 2.0f * host[i], "%d", i);
    cr_expect(cudaFree(x) == cudaSuccess && cudaFree(y) == cudaSuccess);
}

__global__ void one_too_many(float *y, int n)
{
    y[n] = 1.0f;
}

/* The guards are looked at as before. */
Test(sim_private, a_write_beyond_a_block_is_still_seen)
{
#if !defined(__SANITIZE_ADDRESS__) /* which stops the program at the write itself */
    float *y = device_array();
    quiet();
    cr_assert(GPU_LAUNCH_NO_BARRIER(one_too_many, 1, 1, 0, nullptr, y, N) == cudaSuccess);
    expect_fault(cudaSuccess);
    expect_report("out of bounds", "byte 400", "one_too_many");
#endif
}
