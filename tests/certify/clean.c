/* Honest kernels of other styles than the examples: none may be suspected. */
#include "kernels.h"

#include <math.h>

/* --- rmsnorm_fwd ---------------------------------------------------------------------------------------------- */
enum { GAMMA, X, Y, RSTD };
typedef enum { CHAIN, LANES_8, REVERSED, DOUBLE, PAIRWISE, TWO_PARTS, UNFUSED, ROOT_FIRST } style;

static int32_t check_norm(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[GAMMA], c->act, 1)) != 0 ||
        (code = check_tensor(c->slot[X], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[Y], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[RSTD], ASSAY_KERNEL_F32, 1)) != 0)
        return code;
    const int64_t *x = c->slot[X]->shape, *y = c->slot[Y]->shape;
    return x[0] == y[0] && x[1] == y[1] && x[0] == c->slot[RSTD]->shape[0] && x[1] == c->slot[GAMMA]->shape[0]
               ? ASSAY_KERNEL_OK
               : ASSAY_KERNEL_INVALID;
}

static float square(const void *x, int64_t i, int32_t dtype)
{
    const float v = load(x, i, dtype);
    return v * v;
}

static float pairwise(const void *x, int64_t first, int64_t n, int32_t dtype)
{
    if (n <= 1)
        return n == 1 ? square(x, first, dtype) : 0.0f;
    return pairwise(x, first, n / 2, dtype) + pairwise(x, first + n / 2, n - n / 2, dtype);
}

static double sum_of(const void *x, int64_t at, int64_t n, int32_t dtype, style s)
{
    float lane[8] = {0.0f};
    double wide = 0.0;
    if (s == PAIRWISE)
        return (double)pairwise(x, at, n, dtype);
    for (int64_t i = 0; i < n; i++) {
        const float v = load(x, at + (s == REVERSED ? n - 1 - i : i), dtype);
        const int64_t k = s == LANES_8 ? i % 8 : s == TWO_PARTS ? i / ((n + 1) / 2) : 0;
        if (s == UNFUSED) {
            const volatile float product = v * v;
            lane[k] += product;
        } else {
            lane[k] = fmaf(v, v, lane[k]);
        }
        wide += (double)v * (double)v;
    }
    for (int half = 4; half > 0 && s != TWO_PARTS; half /= 2)
        for (int k = 0; k < half; k++)
            lane[k] += lane[k + half];
    return s == DOUBLE ? wide : s == TWO_PARTS ? (double)(lane[0] + lane[1]) : (double)lane[0];
}

static int32_t norm(const assay_kernel_call *c, style s)
{
    const int32_t code = check_norm(c);
    if (code != ASSAY_KERNEL_OK)
        return code;
    const int64_t rows = c->slot[X]->shape[0], n = c->slot[X]->shape[1];
    const double eps = c->attr[ASSAY_KERNEL_ATTR_RMSNORM_FWD_EPS]->number;
#pragma omp parallel for schedule(dynamic)
    for (int64_t t = 0; t < rows; t++) {
        const double sum = sum_of(c->slot[X]->data, t * n, n, c->act, s);
        const float mean = n > 0 ? (float)sum / (float)n : 0.0f;
        const float rstd = s == DOUBLE ? (float)(1.0 / sqrt((n > 0 ? sum / (double)n : 0.0) + eps))
                                       : 1.0f / sqrtf(mean + (float)eps);
        store(c->slot[RSTD]->data, t, ASSAY_KERNEL_F32, rstd);
        for (int64_t h = 0; h < n; h++) {
            const float x = load(c->slot[X]->data, t * n + h, c->act),
                        gamma = load(c->slot[GAMMA]->data, h, c->act);
            store(c->slot[Y]->data, t * n + h, c->act,
                  s == ROOT_FIRST ? x * (rstd * gamma) : x * rstd * gamma);
        }
    }
    return ASSAY_KERNEL_OK;
}

#define ARITH(name, value)                                                                                   \
    static const assay_kernel_output name[] = {                                                              \
        {.size = sizeof(assay_kernel_output), .slot = Y, .arith = value},                                    \
        {.size = sizeof(assay_kernel_output), .slot = RSTD, .arith = value}};
ARITH(one_chain, SEQUENTIAL(2))
ARITH(eight_lanes, TREE(8, 2))
#define ANY_ORDER                                                                                            \
    {                                                                                                        \
        .size = sizeof(assay_kernel_arith), .accumulate = ASSAY_KERNEL_F32,                                  \
        .order = ASSAY_KERNEL_ORDER_UNKNOWN, .math_ulp = 2                                                   \
    }
#define TWO_CHAINS                                                                                           \
    {                                                                                                        \
        .size = sizeof(assay_kernel_arith), .accumulate = ASSAY_KERNEL_F32,                                  \
        .order = ASSAY_KERNEL_ORDER_SEQUENTIAL, .split = 2, .fma = 1, .math_ulp = 2                          \
    }
#define ROUNDED_PRODUCTS                                                                                     \
    {                                                                                                        \
        .size = sizeof(assay_kernel_arith), .accumulate = ASSAY_KERNEL_F32,                                  \
        .order = ASSAY_KERNEL_ORDER_SEQUENTIAL, .math_ulp = 2                                                \
    }
ARITH(any_order, ANY_ORDER)
ARITH(two_chains, TWO_CHAINS)
ARITH(rounded_products, ROUNDED_PRODUCTS)

#define NORM(symbol, style_, outputs, ...)                                                                   \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        return norm(c, style_);                                                                              \
    }                                                                                                        \
    DESCRIBE(symbol, "rmsnorm_fwd", PLAIN, run_##symbol, outputs, 2, __VA_ARGS__)
NORM(norm_chain, CHAIN, one_chain, .in_place = "y=x")
NORM(norm_lanes, LANES_8, eight_lanes, .in_place = NULL)
NORM(norm_reversed, REVERSED, any_order, .in_place = NULL)
NORM(norm_double, DOUBLE, one_chain, .in_place = "y=x")
NORM(norm_pairwise, PAIRWISE, any_order, .in_place = NULL)
NORM(norm_two_parts, TWO_PARTS, two_chains, .in_place = NULL)
NORM(norm_unfused, UNFUSED, rounded_products, .in_place = NULL)
NORM(norm_gamma_first, ROOT_FIRST, one_chain, .in_place = NULL)
NORM(norm_one_dtype, CHAIN, one_chain, .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16))

/* Of some widths alone. */
static int32_t run_some(const assay_kernel_call *c)
{
    const int32_t code = check_norm(c);
    if (code != 0)
        return code;
    const int64_t h = c->slot[X]->shape[1];
    return h >= 8 && h <= 128 && h % 8 == 0 ? norm(c, LANES_8) : ASSAY_KERNEL_UNSUPPORTED;
}
DESCRIBE(norm_of_some_widths, "rmsnorm_fwd", PLAIN, run_some, eight_lanes, 2, .shapes = "H>=8 H<=128 H%8=0")

/* Of one eps alone, which few calls have. */
static int32_t run_one_eps(const assay_kernel_call *c)
{
    const int32_t code = check_norm(c);
    if (code != 0)
        return code;
    return c->attr[ASSAY_KERNEL_ATTR_RMSNORM_FWD_EPS]->number == 0.5 ? norm(c, CHAIN)
                                                                     : ASSAY_KERNEL_UNSUPPORTED;
}
DESCRIBE(norm_of_one_eps, "rmsnorm_fwd", PLAIN, run_one_eps, one_chain, 2, .shapes = "eps=0.5")

/* Lanes follow from the width. */
static int32_t run_adapting(const assay_kernel_call *c)
{
    return norm(c, check_call(c) && c->slot[X] != NULL && c->slot[X]->ndim == 2 && c->slot[X]->shape[1] > 64
                       ? LANES_8
                       : CHAIN);
}
static void adapt_lanes(const assay_kernel_call *c, int32_t slot, assay_kernel_arith *a)
{
    (void)slot;
    if (c->slot[X]->shape[1] <= 64)
        return;
    a->order = ASSAY_KERNEL_ORDER_TREE;
    a->lanes = 8;
}
DESCRIBE(norm_that_adapts, "rmsnorm_fwd", PLAIN, run_adapting, one_chain, 2, .adapt = adapt_lanes)

/* --- add: vectors that need their alignment, and say so; any number of rows ------------------------------------------ */
typedef float vector __attribute__((vector_size(16)));
static const assay_kernel_output add_y[] = {
    {.size = sizeof(assay_kernel_output), .slot = 2, .arith = ELEMENTWISE(0)}};

static int32_t check_add(const assay_kernel_call *c, size_t alignment)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    for (int i = 0; i < 3; i++) {
        if (!check_call(c) || (code = check_tensor(c->slot[i], c->act, 1)) != 0)
            return code;
        if ((uintptr_t)c->slot[i]->data % alignment != 0)
            return ASSAY_KERNEL_UNSUPPORTED;
    }
    return c->slot[0]->shape[0] == c->slot[1]->shape[0] && c->slot[0]->shape[0] == c->slot[2]->shape[0]
               ? ASSAY_KERNEL_OK
               : ASSAY_KERNEL_INVALID;
}

static int32_t run_vectors(const assay_kernel_call *c)
{
    const int32_t code = check_add(c, 16);
    if (code != 0)
        return code;
    const int64_t n = c->slot[0]->shape[0];
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        *(vector *)((float *)c->slot[2]->data + i) = *(const vector *)((const float *)c->slot[0]->data + i) +
                                                     *(const vector *)((const float *)c->slot[1]->data + i);
    for (; i < n; i++)
        store(c->slot[2]->data, i, c->act,
              load(c->slot[0]->data, i, c->act) + load(c->slot[1]->data, i, c->act));
    return ASSAY_KERNEL_OK;
}
DESCRIBE(add_vectors, "add", PLAIN, run_vectors, add_y, 1, .alignment = 16, .in_place = "y=a y=b",
         .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32))

static int32_t run_backwards(const assay_kernel_call *c)
{
    const int32_t code = check_add(c, 1);
    for (int64_t i = code == 0 ? c->slot[0]->shape[0] : 0; i-- > 0;)
        store(c->slot[2]->data, i, c->act,
              load(c->slot[1]->data, i, c->act) + load(c->slot[0]->data, i, c->act));
    return code;
}
DESCRIBE(add_backwards, "add", PLAIN, run_backwards, add_y, 1, .in_place = "y=a")

/* --- clamp, count_zeros, sumsq, sigmoid_gate ---------------------------------------------------------------------------- */
static const assay_kernel_output clamp_y[] = {
    {.size = sizeof(assay_kernel_output), .slot = 1, .arith = ELEMENTWISE(0)}};
static int32_t run_clamp(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[0], c->act, 1)) != 0 ||
        (code = check_tensor(c->slot[1], c->act, 1)) != 0)
        return code;
    if (c->slot[0]->shape[0] != c->slot[1]->shape[0])
        return ASSAY_KERNEL_INVALID;
    const float limit = (float)c->attr[0]->number;
    for (int64_t i = 0; i < c->slot[0]->shape[0]; i++) {
        const float x = load(c->slot[0]->data, i, c->act);
        store(c->slot[1]->data, i, c->act, x > limit ? limit : x < -limit ? -limit : x);
    }
    return ASSAY_KERNEL_OK;
}
DESCRIBE(clamp_by_comparison, "clamp_fwd", PLAIN, run_clamp, clamp_y, 1, .in_place = "y=x")

static int32_t run_zeros(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    int64_t n = 0;
    if (!check_call(c) || (code = check_tensor(c->slot[0], ASSAY_KERNEL_F32, 1)) != 0 ||
        (code = check_tensor(c->slot[1], ASSAY_KERNEL_I64, 1)) != 0)
        return code;
    if (c->slot[1]->shape[0] != 1)
        return ASSAY_KERNEL_INVALID;
    for (int64_t i = 0; i < c->slot[0]->shape[0]; i++)
        n += load(c->slot[0]->data, i, ASSAY_KERNEL_F32) == 0.0f;
    memcpy(c->slot[1]->data, &n, sizeof n);
    return ASSAY_KERNEL_OK;
}
DESCRIBE(count_zeros_of_integers, "count_zeros", ASSAY_KERNEL_DETERMINISTIC, run_zeros, NULL, 0,
         .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32))

static const assay_kernel_output sum_in_double[] = {
    {.size = sizeof(assay_kernel_output), .slot = 1, .arith = IN_DOUBLE(UNKNOWN, 0)}};

/* As many threads as there are, in any order: not declared deterministic. */
static int32_t run_sumsq(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    double sum = 0.0;
    if (!check_call(c) || (code = check_tensor(c->slot[0], ASSAY_KERNEL_F32, 1)) != 0 ||
        (code = check_tensor(c->slot[1], ASSAY_KERNEL_F64, 1)) != 0)
        return code;
    if (c->slot[1]->shape[0] != 1)
        return ASSAY_KERNEL_INVALID;
#pragma omp parallel for reduction(+ : sum)
    for (int64_t i = 0; i < c->slot[0]->shape[0]; i++) {
        const double x = (double)load(c->slot[0]->data, i, ASSAY_KERNEL_F32);
        sum += x * x;
    }
    memcpy(c->slot[1]->data, &sum, sizeof sum);
    return ASSAY_KERNEL_OK;
}
DESCRIBE(sumsq_of_threads, "sumsq", ASSAY_KERNEL_ATOMICS, run_sumsq, sum_in_double, 1,
         .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32))

static const assay_kernel_output gate_y[] = {
    {.size = sizeof(assay_kernel_output), .slot = 2, .arith = ELEMENTWISE(2)}};
static int32_t run_gate(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[0], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[1], c->act, 1)) != 0 ||
        (code = check_tensor(c->slot[2], c->act, 2)) != 0)
        return code;
    const int64_t t = c->slot[0]->shape[0], h = c->slot[0]->shape[1];
    if (c->slot[1]->shape[0] != t || c->slot[2]->shape[0] != t || c->slot[2]->shape[1] != h)
        return ASSAY_KERNEL_INVALID;
    for (int64_t i = 0; i < t; i++) {
        const float g = load(c->slot[1]->data, i, c->act);
        /* of either sign without an overflow */
        const float e = expf(-fabsf(g)), s = (g >= 0.0f ? 1.0f : e) / (1.0f + e);
        for (int64_t k = 0; k < h; k++)
            store(c->slot[2]->data, i * h + k, c->act, load(c->slot[0]->data, i * h + k, c->act) * s);
    }
    return ASSAY_KERNEL_OK;
}
DESCRIBE(gate_without_overflow, "sigmoid_gate_fwd", PLAIN, run_gate, gate_y, 1, .in_place = "y=x")

/* --- embedding -------------------------------------------------------------------------------------------------------- */
static const assay_kernel_output lookup_y[] = {
    {.size = sizeof(assay_kernel_output), .slot = 2, .arith = ELEMENTWISE(0)}};
static int32_t run_lookup(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[0], ASSAY_KERNEL_I64, 1)) != 0 ||
        (code = check_tensor(c->slot[1], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[2], c->act, 2)) != 0)
        return code;
    const int64_t t = c->slot[0]->shape[0], v = c->slot[1]->shape[0], h = c->slot[1]->shape[1];
    if (c->slot[2]->shape[0] != t || c->slot[2]->shape[1] != h)
        return ASSAY_KERNEL_INVALID;
    const int64_t *ids = c->slot[0]->data;
    const size_t row = (size_t)h * (c->act == ASSAY_KERNEL_F32 ? 4 : 2);
    for (int64_t i = 0; i < t && row > 0; i++) {
        const int64_t id = ids[i] - c->attr[0]->integer;
        char *y = (char *)c->slot[2]->data + (size_t)i * row;
        if (id >= 0 && id < v)
            memcpy(y, (const char *)c->slot[1]->data + (size_t)id * row, row);
        else
            memset(y, 0, row);
    }
    return ASSAY_KERNEL_OK;
}
DESCRIBE(lookup_of_rows, "embedding_fwd", PLAIN, run_lookup, lookup_y, 1, .in_place = NULL)

static const assay_kernel_output embedding_w[] = {
    {.size = sizeof(assay_kernel_output), .slot = 2, .arith = SEQUENTIAL(0)}};
static int32_t run_embedding(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[0], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[1], ASSAY_KERNEL_I64, 1)) != 0 ||
        (code = check_tensor(c->slot[2], ASSAY_KERNEL_F32, 2)) != 0)
        return code;
    const int64_t t = c->slot[0]->shape[0], h = c->slot[0]->shape[1], v = c->slot[2]->shape[0];
    if (c->slot[1]->shape[0] != t || c->slot[2]->shape[1] != h)
        return ASSAY_KERNEL_INVALID;
    const int64_t *ids = c->slot[1]->data;
#pragma omp parallel for
    for (int64_t k = 0; k < h; k++)
        for (int64_t i = 0; i < t; i++) {
            const int64_t row = ids[i] - c->attr[0]->integer;
            if (row >= 0 && row < v && ids[i] != c->attr[1]->integer)
                store(c->slot[2]->data, row * h + k, ASSAY_KERNEL_F32,
                      load(c->slot[2]->data, row * h + k, ASSAY_KERNEL_F32) +
                          load(c->slot[0]->data, i * h + k, c->act));
        }
    return ASSAY_KERNEL_OK;
}
DESCRIBE(embedding_by_columns, "embedding_bwd", ASSAY_KERNEL_DETERMINISTIC, run_embedding, embedding_w, 1,
         .in_place = NULL)

/* --- linear: blocks of K, double ----------------------------------------------------------------------------------------- */
static const assay_kernel_output blocks[] = {
    {.size = sizeof(assay_kernel_output), .slot = 3, .arith = TREE(8, 0)}};
static const assay_kernel_output wide[] = {
    {.size = sizeof(assay_kernel_output), .slot = 3, .arith = IN_DOUBLE(UNKNOWN, 0)}};

static int32_t linear(const assay_kernel_call *c, bool in_double)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    const int32_t out = check_call(c) ? (int32_t)c->attr[0]->integer : 0;
    if (!check_call(c) || (code = check_tensor(c->slot[0], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[1], c->act, 2)) != 0 || (code = check_tensor(c->slot[3], out, 2)) != 0)
        return code;
    const int64_t t = c->slot[0]->shape[0], k = c->slot[0]->shape[1], n = c->slot[1]->shape[0];
    if (c->slot[2] != NULL && (code = check_tensor(c->slot[2], c->act, 1)) != 0)
        return code;
    if (c->slot[1]->shape[1] != k || c->slot[3]->shape[0] != t || c->slot[3]->shape[1] != n ||
        (c->slot[2] != NULL && c->slot[2]->shape[0] != n))
        return ASSAY_KERNEL_INVALID;
    for (int64_t i = 0; i < t * n; i++) {
        float lane[8] = {0.0f};
        double sum = 0.0;
        for (int64_t j = 0; j < k; j++) {
            const float a = load(c->slot[0]->data, i / n * k + j, c->act),
                        b = load(c->slot[1]->data, i % n * k + j, c->act);
            lane[j % 8] = fmaf(a, b, lane[j % 8]);
            sum += (double)a * (double)b;
        }
        for (int half = 4; half > 0; half /= 2)
            for (int q = 0; q < half; q++)
                lane[q] += lane[q + half];
        const float bias = c->slot[2] != NULL ? load(c->slot[2]->data, i % n, c->act) : 0.0f;
        store(c->slot[3]->data, i, out,
              in_double            ? (float)(sum + (double)bias)
              : c->slot[2] != NULL ? lane[0] + bias
                                   : lane[0]);
    }
    return ASSAY_KERNEL_OK;
}
static int32_t run_blocks(const assay_kernel_call *c)
{
    return linear(c, false);
}
static int32_t run_wide(const assay_kernel_call *c)
{
    return linear(c, true);
}
DESCRIBE(linear_of_lanes, "linear_fwd", PLAIN, run_blocks, blocks, 1, .in_place = NULL)
/* Through F32 to BF16 would be two roundings, which the declaration does not have. */
DESCRIBE(linear_in_double, "linear_fwd", PLAIN, run_wide, wide, 1,
         .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32))
