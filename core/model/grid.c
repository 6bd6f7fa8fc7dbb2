/* Rank grid.  Source: Megatron-LM parallel_state.py, order "tp-cp-ep-dp-pp"; docs/LAYOUTS.md. */
#include "core/model/grid.h"

#include "core/model/shard.h"
#include <assert.h>
#include <string.h>

static const char *const group_names[ASSAY_GROUP_COUNT] = {
    [ASSAY_GROUP_WORLD] = "world",
    [ASSAY_GROUP_TP] = "tp",
    [ASSAY_GROUP_CP] = "cp",
    [ASSAY_GROUP_DP] = "dp",
    [ASSAY_GROUP_DP_CP] = "dp_cp",
    [ASSAY_GROUP_TP_CP] = "tp_cp",
    [ASSAY_GROUP_TP_DP_CP] = "tp_dp_cp",
    [ASSAY_GROUP_PP] = "pp",
    [ASSAY_GROUP_EP] = "ep",
    [ASSAY_GROUP_ETP] = "etp",
    [ASSAY_GROUP_ETP_EP] = "etp_ep",
    [ASSAY_GROUP_EDP] = "edp",
    [ASSAY_GROUP_MODEL] = "model",
    [ASSAY_GROUP_KV] = "kv",
    [ASSAY_GROUP_KV_HEAD] = "kv_head",
    [ASSAY_GROUP_EMBEDDING] = "embedding",
    [ASSAY_GROUP_INTRA_DP_CP] = "intra_dp_cp",
    [ASSAY_GROUP_INTER_DP_CP] = "inter_dp_cp",
    [ASSAY_GROUP_INTRA_EDP] = "intra_edp",
    [ASSAY_GROUP_INTER_EDP] = "inter_edp",
};

/* --- axes ---------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    assay_group group; /* spans this axis alone */
} axes[ASSAY_AXIS_COUNT] = {
    [ASSAY_AXIS_NONE] = {"none", ASSAY_GROUP_COUNT}, [ASSAY_AXIS_TP] = {"tp", ASSAY_GROUP_TP},
    [ASSAY_AXIS_CP] = {"cp", ASSAY_GROUP_CP},        [ASSAY_AXIS_DP] = {"dp", ASSAY_GROUP_DP},
    [ASSAY_AXIS_PP] = {"pp", ASSAY_GROUP_PP},        [ASSAY_AXIS_ETP] = {"etp", ASSAY_GROUP_ETP},
    [ASSAY_AXIS_EP] = {"ep", ASSAY_GROUP_EP},        [ASSAY_AXIS_EDP] = {"edp", ASSAY_GROUP_EDP},
    [ASSAY_AXIS_KV] = {"kv", ASSAY_GROUP_KV},        [ASSAY_AXIS_KV_HEAD] = {"kv_head", ASSAY_GROUP_KV_HEAD},
};

/* Both grids, the axis that varies fastest first. */
enum { N_GRIDS = 2, GRID_AXES = 4 };
static const assay_axis order[N_GRIDS][GRID_AXES] = {
    {ASSAY_AXIS_TP, ASSAY_AXIS_CP, ASSAY_AXIS_DP, ASSAY_AXIS_PP},
    {ASSAY_AXIS_ETP, ASSAY_AXIS_EP, ASSAY_AXIS_EDP, ASSAY_AXIS_PP},
};

/* Axes that a group spans, ascending strides; EMBEDDING spans the ends of pp and is treated by itself. */
static const assay_axis spans[ASSAY_GROUP_COUNT][GRID_AXES] = {
    [ASSAY_GROUP_WORLD] = {ASSAY_AXIS_TP, ASSAY_AXIS_CP, ASSAY_AXIS_DP, ASSAY_AXIS_PP},
    [ASSAY_GROUP_TP] = {ASSAY_AXIS_TP},
    [ASSAY_GROUP_CP] = {ASSAY_AXIS_CP},
    [ASSAY_GROUP_DP] = {ASSAY_AXIS_DP},
    [ASSAY_GROUP_DP_CP] = {ASSAY_AXIS_CP, ASSAY_AXIS_DP},
    [ASSAY_GROUP_TP_CP] = {ASSAY_AXIS_TP, ASSAY_AXIS_CP},
    [ASSAY_GROUP_TP_DP_CP] = {ASSAY_AXIS_TP, ASSAY_AXIS_CP, ASSAY_AXIS_DP},
    [ASSAY_GROUP_PP] = {ASSAY_AXIS_PP},
    [ASSAY_GROUP_EP] = {ASSAY_AXIS_EP},
    [ASSAY_GROUP_ETP] = {ASSAY_AXIS_ETP},
    [ASSAY_GROUP_ETP_EP] = {ASSAY_AXIS_ETP, ASSAY_AXIS_EP},
    [ASSAY_GROUP_EDP] = {ASSAY_AXIS_EDP},
    [ASSAY_GROUP_MODEL] = {ASSAY_AXIS_TP, ASSAY_AXIS_PP},
    [ASSAY_GROUP_KV] = {ASSAY_AXIS_KV},
    [ASSAY_GROUP_KV_HEAD] = {ASSAY_AXIS_KV_HEAD},
    [ASSAY_GROUP_EMBEDDING] = {ASSAY_AXIS_PP},
};

const char *assay_axis_name(assay_axis axis)
{
    const int64_t index = (int64_t)axis;
    return index >= 0 && index < ASSAY_AXIS_COUNT ? axes[index].name : "?";
}

assay_group assay_axis_group(assay_axis axis)
{
    return axes[axis].group;
}

int assay_grid_coord(const assay_grid *g, assay_axis axis, int rank)
{
    return rank / g->stride[axis] % g->size[axis];
}

/* kv_replicas: tp ranks that hold the same key/value head. */
static void fill_axes(assay_grid *g, int kv_replicas)
{
    const assay_parallel_config *p = &g->p;
    const int sizes[ASSAY_AXIS_COUNT] = {
        [ASSAY_AXIS_NONE] = 1,
        [ASSAY_AXIS_TP] = p->tensor_model_parallel_size,
        [ASSAY_AXIS_CP] = p->context_parallel_size,
        [ASSAY_AXIS_DP] = p->data_parallel_size,
        [ASSAY_AXIS_PP] = p->pipeline_model_parallel_size,
        [ASSAY_AXIS_ETP] = p->expert_tensor_parallel_size,
        [ASSAY_AXIS_EP] = p->expert_model_parallel_size,
        [ASSAY_AXIS_EDP] = g->edp,
        [ASSAY_AXIS_KV] = kv_replicas,
        [ASSAY_AXIS_KV_HEAD] = p->tensor_model_parallel_size / kv_replicas,
    };
    memcpy(g->size, sizes, sizeof sizes);
    g->stride[ASSAY_AXIS_NONE] = 1;
    g->stride[ASSAY_AXIS_KV] = 1;
    g->stride[ASSAY_AXIS_KV_HEAD] = kv_replicas;
    for (int k = 0; k < N_GRIDS; k++) {
        int stride = 1;
        for (int i = 0; i < GRID_AXES; i++) {
            g->stride[order[k][i]] = stride;
            stride *= sizes[order[k][i]];
        }
    }
}

/* --- sizes --------------------------------------------------------------------------------------------------- */

static assay_status check_size(const char *name, int value)
{
    ASSAY_CHECK(value >= 1 && value <= ASSAY_MAX_WORLD, ASSAY_INVALID_ARGUMENT,
                "layout: %s: expected 1 to %d, found %d", name, ASSAY_MAX_WORLD, value);
    return ASSAY_OK;
}

/* One way of cutting the layers at a time, as in Megatron-LM. */
static assay_status check_split(const assay_parallel_config *p)
{
    const bool ends = p->num_layers_in_first_pipeline_stage > 0 || p->num_layers_in_last_pipeline_stage > 0;
    const bool accounts = p->account_for_embedding_in_pipeline_split || p->account_for_loss_in_pipeline_split;
    const bool text = p->pipeline_model_parallel_layout[0] != '\0';
    ASSAY_CHECK(ends + accounts + text <= 1, ASSAY_INVALID_ARGUMENT,
                "layout: expected one of first and last, embed and loss, stages, found %s",
                ends && accounts && text ? "all three"
                : ends && accounts       ? "first or last with embed or loss"
                : ends                   ? "first or last with stages"
                                         : "embed or loss with stages");
    ASSAY_CHECK(
        p->pipeline_model_parallel_size > 1 || !(ends || accounts || text), ASSAY_INVALID_ARGUMENT,
        "layout: first, last, embed, loss and stages cut layers in stages: they need pp of at least 2, "
        "found pp1");
    return ASSAY_OK;
}

/* Every copy of a sharded state is cut over equally many ranks, of dense parameters and of experts. */
static assay_status check_instances(const assay_parallel_config *p, int64_t dp_cp, int64_t edp)
{
    const int n = p->num_distributed_optimizer_instances;
    ASSAY_TRY(check_size("hsdp", n));
    ASSAY_CHECK(n == 1 || p->zero_stage >= 1, ASSAY_INVALID_ARGUMENT,
                "layout: hsdp%d needs zero1, zero2 or zero3: without them nothing is sharded", n);
    ASSAY_CHECK(dp_cp % n == 0, ASSAY_INVALID_ARGUMENT, "layout: hsdp%d does not divide dp*cp = %lld", n,
                (long long)dp_cp);
    ASSAY_CHECK(edp % n == 0, ASSAY_INVALID_ARGUMENT,
                "layout: hsdp%d does not divide the %lld replicas of an expert (edp)", n, (long long)edp);
    return ASSAY_OK;
}

assay_status assay_grid_make(const assay_parallel_config *p, assay_grid *out)
{
    ASSAY_TRY(check_size("tp", p->tensor_model_parallel_size));
    ASSAY_TRY(check_size("pp", p->pipeline_model_parallel_size));
    ASSAY_TRY(check_size("vpp", p->virtual_pipeline_model_parallel_size));
    ASSAY_TRY(check_size("cp", p->context_parallel_size));
    ASSAY_TRY(check_size("ep", p->expert_model_parallel_size));
    ASSAY_TRY(check_size("etp", p->expert_tensor_parallel_size));
    ASSAY_TRY(check_size("dp", p->data_parallel_size));
    ASSAY_CHECK(p->zero_stage >= 0 && p->zero_stage <= 3, ASSAY_INVALID_ARGUMENT,
                "layout: zero: expected 0 to 3, found %d", p->zero_stage);
    ASSAY_CHECK(!p->sequence_parallel || p->tensor_model_parallel_size > 1, ASSAY_INVALID_ARGUMENT,
                "layout: sp needs tp of at least 2, found tp1");
    ASSAY_CHECK(p->virtual_pipeline_model_parallel_size == 1 || p->pipeline_model_parallel_size > 1,
                ASSAY_INVALID_ARGUMENT, "layout: vpp%d needs pp of at least 2, found pp1",
                p->virtual_pipeline_model_parallel_size);
    /* Each factor is at most 2^14, so that none of these products of four overflows. */
    const int64_t stage =
        (int64_t)p->tensor_model_parallel_size * p->context_parallel_size * p->data_parallel_size;
    const int64_t world = stage * p->pipeline_model_parallel_size;
    const int64_t expert = (int64_t)p->expert_model_parallel_size * p->expert_tensor_parallel_size;
    ASSAY_CHECK(world <= ASSAY_MAX_WORLD, ASSAY_LIMIT, "layout: %lld ranks, at most %d are supported",
                (long long)world, ASSAY_MAX_WORLD);
    ASSAY_CHECK(stage % expert == 0, ASSAY_INVALID_ARGUMENT,
                "layout: ep*etp = %lld must divide tp*cp*dp = %lld (ep%d, etp%d, tp%d, cp%d, dp%d)",
                (long long)expert, (long long)stage, p->expert_model_parallel_size,
                p->expert_tensor_parallel_size, p->tensor_model_parallel_size, p->context_parallel_size,
                p->data_parallel_size);
    ASSAY_TRY(check_split(p));
    ASSAY_TRY(check_instances(p, stage / p->tensor_model_parallel_size, stage / expert));
    *out = (assay_grid){.p = *p, .world = (int)world, .edp = (int)(stage / expert)};
    fill_axes(out, 1);
    return ASSAY_OK;
}

/* `n` things are cut by an axis; the axis must divide them. */
static assay_status check_divides(const char *axis, int size, int64_t n, const char *things)
{
    ASSAY_CHECK(n % size == 0, ASSAY_INVALID_ARGUMENT, "layout: %s%d does not divide %lld %s", axis, size,
                (long long)n, things);
    return ASSAY_OK;
}

assay_status assay_layout_check_supported(const assay_parallel_config *p)
{
    ASSAY_CHECK(2 * (int64_t)p->context_parallel_size - 1 <= ASSAY_MAX_SEGMENTS, ASSAY_UNSUPPORTED,
                "layout: cp%d: at most cp%d is supported in this version", p->context_parallel_size,
                (ASSAY_MAX_SEGMENTS + 1) / 2);
    return ASSAY_OK;
}

assay_status assay_grid_check_model(assay_grid *g, const assay_model_config *c)
{
    ASSAY_TRY(assay_layout_check_supported(&g->p));
    return assay_grid_check_cut(g, c);
}

/* a2a deals out the heads and query groups of a tensor-parallel rank; it does not copy groups. */
static assay_status check_heads_over_cp(const assay_parallel_config *p, const assay_model_config *c)
{
    const int tp = p->tensor_model_parallel_size;
    const int64_t groups = c->num_query_groups < tp ? 1 : c->num_query_groups / tp;
    ASSAY_CHECK(groups % p->context_parallel_size == 0, ASSAY_UNSUPPORTED,
                "layout: cp%d,a2a does not divide the %lld query groups of a tensor-parallel rank",
                p->context_parallel_size, (long long)groups);
    return ASSAY_OK;
}

assay_status assay_grid_check_cut(assay_grid *g, const assay_model_config *c)
{
    const assay_parallel_config *p = &g->p;
    const int tp = p->tensor_model_parallel_size;
    bool has_dense = false;
    for (int64_t l = 0; l < c->num_layers; l++)
        has_dense = has_dense || c->mlp[l] == ASSAY_MLP_DENSE;
    ASSAY_TRY(check_divides("tp", tp, c->num_attention_heads, "attention heads"));
    const int64_t groups = c->num_query_groups;
    ASSAY_CHECK(groups % tp == 0 || tp % groups == 0, ASSAY_INVALID_ARGUMENT,
                "layout: tp%d does not divide %lld query groups (key/value heads), nor do they divide it", tp,
                (long long)groups);
    fill_axes(g, groups < tp ? (int)(tp / groups) : 1);
    if (p->cp_comm_type == ASSAY_CP_A2A)
        ASSAY_TRY(check_heads_over_cp(p, c));
    if (has_dense)
        ASSAY_TRY(check_divides("tp", tp, c->ffn_hidden_size, "rows of ffn_hidden_size"));
    ASSAY_TRY(
        check_divides("tp", tp, c->moe_shared_expert_intermediate_size, "rows of the shared expert's ffn"));
    ASSAY_CHECK(p->expert_model_parallel_size == 1 || c->num_moe_experts > 0, ASSAY_INVALID_ARGUMENT,
                "layout: ep%d, but the model has no experts", p->expert_model_parallel_size);
    ASSAY_TRY(check_divides("ep", p->expert_model_parallel_size, c->num_moe_experts, "experts"));
    ASSAY_CHECK(p->expert_tensor_parallel_size == 1 || c->num_moe_experts > 0, ASSAY_INVALID_ARGUMENT,
                "layout: etp%d, but the model has no experts", p->expert_tensor_parallel_size);
    if (c->num_moe_experts > 0)
        ASSAY_TRY(check_divides("etp", p->expert_tensor_parallel_size, c->moe_ffn_hidden_size,
                                "rows of moe_ffn_hidden_size"));
    return assay_stages_check(g, c);
}

void assay_grid_coords(const assay_grid *g, int rank, assay_coords *out)
{
    *out = (assay_coords){
        .tp = assay_grid_coord(g, ASSAY_AXIS_TP, rank),
        .cp = assay_grid_coord(g, ASSAY_AXIS_CP, rank),
        .dp = assay_grid_coord(g, ASSAY_AXIS_DP, rank),
        .pp = assay_grid_coord(g, ASSAY_AXIS_PP, rank),
        .etp = assay_grid_coord(g, ASSAY_AXIS_ETP, rank),
        .ep = assay_grid_coord(g, ASSAY_AXIS_EP, rank),
        .edp = assay_grid_coord(g, ASSAY_AXIS_EDP, rank),
    };
}

int assay_grid_rank(const assay_grid *g, int tp, int cp, int dp, int pp)
{
    const assay_parallel_config *p = &g->p;
    return tp + p->tensor_model_parallel_size *
                    (cp + p->context_parallel_size * (dp + p->data_parallel_size * pp));
}

/* --- groups --------------------------------------------------------------------------------------------------- */

/* One more level above the others; a level that continues the one below is folded into it. */
static void add_level(assay_group_shape *s, int stride, int count)
{
    if (count == 1)
        return;
    s->size *= count;
    if (s->n_levels > 0 && s->level[s->n_levels - 1].stride * s->level[s->n_levels - 1].count == stride) {
        s->level[s->n_levels - 1].count *= count;
        return;
    }
    s->level[s->n_levels].stride = stride;
    s->level[s->n_levels].count = count;
    s->n_levels++;
}

/* Groups that share, or repeat, one copy of a sharded state: neighbours of the whole group, or every n-th of it. */
static const struct {
    assay_group whole;
    bool intra;
} instances[ASSAY_GROUP_COUNT] = {
    [ASSAY_GROUP_INTRA_DP_CP] = {ASSAY_GROUP_DP_CP, true},
    [ASSAY_GROUP_INTER_DP_CP] = {ASSAY_GROUP_DP_CP, false},
    [ASSAY_GROUP_INTRA_EDP] = {ASSAY_GROUP_EDP, true},
    [ASSAY_GROUP_INTER_EDP] = {ASSAY_GROUP_EDP, false},
};

/* The whole group has one level: cp and dp are neighbours in the grid, edp is one axis. */
static assay_group_shape instance_shape(const assay_grid *g, assay_group kind, int rank)
{
    const assay_group_shape whole = assay_grid_group_shape(g, instances[kind].whole, rank);
    const int copies = g->p.num_distributed_optimizer_instances, shards = whole.size / copies;
    const int stride = whole.n_levels > 0 ? whole.level[0].stride : 1;
    const int index = assay_group_index(&whole, rank);
    assay_group_shape s = {.size = 1};
    assert(copies > 0 && shards > 0); /* the layout was checked */
    if (instances[kind].intra) {
        s.start = whole.start + index / shards * shards * stride;
        add_level(&s, stride, shards);
    } else {
        s.start = whole.start + index % shards * stride;
        add_level(&s, stride * shards, copies);
    }
    return s;
}

assay_group_shape assay_grid_group_shape(const assay_grid *g, assay_group kind, int rank)
{
    if (instances[kind].whole != ASSAY_GROUP_WORLD)
        return instance_shape(g, kind, rank);
    assay_group_shape s = {.start = rank, .size = 1};
    for (int i = 0; i < GRID_AXES && spans[kind][i] != ASSAY_AXIS_NONE; i++)
        s.start -= assay_grid_coord(g, spans[kind][i], rank) * g->stride[spans[kind][i]];
    if (kind == ASSAY_GROUP_EMBEDDING) {
        const int last = g->size[ASSAY_AXIS_PP] - 1, at = assay_grid_coord(g, ASSAY_AXIS_PP, rank);
        if (at != 0 && at != last)
            return (assay_group_shape){.start = -1};
        add_level(&s, last * g->stride[ASSAY_AXIS_PP], last > 0 ? 2 : 1);
        return s;
    }
    for (int i = 0; i < GRID_AXES && spans[kind][i] != ASSAY_AXIS_NONE; i++)
        add_level(&s, g->stride[spans[kind][i]], g->size[spans[kind][i]]);
    return s;
}

int assay_group_member(const assay_group_shape *s, int index)
{
    int rank = s->start;
    for (int l = 0; l < s->n_levels; l++) {
        rank += index % s->level[l].count * s->level[l].stride;
        index /= s->level[l].count;
    }
    return rank;
}

int assay_group_index(const assay_group_shape *s, int rank)
{
    int rest = rank - s->start, index = 0;
    if (s->size == 0 || rest < 0)
        return -1;
    for (int l = s->n_levels - 1; l >= 0; l--) {
        const int at = rest / s->level[l].stride;
        if (at >= s->level[l].count)
            return -1;
        index = index * s->level[l].count + at;
        rest -= at * s->level[l].stride;
    }
    return rest == 0 ? index : -1;
}

int assay_grid_group(const assay_grid *g, assay_group kind, int rank, int *out, int *index)
{
    const assay_group_shape s = assay_grid_group_shape(g, kind, rank);
    if (index != NULL)
        *index = assay_group_index(&s, rank);
    for (int i = 0; out != NULL && i < s.size; i++)
        out[i] = assay_group_member(&s, i);
    return s.size;
}

const char *assay_group_name(assay_group kind)
{
    const int64_t index = (int64_t)kind;
    return index >= 0 && index < ASSAY_GROUP_COUNT ? group_names[index] : "?";
}

int assay_grid_color(const assay_grid *g, assay_group kind, int rank)
{
    return assay_grid_group_shape(g, kind, rank).start;
}

void assay_split(int64_t n, int parts, int index, int64_t *start, int64_t *length)
{
    const int64_t base = n / parts, longer = n % parts;
    *start = index * base + (index < longer ? index : longer);
    *length = base + (index < longer ? 1 : 0);
}
