/* Router, auxiliary losses, permutation. */
#include "tests/support/gpu_ops.h"

static const char *const variants[] = {"router=k0", "router=k1"};

typedef struct router_case {
    int64_t t, e, k;
    bool sigmoid, pre, norm, bias;
    double factor;
    int64_t groups, group_topk;
} router_case;
static const router_case cases[] = {
    {3, 4, 1, false, false, false, false, 1, 0, 0},    {7, 8, 2, false, true, true, false, 1, 0, 0},
    {5, 33, 5, false, true, false, false, 2.5, 0, 0},  {5, 64, 8, true, false, true, true, 2.5, 8, 4},
    {4, 128, 8, true, false, true, true, 1, 0, 0},     {3, 256, 8, true, false, false, false, 1, 8, 2},
    {2, 512, 32, false, false, false, false, 1, 0, 0}, {6, 5, 5, false, true, true, false, 1, 0, 0},
    {6, 6, 1, true, false, true, false, 1, 0, 0},      {0, 8, 2, false, true, true, false, 1, 0, 0},
    {4, 12, 2, false, false, false, false, 1, 6, 2},   {3, 120, 4, true, false, true, false, 1, 40, 4},
};
enum { N_CASES = sizeof cases / sizeof cases[0], MAX_E = 512, MAX_K = 32 };

static void router_attrs(op_call *c, const router_case *r)
{
    attr_i(c, "topk", r->k);
    attr_s(c, "score_function", r->sigmoid ? "sigmoid" : "softmax");
    attr_b(c, "pre_softmax", r->pre);
    attr_b(c, "norm_topk_prob", r->norm);
    attr_d(c, "scaling_factor", r->factor);
    attr_i(c, "num_groups", r->groups);
    attr_i(c, "group_topk", r->group_topk);
}

/* The k largest of key[first..first+n) that are not taken; the lower index of a tie; sum of their keys. */
static double take(bool *taken, const double *key, int64_t first, int64_t n, int64_t k)
{
    double sum = 0;
    for (int64_t i = 0; i < k && i < n; ++i) {
        int64_t best = -1;
        for (int64_t e = first; e < first + n; ++e)
            if (!taken[e] && (best < 0 || key[e] > key[best]))
                best = e;
        taken[best] = true;
        sum += key[best];
    }
    return sum;
}

static void choose(const router_case *r, double *key, bool *chosen)
{
    if (r->groups > 0) {
        const int64_t size = r->e / r->groups;
        bool scratch[MAX_E] = {false}, kept[MAX_E] = {false};
        double group[MAX_E];
        for (int64_t g = 0; g < r->groups; ++g)
            group[g] = take(scratch, key, g * size, size, r->k / r->group_topk);
        take(kept, group, 0, r->groups, r->group_topk);
        for (int64_t e = 0; e < r->e; ++e)
            if (!kept[e / size])
                key[e] = -(double)INFINITY;
    }
    take(chosen, key, 0, r->e, r->k);
}

static void row_softmax(const double *l, double *p, int64_t n)
{
    double sum = 0;
    for (int64_t e = 0; e < n; ++e)
        sum += exp(l[e]);
    for (int64_t e = 0; e < n; ++e)
        p[e] = exp(l[e]) / sum;
}

static void row_scores(const router_case *r, const double *l, double *score)
{
    if (!r->sigmoid && r->pre)
        row_softmax(l, score, r->e);
    else
        for (int64_t e = 0; e < r->e; ++e)
            score[e] = r->sigmoid ? 1 / (1 + exp(-l[e])) : l[e];
}

/* Weights of the chosen, in the order of index[]. */
static void weights(const router_case *r, const double *score, const int64_t *index, double *w)
{
    double sum = 0;
    const bool post = !r->sigmoid && !r->pre;
    for (int64_t i = 0; i < r->k; ++i) {
        w[i] = post ? exp(score[index[i]]) : score[index[i]];
        sum += w[i];
    }
    for (int64_t i = 0; i < r->k; ++i) {
        if (post || (!r->sigmoid && r->norm))
            w[i] /= sum;
        else if (r->sigmoid && r->norm && r->k > 1)
            w[i] /= sum + 1e-20;
        w[i] *= r->factor;
    }
}

/* Logits on a grid of 1/8 in a shuffled order: neighbours differ by more than rounding, ties are real ties.
 */
static double *put_logits(op_call *c, const router_case *r)
{
    double *l = put(c, "logits", ASSAY_F32, -4, 4, 2, r->t, r->e);
    for (int64_t i = 0; i < r->t * r->e; ++i)
        l[i] = floor(l[i] * 8) / 8;
    store_slot(c);
    return l;
}

Test(gpu_router, forward_chooses_the_best_and_weighs_them)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v)
        for (int n = 0; n < N_CASES; ++n) {
            const router_case *r = &cases[n];
            op_call c;
            set_variants(&ctx, variants[v]);
            call_begin(&c, &ctx, (uint64_t)n);
            const double *l = put_logits(&c, r);
            const double *bias = r->bias ? put(&c, "expert_bias", ASSAY_F32, -0.5, 0.5, 1, r->e) : NULL;
            router_attrs(&c, r);
            run_op(&c, "router_fwd", ASSAY_F32);
            for (int64_t t = 0; t < r->t; ++t) {
                double score[MAX_E], key[MAX_E], w[MAX_K];
                int64_t index[MAX_K], found = 0;
                bool chosen[MAX_E] = {false};
                row_scores(r, l + t * r->e, score);
                /* Ties must be those of the stored scores: keys are taken from what the kernel wrote. */
                for (int64_t e = 0; e < r->e; ++e) {
                    near(&c, "scores", t * r->e + e, score[e], fabs(score[e]) * U32 * (double)(r->e + 40));
                    key[e] = result(&c, "scores")[t * r->e + e];
                    if (bias)
                        key[e] = (double)(float)(key[e] + bias[e]);
                }
                choose(r, key, chosen);
                for (int64_t e = 0; e < r->e; ++e)
                    if (chosen[e])
                        index[found++] = e;
                weights(r, score, index, w);
                for (int64_t i = 0; i < r->k; ++i) {
                    exact(&c, "indices", t * r->k + i, (double)index[i]);
                    near(&c, "probs", t * r->k + i, w[i], w[i] * U32 * (double)(2 * r->e + 100));
                }
            }
            call_end(&c);
        }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_router, equal_logits_choose_the_lowest_experts_and_nan_ranks_last)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v) {
        const router_case r = {3, 40, 3, false, false, false, false, 1, 0, 0};
        op_call c;
        set_variants(&ctx, variants[v]);
        call_begin(&c, &ctx, 1);
        double *l = put(&c, "logits", ASSAY_F32, 0, 1, 2, r.t, r.e);
        for (int e = 0; e < 40; ++e) {
            l[e] = e % 2 == 0 ? 0.0 : -0.0;
            l[40 + e] = (double)NAN;
            l[80 + e] = e < 38 ? (double)NAN : -(double)INFINITY;
        }
        store_slot(&c);
        router_attrs(&c, &r);
        run_op(&c, "router_fwd", ASSAY_F32);
        const double want[9] = {0, 1, 2, 0, 1, 2, 0, 38, 39};
        for (int i = 0; i < 9; ++i)
            exact(&c, "indices", i, want[i]);
        for (int i = 0; i < 3; ++i)
            near(&c, "probs", i, 1.0 / 3, 4 * U32);
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}

/* Objective sum of dprobs * weight as a function of the logits, the choice held fixed. */
static double objective(const router_case *r, const double *l, const int64_t *index, const double *dp)
{
    double score[MAX_E], w[MAX_K], sum = 0;
    row_scores(r, l, score);
    weights(r, score, index, w);
    for (int64_t i = 0; i < r->k; ++i)
        sum += dp[i] * w[i];
    return sum;
}

Test(gpu_router, backward_matches_central_differences)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v)
        for (int n = 0; n < N_CASES; ++n) {
            const router_case *r = &cases[n];
            op_call c;
            set_variants(&ctx, variants[v]);
            call_begin(&c, &ctx, (uint64_t)n + 30);
            double *l = put(&c, "logits", ASSAY_F32, -2, 2, 2, r->t, r->e);
            double *s = put(&c, "scores", ASSAY_F32, 0, 1, 2, r->t, r->e);
            const double *dp = put(&c, "dprobs", ASSAY_F32, -1, 1, 2, r->t, r->k);
            double *index = put(&c, "indices", ASSAY_I64, 0, 1, 2, r->t, r->k);
            for (int64_t t = 0; t < r->t; ++t)
                for (int64_t i = 0; i < r->k; ++i)
                    index[t * r->k + i] = (double)(i * r->e / r->k);
            store_slot(&c);
            for (int64_t t = 0; t < r->t; ++t)
                row_scores(r, l + t * r->e, s + t * r->e);
            c.n_in = 2;
            store_slot(&c);
            c.n_in = 4;
            router_attrs(&c, r);
            run_op(&c, "router_bwd", ASSAY_F32);
            for (int64_t t = 0; t < r->t; ++t)
                for (int64_t e = 0; e<r->e; e += r->e> 64 ? 7 : 1) {
                    int64_t chosen[MAX_K];
                    double row[MAX_E];
                    for (int64_t i = 0; i < r->k; ++i)
                        chosen[i] = (int64_t)index[t * r->k + i];
                    memcpy(row, l + t * r->e, (size_t)r->e * sizeof row[0]);
                    row[e] += 1e-5;
                    const double up = objective(r, row, chosen, dp + t * r->k);
                    row[e] -= 2e-5;
                    const double down = objective(r, row, chosen, dp + t * r->k);
                    near(&c, "dlogits", t * r->e + e, (up - down) / 2e-5, 2e-6 * r->factor);
                }
            call_end(&c);
        }
    gpu_ctx_destroy(&ctx);
}

/* aux factor * sum over tokens and experts of aux_score n + z factor * sum of lse^2, of one row. */
static double aux_objective(const double *l, const double *n, int64_t e, bool sigmoid, double aux, double z)
{
    double sum = 0, total = 0, value = 0;
    for (int64_t i = 0; i < e; ++i) {
        sum += exp(l[i]);
        total += 1 / (1 + exp(-l[i]));
    }
    for (int64_t i = 0; i < e; ++i)
        value += aux * n[i] * (sigmoid ? 1 / (1 + exp(-l[i])) / total : exp(l[i]) / sum);
    return value + z * log(sum) * log(sum);
}

Test(gpu_router_aux, scores_counts_losses_and_gradient)
{
    static const int64_t shape[][3] = {{1, 2, 1}, {5, 8, 2}, {33, 40, 3}, {3, 130, 8}, {7, 300, 4}};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 4; ++v)
        for (int i = 0; i < 5; ++i) {
            const int64_t t = shape[i][0], e = shape[i][1], k = shape[i][2];
            const bool sigmoid = v & 2;
            const router_case r = {t, e, k, sigmoid, false, false, false, 1, 0, 0};
            const double aux = 0.5 * (double)e / ((double)k * 64 * 64), z = 0.25 / 64;
            double n[MAX_E] = {0}, sums[MAX_E] = {0}, z_sum = 0;
            op_call c, b, q;
            set_variants(&ctx, variants[v & 1]);
            call_begin(&c, &ctx, (uint64_t)i);
            const double *l = put(&c, "logits", ASSAY_F32, -3, 3, 2, t, e);
            router_attrs(&c, &r);
            run_op(&c, "router_aux_fwd", ASSAY_F32);
            for (int64_t row = 0; row < t; ++row) {
                double score[MAX_E], key[MAX_E], sum = 0, total = 0;
                bool chosen[MAX_E] = {false};
                int64_t place = 0;
                row_softmax(l + row * e, score, e);
                for (int64_t x = 0; x < e; ++x) {
                    sum += exp(l[row * e + x]);
                    total += 1 / (1 + exp(-l[row * e + x]));
                }
                for (int64_t x = 0; x < e; ++x) {
                    if (sigmoid)
                        score[x] = 1 / (1 + exp(-l[row * e + x])) / total;
                    near(&c, "aux_scores", row * e + x, score[x], score[x] * U32 * (double)(e + 40));
                    key[x] = result(&c, "aux_scores")[row * e + x];
                    sums[x] += score[x];
                }
                take(chosen, key, 0, e, k);
                for (int64_t x = 0; x < e; ++x)
                    if (chosen[x]) {
                        exact(&c, "aux_indices", row * k + place++, (double)x);
                        n[x] += 1;
                    }
                z_sum += log(sum) * log(sum);
            }
            near(&c, "z_sum", 0, z_sum, z_sum * U32 * (double)(t + e + 80));
            for (int64_t x = 0; x < e; ++x) {
                exact(&c, "tokens_per_expert", x, n[x]);
                near(&c, "score_sums", x, sums[x], sums[x] * U32 * (double)(t + e + 60));
            }
            call_begin(&q, &ctx, 1);
            put_values(&q, "score_sums", ASSAY_F32, sums, e, -1);
            put_values(&q, "tokens_per_expert", ASSAY_I64, n, e, -1);
            put_values(&q, "z_sum", ASSAY_F32, &z_sum, 1, -1);
            call_begin(&b, &ctx, (uint64_t)i);
            const double *bl = put(&b, "logits", ASSAY_F32, -3, 3, 2, t, e);
            const double *old = put(&b, "dlogits_in", ASSAY_F32, -0.1, 0.1, 2, t, e);
            put_values(&b, "tokens_per_expert", ASSAY_I64, n, e, -1);
            for (int p = 0; p < 2; ++p) {
                op_call *o = p == 0 ? &q : &b;
                attr_d(o, "aux_coeff", 0.5);
                attr_d(o, "z_coeff", 0.25);
                attr_d(o, "loss_scale", 0.5);
                attr_i(o, "tokens", 64);
                attr_i(o, "topk", k);
                attr_s(o, "score_function", sigmoid ? "sigmoid" : "softmax");
                run_op(o, p == 0 ? "router_aux_loss" : "router_aux_bwd", ASSAY_F32);
            }
            double loss = 0;
            for (int64_t x = 0; x < e; ++x)
                loss += aux * q.value[0][x] * n[x];
            near(&q, "losses", 0, loss, loss * 1e-12);
            near(&q, "losses", 1, z * q.value[2][0], z * z_sum * 1e-12);
            for (int64_t row = 0; row < t; ++row)
                for (int64_t x = 0; x<e; x += e> 64 ? 11 : 1) {
                    double up[MAX_E], down[MAX_E];
                    memcpy(up, bl + row * e, (size_t)e * sizeof up[0]);
                    memcpy(down, bl + row * e, (size_t)e * sizeof up[0]);
                    up[x] += 1e-5;
                    down[x] -= 1e-5;
                    const double d = (aux_objective(up, n, e, sigmoid, aux, z) -
                                      aux_objective(down, n, e, sigmoid, aux, z)) /
                                     2e-5;
                    near(&b, "dlogits", row * e + x, old[row * e + x] + 0.5 * d, 2e-7);
                }
            call_end(&c);
            call_end(&b);
            call_end(&q);
        }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_router_aux, expert_bias_moves_by_the_sign_of_the_load)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    op_call c;
    const double n[4] = {10, 4, 6, 4}, want[4] = {-1, 1, 0, 1};
    call_begin(&c, &ctx, 1);
    const double *old = put(&c, "bias_in", ASSAY_F32, -1, 1, 1, (int64_t)4);
    put_values(&c, "tokens_per_expert", ASSAY_I64, n, 4, -1);
    attr_d(&c, "rate", 0.25);
    run_op(&c, "expert_bias_update", ASSAY_F32);
    for (int i = 0; i < 4; ++i)
        exact(&c, "bias", i, (double)(float)(old[i] + 0.25 * want[i]));
    call_end(&c);
    gpu_ctx_destroy(&ctx);
}

Test(gpu_experts, plan_sorts_by_expert_then_token_and_rows_come_back)
{
    static const int64_t shape[][3] = {{0, 4, 2}, {1, 1, 1}, {5, 8, 2}, {33, 7, 3}, {70, 40, 8}};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v)
        for (int i = 0; i < 5; ++i) {
            const int64_t t = shape[i][0], e = shape[i][1], k = shape[i][2], h = 5;
            const assay_dtype act = v == 0 ? ASSAY_F32 : ASSAY_BF16;
            op_call c, g, m;
            set_variants(&ctx, variants[v]);
            call_begin(&c, &ctx, (uint64_t)i);
            double *index = put(&c, "indices", ASSAY_I64, 0, 1, 2, t, k);
            for (int64_t row = 0; row < t; ++row) { /* k different experts, ascending */
                int64_t left = k;
                for (int64_t x = 0; x < e && left > 0; ++x)
                    if (uniform(&c) * (double)(e - x) < (double)left) {
                        index[row * k + k - left] = (double)x;
                        --left;
                    }
            }
            store_slot(&c);
            attr_i(&c, "experts", e);
            run_op(&c, "permute_plan", ASSAY_F32);
            int64_t at = 0;
            for (int64_t x = 0; x < e; ++x) {
                const int64_t start = at;
                for (int64_t row = 0; row < t; ++row)
                    for (int64_t s = 0; s < k; ++s)
                        if ((int64_t)index[row * k + s] == x) {
                            exact(&c, "row_token", at, (double)row);
                            exact(&c, "row_slot", at, (double)s);
                            exact(&c, "token_row", row * k + s, (double)at++);
                        }
                exact(&c, "tokens_per_expert", x, (double)(at - start));
            }
            cr_assert_eq(at, t * k);
            call_begin(&g, &ctx, 3);
            const double *x = put(&g, "x", act, -1, 1, 2, t, h);
            put_values(&g, "index", ASSAY_I64, result(&c, "row_token"), t * k, -1);
            run_op(&g, "gather_rows", act);
            call_begin(&m, &ctx, 3);
            const double *y = put(&m, "x", act, -1, 1, 2, t * k, h);
            put_values(&m, "token_row", ASSAY_I64, result(&c, "token_row"), t, k);
            run_op(&m, "combine_rows", act);
            for (int64_t row = 0; row < t * k; ++row)
                for (int64_t q = 0; q < h; ++q)
                    exact(&g, "y", row * h + q, x[(int64_t)result(&c, "row_token")[row] * h + q]);
            for (int64_t row = 0; row < t; ++row)
                for (int64_t q = 0; q < h; ++q) {
                    float sum = 0;
                    for (int64_t s = 0; s < k; ++s)
                        sum += (float)y[(int64_t)result(&c, "token_row")[row * k + s] * h + q];
                    exact(&m, "y", row * h + q, act == ASSAY_F32 ? (double)sum : to_bf16((double)sum));
                }
            call_end(&c);
            call_end(&g);
            call_end(&m);
        }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_experts, gather_copies_any_dtype_and_vectors)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    const double index[4] = {2, 0, 2, 1};
    const assay_dtype dtype[3] = {ASSAY_F32, ASSAY_BF16, ASSAY_I64};
    for (int a = 0; a < 3; ++a) {
        op_call c;
        call_begin(&c, &ctx, 1);
        const double *x = put(&c, "x", dtype[a], -9, 9, 1, (int64_t)3);
        put_values(&c, "index", ASSAY_I64, index, 4, -1);
        run_op(&c, "gather_rows", ASSAY_F32);
        for (int i = 0; i < 4; ++i)
            exact(&c, "y", i, x[(int)index[i]]);
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}
