/* Every operation of ref/ops.h against torch autograd in double (golden/ops): 1e-12 of the largest value. */
#include "ref/ops.h"
#include "tests/support/ref.h"

static void linear_file(const char *name, bool with_bias)
{
    assay_tensorfile *f = golden_open(name);
    const int64_t t = golden_dim(f, "x", 0), k = golden_dim(f, "x", 1), n = golden_dim(f, "weight", 0);
    double *x = golden_real(f, "x"), *w = golden_real(f, "weight"), *dy = golden_real(f, "dy");
    double *bias = with_bias ? golden_real(f, "bias") : NULL;
    double *y = new_real(t * n), *dx = new_real(t * k), *dw = calloc((size_t)(n * k), 8),
           *db = calloc((size_t)n, 8);
    ref_linear_fwd(y, x, w, bias, t, n, k);
    ref_linear_bwd_input(dx, dy, w, t, n, k);
    ref_linear_bwd_weight(dw, dy, x, t, n, k);
    ref_linear_bwd_bias(db, dy, t, n);
    expect_golden(f, "y", y);
    expect_golden(f, "dx", dx);
    expect_golden(f, "dweight", dw);
    if (with_bias)
        expect_golden(f, "dbias", db);
    free(x), free(w), free(dy), free(bias), free(y), free(dx), free(dw), free(db);
    assay_tensorfile_close(f);
}

Test(ref_golden, linear)
{
    linear_file("linear", false);
    linear_file("linear_bias", true);
}

Test(ref_golden, rmsnorm)
{
    assay_tensorfile *f = golden_open("rmsnorm");
    const int64_t t = golden_dim(f, "x", 0), h = golden_dim(f, "x", 1);
    double *x = golden_real(f, "x"), *gamma = golden_real(f, "gamma"), *dy = golden_real(f, "dy");
    double *y = new_real(t * h), *rstd = new_real(t), *dx = new_real(t * h), *dgamma = calloc((size_t)h, 8);
    ref_rmsnorm_fwd(y, rstd, x, gamma, golden_attr(f, "eps"), t, h);
    ref_rmsnorm_bwd(dx, dgamma, dy, x, gamma, rstd, t, h);
    expect_golden(f, "y", y);
    expect_golden(f, "rstd", rstd);
    expect_golden(f, "dx", dx);
    expect_golden(f, "dgamma", dgamma);
    free(x), free(gamma), free(dy), free(y), free(rstd), free(dx), free(dgamma);
    assay_tensorfile_close(f);
}

Test(ref_golden, layernorm)
{
    assay_tensorfile *f = golden_open("layernorm");
    const int64_t t = golden_dim(f, "x", 0), h = golden_dim(f, "x", 1);
    double *x = golden_real(f, "x"), *gamma = golden_real(f, "gamma"), *beta = golden_real(f, "beta");
    double *dy = golden_real(f, "dy"), *y = new_real(t * h), *mean = new_real(t), *rstd = new_real(t);
    double *dx = new_real(t * h), *dgamma = calloc((size_t)h, 8), *dbeta = calloc((size_t)h, 8);
    ref_layernorm_fwd(y, mean, rstd, x, gamma, beta, golden_attr(f, "eps"), t, h);
    ref_layernorm_bwd(dx, dgamma, dbeta, dy, x, gamma, mean, rstd, t, h);
    expect_golden(f, "y", y);
    expect_golden(f, "mean", mean);
    expect_golden(f, "rstd", rstd);
    expect_golden(f, "dx", dx);
    expect_golden(f, "dgamma", dgamma);
    expect_golden(f, "dbeta", dbeta);
    free(x), free(gamma), free(beta), free(dy), free(y), free(mean), free(rstd), free(dx), free(dgamma);
    free(dbeta);
    assay_tensorfile_close(f);
}

Test(ref_golden, clamp)
{
    assay_tensorfile *f = golden_open("clamp");
    const int64_t n = golden_info(f, "x")->count;
    const double limit = golden_attr(f, "limit");
    double *x = golden_real(f, "x"), *dy = golden_real(f, "dy"), *y = new_real(n), *dx = new_real(n);
    ref_clamp_fwd(y, x, limit, n);
    ref_clamp_bwd(dx, dy, x, limit, n);
    cr_expect(x[0] == limit && y[0] == limit && dx[0] == 0.0 && dy[0] != 0.0,
              "the first value is on the limit");
    expect_golden(f, "y", y);
    expect_golden(f, "dx", dx);
    free(x), free(dy), free(y), free(dx);
    assay_tensorfile_close(f);
}

Test(ref_golden, embedding)
{
    assay_tensorfile *f = golden_open("embedding");
    const int64_t v = golden_dim(f, "weight", 0), h = golden_dim(f, "weight", 1);
    const int64_t t = golden_info(f, "ids")->count;
    int64_t *ids = golden_int(f, "ids");
    double *w = golden_real(f, "weight"), *dy = golden_real(f, "dy");
    double *y = new_real(t * h), *dw = calloc((size_t)(v * h), 8);
    ref_embedding_fwd(y, ids, w, 0, t, v, h);
    ref_embedding_bwd(dw, dy, ids, 0, -1, t, v, h);
    expect_golden(f, "y", y);
    expect_golden(f, "dweight", dw);
    free(ids), free(w), free(dy), free(y), free(dw);
    assay_tensorfile_close(f);
}

static void swiglu_file(const char *name, bool with_probs)
{
    assay_tensorfile *f = golden_open(name);
    const int64_t t = golden_dim(f, "y", 0), n = golden_dim(f, "y", 1);
    double *x = golden_real(f, "x"), *dy = golden_real(f, "dy");
    double *probs = with_probs ? golden_real(f, "probs") : NULL;
    double *y = new_real(t * n), *dx = new_real(2 * t * n), *dprobs = new_real(t);
    ref_swiglu_fwd(y, x, probs, t, n);
    ref_swiglu_bwd(dx, with_probs ? dprobs : NULL, dy, x, probs, t, n);
    expect_golden(f, "y", y);
    expect_golden(f, "dx", dx);
    if (with_probs)
        expect_golden(f, "dprobs", dprobs);
    free(x), free(dy), free(probs), free(y), free(dx), free(dprobs);
    assay_tensorfile_close(f);
}

Test(ref_golden, swiglu)
{
    swiglu_file("swiglu", false);
    swiglu_file("swiglu_probs", true);
}

static void rope_file(const char *name, assay_rope_type type)
{
    assay_tensorfile *f = golden_open(name);
    ref_rope_desc desc = {.type = type,
                          .rotary_dim = (int64_t)golden_attr(f, "rotary_dim"),
                          .base = golden_attr(f, "rotary_base")};
    if (type != ASSAY_ROPE_DEFAULT)
        desc.factor = golden_attr(f, "factor");
    if (type == ASSAY_ROPE_LLAMA3) {
        desc.low_freq_factor = golden_attr(f, "low_freq_factor");
        desc.high_freq_factor = golden_attr(f, "high_freq_factor");
        desc.original_max_position_embeddings = (int64_t)golden_attr(f, "original_max_position_embeddings");
    }
    const int64_t p = golden_dim(f, "cos", 0), half = golden_dim(f, "cos", 1), r = 2 * half;
    int64_t *position = golden_int(f, "position");
    double *c = new_real(p * half), *s = new_real(p * half);
    ref_rope_table(c, s, &desc, p);
    expect_golden(f, "cos", c);
    expect_golden(f, "sin", s);
    const char *in[2] = {"q", "k"}, *out[2] = {"q_out", "k_out"}, *dout[2] = {"dq_out", "dk_out"},
               *din[2] = {"dq", "dk"};
    for (int i = 0; i < 2; i++) {
        const int64_t t = golden_dim(f, in[i], 0), heads = golden_dim(f, in[i], 1),
                      d = golden_dim(f, in[i], 2);
        double *x = golden_real(f, in[i]), *dy = golden_real(f, dout[i]);
        double *y = new_real(t * heads * d), *dx = new_real(t * heads * d);
        ref_rope_fwd(y, x, c, s, position, r, t, heads, d);
        ref_rope_bwd(dx, dy, c, s, position, r, t, heads, d);
        expect_golden(f, out[i], y);
        expect_golden(f, din[i], dx);
        free(x), free(dy), free(y), free(dx);
    }
    free(position), free(c), free(s);
    assay_tensorfile_close(f);
}

Test(ref_golden, rope)
{
    rope_file("rope_default", ASSAY_ROPE_DEFAULT);
    rope_file("rope_partial", ASSAY_ROPE_DEFAULT);
    rope_file("rope_linear", ASSAY_ROPE_LINEAR);
    rope_file("rope_llama3", ASSAY_ROPE_LLAMA3);
}

/* dS = P (dP - D) is exactly zero where a query sees one key; its rounding is that of dP, of the size of v
 * dO. */
static void expect_cancelled(const assay_tensorfile *f, const char *name, const double *got, double size)
{
    const assay_tensor_info *info = golden_info(f, name);
    double *want = golden_real(f, name);
    for (int64_t i = 0; i < info->count; i++)
        cr_expect(fabs(got[i] - want[i]) <= 1e-12 * size, "%s: %s[%lld] is %.3g, expected %.3g",
                  assay_tensorfile_path(f), name, (long long)i, got[i], want[i]);
    free(want);
}

static void attention_file(const char *name)
{
    assay_tensorfile *f = golden_open(name);
    int64_t *position = golden_int(f, "position");
    const int64_t seq = (int64_t)golden_attr(f, "seq"), d = golden_dim(f, "q", 2);
    ref_attention_desc desc = {.batch = (int64_t)golden_attr(f, "batch"),
                               .seq_q = seq,
                               .seq_k = seq,
                               .heads = golden_dim(f, "q", 1),
                               .groups = golden_dim(f, "k", 1),
                               .head_dim = d,
                               .head_dim_v = d,
                               .scale = golden_attr(f, "scale"),
                               .window = (int64_t)golden_attr(f, "window"),
                               .q_position = position,
                               .k_position = position};
    const int64_t nq = golden_info(f, "q")->count, nk = golden_info(f, "k")->count;
    double *q = golden_real(f, "q"), *k = golden_real(f, "k"), *v = golden_real(f, "v"),
           *dout = golden_real(f, "do");
    double *o = new_real(nq), *lse = new_real(nq / d), *dq = new_real(nq), *dk = new_real(nk),
           *dv = new_real(nk);
    ref_attention_fwd(o, lse, q, k, v, &desc);
    ref_attention_bwd(dq, dk, dv, dout, q, k, v, o, lse, &desc);
    expect_golden(f, "o", o);
    expect_golden(f, "lse", lse);
    expect_golden(f, "dv", dv);
    if (desc.window == 1) {
        double size = 0.0;
        for (int64_t i = 0; i < nk; i++)
            size = fmax(size, fabs(dv[i]));
        expect_cancelled(f, "dq", dq, size);
        expect_cancelled(f, "dk", dk, size);
    } else {
        expect_golden(f, "dq", dq);
        expect_golden(f, "dk", dk);
    }
    free(position), free(q), free(k), free(v), free(dout), free(o), free(lse), free(dq), free(dk), free(dv);
    assay_tensorfile_close(f);
}

Test(ref_golden, attention)
{
    const char *files[] = {"attention_causal", "attention_mqa", "attention_scale", "attention_window",
                           "attention_window1"};
    for (int i = 0; i < 5; i++)
        attention_file(files[i]);
}

static void router_file(const char *name)
{
    assay_tensorfile *f = golden_open(name);
    const int64_t t = golden_dim(f, "logits", 0), e = golden_dim(f, "logits", 1),
                  k = golden_dim(f, "indices", 1);
    const bool sigmoid = strcmp(assay_tensorfile_metadata(f, "score_function"), "sigmoid") == 0;
    const ref_router_desc desc = {.tokens = t,
                                  .experts = e,
                                  .topk = k,
                                  .mode =
                                      ref_router_mode_of(sigmoid ? ASSAY_SCORE_SIGMOID : ASSAY_SCORE_SOFTMAX,
                                                         golden_attr(f, "pre_softmax") != 0.0),
                                  .norm_topk_prob = golden_attr(f, "norm_topk_prob") != 0.0,
                                  .scaling_factor = golden_attr(f, "scaling_factor"),
                                  .num_groups = (int64_t)golden_attr(f, "num_groups"),
                                  .group_topk = (int64_t)golden_attr(f, "group_topk")};
    double *logits = golden_real(f, "logits"), *dprobs = golden_real(f, "dprobs");
    double *bias = assay_tensorfile_find(f, "expert_bias") ? golden_real(f, "expert_bias") : NULL;
    double *scores = new_real(t * e), *keys = new_real(t * e), *probs = new_real(t * k),
           *dlogits = new_real(t * e);
    int64_t *indices = new_int(t * k);
    ref_router_scores(scores, keys, logits, bias, &desc);
    ref_router_topk(indices, keys, &desc);
    ref_router_probs(probs, scores, logits, indices, &desc);
    ref_router_bwd(dlogits, dprobs, indices, scores, logits, &desc);
    expect_golden(f, "scores", scores);
    expect_golden_int(f, "indices", indices);
    expect_golden(f, "probs", probs);
    expect_golden(f, "dlogits", dlogits);
    free(logits), free(dprobs), free(bias), free(scores), free(keys), free(probs), free(dlogits),
        free(indices);
    assay_tensorfile_close(f);
}

Test(ref_golden, router)
{
    const char *files[] = {"router_softmax_topk", "router_softmax_topk_norm",  "router_softmax_top1",
                           "router_topk_softmax", "router_topk_softmax_group", "router_sigmoid",
                           "router_sigmoid_top1", "router_sigmoid_bias",       "router_sigmoid_bias_group"};
    for (int i = 0; i < 9; i++)
        router_file(files[i]);
}

static void aux_file(const char *name, assay_score_function score)
{
    assay_tensorfile *f = golden_open(name);
    const int64_t t = golden_dim(f, "logits", 0), e = golden_dim(f, "logits", 1);
    const ref_router_desc desc = {.tokens = t,
                                  .experts = e,
                                  .topk = (int64_t)golden_attr(f, "topk"),
                                  .mode = ref_router_mode_of(score, true),
                                  .scaling_factor = 1.0};
    double *logits = golden_real(f, "logits"), *dloss = golden_real(f, "dloss");
    double *aux = new_real(t * e), *sums = new_real(e), z_sum = NOT_A_NUMBER,
           losses[2] = {NOT_A_NUMBER, NOT_A_NUMBER};
    double *dlogits = calloc((size_t)(t * e), 8);
    int64_t *indices = new_int(t * desc.topk), *counts = new_int(e);
    ref_router_aux_scores(aux, logits, &desc);
    ref_router_aux_topk(indices, aux, &desc);
    ref_router_aux_sums(sums, counts, &z_sum, aux, indices, logits, &desc);
    const ref_balance balance = {.aux_coeff = golden_attr(f, "coeff"), .tokens = t, .rows = 1, .divisor = 1};
    ref_router_aux_loss(losses, sums, counts, &z_sum, &balance, &desc);
    ref_router_aux_bwd(dlogits, logits, counts, &balance, dloss[0], &desc);
    expect_golden(f, "aux_scores", aux);
    expect_golden_int(f, "aux_indices", indices);
    expect_golden(f, "score_sums", sums);
    expect_golden_int(f, "tokens_per_expert", counts);
    expect_golden(f, "loss", losses);
    expect_golden(f, "dlogits", dlogits);
    free(logits), free(dloss), free(aux), free(sums), free(dlogits), free(indices), free(counts);
    assay_tensorfile_close(f);
}

Test(ref_golden, aux_loss)
{
    aux_file("aux_loss_softmax", ASSAY_SCORE_SOFTMAX);
    aux_file("aux_loss_sigmoid", ASSAY_SCORE_SIGMOID);
}

Test(ref_golden, z_loss)
{
    assay_tensorfile *f = golden_open("z_loss");
    const int64_t t = golden_dim(f, "logits", 0), e = golden_dim(f, "logits", 1);
    const ref_router_desc desc = {
        .tokens = t, .experts = e, .topk = 1, .mode = REF_ROUTER_SOFTMAX_TOPK, .scaling_factor = 1.0};
    double *logits = golden_real(f, "logits"), *dloss = golden_real(f, "dloss");
    double *aux = new_real(t * e), *sums = new_real(e), z_sum = NOT_A_NUMBER,
           losses[2] = {NOT_A_NUMBER, NOT_A_NUMBER};
    double *dlogits = calloc((size_t)(t * e), 8);
    int64_t *indices = new_int(t), *counts = new_int(e);
    ref_router_aux_scores(aux, logits, &desc);
    ref_router_aux_topk(indices, aux, &desc);
    ref_router_aux_sums(sums, counts, &z_sum, aux, indices, logits, &desc);
    const ref_balance balance = {.z_coeff = golden_attr(f, "coeff"), .tokens = t, .rows = 1, .divisor = 1};
    ref_router_aux_loss(losses, sums, counts, &z_sum, &balance, &desc);
    ref_router_aux_bwd(dlogits, logits, counts, &balance, dloss[0], &desc);
    expect_golden(f, "z_sum", &z_sum);
    expect_golden(f, "loss", losses + 1);
    expect_golden(f, "dlogits", dlogits);
    free(logits), free(dloss), free(aux), free(sums), free(dlogits), free(indices), free(counts);
    assay_tensorfile_close(f);
}

Test(ref_golden, experts)
{
    assay_tensorfile *f = golden_open("experts");
    const int64_t t = golden_dim(f, "x", 0), h = golden_dim(f, "x", 1), e = golden_dim(f, "fc1", 0),
                  n = golden_dim(f, "fc2", 2), k = golden_dim(f, "indices", 1), r = t * k;
    int64_t *indices = golden_int(f, "indices"), *row_token = new_int(r), *row_entry = new_int(r),
            *counts = new_int(e), *token_row = new_int(r);
    ref_permute_plan(row_token, row_entry, counts, token_row, indices, t, k, e, 0, e);
    expect_golden_int(f, "row_token", row_token);
    int64_t *row_slot = new_int(r);
    for (int64_t i = 0; i < r; i++)
        row_slot[i] = row_entry[i] % k;
    expect_golden_int(f, "row_slot", row_slot);
    expect_golden_int(f, "tokens_per_expert", counts);
    expect_golden_int(f, "token_row", token_row);
    double *x = golden_real(f, "x"), *probs = golden_real(f, "probs"), *fc1 = golden_real(f, "fc1"),
           *fc2 = golden_real(f, "fc2"), *dy = golden_real(f, "dy");
    double *rows = new_real(r * h), *row_probs = new_real(r), *a = new_real(r * 2 * n), *b = new_real(r * n),
           *c = new_real(r * h), *y = new_real(t * h);
    ref_gather_rows(rows, x, row_token, r, h);
    ref_gather_rows(row_probs, probs, row_entry, r, 1); /* probs [T,K] as T*K rows of one column */
    ref_grouped_linear_fwd(a, rows, fc1, counts, e, 2 * n, h);
    ref_swiglu_fwd(b, a, row_probs, r, n);
    ref_grouped_linear_fwd(c, b, fc2, counts, e, h, n);
    ref_combine_rows(y, c, token_row, t, k, h);
    expect_golden(f, "y", y);

    double *dc = new_real(r * h), *db = new_real(r * n), *da = new_real(r * 2 * n), *drow_probs = new_real(r),
           *drows = new_real(r * h), *dx = new_real(t * h), *dprobs = new_real(r);
    double *dfc1 = calloc((size_t)(e * 2 * n * h), 8), *dfc2 = calloc((size_t)(e * n * h), 8);
    ref_gather_rows(dc, dy, row_token, r, h);
    ref_grouped_linear_bwd_input(db, dc, fc2, counts, e, h, n);
    ref_grouped_linear_bwd_weight(dfc2, dc, b, counts, e, h, n);
    ref_swiglu_bwd(da, drow_probs, db, a, row_probs, r, n);
    ref_grouped_linear_bwd_input(drows, da, fc1, counts, e, 2 * n, h);
    ref_grouped_linear_bwd_weight(dfc1, da, rows, counts, e, 2 * n, h);
    ref_combine_rows(dx, drows, token_row, t, k, h);
    ref_gather_rows(dprobs, drow_probs, token_row, r, 1);
    expect_golden(f, "dx", dx);
    expect_golden(f, "dprobs", dprobs);
    expect_golden(f, "dfc1", dfc1);
    expect_golden(f, "dfc2", dfc2);
    free(indices), free(row_token), free(row_entry), free(row_slot), free(counts), free(token_row), free(x),
        free(probs), free(fc1), free(fc2), free(dy), free(rows), free(row_probs), free(a), free(b), free(c),
        free(y), free(dc), free(db), free(da), free(drow_probs), free(drows), free(dx), free(dprobs),
        free(dfc1), free(dfc2);
    assay_tensorfile_close(f);
}

Test(ref_golden, shared_expert)
{
    assay_tensorfile *f = golden_open("shared_expert");
    const int64_t t = golden_dim(f, "x", 0), h = golden_dim(f, "x", 1), n = golden_dim(f, "fc2", 1);
    double *x = golden_real(f, "x"), *fc1 = golden_real(f, "fc1"), *fc2 = golden_real(f, "fc2"),
           *gate = golden_real(f, "gate"), *dy = golden_real(f, "dy");
    double *a = new_real(t * 2 * n), *b = new_real(t * n), *c = new_real(t * h), *g = new_real(t),
           *y = new_real(t * h);
    ref_linear_fwd(a, x, fc1, NULL, t, 2 * n, h);
    ref_swiglu_fwd(b, a, NULL, t, n);
    ref_linear_fwd(c, b, fc2, NULL, t, h, n);
    ref_linear_fwd(g, x, gate, NULL, t, 1, h);
    ref_sigmoid_gate_fwd(y, c, g, t, h);
    expect_golden(f, "y", y);

    double *dc = new_real(t * h), *dg = new_real(t), *db = new_real(t * n), *da = new_real(t * 2 * n),
           *dx = new_real(t * h), *dx_gate = new_real(t * h);
    double *dfc1 = calloc((size_t)(2 * n * h), 8), *dfc2 = calloc((size_t)(n * h), 8),
           *dgate = calloc((size_t)h, 8);
    ref_sigmoid_gate_bwd(dc, dg, dy, c, g, t, h, ASSAY_F64);
    ref_linear_bwd_weight(dgate, dg, x, t, 1, h);
    ref_linear_bwd_input(dx_gate, dg, gate, t, 1, h);
    ref_linear_bwd_input(db, dc, fc2, t, h, n);
    ref_linear_bwd_weight(dfc2, dc, b, t, h, n);
    ref_swiglu_bwd(da, NULL, db, a, NULL, t, n);
    ref_linear_bwd_input(dx, da, fc1, t, 2 * n, h);
    ref_linear_bwd_weight(dfc1, da, x, t, 2 * n, h);
    ref_add(dx, dx, dx_gate, t * h);
    expect_golden(f, "dx", dx);
    expect_golden(f, "dgate", dgate);
    expect_golden(f, "dfc1", dfc1);
    expect_golden(f, "dfc2", dfc2);
    free(x), free(fc1), free(fc2), free(gate), free(dy), free(a), free(b), free(c), free(g), free(y),
        free(dc), free(dg), free(db), free(da), free(dx), free(dx_gate), free(dfc1), free(dfc2), free(dgate);
    assay_tensorfile_close(f);
}

/* The vocabulary whole, and in two uneven pieces and an empty one. */
static void cross_entropy_pieces(int n_pieces, const int64_t *start)
{
    assay_tensorfile *f = golden_open("cross_entropy");
    const int64_t t = golden_dim(f, "logits", 0), v = golden_dim(f, "logits", 1);
    int64_t *targets = golden_int(f, "targets"), *n_tokens = golden_int(f, "num_tokens");
    double *logits = golden_real(f, "logits"), *stats = new_real(n_pieces * 3 * t), *lse = new_real(t),
           *loss = new_real(t), *dlogits = new_real(t * v);
    for (int r = 0; r < n_pieces; r++) {
        const int64_t n = start[r + 1] - start[r];
        double *piece = new_real(t * n);
        for (int64_t i = 0; i < t; i++)
            memcpy(piece + i * n, logits + i * v + start[r], (size_t)n * sizeof *piece);
        ref_cross_entropy_stats(stats + r * 3 * t, piece, targets, start[r], t, n);
        free(piece);
    }
    ref_cross_entropy_loss(lse, loss, stats, targets, n_pieces, t);
    for (int r = 0; r < n_pieces; r++) {
        const int64_t n = start[r + 1] - start[r];
        double *piece = new_real(t * n), *d = new_real(t * n);
        for (int64_t i = 0; i < t; i++)
            memcpy(piece + i * n, logits + i * v + start[r], (size_t)n * sizeof *piece);
        ref_cross_entropy_bwd(d, piece, lse, targets, start[r], 1.0 / (double)n_tokens[0], t, n);
        for (int64_t i = 0; i < t; i++)
            memcpy(dlogits + i * v + start[r], d + i * n, (size_t)n * sizeof *d);
        free(piece), free(d);
    }
    const double sum = ref_sum(loss, t);
    expect_golden(f, "lse", lse);
    expect_golden(f, "token_loss", loss);
    expect_golden(f, "loss_sum", &sum);
    expect_golden(f, "dlogits", dlogits);
    free(targets), free(n_tokens), free(logits), free(stats), free(lse), free(loss), free(dlogits);
    assay_tensorfile_close(f);
}

Test(ref_golden, cross_entropy)
{
    cross_entropy_pieces(1, (const int64_t[]){0, 17});
    cross_entropy_pieces(3, (const int64_t[]){0, 5, 5, 17});
}

Test(ref_golden, adamw)
{
    assay_tensorfile *f = golden_open("adamw");
    const char *names[2] = {"matrix", "vector"};
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.0", names[i]);
        const int64_t n = golden_info(f, name)->count;
        double *p = golden_real(f, name), *m = calloc((size_t)n, 8), *v = calloc((size_t)n, 8);
        for (int step = 1; step <= 3; step++) {
            const ref_adamw_desc d = {golden_attr(f, "lr"),
                                      golden_attr(f, "beta1"),
                                      golden_attr(f, "beta2"),
                                      golden_attr(f, "eps"),
                                      i == 0 ? golden_attr(f, "weight_decay") : 0.0,
                                      1.0,
                                      step};
            snprintf(name, sizeof name, "%s.grad.%d", names[i], step);
            double *grad = golden_real(f, name);
            ref_adamw(p, m, v, grad, &d, n);
            free(grad);
            snprintf(name, sizeof name, "%s.%d", names[i], step);
            expect_golden(f, name, p);
            snprintf(name, sizeof name, "%s.exp_avg.%d", names[i], step);
            expect_golden(f, name, m);
            snprintf(name, sizeof name, "%s.exp_avg_sq.%d", names[i], step);
            expect_golden(f, name, v);
        }
        free(p), free(m), free(v);
    }
    assay_tensorfile_close(f);
}

Test(ref_golden, clip_grad)
{
    assay_tensorfile *f = golden_open("clip_grad");
    double *a = golden_real(f, "a"), *b = golden_real(f, "b");
    const double norm =
        sqrt(ref_sumsq(a, golden_info(f, "a")->count) + ref_sumsq(b, golden_info(f, "b")->count));
    expect_golden(f, "grad_norm", &norm);
    double *active = golden_real(f, "clip_grad.active"), *inactive = golden_real(f, "clip_grad.inactive");
    const double c0 = ref_clip_scale(norm, active[0]), c1 = ref_clip_scale(norm, inactive[0]);
    expect_golden(f, "coeff.active", &c0);
    expect_golden(f, "coeff.inactive", &c1);
    cr_expect(ref_clip_scale(norm, 0.0) == 1.0);
    cr_expect(isnan(ref_clip_scale(NOT_A_NUMBER, 1.0)),
              "a norm that is not a number must not disable clipping");
    free(a), free(b), free(active), free(inactive);
    assay_tensorfile_close(f);
}
