/* rmsnorm_fwd as in rmsnorm.c, wrong on purpose: eps is added behind the square root. */
#include "check.h"

#include <math.h>

enum { GAMMA = ASSAY_KERNEL_SLOT_RMSNORM_FWD_GAMMA, X = ASSAY_KERNEL_SLOT_RMSNORM_FWD_X };
enum { Y = ASSAY_KERNEL_SLOT_RMSNORM_FWD_Y, RSTD = ASSAY_KERNEL_SLOT_RMSNORM_FWD_RSTD };

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

static int32_t run(const assay_kernel_call *c)
{
    const int32_t code = check(c);
    if (code != ASSAY_KERNEL_OK)
        return code;
    const int64_t rows = c->slot[X]->shape[0], columns = c->slot[X]->shape[1];
    const float eps = (float)c->attr[ASSAY_KERNEL_ATTR_RMSNORM_FWD_EPS]->number;
    for (int64_t t = 0; t < rows; t++) {
        float sum = 0.0f;
        for (int64_t h = 0; h < columns; h++) {
            const float x = load(c->slot[X]->data, t * columns + h, c->act);
            sum = fmaf(x, x, sum);
        }
        const float mean = columns > 0 ? sum / (float)columns : 0.0f;
        const float rstd = 1.0f / (sqrtf(mean) + eps);
        store(c->slot[RSTD]->data, t, ASSAY_KERNEL_F32, rstd);
        for (int64_t h = 0; h < columns; h++) {
            const float x = load(c->slot[X]->data, t * columns + h, c->act);
            store(c->slot[Y]->data, t * columns + h, c->act,
                  x * rstd * load(c->slot[GAMMA]->data, h, c->act));
        }
    }
    return ASSAY_KERNEL_OK;
}

#define ONE_CHAIN                                                                                            \
    {                                                                                                        \
        .size = sizeof(assay_kernel_arith), .accumulate = ASSAY_KERNEL_F32,                                  \
        .order = ASSAY_KERNEL_ORDER_SEQUENTIAL, .fma = 1, .math_ulp = 2                                      \
    }
static const assay_kernel_output outputs[] = {
    {sizeof(assay_kernel_output), Y, ONE_CHAIN},
    {sizeof(assay_kernel_output), RSTD, ONE_CHAIN},
};
static const assay_kernel description = {
    .size = sizeof description,
    .abi = ASSAY_KERNEL_ABI,
    .name = "example rmsnorm, wrong on purpose",
    .version = "1",
    .operation = "rmsnorm_fwd",
    .built = "C17 -O2",
    .memory = ASSAY_KERNEL_MEMORY_HOST,
    .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32) | ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16),
    .flags = ASSAY_KERNEL_DETERMINISTIC | ASSAY_KERNEL_BATCH_INVARIANT,
    .in_place = "y=x",
    .n_outputs = 2,
    .outputs = outputs,
    .run = run,
};

const assay_kernel *example_wrong_rmsnorm(uint32_t abi);
const assay_kernel *example_wrong_rmsnorm(uint32_t abi)
{
    return abi == ASSAY_KERNEL_ABI ? &description : NULL;
}
