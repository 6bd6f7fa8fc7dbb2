/* Every backward operation against central differences in double, over odd sizes and the edge cases of
 * docs/OPS.md. */
#include "ref/ops.h"
#include "tests/support/ref.h"

/* ---- products */
typedef struct product_case {
    double *y, *x, *w, *bias, *dy;
    const int64_t *counts;
    int64_t t, n, k, e;
} product_case;

static double product_objective(void *context)
{
    const product_case *c = context;
    if (c->counts)
        ref_grouped_linear_fwd(c->y, c->x, c->w, c->counts, c->e, c->n, c->k);
    else
        ref_linear_fwd(c->y, c->x, c->w, c->bias, c->t, c->n, c->k);
    return dot(c->y, c->dy, c->t * c->n);
}

static void check_product(int64_t t, int64_t n, int64_t k, const int64_t *counts, int64_t e)
{
    test_rng r = {(uint64_t)(t * 100 + n * 10 + k)};
    const int64_t weights = (counts ? e : 1) * n * k;
    product_case c = {new_real(t * n),
                      random_normal(&r, t * k),
                      random_normal(&r, weights),
                      random_normal(&r, n),
                      random_normal(&r, t * n),
                      counts,
                      t,
                      n,
                      k,
                      e};
    double *dx = new_real(t * k), *dw = random_normal(&r, weights), *db = random_normal(&r, n);
    double *old_w = malloc((size_t)(weights + 1) * 8), *old_b = malloc((size_t)(n + 1) * 8);
    memcpy(old_w, dw, (size_t)weights * 8);
    memcpy(old_b, db, (size_t)n * 8);
    if (counts) {
        ref_grouped_linear_bwd_input(dx, c.dy, c.w, counts, e, n, k);
        ref_grouped_linear_bwd_weight(dw, c.dy, c.x, counts, e, n, k);
    } else {
        ref_linear_bwd_input(dx, c.dy, c.w, t, n, k);
        ref_linear_bwd_weight(dw, c.dy, c.x, t, n, k);
        ref_linear_bwd_bias(db, c.dy, t, n);
        for (int64_t i = 0; i < n; i++)
            db[i] -= old_b[i];
        expect_gradient("dbias", product_objective, &c, c.bias, db, n);
    }
    for (int64_t i = 0; i < weights; i++) /* accumulated onto what was there */
        dw[i] -= old_w[i];
    expect_gradient("dx", product_objective, &c, c.x, dx, t * k);
    expect_gradient("dweight", product_objective, &c, c.w, dw, weights);
    free(c.y), free(c.x), free(c.w), free(c.bias), free(c.dy), free(dx), free(dw), free(db), free(old_w),
        free(old_b);
}

Test(ref_gradients, linear)
{
    check_product(1, 1, 1, NULL, 0);
    check_product(3, 5, 7, NULL, 0);
    check_product(67, 3, 2, NULL, 0);
    check_product(0, 3, 4, NULL, 0);
    check_product(2, 0, 4, NULL, 0);
    check_product(2, 3, 0, NULL, 0);
}

Test(ref_gradients, grouped_linear_with_empty_experts)
{
    check_product(9, 3, 4, (const int64_t[]){0, 5, 0, 1, 3, 0}, 6);
    check_product(0, 3, 4, (const int64_t[]){0, 0}, 2);
}

/* ---- RMSNorm: rstd is an input of the backward and a function of x */
typedef struct norm_case {
    double *y, *rstd, *x, *gamma, *dy;
    int64_t t, h;
} norm_case;

static double norm_objective(void *context)
{
    const norm_case *c = context;
    ref_rmsnorm_fwd(c->y, c->rstd, c->x, c->gamma, 1e-2, c->t, c->h);
    return dot(c->y, c->dy, c->t * c->h);
}

Test(ref_gradients, rmsnorm)
{
    const int64_t sizes[][2] = {{1, 1}, {3, 5}, {2, 131}, {0, 4}};
    test_rng r = {2};
    for (int i = 0; i < 4; i++) {
        const int64_t t = sizes[i][0], h = sizes[i][1];
        norm_case c = {new_real(t * h),
                       new_real(t),
                       random_normal(&r, t * h),
                       random_normal(&r, h),
                       random_normal(&r, t * h),
                       t,
                       h};
        double *dx = new_real(t * h), *dgamma = calloc((size_t)h, 8);
        norm_objective(&c);
        ref_rmsnorm_bwd(dx, dgamma, c.dy, c.x, c.gamma, c.rstd, t, h);
        expect_gradient("dx", norm_objective, &c, c.x, dx, t * h);
        expect_gradient("dgamma", norm_objective, &c, c.gamma, dgamma, h);
        free(c.y), free(c.rstd), free(c.x), free(c.gamma), free(c.dy), free(dx), free(dgamma);
    }
}

/* ---- LayerNorm: mean and rstd are functions of x, too */
typedef struct layernorm_case {
    double *y, *mean, *rstd, *x, *gamma, *beta, *dy;
    int64_t t, h;
} layernorm_case;

static double layernorm_objective(void *context)
{
    const layernorm_case *c = context;
    ref_layernorm_fwd(c->y, c->mean, c->rstd, c->x, c->gamma, c->beta, 1e-2, c->t, c->h);
    return dot(c->y, c->dy, c->t * c->h);
}

Test(ref_gradients, layernorm)
{
    const int64_t sizes[][2] = {{1, 1}, {3, 5}, {2, 131}, {0, 4}};
    test_rng r = {3};
    for (int i = 0; i < 4; i++) {
        const int64_t t = sizes[i][0], h = sizes[i][1];
        layernorm_case c = {.y = new_real(t * h),
                            .mean = new_real(t),
                            .rstd = new_real(t),
                            .x = random_normal(&r, t * h),
                            .gamma = random_normal(&r, h),
                            .beta = random_normal(&r, h),
                            .dy = random_normal(&r, t * h),
                            .t = t,
                            .h = h};
        double *dx = new_real(t * h), *dgamma = calloc((size_t)h, 8), *dbeta = calloc((size_t)h, 8);
        layernorm_objective(&c);
        ref_layernorm_bwd(dx, dgamma, dbeta, c.dy, c.x, c.gamma, c.mean, c.rstd, t, h);
        expect_gradient("dx", layernorm_objective, &c, c.x, dx, t * h);
        expect_gradient("dgamma", layernorm_objective, &c, c.gamma, dgamma, h);
        expect_gradient("dbeta", layernorm_objective, &c, c.beta, dbeta, h);
        free(c.y), free(c.mean), free(c.rstd), free(c.x), free(c.gamma), free(c.beta), free(c.dy);
        free(dx), free(dgamma), free(dbeta);
    }
}

/* ---- RMSNorm of rows cut in two: both halves together are the norm of the whole rows */
typedef struct cut_case {
    double *y[2], *rstd, *x[2], *gamma[2], *dy[2], *sumsq;
    int64_t t, h[2];
} cut_case;

static double cut_objective(void *context)
{
    const cut_case *c = context;
    double *part = new_real(c->t), sum = 0.0;
    for (int64_t i = 0; i < c->t; i++)
        c->sumsq[i] = 0.0;
    for (int k = 0; k < 2; k++) {
        ref_rmsnorm_sumsq(part, c->x[k], c->t, c->h[k]);
        for (int64_t i = 0; i < c->t; i++)
            c->sumsq[i] += part[i];
    }
    for (int k = 0; k < 2; k++) {
        ref_rmsnorm_apply(c->y[k], c->rstd, c->x[k], c->gamma[k], c->sumsq, 1e-2, c->h[0] + c->h[1], c->t,
                          c->h[k]);
        sum += dot(c->y[k], c->dy[k], c->t * c->h[k]);
    }
    free(part);
    return sum;
}

Test(ref_gradients, rmsnorm_of_cut_rows)
{
    const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 2}, {2, 70, 61}, {0, 4, 4}};
    test_rng r = {3};
    for (int i = 0; i < 4; i++) {
        const int64_t t = sizes[i][0];
        cut_case c = {.t = t, .h = {sizes[i][1], sizes[i][2]}, .rstd = new_real(t), .sumsq = new_real(t)};
        double *part = new_real(t), *all = calloc((size_t)t + 1, 8);
        for (int k = 0; k < 2; k++) {
            c.y[k] = new_real(t * c.h[k]);
            c.x[k] = random_normal(&r, t * c.h[k]);
            c.dy[k] = random_normal(&r, t * c.h[k]);
            c.gamma[k] = random_normal(&r, c.h[k]);
        }
        cut_objective(&c);
        for (int k = 0; k < 2; k++) {
            ref_rmsnorm_bwd_dot(part, c.dy[k], c.x[k], c.gamma[k], c.rstd, t, c.h[k]);
            for (int64_t n = 0; n < t; n++)
                all[n] += part[n];
        }
        for (int k = 0; k < 2; k++) {
            double *dx = new_real(t * c.h[k]), *dgamma = calloc((size_t)c.h[k], 8);
            ref_rmsnorm_bwd_apply(dx, dgamma, c.dy[k], c.x[k], c.gamma[k], c.rstd, all, c.h[0] + c.h[1], t,
                                  c.h[k]);
            expect_gradient("dx", cut_objective, &c, c.x[k], dx, t * c.h[k]);
            expect_gradient("dgamma", cut_objective, &c, c.gamma[k], dgamma, c.h[k]);
            free(dx), free(dgamma);
        }
        for (int k = 0; k < 2; k++)
            free(c.y[k]), free(c.x[k]), free(c.dy[k]), free(c.gamma[k]);
        free(c.rstd), free(c.sumsq), free(part), free(all);
    }
}

/* ---- attention */
typedef struct attention_case {
    double *o, *lse, *q, *k, *v, *dout;
    ref_attention_desc d;
} attention_case;

static double attention_objective(void *context)
{
    const attention_case *c = context;
    ref_attention_fwd(c->o, c->lse, c->q, c->k, c->v, &c->d);
    return dot(c->o, c->dout, c->d.batch * c->d.seq_q * c->d.heads * c->d.head_dim_v);
}

static void check_attention(ref_attention_desc d, int documents)
{
    test_rng r = {(uint64_t)(d.heads * 7 + d.window)};
    const int64_t tq = d.batch * d.seq_q, tk = d.batch * d.seq_k;
    int64_t *q_position = new_int(tq), *k_position = new_int(tk), *first = new_int(tq);
    for (int64_t i = 0; i < tq; i++) { /* the queries are the last ones of the keys */
        q_position[i] = i / d.batch + d.seq_k - d.seq_q;
        first[i] = i == 1 ? 100 : q_position[i] / 3 * 3; /* row 1 sees nothing */
    }
    for (int64_t i = 0; i < tk; i++)
        k_position[i] = i / d.batch;
    d.q_position = q_position;
    d.k_position = k_position;
    d.first_key = documents ? first : NULL;
    const int64_t nq = tq * d.heads * d.head_dim, nk = tk * d.groups * d.head_dim,
                  nv = tk * d.groups * d.head_dim_v, no = tq * d.heads * d.head_dim_v;
    attention_case c = {new_real(no),
                        new_real(tq * d.heads),
                        random_normal(&r, nq),
                        random_normal(&r, nk),
                        random_normal(&r, nv),
                        random_normal(&r, no),
                        d};
    double *dq = new_real(nq), *dk = new_real(nk), *dv = new_real(nv);
    attention_objective(&c);
    if (documents && tq > 1) {
        for (int64_t i = 0; i < d.heads * d.head_dim_v; i++)
            cr_expect(c.o[d.heads * d.head_dim_v + i] == 0.0, "a row that sees nothing is 0");
        cr_expect(c.lse[d.heads] == -HUGE_VAL);
    }
    ref_attention_bwd(dq, dk, dv, c.dout, c.q, c.k, c.v, c.o, c.lse, &c.d);
    expect_gradient("dq", attention_objective, &c, c.q, dq, nq);
    expect_gradient("dk", attention_objective, &c, c.k, dk, nk);
    expect_gradient("dv", attention_objective, &c, c.v, dv, nv);
    free(q_position), free(k_position), free(first), free(c.o), free(c.lse), free(c.q), free(c.k), free(c.v),
        free(c.dout), free(dq), free(dk), free(dv);
}

Test(ref_gradients, attention)
{
    /* batch, seq_q, seq_k, heads, groups, D, Dv, scale, window */
    check_attention((ref_attention_desc){.batch = 1,
                                         .seq_q = 1,
                                         .seq_k = 1,
                                         .heads = 1,
                                         .groups = 1,
                                         .head_dim = 1,
                                         .head_dim_v = 1,
                                         .scale = 1.0},
                    0);
    check_attention((ref_attention_desc){.batch = 2,
                                         .seq_q = 7,
                                         .seq_k = 7,
                                         .heads = 2,
                                         .groups = 2,
                                         .head_dim = 3,
                                         .head_dim_v = 5,
                                         .scale = 0.6},
                    0);
    check_attention((ref_attention_desc){.batch = 1,
                                         .seq_q = 6,
                                         .seq_k = 6,
                                         .heads = 6,
                                         .groups = 2,
                                         .head_dim = 4,
                                         .head_dim_v = 4,
                                         .scale = 0.5,
                                         .window = 2},
                    0);
    check_attention((ref_attention_desc){.batch = 2,
                                         .seq_q = 5,
                                         .seq_k = 5,
                                         .heads = 3,
                                         .groups = 1,
                                         .head_dim = 5,
                                         .head_dim_v = 3,
                                         .scale = 0.5,
                                         .window = 1},
                    0);
    check_attention((ref_attention_desc){.batch = 1,
                                         .seq_q = 9,
                                         .seq_k = 9,
                                         .heads = 2,
                                         .groups = 1,
                                         .head_dim = 3,
                                         .head_dim_v = 3,
                                         .scale = 0.7},
                    1);
    check_attention((ref_attention_desc){.batch = 2,
                                         .seq_q = 2,
                                         .seq_k = 6,
                                         .heads = 2,
                                         .groups = 1,
                                         .head_dim = 3,
                                         .head_dim_v = 3,
                                         .scale = 0.7},
                    0);
}

/* ---- activations */
typedef struct activation_case {
    double *y, *x, *probs, *dy;
    int64_t t, f;
    bool gate; /* sigmoid_gate: probs is the gate */
} activation_case;

static double activation_objective(void *context)
{
    const activation_case *c = context;
    if (c->gate)
        ref_sigmoid_gate_fwd(c->y, c->x, c->probs, c->t, c->f);
    else
        ref_swiglu_fwd(c->y, c->x, c->probs, c->t, c->f);
    return dot(c->y, c->dy, c->t * c->f);
}

Test(ref_gradients, swiglu_and_sigmoid_gate)
{
    const int64_t sizes[][2] = {{1, 1}, {5, 7}, {0, 3}, {3, 0}};
    test_rng r = {3};
    for (int i = 0; i < 4; i++)
        for (int kind = 0; kind < 3; kind++) {
            const int64_t t = sizes[i][0], f = sizes[i][1], nx = kind == 2 ? t * f : 2 * t * f;
            double *probs = kind > 0 ? random_normal(&r, t) : NULL, *dx = new_real(nx), *dp = new_real(t);
            activation_case c = {
                new_real(t * f), random_normal(&r, nx), probs, random_normal(&r, t * f), t, f, kind == 2};
            if (kind == 2)
                ref_sigmoid_gate_bwd(dx, dp, c.dy, c.x, probs, t, f, ASSAY_F64);
            else
                ref_swiglu_bwd(dx, probs ? dp : NULL, c.dy, c.x, probs, t, f);
            expect_gradient("dx", activation_objective, &c, c.x, dx, nx);
            if (probs)
                expect_gradient("dprobs", activation_objective, &c, probs, dp, t);
            free(probs), free(dx), free(dp), free(c.y), free(c.x), free(c.dy);
        }
}

/* ---- clamp */
typedef struct clamp_case {
    double *y, *x, *dy;
    int64_t n;
} clamp_case;

static double clamp_objective(void *context)
{
    const clamp_case *c = context;
    ref_clamp_fwd(c->y, c->x, 0.75, c->n);
    return dot(c->y, c->dy, c->n);
}

Test(ref_gradients, clamp)
{
    test_rng r = {31};
    const int64_t n = 23;
    clamp_case c = {new_real(n), random_normal(&r, n), random_normal(&r, n), n};
    double *dx = new_real(n);
    ref_clamp_bwd(dx, c.dy, c.x, 0.75, n);
    expect_gradient("dx", clamp_objective, &c, c.x, dx, n);
    const double edge[4] = {0.75, -0.75, (double)NAN, 0.7499}, ones[4] = {1, 1, 1, 1};
    double y[4], d[4];
    ref_clamp_fwd(y, edge, 0.75, 4);
    ref_clamp_bwd(d, ones, edge, 0.75, 4);
    cr_expect(y[0] == 0.75 && y[1] == -0.75 && isnan(y[2]) && y[3] == 0.7499);
    cr_expect(d[0] == 0.0 && d[1] == 0.0 && d[2] == 0.0 && d[3] == 1.0, "no gradient on the limit");
    free(c.y), free(c.x), free(c.dy), free(dx);
}

/* ---- rope */
typedef struct rope_case {
    double *y, *x, *dy, *cos_table, *sin_table;
    int64_t *position;
} rope_case;

static double rope_objective(void *context)
{
    const rope_case *c = context;
    ref_rope_fwd(c->y, c->x, c->cos_table, c->sin_table, c->position, 6, 5, 3, 9);
    return dot(c->y, c->dy, 5 * 3 * 9);
}

Test(ref_gradients, rope)
{
    test_rng r = {4};
    const ref_rope_desc desc = {.type = ASSAY_ROPE_LINEAR, .rotary_dim = 6, .base = 100.0, .factor = 2.0};
    double c_table[33], s_table[33], y[135], dx[135];
    int64_t position[5] = {10, 0, 3, 3, 7};
    ref_rope_table(c_table, s_table, &desc, 11);
    rope_case c = {y, random_normal(&r, 135), random_normal(&r, 135), c_table, s_table, position};
    ref_rope_bwd(dx, c.dy, c_table, s_table, position, 6, 5, 3, 9);
    expect_gradient("dx", rope_objective, &c, c.x, dx, 135);
    free(c.x), free(c.dy);
}

/* ---- embedding with tokens outside the piece */
typedef struct embedding_case {
    double *y, *w, *dy;
    int64_t *ids;
} embedding_case;

static double embedding_objective(void *context)
{
    const embedding_case *c = context;
    ref_embedding_fwd(c->y, c->ids, c->w, 10, 7, 4, 3);
    return dot(c->y, c->dy, 21);
}

Test(ref_gradients, embedding)
{
    test_rng r = {5};
    int64_t ids[7] = {10, 13, 9, 14, 11, 13, 0};
    double y[21], dw[12] = {0};
    embedding_case c = {y, random_normal(&r, 12), random_normal(&r, 21), ids};
    ref_embedding_bwd(dw, c.dy, ids, 10, -1, 7, 4, 3);
    expect_gradient("dweight", embedding_objective, &c, c.w, dw, 12);
    for (int i = 6; i < 9; i++)
        cr_expect(dw[i] == 0.0, "row 12 has no token");
    double padded[12] = {0};
    ref_embedding_bwd(padded, c.dy, ids, 10, 13, 7, 4, 3);
    for (int i = 0; i < 12; i++)
        cr_expect(padded[i] == (i < 9 ? dw[i] : 0.0), "only the row of padding_idx has no gradient");
    free(c.w), free(c.dy);
}

/* ---- cross entropy */
typedef struct loss_case {
    double *logits, *stats, *lse, *loss;
    int64_t *targets;
    int64_t t, v;
    double scale;
} loss_case;

static double loss_objective(void *context)
{
    const loss_case *c = context;
    ref_cross_entropy_stats(c->stats, c->logits, c->targets, 0, c->t, c->v);
    ref_cross_entropy_loss(c->lse, c->loss, c->stats, c->targets, 1, c->t);
    return c->scale * ref_sum(c->loss, c->t);
}

Test(ref_gradients, cross_entropy_with_masked_rows)
{
    test_rng r = {6};
    int64_t targets[5] = {0, -100, 12, 6, -100};
    loss_case c = {random_normal(&r, 65), new_real(15), new_real(5), new_real(5), targets, 5, 13, 1.0 / 3.0};
    double *d = new_real(65);
    loss_objective(&c);
    ref_cross_entropy_bwd(d, c.logits, c.lse, targets, 0, c.scale, 5, 13);
    expect_gradient("dlogits", loss_objective, &c, c.logits, d, 65);
    cr_expect(c.loss[1] == 0.0 && d[13] == 0.0 && d[64] == 0.0);
    for (int i = 0; i < 5; i++)
        targets[i] = -100;
    cr_expect(loss_objective(&c) == 0.0, "all rows masked");
    free(c.logits), free(c.stats), free(c.lse), free(c.loss), free(d);
}

/* ---- router: the choice is held fixed, as in the backward */
typedef struct router_case {
    double *logits, *scores, *keys, *probs, *dprobs;
    int64_t *indices;
    ref_router_desc d;
} router_case;

static double router_objective(void *context)
{
    const router_case *c = context;
    ref_router_scores(c->scores, c->keys, c->logits, NULL, &c->d);
    ref_router_probs(c->probs, c->scores, c->logits, c->indices, &c->d);
    return dot(c->probs, c->dprobs, c->d.tokens * c->d.topk);
}

Test(ref_gradients, router)
{
    test_rng r = {7};
    for (int kind = 0; kind < 12; kind++) {
        const ref_router_desc d = {.tokens = 7,
                                   .experts = 8,
                                   .topk = kind % 2 ? 1 : 3,
                                   .mode = kind >= 8   ? REF_ROUTER_SIGMOID
                                           : kind >= 4 ? REF_ROUTER_SOFTMAX_TOPK
                                                       : REF_ROUTER_TOPK_SOFTMAX,
                                   .norm_topk_prob = kind / 2 % 2 == 1,
                                   .scaling_factor = 1.7};
        router_case c = {random_normal(&r, 56),
                         new_real(56),
                         new_real(56),
                         new_real(21),
                         random_normal(&r, 21),
                         new_int(21),
                         d};
        double *dl = new_real(56);
        ref_router_scores(c.scores, c.keys, c.logits, NULL, &d);
        ref_router_topk(c.indices, c.keys, &d);
        ref_router_bwd(dl, c.dprobs, c.indices, c.scores, c.logits, &d);
        expect_gradient("dlogits", router_objective, &c, c.logits, dl, 56);
        free(c.logits), free(c.scores), free(c.keys), free(c.probs), free(c.dprobs), free(c.indices),
            free(dl);
    }
}

typedef struct aux_case {
    double *logits, *aux, *sums;
    int64_t *indices, *own, counts[18];
    ref_router_desc d;
    ref_balance balance;
} aux_case;

/* The counts are of the whole group (not this rank's own) and carry no gradient. */
static double aux_objective(void *context)
{
    const aux_case *c = context;
    double z, losses[2];
    ref_router_aux_scores(c->aux, c->logits, &c->d);
    if (c->balance.rows == 1)
        ref_router_aux_sums(c->sums, c->own, &z, c->aux, c->indices, c->logits, &c->d);
    else
        ref_router_seq_aux_sums(c->sums, c->own, c->aux, c->indices, c->balance.rows, &c->d);
    ref_router_aux_loss(losses, c->sums, c->counts, c->balance.rows == 1 ? &z : NULL, &c->balance, &c->d);
    return 0.25 * (losses[0] + losses[1]);
}

/* Of a microbatch with the z-loss, of three interleaved sequences, of the microbatches of a step. */
Test(ref_gradients, auxiliary_losses)
{
    static const ref_balance kinds[] = {
        {.aux_coeff = 0.3, .z_coeff = 0.2, .tokens = 17, .rows = 1, .divisor = 1},
        {.aux_coeff = 0.3, .tokens = 7, .rows = 3, .divisor = 5},
        {.aux_coeff = 0.3, .tokens = 17, .rows = 1, .divisor = 4}};
    test_rng r = {8};
    for (int i = 0; i < 6; i++) {
        const ref_router_desc d = {.tokens = 9,
                                   .experts = 6,
                                   .topk = 2,
                                   .mode = i % 2 ? REF_ROUTER_SIGMOID : REF_ROUTER_SOFTMAX_TOPK,
                                   .scaling_factor = 1.0};
        aux_case c = {random_normal(&r, 54),
                      new_real(54),
                      new_real(18),
                      new_int(18),
                      new_int(18),
                      {5, 0, 9, 11, 3, 6, 1, 0, 8, 2, 2, 5, 13, 4, 0, 0, 1, 0},
                      d,
                      kinds[i / 2]};
        double *dl = random_normal(&r, 54), *old = malloc(54 * 8);
        memcpy(old, dl, 54 * 8);
        ref_router_aux_scores(c.aux, c.logits, &d);
        ref_router_aux_topk(c.indices, c.aux, &d);
        ref_router_aux_bwd(dl, c.logits, c.counts, &c.balance, 0.25, &d);
        for (int k = 0; k < 54; k++)
            dl[k] -= old[k];
        expect_gradient("dlogits", aux_objective, &c, c.logits, dl, 54);
        free(c.logits), free(c.aux), free(c.sums), free(c.indices), free(c.own), free(dl), free(old);
    }
}

/* Sums of the sequences are the sums of one after the other, and add up to those of the microbatch. */
Test(ref_gradients, sums_of_interleaved_sequences)
{
    test_rng r = {9};
    const ref_router_desc d = {
        .tokens = 12, .experts = 6, .topk = 2, .mode = REF_ROUTER_SOFTMAX_TOPK, .scaling_factor = 1.0};
    double *logits = random_normal(&r, 72), *aux = new_real(72), *sums = new_real(18), *whole = new_real(6),
           z;
    int64_t *indices = new_int(24), *counts = new_int(18), *all = new_int(6);
    ref_router_aux_scores(aux, logits, &d);
    ref_router_aux_topk(indices, aux, &d);
    ref_router_aux_sums(whole, all, &z, aux, indices, logits, &d);
    ref_router_seq_aux_sums(sums, counts, aux, indices, 3, &d);
    for (int e = 0; e < 6; e++) {
        double one = 0.0;
        int64_t n = 0;
        for (int t = 1; t < 12; t += 3) {
            one += aux[t * 6 + e];
            n += indices[2 * t] == e || indices[2 * t + 1] == e;
        }
        cr_expect_eq(counts[6 + e], n);
        cr_expect_float_eq(sums[6 + e], one, 1e-15);
        cr_expect_eq(counts[e] + counts[6 + e] + counts[12 + e], all[e]);
        cr_expect_float_eq(sums[e] + sums[6 + e] + sums[12 + e], whole[e], 1e-14);
    }
    free(logits), free(aux), free(sums), free(whole), free(indices), free(counts), free(all);
}
