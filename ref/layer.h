/* One decoder layer on lockstep tensors: attention branch, then MLP branch (dense or experts), each with its
 * residual.  `acts` keep what the backward needs; they live in the arena of the pass. */
#ifndef REF_LAYER_H
#define REF_LAYER_H

#include "ref/lockstep.h"
#include "ref/parallel/expert.h"

typedef struct ref_attention_acts {
    ref_tensor hidden, normed, rstd, whole, qkv;
    ref_tensor q, k, v, q_normed, k_normed, q_rstd, k_rstd, q_rotated, k_rotated;
    ref_tensor o, lse;
} ref_attention_acts;

/* Dense MLP or shared expert: x -> fc2(swiglu(fc1(whole))) */
typedef struct ref_mlp_acts {
    ref_tensor whole, fc1, activated;
} ref_mlp_acts;

typedef struct ref_router_acts {
    ref_tensor tokens, logits, scores, probs;
    ref_ints indices, aux_counts; /* [T,K]; [1,E] summed over the aux group */
    int64_t aux_tokens;           /* tokens of the aux group */
} ref_router_acts;

typedef struct ref_moe_acts {
    ref_tensor tokens; /* this rank's token shard */
    ref_router_acts router;
    ref_dispatch dispatch;
    ref_tensor rows, row_probs; /* sorted by local expert */
    ref_tensor fc1, activated, expert_out;
    ref_mlp_acts shared;
    ref_tensor shared_y, shared_gate;
} ref_moe_acts;

typedef struct ref_layer_acts {
    ref_attention_acts attention;
    ref_tensor hidden, normed, rstd; /* entering the MLP branch */
    ref_mlp_acts mlp;
    ref_moe_acts moe;
} ref_layer_acts;

/* out = layer(hidden); dhidden = gradient by hidden, parameter gradients accumulated.  The layer is p->layer.
 */
assay_status ref_layer_fwd(ref_pass *p, ref_layer_acts *a, ref_tensor *out, const ref_tensor *hidden);
assay_status ref_layer_bwd(ref_pass *p, ref_tensor *dhidden, const ref_layer_acts *a, const ref_tensor *dout);

/* The parts of it (attention.c, mlp.c, moe.c, router.c). */
assay_status ref_attention_branch(ref_pass *p, ref_attention_acts *a, ref_tensor *out,
                                  const ref_tensor *hidden);
assay_status ref_attention_branch_bwd(ref_pass *p, ref_tensor *dhidden, const ref_attention_acts *a,
                                      const ref_tensor *dout);
/* y = MLP(x); x and y are in the sequence-parallel form when sp */
typedef struct ref_mlp_weights {
    int64_t fc1, fc1_bias, fc2, fc2_bias;
    const char *instance; /* "mlp" or "mlp.shared_experts" */
    bool sp;
} ref_mlp_weights;
assay_status ref_mlp_fwd(ref_pass *p, ref_mlp_acts *a, ref_tensor *y, const ref_tensor *x,
                         const ref_mlp_weights *w);
/* dx named as a contribution of `instance` when that is not NULL */
assay_status ref_mlp_bwd(ref_pass *p, ref_tensor *dx, const ref_mlp_acts *a, const ref_tensor *dy,
                         const ref_mlp_weights *w, const char *instance);
assay_status ref_moe_fwd(ref_pass *p, ref_moe_acts *a, ref_tensor *y, const ref_tensor *x);
assay_status ref_moe_bwd(ref_pass *p, ref_tensor *dx, const ref_moe_acts *a, const ref_tensor *dy);
assay_status ref_router_step(ref_pass *p, ref_router_acts *a, const ref_tensor *tokens);
assay_status ref_router_step_bwd(ref_pass *p, ref_tensor *dtokens, const ref_router_acts *a,
                                 const ref_tensor *dprobs);

#endif
