/* Context parallelism: attention of queries over the keys of all ranks of a cp group.  docs/LAYOUTS.md 6 has the picture.
 *
 * q, k, v are this rank's positions, after rotation.  With cp = 1 the functions are attention itself. */
#ifndef REF_PARALLEL_CONTEXT_H
#define REF_PARALLEL_CONTEXT_H

#include "ref/lockstep.h"

/* What attention read and made, and the positions of its queries and keys on every rank. */
typedef struct ref_context_acts {
    ref_tensor q, k, v, o, lse;
    ref_seen seen;
} ref_context_acts;

/* o = attention; backward: dq, dk, dv, the gradients of the rank's own positions */
assay_status ref_context_attention_fwd(ref_pass *p, ref_context_acts *a, ref_tensor *o, const ref_tensor *q,
                                       const ref_tensor *k, const ref_tensor *v);
assay_status ref_context_attention_bwd(ref_pass *p, ref_tensor *dq, ref_tensor *dk, ref_tensor *dv,
                                       const ref_context_acts *a, const ref_tensor *dout, const ref_tensor *q,
                                       const ref_tensor *k, const ref_tensor *v);

#endif
