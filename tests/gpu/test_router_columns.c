/* Sums of a router's balancing statistics in a launch of their own (k0, k1): the bits of the order that is declared, sequential or a tree of
 * 32 lanes, and the counts, at every remainder of a tile of experts, of lanes and of sequences. */
#include "tests/support/gpu_ops.h"

TestSuite(gpu_router_columns, .timeout = 120);

enum { LANES = 32 };
typedef struct columns_case {
    int64_t t, e, k, rows;
} columns_case;
static const columns_case cases[] = {
    {1, 1, 1, 1},     {31, 7, 2, 1},  {32, 8, 1, 1},    {33, 9, 3, 1},  {1000, 17, 5, 1}, {70, 512, 32, 1},
    {66, 1030, 9, 2}, {96, 8, 8, 96}, {130, 12, 2, 2},  {99, 40, 8, 3}, {4100, 3, 2, 10}, {40, 600, 300, 4},
    {0, 5, 2, 1},     {0, 9, 2, 3},   {40, 1030, 0, 1}, {0, 9, 0, 3},
};

/* Of x[0], x[stride], ..., n numbers.  In one chain, or in 32 whose neighbours at distance 16, 8, 4, 2, 1 are added. */
static float sum_of(const float *x, int64_t stride, int64_t n, bool tree)
{
    float lane[LANES] = {0.0f}, sum = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        lane[i % LANES] += x[i * stride];
        sum += x[i * stride];
    }
    for (int apart = LANES / 2; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++)
            lane[i] += lane[i + apart];
    return tree ? lane[0] : sum;
}

static const void *out(const op_call *c, const char *slot)
{
    for (int i = 0; i < c->n_out; i++)
        if (strcmp(c->out[i].slot, slot) == 0)
            return c->out[i].data;
    cr_assert_fail("no output %s", slot);
    return NULL;
}

static void hold_columns(const op_call *c, const columns_case *d, const float *scores, const int64_t *indices,
                         int variant)
{
    const float *sums = out(c, "score_sums");
    const int64_t *counts = out(c, "tokens_per_expert");
    cr_assert_eq(c->declared.variant, variant);
    for (int64_t row = 0; row < d->rows; row++)
        for (int64_t e = 0; e < d->e; e++) {
            const float sum = sum_of(scores + row * d->e + e, d->rows * d->e, d->t / d->rows, variant > 0);
            int64_t n = 0;
            for (int64_t i = 0; i < d->t * d->k; i++)
                n += indices[i] == e && i / d->k % d->rows == row;
            cr_expect_eq(sums[row * d->e + e], sum,
                         "k%d, %lld tokens of %lld rows, expert %lld of %lld: expected %.9g, found %.9g",
                         variant, (long long)d->t, (long long)d->rows, (long long)e, (long long)d->e,
                         (double)sum, (double)sums[row * d->e + e]);
            cr_expect_eq(counts[row * d->e + e], n,
                         "k%d, %lld tokens of %lld rows, expert %lld of %lld: expected %lld, found %lld",
                         variant, (long long)d->t, (long long)d->rows, (long long)e, (long long)d->e,
                         (long long)n, (long long)counts[row * d->e + e]);
        }
}

Test(gpu_router_columns, sums_of_sequences_have_the_declared_order)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int variant = 0; variant < 2; variant++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            op_call c;
            set_variants(&ctx, variant == 0 ? "router=k0" : "router=k1");
            call_begin(&c, &ctx, 3 + i);
            put(&c, "aux_scores", ASSAY_F32, -0.5, 1.0, 2, cases[i].t, cases[i].e);
            put(&c, "aux_indices", ASSAY_I64, 0.0, (double)cases[i].e, 2, cases[i].t, cases[i].k);
            attr_i(&c, "rows", cases[i].rows);
            run_op(&c, "router_seq_aux_fwd", ASSAY_F32);
            hold_columns(&c, &cases[i], c.in[0].data, c.in[1].data, variant);
            call_end(&c);
        }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_router_columns, sums_of_all_tokens_have_the_declared_order)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int variant = 0; variant < 2; variant++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            const columns_case d = cases[i];
            op_call c;
            if (d.rows > 1 || d.e > 512)
                continue;
            set_variants(&ctx, variant == 0 ? "router=k0" : "router=k1");
            call_begin(&c, &ctx, 3 + i);
            put(&c, "logits", ASSAY_F32, -3.0, 3.0, 2, d.t, d.e);
            attr_i(&c, "topk", d.k);
            run_op(&c, "router_aux_fwd", ASSAY_F32);
            hold_columns(&c, &d, out(&c, "aux_scores"), out(&c, "aux_indices"), variant);
            call_end(&c);
        }
    gpu_ctx_destroy(&ctx);
}

/* Of a single expert the logsumexp is its logit. */
Test(gpu_router_columns, z_sum_has_the_declared_order)
{
    static const int64_t tokens[] = {0, 1, 31, 32, 33, 1000};
    float z[1000];
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int variant = 0; variant < 2; variant++)
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
            op_call c;
            set_variants(&ctx, variant == 0 ? "router=k0" : "router=k1");
            call_begin(&c, &ctx, 3 + i);
            put(&c, "logits", ASSAY_F32, -3.0, 3.0, 2, tokens[i], (int64_t)1);
            attr_i(&c, "topk", 1);
            run_op(&c, "router_aux_fwd", ASSAY_F32);
            for (int64_t t = 0; t < tokens[i]; t++)
                z[t] = ((const float *)c.in[0].data)[t] * ((const float *)c.in[0].data)[t];
            cr_expect_eq(*(const float *)out(&c, "z_sum"), sum_of(z, 1, tokens[i], variant > 0),
                         "k%d, %lld tokens", variant, (long long)tokens[i]);
            call_end(&c);
        }
    gpu_ctx_destroy(&ctx);
}
