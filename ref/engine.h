/* State of a lockstep run: what every rank owns, and one pass (a microbatch through a pipeline stage). */
#ifndef REF_ENGINE_H
#define REF_ENGINE_H

#include "core/model/sequence.h"
#include "ref/ops.h"
#include "ref/policy.h"
#include "ref/tensor.h"

/* A parameter on one rank.  Arrays are NULL where the rank does not hold it. */
typedef struct ref_param {
    assay_shard shard;
    int64_t count;
    bool here;      /* the rank's stage has it */
    double *weight; /* [count] as the products read it; zero3: only while it is held */
    double *grad;   /* [count] main gradient, summed over the microbatches; zero2: of one backward */
    int64_t own_first, own_count; /* flat range that this rank keeps of what is sharded */
    double *own_grad;             /* [own_count] the range of grad, or with zero2 an array of its own */
    double *own_weight;           /* [own_count] the range of weight (zero3) */
    int held;                     /* units that hold the weight now (zero3) */
    double *main_param;           /* [own_count] master */
    double *states[ASSAY_MAX_OPTIMIZER_STATES]; /* [own_count] each, as assay_optimizer_states names them */
} ref_param;

/* Losses of a router: balancing of a microbatch, z, balancing of sequences, of the step so far. */
enum { REF_LOSS_AUX, REF_LOSS_Z, REF_LOSS_SEQ_AUX, REF_LOSS_GLOBAL_AUX, REF_LOSSES };

typedef struct ref_rank {
    int rank; /* in the world */
    assay_coords at;
    assay_batch_share share;
    int64_t held, most_held;     /* elements of whole weights now, and the most at once */
    assay_sequence_map sequence; /* the positions that it holds, core/model/sequence.h */
    int64_t *position;           /* [S_local*B] position in its row of each token of the region */
    ref_param *params;           /* [n_params] */
    /* What a forward leaves for the end of the step: written at the place of its microbatch (and layer), never added
     * to, so that it may run again. */
    int64_t *tokens_per_expert; /* [microbatches, layers, E] tokens sent to each expert */
    double *loss_sums;          /* [microbatches] token losses added up (last stage; equal on all tp ranks) */
    double *aux_losses; /* [microbatches, layers, REF_LOSSES] this rank's parts of the losses of a router */
    int64_t *
        global_counts; /* [microbatches, layers, E] of the auxiliary map, over all that run a microbatch at once */
} ref_rank;

/* Rows of the parameters of every kind in the table, -1 where a layer has none (ref/layer.h). */
typedef struct ref_attention_params {
    int64_t linear_qkv, linear_qkv_bias, q_layernorm, k_layernorm, linear_proj, linear_proj_bias;
} ref_attention_params;

/* linear_q_proj, or where q is compressed q_down, q_layernorm and q_up */
typedef struct ref_mla_params {
    int64_t linear_q_proj, linear_q_down_proj, q_layernorm, linear_q_up_proj;
    int64_t linear_kv_down_proj, kv_layernorm, linear_kv_up_proj, linear_proj;
} ref_mla_params;

typedef struct ref_mlp_params {
    int64_t linear_fc1, linear_fc1_bias, linear_fc2, linear_fc2_bias;
} ref_mlp_params;

typedef struct ref_moe_params {
    int64_t router, expert_bias, experts_fc1, experts_fc2;
    ref_mlp_params shared;
    int64_t shared_gate;
} ref_moe_params;

typedef struct ref_layer {
    const struct ref_layer_kind *mixer, *mlp; /* which kinds it is made of */
    int64_t input_layernorm, pre_mlp_layernorm;
    ref_attention_params attention;
    ref_mla_params mla;
    ref_mlp_params dense;
    ref_moe_params moe;
} ref_layer;

typedef struct ref_engine {
    const ref_run_config *run;
    const assay_model_spec *spec;
    const assay_model_config *config;
    assay_train_options options;     /* train_iters filled in */
    bool again;                      /* a layer goes forward a second time: it has been traced */
    struct assay_async_save *saving; /* NULL: none is under way */
    int n_states;                    /* of the optimizer */
    const char *const *state_names;
    assay_grid grid;
    int stage_ranks;                            /* ranks of one pipeline stage */
    ref_rank *ranks;                            /* [world]; stage p is ranks[p*stage_ranks ...] */
    int64_t seq, batch;                         /* S and B of one pass */
    int64_t microbatches;                       /* of a step on each stage: one dp rank's share */
    ref_layer *layer;                           /* [num_layers]; made by ref_layers_create */
    int64_t embedding, final_layernorm, output; /* rows of the table; output = embedding when tied */
    int64_t n_positions;
    double *rope_cos, *rope_sin; /* [n_positions, R/2] */
    int64_t targets;             /* of the step */
    double *logits;              /* [b,s,v] whole, NULL when not wanted */
    /* arguments of one collective: buffers and counts of the members of a group, [world] each */
    double **send, **recv;
    int64_t *counts, **integers;
} ref_engine;

/* Labels that count in the loss of a step, all microbatches and data-parallel ranks: position 0 is never a target
 * (the model shifts), -100 is ignored. */
int64_t ref_step_targets(const assay_batches *b, int64_t step);
int64_t ref_microbatch_targets(const assay_batches *b, int64_t step, int64_t microbatch);

/* What one microbatch needs while it is on a virtual stage: its place, and the memory of its activations. */
typedef struct ref_pass {
    ref_engine *e;
    int stage, chunk, n;      /* chunk: virtual stage of the pipeline stage; n ranks of the stage */
    ref_rank *ranks;          /* [n] */
    int64_t step, microbatch; /* number among this dp rank's microbatches */
    assay_phase phase;
    int64_t layer;         /* -1 outside the decoder */
    char prefix[40];       /* "decoder.layers.3." or "" */
    ref_ints position_ids; /* [T,1] of every rank: positions in the tokens' documents (ref/documents.h) */
    ref_arena arena;
} ref_pass;

assay_status ref_engine_make(ref_engine *e, const ref_run_config *run, double *const *weights);
void ref_engine_free(ref_engine *e);

/* Where the pass's microbatch and layer stand in what a rank keeps until the end of the step: [microbatches, layers]. */
int64_t ref_pass_place(const ref_pass *p);
/* Number of the microbatch in the step that rank r of the pass runs. */
int64_t ref_pass_microbatch(const ref_pass *p, int r);
/* PREFIX + instance + "." + slot */
void ref_pass_name(const ref_pass *p, const char *instance, const char *slot, char out[ASSAY_NAME]);
/* The group of `kind` whose first member is rank r of the stage, in stage-local numbers; of size 0 when r is not
 * the first member: a loop over r visits every group once. */
assay_group_shape ref_pass_group(const ref_pass *p, assay_group kind, int r);
/* Tokens of rank r in attention and tensor-parallel regions, and in its sequence-parallel piece of them. */
int64_t ref_pass_region_tokens(const ref_pass *p, int r);
int64_t ref_pass_shard_tokens(const ref_pass *p, int r);
/* Local rows of the table entry on rank r: weight, gradient. */
ref_param *ref_pass_param(const ref_pass *p, int r, int64_t param);

/* Trace (a world of 1 only; nothing happens when it is off). */
assay_status ref_trace_tensor(const ref_engine *e, const char *name, assay_phase phase, int64_t step,
                              int64_t microbatch, const int64_t *shape, int ndim, const double *x,
                              bool local);
assay_status ref_trace_ints(const ref_engine *e, const char *name, assay_phase phase, int64_t step,
                            int64_t microbatch, const int64_t *shape, int ndim, const int64_t *x, bool local);

#endif
