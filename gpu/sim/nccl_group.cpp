/* Groups of calls, the checks of their arguments, and the work that they put on streams. */
#include "nccl_group.hpp"
#include "schedule.hpp"

#include <stdio.h>
#include <string.h>

namespace sim
{

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
              : nccl_say(ncclUnhandledCudaError, "the stream refuses work: " +
                                                     std::string(cudaGetErrorString(cudaPeekAtLastError())));
}

/* Calls of a group run at once: what one of them receives may not be what another sends or receives.  A message to the rank itself from
 * and to one place moves nothing. */
ncclResult_t check_apart(const std::vector<grouped> &calls)
{
    for (const grouped &into : calls) {
        const nccl_call &a = into.task.call;
        const uintptr_t from = reinterpret_cast<uintptr_t>(into.task.recv),
                        to = from + a.count * nccl_type_bytes(a.type);
        for (const grouped &other : calls) {
            const nccl_call &b = other.task.call;
            if (a.func != NCCL_RECV || !nccl_is_message(b) || &into == &other) {
                continue;
            }
            const bool sends = b.func == NCCL_SEND;
            const uintptr_t p = reinterpret_cast<uintptr_t>(sends ? other.task.send : other.task.recv);
            const bool itself = sends && into.comm == other.comm && a.root == into.comm->rank &&
                                b.root == a.root && p == from;
            if (itself || p >= to || from >= p + b.count * nccl_type_bytes(b.type)) {
                continue;
            }
            char text[320];
            snprintf(text, sizeof text,
                     "ncclGroupEnd: ncclRecv from rank %d (%llu elements at %p) and %s rank %d (%llu "
                     "elements at %p) overlap: the calls "
                     "of a group run at once",
                     a.root, static_cast<unsigned long long>(a.count), reinterpret_cast<void *>(from),
                     sends ? "ncclSend to" : "ncclRecv from", b.root,
                     static_cast<unsigned long long>(b.count), reinterpret_cast<void *>(p));
            return nccl_say(ncclInvalidUsage, text);
        }
    }
    return ncclSuccess;
}

ncclResult_t flush(std::vector<grouped> &calls)
{
    ncclResult_t result = check_apart(calls);
    if (result != ncclSuccess) {
        calls.clear();
        return result;
    }
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
        return nccl_say(ncclInvalidArgument, std::string(what) + ": the count overflows");
    }
    if (bytes == 0 || memory_reachable(p, bytes, device) != 0) {
        return ncclSuccess;
    }
    char text[160];
    snprintf(text, sizeof text, "%s: %s %p: %zu bytes are not inside one block of memory of device %d", what,
             which, p, bytes, device);
    return nccl_say(ncclInvalidArgument, text);
}

} /* namespace */

/* What a failing call inside a group says is also what ncclGroupEnd says. */
ncclResult_t nccl_say(ncclResult_t code, const std::string &text)
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
void nccl_group_joins(ncclComm *comm)
{
    group().joining.push_back(comm);
}

bool nccl_in_group(void)
{
    return group().depth > 0;
}

ncclResult_t nccl_submit(ncclComm *c, nccl_call call, const nccl_request &r, cudaStream_t stream)
{
    const char *what = nccl_func_name(call.func);
    group_state &g = group();
    const size_t element = nccl_type_bytes(call.type);
    const bool reduces =
        call.func == NCCL_ALL_REDUCE || call.func == NCCL_REDUCE || call.func == NCCL_REDUCE_SCATTER;
    if (c == nullptr) {
        return nccl_say(ncclInvalidArgument, std::string(what) + ": comm is NULL");
    }
    if (nccl_error(c) != ncclSuccess) {
        return nccl_say(nccl_error(c), std::string(what) + ": the communicator has failed before");
    }
    if (c->finalized) {
        return nccl_say(ncclInvalidUsage, std::string(what) + ": the communicator is finalized");
    }
    if (element == 0) {
        return nccl_say(ncclInvalidArgument,
                        std::string(what) + ": data type " + std::to_string(call.type) + " is unknown");
    }
    nccl_factor factor = {};
    if (reduces && (call.op < 0 || call.op >= ncclNumOps)) {
        const ncclResult_t found = nccl_find_factor(c, call.op, call.type, what, &factor);
        if (found != ncclSuccess) {
            return found;
        }
        call.op = ncclNumOps; /* the ranks' numbers of it are their own */
    }
    if (call.root < 0 || call.root >= c->ranks) {
        return nccl_say(ncclInvalidArgument, std::string(what) + ": rank " + std::to_string(call.root) +
                                                 " is not in a communicator of " + std::to_string(c->ranks));
    }
    ncclResult_t e = check_pointer(what, "sendbuff", r.send, r.send_elements, element, c->device);
    e = e == ncclSuccess ? check_pointer(what, "recvbuff", r.recv, r.recv_elements, element, c->device) : e;
    if (e != ncclSuccess) {
        return e;
    }
    int device = c->device;
    if (stream != nullptr && stream_device(stream, &device) == cudaSuccess && device != c->device) {
        return nccl_say(ncclInvalidArgument, std::string(what) + ": the stream belongs to device " +
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
    t.factor = factor;
    g.calls.push_back(grouped{c, stream, t});
    return g.depth > 0 ? ncclSuccess : flush(g.calls);
}
nccl_call nccl_make_call(nccl_func func, size_t count, int type, int op, int root)
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

} /* namespace sim */

using namespace sim;

extern "C" {

ncclResult_t ncclGroupStart(void)
{
    ++group().depth;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    group_state &g = group();
    if (g.depth == 0) {
        return nccl_say(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    }
    if (--g.depth > 0) {
        return ncclSuccess;
    }
    ncclResult_t result = g.failed;
    g.failed = ncclSuccess;
    std::vector<ncclComm *> joining;
    joining.swap(g.joining);
    for (ncclComm *c : joining) {
        const ncclResult_t r = nccl_join_wait(c);
        result = result == ncclSuccess ? r : result;
    }
    if (result != ncclSuccess) {
        g.calls.clear();
        return result;
    }
    return flush(g.calls);
}

} /* extern "C" */
