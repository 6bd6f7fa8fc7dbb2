/* CPU seconds that the bounds of one training step of a Llama take, by family of operation: what `assay replay`
 * computes, without its files.  ci/bench.sh runs it beside PyTorch in double.
 *
 *   bench_bounds LAYERS HIDDEN FFN HEADS GROUPS SEQUENCE BATCH VOCABULARY
 *
 * Declared arithmetic: that of the simulator's fastest kernels in fp32 (sequential and fused, online softmax with
 * tiles of 32 keys).  With ORDER=tree or ORDER=unknown in the environment the matrix products are declared so. */
#include "ref/bounds/bounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum { LINEAR, ATTENTION, NORM, ELEMENTWISE, LOSS, OPTIMIZER, N_FAMILIES } family;

typedef struct sizes {
    int64_t layers, hidden, ffn, heads, groups, sequence, batch, vocabulary;
} sizes;

static double spent[N_FAMILIES];

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(assay_status st)
{
    if (st == ASSAY_OK)
        return;
    fprintf(stderr, "bench_bounds: %s\n", assay_error_message());
    exit(1);
}

/* Numbers in [-1, 1). */
static double *draw(int64_t n)
{
    static uint64_t state = 1;
    double *x = malloc(((size_t)n + 16) * sizeof *x);
    if (!x)
        exit(1);
    for (int64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (double)(int64_t)(state >> 40) * 0x1p-23 - 1.0;
    }
    return x;
}

static ref_pair output(int64_t n)
{
    return (ref_pair){draw(n), draw(n), true}; /* stored in F32 */
}

static void drop(ref_pair p)
{
    free(p.y);
    free(p.b);
}

static void linear(int64_t t, int64_t n, int64_t k, const ref_declared *d)
{
    double *x = draw(t * k), *w = draw(n * k), *dy = draw(t * n), *old = draw(n * k);
    const ref_pair y = output(t * n), dx = output(t * k), dw = output(n * k);
    const double start = cpu_seconds();
    check(ref_bound_linear_fwd(y, x, w, NULL, t, n, k, d));
    check(ref_bound_linear_bwd_input(dx, dy, w, t, n, k, d));
    check(ref_bound_linear_bwd_weight(dw, dy, x, old, t, n, k, d));
    spent[LINEAR] += cpu_seconds() - start;
    drop(y), drop(dx), drop(dw);
    free(x), free(w), free(dy), free(old);
}

static void attention(const sizes *z, const ref_declared *fwd, const ref_declared *bwd)
{
    const int64_t t = z->sequence * z->batch, dim = z->hidden / z->heads;
    int64_t *position = malloc((size_t)t * sizeof *position);
    for (int64_t i = 0; position && i < t; i++)
        position[i] = i / z->batch;
    const ref_attention_desc desc = {.batch = z->batch,
                                     .seq_q = z->sequence,
                                     .seq_k = z->sequence,
                                     .heads = z->heads,
                                     .groups = z->groups,
                                     .head_dim = dim,
                                     .head_dim_v = dim,
                                     .scale = 1.0 / sqrt((double)dim),
                                     .q_position = position,
                                     .k_position = position};
    double *q = draw(t * z->heads * dim), *k = draw(t * z->groups * dim), *v = draw(t * z->groups * dim);
    double *dout = draw(t * z->heads * dim);
    const ref_pair o = output(t * z->heads * dim), lse = output(t * z->heads),
                   dq = output(t * z->heads * dim);
    const ref_pair dk = output(t * z->groups * dim), dv = output(t * z->groups * dim);
    const double start = cpu_seconds();
    check(ref_bound_attention_fwd(o, lse, q, k, v, &desc, ASSAY_F32, fwd));
    check(ref_bound_attention_bwd(dq, dk, dv, dout, q, k, v, o.y, lse.y, &desc, ASSAY_F32, bwd));
    spent[ATTENTION] += cpu_seconds() - start;
    drop(o), drop(lse), drop(dq), drop(dk), drop(dv);
    free(q), free(k), free(v), free(dout), free(position);
}

static void norm(int64_t t, int64_t h, const ref_declared *d)
{
    double *x = draw(t * h), *gamma = draw(h), *dy = draw(t * h), *old = draw(h);
    const ref_pair y = output(t * h), rstd = output(t), dx = output(t * h), dgamma = output(h);
    const double start = cpu_seconds();
    ref_bound_rmsnorm_fwd(y, rstd, x, gamma, 1e-5, t, h, d);
    check(ref_bound_rmsnorm_bwd(dx, dgamma, dy, x, gamma, rstd.y, old, t, h, d));
    spent[NORM] += cpu_seconds() - start;
    drop(y), drop(rstd), drop(dx), drop(dgamma);
    free(x), free(gamma), free(dy), free(old);
}

/* Rope of q and k, swiglu, two additions, each forward and backward. */
static void elementwise(const sizes *z, const ref_declared *d)
{
    const int64_t t = z->sequence * z->batch, dim = z->hidden / z->heads, f = z->ffn;
    int64_t *position = calloc((size_t)t, sizeof *position);
    double *x = draw(2 * t * (z->hidden + f)), *dy = draw(t * (z->hidden + f)), *angle = draw(dim);
    const ref_pair y = output(2 * t * (z->hidden + f));
    const double start = cpu_seconds();
    for (int i = 0; i < 2; i++) {
        ref_bound_rope(y, x, angle, angle, position, dim, t, z->heads, dim, i ? -1.0 : 1.0, d);
        ref_bound_rope(y, x, angle, angle, position, dim, t, z->groups, dim, i ? -1.0 : 1.0, d);
        ref_bound_add(y, x, dy, t * z->hidden, d);
        ref_bound_add(y, x, dy, t * z->hidden, d);
    }
    ref_bound_swiglu_fwd(y, x, NULL, t, f, d);
    check(ref_bound_swiglu_bwd(y, (ref_pair){0}, dy, x, NULL, t, f, d));
    spent[ELEMENTWISE] += cpu_seconds() - start;
    drop(y);
    free(x), free(dy), free(angle), free(position);
}

static void loss(const sizes *z, const ref_declared *d)
{
    const int64_t t = z->sequence * z->batch, v = z->vocabulary;
    int64_t *ids = malloc((size_t)t * sizeof *ids);
    for (int64_t i = 0; ids && i < t; i++)
        ids[i] = i * 7919 % v;
    double *logits = draw(t * v), *dy = draw(t * z->hidden), *old = draw(v * z->hidden);
    const ref_pair stats = output(3 * t), lse = output(t), each = output(t), dlogits = output(t * v);
    const ref_pair dw = output(v * z->hidden);
    const double start = cpu_seconds();
    check(ref_bound_cross_entropy_stats(stats, logits, ids, 0, t, v, d));
    ref_bound_cross_entropy_loss(lse, each, stats.y, ids, 1, t, d);
    ref_bound_cross_entropy_bwd(dlogits, logits, lse.y, ids, 0, 1.0 / (double)t, t, v, d);
    check(ref_bound_embedding_bwd(dw, dy, ids, old, 0, -1, t, v, z->hidden, d));
    spent[LOSS] += cpu_seconds() - start;
    drop(stats), drop(lse), drop(each), drop(dlogits), drop(dw);
    free(logits), free(dy), free(old), free(ids);
}

static void optimizer(int64_t n, const ref_declared *d)
{
    double *p = draw(n), *m = draw(n), *v = draw(n), *g = draw(n);
    const ref_pair out[3] = {output(n), output(n), output(n)};
    const ref_adamw_desc desc = {1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, 3};
    for (int64_t i = 0; i < n; i++)
        v[i] = fabs(v[i]);
    const double start = cpu_seconds();
    ref_bound_adamw(out[0], out[1], out[2], p, m, v, g, &desc, n, d);
    spent[OPTIMIZER] += cpu_seconds() - start;
    drop(out[0]), drop(out[1]), drop(out[2]);
    free(p), free(m), free(v), free(g);
}

static void step(const sizes *z)
{
    const char *order = getenv("ORDER");
    assay_arith chain = {
        .accumulate = ASSAY_F32, .order = ASSAY_ORDER_SEQUENTIAL, .fma = true, .math_ulp = 2};
    assay_arith tree = chain, product = chain;
    tree.order = ASSAY_ORDER_TREE;
    tree.lanes = 32;
    if (order && strcmp(order, "tree") == 0)
        product = tree;
    else if (order && strcmp(order, "unknown") == 0)
        product.order = ASSAY_ORDER_UNKNOWN;
    ref_declared plain, online, lanes, products;
    check(ref_declared_of(&plain, &chain, "bench"));
    check(ref_declared_of(&products, &product, "bench"));
    check(ref_declared_of(&lanes, &tree, "bench"));
    online = plain;
    online.tile = 32;
    const int64_t t = z->sequence * z->batch, dim = z->hidden / z->heads;
    const int64_t qkv = (z->heads + 2 * z->groups) * dim;
    for (int64_t i = 0; i < z->layers; i++) {
        linear(t, qkv, z->hidden, &products);
        linear(t, z->hidden, z->heads * dim, &products);
        linear(t, 2 * z->ffn, z->hidden, &products);
        linear(t, z->hidden, z->ffn, &products);
        attention(z, &online, &plain);
        norm(t, z->hidden, &lanes);
        norm(t, z->hidden, &lanes);
        elementwise(z, &plain);
    }
    linear(t, z->vocabulary, z->hidden, &products);
    norm(t, z->hidden, &lanes);
    loss(z, &lanes);
    optimizer(z->layers * (qkv * z->hidden + z->heads * dim * z->hidden + 3 * z->ffn * z->hidden) +
                  2 * z->vocabulary * z->hidden,
              &plain);
}

int main(int argc, char **argv)
{
    static const char *const names[N_FAMILIES] = {"linear",      "attention", "norm",
                                                  "elementwise", "loss",      "optimizer"};
    double best[N_FAMILIES], total = 0.0;
    int64_t n[8];
    if (argc != 9) {
        fprintf(stderr, "usage: bench_bounds LAYERS HIDDEN FFN HEADS GROUPS SEQUENCE BATCH VOCABULARY\n");
        return 2;
    }
    for (int i = 0; i < 8; i++)
        n[i] = strtoll(argv[i + 1], NULL, 10);
    const sizes z = {n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]};
    for (int run = 0; run < 3; run++) {
        memset(spent, 0, sizeof spent);
        step(&z);
        for (int f = 0; f < N_FAMILIES; f++)
            best[f] = run == 0 || spent[f] < best[f] ? spent[f] : best[f];
    }
    for (int f = 0; f < N_FAMILIES; f++) {
        total += best[f];
        printf("%s %.3f  ", names[f], best[f]);
    }
    printf("total %.3f\n", total);
    return 0;
}
