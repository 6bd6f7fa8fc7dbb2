/* Recomputation of activations, in Megatron-LM's words: which layers, or which modules of every layer, run their forward again
 * before their backward in place of keeping what it needs.  docs/LAYOUTS.md 10. */
#ifndef ASSAY_RUN_RECOMPUTE_H
#define ASSAY_RUN_RECOMPUTE_H

#include "core/run/options.h"

ASSAY_BEGIN_DECLS

/* Modules of a layer (recompute_modules), as bits. */
enum {
    ASSAY_RECOMPUTE_CORE_ATTN = 1,
    ASSAY_RECOMPUTE_LAYERNORM = 2,
    ASSAY_RECOMPUTE_MLP = 4, /* a dense MLP */
    ASSAY_RECOMPUTE_MOE = 8, /* a whole MoE layer: with its activation and its shared expert */
    ASSAY_RECOMPUTE_MOE_ACT = 16,
    ASSAY_RECOMPUTE_SHARED_EXPERTS = 32
};

typedef struct assay_recompute {
    unsigned modules;   /* selective: bits; else 0 */
    int64_t num_layers; /* full: of a group (uniform), or of a chunk's first layers (block); 0: none */
    assay_recompute_method method;
} assay_recompute;

/* What the options ask for; words that contradict each other or that no module has are refused. */
assay_status assay_recompute_from_options(assay_recompute *r, const assay_train_options *o);
/* Layers [*first, *first + result) of a chunk of n run again together with its layer l; 0: it is kept. */
int64_t assay_recompute_layers(const assay_recompute *r, int64_t n, int64_t l, int64_t *first);

ASSAY_END_DECLS

#endif
