/* Every operation on every rank: loops over the pieces, nothing else. */
#include "ref/lockstep.h"
#include "ref/replay.h"

#include "ref/fast.h"

#include <math.h>

#define EACH_RANK(p, r) for (int r = 0; r < (p)->n; r++)

assay_status ref_new(ref_pass *p, ref_tensor *t, const char *instance, const char *slot)
{
    char name[ASSAY_NAME];
    ref_pass_name(p, instance, slot, name);
    return ref_tensor_new(&p->arena, t, p->n, name);
}

assay_status ref_new_grad(ref_pass *p, ref_tensor *t, const ref_tensor *of, const char *instance)
{
    if (instance)
        return ref_new(p, t, instance, "dx");
    char name[ASSAY_NAME + 8];
    snprintf(name, sizeof name, "%s.grad", of->name);
    ASSAY_TRY(ref_tensor_new(&p->arena, t, p->n, name));
    t->heads = of->heads;
    t->token_rows = of->token_rows;
    return ASSAY_OK;
}

static assay_status trace_whole(ref_pass *p, const ref_tensor *t)
{
    const ref_piece *a = &t->at[0];
    int64_t shape[ASSAY_MAX_DIMS];
    int ndim = 0;
    if (t->token_rows) {
        shape[ndim++] = a->rows / p->e->batch;
        shape[ndim++] = p->e->batch;
    } else {
        shape[ndim++] = a->rows;
    }
    if (t->heads > 0) {
        shape[ndim++] = t->heads;
        shape[ndim++] = a->cols / t->heads;
    } else if (a->cols != 1) {
        shape[ndim++] = a->cols;
    }
    return ref_trace_tensor(p->e, t->name, p->phase, p->step, ref_pass_microbatch(p, 0), shape, ndim, a->x,
                            !t->token_rows);
}

assay_status ref_store(ref_pass *p, ref_tensor *t, ref_store_class class)
{
    EACH_RANK(p, r)
    ref_policy_store(&p->e->run->policy, class, p->phase == ASSAY_PHASE_BACKWARD, t->name, p->step,
                     ref_pass_microbatch(p, r), t->at[r].x, t->at[r].rows * t->at[r].cols);
    return p->e->run->trace ? trace_whole(p, t) : ASSAY_OK;
}

void ref_store_main_grad(ref_pass *p, int64_t param)
{
    char name[ASSAY_NAME + 16];
    snprintf(name, sizeof name, "%s.main_grad", p->e->spec->params[param].name);
    EACH_RANK(p, r)
    {
        const ref_param *w = ref_pass_param(p, r, param);
        if (!w->grad)
            continue;
        ref_policy_store(&p->e->run->policy, REF_STORE_STATE, false, name, p->step, ref_pass_microbatch(p, r),
                         w->grad, w->count);
    }
}

/* Where a product adds its weight gradient: the main gradient, or without gradient_accumulation_fusion zeros of its own. */
static assay_status begin_weight_grad(const ref_pass *p, int r, int64_t weight, double **grad)
{
    const ref_param *w = ref_pass_param(p, r, weight);
    *grad = w->grad;
    if (w->grad == NULL || p->e->options.gradient_accumulation_fusion)
        return ASSAY_OK;
    *grad = calloc((size_t)w->count + 1, sizeof **grad);
    ASSAY_CHECK(*grad, ASSAY_OUT_OF_MEMORY, "%s: out of memory: %lld elements",
                p->e->spec->params[weight].name, (long long)w->count);
    return ASSAY_OK;
}

/* The gradient of one product is stored as activations are, then added. */
static void end_weight_grad(const ref_pass *p, int r, int64_t weight, double *grad)
{
    const ref_param *w = ref_pass_param(p, r, weight);
    char name[ASSAY_NAME + 16];
    if (grad == w->grad)
        return;
    snprintf(name, sizeof name, "%s.grad", p->e->spec->params[weight].name);
    ref_policy_store(&p->e->run->policy, REF_STORE_LINEAR, true, name, p->step, ref_pass_microbatch(p, r),
                     grad, w->count);
    ref_add(w->grad, w->grad, grad, w->count);
    free(grad);
}

/* --- linear ------------------------------------------------------------------------------------------------- */

assay_status ref_ranks_linear(ref_pass *p, ref_tensor *y, const ref_tensor *x, int64_t weight, int64_t bias,
                              bool bias_on_first_tp_only, const char *instance, ref_store_class class)
{
    ASSAY_TRY(ref_new(p, y, instance, "y"));
    EACH_RANK(p, r)
    {
        const ref_param *w = ref_pass_param(p, r, weight);
        const int64_t t = x->at[r].rows, n = w->shard.local_shape[0], k = w->shard.local_shape[1];
        const bool add_bias = bias >= 0 && (!bias_on_first_tp_only || p->ranks[r].at.tp == 0);
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], t, n));
        ref_fast_linear_fwd(y->at[r].x, x->at[r].x, w->weight,
                            add_bias ? ref_pass_param(p, r, bias)->weight : NULL, t, n, k);
    }
    return ref_store(p, y, class);
}

assay_status ref_ranks_linear_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dy, const ref_tensor *x,
                                  int64_t weight, int64_t bias, const char *instance)
{
    ASSAY_TRY(ref_new_grad(p, dx, x, instance));
    EACH_RANK(p, r)
    {
        const ref_param *w = ref_pass_param(p, r, weight);
        const int64_t t = x->at[r].rows, n = w->shard.local_shape[0], k = w->shard.local_shape[1];
        ASSAY_TRY(ref_piece_new(&p->arena, &dx->at[r], t, k));
        ref_fast_linear_bwd_input(dx->at[r].x, dy->at[r].x, w->weight, t, n, k);
        double *dbias = bias >= 0 ? ref_pass_param(p, r, bias)->grad : NULL;
        double *grad;
        ASSAY_TRY(begin_weight_grad(p, r, weight, &grad));
        if (w->grad)
            ref_fast_linear_bwd_weight(grad, dy->at[r].x, x->at[r].x, t, n, k);
        end_weight_grad(p, r, weight, grad);
        if (dbias)
            ref_linear_bwd_bias(dbias, dy->at[r].x, t, n);
    }
    ref_store_main_grad(p, weight);
    if (bias >= 0)
        ref_store_main_grad(p, bias);
    return ref_store(p, dx, REF_STORE_LINEAR);
}

/* --- norm --------------------------------------------------------------------------------------------------- */

assay_status ref_ranks_rmsnorm(ref_pass *p, ref_tensor *y, ref_tensor *rstd, const ref_tensor *x,
                               int64_t gamma, const char *instance)
{
    return ref_ranks_rmsnorm_of(p, y, rstd, x, gamma, p->e->config->layernorm_epsilon, instance);
}

assay_status ref_ranks_rmsnorm_of(ref_pass *p, ref_tensor *y, ref_tensor *rstd, const ref_tensor *x,
                                  int64_t gamma, double eps, const char *instance)
{
    ASSAY_TRY(ref_new(p, y, instance, "y"));
    ASSAY_TRY(ref_new(p, rstd, instance, "rstd"));
    y->heads = x->heads;
    EACH_RANK(p, r)
    {
        const ref_param *w = ref_pass_param(p, r, gamma);
        const int64_t rows = x->at[r].rows, cols = x->at[r].cols, h = w->count;
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], rows, cols));
        ASSAY_TRY(ref_piece_new(&p->arena, &rstd->at[r], rows, cols / h));
        ref_rmsnorm_fwd(y->at[r].x, rstd->at[r].x, x->at[r].x, w->weight, eps, rows * (cols / h), h);
    }
    ASSAY_TRY(ref_store(p, rstd, REF_STORE_STATISTIC));
    return ref_store(p, y, REF_STORE_ACT);
}

assay_status ref_ranks_rmsnorm_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dy, const ref_tensor *x,
                                   const ref_tensor *rstd, int64_t gamma, const char *instance)
{
    ASSAY_TRY(ref_new_grad(p, dx, x, instance));
    EACH_RANK(p, r)
    {
        const ref_param *w = ref_pass_param(p, r, gamma);
        const int64_t rows = x->at[r].rows, cols = x->at[r].cols, h = w->count;
        ref_piece unused = {.x = w->grad}; /* the operation makes dx and dgamma together */
        if (!w->grad)
            ASSAY_TRY(ref_piece_new(&p->arena, &unused, 1, h));
        ASSAY_TRY(ref_piece_new(&p->arena, &dx->at[r], rows, cols));
        ref_rmsnorm_bwd(dx->at[r].x, unused.x, dy->at[r].x, x->at[r].x, w->weight, rstd->at[r].x,
                        rows * (cols / h), h);
    }
    ref_store_main_grad(p, gamma);
    return ref_store(p, dx, REF_STORE_ACT);
}

/* --- element-wise ------------------------------------------------------------------------------------------- */

static assay_status add_pieces(ref_pass *p, ref_tensor *y, const ref_tensor *a, const ref_tensor *b)
{
    EACH_RANK(p, r)
    {
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], a->at[r].rows, a->at[r].cols));
        ref_add(y->at[r].x, a->at[r].x, b->at[r].x, a->at[r].rows * a->at[r].cols);
    }
    return ref_store(p, y, REF_STORE_ACT);
}

assay_status ref_ranks_add(ref_pass *p, ref_tensor *y, const ref_tensor *a, const ref_tensor *b,
                           const char *instance)
{
    ASSAY_TRY(ref_new(p, y, instance, "y"));
    return add_pieces(p, y, a, b);
}

assay_status ref_ranks_add_grad(ref_pass *p, ref_tensor *y, const ref_tensor *a, const ref_tensor *b,
                                const ref_tensor *of)
{
    ASSAY_TRY(ref_new_grad(p, y, of, NULL));
    return add_pieces(p, y, a, b);
}

/* The limit as a stored activation holds it; nothing is rounded in FP64. */
static double clamp_limit(const ref_pass *p, double limit)
{
    const assay_dtype act = ref_policy_dtype(&p->e->run->policy, REF_STORE_ACT, false);
    return act == ASSAY_F64 ? limit : ref_round((double)(float)limit, act);
}

assay_status ref_ranks_clamp(ref_pass *p, ref_tensor *y, const ref_tensor *x, double limit,
                             const char *instance)
{
    ASSAY_TRY(ref_new(p, y, instance, "y"));
    y->heads = x->heads;
    EACH_RANK(p, r)
    {
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], x->at[r].rows, x->at[r].cols));
        ref_clamp_fwd(y->at[r].x, x->at[r].x, clamp_limit(p, limit), x->at[r].rows * x->at[r].cols);
    }
    return ref_store(p, y, REF_STORE_ACT);
}

/* Decided by somebody else (ref_clip_lookup); *replayed false: nobody has. */
static assay_status replay_clip(ref_pass *p, ref_piece *dx, const ref_piece *dy, ref_clip_operand operand,
                                bool *replayed)
{
    const ref_run_config *run = p->e->run;
    const int64_t n = dx->rows * dx->cols;
    void *memory;
    *replayed = false;
    if (run->clip == NULL || p->e->grid.world != 1)
        return ASSAY_OK;
    ASSAY_TRY(ref_arena_alloc(&p->arena, n, sizeof(bool), &memory));
    bool *passes = memory;
    *replayed =
        run->clip(run->routing_user, p->step, ref_pass_microbatch(p, 0), p->layer, operand, passes, n);
    for (int64_t i = 0; i < n && *replayed; i++)
        dx->x[i] = passes[i] ? dy->x[i] : 0.0;
    return ASSAY_OK;
}

assay_status ref_ranks_clamp_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dy, const ref_tensor *x,
                                 double limit, ref_clip_operand operand)
{
    ASSAY_TRY(ref_new_grad(p, dx, x, NULL));
    EACH_RANK(p, r)
    {
        bool replayed;
        ASSAY_TRY(ref_piece_new(&p->arena, &dx->at[r], x->at[r].rows, x->at[r].cols));
        ASSAY_TRY(replay_clip(p, &dx->at[r], &dy->at[r], operand, &replayed));
        if (!replayed)
            ref_clamp_bwd(dx->at[r].x, dy->at[r].x, x->at[r].x, clamp_limit(p, limit),
                          x->at[r].rows * x->at[r].cols);
    }
    return ref_store(p, dx, REF_STORE_ACT);
}

assay_status ref_ranks_swiglu(ref_pass *p, ref_tensor *y, const ref_tensor *x, const ref_tensor *probs,
                              const char *instance)
{
    ASSAY_TRY(ref_new(p, y, instance, "y"));
    y->token_rows = x->token_rows;
    EACH_RANK(p, r)
    {
        const int64_t t = x->at[r].rows, f = x->at[r].cols / 2;
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], t, f));
        ref_fast_swiglu_fwd(y->at[r].x, x->at[r].x, probs ? probs->at[r].x : NULL, t, f);
    }
    return ref_store(p, y, REF_STORE_ACT);
}

assay_status ref_ranks_swiglu_bwd(ref_pass *p, ref_tensor *dx, ref_tensor *dprobs, const ref_tensor *dy,
                                  const ref_tensor *x, const ref_tensor *probs)
{
    ASSAY_TRY(ref_new_grad(p, dx, x, NULL));
    if (probs)
        ASSAY_TRY(ref_new_grad(p, dprobs, probs, NULL));
    EACH_RANK(p, r)
    {
        const int64_t t = x->at[r].rows, f = x->at[r].cols / 2;
        ASSAY_TRY(ref_piece_new(&p->arena, &dx->at[r], t, 2 * f));
        if (probs)
            ASSAY_TRY(ref_piece_new(&p->arena, &dprobs->at[r], t, 1));
        ref_fast_swiglu_bwd(dx->at[r].x, probs ? dprobs->at[r].x : NULL, dy->at[r].x, x->at[r].x,
                            probs ? probs->at[r].x : NULL, t, f);
    }
    if (probs)
        ASSAY_TRY(ref_store(p, dprobs, REF_STORE_ROUTER));
    return ref_store(p, dx, REF_STORE_ACT);
}

assay_status ref_ranks_sigmoid_gate(ref_pass *p, ref_tensor *y, const ref_tensor *x, const ref_tensor *gate,
                                    const char *instance)
{
    ASSAY_TRY(ref_new(p, y, instance, "y"));
    EACH_RANK(p, r)
    {
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], x->at[r].rows, x->at[r].cols));
        ref_sigmoid_gate_fwd(y->at[r].x, x->at[r].x, gate->at[r].x, x->at[r].rows, x->at[r].cols);
    }
    return ref_store(p, y, REF_STORE_ACT);
}

assay_status ref_ranks_sigmoid_gate_bwd(ref_pass *p, ref_tensor *dx, ref_tensor *dgate, const ref_tensor *dy,
                                        const ref_tensor *x, const ref_tensor *gate)
{
    const ref_policy *policy = &p->e->run->policy;
    /* 1 - s of a rounded s cancels where s is near 1: what is left is a rounding of s, and none of the gradient */
    const assay_dtype stored = policy->perturb > 0.0 && policy->stores_gates
                                   ? ref_policy_dtype(policy, REF_STORE_ACT, false)
                                   : ASSAY_F64;
    ASSAY_TRY(ref_new_grad(p, dx, x, NULL));
    ASSAY_TRY(ref_new_grad(p, dgate, gate, NULL));
    EACH_RANK(p, r)
    {
        ASSAY_TRY(ref_piece_new(&p->arena, &dx->at[r], x->at[r].rows, x->at[r].cols));
        ASSAY_TRY(ref_piece_new(&p->arena, &dgate->at[r], x->at[r].rows, 1));
        ref_sigmoid_gate_bwd(dx->at[r].x, dgate->at[r].x, dy->at[r].x, x->at[r].x, gate->at[r].x,
                             x->at[r].rows, x->at[r].cols, stored);
    }
    ASSAY_TRY(ref_store(p, dgate, REF_STORE_ACT));
    return ref_store(p, dx, REF_STORE_ACT);
}

/* --- rows of experts ---------------------------------------------------------------------------------------- */

assay_status ref_ranks_gather_rows(ref_pass *p, ref_tensor *y, const ref_tensor *x, const ref_ints *index,
                                   const char *name)
{
    ASSAY_TRY(ref_tensor_new(&p->arena, y, p->n, name));
    y->token_rows = false;
    EACH_RANK(p, r)
    {
        const int64_t rows = index->at[r].rows * index->at[r].cols, h = x->at[r].cols;
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], rows, h));
        ref_gather_rows(y->at[r].x, x->at[r].x, index->at[r].x, rows, h);
    }
    return ref_store(p, y, REF_STORE_EXACT);
}

assay_status ref_ranks_combine_rows(ref_pass *p, ref_tensor *y, const ref_tensor *x,
                                    const ref_ints *token_row, const char *name)
{
    ASSAY_TRY(ref_tensor_new(&p->arena, y, p->n, name));
    EACH_RANK(p, r)
    {
        const int64_t t = token_row->at[r].rows, k = token_row->at[r].cols, h = x->at[r].cols;
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], t, h));
        ref_combine_rows(y->at[r].x, x->at[r].x, token_row->at[r].x, t, k, h);
    }
    return ref_store(p, y, REF_STORE_ACT);
}

assay_status ref_ranks_grouped_linear(ref_pass *p, ref_tensor *y, const ref_tensor *x,
                                      const ref_ints *tokens_per_expert, int64_t weight, const char *instance)
{
    ASSAY_TRY(ref_new(p, y, instance, "y"));
    y->token_rows = false;
    EACH_RANK(p, r)
    {
        const ref_param *w = ref_pass_param(p, r, weight);
        const int64_t *shape = w->shard.local_shape; /* [El,N,K] */
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], x->at[r].rows, shape[1]));
        ref_fast_grouped_linear_fwd(y->at[r].x, x->at[r].x, w->weight, tokens_per_expert->at[r].x, shape[0],
                                    shape[1], shape[2]);
    }
    return ref_store(p, y, REF_STORE_LINEAR);
}

assay_status ref_ranks_grouped_linear_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dy,
                                          const ref_tensor *x, const ref_ints *tokens_per_expert,
                                          int64_t weight)
{
    ASSAY_TRY(ref_new_grad(p, dx, x, NULL));
    EACH_RANK(p, r)
    {
        const ref_param *w = ref_pass_param(p, r, weight);
        const int64_t *shape = w->shard.local_shape, *counts = tokens_per_expert->at[r].x;
        ASSAY_TRY(ref_piece_new(&p->arena, &dx->at[r], x->at[r].rows, shape[2]));
        ref_fast_grouped_linear_bwd_input(dx->at[r].x, dy->at[r].x, w->weight, counts, shape[0], shape[1],
                                          shape[2]);
        double *grad;
        ASSAY_TRY(begin_weight_grad(p, r, weight, &grad));
        if (w->grad)
            ref_fast_grouped_linear_bwd_weight(grad, dy->at[r].x, x->at[r].x, counts, shape[0], shape[1],
                                               shape[2]);
        end_weight_grad(p, r, weight, grad);
    }
    ref_store_main_grad(p, weight);
    return ref_store(p, dx, REF_STORE_LINEAR);
}

/* --- embedding ---------------------------------------------------------------------------------------------- */

assay_status ref_ranks_embedding(ref_pass *p, ref_tensor *y, const ref_ints *ids, int64_t weight)
{
    ASSAY_TRY(ref_new(p, y, "embedding", "y"));
    EACH_RANK(p, r)
    {
        const ref_param *w = ref_pass_param(p, r, weight);
        const int64_t v = w->shard.local_shape[0], h = w->shard.local_shape[1], t = ids->at[r].rows;
        ASSAY_TRY(ref_piece_new(&p->arena, &y->at[r], t, h));
        ref_embedding_fwd(y->at[r].x, ids->at[r].x, w->weight, w->shard.segments[0][0].start, t, v, h);
    }
    return ref_store(p, y, REF_STORE_ACT);
}

assay_status ref_ranks_embedding_bwd(ref_pass *p, const ref_tensor *dy, const ref_ints *ids, int64_t weight)
{
    EACH_RANK(p, r)
    {
        const ref_param *w = ref_pass_param(p, r, weight);
        const int64_t v = w->shard.local_shape[0], h = w->shard.local_shape[1];
        if (w->grad)
            ref_embedding_bwd(w->grad, dy->at[r].x, ids->at[r].x, w->shard.segments[0][0].start,
                              p->e->config->pad_token_id, ids->at[r].rows, v, h);
    }
    ref_store_main_grad(p, weight);
    return ASSAY_OK;
}
