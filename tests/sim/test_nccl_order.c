/* Two ranks of two communicators issue the collectives of both in one order, or are told so before they wait for each other. */
#include "tests/support/sim_ranks.h"

typedef struct {
    ncclComm_t comm, second;
    cudaStream_t stream[2];
    float *d;
} world;

/* A time limit that no test waits for: the order is compared at the call. */
static int setup(world *w, int rank, int ranks, ncclUniqueId id)
{
    setenv("ASSAY_SIM_NCCL_TIMEOUT_S", "50", 1);
    RANK_CHECK(cudaMalloc((void **)&w->d, 256) == cudaSuccess && cudaMemset(w->d, 0, 256) == cudaSuccess);
    RANK_CHECK(ncclCommInitRank(&w->comm, ranks, id, rank) == ncclSuccess);
    RANK_CHECK(ncclCommSplit(w->comm, 0, -rank, &w->second, NULL) == ncclSuccess);
    for (int i = 0; i < 2; ++i)
        RANK_CHECK(cudaStreamCreateWithFlags(&w->stream[i], cudaStreamNonBlocking) == cudaSuccess);
    return 0;
}

static ncclResult_t reduce(const world *w, ncclComm_t comm, int stream)
{
    return ncclAllReduce(w->d, w->d, 4, ncclFloat, ncclSum, comm, w->stream[stream]);
}

static int failed(const world *w)
{
    ncclResult_t e = ncclSuccess;
    const ncclComm_t comms[] = {w->comm, w->second};
    for (int i = 0; i < 2; ++i) { /* whoever saw it, both communicators end on both ranks */
        for (int tries = 0; tries < 4000 && e == ncclSuccess; ++tries, usleep(5000))
            RANK_CHECK(ncclCommGetAsyncError(comms[i], &e) == ncclSuccess);
        RANK_CHECK(e == ncclInvalidUsage && reduce(w, comms[i], 0) == ncclInvalidUsage);
        e = ncclSuccess;
    }
    (void)cudaDeviceSynchronize();
    RANK_CHECK(ncclCommAbort(w->second) == ncclSuccess && ncclCommAbort(w->comm) == ncclSuccess);
    return 0;
}

/* A rank that is faster may have ended the collectives that wait on the stream, which then takes no more. */
static int taken(ncclResult_t r)
{
    return r == ncclSuccess || r == ncclInvalidUsage || r == ncclUnhandledCudaError;
}

/* arg: whether the two communicators have streams of their own, where the simulator alone would get through. */
static int crossed(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    const int apart = *(const int *)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    for (int i = 0; i < 3; ++i)
        RANK_CHECK(reduce(&w, w.comm, 0) == ncclSuccess && reduce(&w, w.second, apart) == ncclSuccess);
    (void)cudaDeviceSynchronize(); /* which another rank's mistake may end already */
    const ncclComm_t order[] = {rank == 1 ? w.second : w.comm, rank == 1 ? w.comm : w.second};
    for (int i = 0; i < 2; ++i) {
        RANK_CHECK(taken(reduce(&w, order[i], order[i] == w.second ? apart : 0)));
    }
    return failed(&w);
}

Test(sim_nccl_order, ranks_that_differ_are_named)
{
    for (int apart = 0; apart < 2; ++apart)
        for (int ranks = 2; ranks < 5; ++ranks) {
            int codes[4];
            char log[8192];
            run_ranks_logged(ranks, crossed, &apart, codes, log, sizeof log);
            for (int r = 0; r < ranks; ++r)
                cr_expect_eq(codes[r], 0, "rank %d ended with %d\n%s", r, codes[r], log);
            cr_expect(strstr(log, "two ranks of both issue their collectives in different orders"), "%s",
                      log);
            cr_expect(strstr(log, "rank 1 of the first and") || strstr(log, "and 1 of the second"), "%s",
                      log);
            cr_expect(strstr(log,
                             "issued ncclAllReduce count 4 float32 sum (call 3) of the first before call 3 "
                             "of the second"),
                      "%s", log);
            cr_expect(strstr(log,
                             "issued ncclAllReduce count 4 float32 sum (call 3) of the first after call 3 "
                             "of the second"),
                      "%s", log);
        }
}

/* One rank makes two calls where the other makes one between them. */
static int between(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    for (int i = 0; i < 3; ++i) {
        RANK_CHECK(taken(reduce(&w, i == 1 + rank ? w.second : w.comm, 0)));
    }
    return failed(&w);
}

Test(sim_nccl_order, one_call_that_moved)
{
    int codes[2];
    char log[8192];
    run_ranks_logged(2, between, NULL, codes, log, sizeof log);
    cr_expect(codes[0] == 0 && codes[1] == 0, "%d %d\n%s", codes[0], codes[1], log);
    cr_expect(strstr(log, "different orders"), "%s", log);
}

/* --- what is in order --------------------------------------------------------------------------------------- */

static int end(world *w, ncclComm_t more)
{
    RANK_CHECK(cudaDeviceSynchronize() == cudaSuccess);
    RANK_CHECK(more == NULL || ncclCommDestroy(more) == ncclSuccess);
    RANK_CHECK(ncclCommDestroy(w->second) == ncclSuccess && ncclCommDestroy(w->comm) == ncclSuccess);
    return 0;
}

/* A group issues for one communicator after the other, whatever lies between its calls. */
static int grouped(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    for (int i = 0; i < 20; ++i) {
        RANK_CHECK(ncclGroupStart() == ncclSuccess);
        for (int k = 0; k < 3; ++k)
            RANK_CHECK(reduce(&w, k == 1 + rank % 2 ? w.second : w.comm, 0) == ncclSuccess);
        RANK_CHECK(ncclGroupEnd() == ncclSuccess);
        RANK_CHECK(reduce(&w, w.second, 0) == ncclSuccess);
    }
    return end(&w, NULL);
}

/* Rows and columns of a grid share no two ranks: each rank has its own order among them. */
static int grid(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    ncclComm_t row, column;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    RANK_CHECK(ncclCommSplit(w.comm, rank / 2, rank, &row, NULL) == ncclSuccess);
    RANK_CHECK(ncclCommSplit(w.comm, rank % 2, rank, &column, NULL) == ncclSuccess);
    for (int i = 0; i < 10; ++i) {
        RANK_CHECK(reduce(&w, rank < 2 ? row : column, rank < 2 ? 0 : 1) == ncclSuccess);
        RANK_CHECK(reduce(&w, rank < 2 ? column : row, rank < 2 ? 1 : 0) == ncclSuccess);
        RANK_CHECK(reduce(&w, w.comm, 0) == ncclSuccess);
    }
    RANK_CHECK(cudaDeviceSynchronize() == cudaSuccess);
    RANK_CHECK(ncclCommDestroy(row) == ncclSuccess);
    return end(&w, column);
}

/* More calls ahead of the other rank than are remembered. */
static int far_ahead(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    usleep(rank == 1 ? 300000 : 0);
    for (int i = 0; i < 9000; ++i)
        RANK_CHECK(reduce(&w, i % 9 == 0 ? w.second : w.comm, 0) == ncclSuccess);
    return end(&w, NULL);
}

Test(sim_nccl_order, what_is_in_order_passes)
{
    run_ranks(2, grouped, NULL);
    run_ranks(3, grouped, NULL);
    run_ranks(4, grid, NULL);
    run_ranks(2, far_ahead, NULL);
}

/* Ranks that are threads of one process are told apart by their devices. */
Test(sim_nccl_order, ranks_of_one_process)
{
    ncclComm_t first[2], second[2];
    float *d[2];
    cr_assert_eq(ncclCommInitAll(first, 2, NULL), ncclSuccess);
    cr_assert_eq(ncclCommInitAll(second, 2, NULL), ncclSuccess);
    for (int i = 0; i < 2; ++i) {
        cudaSetDevice(i);
        cr_assert_eq(cudaMalloc((void **)&d[i], 64), cudaSuccess);
    }
    ncclResult_t r[2] = {ncclSuccess, ncclSuccess};
    for (int i = 0; i < 2; ++i) {
        cudaSetDevice(i);
        for (int k = 0; k < 2 && r[i] == ncclSuccess; ++k)
            r[i] = ncclAllReduce(d[i], d[i], 4, ncclFloat, ncclSum, k == i ? first[i] : second[i], NULL);
    }
    cr_expect_eq(r[0], ncclSuccess);
    cr_expect_eq(r[1], ncclInvalidUsage);
    cr_expect(strstr(ncclGetLastError(NULL), "different orders"), "%s", ncclGetLastError(NULL));
    for (int i = 0; i < 2; ++i) {
        cr_expect_eq(ncclCommAbort(first[i]), ncclSuccess);
        cr_expect_eq(ncclCommAbort(second[i]), ncclSuccess);
    }
}
