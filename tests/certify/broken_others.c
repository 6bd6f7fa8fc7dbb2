/* Other operations, wrong in one way each. */
#include "kernels.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

/* --- sumsq: y F64 [1] of x F32 [n] ------------------------------------------------------------------------------ */
static const assay_kernel_output sum_in_double[] = {
    {.size = sizeof(assay_kernel_output), .slot = 1, .arith = IN_DOUBLE(UNKNOWN, 0)}};

static int32_t check_tensors(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (check_call(c) && (code = check_tensor(c->slot[0], ASSAY_KERNEL_F32, 1)) == 0)
        code = check_tensor(c->slot[1], ASSAY_KERNEL_F64, 1);
    return code;
}

static int32_t check_sum(const assay_kernel_call *c)
{
    const int32_t code = check_tensors(c);
    return code != 0 || c->slot[1]->shape[0] == 1 ? code : ASSAY_KERNEL_INVALID;
}

/* Every thread has its share: the order follows from how many there are. */
static int32_t by_threads(const assay_kernel_call *c)
{
    const int32_t code = check_sum(c);
    const int64_t n = code == 0 ? c->slot[0]->shape[0] : 0;
    double sum = 0.0;
    if (code != 0)
        return code;
#pragma omp parallel for reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        const double x = (double)load(c->slot[0]->data, i, ASSAY_KERNEL_F32);
        sum += x * x;
    }
    memcpy(c->slot[1]->data, &sum, sizeof sum);
    return ASSAY_KERNEL_OK;
}
DESCRIBE(order_of_threads, "sumsq", ASSAY_KERNEL_DETERMINISTIC, by_threads, sum_in_double, 1,
         .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32))

/* As many parts as OpenBLAS would have threads, which reads these where it is loaded. */
static int32_t by_blas_threads(const assay_kernel_call *c)
{
    const char *text = getenv("OPENBLAS_NUM_THREADS");
    const int32_t code = check_sum(c);
    const int64_t n = code == 0 ? c->slot[0]->shape[0] : 0;
    double sum = 0.0;
    if (code != 0)
        return code;
    text = text != NULL ? text : getenv("OMP_NUM_THREADS");
    const int64_t parts = text != NULL ? strtol(text, NULL, 10) : 1;
    for (int64_t p = 0; p < parts; p++) {
        double part = 0.0;
        for (int64_t i = n * p / parts; i < n * (p + 1) / parts; i++) {
            const double x = (double)load(c->slot[0]->data, i, ASSAY_KERNEL_F32);
            part += x * x;
        }
        sum += part;
    }
    memcpy(c->slot[1]->data, &sum, sizeof sum);
    return ASSAY_KERNEL_OK;
}
DESCRIBE(order_of_blas_threads, "sumsq", ASSAY_KERNEL_DETERMINISTIC, by_blas_threads, sum_in_double, 1,
         .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32))

/* Two threads add without taking turns. */
static int32_t races(const assay_kernel_call *c)
{
    const int32_t code = check_sum(c);
    const int64_t n = code == 0 ? c->slot[0]->shape[0] : 0;
    volatile double sum = 0.0;
    if (code != 0)
        return code;
#pragma omp parallel for schedule(static, 1)
    for (int64_t i = 0; i < n; i++) {
        const double x = (double)load(c->slot[0]->data, i, ASSAY_KERNEL_F32);
        const double before = sum;
        for (volatile int k = 0; k < 50; k++)
            ;
        sum = before + x * x;
    }
    const double all = sum;
    memcpy(c->slot[1]->data, &all, sizeof all);
    return ASSAY_KERNEL_OK;
}
DESCRIBE(race_of_threads, "sumsq", ASSAY_KERNEL_DETERMINISTIC, races, sum_in_double, 1,
         .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32))

/* What a third thread sums is lost.  Atomics are declared and equal bits are not: with one thread, and with two, it is right. */
static int32_t two_threads(const assay_kernel_call *c)
{
    const int32_t code = check_sum(c);
    double part[2] = {0.0, 0.0}, lost = 0.0;
    if (code != 0)
        return code;
#pragma omp parallel for schedule(static, 1)
    for (int64_t i = 0; i < c->slot[0]->shape[0]; i++) {
        const double x = (double)load(c->slot[0]->data, i, ASSAY_KERNEL_F32);
        const int thread = omp_get_thread_num();
        double *to = thread < 2 ? &part[thread] : &lost;
#pragma omp critical
        *to += x * x;
    }
    const double all = part[0] + part[1];
    memcpy(c->slot[1]->data, &all, sizeof all);
    return ASSAY_KERNEL_OK;
}
DESCRIBE(two_threads_alone, "sumsq", ASSAY_KERNEL_ATOMICS, two_threads, sum_in_double, 1,
         .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32))

/* F32 behind a declaration of F64. */
static int32_t single(const assay_kernel_call *c)
{
    const int32_t code = check_sum(c);
    float sum = 0.0f;
    if (code != 0)
        return code;
    for (int64_t i = 0; i < c->slot[0]->shape[0]; i++) {
        const float x = load(c->slot[0]->data, i, ASSAY_KERNEL_F32);
        sum += x * x;
    }
    const double wide = (double)sum;
    memcpy(c->slot[1]->data, &wide, sizeof wide);
    return ASSAY_KERNEL_OK;
}
DESCRIBE(single_precision_sum, "sumsq", ASSAY_KERNEL_DETERMINISTIC, single, sum_in_double, 1,
         .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32))

/* Nobody looks how many elements y has. */
static int32_t of_any_size(const assay_kernel_call *c)
{
    const int32_t code = check_tensors(c);
    double sum = 0.0;
    if (code != 0)
        return code;
    for (int64_t i = 0; i < c->slot[0]->shape[0]; i++) {
        const double x = (double)load(c->slot[0]->data, i, ASSAY_KERNEL_F32);
        sum += x * x;
    }
    memcpy(c->slot[1]->data, &sum, sizeof sum);
    return ASSAY_KERNEL_OK;
}
DESCRIBE(size_of_the_sum_not_checked, "sumsq", ASSAY_KERNEL_DETERMINISTIC, of_any_size, sum_in_double, 1,
         .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32))

/* --- add, clamp: element-wise ------------------------------------------------------------------------------------ */
static const assay_kernel_output add_y[] = {
    {.size = sizeof(assay_kernel_output), .slot = 2, .arith = ELEMENTWISE(0)}};

static int32_t check_add(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    for (int i = 0; i < 3; i++)
        if (!check_call(c) || (code = check_tensor(c->slot[i], c->act, 1)) != 0)
            return code;
    return c->slot[0]->shape[0] == c->slot[1]->shape[0] && c->slot[0]->shape[0] == c->slot[2]->shape[0]
               ? ASSAY_KERNEL_OK
               : ASSAY_KERNEL_INVALID;
}

/* Whole vectors of eight: the rest is left out. */
static int32_t add_vectors(const assay_kernel_call *c)
{
    const int32_t code = check_add(c);
    if (code != 0)
        return code;
    for (int64_t i = 0; i < c->slot[0]->shape[0] / 8 * 8; i++)
        store(c->slot[2]->data, i, c->act,
              load(c->slot[0]->data, i, c->act) + load(c->slot[1]->data, i, c->act));
    return ASSAY_KERNEL_OK;
}
DESCRIBE(whole_vectors_only, "add", PLAIN, add_vectors, add_y, 1, .in_place = NULL)

/* Whole vectors of eight, the last one beyond the end. */
static int32_t add_beyond(const assay_kernel_call *c)
{
    const int32_t code = check_add(c);
    if (code != 0)
        return code;
    for (int64_t i = 0; i < (c->slot[0]->shape[0] + 7) / 8 * 8; i++)
        store(c->slot[2]->data, i, c->act,
              load(c->slot[0]->data, i, c->act) + load(c->slot[1]->data, i, c->act));
    return ASSAY_KERNEL_OK;
}
DESCRIBE(vectors_beyond_the_end, "add", PLAIN, add_beyond, add_y, 1, .in_place = NULL)

typedef float vector __attribute__((vector_size(16)));

/* Loads of 16 bytes that need their alignment, which nobody declared. */
static int32_t add_aligned(const assay_kernel_call *c)
{
    const int32_t code = check_add(c);
    if (code != 0)
        return code;
    const int64_t n = c->slot[0]->shape[0];
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        *(volatile vector *)((float *)c->slot[2]->data + i) =
            *(const vector *)((const float *)c->slot[0]->data + i) +
            *(const vector *)((const float *)c->slot[1]->data + i);
    for (; i < n; i++)
        store(c->slot[2]->data, i, c->act,
              load(c->slot[0]->data, i, c->act) + load(c->slot[1]->data, i, c->act));
    return ASSAY_KERNEL_OK;
}
DESCRIBE(alignment_not_declared, "add", PLAIN, add_aligned, add_y, 1,
         .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32))
DESCRIBE(alignment_not_checked, "add", PLAIN, add_aligned, add_y, 1, .alignment = 16,
         .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32))

/* BF16 numbers added as BF16 and then rounded again through 12 bits. */
static int32_t add_twice_rounded(const assay_kernel_call *c)
{
    const int32_t code = check_add(c);
    if (code != 0)
        return code;
    for (int64_t i = 0; i < c->slot[0]->shape[0]; i++) {
        float y = load(c->slot[0]->data, i, c->act) + load(c->slot[1]->data, i, c->act);
        uint32_t bits;
        memcpy(&bits, &y, 4);
        if (isfinite(y))
            bits = (bits + 0x800u) & 0xfffff000u;
        memcpy(&y, &bits, 4);
        store(c->slot[2]->data, i, c->act, y);
    }
    return ASSAY_KERNEL_OK;
}
DESCRIBE(rounded_through_12_bits, "add", PLAIN, add_twice_rounded, add_y, 1,
         .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32))

static const assay_kernel_output clamp_y[] = {
    {.size = sizeof(assay_kernel_output), .slot = 1, .arith = ELEMENTWISE(0)}};

/* fmin and fmax: a NaN becomes the limit. */
static int32_t clamp(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[0], c->act, 1)) != 0 ||
        (code = check_tensor(c->slot[1], c->act, 1)) != 0)
        return code;
    if (c->slot[0]->shape[0] != c->slot[1]->shape[0])
        return ASSAY_KERNEL_INVALID;
    const float limit = (float)c->attr[0]->number;
    for (int64_t i = 0; i < c->slot[0]->shape[0]; i++)
        store(c->slot[1]->data, i, c->act, fminf(fmaxf(load(c->slot[0]->data, i, c->act), -limit), limit));
    return ASSAY_KERNEL_OK;
}
DESCRIBE(nan_swallowed_by_max, "clamp_fwd", PLAIN, clamp, clamp_y, 1, .in_place = NULL)

/* --- swiglu -------------------------------------------------------------------------------------------------------- */
typedef enum { SWAPPED, OVERFLOWS, PROBS_IGNORED, SHADOW_ROUNDED, SHADOW_OTHER, WEAK_EXP } swiglu_bug;

static float weak_exp(float x)
{
    /* 2^x by a cubic: 1e-4 */
    const float y = x * 1.4426950408889634f, whole = rintf(y), f = (y - whole) * 0.6931471805599453f;
    return ldexpf(1.0f + f * (1.0f + f * (0.5f + f * 0.16666667f)), whole < -300.0f  ? -300
                                                                    : whole > 300.0f ? 300
                                                                                     : (int)whole);
}

static int32_t swiglu(const assay_kernel_call *c, swiglu_bug bug)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[0], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[2], c->act, 2)) != 0)
        return code;
    const int64_t rows = c->slot[2]->shape[0], f = c->slot[2]->shape[1];
    if (c->slot[1] != NULL && (code = check_tensor(c->slot[1], ASSAY_KERNEL_F32, 1)) != 0)
        return code;
    if (c->slot[0]->shape[0] != rows || c->slot[0]->shape[1] != 2 * f ||
        (c->slot[1] != NULL && c->slot[1]->shape[0] != rows))
        return ASSAY_KERNEL_INVALID;
    for (int64_t i = 0; i < rows * f; i++) {
        float gate = load(c->slot[0]->data, i / f * 2 * f + i % f, c->act);
        float up = load(c->slot[0]->data, i / f * 2 * f + f + i % f, c->act);
        if (bug == SWAPPED) {
            const float other = gate;
            gate = up;
            up = other;
        }
        const float e = bug == WEAK_EXP ? weak_exp(-gate) : expf(-gate);
        float y = bug == OVERFLOWS ? gate * expf(gate) / (1.0f + expf(gate)) * up : gate / (1.0f + e) * up;
        if (c->slot[1] != NULL && bug != PROBS_IGNORED)
            y *= load(c->slot[1]->data, i / f, ASSAY_KERNEL_F32);
        store(c->slot[2]->data, i, c->act, y);
        if (c->shadow == NULL || c->shadow[2] == NULL)
            continue;
        store(c->shadow[2]->data, i, ASSAY_KERNEL_F32,
              bug == SHADOW_ROUNDED ? load(c->slot[2]->data, i, c->act)
              : bug == SHADOW_OTHER ? y * 1.01f
                                    : y);
    }
    return ASSAY_KERNEL_OK;
}
static const assay_kernel_output swiglu_y[] = {
    {.size = sizeof(assay_kernel_output), .slot = 2, .arith = ELEMENTWISE(2)}};
#define SWIGLU(symbol, bug, flags)                                                                           \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        return swiglu(c, bug);                                                                               \
    }                                                                                                        \
    DESCRIBE(symbol, "swiglu_fwd", flags, run_##symbol, swiglu_y, 1, .in_place = NULL)
SWIGLU(gate_and_up_swapped, SWAPPED, PLAIN)
SWIGLU(exp_overflows, OVERFLOWS, PLAIN)
SWIGLU(probs_ignored, PROBS_IGNORED, PLAIN)
SWIGLU(weak_exponential, WEAK_EXP, PLAIN)
SWIGLU(shadow_of_the_rounded, SHADOW_ROUNDED, PLAIN | ASSAY_KERNEL_SHADOW)
SWIGLU(shadow_of_another, SHADOW_OTHER, PLAIN | ASSAY_KERNEL_SHADOW)

/* --- linear, embedding: sums into an updated slot -------------------------------------------------------------------- */
typedef enum { BIAS_TWICE, TRANSPOSED, LAST_TERM, BLOCK_OF_ONE } linear_bug;

static int32_t linear(const assay_kernel_call *c, linear_bug bug)
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
        float y = 0.0f;
        for (int64_t j = 0; j < k - (bug == LAST_TERM && k > 100); j++) {
            if (bug == BLOCK_OF_ONE && i == t * n - 1 && j >= 16 && j < 32)
                continue;
            const int64_t at = bug == TRANSPOSED && k == n ? j * n + i % n : i % n * k + j;
            y = fmaf(load(c->slot[0]->data, i / n * k + j, c->act), load(c->slot[1]->data, at, c->act), y);
        }
        if (c->slot[2] != NULL)
            y += (bug == BIAS_TWICE ? 2.0f : 1.0f) * load(c->slot[2]->data, i % n, c->act);
        store(c->slot[3]->data, i, out, y);
    }
    return ASSAY_KERNEL_OK;
}
static const assay_kernel_output linear_y[] = {
    {.size = sizeof(assay_kernel_output), .slot = 3, .arith = SEQUENTIAL(0)}};
#define LINEAR(symbol, bug)                                                                                  \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        return linear(c, bug);                                                                               \
    }                                                                                                        \
    DESCRIBE(symbol, "linear_fwd", PLAIN, run_##symbol, linear_y, 1, .in_place = NULL)
LINEAR(bias_twice, BIAS_TWICE)
LINEAR(weight_transposed, TRANSPOSED)
LINEAR(last_term_missing, LAST_TERM)
LINEAR(one_block_of_one_element, BLOCK_OF_ONE)

static const assay_kernel_output embedding_w[] = {
    {.size = sizeof(assay_kernel_output), .slot = 2, .arith = SEQUENTIAL(0)}};
typedef enum { OVERWRITES, IGNORES_START, FORGETS_OLD, TRAINS_PADDING, PADDING_OF_PIECE } embedding_bug;
static int32_t embedding(const assay_kernel_call *c, embedding_bug bug)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[0], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[1], ASSAY_KERNEL_I64, 1)) != 0 ||
        (code = check_tensor(c->slot[2], ASSAY_KERNEL_F32, 2)) != 0)
        return code;
    const int64_t t = c->slot[0]->shape[0], h = c->slot[0]->shape[1], v = c->slot[2]->shape[0];
    if (c->slot[1]->shape[0] != t || c->slot[2]->shape[1] != h)
        return ASSAY_KERNEL_INVALID;
    const int64_t first = bug == IGNORES_START ? 0 : c->attr[0]->integer;
    const int64_t *ids = c->slot[1]->data;
    if (bug == FORGETS_OLD && v * h > 0)
        memset(c->slot[2]->data, 0, (size_t)(v * h) * 4);
    const int64_t padding = bug == TRAINS_PADDING ? -1 : c->attr[1]->integer;
    for (int64_t i = 0; i < t * h; i++) {
        const int64_t row = ids[i / h] - first;
        if (row < 0 || row >= v || (bug == PADDING_OF_PIECE ? row : ids[i / h]) == padding)
            continue;
        const float was =
            bug == OVERWRITES ? 0.0f : load(c->slot[2]->data, row * h + i % h, ASSAY_KERNEL_F32);
        store(c->slot[2]->data, row * h + i % h, ASSAY_KERNEL_F32, was + load(c->slot[0]->data, i, c->act));
    }
    return ASSAY_KERNEL_OK;
}
#define EMBEDDING(symbol, bug)                                                                               \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        return embedding(c, bug);                                                                            \
    }                                                                                                        \
    DESCRIBE(symbol, "embedding_bwd", ASSAY_KERNEL_DETERMINISTIC, run_##symbol, embedding_w, 1,              \
             .in_place = NULL)
EMBEDDING(gradient_overwritten, OVERWRITES)
EMBEDDING(start_of_vocabulary_ignored, IGNORES_START)
EMBEDDING(old_gradient_forgotten, FORGETS_OLD)
EMBEDDING(padding_trained, TRAINS_PADDING)
EMBEDDING(padding_counted_from_the_piece, PADDING_OF_PIECE)
