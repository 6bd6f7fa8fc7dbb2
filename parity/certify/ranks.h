/* Requests of collectives: which numbers of ranks, which sizes, where they lie.  Private to parity/certify/. */
#ifndef PARITY_CERTIFY_RANKS_H
#define PARITY_CERTIFY_RANKS_H

#include "core/model/ops.h"
#include "parity/certify/certify.h"

/* 1, 2, 3, 4, 5, 8; ends with 0 */
extern const int certify_ranks[];
/* Folder of the requests and answers for n ranks. */
void certify_ranks_path(char out[ASSAY_PATH], const char *work, int n);
/* All calls of one dtype and n ranks as a trace of n ranks, in that folder. */
assay_status certify_ranks_request(const char *work, assay_dtype dtype, int n, const certify_plan *plan,
                                   int64_t *n_calls);
/* The symbols n and m of a rank's call of a collective of n ranks; sent: elements of its send, -1: it has none. */
assay_status certify_bind_received(assay_op_binding *binding, const assay_trace_op *asked, int rank, int n,
                                   int64_t sent);
/* {"ranks":[..],"elements":[..],...}: what is added to the plan of a collective. */
void certify_ranks_plan(json_t *plan);

#endif
