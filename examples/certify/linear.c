/* linear_fwd (docs/OPS.md 1): y = x weight^T + bias, in four partial sums of a workspace; rows may have gaps.  It takes
 * products of up to 128 terms. */
#include "check.h"

#include <math.h>

enum { X = ASSAY_KERNEL_SLOT_LINEAR_FWD_X, WEIGHT = ASSAY_KERNEL_SLOT_LINEAR_FWD_WEIGHT };
enum { BIAS = ASSAY_KERNEL_SLOT_LINEAR_FWD_BIAS, Y = ASSAY_KERNEL_SLOT_LINEAR_FWD_Y };
enum { LANES = 4, MOST = 128 };

static bool has_rows(const assay_kernel_tensor *t, int32_t dtype)
{
    return t != NULL && t->size >= offsetof(assay_kernel_tensor, host) && t->ndim == 2 && t->dtype == dtype &&
           t->shape[0] >= 0 && t->shape[1] >= 0 && (t->stride[1] == 1 || t->shape[1] <= 1) &&
           (t->stride[0] >= t->shape[1] || t->shape[0] <= 1) &&
           (t->data != NULL || t->shape[0] * t->shape[1] == 0);
}

static size_t workspace(const assay_kernel_call *c)
{
    return c->slot[Y]->shape[1] > 0 ? LANES * sizeof(float) : 0;
}

static int32_t check(const assay_kernel_call *c)
{
    if (!check_call(c) || !has_rows(c->slot[X], c->act) || !has_rows(c->slot[WEIGHT], c->act) ||
        !has_rows(c->slot[Y], (int32_t)c->attr[ASSAY_KERNEL_ATTR_LINEAR_FWD_DTYPE]->integer))
        return ASSAY_KERNEL_INVALID;
    const int64_t t = c->slot[X]->shape[0], k = c->slot[X]->shape[1], n = c->slot[WEIGHT]->shape[0];
    if (k > MOST)
        return ASSAY_KERNEL_UNSUPPORTED;
    if (c->slot[WEIGHT]->shape[1] != k || c->slot[Y]->shape[0] != t || c->slot[Y]->shape[1] != n)
        return ASSAY_KERNEL_INVALID;
    if (c->slot[BIAS] != NULL) {
        const int32_t code = check_tensor(c->slot[BIAS], c->act, 1);
        if (code != 0 || c->slot[BIAS]->shape[0] != n)
            return code != 0 ? code : ASSAY_KERNEL_INVALID;
    }
    return c->workspace_bytes >= workspace(c) ? ASSAY_KERNEL_OK : ASSAY_KERNEL_WORKSPACE;
}

static float dot(const assay_kernel_call *c, int64_t row, int64_t column)
{
    const int64_t k = c->slot[X]->shape[1];
    float *part = c->workspace;
    for (int lane = 0; lane < LANES; lane++)
        part[lane] = 0.0f;
    for (int64_t i = 0; i < k; i++)
        part[i % LANES] = fmaf(load(c->slot[X]->data, row * c->slot[X]->stride[0] + i, c->act),
                               load(c->slot[WEIGHT]->data, column * c->slot[WEIGHT]->stride[0] + i, c->act),
                               part[i % LANES]);
    return (part[0] + part[1]) + (part[2] + part[3]);
}

static int32_t run(const assay_kernel_call *c)
{
    const int32_t code = check(c);
    if (code != ASSAY_KERNEL_OK)
        return code;
    for (int64_t t = 0; t < c->slot[Y]->shape[0]; t++)
        for (int64_t n = 0; n < c->slot[Y]->shape[1]; n++) {
            float y = dot(c, t, n);
            if (c->slot[BIAS] != NULL)
                y += load(c->slot[BIAS]->data, n, c->act);
            store(c->slot[Y]->data, t * c->slot[Y]->stride[0] + n, c->slot[Y]->dtype, y);
        }
    return ASSAY_KERNEL_OK;
}

static const assay_kernel_output outputs[] = {
    {sizeof(assay_kernel_output),
     Y,
     {.size = sizeof(assay_kernel_arith),
      .accumulate = ASSAY_KERNEL_F32,
      .order = ASSAY_KERNEL_ORDER_TREE,
      .lanes = LANES,
      .fma = 1}},
};
static const assay_kernel description = {
    .size = sizeof description,
    .abi = ASSAY_KERNEL_ABI,
    .name = "example linear",
    .version = "1",
    .operation = "linear_fwd",
    .built = "C17 -O2",
    .memory = ASSAY_KERNEL_MEMORY_HOST,
    .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32) | ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16),
    .flags = ASSAY_KERNEL_DETERMINISTIC | ASSAY_KERNEL_BATCH_INVARIANT | ASSAY_KERNEL_ROW_STRIDES,
    .shapes = "K<=128",
    .n_outputs = 1,
    .outputs = outputs,
    .workspace = workspace,
    .run = run,
};

const assay_kernel *example_linear(uint32_t abi);
const assay_kernel *example_linear(uint32_t abi)
{
    return abi == ASSAY_KERNEL_ABI ? &description : NULL;
}
