/* Kernels that are wrong where few calls look: at the first step, at the sign of a zero, behind many rows, columns, experts or keys. */
#include "kernels.h"

#include <float.h>
#include <math.h>

#define ADAMW(name) (c->slot[ASSAY_KERNEL_SLOT_ADAMW_##name])
#define CONSTANT(name) (c->attr[ASSAY_KERNEL_ATTR_ADAMW_##name]->number)

typedef enum {
    HONEST,
    AS_PYTORCH,
    EPS_BEFORE_CORRECTION,
    FIRST_STEP_UNCORRECTED,
    LARGEST_FOR_INFINITY,
    FLUSHES,
    ENDS_AT_4096,
    WANTS_PARAM,
    LOOKS_AT_PARAM
} adamw_way;

/* Decay apart from the step, whose rate comes before the division. */
static float pytorch_parameter(float p, float m, float below, float size, float kept)
{
    return kept * p + -size * m / below;
}

static int32_t check_adamw(const assay_kernel_call *c)
{
    static const int vectors[] = {ASSAY_KERNEL_SLOT_ADAMW_GRAD, ASSAY_KERNEL_SLOT_ADAMW_MAIN_PARAM,
                                  ASSAY_KERNEL_SLOT_ADAMW_EXP_AVG, ASSAY_KERNEL_SLOT_ADAMW_EXP_AVG_SQ};
    int32_t code = ASSAY_KERNEL_INVALID;
    for (int i = 0; i < 4; i++)
        if (!check_call(c) || (code = check_tensor(c->slot[vectors[i]], ASSAY_KERNEL_F32, 1)) != 0)
            return code;
    for (int i = 1; i < 4; i++)
        if (c->slot[vectors[i]]->shape[0] != ADAMW(GRAD)->shape[0])
            return ASSAY_KERNEL_INVALID;
    if (ADAMW(PARAM) != NULL && ((code = check_tensor(ADAMW(PARAM), c->act, 1)) != 0 ||
                                 ADAMW(PARAM)->shape[0] != ADAMW(GRAD)->shape[0]))
        return code != 0 ? code : ASSAY_KERNEL_INVALID;
    if (ADAMW(GRAD_SCALE) != NULL && ((code = check_tensor(ADAMW(GRAD_SCALE), ASSAY_KERNEL_F64, 1)) != 0 ||
                                      ADAMW(GRAD_SCALE)->shape[0] != 1))
        return code != 0 ? code : ASSAY_KERNEL_INVALID;
    return ASSAY_KERNEL_OK;
}

static int32_t adamw(const assay_kernel_call *c, adamw_way way)
{
    const int32_t code = check_adamw(c);
    if (code != 0)
        return code;
    if (way == WANTS_PARAM && ADAMW(PARAM) == NULL)
        return ASSAY_KERNEL_INVALID;
    const double step = (double)c->attr[ASSAY_KERNEL_ATTR_ADAMW_STEP]->integer;
    const bool corrected = way != FIRST_STEP_UNCORRECTED || step > 1.0;
    const double c1 = corrected ? 1.0 - pow(CONSTANT(BETA1), step) : 1.0,
                 c2 = corrected ? 1.0 - pow(CONSTANT(BETA2), step) : 1.0;
    const bool ends = way == ENDS_AT_4096, blind = way == LOOKS_AT_PARAM && ADAMW(PARAM) == NULL;
    const float scale = ADAMW(GRAD_SCALE) != NULL ? (float)*(const double *)ADAMW(GRAD_SCALE)->data : 1.0f;
    const float b1 = (float)CONSTANT(BETA1), b2 = (float)CONSTANT(BETA2), r1 = (float)(1.0 - CONSTANT(BETA1)),
                r2 = (float)(1.0 - CONSTANT(BETA2)), size = (float)(CONSTANT(LR) / c1),
                root = (float)(1.0 / sqrt(c2)), eps = (float)CONSTANT(EPS), lr = (float)CONSTANT(LR),
                decay = (float)CONSTANT(WEIGHT_DECAY),
                kept = (float)(1.0 - CONSTANT(LR) * CONSTANT(WEIGHT_DECAY));
    const float *grad = ADAMW(GRAD)->data;
    float *p = ADAMW(MAIN_PARAM)->data, *m = ADAMW(EXP_AVG)->data, *v = ADAMW(EXP_AVG_SQ)->data;
    for (int64_t i = 0; i < ADAMW(GRAD)->shape[0]; i++) {
        const float g = grad[i] * scale;
        if (!(ends && i >= 4096) && !blind) {
            m[i] = way == AS_PYTORCH ? m[i] + r1 * (g - m[i]) : b1 * m[i] + r1 * g;
            v[i] = b2 * v[i] + r2 * g * g;
            const float below =
                way == EPS_BEFORE_CORRECTION ? (sqrtf(v[i]) + eps) * root : sqrtf(v[i]) * root + eps;
            p[i] = way == AS_PYTORCH ? pytorch_parameter(p[i], m[i], below, size, kept)
                                     : p[i] - (size * (m[i] / below) + lr * (decay * p[i]));
            if (way == LARGEST_FOR_INFINITY)
                p[i] = fmaxf(fminf(p[i], FLT_MAX), -FLT_MAX);
            if (way == FLUSHES && fabsf(p[i]) < FLT_MIN)
                p[i] = 0.0f;
        }
        if (ADAMW(PARAM) != NULL)
            store(ADAMW(PARAM)->data, i, c->act, p[i]);
    }
    return ASSAY_KERNEL_OK;
}

#define ADAMW_OUTPUT(slot_)                                                                                  \
    {                                                                                                        \
        .size = sizeof(assay_kernel_output), .slot = ASSAY_KERNEL_SLOT_ADAMW_##slot_,                        \
        .arith = ELEMENTWISE(2)                                                                              \
    }
static const assay_kernel_output adamw_outputs[] = {ADAMW_OUTPUT(MAIN_PARAM), ADAMW_OUTPUT(EXP_AVG),
                                                    ADAMW_OUTPUT(EXP_AVG_SQ), ADAMW_OUTPUT(PARAM)};
#define ADAMW_OF(symbol, way)                                                                                \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        return adamw(c, way);                                                                                \
    }                                                                                                        \
    DESCRIBE(symbol, "adamw", PLAIN, run_##symbol, adamw_outputs, 4)

ADAMW_OF(adamw_honest, HONEST)
ADAMW_OF(adamw_as_pytorch, AS_PYTORCH)
ADAMW_OF(adamw_wants_param, WANTS_PARAM)
ADAMW_OF(adamw_looks_at_param, LOOKS_AT_PARAM)
ADAMW_OF(adamw_largest_for_infinity, LARGEST_FOR_INFINITY)
ADAMW_OF(adamw_flushes, FLUSHES)
ADAMW_OF(adamw_eps_before_correction, EPS_BEFORE_CORRECTION)
ADAMW_OF(adamw_first_step_uncorrected, FIRST_STEP_UNCORRECTED)
ADAMW_OF(adamw_ends_at_4096, ENDS_AT_4096)

/* --- count_zeros, slice_rows: the sign of a zero ------------------------------------------------------------------ */
static const assay_kernel_output count_y[] = {
    {.size = sizeof(assay_kernel_output), .slot = 1, .arith = ELEMENTWISE(0)}};

static int32_t zeros_by_bits(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    int64_t zeros = 0;
    if (!check_call(c) || (code = check_tensor(c->slot[0], ASSAY_KERNEL_F32, 1)) != 0 ||
        (code = check_tensor(c->slot[1], ASSAY_KERNEL_I64, 1)) != 0)
        return code;
    if (c->slot[1]->shape[0] != 1)
        return ASSAY_KERNEL_INVALID;
    const uint32_t *bits = c->slot[0]->data;
    for (int64_t i = 0; i < c->slot[0]->shape[0]; i++)
        zeros += bits[i] == 0;
    memcpy(c->slot[1]->data, &zeros, sizeof zeros);
    return ASSAY_KERNEL_OK;
}
DESCRIBE(count_zeros_of_one_sign, "count_zeros", PLAIN & ~ASSAY_KERNEL_BATCH_INVARIANT, zeros_by_bits,
         count_y, 1, .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32))

static int32_t slice(const assay_kernel_call *c, float added)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[0], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[1], c->act, 2)) != 0)
        return code;
    const int64_t start = c->attr[ASSAY_KERNEL_ATTR_SLICE_ROWS_START]->integer,
                  rows = c->attr[ASSAY_KERNEL_ATTR_SLICE_ROWS_LENGTH]->integer, width = c->slot[0]->shape[1];
    if (c->slot[1]->shape[0] != rows || c->slot[1]->shape[1] != width || start + rows > c->slot[0]->shape[0])
        return ASSAY_KERNEL_INVALID;
    for (int64_t i = 0; i < rows * width; i++)
        store(c->slot[1]->data, i, c->act, load(c->slot[0]->data, start * width + i, c->act) + added);
    return ASSAY_KERNEL_OK;
}
static int32_t slice_adds_zero(const assay_kernel_call *c)
{
    return slice(c, 0.0f);
}
static int32_t slice_copies(const assay_kernel_call *c)
{
    return slice(c, -0.0f);
}
DESCRIBE(slice_turns_negative_zeros, "slice_rows", PLAIN, slice_adds_zero, count_y, 1)
DESCRIBE(slice_honest, "slice_rows", PLAIN, slice_copies, count_y, 1)

/* --- swiglu_fwd: a grid of so many rows, of so many columns --------------------------------------------------------- */
static const assay_kernel_output swiglu_y[] = {
    {.size = sizeof(assay_kernel_output), .slot = ASSAY_KERNEL_SLOT_SWIGLU_FWD_Y, .arith = ELEMENTWISE(2)}};

static int32_t check_swiglu(const assay_kernel_call *c)
{
    const assay_kernel_tensor *probs = check_call(c) ? c->slot[ASSAY_KERNEL_SLOT_SWIGLU_FWD_PROBS] : NULL;
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[ASSAY_KERNEL_SLOT_SWIGLU_FWD_X], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[ASSAY_KERNEL_SLOT_SWIGLU_FWD_Y], c->act, 2)) != 0 ||
        (probs != NULL && (code = check_tensor(probs, ASSAY_KERNEL_F32, 1)) != 0))
        return code;
    const int64_t *x = c->slot[ASSAY_KERNEL_SLOT_SWIGLU_FWD_X]->shape,
                  *y = c->slot[ASSAY_KERNEL_SLOT_SWIGLU_FWD_Y]->shape;
    return x[0] == y[0] && x[1] == 2 * y[1] && (probs == NULL || probs->shape[0] == x[0])
               ? ASSAY_KERNEL_OK
               : ASSAY_KERNEL_INVALID;
}

static int32_t swiglu(const assay_kernel_call *c, int64_t most_rows, int64_t most_columns)
{
    const int32_t code = check_swiglu(c);
    if (code != 0)
        return code;
    const assay_kernel_tensor *probs = c->slot[ASSAY_KERNEL_SLOT_SWIGLU_FWD_PROBS],
                              *y = c->slot[ASSAY_KERNEL_SLOT_SWIGLU_FWD_Y];
    const void *x = c->slot[ASSAY_KERNEL_SLOT_SWIGLU_FWD_X]->data;
    const int64_t columns = y->shape[1];
    for (int64_t t = 0; t < y->shape[0]; t++)
        for (int64_t i = 0; i < columns; i++) {
            const float gate = load(x, 2 * t * columns + i, c->act);
            float z = gate / (1.0f + expf(-gate)) * load(x, (2 * t + 1) * columns + i, c->act);
            if (probs != NULL)
                z *= load(probs->data, t, ASSAY_KERNEL_F32);
            store(y->data, t * columns + i, c->act, t < most_rows && i < most_columns ? z : 0.0f);
        }
    return ASSAY_KERNEL_OK;
}
#define SWIGLU_OF(symbol, rows, columns)                                                                     \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        return swiglu(c, rows, columns);                                                                     \
    }                                                                                                        \
    DESCRIBE(symbol, "swiglu_fwd", PLAIN, run_##symbol, swiglu_y, 1)
SWIGLU_OF(swiglu_of_512_rows, 512, INT64_MAX)
SWIGLU_OF(swiglu_of_1024_columns, INT64_MAX, 1024)
SWIGLU_OF(swiglu_honest, INT64_MAX, INT64_MAX)
