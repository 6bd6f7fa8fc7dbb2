/* NCCL's interface: communicators. */
#include "nccl_group.hpp"
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
    for (int look_from = c->rank + 1;;) {
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
                const int r = look_from++ % c->ranks;
                if (r != c->rank && !ready(r) && c->shm.slot(r).state != RANK_ABSENT &&
                    (c->shm.slot(r).state != RANK_PRESENT || !c->shm.alive(r))) {
                    nccl_fail(c, ncclRemoteError,
                              nccl_table(c->shm, std::string(what) + ": rank " + std::to_string(r) +
                                                     " is dead or has left"));
                    segment_close(c->shm);
                    return nccl_error(c);
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
            const std::string limit = " after " + std::to_string(static_cast<long>(now - since)) + " s";
            nccl_fail(c, ncclSystemError,
                      nccl_table(c->shm, std::string(what) + ": rank " + who + " never came" + limit));
            segment_close(c->shm);
            return nccl_error(c);
        }
        c->shm.listen(c->rank, seen, 0.005 * patience(c->ranks));
    }
}

} /* namespace */

ncclResult_t sim::nccl_join_wait(ncclComm *c)
{
    return await(
        c,
        [c](int r) {
            const bool all = c->shm.head->ready != 0;
            return r < 0 || all ? all : c->shm.slot(r).state != RANK_ABSENT && c->shm.alive(r);
        },
        "ncclCommInitRank");
}

namespace
{

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
        return nccl_say(r, "ncclCommInitRank: " + why);
    }
    nccl_order_enter(c);
    *out = c;
    return ncclSuccess;
}

void forget(ncclComm **comm)
{
    (*comm)->shm.slot((*comm)->rank).state = RANK_LEFT;
    (*comm)->shm.ring_all();
    nccl_release(*comm);
    *comm = nullptr;
}

ncclResult_t check_config(const ncclConfig_t *config)
{
    if (config == nullptr) {
        return ncclSuccess;
    }
    if (config->magic != 0xcafebeef || config->size < sizeof(size_t) + 2 * sizeof(unsigned)) {
        return nccl_say(ncclInvalidArgument, "ncclConfig_t was not initialized with NCCL_CONFIG_INITIALIZER");
    }
    if (config->size >= offsetof(ncclConfig_t, blocking) + sizeof(int) && config->blocking == 0) {
        return nccl_say(ncclInvalidUsage, "ncclConfig_t: blocking = 0 is not supported by the simulator");
    }
    return ncclSuccess;
}

ncclResult_t init_rank(ncclComm_t *comm, int nranks, uint64_t id, int rank)
{
    if (comm == nullptr) {
        return nccl_say(ncclInvalidArgument, "ncclCommInitRank: comm is NULL");
    }
    *comm = nullptr;
    if (nranks < 1 || nranks > max_ranks || rank < 0 || rank >= nranks) {
        return nccl_say(ncclInvalidArgument,
                        "ncclCommInitRank: rank " + std::to_string(rank) + " of " + std::to_string(nranks) +
                            "; expected 0 <= rank < nranks <= " + std::to_string(max_ranks));
    }
    ncclComm *c = nullptr;
    ncclResult_t r = join(&c, id, nranks, rank);
    if (r != ncclSuccess) {
        return r;
    }
    if (nccl_in_group()) {
        *comm = c;
        nccl_group_joins(c);
        return ncclSuccess;
    }
    r = nccl_join_wait(c);
    if (r != ncclSuccess) {
        forget(&c);
        return r;
    }
    *comm = c;
    return ncclSuccess;
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
        return nccl_say(ncclInvalidArgument, "ncclGetUniqueId: uniqueId is NULL");
    }
    memset(uniqueId, 0, sizeof *uniqueId);
    const char *address = getenv("NCCL_COMM_ID");
    if (address != nullptr && *address != '\0') {
        snprintf(uniqueId->internal, sizeof uniqueId->internal, "address:%s", address);
        return ncclSuccess;
    }
    memcpy(uniqueId->internal, "random:", 8);
    if (getrandom(uniqueId->internal + 8, 32, 0) != 32) {
        return nccl_say(ncclSystemError, std::string("ncclGetUniqueId: getrandom: ") + strerror(errno));
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
        return nccl_say(ncclInvalidArgument, "ncclCommInitRankScalable: no id");
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
        return nccl_say(ncclInvalidArgument, "ncclCommInitAll: comm is NULL or ndev < 1");
    }
    memset(&id, 0, sizeof id);
    memcpy(id.internal, "all:", 5);
    if (getrandom(id.internal + 8, 32, 0) != 32) {
        return nccl_say(ncclSystemError, "ncclCommInitAll: getrandom failed");
    }
    ncclResult_t r = ncclGroupStart();
    for (int i = 0; i < ndev && r == ncclSuccess; ++i) {
        if (set_current_device(devlist ? devlist[i] : i) != cudaSuccess) {
            r = nccl_say(ncclInvalidArgument, "ncclCommInitAll: no such device");
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
        return nccl_say(ncclInvalidArgument,
                        "ncclCommSplit: comm or newcomm is NULL, or the color is negative");
    }
    *newcomm = nullptr;
    ncclResult_t r = check_config(config);
    if (r != ncclSuccess) {
        return r;
    }
    if (nccl_in_group()) {
        return nccl_say(ncclInvalidUsage, "ncclCommSplit inside a group is not supported by the simulator");
    }
    if (nccl_error(comm) != ncclSuccess) {
        return nccl_say(nccl_error(comm), "ncclCommSplit: the communicator has failed before");
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
    nccl_call note = nccl_make_call(NCCL_SPLIT, 0, 0, 0, 0);
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
        m.ring_all();
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
    m.ring_all();
    if (color == NCCL_SPLIT_NOCOLOR) {
        return ncclSuccess;
    }
    const uint64_t words[3] = {comm->id, s, static_cast<uint64_t>(color)};
    r = init_rank(newcomm, size, nccl_hash(words, sizeof words, 2), rank);
    if (r == ncclSuccess) {
        (*newcomm)->order = mix(mix(comm->order, s), static_cast<uint64_t>(color));
    }
    return r;
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
        return nccl_say(ncclInvalidArgument, "ncclCommFinalize: comm is NULL");
    }
    if (comm->finalized.exchange(true)) {
        return nccl_say(ncclInvalidUsage, "ncclCommFinalize: called twice");
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
    comm->shm.ring_all();
    nccl_release(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    if (comm == nullptr || asyncError == nullptr) {
        return nccl_say(ncclInvalidArgument, "ncclCommGetAsyncError: an argument is NULL");
    }
    *asyncError = nccl_error(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    if (comm == nullptr || count == nullptr) {
        return nccl_say(ncclInvalidArgument, "ncclCommCount: an argument is NULL");
    }
    *count = comm->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    if (comm == nullptr || device == nullptr) {
        return nccl_say(ncclInvalidArgument, "ncclCommCuDevice: an argument is NULL");
    }
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    if (comm == nullptr || rank == nullptr) {
        return nccl_say(ncclInvalidArgument, "ncclCommUserRank: an argument is NULL");
    }
    *rank = comm->rank;
    return ncclSuccess;
}

} /* extern "C" */
