/* The reference engine: trains a model in lockstep (all ranks in one process, one array per rank, collectives
 * are loops). First law: the sharded reference equals the unsharded reference. */
#ifndef REF_REF_H
#define REF_REF_H

#include "core/files/batches.h"
#include "core/files/checkpoint.h"
#include "core/files/trace.h"
#include "core/model/spec.h"
#include "core/run/metrics.h"
#include "core/run/options.h"

/* How stored tensors are rounded, and the perturbation used to find thresholds of whole-model comparisons. */
typedef struct ref_policy {
    assay_precision
        precision;  /* FP64: nothing is rounded; FP32/BF16: rounded where docs/OPS.md stores a tensor */
    double perturb; /* 0 = none; else every stored activation and gradient is multiplied by
                       1 + perturb*u*xi before it is rounded, u = half ulp of its stored dtype, xi in
                       [-1,1] from Philox; optimizer states and masters too.  A world of 1 only */
    uint64_t perturb_seed;
    bool
        stores_gates; /* perturbed: the backward pass reads sigmoid(gate) as it was stored, as torch's does; our engines compute it
                          again */
} ref_policy;

/* Replayed routing: fills indices [T,K] (ascending) of the global microbatch (all rows, t = s*B + b) and
 * returns true, or returns false to let the reference choose.  layer is global. */
typedef enum {
    REF_ROUTING_CHOICE,
    REF_ROUTING_AUX, /* the auxiliary losses' map */
    REF_ROUTING_ROUTED /* what the experts' capacities leave of the choice: -1 in place of what they do not take */
} ref_routing_map;
typedef bool (*ref_routing_lookup)(void *user, int64_t step, int64_t microbatch, int64_t layer,
                                   ref_routing_map map, int64_t *indices, int64_t t, int64_t k);

/* Replayed clips (clip_qkv): fills passes [t * width], whether each value lies within the limit and lets its gradient pass, for the whole
 * global microbatch (row t = s*B + b, width: heads * head_dim of the operand), and returns true, or returns false to let the reference
 * decide.  The backward alone asks: a value at the limit is the same number on both sides of it.  layer is global. */
typedef enum { REF_CLIP_Q, REF_CLIP_K, REF_CLIP_V, REF_CLIP_OPERANDS } ref_clip_operand;
typedef bool (*ref_clip_lookup)(void *user, int64_t step, int64_t microbatch, int64_t layer,
                                ref_clip_operand operand, bool *passes, int64_t n);

/* Replayed masters: fills master [n], the whole master of row `param` of the spec's table behind the update of `step`, and returns true, or
 * returns false to let the reference keep its own; nothing else of the optimizer's state is replaced.  Not asked behind the last step. */
typedef bool (*ref_master_lookup)(void *user, int64_t step, int64_t param, double *master, int64_t n);

typedef struct ref_run_config {
    const assay_model_spec *spec;
    const assay_train_options
        *options; /* training options; model/batch/out/layout paths in it are not used */
    assay_grid grid;
    const assay_grid
        *objective; /* a run of a world of 1 under semantics megatron: the layout whose weights the objective
                                    has; NULL: its own */
    const assay_batches *batches;
    ref_policy policy;
    ref_routing_lookup routing; /* NULL = own choices */
    void *routing_user;
    ref_clip_lookup clip; /* NULL = own decisions; a world of 1 only; routing_user is its, too */
    /* NULL = own masters; as clip.  With want_states the result then holds the weights of every step, as they were updated here. */
    ref_master_lookup master;
    const assay_checkpoint
        *load; /* NULL = it begins with the weights; else with these, behind first_step steps */
    int64_t first_step;
    const char *save;          /* NULL or "" = no checkpoints; options say behind which steps */
    assay_metrics *metrics;    /* NULL = the run is not watched */
    assay_trace_writer *trace; /* NULL = off; whole (unsharded) tensors, world of 1 only */
    bool want_logits, want_grads, want_states; /* what the result holds; logits of [b,s] batches only */
    bool want_first_grads;                     /* without want_grads: those of step 0 alone */
} ref_run_config;

/* Named whole tensors in canonical (Megatron-LM) names. */
typedef struct ref_named_tensor {
    char name[ASSAY_NAME]; /* "logits", or a parameter name */
    char kind[16]; /* "logits", "grad", "weight" (the master), "exp_avg", "exp_avg_sq", "expert_bias" */
    int64_t step;
    int ndim;
    int64_t shape[ASSAY_MAX_DIMS];
    double *data;
} ref_named_tensor;
typedef struct ref_run_result {
    int64_t steps; /* arrays are [steps]; what lies before first_step was made by another run: 0 */
    int64_t first_step;
    double *loss;               /* [steps] */
    double *grad_norm;          /* [steps], before clipping (training form) */
    int64_t *num_zeros_in_grad; /* [steps] */
    double *aux_loss, *z_loss, *seq_aux_loss,
        *global_aux_loss; /* [steps]: contribution to the objective, mean over microbatches */
    int64_t layers;
    double *
        layer_losses; /* [steps,layers,ASSAY_ROUTER_LOSSES]: as Megatron-LM logs them, without the coefficient */
    int64_t most_held; /* zero3: elements of gathered weights that any rank held at once; else 0 */
    int64_t n_tensors;
    /* grads of every step (reduced, whole, before clipping); states and weights of the last (with master: weights of every step) */
    ref_named_tensor *tensors;
} ref_run_result;

/* Initial whole weights of every parameter in table order, as doubles: read from the Hugging Face folder
 * `model_dir`, or drawn (docs/CONVENTIONS.md, counter-based) from the seed draw_weights when it holds none or is
 * NULL (core/run/inputs.h refuses what contradicts); 0 where a checkpoint (load, NULL or "": none) will replace them.  weights[i] [count], owned by the caller (free each, then the array). */
assay_status ref_weights_load(const assay_model_spec *spec, const char *model_dir, const char *load,
                              int64_t draw_weights, double ***weights);
void ref_weights_free(const assay_model_spec *spec, double **weights);
/* Calls `sink` for every tensor of the folder that holds an element that is not finite, with its Hugging Face name and a text
 * that says how many and where.  Nothing is refused: a NaN checkpoint is a thing to look at. */
typedef assay_status (*ref_not_finite_sink)(void *user, const char *tensor, const char *text);
assay_status ref_weights_not_finite(const assay_model_spec *spec, double *const *weights,
                                    ref_not_finite_sink sink, void *user);
/* Standard deviation of a drawn parameter: init_method_std, and / sqrt(2 num_layers) for weights that write into
 * the residual stream; init_constant_std for what begins as 0 or 1. */
double ref_init_std(const assay_param_spec *p, const assay_model_config *c);

/* Runs batches->steps steps of training (or one forward and backward for [b,s] batches). */
assay_status ref_run(const ref_run_config *config, double *const *weights, ref_run_result *result);
const ref_named_tensor *ref_result_find(const ref_run_result *r, const char *kind, const char *name,
                                        int64_t step);
void ref_run_result_free(ref_run_result *r);

/* Splits a canonical tensor into its Hugging Face tensors / the reverse, by the parts of the spec.  `part`
 * [shape of part]. */
void ref_hf_extract(const assay_param_spec *p, int part_index, const double *canonical, double *part);
void ref_hf_insert(const assay_param_spec *p, int part_index, const double *part, double *canonical);

/* The body of `assay step --engine ref`: loads, runs, writes options->out as the stable contract says: [b,s]
 * batches: logits [b,s,v], loss [1], grad.<hf name>; training: loss, grad_norm, num_zeros_in_grad (I64, if asked for), learning_rate [steps], aux_loss and z_loss
 * [steps,layers], grad.<hf name> of the first step, weight., exp_avg., exp_avg_sq.<hf name> of the last.  All F64. */
assay_status ref_step(const assay_train_options *options);

/* Megatron-LM schedules: value at optimizer step `step` (0-based number of the step about to be made).
 * docs/SEMANTICS.md. */
double ref_learning_rate(const assay_train_options *o, int64_t step);

#endif
