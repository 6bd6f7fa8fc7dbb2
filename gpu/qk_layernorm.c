/* Norms of q and k, of each head or over all of them. */
#include "gpu/qk_layernorm.h"

#include "gpu/call.h"
#include "gpu/describe.h"
#include "gpu/parallel/tensor.h"

typedef struct names {
    const char *norm, *sumsq, *reduce, *dot, *reduce_grad;
} names;
static const names of[] = {
    [GPU_QK_Q] = {"self_attention.q_layernorm", "self_attention.q_layernorm.sumsq",
                  "self_attention.q_layernorm.reduce", "self_attention.q_layernorm.dot",
                  "self_attention.q_layernorm.reduce_grad"},
    [GPU_QK_K] = {"self_attention.k_layernorm", "self_attention.k_layernorm.sumsq",
                  "self_attention.k_layernorm.reduce", "self_attention.k_layernorm.dot",
                  "self_attention.k_layernorm.reduce_grad"},
};

/* The ranks whose heads make up a row: those of tp, of a key head that several hold one. */
static assay_group group_of(const gpu_model *m, gpu_qk which)
{
    return which == GPU_QK_K && m->kv_shared ? ASSAY_GROUP_KV_HEAD : ASSAY_GROUP_TP;
}

static bool is_cut(const gpu_model *m, gpu_qk which)
{
    return m->config->qk_layernorm_full_width && m->run->comm.group[group_of(m, which)].size > 1;
}

/* Columns of a whole row. */
static int64_t width_of(const gpu_model *m, gpu_qk which)
{
    const assay_model_config *c = m->config;
    return (which == GPU_QK_Q ? c->num_attention_heads : c->num_query_groups) * c->kv_channels;
}

gpu_value gpu_qk_layernorm_rows(const gpu_model *m, gpu_arena *arena, gpu_qk which)
{
    if (m->config->qk_layernorm_full_width)
        return gpu_token_rows(m, arena, false);
    const gpu_dim heads =
        which == GPU_QK_Q ? gpu_dim_split(m->config->num_attention_heads, 1, m->tp, m->at.tp) : gpu_dim_kv(m);
    return gpu_tokens(m, arena, false, heads);
}

assay_status gpu_qk_layernorm_fwd(gpu_model *m, gpu_arena *keep, gpu_qk which, gpu_param *gamma, gpu_value *y,
                                  gpu_value *rstd, gpu_value *x)
{
    gpu_run *run = m->run;
    const names *n = &of[which];
    const assay_group group = group_of(m, which);
    gpu_value sumsq, all;
    gpu_value_set(rstd, gpu_qk_layernorm_rows(m, keep, which));
    if (!is_cut(m, which))
        return GPU_CALL(run, "rmsnorm_fwd", n->norm, GPU_T("x", x), GPU_T("gamma", gpu_param_use(m, gamma)),
                        GPU_F("eps", m->eps), GPU_T("y", y), GPU_T("rstd", rstd));
    ASSAY_TRY(
        GPU_CALL(run, "rmsnorm_sumsq", n->sumsq, GPU_T("x", x), GPU_I("columns", gamma->count),
                 GPU_NEW("y", &sumsq, gpu_partial(m, gpu_qk_layernorm_rows(m, &m->scratch, which), group))));
    ASSAY_TRY(gpu_all_reduce(m, n->reduce, group,
                             gpu_value_set(&all, gpu_qk_layernorm_rows(m, &m->scratch, which)), &sumsq));
    return GPU_CALL(run, "rmsnorm_apply", n->norm, GPU_T("x", x), GPU_T("gamma", gpu_param_use(m, gamma)),
                    GPU_T("sumsq", &all), GPU_F("eps", m->eps), GPU_I("width", width_of(m, which)),
                    GPU_T("y", y), GPU_T("rstd", rstd));
}

assay_status gpu_qk_layernorm_bwd(gpu_model *m, gpu_qk which, gpu_param *gamma, gpu_value *dx, gpu_value *dy,
                                  gpu_value *x, gpu_value *rstd)
{
    gpu_run *run = m->run;
    const names *n = &of[which];
    const bool shared = which == GPU_QK_K && m->kv_shared; /* dy is then this rank's part of it */
    gpu_value dot, all;
    if (!is_cut(m, which))
        return GPU_CALL(run, "rmsnorm_bwd", n->norm, GPU_T("dy", dy), GPU_T("x", x),
                        GPU_T("gamma", gpu_param_use(m, gamma)), GPU_T("rstd", rstd),
                        GPU_T("dgamma", gpu_param_grad(m, gamma)), GPU_F("eps", m->eps), GPU_T("dx", dx));
    ASSAY_TRY(GPU_CALL(
        run, "rmsnorm_bwd_dot", n->dot, GPU_T("dy", dy), GPU_T("x", x),
        GPU_T("gamma", gpu_param_use(m, gamma)), GPU_T("rstd", rstd),
        GPU_NEW("y", &dot, gpu_partial(m, gpu_qk_layernorm_rows(m, &m->scratch, which), ASSAY_GROUP_TP))));
    gpu_value_set(&all, gpu_qk_layernorm_rows(m, &m->scratch, which));
    if (shared)
        all = gpu_partial(m, all, ASSAY_GROUP_KV);
    ASSAY_TRY(gpu_all_reduce(m, n->reduce_grad, group_of(m, which), &all, &dot));
    return GPU_CALL(run, "rmsnorm_bwd_apply", n->norm, GPU_T("dy", dy), GPU_T("x", x),
                    GPU_T("gamma", gpu_param_use(m, gamma)), GPU_T("rstd", rstd), GPU_T("dot", &all),
                    GPU_I("width", width_of(m, which)), GPU_T("dgamma", gpu_param_grad(m, gamma)),
                    GPU_T("dx", dx));
}
