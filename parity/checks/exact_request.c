/* The lattice request of the exact check: operations with inputs for which every honest order of summation
 * gives the same result, so that the answer must be equal bit for bit.  Small integers, unique numbers as
 * payload, one-hot keys, tables of 0 and 1; odd sizes, empty sizes, empty experts, ties. */
#include "parity/checks/exact.h"

#include "core/base/philox.h"
#include "parity/checks/request.h"
#include <stdlib.h>
#include <string.h>

/* --- operations --------------------------------------------------------------------------------------------- */

static void add_linear(parity_ask *q, int64_t t, int64_t n, int64_t k, bool bias)
{
    parity_ask_begin(q, "linear_fwd");
    parity_ask_2d(q, "x", q->act, t, k, parity_lattice);
    parity_ask_2d(q, "weight", q->act, n, k, parity_lattice);
    if (bias)
        parity_ask_real(q, "bias", q->act, 1, &n, parity_lattice);
    parity_ask_finish(q);
    parity_ask_begin(q, "linear_bwd_input");
    parity_ask_2d(q, "dy", q->act, t, n, parity_lattice);
    parity_ask_2d(q, "weight", q->act, n, k, parity_lattice);
    parity_ask_finish(q);
    parity_ask_begin(q, "linear_bwd_weight");
    parity_ask_2d(q, "dy", q->act, t, n, parity_lattice);
    parity_ask_2d(q, "x", q->act, t, k, parity_lattice);
    parity_ask_2d(q, "dweight_in", ASSAY_F32, n, k, parity_lattice);
    parity_ask_finish(q);
    parity_ask_begin(q, "linear_bwd_bias");
    parity_ask_2d(q, "dy", q->act, t, n, parity_lattice);
    parity_ask_real(q, "dbias_in", ASSAY_F32, 1, &n, parity_lattice);
    parity_ask_finish(q);
}

static void add_grouped(parity_ask *q, int64_t experts, const int64_t *counts, int64_t n, int64_t k)
{
    const int64_t weight[3] = {experts, n, k};
    int64_t rows = 0;
    for (int64_t e = 0; e < experts; e++)
        rows += counts[e];
    parity_ask_begin(q, "grouped_linear_fwd");
    parity_ask_2d(q, "x", q->act, rows, k, parity_lattice);
    parity_ask_real(q, "weight", q->act, 3, weight, parity_lattice);
    parity_ask_i64(q, "tokens_per_expert", experts, counts);
    parity_ask_finish(q);
    parity_ask_begin(q, "grouped_linear_bwd_input");
    parity_ask_2d(q, "dy", q->act, rows, n, parity_lattice);
    parity_ask_real(q, "weight", q->act, 3, weight, parity_lattice);
    parity_ask_i64(q, "tokens_per_expert", experts, counts);
    parity_ask_finish(q);
    parity_ask_begin(q, "grouped_linear_bwd_weight");
    parity_ask_2d(q, "dy", q->act, rows, n, parity_lattice);
    parity_ask_2d(q, "x", q->act, rows, k, parity_lattice);
    parity_ask_i64(q, "tokens_per_expert", experts, counts);
    parity_ask_real(q, "dweight_in", ASSAY_F32, 3, weight, parity_lattice);
    parity_ask_finish(q);
}

/* Ids on both sides of the piece and repeated ones. */
static void add_embedding(parity_ask *q, int64_t t, int64_t v, int64_t h, int64_t start)
{
    int64_t ids[32];
    for (int64_t i = 0; i < t; i++)
        ids[i] = (i * 5 + i / 3) % (2 * v + start);
    parity_ask_begin(q, "embedding_fwd");
    parity_ask_i64(q, "ids", t, ids);
    parity_ask_2d(q, "weight", q->act, v, h, parity_unique);
    parity_ask_int(q, "vocab_start", start);
    parity_ask_finish(q);
    parity_ask_begin(q, "embedding_bwd");
    parity_ask_2d(q, "dy", q->act, t, h, parity_lattice);
    parity_ask_i64(q, "ids", t, ids);
    parity_ask_2d(q, "dweight_in", ASSAY_F32, v, h, parity_lattice);
    parity_ask_int(q, "vocab_start", start);
    parity_ask_finish(q);
}

/* Chains of an id that many tokens have: every `every`-th token, with 1 all; padding: an id without a gradient, -1 none. */
static void add_frequent_id(parity_ask *q, int64_t t, int64_t v, int64_t h, int64_t start, int64_t every,
                            int64_t frequent, int64_t padding)
{
    int64_t *ids = malloc((size_t)t * sizeof *ids);
    if (!ids) {
        q->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "exact request: embedding_bwd");
        return;
    }
    for (int64_t i = 0; i < t; i++)
        ids[i] = i % every == 0 ? frequent : (i * 31 + i / 7) % (start + v + 4);
    parity_ask_begin(q, "embedding_bwd");
    parity_ask_2d(q, "dy", q->act, t, h, parity_lattice);
    parity_ask_i64(q, "ids", t, ids);
    parity_ask_2d(q, "dweight_in", ASSAY_F32, v, h, parity_lattice);
    parity_ask_int(q, "vocab_start", start);
    parity_ask_int(q, "padding_idx", padding);
    parity_ask_finish(q);
    free(ids);
}

/* The first and the last row of the piece, all tokens, one of two that are frequent; a row that no token has, one of another piece, and
 * an id that would be padding if ids began with the piece. */
static void add_padding(parity_ask *q)
{
    add_frequent_id(q, 29, 11, 3, 4, 3, 4, 4);
    add_frequent_id(q, 29, 11, 3, 4, 3, 14, 14);
    add_frequent_id(q, 65, 7, 136, 0, 2, 0, 0);
    add_frequent_id(q, 700, 2, 5, 3, 1, 4, 4);
    add_frequent_id(q, 1300, 3, 8, 0, 2, 1, 1);
    add_frequent_id(q, 1300, 3, 8, 0, 2, 1, 2);
    add_frequent_id(q, 29, 11, 3, 4, 3, 9, 100);
    add_frequent_id(q, 29, 11, 3, 4, 3, 9, 2);
}

static void split_attrs(parity_ask *q, int64_t heads, int64_t groups, int64_t d)
{
    parity_ask_int(q, "heads", heads);
    parity_ask_int(q, "groups", groups);
    parity_ask_int(q, "head_dim", d);
}

static void add_qkv(parity_ask *q, int64_t t, int64_t heads, int64_t groups, int64_t d)
{
    const char *const slots[3] = {"dq", "dk", "dv"};
    parity_ask_begin(q, "qkv_split_fwd");
    parity_ask_2d(q, "qkv", q->act, t, (heads + 2 * groups) * d, parity_unique);
    split_attrs(q, heads, groups, d);
    parity_ask_finish(q);
    parity_ask_begin(q, "qkv_split_bwd");
    split_attrs(q, heads, groups, d);
    for (int i = 0; i < 3; i++)
        parity_ask_real(q, slots[i], q->act, 3, (int64_t[]){t, i == 0 ? heads : groups, d}, parity_unique);
    parity_ask_finish(q);
}

/* Tables of 0 and 1 rotate by whole quarter turns. */
static double quarter_cos(const parity_ask *q, int64_t i)
{
    (void)q;
    return i % 3 == 0 ? 1.0 : 0.0;
}

static double one_half(const parity_ask *q, int64_t i)
{
    (void)q;
    (void)i;
    return 0.5;
}

static double quarter_sin(const parity_ask *q, int64_t i)
{
    return 1.0 - quarter_cos(q, i);
}

static void add_rope(parity_ask *q, int64_t t, int64_t heads, int64_t d, int64_t rotary)
{
    const int64_t positions = 11;
    int64_t position[32];
    for (int64_t i = 0; i < t; i++)
        position[i] = (i * 7 + 3) % positions;
    for (int back = 0; back < 2; back++) {
        parity_ask_begin(q, back ? "rope_bwd" : "rope_fwd");
        parity_ask_real(q, back ? "dy" : "x", q->act, 3, (int64_t[]){t, heads, d}, parity_unique);
        parity_ask_2d(q, "cos", ASSAY_F32, positions, rotary / 2, quarter_cos);
        parity_ask_2d(q, "sin", ASSAY_F32, positions, rotary / 2, quarter_sin);
        parity_ask_i64(q, "position", t, position);
        parity_ask_finish(q);
    }
}

/* The same in one launch with the split, and with a norm of each head between them: mean of squares 1 and eps 3, rstd is 1/2. */
static void add_qkv_rope(parity_ask *q, int64_t t, int64_t heads, int64_t groups, int64_t d, int64_t rotary)
{
    const int64_t positions = 11;
    int64_t position[32];
    for (int64_t i = 0; i < t; i++)
        position[i] = (i * 7 + 3) % positions;
    for (int norm = 0; norm < 2; norm++) {
        parity_ask_begin(q, norm ? "qkv_norm_rope_fwd" : "qkv_rope_fwd");
        if (norm) {
            parity_ask_real(q, "q_gamma", q->act, 1, &d, parity_lattice);
            parity_ask_real(q, "k_gamma", q->act, 1, &d, parity_lattice);
        }
        parity_ask_2d(q, "qkv", q->act, t, (heads + 2 * groups) * d, norm ? parity_sign : parity_unique);
        parity_ask_2d(q, "cos", ASSAY_F32, positions, rotary / 2, quarter_cos);
        parity_ask_2d(q, "sin", ASSAY_F32, positions, rotary / 2, quarter_sin);
        parity_ask_i64(q, "position", t, position);
        split_attrs(q, heads, groups, d);
        if (norm)
            parity_ask_real_attr(q, "eps", 3.0);
        parity_ask_finish(q);
    }
}

/* The way back: rstd is 1/2, the mean goes over a power of two. */
static void add_qkv_rope_back(parity_ask *q, int64_t t, int64_t heads, int64_t groups, int64_t d,
                              int64_t rotary)
{
    static const char *const gradient[] = {"dq", "dk", "dv"}, *const raw[] = {"q_raw", "k_raw"},
                             *const gamma[] = {"q_gamma", "k_gamma"}, *const rstd[] = {"q_rstd", "k_rstd"},
                             *const dgamma[] = {"q_dgamma_in", "k_dgamma_in"};
    const int64_t positions = 11, of[] = {heads, groups, groups};
    int64_t position[32];
    for (int64_t i = 0; i < t; i++)
        position[i] = (i * 7 + 3) % positions;
    for (int norm = 0; norm < 2; norm++) {
        parity_ask_begin(q, norm ? "qkv_norm_rope_bwd" : "qkv_rope_bwd");
        for (int k = 0; k < 3; k++)
            parity_ask_real(q, gradient[k], q->act, 3, (int64_t[]){t, of[k], d},
                            norm ? parity_lattice : parity_unique);
        for (int k = 0; k < 2 && norm; k++) {
            parity_ask_real(q, raw[k], q->act, 3, (int64_t[]){t, of[k], d}, parity_lattice);
            parity_ask_real(q, gamma[k], q->act, 1, &d, parity_lattice);
            parity_ask_2d(q, rstd[k], ASSAY_F32, t, of[k], one_half);
            parity_ask_real(q, dgamma[k], ASSAY_F32, 1, &d, parity_lattice);
        }
        parity_ask_2d(q, "cos", ASSAY_F32, positions, rotary / 2, quarter_cos);
        parity_ask_2d(q, "sin", ASSAY_F32, positions, rotary / 2, quarter_sin);
        parity_ask_i64(q, "position", t, position);
        split_attrs(q, heads, groups, d);
        parity_ask_finish(q);
    }
}

/* Rows out and back by index [t*k] and token_row [t,k]. */
static void add_maps(parity_ask *q, int64_t t, int64_t k, int64_t h, const int64_t *index,
                     const int64_t *token_row)
{
    parity_ask_begin(q, "gather_rows");
    parity_ask_2d(q, "x", q->act, t, h, parity_unique);
    parity_ask_i64(q, "index", t * k, index);
    parity_ask_finish(q);
    parity_ask_begin(q, "combine_rows");
    parity_ask_2d(q, "x", q->act, t * k, h, parity_lattice);
    parity_ask_bytes(q, "token_row", ASSAY_I64, 2, (int64_t[]){t, k}, token_row);
    parity_ask_finish(q);
}

static void add_rows(parity_ask *q, int64_t t, int64_t k, int64_t h)
{
    int64_t index[64] = {0}, token_row[64] = {0};
    const int64_t rows = t * k;
    for (int64_t i = 0; i < rows; i++)
        index[i] = t > 0 ? (i * 5 + 1) % t : 0;
    for (int64_t i = 0; i < rows; i++)
        token_row[i] = rows - 1 - i; /* a permutation */
    add_maps(q, t, k, h, index, token_row);
    for (int64_t i = 0; i < rows; i += 2)
        index[i] = token_row[i] = -1; /* no row: zeros, no term */
    add_maps(q, t, k, h, index, token_row);
    parity_ask_begin(q, "slice_rows");
    parity_ask_2d(q, "x", q->act, t, h, parity_unique);
    parity_ask_int(q, "start", t / 3);
    parity_ask_int(q, "length", t - t / 3);
    parity_ask_finish(q);
    parity_ask_begin(q, "add");
    parity_ask_2d(q, "a", q->act, t, h, parity_lattice);
    parity_ask_2d(q, "b", q->act, t, h, parity_lattice);
    parity_ask_finish(q);
}

/* Powers of two of either sign: a product with them rounds once. */
static double powers(const parity_ask *q, int64_t i)
{
    (void)q;
    return (i % 3 == 0 ? -1.0 : 1.0) * (double)(1 << i % 5) / 4.0;
}

static void add_plan(parity_ask *q, int64_t t, int64_t k, int64_t experts)
{
    int64_t indices[64];
    for (int64_t i = 0; i < t; i++) {
        const int64_t first = (i * 3) % (experts - k + 1); /* the last experts stay empty for small t */
        for (int64_t j = 0; j < k; j++)
            indices[i * k + j] = first + j;
    }
    parity_ask_begin(q, "permute_plan");
    parity_ask_bytes(q, "indices", ASSAY_I64, 2, (int64_t[]){t, k}, indices);
    parity_ask_int(q, "experts", experts);
    parity_ask_int(q, "rows", t * k);
    parity_ask_finish(q);
    /* What no expert takes has no row: every third choice. */
    int64_t rows = 0, token[64];
    for (int64_t i = 0; i < t * k; i++) {
        token[i / k] = t - 1 - i / k;
        rows += i % 3 != 1;
    }
    parity_ask_begin(q, "random_logits");
    parity_ask_i64(q, "token", t, token);
    parity_ask_int(q, "experts", experts);
    parity_ask_int(q, "layer", 2);
    parity_ask_int(q, "draw", 7);
    parity_ask_int(q, "tokens", t + 1);
    parity_ask_finish(q);
    parity_ask_begin(q, "input_jitter");
    parity_ask_2d(q, "x", q->act, t, 5, powers);
    parity_ask_i64(q, "token", t, token);
    parity_ask_real_attr(q, "eps", 0.25);
    parity_ask_int(q, "layer", 2);
    parity_ask_int(q, "draw", 7);
    parity_ask_int(q, "tokens", t + 1);
    parity_ask_finish(q);
    parity_ask_begin(q, "router_drop");
    parity_ask_bytes(q, "all_indices", ASSAY_I64, 2, (int64_t[]){t, k}, indices);
    parity_ask_i64(q, "token", t, token);
    parity_ask_int(q, "experts", experts);
    parity_ask_int(q, "capacity", 2);
    parity_ask_int(q, "start", t / 3);
    parity_ask_int(q, "length", t - t / 3);
    parity_ask_finish(q);
    for (int64_t i = 0; i < t * k; i++)
        indices[i] = i % 3 != 1 ? indices[i] : -1;
    parity_ask_begin(q, "permute_plan");
    parity_ask_bytes(q, "indices", ASSAY_I64, 2, (int64_t[]){t, k}, indices);
    parity_ask_int(q, "experts", experts);
    parity_ask_int(q, "rows", rows);
    parity_ask_finish(q);
    /* the experts of one rank: others have neither rows nor counts here */
    const int64_t first = experts / 3, local = (experts - first + 1) / 2;
    rows = 0;
    for (int64_t i = 0; i < t * k; i++)
        rows += indices[i] >= first && indices[i] < first + local;
    parity_ask_begin(q, "permute_plan");
    parity_ask_bytes(q, "indices", ASSAY_I64, 2, (int64_t[]){t, k}, indices);
    parity_ask_int(q, "experts", experts);
    parity_ask_int(q, "rows", rows);
    parity_ask_int(q, "first_expert", first);
    parity_ask_int(q, "local_experts", local);
    parity_ask_finish(q);
}

enum { MANY = 2053 };

/* More assignments than a block of a counting sort takes, all of one expert. */
static void add_plan_of_one(parity_ask *q, int64_t expert, int64_t experts)
{
    int64_t indices[MANY];
    for (int64_t i = 0; i < MANY; i++)
        indices[i] = expert;
    parity_ask_begin(q, "permute_plan");
    parity_ask_bytes(q, "indices", ASSAY_I64, 2, (int64_t[]){MANY, 1}, indices);
    parity_ask_int(q, "experts", experts);
    parity_ask_int(q, "rows", MANY);
    parity_ask_finish(q);
}

/* --- norm, loss, sums, router ------------------------------------------------------------------------------- */

/* mean of squares 1 and eps 3: rstd is 1/2. */
static void add_norm(parity_ask *q, int64_t t, int64_t h)
{
    parity_ask_begin(q, "rmsnorm_fwd");
    parity_ask_2d(q, "x", q->act, t, h, parity_sign);
    parity_ask_real(q, "gamma", q->act, 1, &h, parity_lattice);
    parity_ask_real_attr(q, "eps", 3.0);
    parity_ask_finish(q);
    parity_ask_begin(q, "add_rmsnorm_fwd");
    parity_ask_2d(q, "a", q->act, t, h, parity_lattice);
    parity_ask_2d(q, "b", q->act, t, h, parity_lattice);
    parity_ask_real(q, "gamma", q->act, 1, &h, parity_lattice);
    parity_ask_real_attr(q, "eps", 3.0);
    parity_ask_finish(q);
}

/* The same in halves: of 16 columns these are h, and their mean square is 1. */
static double sixteen(const parity_ask *q, int64_t i)
{
    (void)q, (void)i;
    return 16.0;
}

static void add_cut_norm(parity_ask *q, int64_t t, int64_t h)
{
    parity_ask_begin(q, "rmsnorm_sumsq");
    parity_ask_2d(q, "x", q->act, t, h, parity_lattice);
    parity_ask_int(q, "columns", h);
    parity_ask_finish(q);
    parity_ask_begin(q, "rmsnorm_apply");
    parity_ask_2d(q, "x", q->act, t, h, parity_lattice);
    parity_ask_real(q, "gamma", q->act, 1, &h, parity_lattice);
    parity_ask_real(q, "sumsq", ASSAY_F32, 1, &t, sixteen);
    parity_ask_real_attr(q, "eps", 3.0);
    parity_ask_int(q, "width", 16);
    parity_ask_finish(q);
}

static void add_loss(parity_ask *q, int64_t t, int64_t v, int64_t start)
{
    int64_t targets[32];
    for (int64_t i = 0; i < t; i++)
        targets[i] = i % 4 == 1 ? -100 : (i * 3) % (v + start + 2);
    parity_ask_begin(q, "cross_entropy_stats");
    parity_ask_2d(q, "logits", ASSAY_F32, t, v, parity_lattice);
    parity_ask_i64(q, "targets", t, targets);
    parity_ask_int(q, "vocab_start", start);
    parity_ask_finish(q);
}

static void add_sums(parity_ask *q, int64_t n)
{
    parity_ask_begin(q, "sumsq");
    parity_ask_real(q, "x", ASSAY_F32, 1, &n, parity_lattice);
    parity_ask_finish(q);
    parity_ask_begin(q, "sum");
    parity_ask_real(q, "x", ASSAY_F32, 1, &n, parity_lattice);
    parity_ask_finish(q);
    parity_ask_begin(q, "count_zeros");
    parity_ask_real(q, "x", ASSAY_F32, 1, &n, parity_zeros);
    parity_ask_finish(q);
    parity_ask_begin(q, "total");
    parity_ask_real(q, "x", ASSAY_F64, 1, &n, parity_lattice);
    parity_ask_finish(q);
    parity_ask_begin(q, "cast");
    parity_ask_real(q, "x", ASSAY_F32, 1, &n, parity_lattice);
    parity_ask_text(q, "dtype", assay_dtype_name(q->act));
    parity_ask_finish(q);
}

/* Few values, many ties. */
static double tied(const parity_ask *q, int64_t i)
{
    return (double)assay_philox_below((uint64_t)q->n, 77, (uint64_t)i, 3);
}

/* Exponentials of these are 0: a maximum that begins with 0 leaves a row without a sum. */
static double tied_far_below_zero(const parity_ask *q, int64_t i)
{
    return tied(q, i) - 200.0;
}

static void add_router(parity_ask *q, int64_t t, int64_t experts, int64_t k, const char *score, bool pre,
                       int64_t groups, int64_t group_topk)
{
    parity_ask_begin(q, "router_fwd");
    parity_ask_2d(q, "logits", ASSAY_F32, t, experts,
                  pre && strcmp(score, "softmax") == 0 ? tied_far_below_zero : tied);
    parity_ask_int(q, "topk", k);
    parity_ask_text(q, "score_function", score);
    json_object_set_new(q->attrs, "pre_softmax", json_boolean(pre));
    json_object_set_new(q->attrs, "norm_topk_prob", json_true());
    parity_ask_real_attr(q, "scaling_factor", 1.0);
    parity_ask_int(q, "num_groups", groups);
    parity_ask_int(q, "group_topk", group_topk);
    parity_ask_finish(q);
}

/* --- the request -------------------------------------------------------------------------------------------- */

static void add_products(parity_ask *q)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {2, 3, 5},  {7, 17, 33}, {0, 3, 4},    {3, 0, 4},
                                       {3, 4, 0}, {5, 1, 64}, {1, 31, 2},  {16, 16, 16}, {17, 32, 65}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        add_linear(q, sizes[i][0], sizes[i][1], sizes[i][2], i % 2 == 0);
    add_grouped(q, 3, (int64_t[]){2, 0, 3}, 3, 5);
    add_grouped(q, 1, (int64_t[]){0}, 4, 4);
    add_grouped(q, 4, (int64_t[]){0, 5, 1, 0}, 17, 9);
    add_grouped(q, 2, (int64_t[]){16, 17}, 32, 33);
    /* widths of multiples of 8: tiles of matrix units, whole ones and pieces of them in every direction */
    add_grouped(q, 4, (int64_t[]){70, 0, 130, 1}, 136, 72);
    add_grouped(q, 3, (int64_t[]){0, 64, 65}, 72, 136);
    add_grouped(q, 2, (int64_t[]){129, 0}, 136, 136);
    add_grouped(q, 2, (int64_t[]){0, 0}, 8, 8);
    add_grouped(q, 2, (int64_t[]){3, 5}, 8, 0);
}

static void add_moves(parity_ask *q)
{
    add_embedding(q, 9, 11, 3, 4);
    add_embedding(q, 0, 5, 2, 0);
    add_embedding(q, 1, 1, 7, 2);
    add_embedding(q, 9, 11, 136, 4); /* 16 bytes at a time, columns of two groups */
    add_frequent_id(q, 700, 2, 5, 3, 1, 4, -1);
    add_frequent_id(q, 1300, 300, 8, 1, 2, 151, -1);
    add_padding(q);
    add_qkv(q, 5, 4, 2, 3);
    add_qkv(q, 1, 3, 1, 8);
    add_qkv(q, 0, 2, 2, 4);
    add_rope(q, 5, 3, 8, 8);
    add_rope(q, 7, 1, 8, 4);
    add_rope(q, 0, 2, 4, 4);
    add_rope(q, 9, 2, 16, 16); /* eight pairs at a time */
    add_rope(q, 3, 3, 40, 32);
    add_qkv_rope(q, 5, 3, 1, 16, 16);
    add_qkv_rope(q, 3, 4, 2, 40, 16);
    add_qkv_rope(q, 7, 2, 2, 6, 4);
    add_qkv_rope(q, 0, 2, 1, 16, 16);
    add_qkv_rope_back(q, 5, 3, 1, 16, 16);
    add_qkv_rope_back(q, 3, 4, 2, 64, 16);
    add_qkv_rope_back(q, 7, 2, 2, 8, 4);
    add_qkv_rope_back(q, 0, 2, 1, 16, 16);
    add_rows(q, 7, 2, 5);
    add_rows(q, 1, 1, 1);
    add_rows(q, 0, 2, 3);
    add_rows(q, 13, 3, 17);
    add_rows(q, 13, 3, 24);
    add_plan(q, 7, 2, 5);
    add_plan(q, 1, 1, 1);
    add_plan(q, 0, 2, 4);
    add_plan(q, 13, 3, 8);
    add_plan_of_one(q, 34, 35);
}

static void add_others(parity_ask *q)
{
    parity_ask_lattice_attention(q);
    add_norm(q, 5, 3);
    add_norm(q, 1, 1);
    add_norm(q, 0, 4);
    add_norm(q, 3, 129);
    add_norm(q, 37, 64); /* eight elements at a time */
    add_norm(q, 3, 264);
    add_cut_norm(q, 5, 3);
    add_cut_norm(q, 0, 4);
    add_cut_norm(q, 37, 16);
    add_cut_norm(q, 3, 8);
    add_loss(q, 7, 5, 3);
    add_loss(q, 1, 33, 0);
    add_loss(q, 0, 4, 0);
    add_sums(q, 0);
    add_sums(q, 1);
    add_sums(q, 1025);
    add_router(q, 9, 8, 2, "softmax", true, 0, 0);
    add_router(q, 5, 7, 3, "softmax", false, 0, 0);
    add_router(q, 4, 5, 2, "sigmoid", true, 0, 0);
    add_router(q, 6, 8, 2, "softmax", false, 4, 2);
    add_router(q, 0, 4, 2, "softmax", true, 0, 0);
}

void parity_ask_lattice(parity_ask *q)
{
    add_products(q);
    add_moves(q);
    add_others(q);
    parity_ask_lattice_backward(q);
    parity_ask_lattice_context(q);
}

/* All that one rank is asked by `assay run`. */
static void ask_all(parity_ask *q)
{
    parity_ask_collectives(q, 5);
    parity_ask_collectives(q, 1);
    parity_ask_collectives(q, 0);
    if (q->rank != 0)
        return;
    parity_ask_lattice(q);
    for (int m = 0; m < PARITY_MODE_RUN && q->world == 1; m++)
        parity_ask_random(q, (parity_data_mode)m);
    parity_ask_lattice_documents(q); /* last: what stands before keeps its values */
    parity_ask_lattice_sights(q);
    parity_ask_lattice_eights(q);
    parity_ask_lattice_mla(q);
}

static void ask_widths(parity_ask *q)
{
    for (int m = 0; m < PARITY_MODE_RUN; m++)
        parity_ask_widths(q, (parity_data_mode)m);
}

static assay_status write_request(const char *dir, int world, const char *act_dtype,
                                  void (*ask)(parity_ask *q))
{
    assay_dtype act;
    ASSAY_TRY(assay_dtype_from_name(act_dtype, &act));
    ASSAY_CHECK(act == ASSAY_F32 || act == ASSAY_BF16, ASSAY_INVALID_ARGUMENT,
                "exact request: expected F32 or BF16, found %s", act_dtype);
    ASSAY_CHECK(world >= 1 && world <= ASSAY_MAX_WORLD, ASSAY_INVALID_ARGUMENT,
                "exact request: world of %d ranks", world);
    int *ranks = calloc((size_t)world, sizeof *ranks);
    ASSAY_CHECK(ranks, ASSAY_OUT_OF_MEMORY, "exact request");
    assay_status st = ASSAY_OK;
    for (int r = 0; r < world; r++)
        ranks[r] = r;
    for (int rank = 0; rank < world && st == ASSAY_OK; rank++) {
        parity_ask q = {.act = act, .rank = rank, .world = world, .ranks = ranks, .tier = "exact"};
        json_t *header =
            json_pack("{s:s, s:s}", "engine", "request", "precision", act == ASSAY_F32 ? "fp32" : "bf16");
        q.st = assay_trace_writer_open(&q.w, dir, rank, world, header, false);
        json_decref(header);
        if (q.st == ASSAY_OK) {
            ask(&q);
            q.st = q.st == ASSAY_OK ? assay_trace_end_step(q.w) : q.st;
            q.st = q.st == ASSAY_OK ? assay_trace_writer_close(q.w) : q.st;
        }
        assay_trace_writer_destroy(q.w);
        json_decref(q.attrs);
        st = q.st;
    }
    free(ranks);
    return st;
}

assay_status parity_exact_request(const char *dir, int world, const char *act_dtype)
{
    return write_request(dir, world, act_dtype, ask_all);
}

assay_status parity_widths_request(const char *dir, const char *act_dtype)
{
    return write_request(dir, 1, act_dtype, ask_widths);
}
