/* ncclRedOpCreatePreMulSum: a sum whose terms are multiplied, each rank's by its own scalar.  nccl.h declares the arithmetic. */
#include "nccl_redop.hpp"

#include "nccl_group.hpp"

#include <iterator>
#include <map>
#include <mutex>
#include <string.h>

namespace sim
{
namespace
{

struct user_op {
    ncclComm_t comm;
    nccl_factor factor;
    int type;
};

/* A number is never given twice, so that one of another communicator, or a destroyed one, is known as such. */
std::mutex guard;
std::map<int, user_op> ops;
int next_op = ncclNumOps;

} /* namespace */

ncclResult_t nccl_find_factor(ncclComm *c, int op, int type, const char *what, nccl_factor *out)
{
    std::lock_guard<std::mutex> hold(guard);
    const auto found = ops.find(op);
    if (found == ops.end() || found->second.comm != c) {
        return nccl_say(ncclInvalidArgument,
                        std::string(what) + ": reduction " + std::to_string(op) +
                            (op >= ncclNumOps && op < next_op
                                 ? " was destroyed, or made for another communicator"
                                 : " is unknown; supported are sum, prod, max, min, avg and those of "
                                   "ncclRedOpCreatePreMulSum"));
    }
    if (found->second.type != type) {
        return nccl_say(ncclInvalidArgument, std::string(what) + ": the reduction was made for " +
                                                 nccl_type_name(found->second.type) + ", the data is " +
                                                 nccl_type_name(type));
    }
    *out = found->second.factor;
    return ncclSuccess;
}

void nccl_forget_factors(const ncclComm *c)
{
    std::lock_guard<std::mutex> hold(guard);
    for (auto at = ops.begin(); at != ops.end();) {
        at = at->second.comm == c ? ops.erase(at) : std::next(at);
    }
}

} /* namespace sim */

using namespace sim;

extern "C" {

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    const char *what = "ncclRedOpCreatePreMulSum";
    const size_t bytes = nccl_type_bytes(datatype);
    if (op == nullptr || scalar == nullptr || comm == nullptr) {
        return nccl_say(ncclInvalidArgument, std::string(what) + ": an argument is NULL");
    }
    if (bytes == 0) {
        return nccl_say(ncclInvalidArgument, std::string(what) + ": data type " +
                                                 std::to_string(static_cast<int>(datatype)) + " is unknown");
    }
    if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate) {
        return nccl_say(ncclInvalidArgument, std::string(what) + ": residence " +
                                                 std::to_string(static_cast<int>(residence)) + " is unknown");
    }
    user_op made = {comm, {}, datatype};
    if (residence == ncclScalarHostImmediate) {
        memcpy(made.factor.value, scalar, bytes);
    } else if (memory_reachable(scalar, bytes, comm->device) == 0) {
        return nccl_say(ncclInvalidArgument,
                        std::string(what) + ": the scalar is not in memory of the communicator's device");
    } else {
        made.factor.at = scalar;
    }
    made.factor.given = true;
    std::lock_guard<std::mutex> hold(guard);
    *op = static_cast<ncclRedOp_t>(next_op);
    ops[next_op++] = made;
    return ncclSuccess;
}

/* Calls that were made with it keep their scalar. */
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    const int number = static_cast<int>(op);
    {
        std::lock_guard<std::mutex> hold(guard);
        const auto found = ops.find(number);
        if (found != ops.end() && found->second.comm == comm) {
            ops.erase(found);
            return ncclSuccess;
        }
    }
    return nccl_say(ncclInvalidArgument,
                    "ncclRedOpDestroy: reduction " + std::to_string(number) +
                        (number < ncclNumOps ? " is built in" : " is none of this communicator's"));
}

} /* extern "C" */
