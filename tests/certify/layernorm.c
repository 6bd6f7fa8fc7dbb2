/* Kernels of an operation that the engine does not have: LayerNorm, honest in several forms and wrong in one way each. */
#include "kernels.h"

#include <math.h>

enum { GAMMA, BETA, X, Y, MEAN, RSTD };
enum { B_GAMMA, B_DY, B_X, B_MEAN, B_RSTD, B_DX, B_DGAMMA, B_DBETA };
typedef enum { TWO_PASSES, WELFORD, SAMPLE_VARIANCE, NO_BETA, ONE_PASS } form;

static bool has_shape(const assay_kernel_tensor *t, const assay_kernel_tensor *x, int d)
{
    return t->shape[0] == x->shape[d];
}

static int32_t check_forward(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[GAMMA], c->act, 1)) != 0 ||
        (c->slot[BETA] != NULL && (code = check_tensor(c->slot[BETA], c->act, 1)) != 0) ||
        (code = check_tensor(c->slot[X], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[Y], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[MEAN], ASSAY_KERNEL_F32, 1)) != 0 ||
        (code = check_tensor(c->slot[RSTD], ASSAY_KERNEL_F32, 1)) != 0)
        return code;
    const assay_kernel_tensor *x = c->slot[X], *beta = c->slot[BETA];
    return has_shape(c->slot[Y], x, 0) && c->slot[Y]->shape[1] == x->shape[1] &&
                   has_shape(c->slot[MEAN], x, 0) && has_shape(c->slot[RSTD], x, 0) &&
                   has_shape(c->slot[GAMMA], x, 1) && (beta == NULL || has_shape(beta, x, 1))
               ? ASSAY_KERNEL_OK
               : ASSAY_KERNEL_INVALID;
}

static void welford(const void *x, int64_t at, int64_t n, int32_t dtype, float *mean, float *squares)
{
    *mean = *squares = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        const float v = load(x, at + i, dtype), delta = v - *mean;
        *mean += delta / (float)(i + 1);
        *squares += delta * (v - *mean);
    }
}

static void passes(const void *x, int64_t at, int64_t n, int32_t dtype, form f, float *mean, float *squares)
{
    float sum = 0.0f;
    *squares = 0.0f;
    for (int64_t i = 0; i < n; i++)
        sum += load(x, at + i, dtype);
    *mean = n > 0 ? sum / (float)n : 0.0f;
    for (int64_t i = 0; i < n; i++) {
        const float v = load(x, at + i, dtype) - (f == ONE_PASS ? 0.0f : *mean);
        *squares += v * v;
    }
    if (f == ONE_PASS)
        *squares -= *mean * *mean * (float)n;
}

static int32_t forward(const assay_kernel_call *c, form f)
{
    const int32_t code = check_forward(c), dtype = c != NULL ? c->act : 0;
    if (code != ASSAY_KERNEL_OK)
        return code;
    const void *x = c->slot[X]->data;
    const int64_t rows = c->slot[X]->shape[0], n = c->slot[X]->shape[1];
    const float eps = (float)c->attr[ASSAY_KERNEL_ATTR_LAYERNORM_FWD_EPS]->number;
    const assay_kernel_tensor *beta = f == NO_BETA ? NULL : c->slot[BETA];
    for (int64_t t = 0; t < rows; t++) {
        float mean, squares;
        if (f == WELFORD)
            welford(x, t * n, n, dtype, &mean, &squares);
        else
            passes(x, t * n, n, dtype, f, &mean, &squares);
        const float rstd = 1.0f / sqrtf(squares / (float)(n - (f == SAMPLE_VARIANCE && n > 1)) + eps);
        store(c->slot[MEAN]->data, t, ASSAY_KERNEL_F32, mean);
        store(c->slot[RSTD]->data, t, ASSAY_KERNEL_F32, rstd);
        for (int64_t h = 0; h < n; h++) {
            const float v = load(x, t * n + h, dtype), gamma = load(c->slot[GAMMA]->data, h, dtype);
            const float xh = f == WELFORD ? v * rstd + -mean * rstd : (v - mean) * rstd;
            store(c->slot[Y]->data, t * n + h, dtype,
                  xh * gamma + (beta != NULL ? load(beta->data, h, dtype) : 0.0f));
        }
    }
    return ASSAY_KERNEL_OK;
}

static int32_t check_backward(const assay_kernel_call *c)
{
    static const int rows[] = {B_MEAN, B_RSTD};
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[B_X], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[B_DY], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[B_DX], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[B_GAMMA], c->act, 1)) != 0 ||
        (code = check_tensor(c->slot[B_DGAMMA], ASSAY_KERNEL_F32, 1)) != 0 ||
        (c->slot[B_DBETA] != NULL && (code = check_tensor(c->slot[B_DBETA], ASSAY_KERNEL_F32, 1)) != 0))
        return code;
    const assay_kernel_tensor *x = c->slot[B_X];
    bool good = has_shape(c->slot[B_GAMMA], x, 1) && has_shape(c->slot[B_DGAMMA], x, 1) &&
                (c->slot[B_DBETA] == NULL || has_shape(c->slot[B_DBETA], x, 1));
    for (int k = 0; k < 2; k++) {
        if ((code = check_tensor(c->slot[rows[k]], ASSAY_KERNEL_F32, 1)) != 0)
            return code;
        good = good && has_shape(c->slot[rows[k]], x, 0);
        good = good && has_shape(c->slot[k ? B_DY : B_DX], x, 0) &&
               c->slot[k ? B_DY : B_DX]->shape[1] == x->shape[1];
    }
    return good ? ASSAY_KERNEL_OK : ASSAY_KERNEL_INVALID;
}

typedef enum { WHOLE, WITHOUT_THE_MEAN_OF_G, OLD_BETA_FORGOTTEN } gradient;

static void columns(const assay_kernel_call *c, gradient g, int64_t rows, int64_t n)
{
    for (int64_t h = 0; h < n; h++) {
        float dgamma = 0.0f, dbeta = 0.0f;
        for (int64_t t = 0; t < rows; t++) {
            const float dy = load(c->slot[B_DY]->data, t * n + h, c->act);
            const float x = load(c->slot[B_X]->data, t * n + h, c->act) -
                            load(c->slot[B_MEAN]->data, t, ASSAY_KERNEL_F32);
            dgamma += dy * (x * load(c->slot[B_RSTD]->data, t, ASSAY_KERNEL_F32));
            dbeta += dy;
        }
        if (rows > 0)
            store(c->slot[B_DGAMMA]->data, h, ASSAY_KERNEL_F32,
                  load(c->slot[B_DGAMMA]->data, h, ASSAY_KERNEL_F32) + dgamma);
        if (rows > 0 && c->slot[B_DBETA] != NULL)
            store(c->slot[B_DBETA]->data, h, ASSAY_KERNEL_F32,
                  (g == OLD_BETA_FORGOTTEN ? 0.0f : load(c->slot[B_DBETA]->data, h, ASSAY_KERNEL_F32)) +
                      dbeta);
    }
}

static int32_t backward(const assay_kernel_call *c, gradient kind)
{
    const int32_t code = check_backward(c), dtype = c != NULL ? c->act : 0;
    if (code != ASSAY_KERNEL_OK)
        return code;
    const void *gamma = c->slot[B_GAMMA]->data, *dy = c->slot[B_DY]->data, *x = c->slot[B_X]->data;
    const int64_t rows = c->slot[B_X]->shape[0], n = c->slot[B_X]->shape[1];
    for (int64_t t = 0; t < rows; t++) {
        const float mean = load(c->slot[B_MEAN]->data, t, ASSAY_KERNEL_F32);
        const float rstd = load(c->slot[B_RSTD]->data, t, ASSAY_KERNEL_F32);
        float sum = 0.0f, dot = 0.0f;
        for (int64_t h = 0; h < n; h++) {
            const float g = load(dy, t * n + h, dtype) * load(gamma, h, dtype);
            sum += g;
            dot += g * ((load(x, t * n + h, dtype) - mean) * rstd);
        }
        if (kind == WITHOUT_THE_MEAN_OF_G)
            sum = 0.0f;
        for (int64_t h = 0; h < n; h++) {
            const float g = load(dy, t * n + h, dtype) * load(gamma, h, dtype);
            const float xh = (load(x, t * n + h, dtype) - mean) * rstd;
            store(c->slot[B_DX]->data, t * n + h, dtype, rstd * (g - sum / (float)n - xh * (dot / (float)n)));
        }
    }
    columns(c, kind, rows, n);
    return ASSAY_KERNEL_OK;
}

#define OUTPUT(slot_)                                                                                        \
    {                                                                                                        \
        .size = sizeof(assay_kernel_output), .slot = (slot_), .arith = SEQUENTIAL(2)                         \
    }
static const assay_kernel_output forward_outputs[] = {OUTPUT(Y), OUTPUT(MEAN), OUTPUT(RSTD)};
static const assay_kernel_output backward_outputs[] = {OUTPUT(B_DX), OUTPUT(B_DGAMMA), OUTPUT(B_DBETA)};

#define FORWARD(symbol, form_)                                                                               \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        return forward(c, form_);                                                                            \
    }                                                                                                        \
    DESCRIBE(symbol, "layernorm_fwd", PLAIN, run_##symbol, forward_outputs, 3, .shapes = "H>=1")
#define BACKWARD(symbol, form_)                                                                              \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        return backward(c, form_);                                                                           \
    }                                                                                                        \
    DESCRIBE(symbol, "layernorm_bwd", ASSAY_KERNEL_DETERMINISTIC, run_##symbol, backward_outputs, 3,         \
             .shapes = "H>=1")

FORWARD(layernorm_two_passes, TWO_PASSES)
FORWARD(layernorm_welford, WELFORD)
BACKWARD(layernorm_backward, WHOLE)
FORWARD(layernorm_sample_variance, SAMPLE_VARIANCE)
FORWARD(layernorm_without_beta, NO_BETA)
FORWARD(layernorm_one_pass, ONE_PASS)
BACKWARD(layernorm_without_mean_of_g, WITHOUT_THE_MEAN_OF_G)
BACKWARD(layernorm_old_beta_forgotten, OLD_BETA_FORGOTTEN)
