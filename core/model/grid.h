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

/* Axes of the two grids.  A new axis is a row of the table in grid.c; everything that cuts or replicates along
 * an axis asks for its size and coordinate here. */
typedef enum {
    ASSAY_AXIS_NONE, /* not cut: size 1, coordinate 0 */
    ASSAY_AXIS_TP,
    ASSAY_AXIS_CP,
    ASSAY_AXIS_DP,
    ASSAY_AXIS_PP,
    ASSAY_AXIS_ETP,
    ASSAY_AXIS_EP,
    ASSAY_AXIS_EDP,
    ASSAY_AXIS_KV,      /* inside tp: ranks that hold the same key/value head; one unless query groups < tp */
    ASSAY_AXIS_KV_HEAD, /* inside tp: ranks that hold different ones */
    ASSAY_AXIS_COUNT
} assay_axis;

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
    ASSAY_GROUP_ETP_EP, /* the ranks that hold one set of all experts */
    ASSAY_GROUP_EDP,
    ASSAY_GROUP_MODEL,       /* tp x pp at one (dp, cp); Megatron-LM's group of the norm */
    ASSAY_GROUP_KV,          /* neighbours in tp that hold the same key/value head */
    ASSAY_GROUP_KV_HEAD,     /* one rank of every KV group of a tp group */
    ASSAY_GROUP_EMBEDDING,   /* first and last stage (one rank when pp = 1) */
    ASSAY_GROUP_INTRA_DP_CP, /* neighbours of DP_CP that share one copy of a sharded state (HSDP) */
    ASSAY_GROUP_INTER_DP_CP, /* ranks of DP_CP that hold the same shard in other copies */
    ASSAY_GROUP_INTRA_EDP,
    ASSAY_GROUP_INTER_EDP,
    ASSAY_GROUP_COUNT
} assay_group;

typedef struct assay_grid {
    assay_parallel_config p;
    int world;
    int edp;
    int size[ASSAY_AXIS_COUNT];   /* ranks along an axis */
    int stride[ASSAY_AXIS_COUNT]; /* distance in ranks of two neighbours along it */
} assay_grid;

/* The members of one group in closed form: start + sum of i_l * stride_l over the levels, i_l < count_l.
 * Strides ascend and every stride is at least stride * count of the level below it, so that members in the
 * order of their mixed-radix index ascend.  size 0: no group (an embedding group asked of a middle stage). */
enum { ASSAY_GROUP_LEVELS = 3 };
typedef struct assay_group_shape {
    int start, size, n_levels;
    struct {
        int stride, count;
    } level[ASSAY_GROUP_LEVELS];
} assay_group_shape;

typedef struct assay_coords {
    int tp, cp, dp, pp;
    int etp, ep, edp;
} assay_coords;

/* Checks sizes, overflow, divisibility of the world by both grids, sp without tp (an error).  */
assay_status assay_grid_make(const assay_parallel_config *p, assay_grid *out);
/* Lays the axes that depend on the model (kv, kv_head) and checks that the model can be cut this way: heads, query groups and ffn by tp, experts by ep, layers in
 * pp*vpp stages. */
assay_status assay_grid_check_cut(assay_grid *g, const assay_model_config *c);
/* Refuses by name what this version does not do. */
assay_status assay_layout_check_supported(const assay_parallel_config *p);
/* assay_grid_check_cut behind it. */
assay_status assay_grid_check_model(assay_grid *g, const assay_model_config *c);

void assay_grid_coords(const assay_grid *g, int rank, assay_coords *out);
int assay_grid_rank(const assay_grid *g, int tp, int cp, int dp, int pp);
/* Coordinate of a rank along an axis; 0 for ASSAY_AXIS_NONE. */
int assay_grid_coord(const assay_grid *g, assay_axis axis, int rank);
/* The group that spans exactly this axis; ASSAY_GROUP_COUNT for ASSAY_AXIS_NONE.  "tp", "edp", ... */
assay_group assay_axis_group(assay_axis axis);
const char *assay_axis_name(assay_axis axis);

/* The group of kind `kind` that contains `rank`; in constant time, whatever the size of the world. */
assay_group_shape assay_grid_group_shape(const assay_grid *g, assay_group kind, int rank);
/* Member number `index` (0 ... size-1), ascending. */
int assay_group_member(const assay_group_shape *s, int index);
/* Position of `rank` among the members, -1 when it is none. */
int assay_group_index(const assay_group_shape *s, int rank);
/* The same as a list: returns the count; `out` (count entries, at most g->world) and `index` (the position of
 * `rank`) may be NULL.  A rank that belongs to no group of that kind gets 0 and index -1. */
int assay_grid_group(const assay_grid *g, assay_group kind, int rank, int *out, int *index);
/* "tp", "dp_cp", "ep", ... */
const char *assay_group_name(assay_group kind);
/* Number of the group among its kind: the lowest member's rank (an ncclCommSplit colour); -1 when in none. */
int assay_grid_color(const assay_grid *g, assay_group kind, int rank);

/* Decoder layers of chunk `chunk` (0 ... vpp-1) of pipeline stage pp: [*first, *first + *count).  Layers are
 * dealt to the virtual stages chunk*PP + pp in order, as in Megatron-LM's interleaved schedule; how many each gets the
 * layout says (docs/LAYOUTS.md 4).  core/model/stages.c. */
void assay_grid_stage_layers(const assay_grid *g, const assay_model_config *c, int pp, int chunk,
                             int64_t *first, int64_t *count);
/* Which virtual stage holds a decoder layer: the inverse of assay_grid_stage_layers. */
void assay_grid_layer_stage(const assay_grid *g, const assay_model_config *c, int64_t layer, int *pp,
                            int *chunk);

/* Checks that the layers can be cut in virtual stages that way. */
assay_status assay_stages_check(const assay_grid *g, const assay_model_config *c);

/* Balanced split of n into `parts`: the first n % parts pieces are one longer.  Legal for n < parts (empty
 * pieces). */
void assay_split(int64_t n, int parts, int index, int64_t *start, int64_t *length);

ASSAY_END_DECLS

#endif
