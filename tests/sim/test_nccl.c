/* Every collective, type and reduction between processes, against whole numbers that every type holds
 * exactly. */
#include "tests/support/sim_ranks.h"

#include <math.h>
#include <stdint.h>

typedef struct {
    ncclComm_t comm;
    cudaStream_t stream;
    int rank, ranks;
} world;

static size_t bytes_of(ncclDataType_t type)
{
    static const size_t b[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return b[type];
}

/* Small whole numbers as each type stores them (the 8-bit floats and fp16 by table, from their definitions).
 */
static void store(void *p, size_t i, ncclDataType_t type, int v)
{
    const float f = (float)v;
    uint32_t u;
    int e = 0;
    const double m = frexp(fabs((double)v), &e); /* m in [0.5, 1) */
    const uint32_t sign = v < 0;
    memcpy(&u, &f, 4);
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        ((uint8_t *)p)[i] = (uint8_t)v;
        break;
    case ncclInt32:
    case ncclUint32:
        ((uint32_t *)p)[i] = (uint32_t)v;
        break;
    case ncclInt64:
    case ncclUint64:
        ((uint64_t *)p)[i] = (uint64_t)(int64_t)v;
        break;
    case ncclFloat16:
        ((uint16_t *)p)[i] =
            (uint16_t)(sign << 15 |
                       (v == 0 ? 0 : (uint32_t)(e - 1 + 15) << 10 | (uint32_t)((2 * m - 1) * 1024)));
        break;
    case ncclFloat32:
        ((float *)p)[i] = f;
        break;
    case ncclFloat64:
        ((double *)p)[i] = (double)v;
        break;
    case ncclBfloat16:
        ((uint16_t *)p)[i] = (uint16_t)(u >> 16);
        break;
    case ncclFloat8e4m3:
        ((uint8_t *)p)[i] =
            (uint8_t)(sign << 7 | (v == 0 ? 0 : (uint32_t)(e - 1 + 7) << 3 | (uint32_t)((2 * m - 1) * 8)));
        break;
    default:
        ((uint8_t *)p)[i] =
            (uint8_t)(sign << 7 | (v == 0 ? 0 : (uint32_t)(e - 1 + 15) << 2 | (uint32_t)((2 * m - 1) * 4)));
    }
}

/* 0, 1 and 2: sums, products and averages over four ranks stay within every type's exact range (e5m2:
 * integers up to 8). */
static int value(int rank, size_t i)
{
    return (int)((i * 5 + (size_t)rank * 3 + i / 7) % 3);
}

static int reduced(ncclRedOp_t op, int ranks, size_t i)
{
    int acc = value(0, i);
    for (int r = 1; r < ranks; ++r) {
        const int v = value(r, i);
        acc = op == ncclProd  ? acc * v
              : op == ncclMax ? (acc < v ? v : acc)
              : op == ncclMin ? (v < acc ? v : acc)
                              : acc + v;
    }
    return acc;
}

static int setup(world *w, int rank, int ranks, ncclUniqueId id)
{
    w->rank = rank;
    w->ranks = ranks;
    RANK_CHECK(cudaSetDevice(rank % 8) == cudaSuccess);
    RANK_CHECK(ncclCommInitRank(&w->comm, ranks, id, rank) == ncclSuccess);
    RANK_CHECK(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking) == cudaSuccess);
    return 0;
}

static int finish(world *w)
{
    RANK_CHECK(ncclCommDestroy(w->comm) == ncclSuccess);
    RANK_CHECK(cudaStreamDestroy(w->stream) == cudaSuccess);
    return 0;
}

typedef struct {
    void *send, *recv, *host, *want;
    size_t bytes;
} buffers;

static int take_buffers(buffers *b, size_t send_elements, size_t recv_elements, ncclDataType_t type)
{
    const size_t sb = send_elements * bytes_of(type), rb = recv_elements * bytes_of(type);
    b->bytes = rb;
    b->host = malloc((sb > rb ? sb : rb) + 1);
    b->want = malloc(rb + 1);
    RANK_CHECK(cudaMalloc(&b->send, sb + 1) == cudaSuccess && cudaMalloc(&b->recv, rb + 1) == cudaSuccess);
    return 0;
}

static int send_values(buffers *b, int rank, size_t n, ncclDataType_t type)
{
    for (size_t i = 0; i < n; ++i) {
        store(b->host, i, type, value(rank, i));
    }
    RANK_CHECK(cudaMemcpy(b->send, b->host, n * bytes_of(type), cudaMemcpyHostToDevice) == cudaSuccess);
    return 0;
}

static int expect_values(buffers *b, world *w, size_t bytes)
{
    RANK_CHECK(cudaStreamSynchronize(w->stream) == cudaSuccess);
    RANK_CHECK(cudaMemcpy(b->host, b->recv, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    RANK_CHECK(memcmp(b->host, b->want, bytes) == 0);
    cudaFree(b->send);
    cudaFree(b->recv);
    free(b->host);
    free(b->want);
    return 0;
}

/* --- reductions --------------------------------------------------------------------------------------------- */

static int one_reduction(world *w, size_t n, ncclDataType_t type, ncclRedOp_t op, int kind)
{
    const size_t all = kind == 2 ? n * (size_t)w->ranks : n;
    buffers b;
    RANK_CHECK(take_buffers(&b, all, n, type) == 0 && send_values(&b, w->rank, all, type) == 0);
    const size_t first = kind == 2 ? n * (size_t)w->rank : 0;
    for (size_t i = 0; i < n; ++i) {
        store(b.want, i, type, reduced(op, w->ranks, first + i));
    }
    if (kind == 0) {
        RANK_CHECK(ncclAllReduce(b.send, b.recv, n, type, op, w->comm, w->stream) == ncclSuccess);
    } else if (kind == 1) {
        const int root = w->ranks - 1;
        RANK_CHECK(ncclReduce(b.send, b.recv, n, type, op, root, w->comm, w->stream) == ncclSuccess);
        if (w->rank != root) {
            memset(b.want, 0xff, b.bytes); /* nobody writes there */
        }
    } else {
        RANK_CHECK(ncclReduceScatter(b.send, b.recv, n, type, op, w->comm, w->stream) == ncclSuccess);
    }
    return expect_values(&b, w, b.bytes);
}

static int reductions(int rank, int ranks, ncclUniqueId id, void *arg)
{
    static const size_t counts[] = {0, 1, 2, 3, 17, 1023, 8195};
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    for (int type = 0; type < ncclNumTypes; ++type) {
        for (int op = 0; op <= ncclMin; ++op) {
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; ++c) {
                for (int kind = 0; kind < 3; ++kind) {
                    if (one_reduction(&w, counts[c], (ncclDataType_t)type, (ncclRedOp_t)op, kind) != 0) {
                        fprintf(stderr, "type %d op %d count %zu kind %d\n", type, op, counts[c], kind);
                        return 101;
                    }
                }
            }
        }
    }
    return finish(&w);
}

Test(sim_nccl, reductions_of_every_type_and_operation)
{
    for (int ranks = 1; ranks <= 4; ++ranks) {
        run_ranks(ranks, reductions, NULL);
    }
}

static int large(int rank, int ranks, ncclUniqueId id, void *arg)
{
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    for (int kind = 0; kind < 3; ++kind) {
        RANK_CHECK(one_reduction(&w, 100003, ncclFloat, ncclSum, kind) == 0);
        RANK_CHECK(one_reduction(&w, 131072, ncclBfloat16, ncclMax, kind) == 0);
    }
    return finish(&w);
}

Test(sim_nccl, reductions_longer_than_the_staging_buffer)
{
    run_ranks(3, large, NULL);
}

/* ((x0 + x1) + x2) with values where the order shows; bf16 keeps the sum in fp32 until the end; avg divides
 * the finished sum. */
static int declared_order(int rank, int ranks, ncclUniqueId id, void *arg)
{
    const float x[3] = {0x1p-24f, 0x1p-24f, 1.0f}, y[3] = {1.0f, 0x1p-24f, 0x1p-24f};
    float *d = NULL, sum = 0.0f;
    uint16_t *h = NULL, half = 0;
    int32_t *n = NULL, i = rank == 0 ? -7 : 0;
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    cudaMalloc((void **)&d, 4);
    cudaMalloc((void **)&h, 2);
    cudaMalloc((void **)&n, 4);
    cudaMemcpy(d, &x[rank], 4, cudaMemcpyHostToDevice);
    RANK_CHECK(ncclAllReduce(d, d, 1, ncclFloat, ncclSum, w.comm, w.stream) == ncclSuccess);
    cudaStreamSynchronize(w.stream);
    cudaMemcpy(&sum, d, 4, cudaMemcpyDeviceToHost);
    RANK_CHECK(sum == 1.0f + 0x1p-23f); /* any other order gives 1 */
    cudaMemcpy(d, &y[rank], 4, cudaMemcpyHostToDevice);
    RANK_CHECK(ncclAllReduce(d, d, 1, ncclFloat, ncclSum, w.comm, w.stream) == ncclSuccess);
    cudaStreamSynchronize(w.stream);
    cudaMemcpy(&sum, d, 4, cudaMemcpyDeviceToHost);
    RANK_CHECK(sum == 1.0f);                                   /* the small ones first would give 1 + 2^-23 */
    const uint16_t short_values[3] = {0x3f80, 0x3b80, 0x3b80}; /* 1, 2^-8, 2^-8 */
    cudaMemcpy(h, &short_values[rank], 2, cudaMemcpyHostToDevice);
    RANK_CHECK(ncclAllReduce(h, h, 1, ncclBfloat16, ncclSum, w.comm, w.stream) == ncclSuccess);
    cudaStreamSynchronize(w.stream);
    cudaMemcpy(&half, h, 2, cudaMemcpyDeviceToHost);
    RANK_CHECK(half == 0x3f81); /* rounding after each step would give 1 */
    cudaMemcpy(n, &i, 4, cudaMemcpyHostToDevice);
    RANK_CHECK(ncclAllReduce(n, n, 1, ncclInt32, ncclAvg, w.comm, w.stream) == ncclSuccess);
    cudaMemcpy(d, &y[0], 4, cudaMemcpyHostToDevice);
    RANK_CHECK(ncclAllReduce(d, d, 1, ncclFloat, ncclAvg, w.comm, w.stream) == ncclSuccess);
    cudaStreamSynchronize(w.stream);
    cudaMemcpy(&i, n, 4, cudaMemcpyDeviceToHost);
    cudaMemcpy(&sum, d, 4, cudaMemcpyDeviceToHost);
    RANK_CHECK(i == -2 && sum == 1.0f);
    const float nan_of_one = rank == 1 ? NAN : 5.0f;
    cudaMemcpy(d, &nan_of_one, 4, cudaMemcpyHostToDevice);
    RANK_CHECK(ncclAllReduce(d, d, 1, ncclFloat, ncclMax, w.comm, w.stream) == ncclSuccess);
    cudaStreamSynchronize(w.stream);
    cudaMemcpy(&sum, d, 4, cudaMemcpyDeviceToHost);
    RANK_CHECK(isnan(sum));
    return finish(&w);
}

Test(sim_nccl, the_declared_arithmetic)
{
    run_ranks(3, declared_order, NULL);
}

/* ASSAY_SIM_NCCL_ORDER=rings: communicators add in orders of their own, the ranks of each in one. */
static int ring_orders(int rank, int ranks, ncclUniqueId id, void *arg)
{
    const float x[3] = {0x1p-24f, 0x1p-24f, 1.0f};
    float *d = NULL, found[3] = {0};
    int exact = 0, rounded = 0;
    world w;
    (void)arg;
    setenv("ASSAY_SIM_NCCL_ORDER", "rings", 1);
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    RANK_CHECK(cudaMalloc((void **)&d, sizeof found) == cudaSuccess);
    for (int i = 0; i < 12; ++i) {
        ncclComm_t comm;
        RANK_CHECK(ncclCommSplit(w.comm, 0, rank, &comm, NULL) == ncclSuccess);
        cudaMemcpy(d, &x[rank], sizeof *x, cudaMemcpyHostToDevice);
        RANK_CHECK(ncclAllReduce(d, d, 1, ncclFloat, ncclSum, comm, w.stream) == ncclSuccess);
        RANK_CHECK(ncclAllReduce(d, d + 1, 1, ncclFloat, ncclMax, comm, w.stream) == ncclSuccess);
        RANK_CHECK(ncclAllReduce(d, d + 2, 1, ncclFloat, ncclMin, comm, w.stream) == ncclSuccess);
        cudaStreamSynchronize(w.stream);
        cudaMemcpy(found, d, sizeof found, cudaMemcpyDeviceToHost);
        RANK_CHECK(found[0] == found[1] && found[0] == found[2]);
        exact += found[0] == 1.0f + 0x1p-23f; /* the small ones first */
        rounded += found[0] == 1.0f;
        RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
    }
    RANK_CHECK(exact > 0 && rounded > 0 && exact + rounded == 12);
    return finish(&w);
}

Test(sim_nccl, rings_begin_anywhere)
{
    run_ranks(3, ring_orders, NULL);
}

/* --- reductions that a program makes -------------------------------------------------------------------------- */
static int one_scaled(world *w, size_t n, ncclDataType_t type, int kind, bool device)
{
    const size_t all = kind == 2 ? n * (size_t)w->ranks : n;
    const size_t first = kind == 2 ? n * (size_t)w->rank : 0;
    unsigned char factor[8];
    void *at = NULL;
    ncclRedOp_t op;
    buffers b;
    RANK_CHECK(take_buffers(&b, all, n, type) == 0 && send_values(&b, w->rank, all, type) == 0);
    store(factor, 0, type, w->rank + 1);
    RANK_CHECK(cudaMalloc(&at, 8) == cudaSuccess);
    RANK_CHECK(ncclRedOpCreatePreMulSum(&op, device ? at : factor, type,
                                        device ? ncclScalarDevice : ncclScalarHostImmediate,
                                        w->comm) == ncclSuccess);
    /* In memory of the device it is what it is when the call runs, else what it was when the reduction was made. */
    RANK_CHECK(cudaMemcpy(at, factor, bytes_of(type), cudaMemcpyHostToDevice) == cudaSuccess);
    memset(factor, 0x11, sizeof factor);
    for (size_t i = 0; i < n; ++i) {
        int sum = 0;
        for (int r = 0; r < w->ranks; ++r)
            sum += (r + 1) * value(r, first + i);
        store(b.want, i, type, sum);
    }
    if (kind == 0)
        RANK_CHECK(ncclAllReduce(b.send, b.recv, n, type, op, w->comm, w->stream) == ncclSuccess);
    else
        RANK_CHECK(ncclReduceScatter(b.send, b.recv, n, type, op, w->comm, w->stream) == ncclSuccess);
    RANK_CHECK(ncclRedOpDestroy(op, w->comm) == ncclSuccess); /* what was called keeps its scalar */
    RANK_CHECK(expect_values(&b, w, b.bytes) == 0);
    return cudaFree(at) == cudaSuccess ? 0 : 1;
}

static int scaled(int rank, int ranks, ncclUniqueId id, void *arg)
{
    static const size_t counts[] = {0, 1, 17, 8195, 70001};
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    for (int type = 0; type < ncclNumTypes; ++type)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; ++c)
            for (int kind = 0; kind < 4; ++kind)
                if (one_scaled(&w, counts[c], (ncclDataType_t)type, kind / 2 * 2, kind % 2 == 1) != 0) {
                    fprintf(stderr, "type %d count %zu kind %d\n", type, counts[c], kind);
                    return 101;
                }
    return finish(&w);
}

Test(sim_nccl, sums_of_terms_times_a_scalar)
{
    for (int ranks = 1; ranks <= 3; ++ranks)
        run_ranks(ranks, scaled, NULL);
}

/* (1 + 2^-7)^2 is rounded to 1 + 2^-6 before 2^-8 is added: half an ulp, which goes to even; the sum of the exact product would not. */
static int scaled_rounding(int rank, int ranks, ncclUniqueId id, void *arg)
{
    const uint16_t x[2] = {0x3f81, 0x3b80};
    uint16_t factor[2] = {0x3f81, 0x3f80};
    uint16_t *d = NULL, sum = 0;
    ncclRedOp_t op;
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    cudaMalloc((void **)&d, 2);
    cudaMemcpy(d, &x[rank], 2, cudaMemcpyHostToDevice);
    RANK_CHECK(ncclRedOpCreatePreMulSum(&op, &factor[rank], ncclBfloat16, ncclScalarHostImmediate, w.comm) ==
               ncclSuccess);
    RANK_CHECK(ncclAllReduce(d, d, 1, ncclBfloat16, op, w.comm, w.stream) == ncclSuccess);
    cudaStreamSynchronize(w.stream);
    cudaMemcpy(&sum, d, 2, cudaMemcpyDeviceToHost);
    RANK_CHECK(sum == 0x3f82);
    return finish(&w);
}

Test(sim_nccl, scaled_terms_are_rounded_before_the_sum)
{
    run_ranks(2, scaled_rounding, NULL);
}

Test(sim_nccl, reductions_that_a_program_makes_are_checked)
{
    ncclUniqueId id, other_id;
    ncclComm_t comm = NULL, other = NULL;
    ncclRedOp_t op, theirs;
    float one = 1.0f, *d = NULL;
    cr_assert(cudaMalloc((void **)&d, 4) == cudaSuccess);
    cr_assert(ncclGetUniqueId(&id) == ncclSuccess && ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess);
    cr_assert(ncclGetUniqueId(&other_id) == ncclSuccess &&
              ncclCommInitRank(&other, 1, other_id, 0) == ncclSuccess);
    cr_assert(ncclRedOpCreatePreMulSum(&op, &one, ncclFloat, ncclScalarHostImmediate, comm) == ncclSuccess);
    cr_assert(ncclRedOpCreatePreMulSum(&theirs, &one, ncclFloat, ncclScalarHostImmediate, other) ==
              ncclSuccess);
    cr_expect(ncclAllReduce(d, d, 1, ncclInt32, op, comm, NULL) == ncclInvalidArgument);
    cr_expect(strstr(ncclGetLastError(comm), "made for float32, the data is int32") != NULL);
    cr_expect(ncclAllReduce(d, d, 1, ncclFloat, theirs, comm, NULL) == ncclInvalidArgument);
    cr_expect(strstr(ncclGetLastError(comm), "made for another communicator") != NULL);
    cr_expect(ncclRedOpDestroy(theirs, comm) == ncclInvalidArgument);
    cr_expect(ncclRedOpDestroy(ncclSum, comm) == ncclInvalidArgument);
    cr_expect(strstr(ncclGetLastError(comm), "is built in") != NULL);
    cr_expect(ncclRedOpDestroy(op, comm) == ncclSuccess);
    cr_expect(ncclAllReduce(d, d, 1, ncclFloat, op, comm, NULL) == ncclInvalidArgument);
    cr_expect(strstr(ncclGetLastError(comm), "was destroyed") != NULL);
    cr_expect(ncclRedOpCreatePreMulSum(&op, &one, ncclFloat, ncclScalarDevice, comm) == ncclInvalidArgument);
    cr_expect(strstr(ncclGetLastError(comm), "not in memory of the communicator's device") != NULL);
    cr_expect(ncclRedOpCreatePreMulSum(&op, NULL, ncclFloat, ncclScalarHostImmediate, comm) ==
              ncclInvalidArgument);
    cr_expect(ncclRedOpCreatePreMulSum(&op, &one, (ncclDataType_t)12, ncclScalarHostImmediate, comm) ==
              ncclInvalidArgument);
    cr_expect(ncclCommDestroy(other) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess);
    cudaFree(d);
}

/* --- moving data -------------------------------------------------------------------------------------------- */

static int movements(int rank, int ranks, ncclUniqueId id, void *arg)
{
    static const size_t counts[] = {0, 1, 3, 1001, 70001};
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; ++c) {
        const size_t n = counts[c];
        for (int root = 0; root < ranks; ++root) {
            buffers b;
            RANK_CHECK(take_buffers(&b, n, n, ncclFloat) == 0 && send_values(&b, rank, n, ncclFloat) == 0);
            for (size_t i = 0; i < n; ++i) {
                store(b.want, i, ncclFloat, value(root, i));
            }
            RANK_CHECK(ncclBroadcast(b.send, b.recv, n, ncclFloat, root, w.comm, w.stream) == ncclSuccess);
            RANK_CHECK(expect_values(&b, &w, b.bytes) == 0);
        }
        buffers g;
        RANK_CHECK(take_buffers(&g, n, n * (size_t)ranks, ncclInt8) == 0 &&
                   send_values(&g, rank, n, ncclInt8) == 0);
        for (size_t i = 0; i < n * (size_t)ranks; ++i) {
            store(g.want, i, ncclInt8, value((int)(i / (n ? n : 1)), i % (n ? n : 1)));
        }
        RANK_CHECK(ncclAllGather(g.send, g.recv, n, ncclInt8, w.comm, w.stream) == ncclSuccess);
        RANK_CHECK(expect_values(&g, &w, g.bytes) == 0);
    }
    return finish(&w);
}

Test(sim_nccl, broadcast_and_all_gather)
{
    for (int ranks = 1; ranks <= 4; ++ranks) {
        run_ranks(ranks, movements, NULL);
    }
}

/* In place: the pointers that NCCL allows to be equal. */
static int in_place(int rank, int ranks, ncclUniqueId id, void *arg)
{
    enum { N = 5000 };
    const size_t all = (size_t)ranks * N, mine = (size_t)rank * N;
    float *d = NULL, *h = malloc(all * 4);
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    cudaMalloc((void **)&d, all * 4);
    for (size_t i = 0; i < all; ++i) {
        h[i] = (float)value(rank, i);
    }
    cudaMemcpy(d, h, all * 4, cudaMemcpyHostToDevice);
    RANK_CHECK(ncclReduceScatter(d, d + mine, N, ncclFloat, ncclSum, w.comm, w.stream) == ncclSuccess);
    RANK_CHECK(ncclAllGather(d + mine, d, N, ncclFloat, w.comm, w.stream) == ncclSuccess);
    cudaStreamSynchronize(w.stream);
    cudaMemcpy(h, d, all * 4, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < all; ++i) {
        RANK_CHECK(h[i] == (float)reduced(ncclSum, ranks, i));
    }
    RANK_CHECK(ncclBcast(d, all, ncclFloat, 0, w.comm, w.stream) == ncclSuccess);
    return finish(&w);
}

Test(sim_nccl, in_place_reduce_scatter_and_all_gather)
{
    run_ranks(3, in_place, NULL);
}

/* --- messages ----------------------------------------------------------------------------------------------- */

/* A ring and an all-to-all of unequal lengths, each in one group, longer than the queue between two ranks. */
static int messages(int rank, int ranks, ncclUniqueId id, void *arg)
{
    enum { N = 50001 };
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    float *a = NULL, *b = NULL, *h = malloc(N * 4);
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    cudaMalloc((void **)&a, (size_t)ranks * N * 4);
    cudaMalloc((void **)&b, (size_t)ranks * N * 4);
    for (size_t i = 0; i < N; ++i) {
        h[i] = (float)(rank * 100000 + (int)i);
    }
    cudaMemcpy(a, h, N * 4, cudaMemcpyHostToDevice);
    ncclGroupStart();
    RANK_CHECK(ncclSend(a, N, ncclFloat, next, w.comm, w.stream) == ncclSuccess);
    RANK_CHECK(ncclRecv(b, N, ncclFloat, before, w.comm, w.stream) == ncclSuccess);
    RANK_CHECK(ncclGroupEnd() == ncclSuccess);
    RANK_CHECK(cudaStreamSynchronize(w.stream) == cudaSuccess);
    cudaMemcpy(h, b, N * 4, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < N; ++i) {
        RANK_CHECK(h[i] == (float)(before * 100000 + (int)i));
    }
    ncclGroupStart(); /* rank r sends r + q elements to q, none to a sum that is a multiple of 3 */
    for (int q = 0; q < ranks; ++q) {
        const size_t n = (rank + q) % 3 == 0 ? 0 : (size_t)(rank + q);
        RANK_CHECK(ncclRecv(b + (size_t)q * N, n, ncclFloat, q, w.comm, w.stream) == ncclSuccess);
        RANK_CHECK(ncclSend(a, n, ncclFloat, q, w.comm, w.stream) == ncclSuccess);
    }
    RANK_CHECK(ncclGroupEnd() == ncclSuccess);
    RANK_CHECK(cudaStreamSynchronize(w.stream) == cudaSuccess);
    for (int q = 0; q < ranks; ++q) {
        const size_t n = (rank + q) % 3 == 0 ? 0 : (size_t)(rank + q);
        cudaMemcpy(h, b + (size_t)q * N, N * 4, cudaMemcpyDeviceToHost);
        for (size_t i = 0; i < n; ++i) {
            RANK_CHECK(h[i] == (float)(q * 100000 + (int)i));
        }
    }
    RANK_CHECK(ncclAlltoAll(a, b, 7, ncclFloat, w.comm, w.stream) == ncclSuccess);
    RANK_CHECK(ncclGather(a, b, 7, ncclFloat, 0, w.comm, w.stream) == ncclSuccess);
    RANK_CHECK(ncclScatter(a, b, 7, ncclFloat, ranks - 1, w.comm, w.stream) == ncclSuccess);
    RANK_CHECK(cudaStreamSynchronize(w.stream) == cudaSuccess);
    cudaMemcpy(h, b, 7 * 4, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < 7; ++i) {
        RANK_CHECK(h[i] == (float)((ranks - 1) * 100000 + rank * 7 + (int)i));
    }
    return finish(&w);
}

Test(sim_nccl, messages_in_groups)
{
    for (int ranks = 1; ranks <= 4; ++ranks) {
        run_ranks(ranks, messages, NULL);
    }
}

/* --- several streams, several communicators ----------------------------------------------------------------- */

/* Two communicators on two streams, synchronized in opposite orders by the ranks: a GPU runs both at once,
 * and so must this. */
static int crossed(int rank, int ranks, ncclUniqueId id, void *arg)
{
    float *d = NULL;
    world w;
    ncclComm_t second;
    cudaStream_t other;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    RANK_CHECK(ncclCommSplit(w.comm, 0, rank, &second, NULL) == ncclSuccess);
    RANK_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
    RANK_CHECK(cudaMalloc((void **)&d, 8) == cudaSuccess && cudaMemset(d, 0, 8) == cudaSuccess);
    cudaDeviceSynchronize();
    for (int i = 0; i < 20; ++i) {
        RANK_CHECK(ncclAllReduce(d, d, 1, ncclFloat, ncclSum, w.comm, w.stream) == ncclSuccess);
        RANK_CHECK(ncclAllReduce(d + 1, d + 1, 1, ncclFloat, ncclSum, second, other) == ncclSuccess);
        RANK_CHECK(cudaStreamSynchronize(rank % 2 ? other : w.stream) == cudaSuccess);
        RANK_CHECK(cudaStreamSynchronize(rank % 2 ? w.stream : other) == cudaSuccess);
    }
    ncclGroupStart(); /* one group over two streams and two communicators */
    RANK_CHECK(ncclAllReduce(d, d, 1, ncclFloat, ncclSum, w.comm, w.stream) == ncclSuccess);
    RANK_CHECK(ncclAllReduce(d + 1, d + 1, 1, ncclFloat, ncclSum, w.comm, other) == ncclSuccess);
    RANK_CHECK(ncclAllReduce(d, d, 1, ncclFloat, ncclSum, second, w.stream) == ncclSuccess);
    RANK_CHECK(ncclGroupEnd() == ncclSuccess);
    RANK_CHECK(cudaDeviceSynchronize() == cudaSuccess);
    RANK_CHECK(ncclCommDestroy(second) == ncclSuccess);
    return finish(&w);
}

Test(sim_nccl, communicators_on_different_streams_do_not_block_each_other)
{
    run_ranks(2, crossed, NULL);
    run_ranks(4, crossed, NULL);
}

static int splits(int rank, int ranks, ncclUniqueId id, void *arg)
{
    float *d = NULL, v = (float)(1 << rank);
    world w;
    (void)arg;
    RANK_CHECK(setup(&w, rank, ranks, id) == 0);
    cudaMalloc((void **)&d, 4);
    for (int turn = 0; turn < 5; ++turn) { /* the parent's collectives may still be queued when it is split */
        ncclComm_t half = NULL, none = NULL;
        int n = 0, r = -1, device = -1;
        cudaMemcpy(d, &v, 4, cudaMemcpyHostToDevice);
        RANK_CHECK(ncclAllReduce(d, d, 1, ncclFloat, ncclSum, w.comm, w.stream) == ncclSuccess);
        RANK_CHECK(ncclCommSplit(w.comm, rank % 2, -rank, &half, NULL) == ncclSuccess);
        RANK_CHECK(ncclCommCount(half, &n) == ncclSuccess && n == (ranks + 1 - rank % 2) / 2);
        RANK_CHECK(ncclCommUserRank(half, &r) == ncclSuccess &&
                   r == n - 1 - rank / 2); /* keys reverse the order */
        RANK_CHECK(ncclCommCuDevice(half, &device) == ncclSuccess && device == rank % 8);
        RANK_CHECK(ncclAllReduce(d, d, 1, ncclFloat, ncclSum, half, w.stream) == ncclSuccess);
        RANK_CHECK(cudaStreamSynchronize(w.stream) == cudaSuccess);
        float got = 0.0f;
        cudaMemcpy(&got, d, 4, cudaMemcpyDeviceToHost);
        RANK_CHECK(got == (float)(((1 << ranks) - 1) * n));
        RANK_CHECK(ncclCommSplit(w.comm, rank == 0 ? NCCL_SPLIT_NOCOLOR : 3, rank, &none, NULL) ==
                   ncclSuccess);
        RANK_CHECK((none == NULL) == (rank == 0));
        RANK_CHECK(ncclCommDestroy(none) == ncclSuccess && ncclCommDestroy(half) == ncclSuccess);
    }
    return finish(&w);
}

Test(sim_nccl, split)
{
    run_ranks(2, splits, NULL);
    run_ranks(4, splits, NULL);
}

/* With NCCL_COMM_ID every rank makes the id by itself, and the same address serves again afterwards. */
static int by_address(int rank, int ranks, ncclUniqueId unused, void *arg)
{
    (void)unused;
    for (int turn = 0; turn < 3; ++turn) {
        ncclUniqueId id;
        world w;
        setenv("NCCL_COMM_ID", arg, 1);
        RANK_CHECK(ncclGetUniqueId(&id) == ncclSuccess);
        RANK_CHECK(setup(&w, rank, ranks, id) == 0);
        RANK_CHECK(ncclCommFinalize(w.comm) == ncclSuccess);
        RANK_CHECK(finish(&w) == 0);
    }
    return 0;
}

Test(sim_nccl, rendezvous_by_address)
{
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%d", (int)getpid());
    run_ranks(4, by_address, address);
}

/* All ranks in one thread, as ncclCommInitAll is used. */
Test(sim_nccl, several_ranks_in_one_thread)
{
    enum { RANKS = 3 };
    ncclComm_t comm[RANKS];
    cudaStream_t stream[RANKS];
    float *d[RANKS];
    cr_assert(ncclCommInitAll(comm, RANKS, NULL) == ncclSuccess);
    for (int r = 0; r < RANKS; ++r) {
        const float v = (float)(r + 1);
        cudaSetDevice(r);
        cudaStreamCreateWithFlags(&stream[r], cudaStreamNonBlocking);
        cudaMalloc((void **)&d[r], 4);
        cudaMemcpy(d[r], &v, 4, cudaMemcpyHostToDevice);
    }
    ncclGroupStart();
    for (int r = 0; r < RANKS; ++r) {
        cr_expect(ncclAllReduce(d[r], d[r], 1, ncclFloat, ncclSum, comm[r], stream[r]) == ncclSuccess);
    }
    cr_assert(ncclGroupEnd() == ncclSuccess);
    for (int r = 0; r < RANKS; ++r) {
        float v = 0.0f;
        cudaSetDevice(r);
        cr_expect(cudaStreamSynchronize(stream[r]) == cudaSuccess);
        cudaMemcpy(&v, d[r], 4, cudaMemcpyDeviceToHost);
        cr_expect(v == 6.0f);
        cr_expect(ncclCommDestroy(comm[r]) == ncclSuccess);
    }
}

Test(sim_nccl, arguments_are_checked)
{
    ncclComm_t comm = NULL;
    ncclUniqueId id;
    float *d = NULL, host = 0.0f;
    int version = 0;
    cudaMalloc((void **)&d, 4);
    ncclGetUniqueId(&id);
    cr_expect(ncclGetVersion(&version) == ncclSuccess && version == NCCL_VERSION_CODE);
    cr_expect(ncclCommInitRank(&comm, 2, id, 2) == ncclInvalidArgument);
    cr_assert(ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess);
    cr_expect(ncclAllReduce(d, d, 2, ncclFloat, ncclSum, comm, NULL) == ncclInvalidArgument,
              "beyond the block");
    cr_expect(ncclAllReduce(&host, d, 1, ncclFloat, ncclSum, comm, NULL) == ncclInvalidArgument,
              "host memory");
    cr_expect(ncclAllReduce(d, d, 1, (ncclDataType_t)12, ncclSum, comm, NULL) == ncclInvalidArgument);
    cr_expect(ncclAllReduce(d, d, 1, ncclFloat, (ncclRedOp_t)5, comm, NULL) == ncclInvalidArgument);
    cr_expect(strstr(ncclGetLastError(comm), "reduction 5 is unknown") != NULL);
    cr_expect(ncclBroadcast(d, d, 1, ncclFloat, 1, comm, NULL) == ncclInvalidArgument);
    cr_expect(ncclSend(d, 1, ncclFloat, -1, comm, NULL) == ncclInvalidArgument);
    cr_expect(ncclAllReduce(d, d, SIZE_MAX, ncclFloat, ncclSum, comm, NULL) == ncclInvalidArgument);
    cr_expect(ncclAllReduce(d, d, 1, ncclFloat, ncclSum, NULL, NULL) == ncclInvalidArgument);
    cr_expect(ncclCommRevoke(comm, 0) == ncclInvalidUsage);
    cr_expect(strstr(ncclGetLastError(comm), "ncclCommRevoke") != NULL);
    cr_expect(ncclGroupEnd() == ncclInvalidUsage);
    cr_expect(strcmp(ncclGetErrorString(ncclInvalidUsage), "invalid usage") == 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t other = NULL;
    config.blocking = 0;
    cr_expect(ncclCommInitRankConfig(&other, 1, id, 0, &config) == ncclInvalidUsage);
    config.blocking = 1;
    cr_expect(ncclCommInitRankConfig(&other, 1, id, 0, &config) == ncclSuccess);
    cr_expect(ncclCommDestroy(other) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess);
}
