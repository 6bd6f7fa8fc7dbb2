/* rmsnorm_fwd, wrong in one way each; tests/parity/test_certify_broken.c says which trial has to catch it. */
#include "kernels.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { GAMMA, X, Y, RSTD };

/* What differs from the honest kernel. */
typedef struct bug {
    double eps_factor;         /* 0: no eps at all */
    bool eps_outside;          /* behind the root */
    int64_t mean_less;         /* divides by that many fewer */
    int64_t drops_block;       /* elements 32 to 35 of a row are not summed */
    bool drops_tail;           /* H not a multiple of 4: the last elements are not summed */
    bool narrow_sum, half_sum; /* in BF16, with 11 bits */
    int64_t reads_behind, reads_before;
    bool writes_behind, writes_before;
    bool scales_input, restores_input;
    bool forgets_rstd, forgets_last_row;
    bool wrong_for_one;   /* H = 1: copies */
    bool divides_by_rows; /* an integer division by T */
    bool flushes;         /* subnormal inputs count as 0 */
    bool adds_address;    /* a bit of an address reaches the result */
    bool counts_calls;    /* the third call is different */
    bool by_rows;         /* order of the sum follows from the number of rows */
    bool rounds_down;     /* BF16: the lower half is cut off */
    bool loops, exits, exits_in_threads, aborts, recurses;
    bool fast_root;    /* two steps too few */
    bool swallows_nan; /* by a maximum */
    bool inf_is_nan;   /* x / x */
    bool gamma_of_row, gamma_shifted;
} bug;

static float narrow(float x, int bits)
{
    if (x == 0.0f || !isfinite(x))
        return x;
    int e;
    const float m = frexpf(x, &e);
    return ldexpf(rintf(ldexpf(m, bits)), e - bits);
}

static int32_t check(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[GAMMA], c->act, 1)) != 0 ||
        (code = check_tensor(c->slot[X], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[Y], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[RSTD], ASSAY_KERNEL_F32, 1)) != 0)
        return code;
    const int64_t *x = c->slot[X]->shape, *y = c->slot[Y]->shape;
    if (x[0] != y[0] || x[1] != y[1] || x[0] != c->slot[RSTD]->shape[0] || x[1] != c->slot[GAMMA]->shape[0])
        return ASSAY_KERNEL_INVALID;
    return ASSAY_KERNEL_OK;
}

static volatile float sink;
static volatile int endless = 1;

static int deeper(volatile char *from, int n)
{
    volatile char frame[4096];
    frame[n & 4095] = *from;
    return endless ? deeper(&frame[n & 4095], n + 1) + frame[0] : n;
}

static float sum_of(const assay_kernel_call *c, const bug *b, int64_t t, int64_t rows, int64_t columns)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < columns; i++) {
        const int64_t h = b->by_rows && rows % 2 == 0 ? columns - 1 - i : i;
        float x = load(c->slot[X]->data, t * columns + h, c->act);
        if (b->drops_block && h >= 32 && h < 36)
            continue;
        if (b->drops_tail && h >= columns / 4 * 4 && columns > 4)
            continue;
        if (b->flushes && fabsf(x) < 0x1p-126f)
            x = 0.0f;
        if (b->swallows_nan)
            x = fmaxf(x, -3e38f);
        sum = fmaf(x, x, sum);
        if (b->narrow_sum)
            sum = narrow(sum, 8);
        if (b->half_sum)
            sum = narrow(sum, 11);
    }
    return sum;
}

static void misbehave(const assay_kernel_call *c, const bug *b, int64_t rows, int64_t columns)
{
    const int64_t width = c->act == ASSAY_KERNEL_F32 ? 4 : 2;
    char *x = c->slot[X]->data, *y = c->slot[Y]->data;
    if (b->reads_behind)
        sink = load(x, rows * columns + b->reads_behind - 1, c->act);
    if (b->reads_before)
        sink = load(x, -b->reads_before, c->act);
    if (b->writes_behind)
        y[rows * columns * width] = 1;
    if (b->writes_before)
        y[-1] = 1;
    if (b->loops && columns == 65)
        while (endless)
            ;
    if (b->exits && columns == 33)
        exit(0);
    if (b->exits_in_threads && strcmp(getenv("OMP_NUM_THREADS"), "1") != 0)
        _exit(3); /* as a child of certify that has noted a finding */
    if (b->aborts && columns == 33)
        abort();
    if (b->recurses && columns == 33)
        sink = (float)deeper(y, 1);
    if (b->divides_by_rows)
        sink = (float)(100 / (int)rows);
    if (b->scales_input || b->restores_input)
        for (int64_t i = 0; i < rows * columns; i++) {
            const float was = load(x, i, c->act);
            store(x, i, c->act, was * 2.0f);
            if (b->restores_input)
                store(x, i, c->act, was);
        }
}

static float root(const bug *b, float mean, float eps)
{
    if (b->eps_outside)
        return 1.0f / (sqrtf(mean) + eps);
    const float v = mean + eps;
    if (!b->fast_root)
        return 1.0f / sqrtf(v);
    uint32_t bits;
    float r;
    memcpy(&bits, &v, 4);
    bits = 0x5f3759dfu - (bits >> 1);
    memcpy(&r, &bits, 4);
    for (int i = 0; i < 2; i++)
        r = r * (1.5f - 0.5f * v * r * r);
    return r;
}

static int32_t compute(const assay_kernel_call *c, const bug *b)
{
    static int calls;
    const int32_t code = check(c);
    if (code != ASSAY_KERNEL_OK)
        return code;
    const int64_t rows = c->slot[X]->shape[0], columns = c->slot[X]->shape[1];
    const float eps = (float)(c->attr[ASSAY_KERNEL_ATTR_RMSNORM_FWD_EPS]->number * b->eps_factor);
    calls++;
    misbehave(c, b, rows, columns);
    for (int64_t t = 0; t < rows - (b->forgets_last_row && rows % 2 != 0); t++) {
        const float sum = sum_of(c, b, t, rows, columns);
        const int64_t n = columns - b->mean_less;
        float rstd = root(b, n > 0 ? sum / (float)n : 0.0f, eps);
        if (b->inf_is_nan && sum > 3e38f)
            rstd = sum / sum;
        if (b->counts_calls && calls % 3 == 0)
            rstd = nextafterf(rstd, 2.0f * rstd);
        if (b->adds_address && ((uintptr_t)c->slot[Y]->data & 4096) != 0)
            rstd = nextafterf(rstd, 2.0f * rstd);
        if (b->wrong_for_one && columns == 1)
            rstd = 1.0f;
        if (!b->forgets_rstd)
            store(c->slot[RSTD]->data, t, ASSAY_KERNEL_F32, rstd);
        for (int64_t h = 0; h < columns; h++) {
            const int64_t g = b->gamma_shifted ? (h + 1) % columns : b->gamma_of_row ? t % columns : h;
            const float x = load(c->slot[X]->data, t * columns + h, c->act);
            float y = (b->flushes && fabsf(x) < 0x1p-126f ? 0.0f : x) * rstd *
                      load(c->slot[GAMMA]->data, g, c->act);
            if (b->rounds_down && c->act == ASSAY_KERNEL_BF16) {
                uint32_t bits;
                memcpy(&bits, &y, 4);
                bits &= 0xffff0000u;
                memcpy(&y, &bits, 4);
            }
            store(c->slot[Y]->data, t * columns + h, c->act, y);
        }
    }
    return ASSAY_KERNEL_OK;
}

static const assay_kernel_output one_chain[] = {
    {.size = sizeof(assay_kernel_output), .slot = Y, .arith = SEQUENTIAL(2)},
    {.size = sizeof(assay_kernel_output), .slot = RSTD, .arith = SEQUENTIAL(2)}};

#define RMSNORM(symbol, flags, ...)                                                                          \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        static const bug b = {.eps_factor = 1.0, __VA_ARGS__};                                               \
        return compute(c, &b);                                                                               \
    }                                                                                                        \
    DESCRIBE(symbol, "rmsnorm_fwd", flags, run_##symbol, one_chain, 2, .in_place = NULL)

RMSNORM(honest, PLAIN, .mean_less = 0)
RMSNORM(wrong_eps, PLAIN, .eps_factor = 10.0)
RMSNORM(no_eps, PLAIN, .eps_factor = 0.0)
RMSNORM(eps_outside, PLAIN, .eps_outside = true)
RMSNORM(unbiased_mean, PLAIN, .mean_less = 1)
RMSNORM(dropped_block, PLAIN, .drops_block = 1)
RMSNORM(dropped_tail, PLAIN, .drops_tail = true)
RMSNORM(bf16_sum, PLAIN, .narrow_sum = true)
RMSNORM(fp16_sum, PLAIN, .half_sum = true)
RMSNORM(reads_one_behind, PLAIN, .reads_behind = 1)
RMSNORM(reads_vector_behind, PLAIN, .reads_behind = 4)
RMSNORM(reads_before, PLAIN, .reads_before = 2)
RMSNORM(writes_behind, PLAIN, .writes_behind = true)
RMSNORM(writes_before, PLAIN, .writes_before = true)
RMSNORM(scales_input, PLAIN, .scales_input = true)
RMSNORM(restores_input, PLAIN, .restores_input = true)
RMSNORM(forgets_rstd, PLAIN, .forgets_rstd = true)
RMSNORM(forgets_last_row, PLAIN, .forgets_last_row = true)
RMSNORM(wrong_for_one_column, PLAIN, .wrong_for_one = true)
RMSNORM(divides_by_rows, PLAIN, .divides_by_rows = true)
RMSNORM(flushes_subnormals, PLAIN, .flushes = true)
RMSNORM(result_of_an_address, PLAIN, .adds_address = true)
RMSNORM(result_of_the_call_before, PLAIN, .counts_calls = true)
RMSNORM(order_of_the_batch, PLAIN, .by_rows = true)
RMSNORM(truncates_bf16, PLAIN, .rounds_down = true)
RMSNORM(never_ends, PLAIN, .loops = true)
RMSNORM(exits, PLAIN, .exits = true)
RMSNORM(exits_in_threads, PLAIN, .exits_in_threads = true)
RMSNORM(aborts, PLAIN, .aborts = true)
RMSNORM(overflows_the_stack, PLAIN, .recurses = true)
RMSNORM(fast_root, PLAIN, .fast_root = true)
RMSNORM(swallows_nan, PLAIN, .swallows_nan = true)
RMSNORM(infinity_becomes_nan, PLAIN, .inf_is_nan = true)
RMSNORM(gamma_of_another_column, PLAIN, .gamma_shifted = true)
RMSNORM(gamma_of_the_row, PLAIN, .gamma_of_row = true)

/* --- the contract of a call ---------------------------------------------------------------------------------- */
static int32_t unchecked(const assay_kernel_call *c)
{
    static const bug none = {.eps_factor = 1.0};
    assay_kernel_call fixed = *c;
    fixed.size = sizeof fixed;
    return compute(&fixed, &none);
}
DESCRIBE(ignores_the_size, "rmsnorm_fwd", PLAIN, unchecked, one_chain, 2, .in_place = NULL)

/* What is believed of gamma whatever the call says. */
typedef enum belief { SHORT_AND_LONG, SHORT, DTYPE } belief;

static int32_t believing(const assay_kernel_call *c, belief what)
{
    static const bug none = {.eps_factor = 1.0};
    assay_kernel_tensor gamma;
    const assay_kernel_tensor *slot[4];
    assay_kernel_call fixed = *c;
    if (!check_call(c) || c->slot[GAMMA] == NULL || c->slot[X] == NULL)
        return ASSAY_KERNEL_INVALID;
    memcpy(slot, c->slot, sizeof slot);
    gamma = *c->slot[GAMMA];
    if (what == DTYPE)
        gamma.dtype = c->slot[X]->dtype;
    else if (what == SHORT_AND_LONG || (gamma.shape[0] >= 0 && gamma.shape[0] < c->slot[X]->shape[1]))
        gamma.shape[0] = c->slot[X]->shape[1];
    slot[GAMMA] = &gamma;
    fixed.slot = slot;
    return compute(&fixed, &none);
}
static int32_t unshaped(const assay_kernel_call *c)
{
    return believing(c, SHORT_AND_LONG);
}
static int32_t too_long_alone(const assay_kernel_call *c)
{
    return believing(c, SHORT);
}
static int32_t one_dtype_for_all(const assay_kernel_call *c)
{
    /* F64 and integers are none of activations */
    const assay_kernel_tensor *gamma = check_call(c) ? c->slot[GAMMA] : NULL;
    return gamma != NULL && gamma->dtype != ASSAY_KERNEL_F32 && gamma->dtype != ASSAY_KERNEL_BF16
               ? ASSAY_KERNEL_UNSUPPORTED
               : believing(c, DTYPE);
}
DESCRIBE(ignores_the_shape_of_gamma, "rmsnorm_fwd", PLAIN, unshaped, one_chain, 2, .in_place = NULL)
DESCRIBE(refuses_a_long_gamma_alone, "rmsnorm_fwd", PLAIN, too_long_alone, one_chain, 2, .in_place = NULL)
DESCRIBE(believes_the_dtype_of_x, "rmsnorm_fwd", PLAIN, one_dtype_for_all, one_chain, 2, .in_place = NULL)

/* The second process finds the file of the first. */
const assay_kernel *describes_itself_twice(uint32_t abi);
const assay_kernel *describes_itself_twice(uint32_t abi)
{
    static assay_kernel k = {DEFAULTS(describes_itself_twice, "rmsnorm_fwd"), .flags = PLAIN,
                             .run = unchecked, .outputs = one_chain, .n_outputs = 2};
    const char *path = getenv("DESCRIBED");
    const int fd = path != NULL ? open(path, O_CREAT | O_EXCL | O_WRONLY, 0600) : -1;
    k.alignment = fd >= 0 ? 0 : 16;
    if (fd >= 0)
        (void)close(fd);
    return abi == ASSAY_KERNEL_ABI ? &k : NULL;
}

static int32_t dense(const assay_kernel_call *c)
{
    static const bug none = {.eps_factor = 1.0};
    assay_kernel_tensor x, y;
    const assay_kernel_tensor *slot[4];
    assay_kernel_call fixed = *c;
    if (!check_call(c) || c->slot[X] == NULL || c->slot[Y] == NULL)
        return ASSAY_KERNEL_INVALID;
    memcpy(slot, c->slot, sizeof slot);
    x = *c->slot[X];
    y = *c->slot[Y];
    x.stride[0] = x.shape[1];
    y.stride[0] = y.shape[1];
    slot[X] = &x;
    slot[Y] = &y;
    fixed.slot = slot;
    return compute(&fixed, &none);
}
DESCRIBE(ignores_strides, "rmsnorm_fwd", PLAIN, dense, one_chain, 2, .in_place = NULL)
DESCRIBE(declares_strides, "rmsnorm_fwd", PLAIN | ASSAY_KERNEL_ROW_STRIDES, dense, one_chain, 2,
         .in_place = NULL)

/* Rows of y stand as far apart as those of x. */
static int32_t by_stride_of_x(const assay_kernel_call *c)
{
    static const bug none = {.eps_factor = 1.0};
    assay_kernel_tensor x, y, rstd;
    if (!check_call(c) || c->slot[X] == NULL || c->slot[Y] == NULL || c->slot[RSTD] == NULL ||
        c->slot[X]->ndim != 2 || c->slot[Y]->ndim != 2 || c->slot[RSTD]->ndim != 1 ||
        c->slot[X]->shape[0] != c->slot[Y]->shape[0] || c->slot[X]->shape[0] != c->slot[RSTD]->shape[0] ||
        c->slot[X]->stride[1] != 1)
        return ASSAY_KERNEL_INVALID;
    const int64_t rows = c->slot[X]->shape[0], width = c->act == ASSAY_KERNEL_F32 ? 4 : 2,
                  apart = rows > 1 ? c->slot[X]->stride[0] : c->slot[X]->shape[1];
    for (int64_t t = 0; t < (rows > 1 ? rows : 1); t++) {
        x = *c->slot[X], y = *c->slot[Y], rstd = *c->slot[RSTD];
        if (rows > 1) {
            x.shape[0] = y.shape[0] = rstd.shape[0] = 1;
            x.data = x.data != NULL ? (char *)x.data + t * apart * width : NULL;
            y.data = y.data != NULL ? (char *)y.data + t * apart * width : NULL;
            rstd.data = rstd.data != NULL ? (float *)rstd.data + t : NULL;
        }
        const assay_kernel_tensor *slot[4] = {c->slot[GAMMA], &x, &y, &rstd};
        assay_kernel_call one = *c;
        one.slot = slot;
        const int32_t code = compute(&one, &none);
        if (code != ASSAY_KERNEL_OK)
            return code;
    }
    return ASSAY_KERNEL_OK;
}
DESCRIBE(one_stride_for_all, "rmsnorm_fwd", PLAIN | ASSAY_KERNEL_ROW_STRIDES, by_stride_of_x, one_chain, 2,
         .in_place = NULL)

static int32_t writes_first(const assay_kernel_call *c)
{
    static const bug none = {.eps_factor = 1.0};
    if (check_call(c) && c->slot[RSTD] != NULL && c->slot[RSTD]->data != NULL && c->slot[RSTD]->shape[0] > 0)
        store(c->slot[RSTD]->data, 0, ASSAY_KERNEL_F32, 0.0f);
    return compute(c, &none);
}
DESCRIBE(writes_before_it_checks, "rmsnorm_fwd", PLAIN, writes_first, one_chain, 2, .in_place = NULL)

static int32_t takes_wide(const assay_kernel_call *c)
{
    static const bug none = {.eps_factor = 1.0};
    if (check_call(c) && c->slot[X] != NULL && c->slot[X]->ndim == 2 && c->slot[X]->shape[1] > 64)
        return ASSAY_KERNEL_UNSUPPORTED;
    return compute(c, &none);
}
DESCRIBE(refuses_what_it_declares, "rmsnorm_fwd", PLAIN, takes_wide, one_chain, 2, .shapes = "H<=128")
static int32_t honest_run(const assay_kernel_call *c)
{
    static const bug none = {.eps_factor = 1.0};
    return compute(c, &none);
}
DESCRIBE(takes_what_it_leaves_out, "rmsnorm_fwd", PLAIN, honest_run, one_chain, 2, .shapes = "H<=128")

/* --- promises of the description ------------------------------------------------------------------------------ */
static const assay_kernel_output in_double[] = {
    {.size = sizeof(assay_kernel_output), .slot = Y, .arith = IN_DOUBLE(SEQUENTIAL, 1)},
    {.size = sizeof(assay_kernel_output), .slot = RSTD, .arith = IN_DOUBLE(SEQUENTIAL, 1)}};
DESCRIBE(declares_double, "rmsnorm_fwd", PLAIN, honest_run, in_double, 2, .in_place = NULL)

/* y is cleared before x is read. */
static int32_t clears(const assay_kernel_call *c)
{
    const int32_t code = check(c);
    if (code != ASSAY_KERNEL_OK)
        return code;
    for (int64_t i = 0; i < c->slot[Y]->shape[0] * c->slot[Y]->shape[1]; i++)
        store(c->slot[Y]->data, i, c->act, 0.0f);
    return honest_run(c);
}
DESCRIBE(not_in_place, "rmsnorm_fwd", PLAIN, clears, one_chain, 2, .in_place = "y=x")

/* --- workspace -------------------------------------------------------------------------------------------------- */
static size_t four_bytes(const assay_kernel_call *c)
{
    (void)c;
    return 4;
}
static size_t by_address(const assay_kernel_call *c)
{
    return c->slot[X]->data != NULL ? 8 : 4;
}
static int32_t uses_eight(const assay_kernel_call *c)
{
    const int32_t code = check(c);
    if (code != ASSAY_KERNEL_OK)
        return code;
    if (c->workspace_bytes < 4)
        return ASSAY_KERNEL_WORKSPACE;
    memset(c->workspace, 0, 8);
    return honest_run(c);
}
DESCRIBE(workspace_too_small, "rmsnorm_fwd", PLAIN, uses_eight, one_chain, 2, .workspace = four_bytes)
DESCRIBE(workspace_by_address, "rmsnorm_fwd", PLAIN, honest_run, one_chain, 2, .workspace = by_address)
DESCRIBE(workspace_not_checked, "rmsnorm_fwd", PLAIN, honest_run, one_chain, 2, .workspace = four_bytes)

/* What was in the workspace before decides. */
static int32_t uses_garbage(const assay_kernel_call *c)
{
    float last;
    const int32_t code = c->workspace_bytes < 4 ? ASSAY_KERNEL_WORKSPACE : honest_run(c);
    if (code != ASSAY_KERNEL_OK || c->slot[RSTD]->shape[0] == 0)
        return code;
    memcpy(&last, c->workspace, 4);
    if (last > 1e10f)
        store(c->slot[RSTD]->data, 0, ASSAY_KERNEL_F32,
              nextafterf(load(c->slot[RSTD]->data, 0, ASSAY_KERNEL_F32), 1e30f));
    return code;
}
DESCRIBE(garbage_in_workspace, "rmsnorm_fwd", PLAIN, uses_garbage, one_chain, 2, .workspace = four_bytes)
