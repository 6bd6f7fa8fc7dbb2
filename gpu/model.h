/* The engine's model on one rank: parameters, chunks of layers, and the forward and backward pass of a
 * microbatch.
 *
 * Row order of token tensors: t = s*B + b.  docs/OPS.md section 9 names every instance.  A stage holds a list
 * of chunks (several in an interleaved pipeline).  Every parameter is read through
 * gpu_param_use and its gradient through gpu_param_grad, while its part of the model holds it (gpu_param_acquire,
 * gpu_param_release: the one place where sharded parameters are gathered and thrown away, parallel/fsdp.h).  A layer's forward needs its input and nothing else, and changes nothing but
 * its activations and the row of its microbatch in the step's expert counts: it may run again (recomputation). */
#ifndef GPU_MODEL_H
#define GPU_MODEL_H

#include "core/files/batches.h"
#include "core/model/config.h"
#include "core/model/sequence.h"
#include "core/model/spec.h"
#include "core/run/inputs.h"
#include "core/run/options.h"
#include "core/run/recompute.h"
#include "gpu/trace.h"

ASSAY_BEGIN_DECLS

typedef struct gpu_param {
    const assay_param_spec *spec;
    assay_shard shard;   /* this rank's piece */
    int64_t count;       /* elements of the piece */
    gpu_value weight;    /* par */
    gpu_value main_grad; /* F32, a piece of the gradient buffer; none for buffers */
    int bucket;          /* of its gradient buffer */
    int64_t
        first_piece; /* what this rank keeps of it: pieces [first_piece, first_piece + n_pieces) of the optimizer */
    int n_pieces;
    int acquired;    /* how often it is held now */
    bool grad_ready; /* the last weight gradient of the step is written */
    bool
        by_product; /* the first of a step is a product, which overwrites main_grad: no zeros are needed (the dry run finds it) */
} gpu_param;

/* Parameters that are held together: those of a layer, of the embedding, of the output. */
enum { GPU_UNIT_PARAMS = 32 };
typedef struct gpu_param_unit {
    int n, n_ready; /* the first n_ready get their last gradient in this unit's backward */
    gpu_param *params[GPU_UNIT_PARAMS];
} gpu_param_unit;

/* What the owner of parameters and gradients does around their use (gpu_optimizer_create). */
typedef struct gpu_param_hooks {
    /* The unit will be read next (in a backward: its gradients written, too); `next`, if any, after it. */
    assay_status (*before)(void *user, const gpu_param_unit *unit, const gpu_param_unit *next, bool reads,
                           bool backward);
    /* Nobody reads it any more. */
    assay_status (*after)(void *user, const gpu_param_unit *unit);
    /* The gradients of a microbatch are complete: the first n_ready of the unit. */
    assay_status (*reduce)(void *user, const gpu_param_unit *unit);
    /* Once in a step for each trained parameter: the gradient of the step is complete. */
    assay_status (*grad_ready)(void *user, gpu_param *p);
} gpu_param_hooks;

/* --- layers: parameters of every kind (gpu/layer.h), NULL where a layer has none ------------------------------ */
typedef struct gpu_attention_params {
    gpu_param *linear_qkv, *linear_qkv_bias, *q_layernorm, *k_layernorm, *linear_proj, *linear_proj_bias;
} gpu_attention_params;

/* linear_q_proj, or where q is compressed q_down, q_layernorm and q_up */
typedef struct gpu_mla_params {
    gpu_param *linear_q_proj, *linear_q_down_proj, *q_layernorm, *linear_q_up_proj;
    gpu_param *linear_kv_down_proj, *kv_layernorm, *linear_kv_up_proj, *linear_proj;
} gpu_mla_params;

typedef struct gpu_mlp_params {
    gpu_param *linear_fc1, *linear_fc1_bias, *linear_fc2, *linear_fc2_bias;
} gpu_mlp_params;

typedef struct gpu_moe_params {
    gpu_param *router, *expert_bias, *experts_fc1, *experts_fc2;
    gpu_mlp_params shared;
    gpu_param *shared_gate;
} gpu_moe_params;

/* Losses of a router, in the order of assay_router_loss_name. */
enum { GPU_LOSS_AUX, GPU_LOSS_Z, GPU_LOSS_SEQ_AUX, GPU_LOSS_GLOBAL_AUX, GPU_LOSSES };

typedef struct gpu_layer {
    int64_t number;                           /* global */
    const struct gpu_layer_kind *mixer, *mlp; /* which kinds it is made of */
    int64_t window;
    gpu_param_unit unit; /* all that follow */
    gpu_param *input_layernorm, *pre_mlp_layernorm;
    gpu_attention_params attention;
    gpu_mla_params mla;
    gpu_mlp_params dense;
    gpu_moe_params moe;
    int64_t *
        tokens_per_expert; /* device [n_microbatches, E]: the router's own counts, a row for each microbatch */
    int64_t *
        global_counts; /* device [n_microbatches, E]: counts of global_aux_loss up to each microbatch, or NULL */
    float *aux_losses; /* device [n_microbatches, GPU_LOSSES]: this rank's parts of the router's losses */
} gpu_layer;

/* --- what a microbatch keeps for its backward pass ---------------------------------------------------------- */
/* Where documents are packed in rows (gpu/documents.h), I64 [S,B]: the position of every token in its document, and in the row
 * that of its document's first token; the same of all positions of the cp group. */
typedef struct gpu_documents {
    gpu_value position, start, gathered_start;
} gpu_documents;

typedef struct gpu_attention_acts {
    gpu_value whole; /* what linear_qkv reads */
    gpu_value q_raw, k_raw, v_raw, q_rstd, k_rstd, q_norm, k_norm, q, k, v, o, lse;
    /* what attention read and made: q, k, v, o themselves, or what came over cp in their place */
    gpu_value queries, keys, values, attended;
    gpu_documents *documents; /* of the microbatch; NULL: rows are one document */
    gpu_value q_clip, k_clip,
        proj; /* name and dimensions only; q_norm and k_norm, too, without clip_qkv; k and v
                                        with cp */
} gpu_attention_acts;

/* Beside gpu_attention_acts, which has heads behind their rotation and all that follows. */
typedef struct gpu_mla_acts {
    gpu_value q_compressed, q_rstd, q_normed; /* where q is compressed; else q_normed is the layer's input */
    gpu_value kv_compressed, kv_rstd, kv_normed;
    gpu_value q_whole, kv_whole;                          /* what the expanding linears read */
    gpu_value q, kv_combined, k_pos_emb, k_pos_whole, kv; /* name and dimensions only */
} gpu_mla_acts;

typedef struct gpu_mlp_acts {
    gpu_value whole, fc1, act, fc2; /* whole: what linear_fc1 reads; fc2: name and dimensions only */
} gpu_mlp_acts;

enum { GPU_HALVES = 2 }; /* of the experts: gpu/parallel/halves.h */
typedef struct gpu_moe_acts {
    gpu_value tokens;                 /* token shard of the norm's output, a view where possible */
    gpu_value jittered, jitter_token; /* what gating reads: the tokens, or with jitter a copy; I64 [T] */
    gpu_value gating, logits;         /* logits: gating's, or random ones */
    gpu_value indices, probs, scores;
    gpu_value aux_counts, seq_counts,
        global_counts;               /* I64 [E], [B,E], [E]: over the ranks that share the tokens */
    int64_t global_microbatches;     /* that global_counts are of */
    gpu_value routed, routed_counts; /* indices as the capacities leave them; I64 [E] */
    gpu_value row_token, token_row, tokens_per_expert;
    gpu_value permuted, permuted_probs;                   /* rows of this rank's tokens */
    gpu_value dispatched, dispatched_probs;               /* after all_to_all; name and dimensions only */
    gpu_value gathered, gathered_probs;                   /* of all etp ranks; name and dimensions only */
    gpu_value sort_index, unsort_index;                   /* where rows are sorted (gpu/parallel/padding.h) */
    gpu_value expert_in, expert_probs;                    /* rows of the local experts */
    gpu_value local_counts;                               /* I64 [El] on the device */
    gpu_value fc1, act, fc2, unsorted, reduced, returned; /* fc2 and later: name and dimensions only */
    gpu_value unpermuted;                                 /* name and dimensions only */
    gpu_rows rows, dispatched_rows, gathered_rows, expert_rows;
    /* in the staging: [El], [ep], [ep], [etp]; the first three where the host knows the rows */
    int64_t *counts, *send_counts, *recv_counts, *etp_counts;
    int64_t *token_counts, all_tokens; /* allgather: tokens of every rank of the group [ep * etp], of all */
    gpu_mlp_acts shared;
    gpu_value shared_out, shared_gate;
    struct gpu_moe_acts *half; /* [GPU_HALVES], those of the layer */
    /* of a half: which local experts, the first row for each ep rank among this rank's [ep]; n_experts 0: it is none */
    int64_t first_expert, n_experts, *send_start;
} gpu_moe_acts;

/* What a layer keeps lies above these marks of its microbatch: the device's arena and the staging. */
typedef struct gpu_acts_mark {
    size_t arena, host;
} gpu_acts_mark;

typedef struct gpu_layer_acts {
    gpu_value input;
    gpu_value output; /* below `mark`: the next layer's input outlives these activations */
    gpu_acts_mark mark;
    gpu_value input_norm, input_rstd; /* entering the mixer */
    gpu_attention_acts attention;
    gpu_mla_acts mla;
    gpu_value hidden;         /* after the mixer's residual */
    gpu_value norm, rstd;     /* entering the MLP */
    gpu_value mixed, mlp_out; /* what mixer and MLP add, before dropout: name and dimensions only */
    gpu_mlp_acts mlp;
    gpu_moe_acts moe, half[GPU_HALVES];
} gpu_layer_acts;

typedef struct gpu_output_acts {
    gpu_value norm, rstd, whole, logits, lse; /* whole: what the output layer reads */
} gpu_output_acts;

/* One microbatch in flight on one chunk. */
typedef struct gpu_microbatch_state {
    int64_t index;      /* of this rank's microbatches */
    gpu_arena arena;    /* a piece of the step arena */
    gpu_arena host;     /* pinned staging: index arrays on their way to the device */
    cudaEvent_t staged; /* the device has taken everything from the staging */
    gpu_value ids, targets;
    gpu_documents documents;
    double loss_scale;   /* the weight of one of its targets in the objective */
    gpu_value input;     /* hidden states entering the chunk */
    gpu_value embedding; /* embedding.y: name and dimensions only */
    gpu_value embedded;  /* the same whole or cut, before dropout; likewise */
    gpu_layer_acts *layers;
    gpu_output_acts output;
} gpu_microbatch_state;

/* A virtual stage: the layers [chunk * PP + pp] of an interleaved pipeline, or all of the stage's. */
typedef struct gpu_chunk {
    int index;
    bool has_embedding, has_output; /* first and last virtual stage */
    int64_t first_layer, n_layers;  /* none where the layout leaves a virtual stage without */
    gpu_layer *layers;
    int n_in_flight;
    gpu_microbatch_state *in_flight; /* microbatch i of the rank has place i mod n_in_flight */
} gpu_chunk;

typedef struct gpu_model {
    gpu_run *run;
    const assay_model_config *config;
    const assay_grid *grid;
    const assay_train_options *options;
    assay_model_spec *spec;
    assay_coords at;
    int tp, cp, ep, etp;
    bool sp;
    assay_dtype act; /* of the residual stream */
    double eps;      /* of every norm, as the kernels take it */

    /* sizes of a microbatch on this rank */
    int64_t S, B;           /* whole sequence, local batch rows */
    int64_t B_global, row0; /* rows of the microbatch file-wide, first local row */
    bool rows_split;
    bool packed;                 /* rows of several documents */
    assay_sequence_map sequence; /* the positions of this rank */
    int64_t s0, sl;              /* this tp rank's sequence piece: rows of the local sequence */
    assay_sequence gathered;     /* those of its cp group, one rank after the other */
    int64_t *sequence_rows;      /* [tp]: rows of s of every tp rank */
    int64_t *split_rows;         /* [tp]: rows of a split of each, as its reduce-scatter is called */
    int64_t *region_rows;        /* [cp]: rows of s of every cp rank */
    int64_t *one_each;           /* [cp]: 1 */
    assay_sequence *ring;        /* [cp]: positions of the cp rank i places before this one */
    int64_t
        loss_parts; /* pieces of the positions whose loss is made piece by piece (gpu/output.h); 0: whole */
    assay_sequence *loss_positions; /* [loss_parts] */
    int64_t heads, groups;          /* local */
    bool kv_shared;             /* query groups < tp: the rank shares its key and value head (the kv group) */
    assay_sequence qkv_columns; /* then: which columns of qkv it has */
    int64_t local_experts;
    int64_t step_microbatches; /* of the step, all dp ranks */
    int64_t targets;           /* of the step */

    int64_t n_params;
    gpu_param *params;
    int n_chunks;
    gpu_chunk *chunks;
    gpu_param *word_embeddings, *final_layernorm, *output_layer; /* output_layer: the tied copy or its own */
    gpu_param_unit embedding_unit, output_unit;
    const gpu_param_hooks *hooks; /* what happens around the use of parameters */
    void *hooks_user;
    int64_t round;               /* of the backward that runs: number among this rank's microbatches */
    char misuse[2 * ASSAY_NAME]; /* a parameter used out of order; "" */

    gpu_arena state;   /* life of the engine */
    gpu_arena step;    /* life of a step: microbatches in flight and scratch */
    gpu_arena scratch; /* a piece of step: temporaries of a layer */
    gpu_arena
        dropped; /* a piece of step: what a layer's forward makes and does not keep, because it runs again */
    gpu_value cos_table, sin_table;
    gpu_value position;     /* in the row */
    gpu_value key_position; /* of `gathered`; none with cp = 1 or around a ring */
    gpu_value
        dropout_token; /* number in the microbatch of every token of the sequence piece; none without dropout */
    gpu_value *ring_position; /* [cp] of `ring`, the first is `position`; NULL but around a ring */
    gpu_value gradient[2];    /* hidden gradients between layers, taking turns */
    double *loss_sums;        /* device F64 [n_microbatches] */
    int64_t *expert_counts;   /* device: tokens_per_expert of every layer, then their global_counts */
    float *aux_losses;        /* device: likewise the layers' aux_losses */
    int64_t n_microbatches;
    struct gpu_graphs *graphs; /* of its microbatches (gpu/graph.h); NULL: launches one by one */
    assay_recompute recompute; /* which layers and modules run again before their backward */
    int host_threads;          /* processors of this rank, for work on the host; 0: one */
} gpu_model;

/* The attribute of every product that makes a weight gradient. */
#define GPU_FUSION(m) GPU_I("gradient_accumulation_fusion", (m)->options->gradient_accumulation_fusion)

/* Builds the parameter table of this rank and the layers; allocates nothing on the device. */
assay_status gpu_model_create(gpu_model *m, gpu_run *run, const assay_model_config *config,
                              const assay_grid *grid, const assay_train_options *options);
void gpu_model_destroy(gpu_model *m);
/* Sizes of a microbatch. */
assay_status gpu_model_set_batch(gpu_model *m, const assay_batches *batches, const assay_batch_share *share);
/* Takes n_in_flight of every chunk.  Finds the sizes of step and scratch by a dry run, then allocates microbatches, staging and the call arena, fills
 * rope tables and positions.  After it the context's workspace is large enough for every operation. */
assay_status gpu_model_allocate(gpu_model *m);

/* cos and sin of every position; again at the start of a traced step, so that each step's trace has their
 * producer. */
assay_status gpu_model_rope_tables(gpu_model *m);

/* The position of a row if cp cut the sequence in plain order: a planted fault. */
int64_t gpu_model_plain_position(const gpu_model *m, int64_t row);
/* Layers of this stage, all chunks. */
int64_t gpu_model_layers(const gpu_model *m);

gpu_param *gpu_model_find(gpu_model *m, const char *name);

/* --- parameters in use (params.c) --------------------------------------------------------------------------- */
/* NULL for NULL: a parameter that the model has not.  Only while it is held, and its gradient only before it is ready:
 * else the next release or the end of the step fails with its name. */
gpu_value *gpu_param_use(gpu_model *m, gpu_param *p);
/* NULL: it is frozen. */
gpu_value *gpu_param_grad(gpu_model *m, gpu_param *p);
/* Holds the parameters of a part of the model around its forward or backward, in pairs; `next` (or NULL) is held next. */
assay_status gpu_param_acquire(gpu_model *m, const gpu_param_unit *u, const gpu_param_unit *next);
/* ASSAY_INTERNAL: not held, or one was used out of order. */
assay_status gpu_param_release(gpu_model *m, const gpu_param_unit *u);
assay_status gpu_param_unit_add(gpu_param_unit *u, gpu_param *p);
/* Before a backward that reads none of its parameters writes their gradients (the embedding). */
assay_status gpu_grads_open(gpu_model *m, const gpu_param_unit *u);
/* The weight gradients of a microbatch are written. */
assay_status gpu_grads_reduce(gpu_model *m, const gpu_param_unit *u);
/* The last weight gradients of the step are written: says so to the hooks.  ASSAY_INTERNAL: twice in a step. */
assay_status gpu_grads_ready(gpu_model *m, const gpu_param_unit *u);
void gpu_params_begin_step(gpu_model *m);
/* After the last backward: nothing is held, every trained parameter was ready once. */
assay_status gpu_params_check_step(const gpu_model *m);

/* --- weights (weights.c) ------------------------------------------------------------------------------ */
/* Calls `put` for every parameter of this rank; `read` gives it elements [first, first + n) of the rank's piece as F32 on the
 * host, which nobody else reads or holds: from the folder's safetensors, drawn from the seed of the options, or zeros when a
 * checkpoint will be loaded (core/run/inputs.h). */
typedef assay_status (*gpu_weight_read)(void *from, int64_t first, int64_t n, float *out);
typedef assay_status (*gpu_weight_sink)(void *user, gpu_param *p, gpu_weight_read read, void *from);
assay_status gpu_model_weights(gpu_model *m, const char *folder, gpu_weight_sink put, void *user);
/* --- drawn weights (weights_draw.c) -------------------------------------------------------------------- */
/* out [n] = elements [first, first + n) of the shard of a parameter, drawn from the seed at their global indices; std:
 * gpu_init_std.  The bits do not depend on the number of threads. */
void gpu_draw_part(const assay_param_spec *spec, const assay_shard *s, double std, uint64_t seed, int threads,
                   int64_t first, int64_t n, float *out);
/* Flat index, in the global tensor, of the first column of a local row (all dimensions but the last). */
int64_t gpu_shard_row_start(const assay_shard *s, int64_t row);
/* Whether this rank is the lowest of those that hold a piece of the parameter: the one that says what is said once. */
bool gpu_param_speaks(const gpu_model *m, const assay_param_spec *spec);
/* Counts x[0, n) into f: start + i is the flat index of x[i]. */
void gpu_count_not_finite(const float *x, int64_t n, int64_t start, assay_not_finite *f);
/* Standard deviation of a drawn parameter: init_method_std, and / sqrt(2 num_layers) for weights that write into
 * the residual stream; init_constant_std for what begins as 0 or 1. */
double gpu_init_std(const assay_param_spec *spec, const assay_model_config *config);

ASSAY_END_DECLS

#endif
