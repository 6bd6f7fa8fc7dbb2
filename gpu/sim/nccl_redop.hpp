/* Reductions that a program makes: a rank's scalar, and where calls find it. */
#ifndef ASSAY_SIM_NCCL_REDOP_HPP
#define ASSAY_SIM_NCCL_REDOP_HPP

#include "nccl.h"

namespace sim
{

struct nccl_factor {
    bool given;
    const void *at;         /* device memory, read when the call runs; NULL: value */
    unsigned char value[8]; /* one element */
};

/* The scalar of a reduction that `c` has made for this type; else says what is wrong. */
ncclResult_t nccl_find_factor(ncclComm *c, int op, int type, const char *what, nccl_factor *out);
/* When a communicator goes. */
void nccl_forget_factors(const ncclComm *c);

} /* namespace sim */

#endif
