/* Planted faults: what goes wrong, and where, as data.  The engine's call (gpu/call.h) is the one seam that plants them; a
 * few that lie outside of calls are switches.  For the self-test; the text of --fault:
 *
 *   skip:INSTANCE               recorded as if it ran; a reduction is a copy of this rank's own part, other outputs are zero
 *   omit:INSTANCE               the same, and not recorded either
 *   repeat:INSTANCE             runs twice, is recorded once
 *   extra:INSTANCE              runs and is recorded twice; a reduction the second time on its own result
 *   negate:INSTANCE:SLOT        the output's sign is flipped
 *   scale:INSTANCE:SLOT=X       the output is multiplied by X
 *   hold:INSTANCE:SLOT          after the record the output gets the value back that it had before
 *   spoil:INSTANCE              the first row of the router's choice names an expert that it did not choose
 *   zero_chunk:INSTANCE         what the last rank of the group sent arrives as zeros
 *   attr:INSTANCE:NAME=X        an attribute times X; +X is added; a word, true or false replaces it.  Recorded so, too
 *   input:INSTANCE:SLOT@microbatch-1    the tensor that the call before, of another microbatch, had in that slot
 *   drop:INSTANCE:SLOT          an optional input is left out
 *   group:INSTANCE:NAME         a collective talks to another group
 *   leaf:NAME:shift | leaf:NAME:rank    input_ids, targets or position_ids: of the next position, or of the next data-parallel rank
 *   leaf:NAME:order             of the positions that the rank would have if cp cut the sequence in plain order
 *   leaf:NAME:row               position_ids, document_start, key_document_start: as if the row were one document;
 *                               dropout_token_ids: as if the rank had all tokens
 *   nudge:INSTANCE:SLOT         the kernel reads integers that are one less than those of the record
 *
 * INSTANCE is a full instance name and may hold the wildcards of fnmatch.  Conditions follow behind commas: op=NAME,
 * phase=NAME, step=N, microbatch=N, part=N (of the loss, from 0: --loss-subbatch-sequence-length), run=1 or run=2 (of what runs again for
 * the backward pass), variant=kN (negate, scale, spoil: results of
 * that kernel alone).  Words are short forms (`word` or `word@INSTANCE`); gpu_fault_words lists them. */
#ifndef GPU_FAULT_H
#define GPU_FAULT_H

#include "gpu/operands.h"
#include "gpu/trace.h"

ASSAY_BEGIN_DECLS

typedef enum {
    GPU_FAULT_SKIP,
    GPU_FAULT_OMIT,
    GPU_FAULT_REPEAT,
    GPU_FAULT_EXTRA,
    GPU_FAULT_NEGATE,
    GPU_FAULT_SCALE,
    GPU_FAULT_HOLD,
    GPU_FAULT_SPOIL,
    GPU_FAULT_ZERO_CHUNK,
    GPU_FAULT_ATTR,
    GPU_FAULT_INPUT,
    GPU_FAULT_DROP,
    GPU_FAULT_GROUP,
    GPU_FAULT_LEAF,
    GPU_FAULT_NUDGE,
    GPU_FAULT_SWITCH,
    GPU_FAULT_KINDS
} gpu_fault_kind;

/* What is wrong outside of calls. */
#define GPU_SWITCH_SWAPPED_MOMENTS                                                                           \
    "swapped_moments"                          /* exp_avg and exp_avg_sq change places on save and on load */
#define GPU_SWITCH_DOUBLED_LOSS "doubled_loss" /* --out has twice the loss */
#define GPU_SWITCH_HIDDEN_BF16 "hidden_bf16"   /* computed in bf16 under a header that says fp32 */
#define GPU_SWITCH_BIAS_EVERYWHERE "bias_everywhere" /* row-parallel biases are added on every tp rank */
#define GPU_SWITCH_KEPT_PARAMETERS                                                                           \
    "kept_parameters" /* those of layer 0 are not released: the run is refused */
#define GPU_SWITCH_UNREADY_GRADIENTS                                                                         \
    "unready_gradients" /* those of layer 0 are not marked ready: the run is refused */
#define GPU_SWITCH_UNWAITED_GATHER                                                                           \
    "unwaited_gather" /* the compute stream does not wait for gathered parameters (--overlap-param-gather) */
#define GPU_SWITCH_UNWAITED_GRADIENTS                                                                        \
    "unwaited_gradients" /* a reduction does not wait for the backward (--overlap-grad-reduce) */
#define GPU_SWITCH_UNWAITED_TOKENS                                                                           \
    "unwaited_tokens" /* the shared expert does not wait for what it reads (--moe-shared-expert-overlap) */
#define GPU_SWITCH_UNWAITED_SHARED_EXPERT                                                                    \
    "unwaited_shared_expert" /* nobody waits for what it makes (--moe-shared-expert-overlap) */
#define GPU_SWITCH_UNWAITED_INPUT_GRADIENT                                                                   \
    "unwaited_input_gradient" /* its sum over tp does not wait for it (--async-tensor-model-parallel-allreduce) */
#define GPU_SWITCH_UNWAITED_SUM                                                                              \
    "unwaited_sum" /* nobody waits for that sum (--async-tensor-model-parallel-allreduce) */
#define GPU_SWITCH_UNWAITED_PIECE                                                                            \
    "unwaited_piece" /* tokens are gathered over tp before they are made (--tp-comm-overlap) */
#define GPU_SWITCH_UNWAITED_SPLIT                                                                            \
    "unwaited_split" /* products do not wait for the rows of their split (--tp-comm-overlap) */
#define GPU_SWITCH_UNWAITED_PARTIAL                                                                          \
    "unwaited_partial" /* rows of a product are summed over tp before they are made (--tp-comm-overlap) */
#define GPU_SWITCH_UNWAITED_SPLIT_SUM                                                                        \
    "unwaited_split_sum" /* nobody waits for these sums (--tp-comm-overlap) */
#define GPU_SWITCH_UNWAITED_ROWS                                                                             \
    "unwaited_rows" /* token rows are sent before they are made (--moe-alltoall-halves) */
#define GPU_SWITCH_UNWAITED_HALF                                                                             \
    "unwaited_half" /* experts do not wait for the rows of their half (--moe-alltoall-halves) */
#define GPU_SWITCH_UNWAITED_RETURN                                                                           \
    "unwaited_return" /* nobody waits for the rows that come back (--moe-alltoall-halves) */
#define GPU_SWITCH_REUSED_SLOT                                                                               \
    "reused_slot" /* gradients are cleared while they are still being scattered (--overlap-grad-reduce) */
#define GPU_SWITCH_EARLY_REDUCTION                                                                           \
    "early_reduction" /* buckets are reduced behind the first microbatch (--overlap-grad-reduce) */
#define GPU_SWITCH_STALE_GRAPH                                                                               \
    "stale_graph" /* a graph is launched whose loss scale is another by now (--enable-cuda-graph) */
#define GPU_SWITCH_FORWARDS_FIRST                                                                            \
    "forwards_first" /* a stage runs all its forwards before its first backward */

typedef struct gpu_fault {
    gpu_fault_kind kind;
    char instance[ASSAY_NAME]; /* pattern */
    char what[32];             /* slot, attribute, leaf's way, group or switch */
    char value[32];            /* ATTR, SCALE */
    char op[48];               /* "": any */
    int phase;                 /* -1: any */
    int64_t step, microbatch;  /* -1: any */
    int64_t part;              /* of the loss (--loss-subbatch-sequence-length); -1: any */
    int64_t run;               /* 1: the first, 2: again; -1: any */
    int variant;               /* NEGATE, SCALE, SPOIL: of the kernel that ran; -1: any */
} gpu_fault;

typedef struct gpu_fault_plan {
    const char *text; /* as given */
    gpu_fault fault;
    int64_t met; /* times that it bit on this rank */
    gpu_value last,
        used; /* INPUT: the value of the call before, on memory of its own, and what this one got */
    bool has_last;
    void *copies[64]; /* device memory of INPUT and HOLD */
    int n_copies;
} gpu_fault_plan;

/* What a word needs of the run, to be refused at its beginning. */
typedef struct gpu_fault_place {
    int tp, cp, dp, ep, pp;
    bool training, scattered,
        packed; /* scattered: gradients are (zero2, zero3); packed: rows of several documents */
    int64_t steps, step_microbatches, first_moe_layer; /* -1: none */
    int64_t experts, topk;
} gpu_fault_place;

/* NULL for the empty text.  ASSAY_INVALID_ARGUMENT: not a fault, or one that this run cannot meet. */
assay_status gpu_fault_parse(const char *text, const gpu_fault_place *place, gpu_fault_plan **out);
/* Whether somebody looks at results as soon as they are there: a trace, faults, a substitute, an observer.  Such a run waits
 * for each collective where others go on. */
bool gpu_run_is_watched(const gpu_run *run);
/* Refuses a fault that no rank met.  Talks to every rank. */
assay_status gpu_fault_check_met(gpu_run *run);
void gpu_fault_destroy(gpu_fault_plan *plan);
/* Words and their long forms, one a line. */
void gpu_fault_words(char *out, size_t capacity);

/* The planted fault when it is of this kind and this call is its place. */
gpu_fault_plan *gpu_fault_at(const gpu_run *run, gpu_fault_kind kind, const char *op, const char *instance);
/* Whether the planted fault, of whatever kind, is about this call. */
bool gpu_fault_meets(const gpu_run *run, const char *op, const char *instance);
bool gpu_fault_switch(const gpu_run *run, const char *word);
/* The way of a leaf fault on this leaf: "shift", "rank", "order", "row" or NULL. */
const char *gpu_fault_leaf(const gpu_run *run, const char *name);
/* To be called when that leaf really got another value: a fault that changes nothing was not met. */
void gpu_fault_leaf_met(const gpu_run *run);

/* The parts of the seam, in their order; each does nothing unless its fault is here. */
assay_status gpu_fault_attrs(gpu_run *run, gpu_operands *o, const char *instance);
/* *v: the value in slot `slot`; replaced by another, or by NULL. */
assay_status gpu_fault_input(gpu_run *run, const assay_op *op, const char *instance, const char *slot,
                             gpu_value **v);
/* Behind the record: an integer input that the kernel reads is one less than what was recorded. */
assay_status gpu_fault_nudge(gpu_run *run, gpu_operands *o, const char *instance);
/* A copy of the output as it is, to be put back; NULL: nothing to hold. */
assay_status gpu_fault_hold(gpu_run *run, const assay_op *op, const char *instance, const char *slot,
                            const gpu_value *v, void **copy);
/* After the launch. */
assay_status gpu_fault_output(gpu_run *run, const gpu_operands *o, const char *instance, const char *slot,
                              gpu_value *v, const int64_t *recv_counts, int ranks);

ASSAY_END_DECLS

#endif
