/* What the files of NCCL's interface share: failures that are told, groups, calls that are checked and put on a stream. */
#ifndef ASSAY_SIM_NCCL_GROUP_HPP
#define ASSAY_SIM_NCCL_GROUP_HPP

#include "nccl_comm.hpp"

#include <string>

namespace sim
{

/* What a call reads and writes. */
struct nccl_request {
    const void *send;
    void *recv;
    size_t send_elements, recv_elements; /* that must be addressable */
};

/* Reports and remembers a failure; inside a group ncclGroupEnd says it, too.  Returns `code`. */
ncclResult_t nccl_say(ncclResult_t code, const std::string &text);
/* Between ncclGroupStart and ncclGroupEnd of this thread. */
bool nccl_in_group(void);
/* The other ranks of this communicator are awaited in ncclGroupEnd, so that one thread can be several ranks. */
void nccl_group_joins(ncclComm *comm);
/* Checks a call and puts it on the stream, at the end of the group inside one. */
ncclResult_t nccl_submit(ncclComm *comm, nccl_call call, const nccl_request &r, cudaStream_t stream);
nccl_call nccl_make_call(nccl_func func, size_t count, int type, int op, int root);
/* nccl.cpp: waits until every rank of a communicator has joined; NCCL's error when one never does. */
ncclResult_t nccl_join_wait(ncclComm *comm);

} /* namespace sim */

#endif
