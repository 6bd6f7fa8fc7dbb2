/* Norms of q and k: of each head, or over all of them, whose sums then go over the ranks that hold them. */
#include "parity/checks/plan.h"

/* The ranks whose heads make up a row. */
static assay_group group_of(const plan *p, bool key)
{
    return key && p->job->config->num_query_groups < p->tp ? ASSAY_GROUP_KV_HEAD : ASSAY_GROUP_TP;
}

static bool is_cut(const plan *p, bool key)
{
    return p->job->config->qk_layernorm_full_width && plan_group_size(p, group_of(p, key)) > 1;
}

static int64_t width_of(const plan *p, bool key)
{
    const assay_model_config *c = p->job->config;
    return (key ? c->num_query_groups : c->num_attention_heads) * c->kv_channels;
}

static plan_tensor sum_of_ranks(plan *p, const char *at, bool key, plan_tensor part)
{
    const plan_tensor all = plan_value(p, at, "recv", p->accumulated);
    plan_add_collective(p, "all_reduce", at, group_of(p, key), p->accumulated);
    plan_in(p, "send", part);
    plan_out(p, "recv", all);
    return all;
}

plan_norm plan_qk_layernorm(plan *p, const char *at, bool key, plan_tensor x)
{
    if (!is_cut(p, key))
        return plan_rmsnorm(p, at, x);
    const char *sumsq = plan_text(p, "%s.sumsq", at);
    const plan_tensor part = plan_value(p, sumsq, "y", p->accumulated);
    plan_add(p, "rmsnorm_sumsq", sumsq);
    plan_in(p, "x", x);
    plan_out(p, "y", part);
    plan_int(p, "columns", (key ? plan_local_groups(p) : plan_local_heads(p)) * p->job->config->kv_channels);
    const plan_tensor all = sum_of_ranks(p, plan_text(p, "%s.reduce", at), key, part);
    const plan_norm n = {.x = x,
                         .y = plan_value(p, at, "y", p->act),
                         .rstd = plan_value(p, at, "rstd", p->accumulated),
                         .eps = p->job->config->layernorm_epsilon};
    plan_add(p, "rmsnorm_apply", at);
    plan_in(p, "x", x);
    plan_in(p, "gamma", plan_param(p, plan_text(p, "%s.weight", at)));
    plan_in(p, "sumsq", all);
    plan_out(p, "y", n.y);
    plan_out(p, "rstd", n.rstd);
    plan_f32(p, "eps", n.eps);
    plan_int(p, "width", width_of(p, key));
    return n;
}

void plan_qk_layernorm_backward(plan *p, const char *at, bool key, const plan_norm *n, plan_tensor dy,
                                plan_tensor dx)
{
    if (!is_cut(p, key)) {
        plan_rmsnorm_backward(p, at, n, dy, dx);
        return;
    }
    const char *gamma = plan_text(p, "%s.weight", at), *dot = plan_text(p, "%s.dot", at);
    const plan_tensor part = plan_value(p, dot, "y", p->accumulated);
    plan_add(p, "rmsnorm_bwd_dot", dot);
    plan_in(p, "dy", dy);
    plan_in(p, "x", n->x);
    plan_in(p, "gamma", plan_param(p, gamma));
    plan_in(p, "rstd", n->rstd);
    plan_out(p, "y", part);
    const plan_tensor all = sum_of_ranks(p, plan_text(p, "%s.reduce_grad", at), key, part);
    plan_add(p, "rmsnorm_bwd_apply", at);
    plan_in(p, "dy", dy);
    plan_in(p, "x", n->x);
    plan_in(p, "gamma", plan_param(p, gamma));
    plan_in(p, "rstd", n->rstd);
    plan_in(p, "dot", all);
    if (!plan_is_frozen(p, gamma))
        plan_accumulate(p, "dgamma", gamma);
    plan_out(p, "dx", dx);
    plan_int(p, "width", width_of(p, key));
}
