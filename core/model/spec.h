/* Model spec: the parameter table.  One row per parameter: canonical (Megatron-LM) name, global shape, how
 * each layout axis cuts it, how it is drawn, and from which Hugging Face tensors it is made.  Both engines
 * walk the same table; it holds words and index geometry, never element values. */
#ifndef ASSAY_CORE_SPEC_H
#define ASSAY_CORE_SPEC_H

#include "core/model/grid.h"
#include "core/model/shard.h"

ASSAY_BEGIN_DECLS

/* How a parameter is drawn.  NORMAL: standard deviation init_method_std; OUTPUT_NORMAL, the weights that write
 * into the residual stream: init_method_std / sqrt(2 num_layers), which each engine computes by itself; ONE, ZERO: init_constant_std,
 * around 1 and 0. */
typedef enum { ASSAY_INIT_NORMAL, ASSAY_INIT_OUTPUT_NORMAL, ASSAY_INIT_ONE, ASSAY_INIT_ZERO } assay_init;

/* A flat range of a parameter, or a whole matrix (an optimizer that needs all of it, like Muon). */
typedef enum { ASSAY_OWN_FLAT, ASSAY_OWN_MATRIX } assay_ownership;

/* A tensor on disk and the row ranges it fills.  Viewing the canonical tensor as [rows, row_length] (all
 * leading dimensions folded; a 1-D tensor [n] has n rows of length 1), canonical rows [dst, dst+rows) equal
 * rows [src, src+rows) of a tensor of `shape` (folded likewise, same row_length).  The pieces of all
 * parts tile the canonical rows exactly once, and those of one part tile its own rows exactly once: weights
 * and gradients go through the same table in both directions. */
typedef struct assay_hf_piece {
    int64_t dst, src, rows;
} assay_hf_piece;
typedef struct assay_hf_part {
    char name[ASSAY_NAME];
    int ndim;
    int64_t shape[3];
    int n_pieces;
    assay_hf_piece *pieces;
} assay_hf_part;
/* Elements of a row, and rows, of a part viewed as [rows, row_length]. */
int64_t assay_hf_part_row_length(const assay_hf_part *part);
int64_t assay_hf_part_rows(const assay_hf_part *part);

typedef struct assay_param_spec {
    char name[ASSAY_NAME]; /* decoder.layers.3.self_attention.linear_qkv.weight */
    int ndim;
    int64_t shape[ASSAY_MAX_DIMS];
    assay_axis axis[ASSAY_MAX_DIMS]; /* which axis cuts each dimension */
    int blocks[ASSAY_MAX_DIMS]; /* the dimension is `blocks` equal blocks, each cut by itself (2 for [gate;
                                   up]) */
    int64_t query_groups; /* linear_qkv: dimension 0 is this many equal blocks, cut over tp by blocks; ... */
    int64_t
        kv_rows; /* ... the last of a block are its key and value head: ranks that share a block cut the rows
                             before them and all hold these (the kv group).  0: nothing of the kind */
    assay_init init;
    int64_t layer;       /* global decoder layer, -1 outside the decoder */
    bool on_first_stage; /* layer -1: embedding */
    bool on_last_stage;  /* layer -1: final norm, output layer; a tied embedding is on both */
    bool is_expert;      /* reduced over EDP, not DP_CP */
    bool trained;        /* false: a buffer (expert_bias) */
    bool frozen;         /* a weight that gets no gradient (assay_spec_freeze); ask assay_param_needs_grad */
    assay_ownership ownership; /* what a distributed optimizer gives to one rank */
    bool partial_over_tp; /* replicated over tp, but each tp rank sees its own tokens or heads: the gradient
                           * is summed over tp.  Norm weights [H] when sequence_parallel; q/k norm whenever tp
                           * > 1; router and shared-expert gate whenever tp > 1 (an MoE layer works on token
                           * shards).  NOT the biases of linear_proj and linear_fc2: every tp rank computes
                           * their whole gradient (docs/OPS.md 9) */
    bool sequence_parallel_only; /* partial_over_tp holds only when sequence_parallel is on */
    bool no_weight_decay;        /* 1-D parameters */
    int n_parts;
    assay_hf_part *parts;
} assay_param_spec;

typedef struct assay_model_spec {
    assay_model_config config;
    int64_t n_params;
    assay_param_spec *params;
} assay_model_spec;

/* Builds the table.  Names in it:
 *   embedding.word_embeddings.weight [V,H]
 *   decoder.layers.L.input_layernorm.weight [H]
 *   decoder.layers.L.self_attention.linear_qkv.weight [(A+2G)D,H]  .bias    rows: for each query group its
 * A/G query heads, then its key head, then its value head (Megatron order)
 *   decoder.layers.L.self_attention.q_layernorm.weight [D], k_layernorm.weight [D]; with
 * qk_layernorm_full_width [A*D], [G*D]
 *   decoder.layers.L.self_attention.linear_proj.weight [H,A*D]  .bias [H]
 *   decoder.layers.L.pre_mlp_layernorm.weight [H]
 *   decoder.layers.L.mlp.linear_fc1.weight [2F,H]  .bias   rows [gate; up]
 *   decoder.layers.L.mlp.linear_fc2.weight [H,F]  .bias
 *   decoder.layers.L.mlp.router.weight [E,H], mlp.router.expert_bias [E] (buffer)
 *   decoder.layers.L.mlp.experts.linear_fc1.weight [E,2Fm,H], mlp.experts.linear_fc2.weight [E,H,Fm]
 *   decoder.layers.L.mlp.shared_experts.linear_fc1.weight [2Fs,H], linear_fc2.weight [H,Fs], gate_weight
 * [1,H] decoder.final_layernorm.weight [H] output_layer.weight [V,H] (absent when tied) */
assay_status assay_spec_build(const assay_model_config *c, assay_model_spec **out);
void assay_spec_destroy(assay_model_spec *spec);
/* "PATTERN,...": weights that get no gradient, by fnmatch over names: canonical ones, or those of the model's folder where a pattern
 * names all that a parameter is made of.  The last pattern that names a weight holds; one that begins with '!' trains it again.
 * "": nothing.  ASSAY_INVALID_ARGUMENT: a pattern that names no weight; nothing is left to train.  ASSAY_UNSUPPORTED: one that names
 * a part of a parameter, as q_proj of linear_qkv.  Buffers are never frozen. */
assay_status assay_spec_freeze(assay_model_spec *spec, const char *patterns);
/* NULL when there is none of that name. */
const assay_param_spec *assay_spec_find(const assay_model_spec *spec, const char *name);

/* Chunk (virtual stage) of the rank's pipeline stage that holds the parameter, -1 when the rank does not. */
int assay_param_chunk(const assay_param_spec *p, const assay_grid *g, const assay_model_config *c, int rank);
/* Whether `rank` holds the parameter (pipeline stage), and its piece. */
bool assay_param_on_rank(const assay_param_spec *p, const assay_grid *g, const assay_model_config *c,
                         int rank);
/* Elements of the whole parameter. */
int64_t assay_param_elements(const assay_param_spec *p);
assay_status assay_param_shard(const assay_param_spec *p, const assay_grid *g, int rank, assay_shard *out);
/* Gradient of a replicated parameter must be summed over tp on this grid. */
bool assay_param_sum_over_tp(const assay_param_spec *p, const assay_grid *g);
/* Elements of the rank's piece, which has `count`, before those that its kv group shares: [result, count) is held by
 * every rank of the group, and its gradient is summed over it.  `count` where nothing is shared. */
int64_t assay_param_shared_from(const assay_param_spec *p, const assay_grid *g, int64_t count);
/* Whether the parameter has a gradient, optimizer states and a part in the norm.  The one place that says so. */
bool assay_param_needs_grad(const assay_param_spec *p);
/* Group over which the gradient is reduced: DP_CP or EDP. */
assay_group assay_param_reduce_group(const assay_param_spec *p);
/* The same group in two steps: ranks that share one copy of a sharded gradient or state (reduce-scatter, gather), and
 * ranks that hold the same shard of other copies (all-reduce).  Without HSDP the first is the whole group, the second
 * has one rank. */
assay_group assay_param_shard_group(const assay_param_spec *p, const assay_grid *g);
assay_group assay_param_replica_group(const assay_param_spec *p);
/* Exactly one rank of every set of replicas is the first. */
bool assay_param_is_first_replica(const assay_param_spec *p, const assay_grid *g, const assay_model_config *c,
                                  int rank);
/* Whether this rank's copy counts in the global gradient norm: the first replica's of what has a gradient. */
bool assay_param_counts_in_norm(const assay_param_spec *p, const assay_grid *g, const assay_model_config *c,
                                int rank);
/* How many elements of its piece, from the first on, a rank counts: all, none, or (not the first rank of a kv group)
 * those that the kv group does not share. */
int64_t assay_param_counted(const assay_param_spec *p, const assay_grid *g, const assay_model_config *c,
                            int rank, int64_t count);
/* The rows of its piece that a first replica has and no rank of its kv group before it: with a gradient or without one, every
 * element of a parameter is in one of these pieces. */
assay_status assay_param_first_shard(const assay_param_spec *p, const assay_grid *g,
                                     const assay_model_config *c, int rank, assay_shard *out);

/* `count` elements in a row: of part `part` from element `in_part` on, and of a piece of the canonical parameter from its
 * local element `in_piece` on. */
typedef assay_status (*assay_hf_run_sink)(void *user, int part, int64_t in_part, int64_t in_piece,
                                          int64_t count);
/* Hands every element of the piece to the sink once, in runs that are as long as both orders allow. */
assay_status assay_param_runs(const assay_param_spec *p, const assay_shard *piece, assay_hf_run_sink sink,
                              void *user);

/* Weights of a Hugging Face folder against the table: every part is there with its shape in F64, F32, BF16 or
 * F16, and nothing else is (a bias that the configuration does not know must not be dropped in silence) but
 * rotary tables and the head of a tied model.  *stored: whether the folder has weights at all; without them
 * they are drawn.  Reads headers only. */
assay_status assay_spec_check_folder(const assay_model_spec *spec, const char *folder, bool *stored);
/* The same of a folder's file that is open already. */
struct assay_quantization;
struct assay_tensorfile;
assay_status assay_spec_check_file(const assay_model_spec *spec, const struct assay_quantization *q,
                                   const struct assay_tensorfile *f);

ASSAY_END_DECLS

#endif
