/* NCCL calls: one door, a log, a watchdog. */
#include "gpu/comm.h"

#include "core/base/log.h"
#include "gpu/parallel/groups.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Longest time that a stream may need between two waits; ASSAY_COLLECTIVE_TIMEOUT_S and --collective-timeout override it. */
static const double default_timeout_s = 300.0;

static const char *const op_names[] = {
    [GPU_COMM_ALL_REDUCE] = "all_reduce",
    [GPU_COMM_ALL_GATHER] = "all_gather",
    [GPU_COMM_REDUCE_SCATTER] = "reduce_scatter",
    [GPU_COMM_BROADCAST] = "broadcast",
    [GPU_COMM_REDUCE] = "reduce",
    [GPU_COMM_SEND] = "send",
    [GPU_COMM_RECV] = "recv",
};

const char *gpu_comm_op_name(gpu_comm_op op)
{
    const int i = (int)op;
    return i >= 0 && i <= GPU_COMM_RECV ? op_names[i] : "?";
}

assay_arith gpu_comm_arith(bool simulated, int ranks, assay_dtype dtype)
{
    return (assay_arith){.accumulate = dtype == ASSAY_F64 ? ASSAY_F64 : ASSAY_F32,
                         .order = simulated || ranks <= 2 ? ASSAY_ORDER_SEQUENTIAL : ASSAY_ORDER_UNKNOWN,
                         .lanes = 1,
                         .split = 1,
                         .k_step = 1};
}

static assay_status timeout_from_environment(double *out)
{
    const char *text = getenv("ASSAY_COLLECTIVE_TIMEOUT_S");
    *out = default_timeout_s;
    if (text == NULL || text[0] == '\0')
        return ASSAY_OK;
    char *end = NULL;
    const double value = strtod(text, &end);
    ASSAY_CHECK(*end == '\0' && value > 0.0 && value < 1e6, ASSAY_INVALID_ARGUMENT,
                "ASSAY_COLLECTIVE_TIMEOUT_S: expected seconds above 0, found '%s'", text);
    *out = value;
    return ASSAY_OK;
}

assay_status gpu_comm_check_order(int nccl, const char *implicit)
{
    enum { LEAST = 22600 };
    ASSAY_CHECK(nccl >= LEAST, ASSAY_UNSUPPORTED,
                "NCCL %d.%d.%d: expected 2.26 or later, which keeps the order of communicators that are in "
                "flight together (before, ranks may wait for each other for ever)",
                nccl / 10000, nccl / 100 % 100, nccl % 100);
    ASSAY_CHECK(implicit != NULL && strcmp(implicit, "1") == 0, ASSAY_INVALID_ARGUMENT,
                "NCCL_LAUNCH_ORDER_IMPLICIT: expected 1, or not set, found '%.40s': ranks may wait for each "
                "other for ever",
                implicit != NULL ? implicit : "");
    return ASSAY_OK;
}

static assay_status create_world(gpu_comm *c)
{
    gpu_comm_group *w = &c->group[ASSAY_GROUP_WORLD];
    ncclUniqueId id;
    int version = 0;
    NCCL_TRY(ncclGetVersion(&version), NULL);
    if (c->world > 1)
        ASSAY_TRY(gpu_comm_check_order(version, getenv("NCCL_LAUNCH_ORDER_IMPLICIT")));
    NCCL_TRY(ncclGetUniqueId(&id), NULL);
    NCCL_TRY(ncclCommInitRank(&w->comm, c->world, id, c->rank), NULL);
    return ASSAY_OK;
}

assay_status gpu_comm_create(gpu_comm *c, const assay_rank_env *env, const assay_grid *grid,
                             bool always_world)
{
    memset(c, 0, sizeof *c);
    for (int kind = 0; kind < ASSAY_GROUP_COUNT; kind++)
        c->group[kind].rank = -1;
    c->rank = env->rank;
    c->world = env->world;
    ASSAY_TRY(timeout_from_environment(&c->timeout_s));
    gpu_comm_group *w = &c->group[ASSAY_GROUP_WORLD];
    w->size = c->world;
    w->rank = c->rank;
    w->ranks = calloc((size_t)c->world, sizeof *w->ranks);
    ASSAY_CHECK(w->ranks, ASSAY_OUT_OF_MEMORY, "groups: %d ranks", c->world);
    for (int r = 0; r < c->world; r++)
        w->ranks[r] = r;
    if (c->world > 1 && env->nccl_comm_id[0] != '\0')
        setenv("NCCL_COMM_ID", env->nccl_comm_id, 1);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0); /* the order of communicators in flight: comm.h */
    if (c->world > 1 || always_world)
        ASSAY_TRY(create_world(c));
    if (grid)
        ASSAY_TRY(gpu_groups_create(c->group, grid, c->rank));
    return ASSAY_OK;
}

void gpu_comm_limit(gpu_comm *c, double seconds)
{
    if (seconds > 0.0)
        c->timeout_s = seconds;
}

void gpu_comm_allow_files(gpu_comm *c, double bytes)
{
    const double start = 60.0, bytes_per_s = 16.0 * 1048576.0;
    c->allowance_s = bytes > 0.0 ? start + bytes / bytes_per_s : 0.0;
}

static void print_log(gpu_comm *c);

void gpu_comm_destroy(gpu_comm *c, bool failed)
{
    if (failed && c->world > 1 && c->sequence > 0)
        print_log(c);
    gpu_groups_destroy(c->group, failed);
}

/* --- the door ----------------------------------------------------------------------------------------------- */
static assay_status nccl_type(assay_dtype dtype, ncclDataType_t *out)
{
    switch (dtype) {
    case ASSAY_F32:
        *out = ncclFloat32;
        return ASSAY_OK;
    case ASSAY_F64:
        *out = ncclFloat64;
        return ASSAY_OK;
    case ASSAY_BF16:
        *out = ncclBfloat16;
        return ASSAY_OK;
    case ASSAY_I64:
        *out = ncclInt64;
        return ASSAY_OK;
    default:
        ASSAY_FAIL(ASSAY_UNSUPPORTED, "collective: dtype %s is not supported, expected F32, F64, BF16 or I64",
                   assay_dtype_name(dtype));
    }
}

static void log_call(gpu_comm *c, const gpu_comm_call *call)
{
    c->log[c->sequence % GPU_COMM_LOG] = (gpu_comm_log){.sequence = c->sequence, .call = *call};
    c->sequence++;
}

static void print_log(gpu_comm *c)
{
    if (c->log_printed)
        return;
    c->log_printed = true;
    const int64_t first = c->sequence > GPU_COMM_LOG ? c->sequence - GPU_COMM_LOG : 0;
    fprintf(stderr, "rank %d: last collective calls (of %lld):\n", c->rank, (long long)c->sequence);
    for (int64_t i = first; i < c->sequence; i++) {
        const gpu_comm_log *l = &c->log[i % GPU_COMM_LOG];
        fprintf(stderr, "rank %d:   #%lld %s over %s, %lld x %s, root or peer %d\n", c->rank,
                (long long)l->sequence, gpu_comm_op_name(l->call.op), assay_group_name(l->call.group),
                (long long)l->call.count, assay_dtype_name(l->call.dtype), l->call.root);
    }
    fflush(stderr);
}

static ncclResult_t issue(const gpu_comm_call *k, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
    const ncclRedOp_t op = k->max ? ncclMax : ncclSum;
    const size_t n = (size_t)k->count;
    switch (k->op) {
    case GPU_COMM_ALL_REDUCE:
        return ncclAllReduce(k->send, k->recv, n, type, op, comm, stream);
    case GPU_COMM_ALL_GATHER:
        return ncclAllGather(k->send, k->recv, n, type, comm, stream);
    case GPU_COMM_REDUCE_SCATTER:
        return ncclReduceScatter(k->send, k->recv, n, type, op, comm, stream);
    case GPU_COMM_BROADCAST:
        return ncclBroadcast(k->send, k->recv, n, type, k->root, comm, stream);
    case GPU_COMM_REDUCE:
        return ncclReduce(k->send, k->recv, n, type, op, k->root, comm, stream);
    case GPU_COMM_SEND:
        return ncclSend(k->send, n, type, k->root, comm, stream);
    case GPU_COMM_RECV:
        return ncclRecv(k->recv, n, type, k->root, comm, stream);
    }
    return ncclInvalidArgument;
}

assay_status gpu_comm_enqueue(gpu_comm *c, const gpu_comm_call *call, cudaStream_t stream)
{
    const gpu_comm_group *g = &c->group[call->group];
    ASSAY_CHECK(g->rank >= 0, ASSAY_INTERNAL, "%s over %s: rank %d is in no such group",
                gpu_comm_op_name(call->op), assay_group_name(call->group), c->rank);
    ncclDataType_t type = ncclFloat32;
    ASSAY_TRY(nccl_type(call->dtype, &type));
    log_call(c, call);
    if (g->comm == NULL) {
        ASSAY_CHECK(g->size == 1 && call->op != GPU_COMM_SEND && call->op != GPU_COMM_RECV, ASSAY_INTERNAL,
                    "%s over %s: the group has %d ranks and no communicator", gpu_comm_op_name(call->op),
                    assay_group_name(call->group), g->size);
        if (call->recv != call->send && call->count > 0)
            CUDA_TRY(cudaMemcpyAsync(call->recv, call->send,
                                     (size_t)(call->count * assay_dtype_bytes(call->dtype)),
                                     cudaMemcpyDeviceToDevice, stream));
        return ASSAY_OK;
    }
    const ncclResult_t r = issue(call, type, g->comm, stream);
    if (r != ncclSuccess)
        print_log(c);
    NCCL_TRY(r, g->comm);
    return ASSAY_OK;
}

assay_status gpu_comm_group_start(gpu_comm *c)
{
    NCCL_TRY(ncclGroupStart(), c->group[ASSAY_GROUP_WORLD].comm);
    return ASSAY_OK;
}

assay_status gpu_comm_group_end(gpu_comm *c)
{
    const ncclResult_t r = ncclGroupEnd();
    if (r != ncclSuccess)
        print_log(c);
    NCCL_TRY(r, c->group[ASSAY_GROUP_WORLD].comm);
    return ASSAY_OK;
}

/* --- the watchdog ------------------------------------------------------------------------------------------- */
static assay_status check_communicators(gpu_comm *c, const char *where)
{
    for (int kind = 0; kind < ASSAY_GROUP_COUNT; kind++) {
        const gpu_comm_group *g = &c->group[kind];
        if (g->comm == NULL)
            continue;
        ncclResult_t async = ncclSuccess;
        const ncclResult_t r = ncclCommGetAsyncError(g->comm, &async);
        if (r == ncclSuccess && (async == ncclSuccess || async == ncclInProgress))
            continue;
        print_log(c);
        ASSAY_FAIL(ASSAY_NCCL, "rank %d: %s: communicator %s: %s (%s)", c->rank, where,
                   assay_group_name((assay_group)kind), ncclGetErrorString(r != ncclSuccess ? r : async),
                   ncclGetLastError(g->comm));
    }
    return ASSAY_OK;
}

/* Polls the event, or the stream when there is none. */
static assay_status wait_for(gpu_comm *c, cudaStream_t stream, cudaEvent_t event, const char *where)
{
    const double begin = assay_monotonic_s();
    const struct timespec pause = {.tv_nsec = 20000};
    for (int64_t polls = 0;; polls++) {
        const cudaError_t e = event ? cudaEventQuery(event) : cudaStreamQuery(stream);
        if (e == cudaSuccess)
            return c->world > 1 ? check_communicators(c, where) : ASSAY_OK;
        if (e != cudaErrorNotReady) {
            if (c->world > 1)
                ASSAY_TRY(check_communicators(c, where));
            const assay_status st = gpu_cuda_error(e, "cudaStreamQuery", __FILE__, __LINE__, __func__);
            return assay_context(st, "rank %d: %s", c->rank, where);
        }
        if (polls < 2000)
            continue;
        ASSAY_TRY(check_communicators(c, where));
        if (assay_monotonic_s() - begin > c->timeout_s + c->allowance_s) {
            print_log(c);
            ASSAY_FAIL(ASSAY_NCCL,
                       "rank %d: %s: the stream did not finish within %g s; a rank of one of the calls above "
                       "never came",
                       c->rank, where, c->timeout_s + c->allowance_s);
        }
        nanosleep(&pause, NULL);
    }
}

assay_status gpu_comm_wait(gpu_comm *c, cudaStream_t stream, const char *where)
{
    c->waits++;
    return wait_for(c, stream, NULL, where);
}

assay_status gpu_comm_wait_event(gpu_comm *c, cudaEvent_t event, const char *where)
{
    c->waits++;
    return wait_for(c, NULL, event, where);
}

assay_status gpu_comm_barrier(gpu_comm *c, void *scratch_f32, cudaStream_t stream)
{
    if (c->world == 1)
        return ASSAY_OK;
    const gpu_comm_call call = {.op = GPU_COMM_ALL_REDUCE,
                                .group = ASSAY_GROUP_WORLD,
                                .send = scratch_f32,
                                .recv = scratch_f32,
                                .count = 1,
                                .dtype = ASSAY_F32};
    CUDA_TRY(cudaMemsetAsync(scratch_f32, 0, sizeof(float), stream));
    ASSAY_TRY(gpu_comm_enqueue(c, &call, stream));
    return gpu_comm_wait(c, stream, "barrier");
}

/* --- uneven pieces ------------------------------------------------------------------------------------------ */
static bool counts_equal(const int64_t *counts, int n)
{
    for (int i = 1; i < n; i++)
        if (counts[i] != counts[0])
            return false;
    return true;
}

assay_status gpu_comm_all_gather_v(gpu_comm *c, assay_group group, const void *send, void *recv,
                                   const int64_t *counts, assay_dtype dtype, cudaStream_t stream)
{
    const gpu_comm_group *g = &c->group[group];
    gpu_comm_call call = {.op = GPU_COMM_ALL_GATHER,
                          .group = group,
                          .send = send,
                          .recv = recv,
                          .count = counts[0],
                          .dtype = dtype};
    if (counts_equal(counts, g->size))
        return gpu_comm_enqueue(c, &call, stream);
    char *at = recv;
    call.op = GPU_COMM_BROADCAST;
    ASSAY_TRY(gpu_comm_group_start(c));
    for (int i = 0; i < g->size; i++) {
        call.root = i;
        call.count = counts[i];
        call.recv = at;
        call.send = i == g->rank ? send : at;
        if (counts[i] > 0)
            ASSAY_TRY(gpu_comm_enqueue(c, &call, stream));
        at += counts[i] * assay_dtype_bytes(dtype);
    }
    return gpu_comm_group_end(c);
}

assay_status gpu_comm_reduce_scatter_v(gpu_comm *c, assay_group group, const void *send, void *recv,
                                       const int64_t *counts, assay_dtype dtype, cudaStream_t stream)
{
    const gpu_comm_group *g = &c->group[group];
    gpu_comm_call call = {.op = GPU_COMM_REDUCE_SCATTER,
                          .group = group,
                          .send = send,
                          .recv = recv,
                          .count = counts[0],
                          .dtype = dtype};
    if (counts_equal(counts, g->size))
        return gpu_comm_enqueue(c, &call, stream);
    const char *at = send;
    call.op = GPU_COMM_REDUCE;
    ASSAY_TRY(gpu_comm_group_start(c));
    for (int i = 0; i < g->size; i++) {
        call.root = i;
        call.count = counts[i];
        call.send = at;
        call.recv = recv; /* read by the root only */
        if (counts[i] > 0)
            ASSAY_TRY(gpu_comm_enqueue(c, &call, stream));
        at += counts[i] * assay_dtype_bytes(dtype);
    }
    return gpu_comm_group_end(c);
}

assay_status gpu_comm_all_to_all_v(gpu_comm *c, assay_group group, const void *send,
                                   const int64_t *send_counts, void *recv, const int64_t *recv_counts,
                                   assay_dtype dtype, cudaStream_t stream)
{
    const gpu_comm_group *g = &c->group[group];
    const int64_t bytes = assay_dtype_bytes(dtype);
    const char *from = send;
    char *to = recv;
    ASSAY_TRY(gpu_comm_group_start(c));
    for (int i = 0; i < g->size; i++) {
        gpu_comm_call call = {.group = group, .dtype = dtype, .root = i};
        call.op = GPU_COMM_SEND;
        call.send = from;
        call.count = send_counts[i];
        if (send_counts[i] > 0)
            ASSAY_TRY(gpu_comm_enqueue(c, &call, stream));
        call.op = GPU_COMM_RECV;
        call.recv = to;
        call.count = recv_counts[i];
        if (recv_counts[i] > 0)
            ASSAY_TRY(gpu_comm_enqueue(c, &call, stream));
        from += send_counts[i] * bytes;
        to += recv_counts[i] * bytes;
    }
    return gpu_comm_group_end(c);
}
