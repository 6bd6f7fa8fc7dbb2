/* One decoder layer: attention or another mixer, then an MLP, each with its norm and residual; and the kinds that it is
 * made of, each in the file of its name.  Same names as in ref/layer.h; `_fwd` keeps what `_bwd` needs in its
 * activations.  docs/OPS.md section 9 names every instance. */
#ifndef GPU_LAYER_H
#define GPU_LAYER_H

#include "gpu/call.h"
#include "gpu/describe.h"

ASSAY_BEGIN_DECLS

/* --- layer.c ------------------------------------------------------------------------------------------------ */
/* Finds the parameters of layer `number` that its two kinds have.  ASSAY_INTERNAL: the table lacks one that a kind needs. */
assay_status gpu_layer_create(gpu_model *m, gpu_layer *l, int64_t number);
/* The norm that reads a layer's output: the next layer's first, or the last one.  y and rstd are made; its parameters are acquired
 * before it runs. */
typedef struct gpu_next_norm {
    char at[ASSAY_NAME];
    gpu_param *gamma;
    gpu_value *y, *rstd;
    const gpu_param_unit *unit, *behind; /* behind: what is read after them */
} gpu_next_norm;
/* input is set, output made; everything else is made in the microbatch's arena and staging.  entered: the layer before has run the
 * first norm.  next: runs that norm with the last residual (NULL: nobody's).  May run again: the same input gives the same bits, and
 * nothing else has changed. */
assay_status gpu_layer_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a,
                           bool entered, const gpu_next_norm *next);
/* Selective recomputation: runs the modules again whose activations were not kept, in the microbatch's arena. */
assay_status gpu_layer_again(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a);
/* Where a forward makes what belongs to any of these modules (bits of core/run/recompute.h) and the backward reads: the microbatch's
 * arena, or what is given back with the layer because a module runs again. */
gpu_arena *gpu_module_arena(gpu_model *m, gpu_microbatch_state *mb, unsigned modules);
/* dx is overwritten with the gradient of a->input. */
assay_status gpu_layer_bwd(gpu_model *m, gpu_layer *l, gpu_layer_acts *a, gpu_value *dx, gpu_value *dy);

/* Where a kind keeps one of its parameters. */
typedef struct gpu_kind_param {
    const char *name; /* behind "decoder.layers.N." */
    size_t offset;    /* of its gpu_param * in gpu_layer */
    bool needed;      /* false: NULL where the model has none */
} gpu_kind_param;

/* A kind of mixer or of MLP: y = f(x), both of the residual stream's shape.  `fwd` keeps what it needs in its own member of
 * `a`; `bwd` makes dx, the gradient of x, and adds to parameter gradients; `again` makes once more what `fwd` put into
 * gpu_module_arena, in its order. */
typedef struct gpu_layer_kind {
    const char *name;
    const gpu_kind_param *params; /* up to a row without a name */
    assay_status (*fwd)(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a, gpu_value *y,
                        gpu_value *x);
    assay_status (*bwd)(gpu_model *m, gpu_layer *l, gpu_layer_acts *a, gpu_value *dx, gpu_value *dy);
    assay_status (*again)(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a);
} gpu_layer_kind;
extern const gpu_layer_kind *const gpu_mixers[ASSAY_MIXER_COUNT]; /* layer.c */
extern const gpu_layer_kind *const gpu_mlps[ASSAY_MLP_COUNT];

/* --- the kinds ---------------------------------------------------------------------------------------------- */
extern const gpu_layer_kind gpu_self_attention; /* attention.c */
extern const gpu_layer_kind gpu_mla;            /* mla.c */
extern const gpu_layer_kind gpu_dense;          /* mlp.c */
extern const gpu_layer_kind gpu_moe;            /* moe.c */

/* --- what kinds are made of --------------------------------------------------------------------------------- */
/* A SwiGLU MLP, column- then row-parallel (mlp.c): the dense one of a layer, or the shared expert. */
typedef struct gpu_mlp_desc {
    const gpu_mlp_params *params;
    int64_t width;    /* of the activation */
    bool sp;          /* x and y are pieces of the sequence */
    unsigned module;  /* of recomputation, that the MLP is; 0 */
    bool only_branch; /* dx is all of x's gradient, no contribution to be added to others */
    const char *gather, *linear_fc1, *activation, *linear_fc2, *reduce, *reduce_grad; /* instances */
} gpu_mlp_desc;
/* y in `arena` */
assay_status gpu_mlp_fwd(gpu_model *m, gpu_microbatch_state *mb, const gpu_mlp_desc *d, gpu_mlp_acts *a,
                         gpu_arena *arena, gpu_value *y, gpu_value *x);
/* What the forward reads of x, once more. */
assay_status gpu_mlp_input_again(gpu_model *m, gpu_microbatch_state *mb, const gpu_mlp_desc *d,
                                 gpu_mlp_acts *a, gpu_value *x);
assay_status gpu_mlp_bwd(gpu_model *m, const gpu_mlp_desc *d, gpu_mlp_acts *a, gpu_value *dx, gpu_value *dy,
                         const gpu_value *x);

/* balancing.c: balancing losses of a router and its z-loss */
bool gpu_has_balancing(const gpu_model *m);
/* The ranks that share the tokens of one microbatch. */
assay_group gpu_sharing_group(const gpu_model *m);
enum { GPU_BALANCINGS = 3 }; /* aux_loss with the z-loss, seq_aux_loss, global_aux_loss */
/* What the balancing losses of a microbatch are made of; with seq_aux_loss those of its sequences. */
typedef struct gpu_balancing {
    gpu_value scores, indices, counts, sums, z, seq_counts, seq_sums;
} gpu_balancing;
enum { GPU_STATISTICS = 2 };
/* The calls that make it, for gpu_call or as parts of gpu_call_fused.  Returns how many there are. */
int gpu_balancing_statistics(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *a, gpu_balancing *b,
                             gpu_call_args part[GPU_STATISTICS]);
/* The losses, of the statistics. */
assay_status gpu_balancing_fwd(gpu_model *m, gpu_microbatch_state *mb, const gpu_layer *l, gpu_moe_acts *a,
                               gpu_balancing *s);
/* The totals of global_aux_loss lie in the step's table, in the row of microbatch `index`: written, never added to, so that a forward that
 * runs again changes nothing.  Leaves a at that row, as that microbatch's forward does. */
void gpu_balancing_at(const gpu_model *m, const gpu_layer *l, gpu_moe_acts *a, int64_t index);
/* Their gradients as parts of gpu_call_fused: part[i] adds one to dlogits[i] and leaves dlogits[i + 1], of which the last is the gradient of
 * the logits.  Returns how many there are. */
int gpu_balancing_bwd(gpu_model *m, gpu_moe_acts *a, gpu_call_args part[GPU_BALANCINGS],
                      gpu_value dlogits[GPU_BALANCINGS + 1]);
/* router.c: a->tokens -> logits, indices, probs, scores; auxiliary losses */
const char *gpu_score_word(const gpu_model *m);
assay_status gpu_router_route_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_moe_acts *a);
/* dprobs -> gradient of the router's weight; dtokens (instance mlp.router.gating, slot dx) */
assay_status gpu_router_route_bwd(gpu_model *m, gpu_layer *l, gpu_moe_acts *a, gpu_value *dtokens,
                                  gpu_value *dprobs);
/* sums I64 [layers,E] on the device: counts of the step by the stage's layers, this rank's microbatches added up; the host waits once for
 * all of them.  Every microbatch has gone forward. */
assay_status gpu_step_tokens_per_expert(gpu_model *m, int64_t *sums);
/* sum on the host: the losses of the layer's router of the step likewise, this rank's parts, coefficients in them. */
assay_status gpu_step_aux_losses(gpu_model *m, const gpu_layer *l, double sum[GPU_LOSSES]);

ASSAY_END_DECLS

#endif
