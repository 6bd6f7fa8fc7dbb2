/* Lattice inputs for operations that divide, take roots or exponentials.
 *
 * Statistics are inputs of a backward operation, so they can be chosen: an rstd of 1/2, scores in eighths, an lse that
 * makes every exponential 0 or 1.  A sigmoid is 1/2 at 0 and rounds to 0 or 1 far away.  Means are over powers of two.
 * Every step of an honest kernel is then exact in F32, and only the one rounding of the output remains. */
#include "core/base/philox.h"
#include "parity/checks/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double half(const parity_ask *q, int64_t i)
{
    (void)q;
    return i % 2 == 0 ? 0.5 : 0.25;
}

/* Where a sigmoid is 1/2, 0 or 1 to F32. */
static double gate(const parity_ask *q, int64_t i)
{
    static const double at[] = {0.0, 128.0, -128.0, 32.0};
    return at[assay_philox_below((uint64_t)q->n, 31, (uint64_t)i, 4)];
}

/* At 32 the derivative of a sigmoid, and what a sigmoid lacks of 1, are small, and they are numbers: a sum that cancels
 * would be one of them.  Here only what rounds to 0. */
static double far_gate(const parity_ask *q, int64_t i)
{
    const double at = gate(q, i);
    return at == 32.0 ? 128.0 : at;
}

/* Rows of [gate | up]: a few columns, and as many as are taken eight at a time. */
enum { NARROW = 6, WIDE = 264 };

static bool is_gate(int64_t i, int64_t width)
{
    return i % (2 * width) < width;
}

static double gate_up(const parity_ask *q, int64_t i)
{
    return is_gate(i, NARROW) ? gate(q, i) : parity_lattice(q, i);
}

static double wide_gate_up(const parity_ask *q, int64_t i)
{
    return is_gate(i, WIDE) ? gate(q, i) : parity_lattice(q, i);
}

/* The gradient of a row's probability is a sum over its columns. */
static double far_gate_up(const parity_ask *q, int64_t i)
{
    return is_gate(i, NARROW) ? far_gate(q, i) : parity_lattice(q, i);
}

static double wide_far_gate_up(const parity_ask *q, int64_t i)
{
    return is_gate(i, WIDE) ? far_gate(q, i) : parity_lattice(q, i);
}

static double power_of_two(const parity_ask *q, int64_t i)
{
    const double sign = parity_sign(q, i);
    return sign * (double)(1 << assay_philox_below((uint64_t)q->n, 77, (uint64_t)i, 3));
}

/* --- norm, activations -------------------------------------------------------------------------------------- */

static void add_norm(parity_ask *q, int64_t t, int64_t h)
{
    for (int added = 0; added < 2; added++) {
        parity_ask_begin(q, added ? "rmsnorm_bwd_add" : "rmsnorm_bwd");
        parity_ask_2d(q, "dy", q->act, t, h, parity_lattice);
        parity_ask_2d(q, "x", q->act, t, h, parity_lattice);
        parity_ask_real(q, "gamma", q->act, 1, &h, parity_lattice);
        parity_ask_real(q, "rstd", ASSAY_F32, 1, &t, half);
        if (added)
            parity_ask_2d(q, "dresidual", q->act, t, h, parity_lattice);
        parity_ask_real(q, "dgamma_in", ASSAY_F32, 1, &h, parity_lattice);
        parity_ask_finish(q);
    }
}

static void add_cut_norm(parity_ask *q, int64_t t, int64_t h)
{
    for (int apply = 0; apply < 2; apply++) {
        parity_ask_begin(q, apply ? "rmsnorm_bwd_apply" : "rmsnorm_bwd_dot");
        parity_ask_2d(q, "dy", q->act, t, h, parity_lattice);
        parity_ask_2d(q, "x", q->act, t, h, parity_lattice);
        parity_ask_real(q, "gamma", q->act, 1, &h, parity_lattice);
        parity_ask_real(q, "rstd", ASSAY_F32, 1, &t, half);
        if (apply) {
            parity_ask_real(q, "dot", ASSAY_F32, 1, &t, parity_lattice);
            parity_ask_real(q, "dgamma_in", ASSAY_F32, 1, &h, parity_lattice);
            parity_ask_int(q, "width", 64);
        }
        parity_ask_finish(q);
    }
}

static void add_swiglu(parity_ask *q, int64_t t, bool wide, bool probs)
{
    const int64_t width = wide ? WIDE : NARROW;
    for (int back = 0; back < 2; back++) {
        parity_ask_begin(q, back ? "swiglu_bwd" : "swiglu_fwd");
        if (back)
            parity_ask_2d(q, "dy", q->act, t, width, parity_lattice);
        if (wide)
            parity_ask_2d(q, "x", q->act, t, 2 * width, back ? wide_far_gate_up : wide_gate_up);
        else
            parity_ask_2d(q, "x", q->act, t, 2 * width, back ? far_gate_up : gate_up);
        if (probs)
            parity_ask_real(q, "probs", ASSAY_F32, 1, &t, half);
        parity_ask_finish(q);
    }
}

static void add_sigmoid_gate(parity_ask *q, int64_t t, int64_t h)
{
    for (int back = 0; back < 2; back++) {
        parity_ask_begin(q, back ? "sigmoid_gate_bwd" : "sigmoid_gate_fwd");
        if (back)
            parity_ask_2d(q, "dy", q->act, t, h, parity_lattice);
        parity_ask_2d(q, "x", q->act, t, h, parity_lattice);
        parity_ask_real(q, "gate", q->act, 1, &t, far_gate);
        parity_ask_finish(q);
    }
}

/* Two of nine values sit on the limit: nothing passes there. */
static void add_clamp(parity_ask *q, int64_t t, int64_t h, double limit)
{
    for (int back = 0; back < 2; back++) {
        parity_ask_begin(q, back ? "clamp_bwd" : "clamp_fwd");
        if (back)
            parity_ask_2d(q, "dy", q->act, t, h, parity_unique);
        parity_ask_2d(q, "x", q->act, t, h, parity_lattice);
        parity_ask_real_attr(q, "limit", limit);
        parity_ask_finish(q);
    }
}

/* 1/(1-p) is 2: what stays is exact. */
static void add_dropout(parity_ask *q, int64_t t, int64_t h)
{
    int64_t token[64];
    for (int64_t i = 0; i < t; i++)
        token[i] = 3 * (t - i);
    for (int back = 0; back < 2; back++) {
        parity_ask_begin(q, back ? "dropout_bwd" : "dropout_fwd");
        parity_ask_2d(q, back ? "dy" : "x", q->act, t, h, parity_unique);
        parity_ask_i64(q, "token", t, token);
        parity_ask_real_attr(q, "p", 0.5);
        parity_ask_int(q, "seed", 1234);
        parity_ask_int(q, "stream", 6);
        parity_ask_int(q, "draw", 3);
        parity_ask_finish(q);
    }
}

/* --- attention ---------------------------------------------------------------------------------------------- */

/* Query i looks at one key: its score is the row's lse, every other is 4096 less.  o is an input: it need not be the
 * value of that key, so dS = dO.v - dO.o is an integer that is not 0; dO has eight numbers a row, so that it is at most
 * 8 * 4 * 8 = 256, which bf16 holds where a kernel rounds dS for a product. */
static void add_attention(parity_ask *q, int64_t n, int64_t heads, int64_t groups, int64_t d, int64_t window)
{
    const int64_t back = window > 0 ? window - 1 : n;
    int64_t *position = calloc((size_t)n + 1, sizeof *position);
    float *query = calloc((size_t)(n * heads * d) + 1, sizeof *query);
    float *key = calloc((size_t)(n * groups * d) + 1, sizeof *key);
    float *lse = calloc((size_t)(n * heads) + 1, sizeof *lse);
    float *dout = calloc((size_t)(n * heads * d) + 1, sizeof *dout);
    if (!position || !query || !key || !lse || !dout)
        q->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "exact request: attention");
    for (int64_t i = 0; i < n && q->st == ASSAY_OK; i++) {
        const int64_t away = i * 3 % (back < i + 1 ? back + 1 : i + 1);
        position[i] = i;
        for (int64_t g = 0; g < groups; g++)
            key[(i * groups + g) * d + i % d] = 64.0f;
        for (int64_t a = 0; a < heads; a++) {
            query[(i * heads + a) * d + (i - away) % d] = 64.0f;
            lse[i * heads + a] = 4096.0f;
        }
    }
    parity_ask_begin(q, "attention_bwd");
    for (int64_t i = 0; i < n * heads * d && q->st == ASSAY_OK && !q->off; i++)
        dout[i] = (i % d + i / d) % ((d + 7) / 8) == 0 ? (float)parity_lattice(q, i) : 0.0f;
    parity_ask_floats(q, "do", 3, (int64_t[]){n, heads, d}, dout);
    parity_ask_floats(q, "q", 3, (int64_t[]){n, heads, d}, query);
    parity_ask_floats(q, "k", 3, (int64_t[]){n, groups, d}, key);
    parity_ask_real(q, "v", q->act, 3, (int64_t[]){n, groups, d}, parity_lattice);
    parity_ask_real(q, "o", q->act, 3, (int64_t[]){n, heads, d}, parity_lattice);
    parity_ask_bytes(q, "lse", ASSAY_F32, 2, (int64_t[]){n, heads}, lse);
    parity_ask_i64(q, "q_position", n, position);
    parity_ask_i64(q, "k_position", n, position);
    const struct {
        const char *name;
        int64_t value;
    } attrs[] = {{"batch", 1},       {"seq_q", n},    {"seq_k", n},      {"heads", heads},
                 {"groups", groups}, {"head_dim", d}, {"head_dim_v", d}, {"window", window}};
    for (size_t i = 0; i < sizeof attrs / sizeof *attrs; i++)
        parity_ask_int(q, attrs[i].name, attrs[i].value);
    parity_ask_real_attr(q, "scale", 1.0);
    parity_ask_finish(q);
    free(dout);
    free(lse);
    free(key);
    free(query);
    free(position);
}

/* --- router ------------------------------------------------------------------------------------------------- */

static double eighths(const parity_ask *q, int64_t i)
{
    return (double)(1 + assay_philox_below((uint64_t)q->n, 5, (uint64_t)i, 7)) / 8.0;
}

/* Scores in eighths; no division by their sum. */
static void begin_router_bwd(parity_ask *q, const char *op, int64_t t, int64_t experts, int64_t k,
                             const char *score, double (*logit)(const parity_ask *, int64_t))
{
    int64_t indices[64];
    for (int64_t i = 0; i < t * k; i++)
        indices[i] = (i / k * 2) % (experts - k + 1) + i % k;
    parity_ask_begin(q, op);
    parity_ask_2d(q, "dprobs", ASSAY_F32, t, k, parity_lattice);
    parity_ask_bytes(q, "indices", ASSAY_I64, 2, (int64_t[]){t, k}, indices);
    parity_ask_2d(q, "scores", ASSAY_F32, t, experts, eighths);
    parity_ask_2d(q, "logits", ASSAY_F32, t, experts, logit);
    parity_ask_int(q, "topk", k);
    parity_ask_text(q, "score_function", score);
    json_object_set_new(q->attrs, "pre_softmax", json_true());
    json_object_set_new(q->attrs, "norm_topk_prob", json_false());
    parity_ask_real_attr(q, "scaling_factor", 2.0);
    parity_ask_int(q, "num_groups", 0);
    parity_ask_int(q, "group_topk", 0);
}

static void add_router(parity_ask *q, int64_t t, int64_t experts, int64_t k, const char *score)
{
    begin_router_bwd(q, "router_bwd", t, experts, k, score, parity_lattice);
    parity_ask_finish(q);
}

/* Equal logits over a power of two of experts: every aux score is one over it.  z_coeff 0: log E is no number of F32. */
static void add_router_aux(parity_ask *q, int64_t t, int64_t experts, int64_t k, const char *score)
{
    int64_t counts[64];
    for (int64_t e = 0; e < experts; e++)
        counts[e] = e % 5;
    parity_ask_begin(q, "router_aux_fwd");
    parity_ask_2d(q, "logits", ASSAY_F32, t, experts, parity_lattice);
    parity_ask_int(q, "topk", k);
    parity_ask_text(q, "score_function", score);
    parity_ask_finish(q);
    for (int back = 0; back < 2; back++) {
        parity_ask_begin(q, back ? "router_aux_bwd" : "router_aux_loss");
        if (back) {
            parity_ask_2d(q, "logits", ASSAY_F32, t, experts, parity_zero);
            parity_ask_2d(q, "dlogits_in", ASSAY_F32, t, experts, parity_lattice);
        } else {
            parity_ask_real(q, "score_sums", ASSAY_F32, 1, &experts, eighths);
            parity_ask_real(q, "z_sum", ASSAY_F32, 1, (int64_t[]){1}, eighths);
        }
        parity_ask_i64(q, "tokens_per_expert", experts, counts);
        parity_ask_real_attr(q, "aux_coeff", 0.5);
        parity_ask_real_attr(q, "z_coeff", back ? 0.0 : 0.25);
        parity_ask_int(q, "topk", k);
        parity_ask_int(q, "tokens", 16);
        if (back) {
            parity_ask_text(q, "score_function", score);
            parity_ask_real_attr(q, "loss_scale", 0.25);
        }
        parity_ask_finish(q);
    }
}

/* The choice's gradient and those of the losses in one launch: scores and logits as above, which need not belong together. */
static void add_router_balanced(parity_ask *q, int64_t t, int64_t experts, int64_t k, const char *score,
                                int losses)
{
    static const char *const ops[] = {"router_balanced_bwd", "router_balanced_bwd_two",
                                      "router_balanced_bwd_three"},
                             *const ends[] = {"", "_2", "_3"};
    int64_t counts[3 * 64];
    char name[32];
    for (int64_t i = 0; i < 3 * experts; i++)
        counts[i] = i * i % 5;
    begin_router_bwd(q, ops[losses - 1], t, experts, k, score, parity_zero);
    for (int i = 0; i < losses; i++) {
        snprintf(name, sizeof name, "tokens_per_expert%s", ends[i]);
        parity_ask_bytes(q, name, ASSAY_I64, 2, (int64_t[]){i == 1 ? 3 : 1, experts}, counts);
        snprintf(name, sizeof name, "aux_coeff%s", ends[i]);
        parity_ask_real_attr(q, name, i == 0 ? 0.5 : 1.0);
        snprintf(name, sizeof name, "z_coeff%s", ends[i]);
        parity_ask_real_attr(q, name, 0.0);
        snprintf(name, sizeof name, "tokens%s", ends[i]);
        parity_ask_int(q, name, i == 1 ? 8 : 16);
        snprintf(name, sizeof name, "divisor%s", ends[i]);
        parity_ask_int(q, name, i == 1 ? 4 : 1);
        snprintf(name, sizeof name, "loss_scale%s", ends[i]);
        parity_ask_real_attr(q, name, 0.25);
    }
    parity_ask_finish(q);
}

/* The same of interleaved sequences, and the counts of a step. */
static void add_sequences(parity_ask *q, int64_t rows, int64_t length, int64_t experts)
{
    int64_t counts[64], indices[64];
    for (int64_t i = 0; i < 64; i++) {
        counts[i] = i * i % 5;
        indices[i] = i * 3 % experts;
    }
    parity_ask_begin(q, "router_seq_aux_fwd");
    parity_ask_2d(q, "aux_scores", ASSAY_F32, rows * length, experts, eighths);
    parity_ask_bytes(q, "aux_indices", ASSAY_I64, 2, (int64_t[]){rows * length, 1}, indices);
    parity_ask_int(q, "rows", rows);
    parity_ask_finish(q);
    for (int back = 0; back < 2; back++) {
        parity_ask_begin(q, back ? "router_aux_bwd" : "router_aux_loss");
        if (back) {
            parity_ask_2d(q, "logits", ASSAY_F32, rows * length, experts, parity_zero);
            parity_ask_2d(q, "dlogits_in", ASSAY_F32, rows * length, experts, parity_lattice);
            parity_ask_text(q, "score_function", "softmax");
            parity_ask_real_attr(q, "loss_scale", 0.25);
        } else {
            parity_ask_2d(q, "score_sums", ASSAY_F32, rows, experts, eighths);
        }
        parity_ask_bytes(q, "tokens_per_expert", ASSAY_I64, 2, (int64_t[]){rows, experts}, counts);
        parity_ask_real_attr(q, "aux_coeff", 0.5);
        parity_ask_real_attr(q, "z_coeff", 0.0);
        parity_ask_int(q, "topk", 2);
        parity_ask_int(q, "tokens", 8);
        parity_ask_int(q, "divisor", 4);
        parity_ask_finish(q);
    }
    parity_ask_begin(q, "running_counts");
    parity_ask_i64(q, "tokens_per_expert", experts, counts);
    parity_ask_i64(q, "previous", experts, counts + experts);
    parity_ask_finish(q);
}

static void add_bias_update(parity_ask *q, int64_t experts)
{
    int64_t counts[128];
    for (int64_t e = 0; e < experts; e++)
        counts[e] = e * e % 7; /* some at the mean, some beside */
    parity_ask_begin(q, "expert_bias_update");
    parity_ask_real(q, "bias_in", ASSAY_F32, 1, &experts, parity_lattice);
    parity_ask_i64(q, "tokens_per_expert", experts, counts);
    parity_ask_real_attr(q, "rate", 0.125);
    parity_ask_finish(q);
}

/* --- loss, optimizer ---------------------------------------------------------------------------------------- */

/* One piece holds the whole sum, which is 1; the others hold what vanishes beside it, or nothing at all. */
static void add_loss(parity_ask *q, int64_t pieces, int64_t t)
{
    float *stats = calloc((size_t)(pieces * 3 * t) + 1, sizeof *stats);
    int64_t targets[32];
    if (!stats)
        q->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "exact request: loss");
    for (int64_t i = 0; i < t && stats; i++) {
        targets[i] = i % 4 == 2 ? -100 : i;
        for (int64_t p = 0; p < pieces; p++) {
            const bool whole = p == i % pieces, empty = (p + i) % 2 == 1;
            float *at = stats + p * 3 * t + i;
            at[0] = whole ? (float)(i - 3) : empty ? -INFINITY : (float)(i - 3 - 4096);
            at[t] = whole ? 1.0f : empty ? 0.0f : 7.0f;
            at[2 * t] = p == (i / 2) % pieces ? (float)(i % 5) : 0.0f;
        }
    }
    parity_ask_begin(q, "cross_entropy_loss");
    parity_ask_bytes(q, "stats", ASSAY_F32, 3, (int64_t[]){pieces, 3, t}, stats);
    parity_ask_i64(q, "targets", t, targets);
    parity_ask_finish(q);
    free(stats);
}

static double far_or_near(const parity_ask *q, int64_t i)
{
    return parity_lattice(q, i) > 1.0 ? 0.0 : -4096.0;
}

/* lse is 0: a probability is 1 (as often as the lattice likes) or 0. */
static void add_loss_backward(parity_ask *q, int64_t t, int64_t v, int64_t start)
{
    int64_t targets[32];
    for (int64_t i = 0; i < t; i++)
        targets[i] = i % 4 == 1 ? -100 : (i * 3) % (v + start + 2);
    parity_ask_begin(q, "cross_entropy_bwd");
    parity_ask_2d(q, "logits", ASSAY_F32, t, v, far_or_near);
    parity_ask_real(q, "lse", ASSAY_F32, 1, &t, parity_zero);
    parity_ask_i64(q, "targets", t, targets);
    parity_ask_int(q, "vocab_start", start);
    parity_ask_real_attr(q, "scale", 0.125);
    parity_ask_finish(q);
}

static double square(const parity_ask *q, int64_t i)
{
    const double g = power_of_two(q, i);
    return g * g / 4.0;
}

/* First step, decays 1/2 and 3/4, eps 0, a second moment that is the square of the scaled gradient: the root is
 * 2 |g|, a power of two, and every quotient is exact. */
static void add_adamw(parity_ask *q, int64_t n)
{
    const int64_t one = 1;
    parity_ask_begin(q, "adamw");
    parity_ask_real(q, "main_param_in", ASSAY_F32, 1, &n, parity_lattice);
    parity_ask_real(q, "exp_avg_in", ASSAY_F32, 1, &n, parity_lattice);
    parity_ask_real(q, "exp_avg_sq_in", ASSAY_F32, 1, &n, square);
    parity_ask_real(q, "grad", ASSAY_F32, 1, &n, power_of_two);
    parity_ask_real(q, "grad_scale", ASSAY_F64, 1, &one, half);
    parity_ask_real_attr(q, "lr", 0.125);
    parity_ask_real_attr(q, "beta1", 0.5);
    parity_ask_real_attr(q, "beta2", 0.75);
    parity_ask_real_attr(q, "eps", 0.0);
    parity_ask_real_attr(q, "weight_decay", 0.25);
    parity_ask_int(q, "step", 1);
    parity_ask_finish(q);
}

static void add_casts(parity_ask *q, int64_t n)
{
    parity_ask_begin(q, "cast");
    parity_ask_real(q, "x", q->act, 1, &n, parity_unique);
    parity_ask_text(q, "dtype", "F32");
    parity_ask_finish(q);
}

void parity_ask_lattice_backward(parity_ask *q)
{
    add_norm(q, 5, 4);
    add_norm(q, 1, 1);
    add_norm(q, 0, 8);
    add_norm(q, 37, 64);
    add_norm(q, 3, 256);
    add_cut_norm(q, 5, 4);
    add_cut_norm(q, 0, 8);
    add_cut_norm(q, 37, 64);
    add_swiglu(q, 9, false, true);
    add_swiglu(q, 70, false, false);
    add_swiglu(q, 0, false, true);
    add_swiglu(q, 5, true, true);
    add_swiglu(q, 3, true, false);
    add_sigmoid_gate(q, 9, 5);
    add_sigmoid_gate(q, 3, 130);
    add_clamp(q, 9, 5, 2.0);
    add_clamp(q, 16, 8, 2.0);
    add_clamp(q, 16, 8, 3.0 + 0x1p-10); /* 3 in BF16 */
    add_clamp(q, 0, 3, 2.0);
    add_dropout(q, 9, 5);
    add_dropout(q, 17, 8);
    add_dropout(q, 0, 3);
    add_attention(q, 8, 4, 2, 8, 0);
    add_attention(q, 40, 3, 1, 40, 0);
    add_attention(q, 48, 2, 2, 48, 5);
    add_attention(q, 66, 2, 1, 80, 0);
    add_attention(q, 1, 1, 1, 8, 1);
    add_router(q, 9, 8, 2, "softmax");
    add_router(q, 5, 40, 3, "sigmoid");
    add_router(q, 3, 70, 1, "softmax");
    add_router(q, 0, 4, 2, "sigmoid");
    add_router_balanced(q, 9, 8, 2, "softmax", 1);
    add_router_balanced(q, 6, 64, 4, "sigmoid", 2);
    add_router_balanced(q, 9, 32, 2, "softmax", 3);
    add_router_balanced(q, 0, 4, 1, "softmax", 1);
    add_router_aux(q, 9, 8, 2, "softmax");
    add_router_aux(q, 5, 64, 4, "sigmoid");
    add_router_aux(q, 0, 4, 1, "softmax");
    add_sequences(q, 3, 5, 8);
    add_sequences(q, 1, 2, 4);
    add_bias_update(q, 8);
    add_bias_update(q, 70);
    add_loss(q, 1, 5);
    add_loss(q, 3, 9);
    add_loss(q, 2, 0);
    add_loss_backward(q, 7, 5, 3);
    add_loss_backward(q, 2, 4100, 0);
    add_loss_backward(q, 0, 3, 0);
    add_adamw(q, 1);
    add_adamw(q, 0);
    add_adamw(q, 2500);
    add_casts(q, 300);
}

/* Rows of whole eights, for kernels of wide loads that no size above reaches. */
void parity_ask_lattice_eights(parity_ask *q)
{
    q->tier = "exact";
    add_sigmoid_gate(q, 5, 72);
    add_loss_backward(q, 3, 64, 2);
}
