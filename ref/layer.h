/* One decoder layer on lockstep tensors: attention branch, then MLP branch (dense or experts), each with its
 * residual.  `acts` keep what the backward needs; they live in the arena of the pass. */
#ifndef REF_LAYER_H
#define REF_LAYER_H

#include "ref/lockstep.h"
#include "ref/parallel/context.h"
#include "ref/parallel/expert.h"

typedef struct ref_attention_acts {
    ref_tensor whole, qkv;
    ref_tensor q, k, v, q_normed, k_normed, q_rstd, k_rstd, q_rotated, k_rotated;
    ref_tensor q_clipped, k_clipped, v_clipped; /* the same tensors again without clip_qkv */
    ref_context_acts context;
    ref_tensor o;
} ref_attention_acts;

typedef struct ref_mla_acts {
    ref_tensor x;
    ref_tensor q_compressed, q_normed, q_rstd; /* where q is compressed */
    ref_tensor q_whole, q, q_rotated;          /* whole: what the expanding linear reads */
    ref_tensor kv_combined, kv_compressed, k_pos_emb, kv_normed, kv_rstd, kv_whole, k_pos_whole, kv, k, v;
    ref_context_acts context;
    ref_tensor o;
} ref_mla_acts;

/* Dense MLP or shared expert: x -> fc2(swiglu(fc1(whole))) */
typedef struct ref_mlp_acts {
    ref_tensor whole, fc1, activated;
} ref_mlp_acts;

/* Counts of experts, summed over the ranks that share the tokens. */
typedef struct ref_balancing_acts {
    ref_tensor score_sums;         /* [1,E] of this rank's tokens */
    ref_ints aux, seq, global;     /* [1,E]; [B,E] of every sequence; [1,E] of the microbatches so far */
    int64_t tokens, global_tokens; /* of a microbatch; of the ranks that share `global` */
} ref_balancing_acts;

typedef struct ref_router_acts {
    ref_tensor tokens, gating, logits, scores, probs; /* tokens: jittered; logits: gating's, or random ones */
    ref_ints indices, routed;                         /* [T,K]: chosen, and left by the capacities */
    ref_balancing_acts balancing;
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
    ref_tensor input, input_normed, input_rstd; /* entering the mixer's branch */
    ref_tensor hidden, normed, rstd;            /* entering the MLP's branch */
    ref_tensor mixed, mlp_out;                  /* what they add, before dropout: names */
    ref_attention_acts attention;
    ref_mla_acts mla;
    ref_mlp_acts mlp;
    ref_moe_acts moe;
} ref_layer_acts;

/* out = layer(hidden); dhidden = gradient by hidden, parameter gradients accumulated.  The layer is p->layer.
 */
assay_status ref_layer_fwd(ref_pass *p, ref_layer_acts *a, ref_tensor *out, const ref_tensor *hidden);
assay_status ref_layer_bwd(ref_pass *p, ref_tensor *dhidden, const ref_layer_acts *a, const ref_tensor *dout);

/* Layers of the engine: which kinds, and the rows of their parameters.  ASSAY_INTERNAL: the table lacks one that a kind
 * needs. */
assay_status ref_layers_create(ref_engine *e);

/* Where a kind keeps the row of one of its parameters. */
typedef struct ref_kind_param {
    const char *name; /* behind "decoder.layers.N." */
    size_t offset;    /* of its int64_t in ref_layer */
    bool needed;      /* false: -1 where the model has none */
} ref_kind_param;

/* A kind of mixer or of MLP: y = f(x), both in the sequence-parallel form when sp is on.  `fwd` keeps what it
 * needs in its own member of `a`; `bwd` makes dx and accumulates parameter gradients. */
typedef struct ref_layer_kind {
    const char *name;
    const ref_kind_param *params; /* up to a row without a name */
    assay_status (*fwd)(ref_pass *p, ref_layer_acts *a, ref_tensor *y, const ref_tensor *x);
    assay_status (*bwd)(ref_pass *p, ref_tensor *dx, const ref_layer_acts *a, const ref_tensor *dy);
} ref_layer_kind;
extern const ref_layer_kind *const ref_mixers[ASSAY_MIXER_COUNT]; /* layer.c */
extern const ref_layer_kind *const ref_mlps[ASSAY_MLP_COUNT];

/* The kinds. */
extern const ref_layer_kind ref_self_attention; /* attention.c */
extern const ref_layer_kind ref_mla;            /* mla.c */
extern const ref_layer_kind ref_dense;          /* mlp.c */
extern const ref_layer_kind ref_moe;            /* moe.c */

/* What kinds are made of.  y = MLP(x); x and y are in the sequence-parallel form when sp */
typedef struct ref_mlp_desc {
    const ref_mlp_params *params;
    const char *instance; /* "mlp" or "mlp.shared_experts" */
    bool sp;
} ref_mlp_desc;
assay_status ref_mlp_fwd(ref_pass *p, ref_mlp_acts *a, ref_tensor *y, const ref_tensor *x,
                         const ref_mlp_desc *d);
/* dx named as a contribution of `instance` when that is not NULL */
assay_status ref_mlp_bwd(ref_pass *p, ref_tensor *dx, const ref_mlp_acts *a, const ref_tensor *dy,
                         const ref_mlp_desc *d, const char *instance);
assay_status ref_router_route_fwd(ref_pass *p, ref_router_acts *a, const ref_tensor *tokens);
assay_status ref_router_route_bwd(ref_pass *p, ref_tensor *dtokens, const ref_router_acts *a,
                                  const ref_tensor *dprobs);
ref_router_desc ref_router_describe(const ref_pass *p, int64_t tokens);
/* Overwrites a map of rank r's tokens [T,K] by the recorded one, if there is one. */
assay_status ref_router_replay(ref_pass *p, int r, ref_routing_map map, int64_t *indices,
                               const int64_t *chosen, int64_t k);

/* --- balancing.c */
bool ref_has_balancing(const ref_pass *p);
/* The ranks that share the tokens of one microbatch. */
assay_group ref_sharing_group(const ref_pass *p);
assay_status ref_balancing_fwd(ref_pass *p, ref_router_acts *a);
/* dlogits += the gradients of the balancing losses and of the z-loss. */
/* dlogits +=; magnitudes: of the terms, in place of the gradients */
assay_status ref_balancing_bwd(ref_pass *p, ref_tensor *dlogits, const ref_router_acts *a, bool magnitudes);

#endif
