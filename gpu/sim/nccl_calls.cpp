/* NCCL's interface: reductions, gathers, messages, and what the simulator does not support. */
#include "nccl_group.hpp"

using namespace sim;

extern "C" {

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
        return nccl_say(ncclInvalidArgument, "ncclCommRegister: an argument is NULL or zero");
    }
    *handle = buff;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    (void)handle;
    return comm ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommShrink(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int)
{
    return nccl_say(ncclInvalidUsage, "ncclCommShrink is not supported by the simulator");
}

ncclResult_t ncclCommRevoke(ncclComm_t, int)
{
    return nccl_say(ncclInvalidUsage, "ncclCommRevoke is not supported by the simulator");
}

ncclResult_t ncclCommWindowRegister(ncclComm_t, void *, size_t, ncclWindow_t *, int)
{
    return nccl_say(ncclInvalidUsage, "ncclCommWindowRegister is not supported by the simulator");
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t)
{
    return nccl_say(ncclInvalidUsage, "ncclCommWindowDeregister is not supported by the simulator");
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *)
{
    return nccl_say(ncclInvalidUsage, "ncclGroupSimulateEnd is not supported by the simulator");
}

void ncclResetDebugInit(void)
{
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return nccl_submit(comm, nccl_make_call(NCCL_ALL_REDUCE, count, datatype, op, 0),
                       {sendbuff, recvbuff, count, count}, stream);
}

ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    const bool mine = comm && comm->rank == root;
    return nccl_submit(comm, nccl_make_call(NCCL_REDUCE, count, datatype, op, root),
                       {sendbuff, recvbuff, count, mine ? count : 0}, stream);
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    const bool mine = comm && comm->rank == root;
    return nccl_submit(comm, nccl_make_call(NCCL_BROADCAST, count, datatype, 0, root),
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
        return nccl_say(ncclInvalidArgument, "ncclReduceScatter: the count overflows");
    }
    return nccl_submit(comm, nccl_make_call(NCCL_REDUCE_SCATTER, recvcount, datatype, op, 0),
                       {sendbuff, recvbuff, all, recvcount}, stream);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream)
{
    size_t all = 0;
    if (__builtin_mul_overflow(sendcount, static_cast<size_t>(comm ? comm->ranks : 1), &all)) {
        return nccl_say(ncclInvalidArgument, "ncclAllGather: the count overflows");
    }
    return nccl_submit(comm, nccl_make_call(NCCL_ALL_GATHER, sendcount, datatype, 0, 0),
                       {sendbuff, recvbuff, sendcount, all}, stream);
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return nccl_submit(comm, nccl_make_call(NCCL_SEND, count, datatype, 0, peer),
                       {sendbuff, nullptr, count, 0}, stream);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return nccl_submit(comm, nccl_make_call(NCCL_RECV, count, datatype, 0, peer),
                       {nullptr, recvbuff, 0, count}, stream);
}

/* The three collectives that are groups of messages; piece r of a buffer belongs to rank r. */
static ncclResult_t exchange(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                             cudaStream_t stream, int send_to, int recv_from, const char *what)
{
    if (comm == nullptr || nccl_type_bytes(type) == 0) {
        return nccl_say(ncclInvalidArgument,
                        std::string(what) + ": comm is NULL or the data type is unknown");
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
        return nccl_say(ncclInvalidArgument, "ncclGather: comm is NULL or root is not in it");
    }
    return exchange(sendbuff, recvbuff, count, datatype, comm, stream, root, comm->rank == root ? -1 : -2,
                    "ncclGather");
}

ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                         int root, ncclComm_t comm, cudaStream_t stream)
{
    if (comm == nullptr || root < 0 || root >= comm->ranks) {
        return nccl_say(ncclInvalidArgument, "ncclScatter: comm is NULL or root is not in it");
    }
    return exchange(sendbuff, recvbuff, count, datatype, comm, stream, comm->rank == root ? -1 : -2, root,
                    "ncclScatter");
}

} /* extern "C" */
