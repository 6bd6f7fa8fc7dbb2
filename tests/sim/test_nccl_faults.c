/* What ranks do wrong together ends in a table and an error on every rank, never in silence. */
#include "tests/support/sim_ranks.h"

#include <signal.h>

typedef struct {
    ncclComm_t comm;
    float *d;
} world;

static int setup(world *w, int rank, int ranks, ncclUniqueId id)
{
    RANK_CHECK(cudaMalloc((void **)&w->d, 1 << 20) == cudaSuccess);
    RANK_CHECK(cudaMemset(w->d, 0, 1 << 20) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    RANK_CHECK(ncclCommInitRank(&w->comm, ranks, id, rank) == ncclSuccess);
    return 0;
}

/* A time limit for a test that waits for it; without it 60 s.  Ranks begin together (sim_ranks.h) and join within it. */
static void set_limit(void)
{
    setenv("ASSAY_SIM_NCCL_TIMEOUT_S", "2", 1);
}

/* called: what the last call returned.  Another rank may have ended the communicator, and the work that waited in the
 * stream, before this one called. */
static int expect_failure(world *w, ncclResult_t called, ncclResult_t code)
{
    ncclResult_t e = ncclSuccess;
    const bool late = called == code || called == ncclUnhandledCudaError;
    const cudaError_t ended = cudaStreamSynchronize(NULL);
    RANK_CHECK(called == ncclSuccess || late);
    RANK_CHECK(ended == cudaErrorLaunchFailure || (late && ended == cudaSuccess));
    RANK_CHECK(ncclCommGetAsyncError(w->comm, &e) == ncclSuccess && e == code);
    RANK_CHECK(ncclAllReduce(w->d, w->d, 1, ncclFloat, ncclSum, w->comm, NULL) == code);
    RANK_CHECK(ncclCommAbort(w->comm) == ncclSuccess);
    return 0;
}

static void expect_in(const char *log, const char *what)
{
    cr_expect(strstr(log, what) != NULL, "expected \"%s\" in:\n%s", what, log);
}

static int times(const char *log, const char *what)
{
    int n = 0;
    for (const char *p = strstr(log, what); p != NULL; p = strstr(p + 1, what)) {
        ++n;
    }
    return n;
}

static void run(int ranks, rank_main fn, int *codes, char log[8192])
{
    run_ranks_logged(ranks, fn, NULL, codes, log, 8192);
}

static void expect_codes(int ranks, const int *codes, const char *log)
{
    for (int r = 0; r < ranks; ++r) {
        cr_expect(codes[r] == 0, "rank %d ended with %d\n%s", r, codes[r], log);
    }
}

/* --- calls that differ -------------------------------------------------------------------------------------- */

static int different_counts(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    RANK_CHECK(ncclAllReduce(w.d, w.d, 8, ncclFloat, ncclSum, w.comm, NULL) == ncclSuccess);
    const ncclResult_t r =
        ncclAllReduce(w.d, w.d, rank == 1 ? 200000 : 200, ncclFloat, ncclSum, w.comm, NULL);
    return expect_failure(&w, r, ncclInvalidUsage);
}

Test(sim_nccl_faults, different_counts_print_one_table)
{
    int codes[3];
    char log[8192];
    run(3, different_counts, codes, log);
    expect_codes(3, codes, log);
    expect_in(log, "(3 ranks): the ranks do not make the same call");
    expect_in(log, "rank 0 called ncclAllReduce count 200 float32 sum (call 1)");
    expect_in(log, "rank 1 called ncclAllReduce count 200000 float32 sum (call 1)");
    expect_in(log, "rank 2 called ncclAllReduce count 200 float32 sum (call 1)");
    cr_expect(times(log, "do not make the same call") == 1);
}

static int different_calls(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    const int kind = *(const int *)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    ncclResult_t r;
    if (kind == 0)
        r = rank ? ncclAllGather(w.d, w.d, 4, ncclFloat, w.comm, NULL)
                 : ncclAllReduce(w.d, w.d, 4, ncclFloat, ncclSum, w.comm, NULL);
    else if (kind == 1)
        r = ncclAllReduce(w.d, w.d, 4, rank ? ncclFloat : ncclInt32, ncclSum, w.comm, NULL);
    else if (kind == 2)
        r = ncclAllReduce(w.d, w.d, 4, ncclFloat, rank ? ncclMax : ncclSum, w.comm, NULL);
    else
        r = ncclBroadcast(w.d, w.d, 4, ncclFloat, rank, w.comm, NULL);
    return expect_failure(&w, r, ncclInvalidUsage);
}

Test(sim_nccl_faults, different_functions_types_operations_and_roots)
{
    static const char *const words[][2] = {{"ncclAllReduce count 4", "ncclAllGather count 4"},
                                           {"int32 sum", "float32 sum"},
                                           {"float32 sum", "float32 max"},
                                           {"root 0", "root 1"}};
    for (int kind = 0; kind < 4; ++kind) {
        int codes[2];
        char log[8192];
        run_ranks_logged(2, different_calls, &kind, codes, log, sizeof log);
        expect_codes(2, codes, log);
        expect_in(log, words[kind][0]);
        expect_in(log, words[kind][1]);
    }
}

static int receive_longer(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    const ncclResult_t r = rank == 0 ? ncclSend(w.d, 10, ncclFloat, 1, w.comm, NULL)
                                     : ncclRecv(w.d, 11, ncclFloat, 0, w.comm, NULL);
    return expect_failure(&w, r, ncclInvalidUsage);
}

Test(sim_nccl_faults, a_receive_of_another_length_than_the_send)
{
    int codes[2];
    char log[8192];
    run(2, receive_longer, codes, log);
    expect_codes(2, codes, log);
    expect_in(log, "a receive does not match its send");
    expect_in(log, "rank 0 called ncclSend count 10 float32 peer 1");
    expect_in(log, "rank 1 called ncclRecv count 11 float32 peer 0");
}

/* --- ranks that do not come --------------------------------------------------------------------------------- */

static int one_stays_away(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    (void)arg;
    set_limit();
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    if (rank == 2) { /* enqueues, but never lets the stream run while the others wait */
        ncclResult_t e = ncclSuccess;
        (void)ncclAllReduce(w.d, w.d, 4, ncclFloat, ncclSum, w.comm, NULL);
        while (e == ncclSuccess) {
            usleep(10000);
            RANK_CHECK(ncclCommGetAsyncError(w.comm, &e) == ncclSuccess);
        }
        RANK_CHECK(e == ncclSystemError);
        return 0;
    }
    return expect_failure(&w, ncclAllReduce(w.d, w.d, 4, ncclFloat, ncclSum, w.comm, NULL), ncclSystemError);
}

/* The messages of a group run at once: into what is being sent, twice into one place, by a part of them; beside it the message to the rank
 * itself that moves nothing. */
static int messages_that_overlap(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    const int peer = 1 - rank;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    for (int i = 0; i < 4; ++i) {
        const ncclResult_t want = i < 3 ? ncclInvalidUsage : ncclSuccess;
        const size_t begins = i == 1 ? 63 : 0;
        RANK_CHECK(ncclGroupStart() == ncclSuccess);
        if (i == 2)
            RANK_CHECK(ncclRecv(w.d + 32, 64, ncclFloat, peer, w.comm, NULL) == ncclSuccess);
        else
            RANK_CHECK(ncclSend(w.d + begins, 64, ncclFloat, i == 3 ? rank : peer, w.comm, NULL) ==
                       ncclSuccess);
        RANK_CHECK(ncclRecv(w.d, 64, ncclFloat, i == 3 ? rank : peer, w.comm, NULL) == ncclSuccess);
        RANK_CHECK(ncclGroupEnd() == want);
    }
    RANK_CHECK(cudaStreamSynchronize(NULL) == cudaSuccess);
    return 0;
}

Test(sim_nccl_faults, messages_of_a_group_lie_apart)
{
    int codes[2];
    char log[8192];
    set_limit();
    run(2, messages_that_overlap, codes, log);
    expect_codes(2, codes, log);
    cr_expect_eq(times(log, "overlap: the calls of a group run at once"), 6, "%s", log);
    expect_in(log, "ncclRecv from rank 1 (64 elements");
    expect_in(log, "and ncclSend to rank 1 (64 elements");
}

Test(sim_nccl_faults, a_rank_that_never_comes_is_named_after_the_time_limit)
{
    int codes[3];
    char log[8192];
    run(3, one_stays_away, codes, log);
    expect_codes(3, codes, log);
    expect_in(log, "still waits for rank 2 after 2 s without progress");
    expect_in(log, "in nothing; last issued ncclAllReduce count 4 float32 sum (call 0); 0 finished");
    cr_expect(times(log, "still waits for") == 1);
}

static int one_dies(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    if (rank == 1) {
        raise(SIGKILL);
    }
    return expect_failure(&w, ncclAllReduce(w.d, w.d, 4, ncclFloat, ncclSum, w.comm, NULL), ncclRemoteError);
}

Test(sim_nccl_faults, a_dead_rank_is_found_at_once)
{
    int codes[3];
    char log[8192];
    run(3, one_dies, codes, log);
    cr_expect(codes[0] == 0 && codes[1] == -SIGKILL && codes[2] == 0, "%s", log);
    expect_in(log, "waits for rank 1 whose process is dead");
    expect_in(log, "is dead): has called nothing yet");
}

static int one_leaves(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    const int aborts = *(const int *)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    RANK_CHECK(ncclAllReduce(w.d, w.d, 4, ncclFloat, ncclSum, w.comm, NULL) == ncclSuccess);
    RANK_CHECK(cudaStreamSynchronize(NULL) == cudaSuccess);
    if (rank == 0) {
        RANK_CHECK((aborts ? ncclCommAbort(w.comm) : ncclCommDestroy(w.comm)) == ncclSuccess);
        usleep(300000);
        return 0;
    }
    return expect_failure(&w, ncclBroadcast(w.d, w.d, 4, ncclFloat, 0, w.comm, NULL), ncclRemoteError);
}

Test(sim_nccl_faults, a_rank_that_left_or_aborted)
{
    for (int aborts = 0; aborts < 2; ++aborts) {
        int codes[3];
        char log[8192];
        run_ranks_logged(3, one_leaves, &aborts, codes, log, sizeof log);
        expect_codes(3, codes, log);
        expect_in(log, aborts ? "which has aborted the communicator" : "which has left the communicator");
        expect_in(log, "1 finished");
    }
}

static int sends_cross(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    (void)arg;
    set_limit();
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    RANK_CHECK(ncclSend(w.d, 4, ncclFloat, 1 - rank, w.comm, NULL) ==
               ncclSuccess); /* not in a group with the receive */
    return expect_failure(&w, ncclRecv(w.d, 4, ncclFloat, 1 - rank, w.comm, NULL), ncclSystemError);
}

Test(sim_nccl_faults, sends_that_wait_for_each_other)
{
    int codes[2];
    char log[8192];
    run(2, sends_cross, codes, log);
    expect_codes(2, codes, log);
    expect_in(log, "in ncclSend count 4 float32 peer 0");
    expect_in(log, "in ncclSend count 4 float32 peer 1");
}

/* --- joining ------------------------------------------------------------------------------------------------ */

static int never_joins(int rank, int ranks, ncclUniqueId id, void *arg)
{
    ncclComm_t comm = NULL;
    (void)arg;
    set_limit();
    if (rank == 1) {
        return 0;
    }
    RANK_CHECK(ncclCommInitRank(&comm, ranks, id, rank) == ncclSystemError && comm == NULL);
    return 0;
}

Test(sim_nccl_faults, a_rank_that_never_joins)
{
    int codes[3];
    char log[8192];
    run(3, never_joins, codes, log);
    expect_codes(3, codes, log);
    expect_in(log, "ncclCommInitRank: rank 1 never came after 2 s");
    expect_in(log, "rank 1: never joined");
}

static int sizes_differ(int rank, int ranks, ncclUniqueId id, void *arg)
{
    ncclComm_t comm = NULL;
    (void)arg;
    set_limit();
    const ncclResult_t r = ncclCommInitRank(&comm, ranks + rank, id, rank);
    RANK_CHECK(comm == NULL && (r == ncclInvalidUsage || r == ncclSystemError));
    return r == ncclInvalidUsage;
}

/* Either may come first; one that comes after the other's time limit does not meet it. */
Test(sim_nccl_faults, ranks_that_disagree_about_their_number)
{
    int codes[2] = {0, 0};
    char log[8192];
    for (int tries = 0; tries < 20 && codes[0] + codes[1] == 0; tries++)
        run(2, sizes_differ, codes, log);
    cr_assert(codes[0] + codes[1] == 1, "%d %d\n%s", codes[0], codes[1], log);
    expect_in(log, codes[1] ? "rank 1 says 3 ranks, the first to come said 2"
                            : "rank 0 says 2 ranks, the first to come said 3");
}

static int split_alone(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    ncclComm_t part = NULL;
    (void)arg;
    set_limit();
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    if (rank == 0) {
        RANK_CHECK(ncclCommSplit(w.comm, 0, 0, &part, NULL) == ncclSystemError && part == NULL);
        return 0;
    }
    return expect_failure(&w, ncclAllReduce(w.d, w.d, 4, ncclFloat, ncclSum, w.comm, NULL), ncclSystemError);
}

Test(sim_nccl_faults, a_split_that_one_rank_does_not_join)
{
    int codes[2];
    char log[8192];
    run(2, split_alone, codes, log);
    expect_codes(2, codes, log);
    expect_in(log, "ncclCommSplit number 0");
    expect_in(log, "ncclAllReduce count 4 float32 sum (call 0)");
}

/* A segment whose makers were killed before all had joined is replaced, not joined. */
static int killed_early(int rank, int ranks, ncclUniqueId id, void *arg)
{
    ncclComm_t comm = NULL;
    (void)rank;
    (void)ranks;
    (void)id;
    setenv("NCCL_COMM_ID", arg, 1);
    RANK_CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    if (ranks == 1) {
        alarm(1);
        signal(SIGALRM, SIG_DFL);
        return ncclCommInitRank(&comm, 2, id, 0);
    }
    RANK_CHECK(ncclCommInitRank(&comm, 2, id, rank) == ncclSuccess);
    return ncclCommDestroy(comm);
}

Test(sim_nccl_faults, the_leftover_of_a_killed_job_is_replaced)
{
    char address[64], log[8192];
    int codes[2];
    snprintf(address, sizeof address, "leftover:%d", (int)getpid());
    run_ranks_logged(1, killed_early, address, codes, log, sizeof log);
    cr_expect(codes[0] == -SIGALRM);
    run_ranks_logged(2, killed_early, address, codes, log, sizeof log);
    expect_codes(2, codes, log);
}
