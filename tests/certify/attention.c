/* Attention without dropout, in the FlashAttention way: P, and dS, enter their products in the dtype of activations.  One that says so, and
 * others that do not, or that are wrong besides. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

typedef struct bug {
    bool window;    /* one key more */
    bool truncates; /* P and dS, in place of rounding them */
    bool no_delta;  /* dS = P dP */
} bug;

static float stored(const bug *b, float x, int32_t act)
{
    uint16_t half = 0;
    uint32_t bits;
    if (act != ASSAY_KERNEL_BF16)
        return x;
    if (b->truncates) {
        memcpy(&bits, &x, sizeof bits);
        bits &= 0xffff0000u;
        memcpy(&x, &bits, sizeof x);
        return x;
    }
    store(&half, 0, act, x);
    return load(&half, 0, act);
}

/* What both directions have of a call. */
typedef struct sizes {
    int64_t batch, seq_q, seq_k, heads, groups, dim, dim_v, window;
    const int64_t *q_position, *k_position, *first_key;
    float scale;
    int32_t act;
} sizes;

static bool sees(const bug *b, const sizes *s, int64_t q, int64_t k)
{
    const int64_t i = s->q_position[q], j = s->k_position[k];
    return j <= i && (s->first_key == NULL || j >= s->first_key[q]) &&
           (s->window == 0 || j > i - s->window - (b->window ? 1 : 0));
}

static float dot(const void *a, int64_t i, const void *b, int64_t j, int64_t n, int32_t act)
{
    float sum = 0.0f;
    for (int64_t d = 0; d < n; d++)
        sum = fmaf(load(a, i + d, act), load(b, j + d, act), sum);
    return sum;
}

static int32_t check_shape(const assay_kernel_tensor *t, int32_t dtype, int32_t ndim, int64_t a, int64_t b,
                           int64_t c)
{
    const int64_t expected[] = {a, b, c};
    const int32_t code = check_tensor(t, dtype, ndim);
    for (int32_t d = 0; d < ndim && code == ASSAY_KERNEL_OK; d++)
        if (t->shape[d] != expected[d])
            return ASSAY_KERNEL_INVALID;
    return code;
}

#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        const int32_t code_ = (call);                                                                        \
        if (code_ != ASSAY_KERNEL_OK)                                                                        \
            return code_;                                                                                    \
    } while (0)
/* Attributes and positions, which have other indices in the two directions. */
#define READ_SIZES(OP, s, c)                                                                                 \
    do {                                                                                                     \
        if (!check_call(c))                                                                                  \
            return ASSAY_KERNEL_INVALID;                                                                     \
        const assay_kernel_attr *const *a_ = (c)->attr;                                                      \
        (s) = (sizes){.batch = a_[ASSAY_KERNEL_ATTR_##OP##_BATCH]->integer,                                  \
                      .seq_q = a_[ASSAY_KERNEL_ATTR_##OP##_SEQ_Q]->integer,                                  \
                      .seq_k = a_[ASSAY_KERNEL_ATTR_##OP##_SEQ_K]->integer,                                  \
                      .heads = a_[ASSAY_KERNEL_ATTR_##OP##_HEADS]->integer,                                  \
                      .groups = a_[ASSAY_KERNEL_ATTR_##OP##_GROUPS]->integer,                                \
                      .dim = a_[ASSAY_KERNEL_ATTR_##OP##_HEAD_DIM]->integer,                                 \
                      .dim_v = a_[ASSAY_KERNEL_ATTR_##OP##_HEAD_DIM_V]->integer,                             \
                      .window = a_[ASSAY_KERNEL_ATTR_##OP##_WINDOW]->integer,                                \
                      .scale = (float)a_[ASSAY_KERNEL_ATTR_##OP##_SCALE]->number,                            \
                      .act = (c)->act};                                                                      \
        const assay_kernel_tensor *const *t_ = (c)->slot, *first_ = t_[ASSAY_KERNEL_SLOT_##OP##_FIRST_KEY];  \
        const int64_t tq_ = (s).batch * (s).seq_q, tk_ = (s).batch * (s).seq_k;                              \
        CHECK(check_shape(t_[ASSAY_KERNEL_SLOT_##OP##_Q], (s).act, 3, tq_, (s).heads, (s).dim));             \
        CHECK(check_shape(t_[ASSAY_KERNEL_SLOT_##OP##_K], (s).act, 3, tk_, (s).groups, (s).dim));            \
        CHECK(check_shape(t_[ASSAY_KERNEL_SLOT_##OP##_V], (s).act, 3, tk_, (s).groups, (s).dim_v));          \
        CHECK(check_shape(t_[ASSAY_KERNEL_SLOT_##OP##_O], (s).act, 3, tq_, (s).heads, (s).dim_v));           \
        CHECK(check_shape(t_[ASSAY_KERNEL_SLOT_##OP##_LSE], ASSAY_KERNEL_F32, 2, tq_, (s).heads, 0));        \
        CHECK(check_shape(t_[ASSAY_KERNEL_SLOT_##OP##_Q_POSITION], ASSAY_KERNEL_I64, 1, tq_, 0, 0));         \
        CHECK(check_shape(t_[ASSAY_KERNEL_SLOT_##OP##_K_POSITION], ASSAY_KERNEL_I64, 1, tk_, 0, 0));         \
        if (first_ != NULL)                                                                                  \
            CHECK(check_shape(first_, ASSAY_KERNEL_I64, 1, tq_, 0, 0));                                      \
        if (a_[ASSAY_KERNEL_ATTR_##OP##_DROPOUT_P]->number != 0.0)                                           \
            return ASSAY_KERNEL_UNSUPPORTED;                                                                 \
        (s).q_position = t_[ASSAY_KERNEL_SLOT_##OP##_Q_POSITION]->data;                                      \
        (s).k_position = t_[ASSAY_KERNEL_SLOT_##OP##_K_POSITION]->data;                                      \
        (s).first_key = first_ != NULL ? first_->data : NULL;                                                \
    } while (0)

/* --- forward: a maximum, then the sums --------------------------------------------------------------------------- */
static void forward_row(const bug *b, const sizes *s, const assay_kernel_call *c, int64_t t, int64_t a,
                        float *sum)
{
    const assay_kernel_tensor *const *x = c->slot;
    const void *q = x[ASSAY_KERNEL_SLOT_ATTENTION_FWD_Q]->data,
               *k = x[ASSAY_KERNEL_SLOT_ATTENTION_FWD_K]->data,
               *v = x[ASSAY_KERNEL_SLOT_ATTENTION_FWD_V]->data;
    const int64_t g = a / (s->heads / s->groups);
    float most = -INFINITY, total = 0.0f, *lse = x[ASSAY_KERNEL_SLOT_ATTENTION_FWD_LSE]->data;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t j = t % s->batch; j < s->batch * s->seq_k; j += s->batch) {
            if (!sees(b, s, t, j))
                continue;
            const float score = s->scale * dot(q, (t * s->heads + a) * s->dim, k,
                                               (j * s->groups + g) * s->dim, s->dim, s->act);
            if (pass == 0) {
                most = score > most || score != score ? score : most;
                continue;
            }
            const float p = expf(score - most), low = stored(b, p, s->act);
            total += p;
            for (int64_t d = 0; d < s->dim_v; d++)
                sum[d] = fmaf(low, load(v, (j * s->groups + g) * s->dim_v + d, s->act), sum[d]);
        }
    const bool none = most == -INFINITY && total == 0.0f;
    for (int64_t d = 0; d < s->dim_v; d++) {
        store(x[ASSAY_KERNEL_SLOT_ATTENTION_FWD_O]->data, (t * s->heads + a) * s->dim_v + d, s->act,
              none ? 0.0f : sum[d] / total);
        sum[d] = 0.0f;
    }
    lse[t * s->heads + a] = none ? -INFINITY : most + logf(total);
}

static int32_t forward(const bug *b, const assay_kernel_call *c)
{
    sizes s;
    READ_SIZES(ATTENTION_FWD, s, c);
    float *sum = calloc((size_t)s.dim_v + 1, sizeof *sum);
    for (int64_t t = 0; t < s.batch * s.seq_q; t++)
        for (int64_t a = 0; a < s.heads; a++)
            forward_row(b, &s, c, t, a, sum);
    free(sum);
    return ASSAY_KERNEL_OK;
}

/* --- backward ------------------------------------------------------------------------------------------------- */
enum { DQ, DK, DV, GRADIENTS };

static void add(float *sum, int64_t i, float factor, const void *x, int64_t j, int64_t n, int32_t act)
{
    for (int64_t d = 0; d < n; d++)
        sum[i + d] = fmaf(factor, load(x, j + d, act), sum[i + d]);
}

static void backward_row(const bug *b, const sizes *s, const assay_kernel_call *c, int64_t t, int64_t a,
                         float *const sum[GRADIENTS])
{
    const assay_kernel_tensor *const *x = c->slot;
    const void *q = x[ASSAY_KERNEL_SLOT_ATTENTION_BWD_Q]->data,
               *k = x[ASSAY_KERNEL_SLOT_ATTENTION_BWD_K]->data,
               *v = x[ASSAY_KERNEL_SLOT_ATTENTION_BWD_V]->data,
               *o = x[ASSAY_KERNEL_SLOT_ATTENTION_BWD_O]->data,
               *dout = x[ASSAY_KERNEL_SLOT_ATTENTION_BWD_DO]->data;
    const float *lse = x[ASSAY_KERNEL_SLOT_ATTENTION_BWD_LSE]->data;
    const int64_t row = t * s->heads + a, g = a / (s->heads / s->groups);
    const float delta = b->no_delta ? 0.0f : dot(dout, row * s->dim_v, o, row * s->dim_v, s->dim_v, s->act);
    for (int64_t j = t % s->batch; j < s->batch * s->seq_k; j += s->batch) {
        const int64_t key = j * s->groups + g;
        if (!sees(b, s, t, j))
            continue;
        const float score = s->scale * dot(q, row * s->dim, k, key * s->dim, s->dim, s->act),
                    p = expf(score - lse[row]),
                    dp = dot(dout, row * s->dim_v, v, key * s->dim_v, s->dim_v, s->act),
                    low = stored(b, p, s->act), ds = stored(b, p * (dp - delta), s->act);
        add(sum[DV], key * s->dim_v, low, dout, row * s->dim_v, s->dim_v, s->act);
        add(sum[DQ], row * s->dim, ds, k, key * s->dim, s->dim, s->act);
        add(sum[DK], key * s->dim, ds, q, row * s->dim, s->dim, s->act);
    }
}

static int32_t backward(const bug *b, const assay_kernel_call *c)
{
    static const int slots[] = {ASSAY_KERNEL_SLOT_ATTENTION_BWD_DQ, ASSAY_KERNEL_SLOT_ATTENTION_BWD_DK,
                                ASSAY_KERNEL_SLOT_ATTENTION_BWD_DV};
    sizes s;
    float *sum[GRADIENTS];
    READ_SIZES(ATTENTION_BWD, s, c);
    const int64_t tq = s.batch * s.seq_q, tk = s.batch * s.seq_k;
    const int64_t n[] = {tq * s.heads * s.dim, tk * s.groups * s.dim, tk * s.groups * s.dim_v};
    CHECK(check_shape(c->slot[ASSAY_KERNEL_SLOT_ATTENTION_BWD_DO], s.act, 3, tq, s.heads, s.dim_v));
    CHECK(check_shape(c->slot[slots[DQ]], s.act, 3, tq, s.heads, s.dim));
    CHECK(check_shape(c->slot[slots[DK]], s.act, 3, tk, s.groups, s.dim));
    CHECK(check_shape(c->slot[slots[DV]], s.act, 3, tk, s.groups, s.dim_v));
    for (int i = 0; i < GRADIENTS; i++)
        sum[i] = calloc((size_t)n[i] + 1, sizeof *sum[i]);
    for (int64_t t = 0; t < tq; t++)
        for (int64_t a = 0; a < s.heads; a++)
            backward_row(b, &s, c, t, a, sum);
    for (int i = 0; i < GRADIENTS; i++) {
        for (int64_t e = 0; e < n[i]; e++)
            store(c->slot[slots[i]]->data, e, s.act, i == DV ? sum[i][e] : sum[i][e] * s.scale);
        free(sum[i]);
    }
    return ASSAY_KERNEL_OK;
}

/* --- descriptions ------------------------------------------------------------------------------------------------ */
#define ARITH(places)                                                                                        \
    {                                                                                                        \
        .size = sizeof(assay_kernel_arith), .accumulate = ASSAY_KERNEL_F32,                                  \
        .order = ASSAY_KERNEL_ORDER_UNKNOWN, .lanes = 1, .split = 1, .fma = 1, .math_ulp = 2,                \
        .rounding = places                                                                                   \
    }
#define OUTPUT(index, places)                                                                                \
    {                                                                                                        \
        sizeof(assay_kernel_output), index, ARITH(places)                                                    \
    }
#define KERNEL(symbol, direction, op, takes, n, list, ...)                                                   \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        static const bug b = {__VA_ARGS__};                                                                  \
        return direction(&b, c);                                                                             \
    }                                                                                                        \
    const assay_kernel *symbol(uint32_t abi);                                                                \
    const assay_kernel *symbol(uint32_t abi)                                                                 \
    {                                                                                                        \
        static const assay_kernel k = {                                                                      \
            .size = sizeof k,                                                                                \
            .abi = ASSAY_KERNEL_ABI,                                                                         \
            .name = #symbol,                                                                                 \
            .version = "1",                                                                                  \
            .operation = op,                                                                                 \
            .built = "gcc",                                                                                  \
            .memory = ASSAY_KERNEL_MEMORY_HOST,                                                              \
            .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32) | ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16),              \
            .flags = ASSAY_KERNEL_DETERMINISTIC,                                                             \
            .shapes = takes,                                                                                 \
            .n_outputs = n,                                                                                  \
            .outputs = list,                                                                                 \
            .run = run_##symbol,                                                                             \
        };                                                                                                   \
        return abi == ASSAY_KERNEL_ABI ? &k : NULL;                                                          \
    }

static const assay_kernel_output says_fwd[] = {
    OUTPUT(ASSAY_KERNEL_SLOT_ATTENTION_FWD_O, ASSAY_KERNEL_ROUND_PROBS),
    OUTPUT(ASSAY_KERNEL_SLOT_ATTENTION_FWD_LSE, 0)};
static const assay_kernel_output silent_fwd[] = {OUTPUT(ASSAY_KERNEL_SLOT_ATTENTION_FWD_O, 0),
                                                 OUTPUT(ASSAY_KERNEL_SLOT_ATTENTION_FWD_LSE, 0)};
static const assay_kernel_output says_bwd[] = {
    OUTPUT(ASSAY_KERNEL_SLOT_ATTENTION_BWD_DQ, ASSAY_KERNEL_ROUND_PROBS),
    OUTPUT(ASSAY_KERNEL_SLOT_ATTENTION_BWD_DK, ASSAY_KERNEL_ROUND_PROBS),
    OUTPUT(ASSAY_KERNEL_SLOT_ATTENTION_BWD_DV, ASSAY_KERNEL_ROUND_PROBS)};
static const assay_kernel_output silent_bwd[] = {OUTPUT(ASSAY_KERNEL_SLOT_ATTENTION_BWD_DQ, 0),
                                                 OUTPUT(ASSAY_KERNEL_SLOT_ATTENTION_BWD_DK, 0),
                                                 OUTPUT(ASSAY_KERNEL_SLOT_ATTENTION_BWD_DV, 0)};
#define FORWARD(symbol, list, ...)                                                                           \
    KERNEL(symbol, forward, "attention_fwd", "dropout_p=0", 2, list, __VA_ARGS__)
#define BACKWARD(symbol, list, ...)                                                                          \
    KERNEL(symbol, backward, "attention_bwd", "dropout_p=0", 3, list, __VA_ARGS__)

FORWARD(fwd_says, says_fwd, .window = false)
FORWARD(fwd_silent, silent_fwd, .window = false)
FORWARD(fwd_says_window, says_fwd, .window = true)
FORWARD(fwd_says_truncates, says_fwd, .truncates = true)
BACKWARD(bwd_says, says_bwd, .window = false)
BACKWARD(bwd_silent, silent_bwd, .window = false)
BACKWARD(bwd_says_no_delta, says_bwd, .no_delta = true)
BACKWARD(bwd_says_truncates, says_bwd, .truncates = true)
KERNEL(no_dropout_and_silent_about_it, forward, "attention_fwd", NULL, 2, says_fwd, .window = false)
KERNEL(an_attribute_that_there_is_not, forward, "attention_fwd", "dropout=0", 2, says_fwd, .window = false)
