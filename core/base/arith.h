/* Declared arithmetic: what a kernel says about how it computes.  The declaration travels in the trace and in
 * the certificate and selects the bound (docs/TOLERANCES.md).  A bound is never raised to let a kernel pass;
 * the remedy is to declare the order, or to fix the kernel. */
#ifndef ASSAY_CORE_ARITH_H
#define ASSAY_CORE_ARITH_H

#include "core/base/dtype.h"
#include "core/base/json.h"

ASSAY_BEGIN_DECLS

struct assay_json_text; /* core/base/json_text.h */

typedef enum {
    ASSAY_ORDER_NONE,       /* no reduction: element-wise */
    ASSAY_ORDER_SEQUENTIAL, /* index 0, 1, 2, ... in one chain */
    ASSAY_ORDER_TREE, /* `lanes` chains of ceil(n/lanes) terms, joined by a binary tree (log2 lanes levels) */
    ASSAY_ORDER_TENSOR_CORE, /* steps of `k_step` terms, aligned to the largest, `guard_bits`, truncated */
    ASSAY_ORDER_UNKNOWN      /* any order */
} assay_order;

/* A declaration beyond these is refused: no declared number widens a bound without end.  Elementary functions: the largest
 * documented error of what the operations use (CUDA Math API, single precision: expf, sinf, cosf, rsqrtf 2 ulp, logf 1) composed
 * to a sigmoid is 6.  Chains: more than any device has threads for; a tensor-core step of 256 products is the longest
 * documented (1-bit mma); alignment keeps fewer extra bits than the accumulator has. */
enum {
    ASSAY_ARITH_MAX_MATH_ULP = 8,
    ASSAY_ARITH_MAX_LANES = 1 << 20,
    ASSAY_ARITH_MAX_SPLIT = 1 << 12,
    ASSAY_ARITH_MAX_K_STEP = 256,
    ASSAY_ARITH_MAX_GUARD_BITS = 24,
    ASSAY_ARITH_MAX_TILE = 1 << 16
};

/* Places inside an operation where an intermediate result is stored in the dtype of the operation's first output.  Our engine
 * has the last two alone; modules of PyTorch have others, and an operation is judged by what it declares. */
typedef enum {
    ASSAY_ROUND_BEFORE_GAMMA = 1, /* rmsnorm: x rstd, before gamma multiplies */
    ASSAY_ROUND_BEFORE_UP = 2,    /* swiglu: gate sigmoid(gate), before up multiplies */
    ASSAY_ROUND_PRODUCTS = 4,     /* rope: a c and b s, before they are added */
    ASSAY_ROUND_SCORES = 8,       /* attention: q k, and times scale; load_balancing: softmax, its gradient */
    ASSAY_ROUND_ANGLES = 16, /* rope_table: frequency and angle in the accumulate type instead of double */
    ASSAY_ROUND_HEADS = 32,  /* attention_bwd: dk and dv of a head, before the heads of a group are added */
    ASSAY_ROUND_PARTIAL_SUMS = 64, /* embedding_bwd, weighted_combine: every partial sum */
    ASSAY_ROUND_TIES = 128,        /* router_fwd: no rounding; of equal keys any may be taken */
    ASSAY_ROUND_EVERY = 256,       /* adamw: every intermediate result */
    ASSAY_ROUND_STATISTICS = 512,  /* layernorm_bwd: mean and rstd, as the forward kept them */
    ASSAY_ROUND_RESIDUAL =
        1024, /* add_rmsnorm_fwd: the sum, before the norm reads it; rmsnorm_bwd_add: dx, before it is added */
    ASSAY_ROUND_NORM =
        2048, /* qkv_norm_rope_fwd: the norm, before it is rotated; _bwd: what turned back, before the norm reads it */
    ASSAY_ROUND_PROBS =
        4096 /* attention: P, and dS, before they enter a product (attribute p_dtype of a record) */
} assay_rounding;

typedef struct assay_arith {
    assay_dtype accumulate; /* ASSAY_F32 or ASSAY_F64 */
    assay_order order;
    int lanes; /* TREE: chains; else 1 */
    int split; /* SEQUENTIAL or TENSOR_CORE: K is cut in this many chains, added at the end in order; 1 = none
                */
    int k_step;        /* TENSOR_CORE: terms per step */
    int guard_bits;    /* TENSOR_CORE: extra alignment bits */
    bool fma;          /* products enter the sum unrounded */
    bool atomics;      /* the order may change from run to run */
    int math_ulp;      /* largest error of exp, log, rsqrt, sin, cos, sigmoid in ulp of the accumulate type */
    int tile;          /* online softmax: keys per rescale step; 0 = two-pass */
    unsigned rounding; /* assay_rounding, or-ed */
} assay_arith;

/* What an operation declares: one arithmetic for every output, and for those that differ their own. */
enum { ASSAY_DECLARED_OUTPUTS = 8, ASSAY_DECLARED_SLOT = 24 };
typedef struct assay_declaration {
    assay_arith all; /* of each output that is not listed */
    int n;
    struct {
        char slot[ASSAY_DECLARED_SLOT];
        assay_arith arith;
    } output[ASSAY_DECLARED_OUTPUTS];
} assay_declaration;

bool assay_arith_equal(const assay_arith *a, const assay_arith *b);
assay_declaration assay_declaration_make(assay_arith all);
/* Declares one output; nothing is listed that equals the rest.  ASSAY_LIMIT: more than ASSAY_DECLARED_OUTPUTS. */
assay_status assay_declaration_set(assay_declaration *d, const char *slot, assay_arith arith);
/* Of one output slot. */
const assay_arith *assay_declaration_of(const assay_declaration *d, const char *slot);

/* "residual,probs": words of `rounding` (docs/TRACE.md), each once; "": none. */
assay_status assay_rounding_read(const char *words, const char *what, unsigned *out);
/* Whether an output stores an intermediate result somewhere beside `places` (assay_rounding, or-ed). */
bool assay_declaration_rounds_beside(const assay_declaration *d, unsigned places);

/* {"accumulate":"F32","order":"tree","lanes":32,...}; members with default values may be absent. */
void assay_arith_put(struct assay_json_text *t, const assay_arith *a);
json_t *assay_arith_to_json(const assay_arith *a);
assay_status assay_arith_from_json(const json_t *object, const char *what, assay_arith *out);
/* {"dgamma":{"order":"tree",...}}: the outputs that differ, of which there may be none. */
void assay_declaration_put_outputs(struct assay_json_text *t, const assay_declaration *d);
/* From the arithmetic of all outputs and the outputs that differ (NULL: absent); each has the limits above. */
assay_status assay_declaration_from_json(const json_t *all, json_t *outputs, assay_declaration *out);
/* "F32 tree of 32 lanes, fma, math 2 ulp" */
void assay_arith_describe(const assay_arith *a, char *out, size_t capacity);
const char *assay_order_name(assay_order order);
/* fp32, no reduction, 2 ulp math. */
assay_arith assay_arith_elementwise(void);

ASSAY_END_DECLS

#endif
