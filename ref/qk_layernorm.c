/* Norms of q and k on lockstep tensors. */
#include "ref/qk_layernorm.h"

#include "ref/lockstep.h"
#include "ref/parallel/collectives.h"

#include <string.h>

#define EACH_RANK(p, r) for (int r = 0; r < (p)->n; r++)

typedef struct names {
    const char *norm, *sumsq, *reduce, *dot, *reduce_grad;
} names;
static const names of[] = {
    [REF_QK_Q] = {"self_attention.q_layernorm", "self_attention.q_layernorm.sumsq",
                  "self_attention.q_layernorm.reduce", "self_attention.q_layernorm.dot",
                  "self_attention.q_layernorm.reduce_grad"},
    [REF_QK_K] = {"self_attention.k_layernorm", "self_attention.k_layernorm.sumsq",
                  "self_attention.k_layernorm.reduce", "self_attention.k_layernorm.dot",
                  "self_attention.k_layernorm.reduce_grad"},
};

/* The ranks whose heads make up a row: those of tp, of a key head that several hold one. */
static assay_group group_of(const ref_pass *p, ref_qk which)
{
    return which == REF_QK_K && p->e->grid.size[ASSAY_AXIS_KV] > 1 ? ASSAY_GROUP_KV_HEAD : ASSAY_GROUP_TP;
}

static bool is_cut(const ref_pass *p, ref_qk which)
{
    const assay_group group = group_of(p, which);
    return p->e->config->qk_layernorm_full_width && assay_grid_group_shape(&p->e->grid, group, 0).size > 1;
}

/* Columns of a whole row. */
static int64_t width_of(const ref_pass *p, ref_qk which)
{
    const assay_model_config *c = p->e->config;
    return (which == REF_QK_Q ? c->num_attention_heads : c->num_query_groups) * c->kv_channels;
}

/* all = the sum of `part` over the group, on every member */
static assay_status sum_over(ref_pass *p, ref_tensor *all, const ref_tensor *part, assay_group group,
                             const char *instance)
{
    double **data = p->e->recv;
    ASSAY_TRY(ref_new(p, all, instance, "recv"));
    EACH_RANK(p, r)
    {
        ASSAY_TRY(ref_piece_new(&p->arena, &all->at[r], part->at[r].rows, 1));
        memcpy(all->at[r].x, part->at[r].x, (size_t)part->at[r].rows * sizeof(double));
    }
    EACH_RANK(p, r)
    {
        const assay_group_shape g = ref_pass_group(p, group, r);
        for (int i = 0; i < g.size; i++)
            data[i] = all->at[assay_group_member(&g, i)].x;
        if (g.size > 0)
            ref_all_reduce(data, g.size, all->at[r].rows);
    }
    return ref_store(p, all, REF_STORE_STATISTIC);
}

assay_status ref_qk_layernorm_fwd(ref_pass *p, ref_tensor *y, ref_tensor *rstd, const ref_tensor *x,
                                  ref_qk which, int64_t gamma)
{
    const names *n = &of[which];
    ref_tensor sumsq, all;
    if (!is_cut(p, which))
        return ref_ranks_rmsnorm(p, y, rstd, x, gamma, n->norm);
    ASSAY_TRY(ref_new(p, &sumsq, n->sumsq, "y"));
    EACH_RANK(p, r)
    {
        const int64_t t = x->at[r].rows;
        ASSAY_TRY(ref_piece_new(&p->arena, &sumsq.at[r], t, 1));
        ref_rmsnorm_sumsq(sumsq.at[r].x, x->at[r].x, t, x->at[r].cols);
    }
    ASSAY_TRY(ref_store(p, &sumsq, REF_STORE_STATISTIC));
    ASSAY_TRY(sum_over(p, &all, &sumsq, group_of(p, which), n->reduce));
    ASSAY_TRY(ref_new(p, y, n->norm, "y"));
    ASSAY_TRY(ref_new(p, rstd, n->norm, "rstd"));
    y->heads = x->heads;
    EACH_RANK(p, r)
    {
        const int64_t t = x->at[r].rows, h = x->at[r].cols;
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], t, h));
        ASSAY_TRY(ref_piece_new(&p->arena, &rstd->at[r], t, 1));
        ref_rmsnorm_apply(y->at[r].x, rstd->at[r].x, x->at[r].x, ref_pass_param(p, r, gamma)->weight,
                          all.at[r].x, p->e->config->layernorm_epsilon, width_of(p, which), t, h);
    }
    ASSAY_TRY(ref_store(p, rstd, REF_STORE_STATISTIC));
    return ref_store(p, y, REF_STORE_ACT);
}

assay_status ref_qk_layernorm_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dy, const ref_tensor *x,
                                  const ref_tensor *rstd, ref_qk which, int64_t gamma)
{
    const names *n = &of[which];
    ref_tensor dot, all;
    if (!is_cut(p, which))
        return ref_ranks_rmsnorm_bwd(p, dx, dy, x, rstd, gamma, NULL);
    ASSAY_TRY(ref_new(p, &dot, n->dot, "y"));
    EACH_RANK(p, r)
    {
        const int64_t t = x->at[r].rows;
        ASSAY_TRY(ref_piece_new(&p->arena, &dot.at[r], t, 1));
        ref_rmsnorm_bwd_dot(dot.at[r].x, dy->at[r].x, x->at[r].x, ref_pass_param(p, r, gamma)->weight,
                            rstd->at[r].x, t, x->at[r].cols);
    }
    ASSAY_TRY(ref_store(p, &dot, REF_STORE_STATISTIC));
    ASSAY_TRY(sum_over(p, &all, &dot, group_of(p, which), n->reduce_grad));
    ASSAY_TRY(ref_new_grad(p, dx, x, NULL));
    EACH_RANK(p, r)
    {
        const ref_param *w = ref_pass_param(p, r, gamma);
        const int64_t t = x->at[r].rows, h = x->at[r].cols;
        ref_piece unused = {.x = w->grad}; /* the operation makes dx and dgamma together */
        if (!w->grad)
            ASSAY_TRY(ref_piece_new(&p->arena, &unused, 1, h));
        ASSAY_TRY(ref_piece_new(&p->arena, &dx->at[r], t, h));
        ref_rmsnorm_bwd_apply(dx->at[r].x, unused.x, dy->at[r].x, x->at[r].x, w->weight, rstd->at[r].x,
                              all.at[r].x, width_of(p, which), t, h);
    }
    ref_store_main_grad(p, gamma);
    return ref_store(p, dx, REF_STORE_ACT);
}
