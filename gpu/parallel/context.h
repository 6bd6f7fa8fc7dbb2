/* Context parallelism: attention of queries over the keys of all ranks of a cp group; same names as in
 * ref/parallel/context.h.  docs/LAYOUTS.md 6 has the picture.
 *
 * a->q, a->k, a->v are this rank's positions, after rotation; a->o and a->lse come out.  Every collective is an operation of
 * its own.  With cp = 1 the functions are attention itself. */
#ifndef GPU_PARALLEL_CONTEXT_H
#define GPU_PARALLEL_CONTEXT_H

#include "gpu/call.h"
#include "gpu/describe.h"

ASSAY_BEGIN_DECLS

/* Where the rank's own k and v, and its q, belong: `keep` where the backward, or core attention when it runs again, reads them, else
 * scratch. */
gpu_arena *gpu_context_own_arena(gpu_model *m, gpu_arena *keep);
gpu_arena *gpu_context_query_arena(gpu_model *m, gpu_arena *keep);
/* o = attention; what the backward reads is taken from `keep`. */
assay_status gpu_context_attention_fwd(gpu_model *m, gpu_arena *keep, const gpu_layer *l,
                                       gpu_attention_acts *a);
/* dq, dk, dv: the gradients of the rank's own positions. */
assay_status gpu_context_attention_bwd(gpu_model *m, const gpu_layer *l, gpu_attention_acts *a, gpu_value *dq,
                                       gpu_value *dk, gpu_value *dv, gpu_value *d_o);

ASSAY_END_DECLS

#endif
