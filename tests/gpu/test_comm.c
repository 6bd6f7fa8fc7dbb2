/* Laws of the door to NCCL: how long a wait may take, and with which NCCL communicators keep their order. */
#include "gpu/comm.h"
#include "tests/support/core_files.h"

#include <pthread.h>
#include <time.h>

TestSuite(gpu_comm, .timeout = 60);

static void sleep_long(void *user)
{
    (void)user;
    nanosleep(&(struct timespec){.tv_nsec = 600000000}, NULL);
}

/* Another thread runs the stream's work, so that a poll finds it busy. */
static void *work(void *user)
{
    cudaStream_t stream = user;
    cr_expect_eq(cudaLaunchHostFunc(stream, sleep_long, NULL), cudaSuccess);
    cr_expect_eq(cudaStreamSynchronize(stream), cudaSuccess);
    return NULL;
}

static assay_status wait_for_work(double bytes)
{
    gpu_comm c = {.world = 1, .timeout_s = 0.1};
    cudaStream_t stream;
    pthread_t thread;
    cr_assert_eq(cudaStreamCreate(&stream), cudaSuccess);
    gpu_comm_allow_files(&c, bytes);
    cr_assert_eq(pthread_create(&thread, NULL, work, stream), 0);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    const assay_status st = gpu_comm_wait(&c, stream, "test");
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(cudaStreamDestroy(stream), cudaSuccess);
    return st;
}

/* Ranks that write nothing wait in a barrier for the one that writes: no collective is late. */
Test(gpu_comm, a_wait_for_files_may_take_longer)
{
    TEST_FAILS(wait_for_work(0.0), ASSAY_NCCL, "test: the stream did not finish within 0.1 s");
    TEST_OK(wait_for_work(1.0));
    TEST_FAILS(wait_for_work(0.0), ASSAY_NCCL, "did not finish");
}

Test(gpu_comm, communicators_keep_their_order_from_nccl_2_26_on)
{
    TEST_OK(gpu_comm_check_order(22600, "1"));
    TEST_OK(gpu_comm_check_order(23004, "1"));
    TEST_FAILS(gpu_comm_check_order(22507, "1"), ASSAY_UNSUPPORTED, "NCCL 2.25.7: expected 2.26 or later");
    TEST_FAILS(gpu_comm_check_order(22809, "0"), ASSAY_INVALID_ARGUMENT,
               "NCCL_LAUNCH_ORDER_IMPLICIT: expected 1, or not set, found '0'");
    TEST_FAILS(gpu_comm_check_order(22809, ""), ASSAY_INVALID_ARGUMENT, "found ''");
}
