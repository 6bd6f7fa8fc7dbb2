/* Rank grid: which ranks form which group.
 *
 * Dense grid, leftmost varies fastest:   rank = tp + TP*(cp + CP*(dp + DP*pp))
 * Expert grid over the same world:       rank = etp + ETP*(ep + EP*(edp + EDP*pp)),  EDP = world /
 * (ETP*EP*PP) Source: Megatron-LM parallel_state, order "tp-cp-ep-dp-pp" (reference facts in
 * docs/LAYOUTS.md). */
#ifndef ASSAY_CORE_GRID_H
#define ASSAY_CORE_GRID_H

#include "core/model/config.h"
#include "core/model/layout.h"

ASSAY_BEGIN_DECLS

typedef enum {
    ASSAY_GROUP_WORLD,
    ASSAY_GROUP_TP,
    ASSAY_GROUP_CP,
    ASSAY_GROUP_DP,
    ASSAY_GROUP_DP_CP,
    ASSAY_GROUP_TP_CP,
    ASSAY_GROUP_TP_DP_CP, /* every rank of one pipeline stage */
    ASSAY_GROUP_PP,
    ASSAY_GROUP_EP,
    ASSAY_GROUP_ETP,
    ASSAY_GROUP_EDP,
    ASSAY_GROUP_MODEL,     /* tp x pp at one (dp, cp): grad norm of the replicated optimizer */
    ASSAY_GROUP_EMBEDDING, /* first and last stage (one rank when pp = 1) */
    ASSAY_GROUP_COUNT
} assay_group;

typedef struct assay_grid {
    assay_parallel_config p;
    int world;
    int edp;
} assay_grid;

typedef struct assay_coords {
    int tp, cp, dp, pp;
    int etp, ep, edp;
} assay_coords;

/* Checks sizes, overflow, divisibility of the world by both grids, sp without tp (an error).  */
assay_status assay_grid_make(const assay_parallel_config *p, assay_grid *out);
/* Checks that the model can be cut this way: heads, query groups and ffn by tp, experts by ep, layers by
 * pp*vpp ... and refuses by name what this version does not do (cp > 1, etp > 1, vpp > 1, zero > 1). */
assay_status assay_grid_check_model(const assay_grid *g, const assay_model_config *c);

void assay_grid_coords(const assay_grid *g, int rank, assay_coords *out);
int assay_grid_rank(const assay_grid *g, int tp, int cp, int dp, int pp);
/* Members of the group of kind `kind` that contains `rank`, ascending.  Returns the count; `index` (may be
 * NULL) gets the position of `rank` in it.  out holds ASSAY_MAX_WORLD entries or is NULL.  A rank that
 * belongs to no group of that kind (EMBEDDING on a middle stage) gets 0 and index -1. */
int assay_grid_group(const assay_grid *g, assay_group kind, int rank, int *out, int *index);
/* "tp", "dp_cp", "ep", ... */
const char *assay_group_name(assay_group kind);
/* Number of the group among its kind: the lowest member's rank (an ncclCommSplit colour); -1 when in none. */
int assay_grid_color(const assay_grid *g, assay_group kind, int rank);

/* Decoder layers of stage pp: [*first, *first + *count). */
void assay_grid_stage_layers(const assay_grid *g, const assay_model_config *c, int pp, int64_t *first,
                             int64_t *count);

/* Balanced split of n into `parts`: the first n % parts pieces are one longer.  Legal for n < parts (empty
 * pieces). */
void assay_split(int64_t n, int parts, int index, int64_t *start, int64_t *length);

ASSAY_END_DECLS

#endif
