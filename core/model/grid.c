/* Rank grid.  Source: Megatron-LM parallel_state.py, order "tp-cp-ep-dp-pp"; docs/LAYOUTS.md. */
#include "core/model/grid.h"

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
    [ASSAY_GROUP_EDP] = "edp",
    [ASSAY_GROUP_MODEL] = "model",
    [ASSAY_GROUP_EMBEDDING] = "embedding",
};

static assay_status check_size(const char *name, int value)
{
    ASSAY_CHECK(value >= 1 && value <= ASSAY_MAX_WORLD, ASSAY_INVALID_ARGUMENT,
                "layout: %s: expected 1 to %d, found %d", name, ASSAY_MAX_WORLD, value);
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
    /* Each factor is at most 2^12, so that none of these products of four overflows. */
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
    *out = (assay_grid){.p = *p, .world = (int)world, .edp = (int)(stage / expert)};
    return ASSAY_OK;
}

/* `n` things are cut by an axis; the axis must divide them. */
static assay_status check_divides(const char *axis, int size, int64_t n, const char *things)
{
    ASSAY_CHECK(n % size == 0, ASSAY_INVALID_ARGUMENT, "layout: %s%d does not divide %lld %s", axis, size,
                (long long)n, things);
    return ASSAY_OK;
}

static assay_status check_supported(const assay_parallel_config *p)
{
    ASSAY_CHECK(p->context_parallel_size == 1, ASSAY_UNSUPPORTED,
                "layout: cp%d: context parallelism is not supported in this version",
                p->context_parallel_size);
    ASSAY_CHECK(p->expert_tensor_parallel_size == 1, ASSAY_UNSUPPORTED,
                "layout: etp%d: expert tensor parallelism is not supported in this version",
                p->expert_tensor_parallel_size);
    ASSAY_CHECK(p->virtual_pipeline_model_parallel_size == 1, ASSAY_UNSUPPORTED,
                "layout: vpp%d: interleaved pipelines are not supported in this version",
                p->virtual_pipeline_model_parallel_size);
    ASSAY_CHECK(p->zero_stage <= 1, ASSAY_UNSUPPORTED,
                "layout: zero%d: only zero0 and zero1 are supported in this version", p->zero_stage);
    return ASSAY_OK;
}

assay_status assay_grid_check_model(const assay_grid *g, const assay_model_config *c)
{
    const assay_parallel_config *p = &g->p;
    ASSAY_TRY(check_supported(p));
    const int tp = p->tensor_model_parallel_size, pp = p->pipeline_model_parallel_size;
    bool has_dense = false;
    for (int64_t l = 0; l < c->num_layers; l++)
        has_dense = has_dense || !c->layer_is_moe[l];
    ASSAY_TRY(check_divides("tp", tp, c->num_attention_heads, "attention heads"));
    ASSAY_TRY(check_divides("tp", tp, c->num_query_groups, "query groups (key/value heads)"));
    if (has_dense)
        ASSAY_TRY(check_divides("tp", tp, c->ffn_hidden_size, "rows of ffn_hidden_size"));
    ASSAY_TRY(
        check_divides("tp", tp, c->moe_shared_expert_intermediate_size, "rows of the shared expert's ffn"));
    ASSAY_CHECK(p->expert_model_parallel_size == 1 || c->num_moe_experts > 0, ASSAY_INVALID_ARGUMENT,
                "layout: ep%d, but the model has no experts", p->expert_model_parallel_size);
    ASSAY_TRY(check_divides("ep", p->expert_model_parallel_size, c->num_moe_experts, "experts"));
    ASSAY_CHECK(pp <= c->num_layers, ASSAY_INVALID_ARGUMENT, "layout: pp%d, but the model has %lld layers",
                pp, (long long)c->num_layers);
    ASSAY_TRY(check_divides("pp", pp, c->num_layers, "layers"));
    return ASSAY_OK;
}

void assay_grid_coords(const assay_grid *g, int rank, assay_coords *out)
{
    const assay_parallel_config *p = &g->p;
    int rest = rank;
    out->tp = rest % p->tensor_model_parallel_size;
    rest /= p->tensor_model_parallel_size;
    out->cp = rest % p->context_parallel_size;
    rest /= p->context_parallel_size;
    out->dp = rest % p->data_parallel_size;
    out->pp = rest / p->data_parallel_size;

    rest = rank;
    out->etp = rest % p->expert_tensor_parallel_size;
    rest /= p->expert_tensor_parallel_size;
    out->ep = rest % p->expert_model_parallel_size;
    rest /= p->expert_model_parallel_size;
    out->edp = rest % g->edp;
}

int assay_grid_rank(const assay_grid *g, int tp, int cp, int dp, int pp)
{
    const assay_parallel_config *p = &g->p;
    return tp + p->tensor_model_parallel_size *
                    (cp + p->context_parallel_size * (dp + p->data_parallel_size * pp));
}

/* Whether two ranks are in the same group: every coordinate that the group does not span is equal. */
static bool same_group(const assay_grid *g, assay_group kind, const assay_coords *a, const assay_coords *b)
{
    const int last = g->p.pipeline_model_parallel_size - 1;
    const bool tp = a->tp == b->tp, cp = a->cp == b->cp, dp = a->dp == b->dp, pp = a->pp == b->pp;
    switch (kind) {
    case ASSAY_GROUP_WORLD:
        return true;
    case ASSAY_GROUP_TP:
        return cp && dp && pp;
    case ASSAY_GROUP_CP:
        return tp && dp && pp;
    case ASSAY_GROUP_DP:
        return tp && cp && pp;
    case ASSAY_GROUP_DP_CP:
        return tp && pp;
    case ASSAY_GROUP_TP_CP:
        return dp && pp;
    case ASSAY_GROUP_TP_DP_CP:
        return pp;
    case ASSAY_GROUP_PP:
        return tp && cp && dp;
    case ASSAY_GROUP_EP:
        return a->etp == b->etp && a->edp == b->edp && pp;
    case ASSAY_GROUP_ETP:
        return a->ep == b->ep && a->edp == b->edp && pp;
    case ASSAY_GROUP_EDP:
        return a->etp == b->etp && a->ep == b->ep && pp;
    case ASSAY_GROUP_MODEL:
        return cp && dp;
    case ASSAY_GROUP_EMBEDDING:
        return tp && cp && dp && (a->pp == 0 || a->pp == last) && (b->pp == 0 || b->pp == last);
    case ASSAY_GROUP_COUNT:
        break;
    }
    return false;
}

int assay_grid_group(const assay_grid *g, assay_group kind, int rank, int *out, int *index)
{
    assay_coords mine, other;
    assay_grid_coords(g, rank, &mine);
    int count = 0, position = -1;
    for (int r = 0; r < g->world; r++) {
        assay_grid_coords(g, r, &other);
        if (!same_group(g, kind, &mine, &other))
            continue;
        if (r == rank)
            position = count;
        if (out != NULL)
            out[count] = r;
        count++;
    }
    if (index != NULL)
        *index = position;
    return count;
}

const char *assay_group_name(assay_group kind)
{
    const int64_t index = (int64_t)kind;
    return index >= 0 && index < ASSAY_GROUP_COUNT ? group_names[index] : "?";
}

int assay_grid_color(const assay_grid *g, assay_group kind, int rank)
{
    assay_coords mine, other;
    assay_grid_coords(g, rank, &mine);
    for (int r = 0; r < g->world; r++) {
        assay_grid_coords(g, r, &other);
        if (same_group(g, kind, &mine, &other))
            return r;
    }
    return -1;
}

void assay_grid_stage_layers(const assay_grid *g, const assay_model_config *c, int pp, int64_t *first,
                             int64_t *count)
{
    assay_split(c->num_layers, g->p.pipeline_model_parallel_size, pp, first, count);
}

void assay_split(int64_t n, int parts, int index, int64_t *start, int64_t *length)
{
    const int64_t base = n / parts, longer = n % parts;
    *start = index * base + (index < longer ? index : longer);
    *length = base + (index < longer ? 1 : 0);
}
