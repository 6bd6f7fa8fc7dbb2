/* One call of attention, and the ways to reach the keys of the other ranks.  Internal interface of context*.c. */
#ifndef GPU_PARALLEL_CONTEXT_INTERNAL_H
#define GPU_PARALLEL_CONTEXT_INTERNAL_H

#include "gpu/parallel/context.h"

/* One call of attention: what it reads, and how much of the model's heads and positions that is. */
typedef struct gpu_context_attention {
    const char *at;
    gpu_value *q, *k, *v, *q_position, *k_position, *first_key; /* first_key NULL: rows are one document */
    int64_t seq_q, seq_k, parts; /* parts: ranks over which the heads are dealt out */
} gpu_context_attention;

/* This rank's piece of n things that tp cuts, and cp, too, where the heads are dealt out over `parts`. */
gpu_dim gpu_context_dealt(const gpu_model *m, int64_t n, int64_t parts);
/* o (or lse: d = 1) of `x`. */
gpu_value gpu_context_result(const gpu_model *m, gpu_arena *arena, const gpu_context_attention *x, int64_t d);
/* attention_fwd and attention_bwd of `x`; what comes out is described by the caller. */
assay_status gpu_context_call_fwd(gpu_model *m, const gpu_layer *l, const gpu_context_attention *x,
                                  gpu_value *o, gpu_value *lse);
assay_status gpu_context_call_bwd(gpu_model *m, const gpu_layer *l, const gpu_context_attention *x,
                                  gpu_value *d_o, gpu_value *o, gpu_value *lse, gpu_value *dq, gpu_value *dk,
                                  gpu_value *dv);

/* context_a2a.c, context_p2p.c: as gpu_context_attention_fwd and _bwd. */
assay_status gpu_context_a2a_fwd(gpu_model *m, gpu_arena *keep, const gpu_layer *l, gpu_attention_acts *a);
assay_status gpu_context_a2a_bwd(gpu_model *m, const gpu_layer *l, gpu_attention_acts *a, gpu_value *dq,
                                 gpu_value *dk, gpu_value *dv, gpu_value *d_o);
assay_status gpu_context_p2p_fwd(gpu_model *m, gpu_arena *keep, const gpu_layer *l, gpu_attention_acts *a);
assay_status gpu_context_p2p_bwd(gpu_model *m, const gpu_layer *l, gpu_attention_acts *a, gpu_value *dq,
                                 gpu_value *dk, gpu_value *dv, gpu_value *d_o);

#endif
