/* The plan: what every rank must execute in a step, as docs/OPS.md section 9 says it.  Private to parity/.
 *
 * It is derived from the configuration, the layout, the options and the batch file.  Two facts alone come
 * from the record, because no plan can know them: which experts were chosen (judged by the routing check),
 * and where a distributed optimizer cuts a parameter (the parts must tile it).  A list of numbers that many
 * operations wrote, one each, is held to what they are recorded to have written.
 *
 * A layer is a mixer kind and an MLP kind; each kind is a file with one plan_kind. */
#ifndef PARITY_PLAN_H
#define PARITY_PLAN_H

#include "core/files/dataset.h"
#include "core/model/sequence.h"
#include "core/run/recompute.h"
#include "parity/judge/judge.h"

/* Which rows of the global tensor a record of kind `rows` holds, in its order. */
typedef struct plan_row_ids {
    bool any; /* of a choice of experts that is not known: that has failed by itself */
    int64_t n, *ids;
    int64_t failed; /* the record of ids that was reported, -1: none.  Many tensors name the same one */
} plan_row_ids;

/* A tensor as an operation must find or leave it.  name NULL: there is none. */
typedef struct plan_tensor {
    const char *name;
    assay_phase phase;
    int64_t microbatch;
    assay_dtype dtype;
    const int64_t *integers; /* its value [count], NULL: any */
    int64_t count;
    const double *reals;      /* the same of an F64 list, bit by bit */
    int64_t experts, topk;    /* experts > 0: rows of topk ascending numbers below it */
    const assay_shard *shard; /* its piece, NULL: any */
    plan_row_ids *rows;       /* kind `rows`; NULL: another kind */
} plan_tensor;

typedef struct plan_slot {
    const char *slot;
    bool output;
    plan_tensor tensor;
} plan_slot;

typedef enum { PLAN_ANY, PLAN_INT, PLAN_REAL, PLAN_TEXT, PLAN_BOOL, PLAN_LIST } plan_attr_type;
typedef struct plan_attr {
    const char *name;
    plan_attr_type type;
    int64_t integer; /* PLAN_BOOL: 0 or 1; PLAN_LIST: length, -1: not to be known */
    double real, slack;
    const char *text;
    const int64_t *list;
} plan_attr;

/* Where an operation stands in a step: what an earlier one caused explains a later one. */
typedef struct plan_order {
    int64_t part;  /* 0 tables, 1 microbatches, 2 reductions, 3 optimizer */
    int64_t pass;  /* microbatch of the rank and direction */
    int64_t stage; /* virtual stage, in the order of the pass */
    int64_t at;    /* in the rank's list */
} plan_order;

typedef struct plan_op {
    const char *op, *instance;
    assay_phase phase;
    int64_t microbatch;
    int group;      /* assay_group, -1: not a collective */
    int64_t block;  /* place in the rank's schedule: receives of a round, each of its passes, its sends */
    bool recompute; /* it ran in the forward pass and runs again for the backward */
    int64_t after;  /* >= 0: it may stand before its block, anywhere behind this operation */
    plan_order order;
    int64_t first_slot, n_slots, first_attr, n_attrs;
} plan_op;

/* --- what the record alone can say: plan_recorded.c --------------------------------------------------------- */
typedef struct plan_recorded plan_recorded;
assay_status plan_recorded_create(plan_recorded **out, const assay_trace *t);
void plan_recorded_destroy(plan_recorded *r);
const assay_trace *plan_recorded_trace(const plan_recorded *r);
/* Maps of a router: the chosen experts, those of its auxiliary losses, what the experts' capacities leave. */
typedef enum { PLAN_CHOSEN, PLAN_AUX, PLAN_ROUTED } plan_map;
/* The output that holds the map, or NULL. */
const assay_trace_tensor *plan_recorded_choice(const plan_recorded *r, int rank, int64_t step,
                                               int64_t microbatch, const char *instance, plan_map map);
/* The first reduce_scatter of a parameter's gradient in the step, or NULL. */
const assay_trace_op *plan_recorded_scatter(const plan_recorded *r, int rank, int64_t step,
                                            const char *param);
/* The y that `op` (sum, sumsq, count_zeros) of that instance wrote in the step, the `index`-th time from 0; NULL: it did not. */
const assay_trace_tensor *plan_recorded_y(const plan_recorded *r, int rank, int64_t step, const char *op,
                                          const char *instance, int64_t index);
/* How often an F64 or I64 number of phase optimizer is recorded (what total or an all_reduce left, or loss, grad_norm,
 * num_zeros_in_grad); *out: the last. */
int64_t plan_recorded_number(const plan_recorded *r, int rank, int64_t step, const char *name, double *out);

/* --- building: plan_build.c --------------------------------------------------------------------------------- */
typedef struct plan_job {
    const assay_model_spec *spec;
    const assay_model_config *config;
    const assay_grid *grid;
    const assay_train_options *options;
    const assay_batches *batches;
    const plan_recorded *recorded; /* NULL: values that depend on the record are not planned */
    int64_t steps;                 /* of the whole run */
} plan_job;

typedef struct plan_arena plan_arena;

/* The operations of one rank in one step. */
typedef struct plan {
    const plan_job *job;
    int rank, tp, cp, ep, etp;
    int64_t step;
    assay_coords at;
    bool sp, last_stage;
    assay_batch_share share;
    int64_t S, B;                 /* whole sequence, rows of this rank */
    assay_sequence_map sequence;  /* its positions, and its tp piece of them */
    assay_sequence gathered;      /* positions of its cp group, one rank after the other */
    assay_dtype act, accumulated; /* of the recipe: activations; what F32 stands for */
    int64_t n_targets;            /* of the step */

    int64_t n, capacity, n_slots, slot_capacity, n_attrs, attr_capacity;
    plan_op *ops;
    plan_slot *slots;
    plan_attr *attrs;
    plan_arena *arena;
    parity_map *touched; /* parameter -> 1 + microbatch of the last accumulation into its gradient */
    parity_map *written; /* parameter -> number of that operation */
    bool ahead;          /* the next unit of the pass is gathered already */
    assay_status st;     /* of the first failure; nothing is added after it */

    assay_recompute again; /* what runs again before its backward */
    bool recompute;        /* the next operations are such */

    assay_phase phase; /* where the next operation goes */
    int64_t microbatch, layer, block, part, pass, stage;
} plan;

/* Makes the list; *p is to be destroyed also on failure. */
assay_status plan_make(plan *p, const plan_job *job, int rank, int64_t step);
void plan_destroy(plan *p);

/* plan_kinds.c: whether a record of that name may be a piece of no global tensor. */
bool plan_may_be_local(const plan *p, const char *name, assay_phase phase);

/* Memory that lives as long as the plan, zeroed; NULL after a failure. */
void *plan_alloc(plan *p, size_t bytes);
int64_t *plan_integers(plan *p, int64_t n);
/* Text that lives as long as the plan; "" after a failure. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
const char *
plan_text(plan *p, const char *fmt, ...);
/* Three texts behind one another: names of tensors, without reading a format. */
const char *plan_joined(plan *p, const char *a, const char *b, const char *c);
/* Full name of what lies at `at` of the present layer. */
const char *plan_at(plan *p, const char *at);

/* Begins an operation; the calls below add to it. */
void plan_add(plan *p, const char *op, const char *at);
void plan_add_collective(plan *p, const char *op, const char *at, assay_group group, assay_dtype dtype);
void plan_in(plan *p, const char *slot, plan_tensor t);
void plan_out(plan *p, const char *slot, plan_tensor t);
void plan_int(plan *p, const char *name, int64_t value);
void plan_any(plan *p, const char *name); /* an integer that follows from a choice which is not known */
void plan_real(plan *p, const char *name, double value, double slack);
void plan_f32(plan *p, const char *name, double value); /* rounded once */
void plan_word(plan *p, const char *name, const char *value);
void plan_bool(plan *p, const char *name, bool value);
void plan_list(plan *p, const char *name, const int64_t *values, int64_t n);

/* `<at>.<slot>` of the present phase and microbatch. */
plan_tensor plan_value(plan *p, const char *at, const char *slot, assay_dtype dtype);
/* Gradient of a forward tensor. */
plan_tensor plan_grad(plan *p, plan_tensor forward, assay_dtype dtype);
plan_tensor plan_with_integers(plan_tensor t, const int64_t *values, int64_t n);
/* A parameter of the present layer (or by its whole name) as an operation reads it. */
plan_tensor plan_param(plan *p, const char *at);
/* The slots `<slot>_in` and `<slot>` of an accumulation into a parameter's gradient. */
void plan_accumulate(plan *p, const char *slot, const char *at);
/* The same of a product, which overwrites what is there where it is the first of the step (with zero2 and zero3: of the microbatch). */
void plan_accumulate_product(plan *p, const char *slot, const char *at);
/* Whether nothing accumulates a gradient of the parameter at `at` (docs/OPS.md 9.15). */
bool plan_is_frozen(plan *p, const char *at);
/* Piece `index` of `n` balanced ones. */
int64_t plan_piece(int64_t n, int parts, int index, int64_t *start);

/* --- parts: plan_regions.c ---------------------------------------------------------------------------------- */
plan_tensor plan_linear(plan *p, const char *at, plan_tensor x, const char *weight, const char *bias,
                        assay_dtype dtype);
void plan_linear_backward(plan *p, const char *at, plan_tensor dy, plan_tensor x, const char *weight,
                          const char *bias, plan_tensor dx);
typedef struct plan_norm {
    plan_tensor x, y, rstd;
    double eps;
} plan_norm;
plan_norm plan_rmsnorm(plan *p, const char *at, plan_tensor x);
/* The same with an eps of its own. */
plan_norm plan_rmsnorm_of(plan *p, const char *at, plan_tensor x, double eps);
void plan_rmsnorm_backward(plan *p, const char *at, const plan_norm *n, plan_tensor dy, plan_tensor dx);
/* Norms of q (key: k) over their heads: plan_qk_layernorm.c. */
plan_norm plan_qk_layernorm(plan *p, const char *at, bool key, plan_tensor x);
void plan_qk_layernorm_backward(plan *p, const char *at, bool key, const plan_norm *n, plan_tensor dy,
                                plan_tensor dx);
plan_tensor plan_add_op(plan *p, const char *at, plan_tensor a, plan_tensor b, plan_tensor y);
/* tp over the sequence: pieces to the whole, and sums of the whole to pieces. */
void plan_gather_sequence(plan *p, const char *at, plan_tensor send, plan_tensor recv);
void plan_scatter_sequence(plan *p, const char *at, plan_tensor send, plan_tensor recv);
/* Input side of a column-parallel linear and its backward; output side of a row-parallel one and its own. */
plan_tensor plan_column_input(plan *p, const char *at, plan_tensor x);
plan_tensor plan_column_input_backward(plan *p, const char *at, const char *at_reduce, plan_tensor dx,
                                       plan_tensor forward);
plan_tensor plan_row_output(plan *p, const char *at, plan_tensor y);
plan_tensor plan_row_output_backward(plan *p, const char *at, plan_tensor dy, plan_tensor forward);

/* --- dropout: plan_dropout.c ---------------------------------------------------------------------------------- */
typedef enum { PLAN_DROP_PROBS, PLAN_DROP_MIXER, PLAN_DROP_MLP, PLAN_DROP_EMBEDDING } plan_dropout_site;
/* Share of hidden states that become 0 there. */
double plan_hidden_dropout(const plan *p, plan_dropout_site site);
/* y of x, and the gradient of x; without dropout there is no operation and both are what came in. */
plan_tensor plan_dropout(plan *p, const char *at, plan_dropout_site site, plan_tensor x);
plan_tensor plan_dropout_backward(plan *p, const char *at, plan_dropout_site site, plan_tensor dy,
                                  plan_tensor x);
/* Attributes of attention whose heads are dealt out over `parts` ranks; none without dropout. */
void plan_attention_dropout(plan *p, int64_t parts);

/* --- attention over cp: plan_context.c ---------------------------------------------------------------------- */
int64_t plan_local_groups(const plan *p);
int64_t plan_local_heads(const plan *p);
/* position_ids, which rotation reads: of this rank's tokens. */
plan_tensor plan_positions(plan *p);
/* What every rotation reads beside its heads: the tables, and the positions. */
void plan_rotation(plan *p, plan_tensor position);
/* Documents packed in rows: plan_documents.c.  Positions of this rank's tokens in their documents; positions in the row of the
 * documents' first tokens, of this rank's queries or (gathered) of its cp group's; none where rows are one document. */
bool plan_is_packed(const plan *p);
plan_tensor plan_document_positions(plan *p);
plan_tensor plan_document_start(plan *p, bool gathered);
typedef struct plan_qkv {
    plan_tensor q, k, v;
} plan_qkv;
/* The rank's own q, k, v; what attention reads in their place and makes; what the projection reads. */
typedef struct plan_context {
    plan_qkv own;
    plan_tensor q, k, v, attended, lse, packed_o, o;
} plan_context;
plan_context plan_context_forward(plan *p, plan_tensor q, plan_tensor k, plan_tensor v);
/* Gradients of the rank's own q, k, v. */
plan_qkv plan_context_backward(plan *p, const plan_context *c, plan_tensor d_o);

/* --- final norm, output layer, loss: plan_output.c ------------------------------------------------------------ */
typedef struct plan_output_saved {
    plan_tensor hidden, targets; /* what is read: of the last layer, of the batch */
    plan_tensor x, logits, lse;
    plan_norm final_norm;
} plan_output_saved;
/* Parts of the positions whose loss is made part by part, all in the backward; 0: it is made whole. */
int64_t plan_output_parts(const plan *p);
void plan_output_forward(plan *p, plan_output_saved *s);
/* Gradient of s->hidden. */
plan_tensor plan_output_backward(plan *p, plan_output_saved *s);
/* First row of the vocabulary that this tp rank holds; *n: how many. */
int64_t plan_vocabulary(const plan *p, int64_t *n);

/* --- kinds -------------------------------------------------------------------------------------------------- */
typedef struct plan_kind {
    size_t saved; /* bytes that forward keeps for backward */
    plan_tensor (*forward)(plan *p, plan_tensor x, void *saved);
    plan_tensor (*backward)(plan *p, plan_tensor dy, void *saved); /* gradient of x */
    void (*again)(plan *p, plan_tensor x, void *saved); /* modules that run again; NULL: none can */
} plan_kind;
extern const plan_kind plan_self_attention, plan_mla, plan_dense_mlp, plan_moe_mlp;

/* What the experts' capacities leave of `indices`, over the ranks that share a microbatch: plan_drop.c. */
plan_tensor plan_drop(plan *p, assay_group group, plan_tensor indices, plan_tensor probs);

/* Shared expert of an MoE layer: plan_shared.c. */
typedef struct plan_shared_saved {
    plan_tensor tokens, x, fc1, act, fc2, out, gate;
} plan_shared_saved;
plan_tensor plan_shared_forward(plan *p, plan_tensor tokens, plan_shared_saved *s);
/* What its MLP reads of the tokens. */
plan_tensor plan_shared_input(plan *p, plan_tensor tokens);
plan_tensor plan_shared_backward(plan *p, plan_tensor dy, plan_shared_saved *s);

/* Integer tensors of the exchange of rows: plan_rows.c.  known false: a choice is missing or malformed. */
typedef struct plan_rows {
    bool known;
    int64_t rows, entries;      /* of this rank; T*K */
    int64_t received, gathered; /* ; that arrive over ep; of all etp ranks */
    int64_t *row_token, *row_entry, *tokens_per_expert, *token_row;
    int64_t n_all, *token_counts; /* allgather: tokens of all ranks that exchange rows, of each */
    int64_t *all_row_token, *all_row_entry, *all_tokens_per_expert, *all_token_row;
    int64_t *all_counts, *sort, *unsort, *local_counts, *send_counts, *recv_counts, *etp_counts;
    int64_t padded, *room; /* rows that this rank's experts compute, zeros among them; of each */
    /* row ids of what this rank permutes, gets over ep and over etp, and gives its experts */
    plan_row_ids *mine, *dispatched, *gathered_ids, *of_experts;
} plan_rows;
void plan_make_rows(plan *p, plan_rows *r);
/* After plan_make_rows and, allgather, plan_gather_rows: plan_row_ids.c. */
void plan_make_row_ids(plan *p, plan_rows *r);
/* Whether experts compute rows of zeros, and whether rows are sorted; how many rows for each local expert, and sort and unsort
 * with them: plan_padding.c. */
bool plan_pads_rows(const plan *p);
bool plan_sorts_rows(const plan *p);
void plan_pad_rows(plan *p, plan_rows *r);
plan_tensor plan_with_rows(plan_tensor t, plan_row_ids *ids);
/* allgather: the rows of this rank's experts among the tokens of all (r->known: else nothing). */
bool plan_gathers_tokens(const plan *p);
void plan_gather_rows(plan *p, plan_rows *r);
/* The ranks that hold one set of all experts; member t + etp * i has coordinates etp = t, ep = i. */
assay_group plan_exchange_group(const plan *p);
/* Whether the experts have capacities; the map that decides where rows go. */
bool plan_has_capacity(const plan *p);
plan_map plan_row_map(const plan *p);
/* Tokens of an MoE layer on a rank. */
int64_t plan_tokens_of(const plan *p, int rank);
/* A map [T,K] of a rank, -1 where an entry is dropped; NULL: it is not known. */
const int64_t *plan_choice(plan *p, int rank, int64_t microbatch, int64_t layer, plan_map map);
/* How many tokens go to each expert [E] in a map of one rank; false when it is not known.  layer is global. */
bool plan_choice_counts(plan *p, int rank, int64_t microbatch, int64_t layer, plan_map map, int64_t *counts);

/* --- what data-parallel ranks share out: plan_fsdp.c -------------------------------------------------------- */
/* The rectangles of a parameter that this rank keeps; cut false: its whole piece. */
enum { PLAN_PIECES = 8 };
typedef struct plan_pieces {
    int n;
    const assay_shard *shard[PLAN_PIECES]; /* NULL: the rank's whole piece */
} plan_pieces;
/* Whether ranks of a copy share it out, and what this rank has of it. */
bool plan_is_cut(const plan *p, const assay_param_spec *s);
plan_pieces plan_pieces_of(plan *p, const assay_param_spec *s);
/* The piece, or the whole of what the rank has of the parameter. */
const assay_shard *plan_piece_or_whole(plan *p, const assay_param_spec *s, const assay_shard *piece);
int plan_group_size(const plan *p, assay_group group);
/* A tied embedding whose gradient the first and the last stage add up. */
/* Elements of the rank's piece before those that its kv group shares; -1 when it shares none. */
int64_t plan_shared_from(plan *p, const assay_param_spec *s);
bool plan_lacks_embedding(const plan *p, const assay_param_spec *s);
/* The group of the sum that makes copies of its gradient, last of all; ASSAY_GROUP_COUNT: none. */
assay_group plan_replicas_group(plan *p, const assay_param_spec *s);
/* Whether a kv group shares the rectangle. */
bool plan_is_kv_shared(const plan *p, const assay_param_spec *s, const assay_shard *part);
/* A rectangle of a gradient on its way through its sums, phase reduced_grad. */
plan_tensor plan_part(plan *p, const assay_param_spec *s, const char *suffix, int64_t microbatch,
                      const assay_shard *shard);
/* Parameter P, or "P.main_grad" and so on. */
plan_tensor plan_param_tensor(plan *p, const assay_param_spec *s, const char *suffix, assay_phase phase,
                              assay_dtype dtype);
/* Slot names of a list: "recv", or "recv.0", "recv.1", ... */
const char *plan_numbered(plan *p, const char *slot, int i, int n);
/* A unit is a layer's number or one of these; NONE: no unit. */
enum { PLAN_UNIT_EMBEDDING = -1, PLAN_UNIT_OUTPUT = -2, PLAN_UNIT_NONE = -3 };
/* Before a pass through the unit: its gathers, and ahead of time those of `next`. */
void plan_unit_before(plan *p, int64_t unit, int64_t next);
/* Behind its backward: the gradients of the microbatch. */
void plan_unit_reduce(plan *p, int64_t unit);
/* After the last backward: sums of the parts. */
void plan_finish_parts(plan *p, const assay_param_spec *s);

/* --- the whole: plan_model.c, plan_optimizer.c, plan_schedule.c --------------------------------------------- */
/* Forward or backward of microbatch `index` of the rank through a chunk (virtual stage) of its stage.  Passes of one
 * round: what they need arrives before the first, what they make leaves after the last. */
typedef struct plan_pass {
    int64_t index, round;
    int chunk;
    bool backward;
} plan_pass;
/* 1F1B of one stage, interleaved with several chunks: 2 * n * chunks passes. */
void plan_schedule(int stages, int chunks, int stage, int64_t n, plan_pass *out);
void plan_microbatches(plan *p);
void plan_reductions(plan *p);
void plan_optimizer(plan *p);
double plan_learning_rate(const assay_train_options *o, int64_t iterations, int64_t done);

/* --- findings: plan_findings.c ------------------------------------------------------------------------------ */
/* One row for each (instance, operation, phase): how many claims hold, and the first that does not. */
typedef struct plan_findings plan_findings;
assay_status plan_findings_create(plan_findings **out, const parity_result *base);
void plan_findings_destroy(plan_findings *f);
/* Where a claim was looked at. */
typedef struct plan_place {
    const char *op, *instance;
    assay_phase phase;
    int rank;
    int64_t step, microbatch;
    plan_order order;
    int64_t wanted, found; /* 1 + number of the planned and of the executed operation, 0: none */
} plan_place;
/* A claim that holds. */
assay_status plan_holds(plan_findings *f, const plan_place *at);
/* One that does not: `item` is the slot or attribute; the message says what was expected and found. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
assay_status
plan_fails(plan_findings *f, const plan_place *at, const char *item, const char *fmt, ...);
/* What was planned and executed of a rank in a step, and which is which: 1 + number of the other, 0: none. */
typedef struct plan_match {
    const plan *p;
    const assay_trace_op *const *ops;
    int64_t n;
    int64_t *found_at;  /* [p->n] */
    int64_t *wanted_of; /* [n] */
} plan_match;
/* Draws the failures of this rank and step, now that all of it is matched. */
assay_status plan_findings_draw(plan_findings *f, const plan_match *m);
/* plan_excerpt.c: a claim beside no operation; one about the planned operation `wanted` or the executed `found`, -1: none. */
void plan_excerpt_item(parity_excerpt *e, const char *item, const char *message);
void plan_excerpt_around(parity_excerpt *e, const plan_match *m, int64_t wanted, int64_t found,
                         const char *item, const char *message);
/* Failures in causal order, then what holds. */
assay_status plan_findings_flush(plan_findings *f, parity_report *report);

/* --- comparing: plan_compare.c, plan_parts.c ---------------------------------------------------------------- */
/* The rank's operations ops[0..n) of the plan's step, in order of execution, against the plan. */
assay_status plan_compare(plan_findings *f, const plan *p, const assay_trace *t,
                          const assay_trace_op *const *ops, int64_t n);
/* Attributes, slots and group of one operation. */
assay_status plan_compare_op(plan_findings *f, const plan *p, const plan_op *wanted, const assay_trace *t,
                             const assay_trace_op *found, const plan_place *at);
/* The parts of a distributed optimizer tile every parameter. */
assay_status plan_compare_parts(plan_findings *f, const plan_job *job, int64_t step);

/* Order of the tensors of an unsharded step, for results that have no operation: ascending by the last
 * writing, so that a gradient stands where it is complete; INT64_MAX when no operation writes it. */
typedef struct parity_plan_tensors parity_plan_tensors;
assay_status parity_plan_tensors_create(parity_plan_tensors **out, const assay_model_spec *spec,
                                        const assay_train_options *options, const assay_batches *batches);
void parity_plan_tensors_destroy(parity_plan_tensors *t);
int64_t parity_plan_tensors_order(const parity_plan_tensors *t, const char *name);

/* Targets of one microbatch, all its rows. */
int64_t plan_targets(const assay_batches *b, int64_t step, int64_t microbatch);

#endif
