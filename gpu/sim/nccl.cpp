/* NCCL's interface: communicators, argument checks, groups. */
#include "nccl_comm.hpp"
#include "schedule.hpp"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

using namespace sim;

namespace
{

struct grouped {
    ncclComm *comm;
    cudaStream_t stream;
    nccl_task task;
};

struct group_state {
    int depth;
    ncclResult_t failed;
    std::vector<grouped> calls;
    std::vector<ncclComm *> joining; /* communicators whose other ranks are still awaited */
};

group_state &group()
{
    static thread_local group_state g;
    return g;
}

/* What a failing call inside a group says is also what ncclGroupEnd says. */
ncclResult_t say(ncclResult_t code, const std::string &text)
{
    group_state &g = group();
    nccl_remember(text);
    if (code != ncclSuccess) {
        assay_sim_report("nccl", "%s", text.c_str());
        if (g.depth > 0 && g.failed == ncclSuccess) {
            g.failed = code;
        }
    }
    return code;
}

uint64_t id_hash(const ncclUniqueId &id)
{
    return nccl_hash(id.internal, sizeof id.internal, 1);
}

/* --- waiting on the host ------------------------------------------------------------------------------------ */

/* Waits until ready(comm), while this process's streams go on; peers that die or never come end the wait. */
template <class F> ncclResult_t await(ncclComm *c, F ready, const char *what)
{
    const double since = now_seconds();
    double looked = since;
    int look_from = 0;
    for (;;) {
        const uint32_t seen = c->shm.head->bell.load();
        if (ready(-1)) {
            return ncclSuccess;
        }
        if (nccl_error(c) != ncclSuccess) {
            return nccl_error(c);
        }
        assay_sim_poll();
        const double now = now_seconds();
        if (now - looked > 0.02 * patience(c->ranks)) {
            looked = now;
            for (int i = 0; i < c->ranks && i < looked_at; ++i) {
                const int r = (c->rank + 1 + look_from++) % c->ranks;
                if (r != c->rank && !ready(r) && c->shm.slot(r).state != RANK_ABSENT &&
                    (c->shm.slot(r).state != RANK_PRESENT || !c->shm.alive(r))) {
                    nccl_fail(c, ncclRemoteError,
                              nccl_table(c->shm, std::string(what) + ": rank " + std::to_string(r) +
                                                     " is dead or has left"));
                    segment_close(c->shm);
                    return ncclRemoteError;
                }
            }
        }
        if (now - since > config().nccl_timeout_s) {
            std::string who;
            for (int r = 0; r < c->ranks; ++r) {
                if (!ready(r)) {
                    who += (who.empty() ? "" : ", ") + std::to_string(r);
                }
            }
            char limit[64];
            snprintf(limit, sizeof limit, " after %.0f s", now - since);
            nccl_fail(c, ncclSystemError,
                      nccl_table(c->shm, std::string(what) + ": rank " + who + " never came" + limit));
            segment_close(c->shm);
            return ncclSystemError;
        }
        c->shm.listen(seen, 0.005 * patience(c->ranks));
    }
}

ncclResult_t join(ncclComm **out, uint64_t id, int ranks, int rank)
{
    std::string why;
    ncclComm *c = new ncclComm{};
    c->rank = rank;
    c->ranks = ranks;
    c->device = current_device();
    c->id = id;
    c->uses = 1;
    const ncclResult_t r = segment_join(&c->shm, id, ranks, rank, &why);
    if (r != ncclSuccess) {
        delete c;
        return say(r, "ncclCommInitRank: " + why);
    }
    nccl_order_enter(c);
    *out = c;
    return ncclSuccess;
}

ncclResult_t join_wait(ncclComm *c)
{
    return await(
        c,
        [c](int r) {
            const bool all = c->shm.head->ready != 0;
            return r < 0 || all ? all : c->shm.slot(r).state != RANK_ABSENT && c->shm.alive(r);
        },
        "ncclCommInitRank");
}

void forget(ncclComm **comm)
{
    (*comm)->shm.slot((*comm)->rank).state = RANK_LEFT;
    (*comm)->shm.ring();
    nccl_release(*comm);
    *comm = nullptr;
}

ncclResult_t check_config(const ncclConfig_t *config)
{
    if (config == nullptr) {
        return ncclSuccess;
    }
    if (config->magic != 0xcafebeef || config->size < sizeof(size_t) + 2 * sizeof(unsigned)) {
        return say(ncclInvalidArgument, "ncclConfig_t was not initialized with NCCL_CONFIG_INITIALIZER");
    }
    if (config->size >= offsetof(ncclConfig_t, blocking) + sizeof(int) && config->blocking == 0) {
        return say(ncclInvalidUsage, "ncclConfig_t: blocking = 0 is not supported by the simulator");
    }
    return ncclSuccess;
}

ncclResult_t init_rank(ncclComm_t *comm, int nranks, uint64_t id, int rank)
{
    if (comm == nullptr) {
        return say(ncclInvalidArgument, "ncclCommInitRank: comm is NULL");
    }
    *comm = nullptr;
    if (nranks < 1 || nranks > max_ranks || rank < 0 || rank >= nranks) {
        return say(ncclInvalidArgument, "ncclCommInitRank: rank " + std::to_string(rank) + " of " +
                                            std::to_string(nranks) +
                                            "; expected 0 <= rank < nranks <= " + std::to_string(max_ranks));
    }
    ncclComm *c = nullptr;
    ncclResult_t r = join(&c, id, nranks, rank);
    if (r != ncclSuccess) {
        return r;
    }
    if (group().depth > 0) {
        *comm = c;
        group().joining.push_back(c); /* awaited in ncclGroupEnd, so that one thread can be several ranks */
        return ncclSuccess;
    }
    r = join_wait(c);
    if (r != ncclSuccess) {
        forget(&c);
        return r;
    }
    *comm = c;
    return ncclSuccess;
}

/* --- enqueueing --------------------------------------------------------------------------------------------- */

ncclResult_t enqueue(ncclComm *c, const std::vector<cudaStream_t> &streams, nccl_work *w)
{
    cudaEvent_t event = nullptr;
    bool ok = true;
    /* A group over several streams is one piece of work that starts after all of them and that all of them
     * wait for. */
    if (streams.size() > 1) {
        ok = cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess;
        for (size_t i = 1; i < streams.size() && ok; ++i) {
            ok = cudaEventRecord(event, streams[i]) == cudaSuccess &&
                 cudaStreamWaitEvent(streams[0], event, 0) == cudaSuccess;
        }
    }
    w->comm = c;
    w->ticket = c->works_issued.fetch_add(1);
    c->uses.fetch_add(1);
    const assay_sim_work work = {"nccl", nccl_work_step, nccl_work_wait, nccl_work_destroy, w};
    ok = assay_sim_enqueue(streams[0], &work) == cudaSuccess && ok;
    if (streams.size() > 1 && ok) {
        ok = cudaEventRecord(event, streams[0]) == cudaSuccess;
        for (size_t i = 1; i < streams.size() && ok; ++i) {
            ok = cudaStreamWaitEvent(streams[i], event, 0) == cudaSuccess;
        }
    }
    if (event != nullptr) {
        cudaEventDestroy(event);
    }
    return ok ? ncclSuccess
              : say(ncclUnhandledCudaError,
                    "the stream refuses work: " + std::string(cudaGetErrorString(cudaPeekAtLastError())));
}

ncclResult_t flush(std::vector<grouped> &calls)
{
    ncclResult_t result = ncclSuccess;
    while (!calls.empty()) {
        ncclComm *c = calls.front().comm;
        std::vector<cudaStream_t> streams;
        std::vector<grouped> rest;
        nccl_work *w = new nccl_work{};
        for (const grouped &g : calls) {
            if (g.comm != c) {
                rest.push_back(g);
                continue;
            }
            bool known = false;
            for (cudaStream_t s : streams) {
                known = known || s == g.stream;
            }
            if (!known) {
                streams.push_back(g.stream);
            }
            (nccl_is_message(g.task.call) ? w->messages : w->collectives).push_back(g.task);
        }
        ncclResult_t r = ncclInvalidUsage;
        if (nccl_order_agrees(c, w->collectives)) {
            r = enqueue(c, streams, w);
        } else {
            delete w;
        }
        result = result == ncclSuccess ? r : result;
        calls.swap(rest);
    }
    return result;
}

ncclResult_t check_pointer(const char *what, const char *which, const void *p, size_t elements,
                           size_t element, int device)
{
    size_t bytes;
    if (__builtin_mul_overflow(elements, element, &bytes)) {
        return say(ncclInvalidArgument, std::string(what) + ": the count overflows");
    }
    if (bytes == 0 || memory_reachable(p, bytes, device) != 0) {
        return ncclSuccess;
    }
    char text[160];
    snprintf(text, sizeof text, "%s: %s %p: %zu bytes are not inside one block of memory of device %d", what,
             which, p, bytes, device);
    return say(ncclInvalidArgument, text);
}

struct request {
    const void *send;
    void *recv;
    size_t send_elements, recv_elements; /* that must be addressable */
};

ncclResult_t submit(ncclComm *c, nccl_call call, const request &r, cudaStream_t stream)
{
    const char *what = nccl_func_name(call.func);
    group_state &g = group();
    const size_t element = nccl_type_bytes(call.type);
    const bool reduces =
        call.func == NCCL_ALL_REDUCE || call.func == NCCL_REDUCE || call.func == NCCL_REDUCE_SCATTER;
    if (c == nullptr) {
        return say(ncclInvalidArgument, std::string(what) + ": comm is NULL");
    }
    if (nccl_error(c) != ncclSuccess) {
        return say(nccl_error(c), std::string(what) + ": the communicator has failed before");
    }
    if (c->finalized) {
        return say(ncclInvalidUsage, std::string(what) + ": the communicator is finalized");
    }
    if (element == 0) {
        return say(ncclInvalidArgument,
                   std::string(what) + ": data type " + std::to_string(call.type) + " is unknown");
    }
    if (reduces && (call.op < 0 || call.op >= ncclNumOps)) {
        return say(ncclInvalidArgument, std::string(what) + ": reduction " + std::to_string(call.op) +
                                            " is unknown; supported are sum, prod, max, min, avg");
    }
    if (call.root < 0 || call.root >= c->ranks) {
        return say(ncclInvalidArgument, std::string(what) + ": rank " + std::to_string(call.root) +
                                            " is not in a communicator of " + std::to_string(c->ranks));
    }
    ncclResult_t e = check_pointer(what, "sendbuff", r.send, r.send_elements, element, c->device);
    e = e == ncclSuccess ? check_pointer(what, "recvbuff", r.recv, r.recv_elements, element, c->device) : e;
    if (e != ncclSuccess) {
        return e;
    }
    int device = c->device;
    if (stream != nullptr && stream_device(stream, &device) == cudaSuccess && device != c->device) {
        return say(ncclInvalidArgument, std::string(what) + ": the stream belongs to device " +
                                            std::to_string(device) + ", the communicator to device " +
                                            std::to_string(c->device));
    }
    if (nccl_is_message(call)) {
        if (call.count == 0) {
            return ncclSuccess; /* NCCL drops empty messages */
        }
    } else {
        call.number = c->calls_issued++;
    }
    c->shm.slot(c->rank).issued.set(call);
    nccl_task t = {};
    t.call = call;
    t.send = static_cast<const unsigned char *>(r.send);
    t.recv = static_cast<unsigned char *>(r.recv);
    g.calls.push_back(grouped{c, stream, t});
    return g.depth > 0 ? ncclSuccess : flush(g.calls);
}

nccl_call make_call(nccl_func func, size_t count, int type, int op, int root)
{
    nccl_call c;
    memset(&c, 0, sizeof c); /* compared as bytes */
    c.func = func;
    c.count = count;
    c.type = type;
    c.op = op;
    c.root = root;
    return c;
}

} /* namespace */

extern "C" {

ncclResult_t ncclGetVersion(int *version)
{
    if (version == nullptr) {
        return ncclInvalidArgument;
    }
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
    if (uniqueId == nullptr) {
        return say(ncclInvalidArgument, "ncclGetUniqueId: uniqueId is NULL");
    }
    memset(uniqueId, 0, sizeof *uniqueId);
    const char *address = getenv("NCCL_COMM_ID");
    if (address != nullptr && *address != '\0') {
        snprintf(uniqueId->internal, sizeof uniqueId->internal, "address:%s", address);
        return ncclSuccess;
    }
    memcpy(uniqueId->internal, "random:", 8);
    if (getrandom(uniqueId->internal + 8, 32, 0) != 32) {
        return say(ncclSystemError, std::string("ncclGetUniqueId: getrandom: ") + strerror(errno));
    }
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error",
                                        "a CUDA call failed",
                                        "a system call or another system resource failed",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "a remote process failed or has left",
                                        "in progress"};
    return result >= 0 && result < ncclNumResults ? texts[result] : "unknown NCCL result";
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
    return init_rank(comm, nranks, id_hash(commId), rank);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config)
{
    const ncclResult_t r = check_config(config);
    return r == ncclSuccess ? init_rank(comm, nranks, id_hash(commId), rank) : r;
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId *commIds, ncclConfig_t *config)
{
    if (nId < 1 || commIds == nullptr) {
        return say(ncclInvalidArgument, "ncclCommInitRankScalable: no id");
    }
    const ncclResult_t r = check_config(config);
    return r == ncclSuccess
               ? init_rank(newcomm, nranks, nccl_hash(commIds, static_cast<size_t>(nId) * sizeof *commIds, 1),
                           myrank)
               : r;
}

ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist)
{
    ncclUniqueId id;
    const int before = current_device();
    if (comm == nullptr || ndev < 1) {
        return say(ncclInvalidArgument, "ncclCommInitAll: comm is NULL or ndev < 1");
    }
    memset(&id, 0, sizeof id);
    memcpy(id.internal, "all:", 5);
    if (getrandom(id.internal + 8, 32, 0) != 32) {
        return say(ncclSystemError, "ncclCommInitAll: getrandom failed");
    }
    ncclResult_t r = ncclGroupStart();
    for (int i = 0; i < ndev && r == ncclSuccess; ++i) {
        if (set_current_device(devlist ? devlist[i] : i) != cudaSuccess) {
            r = say(ncclInvalidArgument, "ncclCommInitAll: no such device");
        } else {
            r = ncclCommInitRank(&comm[i], ndev, id, i);
        }
    }
    const ncclResult_t end = ncclGroupEnd();
    set_current_device(before);
    return r == ncclSuccess ? end : r;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
    if (comm == nullptr || newcomm == nullptr || (color < 0 && color != NCCL_SPLIT_NOCOLOR)) {
        return say(ncclInvalidArgument, "ncclCommSplit: comm or newcomm is NULL, or the color is negative");
    }
    *newcomm = nullptr;
    ncclResult_t r = check_config(config);
    if (r != ncclSuccess) {
        return r;
    }
    if (group().depth > 0) {
        return say(ncclInvalidUsage, "ncclCommSplit inside a group is not supported by the simulator");
    }
    if (nccl_error(comm) != ncclSuccess) {
        return say(nccl_error(comm), "ncclCommSplit: the communicator has failed before");
    }
    const uint64_t s = comm->splits++;
    const segment &m = comm->shm;
    rank_slot &me = m.slot(comm->rank);
    const auto reached = [&m, comm](std::atomic<uint64_t> rank_slot::*counter, uint64_t value) {
        return [&m, comm, counter, value](int only) {
            for (int q = 0; q < comm->ranks; ++q) {
                if ((only < 0 || only == q) && (m.slot(q).*counter).load(std::memory_order_acquire) < value) {
                    return false;
                }
            }
            return true;
        };
    };
    nccl_call note = make_call(NCCL_SPLIT, 0, 0, 0, 0);
    note.number = s;
    me.issued.set(note);
    me.running.set(note);
    if (s > 0) {
        r = await(comm, reached(&rank_slot::split_done, s - 1), "ncclCommSplit");
    }
    if (r == ncclSuccess) {
        me.split_color[s & 1] = color;
        me.split_key[s & 1] = key;
        me.split_posted.store(s + 1, std::memory_order_release);
        m.ring();
        r = await(comm, reached(&rank_slot::split_posted, s + 1), "ncclCommSplit");
    }
    if (r != ncclSuccess) {
        return r;
    }
    int size = 0, rank = 0;
    for (int q = 0; q < comm->ranks; ++q) {
        const int k = m.slot(q).split_key[s & 1];
        if (m.slot(q).split_color[s & 1] == color) {
            ++size;
            rank += k < key || (k == key && q < comm->rank);
        }
    }
    me.split_done.store(s + 1, std::memory_order_release);
    me.running.set(nccl_call{});
    m.ring();
    if (color == NCCL_SPLIT_NOCOLOR) {
        return ncclSuccess;
    }
    const uint64_t words[3] = {comm->id, s, static_cast<uint64_t>(color)};
    return init_rank(newcomm, size, nccl_hash(words, sizeof words, 2), rank);
}

/* Everything this rank has issued on the communicator has run, or failed. */
static ncclResult_t finish(ncclComm *comm)
{
    const int before = current_device();
    set_current_device(comm->device);
    const cudaError_t error = cudaDeviceSynchronize();
    set_current_device(before);
    if (nccl_error(comm) != ncclSuccess) {
        return nccl_error(comm);
    }
    return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (comm == nullptr) {
        return say(ncclInvalidArgument, "ncclCommFinalize: comm is NULL");
    }
    if (comm->finalized.exchange(true)) {
        return say(ncclInvalidUsage, "ncclCommFinalize: called twice");
    }
    return finish(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm == nullptr) {
        return ncclSuccess;
    }
    const ncclResult_t r = finish(comm);
    forget(&comm);
    return r;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (comm == nullptr) {
        return ncclSuccess;
    }
    comm->aborted = true;
    comm->shm.slot(comm->rank).state = RANK_ABORTED;
    comm->shm.ring();
    nccl_release(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    if (comm == nullptr || asyncError == nullptr) {
        return say(ncclInvalidArgument, "ncclCommGetAsyncError: an argument is NULL");
    }
    *asyncError = nccl_error(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    if (comm == nullptr || count == nullptr) {
        return say(ncclInvalidArgument, "ncclCommCount: an argument is NULL");
    }
    *count = comm->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    if (comm == nullptr || device == nullptr) {
        return say(ncclInvalidArgument, "ncclCommCuDevice: an argument is NULL");
    }
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    if (comm == nullptr || rank == nullptr) {
        return say(ncclInvalidArgument, "ncclCommUserRank: an argument is NULL");
    }
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    return cudaMalloc(ptr, size) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void *ptr)
{
    return cudaFree(ptr) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
    if (comm == nullptr || buff == nullptr || size == 0 || handle == nullptr) {
        return say(ncclInvalidArgument, "ncclCommRegister: an argument is NULL or zero");
    }
    *handle = buff;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    (void)handle;
    return comm ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    (void)op;
    (void)scalar;
    (void)datatype;
    (void)residence;
    (void)comm;
    return say(ncclInvalidUsage, "ncclRedOpCreatePreMulSum is not supported by the simulator");
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    (void)op;
    (void)comm;
    return say(ncclInvalidUsage,
               "ncclRedOpDestroy: user-defined reductions are not supported by the simulator");
}

ncclResult_t ncclCommShrink(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int)
{
    return say(ncclInvalidUsage, "ncclCommShrink is not supported by the simulator");
}

ncclResult_t ncclCommRevoke(ncclComm_t, int)
{
    return say(ncclInvalidUsage, "ncclCommRevoke is not supported by the simulator");
}

ncclResult_t ncclCommWindowRegister(ncclComm_t, void *, size_t, ncclWindow_t *, int)
{
    return say(ncclInvalidUsage, "ncclCommWindowRegister is not supported by the simulator");
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t)
{
    return say(ncclInvalidUsage, "ncclCommWindowDeregister is not supported by the simulator");
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *)
{
    return say(ncclInvalidUsage, "ncclGroupSimulateEnd is not supported by the simulator");
}

void ncclResetDebugInit(void)
{
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return submit(comm, make_call(NCCL_ALL_REDUCE, count, datatype, op, 0),
                  {sendbuff, recvbuff, count, count}, stream);
}

ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    const bool mine = comm && comm->rank == root;
    return submit(comm, make_call(NCCL_REDUCE, count, datatype, op, root),
                  {sendbuff, recvbuff, count, mine ? count : 0}, stream);
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    const bool mine = comm && comm->rank == root;
    return submit(comm, make_call(NCCL_BROADCAST, count, datatype, 0, root),
                  {sendbuff, recvbuff, mine ? count : 0, count}, stream);
}

ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream)
{
    return ncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    size_t all = 0;
    if (__builtin_mul_overflow(recvcount, static_cast<size_t>(comm ? comm->ranks : 1), &all)) {
        return say(ncclInvalidArgument, "ncclReduceScatter: the count overflows");
    }
    return submit(comm, make_call(NCCL_REDUCE_SCATTER, recvcount, datatype, op, 0),
                  {sendbuff, recvbuff, all, recvcount}, stream);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream)
{
    size_t all = 0;
    if (__builtin_mul_overflow(sendcount, static_cast<size_t>(comm ? comm->ranks : 1), &all)) {
        return say(ncclInvalidArgument, "ncclAllGather: the count overflows");
    }
    return submit(comm, make_call(NCCL_ALL_GATHER, sendcount, datatype, 0, 0),
                  {sendbuff, recvbuff, sendcount, all}, stream);
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return submit(comm, make_call(NCCL_SEND, count, datatype, 0, peer), {sendbuff, nullptr, count, 0},
                  stream);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return submit(comm, make_call(NCCL_RECV, count, datatype, 0, peer), {nullptr, recvbuff, 0, count},
                  stream);
}

/* The three collectives that are groups of messages; piece r of a buffer belongs to rank r. */
static ncclResult_t exchange(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                             cudaStream_t stream, int send_to, int recv_from, const char *what)
{
    if (comm == nullptr || nccl_type_bytes(type) == 0) {
        return say(ncclInvalidArgument, std::string(what) + ": comm is NULL or the data type is unknown");
    }
    const size_t piece = count * nccl_type_bytes(type);
    ncclResult_t r = ncclGroupStart();
    for (int q = 0; q < comm->ranks && r == ncclSuccess; ++q) {
        const size_t at = static_cast<size_t>(q) * piece;
        if (send_to == -1 || send_to == q) {
            r = ncclSend(static_cast<const char *>(send) + (send_to == -1 ? at : 0), count, type, q, comm,
                         stream);
        }
        if (r == ncclSuccess && (recv_from == -1 || recv_from == q)) {
            r = ncclRecv(static_cast<char *>(recv) + (recv_from == -1 ? at : 0), count, type, q, comm,
                         stream);
        }
    }
    const ncclResult_t end = ncclGroupEnd();
    return r == ncclSuccess ? end : r;
}

ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                          ncclComm_t comm, cudaStream_t stream)
{
    return exchange(sendbuff, recvbuff, count, datatype, comm, stream, -1, -1, "ncclAlltoAll");
}

ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    if (comm == nullptr || root < 0 || root >= comm->ranks) {
        return say(ncclInvalidArgument, "ncclGather: comm is NULL or root is not in it");
    }
    return exchange(sendbuff, recvbuff, count, datatype, comm, stream, root, comm->rank == root ? -1 : -2,
                    "ncclGather");
}

ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                         int root, ncclComm_t comm, cudaStream_t stream)
{
    if (comm == nullptr || root < 0 || root >= comm->ranks) {
        return say(ncclInvalidArgument, "ncclScatter: comm is NULL or root is not in it");
    }
    return exchange(sendbuff, recvbuff, count, datatype, comm, stream, comm->rank == root ? -1 : -2, root,
                    "ncclScatter");
}

ncclResult_t ncclGroupStart(void)
{
    ++group().depth;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    group_state &g = group();
    if (g.depth == 0) {
        return say(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    }
    if (--g.depth > 0) {
        return ncclSuccess;
    }
    ncclResult_t result = g.failed;
    g.failed = ncclSuccess;
    std::vector<ncclComm *> joining;
    joining.swap(g.joining);
    for (ncclComm *c : joining) {
        const ncclResult_t r = join_wait(c);
        result = result == ncclSuccess ? r : result;
    }
    if (result != ncclSuccess) {
        g.calls.clear();
        return result;
    }
    return flush(g.calls);
}

} /* extern "C" */
