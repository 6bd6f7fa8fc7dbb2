/* Attention forward and backward: every variant and dtype against plain loops in double. */
#include "tests/support/gpu_ops.h"

typedef struct shape {
    int64_t batch, seq_q, seq_k, heads, groups, d, dv, window;
    bool first_key;
} shape;
static const shape shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, false},     {2, 3, 3, 2, 1, 5, 5, 0, false},
    {1, 5, 5, 4, 2, 8, 8, 2, false},     {2, 31, 31, 2, 2, 16, 16, 0, false},
    {1, 33, 33, 3, 1, 7, 7, 5, true},    {1, 37, 70, 2, 1, 33, 40, 0, false},
    {1, 65, 65, 1, 1, 64, 64, 1, false}, {1, 3, 3, 1, 1, 255, 256, 0, true},
    {0, 4, 4, 2, 1, 4, 4, 0, false},     {1, 0, 3, 2, 1, 4, 4, 0, false},
    {1, 3, 0, 2, 1, 4, 4, 0, false},     {3, 9, 9, 4, 4, 12, 12, 0, true},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0], MAX_KEYS = 80 };
static const assay_dtype acts[] = {ASSAY_F32, ASSAY_BF16};
static const char *const variants[] = {"attention=k0", "attention=k1"};

typedef struct inputs {
    const double *qp, *kp, *first, *q, *k, *v;
} inputs;

static void put_inputs(op_call *c, const shape *s, assay_dtype act, inputs *in)
{
    const int64_t tq = s->seq_q * s->batch, tk = s->seq_k * s->batch;
    double *p = malloc((size_t)(tq + tk + 1) * sizeof *p);
    attr_i(c, "batch", s->batch);
    attr_i(c, "seq_q", s->seq_q);
    attr_i(c, "seq_k", s->seq_k);
    attr_i(c, "heads", s->heads);
    attr_i(c, "groups", s->groups);
    attr_i(c, "head_dim", s->d);
    attr_i(c, "head_dim_v", s->dv);
    attr_d(c, "scale", 0.25);
    attr_i(c, "window", s->window);
    for (int64_t i = 0; i < tq; ++i)
        p[i] = (double)(i / s->batch + (s->seq_k - s->seq_q)); /* the queries are the last ones */
    put_values(c, "q_position", ASSAY_I64, p, tq, -1);
    in->qp = c->value[c->n_in - 1];
    for (int64_t i = 0; i < tk; ++i)
        p[i] = (double)(i / s->batch);
    put_values(c, "k_position", ASSAY_I64, p, tk, -1);
    in->kp = c->value[c->n_in - 1];
    in->first = NULL;
    if (s->first_key) {
        for (int64_t i = 0; i < tq; ++i)
            p[i] = i / s->batch == 1
                       ? 99
                       : (double)(i / s->batch / 4 * 4); /* documents of 4; one row sees nothing */
        put_values(c, "first_key", ASSAY_I64, p, tq, -1);
        in->first = c->value[c->n_in - 1];
    }
    free(p);
    in->q = put(c, "q", act, -2, 2, 3, tq, s->heads, s->d);
    in->k = put(c, "k", act, -2, 2, 3, tk, s->groups, s->d);
    in->v = put(c, "v", act, -1, 1, 3, tk, s->groups, s->dv);
}

static bool visible(const shape *s, const inputs *in, int64_t i, int64_t j)
{
    return in->kp[j] <= in->qp[i] && in->kp[j] >= (in->first ? in->first[i] : 0) &&
           (s->window == 0 || in->kp[j] > in->qp[i] - (double)s->window);
}

/* Scores of query i, head h; p[j] of key sequence number j; returns lse (-inf: nothing visible). */
static double softmax_row(const shape *s, const inputs *in, int64_t i, int64_t h, double *p)
{
    const int64_t g = h / (s->heads / s->groups), b = i % s->batch;
    double sum = 0;
    for (int64_t j = 0; j < s->seq_k; ++j) {
        const int64_t kr = j * s->batch + b;
        double dot = 0;
        for (int64_t e = 0; e < s->d; ++e)
            dot += in->q[(i * s->heads + h) * s->d + e] * in->k[(kr * s->groups + g) * s->d + e];
        p[j] = visible(s, in, i, kr) ? exp(0.25 * dot) : 0;
        sum += p[j];
    }
    for (int64_t j = 0; j < s->seq_k; ++j)
        p[j] = sum > 0 ? p[j] / sum : 0;
    return sum > 0 ? log(sum) : -(double)INFINITY;
}

/* Relative error of a probability: the score's sum, its size, exp, and the sum over keys. */
static double p_error(const shape *s)
{
    return U32 * (double)(4 * s->d * 4 + s->seq_k + 60);
}

static void check_forward(gpu_ctx *ctx, const shape *s, assay_dtype act)
{
    op_call c;
    inputs in;
    double p[MAX_KEYS];
    call_begin(&c, ctx, (uint64_t)(s->seq_q * 7 + s->d));
    put_inputs(&c, s, act, &in);
    run_op(&c, "attention_fwd", act);
    for (int64_t i = 0; i < s->seq_q * s->batch; ++i)
        for (int64_t h = 0; h < s->heads; ++h) {
            const double lse = softmax_row(s, &in, i, h, p);
            const int64_t row = i * s->heads + h, g = h / (s->heads / s->groups);
            if (isinf(lse))
                exact(&c, "lse", row, lse);
            else
                near(&c, "lse", row, lse, p_error(s));
            for (int64_t e = 0; e < s->dv; ++e) {
                double sum = 0;
                for (int64_t j = 0; j < s->seq_k; ++j)
                    sum += p[j] * in.v[((j * s->batch + i % s->batch) * s->groups + g) * s->dv + e];
                near(&c, "o", row * s->dv + e, sum, 2 * p_error(s));
            }
        }
    call_end(&c);
}

Test(gpu_attention, forward_matches_plain_loops)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v)
        for (int a = 0; a < 2; ++a)
            for (int s = 0; s < N_SHAPES; ++s) {
                set_variants(&ctx, variants[v]);
                check_forward(&ctx, &shapes[s], acts[a]);
            }
    cr_assert_eq(ctx.declared.arith.tile, 32);
    gpu_ctx_destroy(&ctx);
}

/* o and lse are given as the exact ones, rounded to their storage type. */
static void check_backward(gpu_ctx *ctx, const shape *s, assay_dtype act)
{
    const int64_t tq = s->seq_q * s->batch, tk = s->seq_k * s->batch, per = s->heads / s->groups;
    op_call c;
    inputs in;
    double p[MAX_KEYS];
    call_begin(&c, ctx, (uint64_t)(s->seq_q * 11 + s->d));
    put_inputs(&c, s, act, &in);
    const double *dout = put(&c, "do", act, -1, 1, 3, tq, s->heads, s->dv);
    double *o = put(&c, "o", act, 0, 1, 3, tq, s->heads, s->dv);
    double *lse = put(&c, "lse", ASSAY_F32, 0, 1, 2, tq, s->heads);
    double *dq = calloc((size_t)(tq * s->heads * s->d) + 1, sizeof(double));
    double *dk = calloc((size_t)(tk * s->groups * s->d) + 1, sizeof(double));
    double *dv = calloc((size_t)(tk * s->groups * s->dv) + 1, sizeof(double));
    for (int64_t i = 0; i < tq; ++i)
        for (int64_t h = 0; h < s->heads; ++h) {
            const int64_t row = i * s->heads + h, g = h / per;
            lse[row] = softmax_row(s, &in, i, h, p);
            for (int64_t e = 0; e < s->dv; ++e) {
                double sum = 0;
                for (int64_t j = 0; j < s->seq_k; ++j)
                    sum += p[j] * in.v[((j * s->batch + i % s->batch) * s->groups + g) * s->dv + e];
                o[row * s->dv + e] = sum;
            }
        }
    c.n_in--; /* store o, then lse */
    store_slot(&c);
    c.n_in++;
    store_slot(&c);
    for (int64_t i = 0; i < tq; ++i)
        for (int64_t h = 0; h < s->heads; ++h) {
            const int64_t row = i * s->heads + h, g = h / per;
            double delta = 0;
            (void)softmax_row(s, &in, i, h, p);
            for (int64_t e = 0; e < s->dv; ++e)
                delta += dout[row * s->dv + e] * o[row * s->dv + e];
            for (int64_t j = 0; j < s->seq_k; ++j) {
                const int64_t key = (j * s->batch + i % s->batch) * s->groups + g;
                double dp = 0;
                for (int64_t e = 0; e < s->dv; ++e) {
                    dp += dout[row * s->dv + e] * in.v[key * s->dv + e];
                    dv[key * s->dv + e] += p[j] * dout[row * s->dv + e];
                }
                const double ds = 0.25 * p[j] * (dp - delta);
                for (int64_t e = 0; e < s->d; ++e) {
                    dq[row * s->d + e] += ds * in.k[key * s->d + e];
                    dk[key * s->d + e] += ds * in.q[row * s->d + e];
                }
            }
        }
    run_op(&c, "attention_bwd", act);
    const double e = p_error(s) * (double)(s->dv + 4) * (double)(s->seq_q * per + 4);
    for (int64_t i = 0; i < tq * s->heads * s->d; ++i)
        near(&c, "dq", i, dq[i], p_error(s) * (double)(s->dv + 4));
    for (int64_t i = 0; i < tk * s->groups * s->d; ++i)
        near(&c, "dk", i, dk[i], e);
    for (int64_t i = 0; i < tk * s->groups * s->dv; ++i)
        near(&c, "dv", i, dv[i], e);
    free(dq);
    free(dk);
    free(dv);
    call_end(&c);
}

Test(gpu_attention, backward_matches_plain_loops)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v)
        for (int a = 0; a < 2; ++a)
            for (int s = 0; s < N_SHAPES; ++s) {
                set_variants(&ctx, variants[v]);
                check_backward(&ctx, &shapes[s], acts[a]);
            }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_attention, large_scores_do_not_overflow_and_hidden_rows_do_not_leak)
{
    static const shape s = {1, 40, 40, 1, 1, 4, 4, 0, false};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v) {
        op_call c;
        inputs in;
        double p[MAX_KEYS];
        set_variants(&ctx, variants[v]);
        call_begin(&c, &ctx, 3);
        put_inputs(&c, &s, ASSAY_F32, &in);
        /* Scores fall from 200 to -200 or so; the last key and value are NaN and seen by the last query
         * alone. */
        for (int i = 0; i < 40 * 4; ++i) {
            c.value[2][i] = i % 4 == 0 ? 20 : 0;
            c.value[3][i] = i % 4 == 0 ? 40.0 - 2.0 * (i / 4) : 0;
        }
        for (int i = 39 * 4; i < 40 * 4; ++i)
            c.value[3][i] = c.value[4][i] = (double)NAN;
        for (int k = 3; k <= 5; ++k) {
            c.n_in = k;
            store_slot(&c);
        }
        run_op(&c, "attention_fwd", ASSAY_F32);
        for (int64_t i = 0; i < 39; ++i) {
            double sum = 0, total = 0;
            for (int64_t j = 0; j <= i; ++j) {
                p[j] = exp(0.25 * 20 * -2.0 * (double)j); /* relative to key 0 */
                total += p[j];
                sum += p[j] * in.v[j * 4];
            }
            near(&c, "o", i * 4, sum / total, 1e-5);
        }
        cr_assert(isnan(result(&c, "o")[39 * 4]), "a NaN key of a visible row must arrive");
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_attention, qkv_split_and_its_inverse_are_exact_copies)
{
    enum { T = 5, A = 6, G = 2, D = 3, W = (A + 2 * G) * D };
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int a = 0; a < 2; ++a) {
        op_call c, b;
        call_begin(&c, &ctx, 1);
        const double *x = put(&c, "qkv", acts[a], -1, 1, 2, (int64_t)T, (int64_t)W);
        attr_i(&c, "heads", A);
        attr_i(&c, "groups", G);
        attr_i(&c, "head_dim", D);
        run_op(&c, "qkv_split_fwd", acts[a]);
        for (int64_t t = 0; t < T; ++t)
            for (int64_t g = 0; g < G; ++g)
                for (int64_t h = 0; h < 5; ++h)
                    for (int64_t e = 0; e < D; ++e) {
                        const double want = x[t * W + (g * 5 + h) * D + e];
                        if (h < 3)
                            exact(&c, "q", (t * A + g * 3 + h) * D + e, want);
                        else
                            exact(&c, h == 3 ? "k" : "v", (t * G + g) * D + e, want);
                    }
        call_begin(&b, &ctx, 1);
        const char *const names[3] = {"dq", "dk", "dv"};
        for (int i = 0; i < 3; ++i) {
            put(&b, names[i], acts[a], 0, 1, 3, (int64_t)T, (int64_t)(i == 0 ? A : G), (int64_t)D);
            memcpy(b.in[i].data, c.out[i].data, (size_t)(slot_count(&c.out[i]) * assay_dtype_bytes(acts[a])));
        }
        run_op(&b, "qkv_split_bwd", acts[a]);
        for (int64_t i = 0; i < T * W; ++i)
            exact(&b, "dqkv", i, x[i]);
        call_end(&c);
        call_end(&b);
    }
    gpu_ctx_destroy(&ctx);
}
