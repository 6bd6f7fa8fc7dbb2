/* swiglu_fwd (docs/OPS.md 6): x [T,2F] holds gate and up; y = silu(gate) up, times probs where they are there.  With shadows. */
#include "check.h"

#include <math.h>

enum { X = ASSAY_KERNEL_SLOT_SWIGLU_FWD_X, PROBS = ASSAY_KERNEL_SLOT_SWIGLU_FWD_PROBS };
enum { Y = ASSAY_KERNEL_SLOT_SWIGLU_FWD_Y };

static int32_t check(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[X], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[Y], c->act, 2)) != 0)
        return code;
    const int64_t rows = c->slot[X]->shape[0];
    if (c->slot[PROBS] != NULL &&
        ((code = check_tensor(c->slot[PROBS], ASSAY_KERNEL_F32, 1)) != 0 || c->slot[PROBS]->shape[0] != rows))
        return code != 0 ? code : ASSAY_KERNEL_INVALID;
    return rows == c->slot[Y]->shape[0] && c->slot[X]->shape[1] == 2 * c->slot[Y]->shape[1]
               ? ASSAY_KERNEL_OK
               : ASSAY_KERNEL_INVALID;
}

static int32_t run(const assay_kernel_call *c)
{
    const int32_t code = check(c);
    if (code != ASSAY_KERNEL_OK)
        return code;
    const int64_t rows = c->slot[Y]->shape[0], f = c->slot[Y]->shape[1];
    const bool shadows = c->size >= sizeof *c && c->shadow != NULL && c->shadow[Y] != NULL;
    for (int64_t t = 0; t < rows; t++)
        for (int64_t i = 0; i < f; i++) {
            const float gate = load(c->slot[X]->data, t * 2 * f + i, c->act);
            const float up = load(c->slot[X]->data, t * 2 * f + f + i, c->act);
            float y = gate / (1.0f + expf(-gate)) * up;
            if (c->slot[PROBS] != NULL)
                y *= load(c->slot[PROBS]->data, t, ASSAY_KERNEL_F32);
            store(c->slot[Y]->data, t * f + i, c->act, y);
            if (shadows)
                store(c->shadow[Y]->data, t * f + i, ASSAY_KERNEL_F32, y);
        }
    return ASSAY_KERNEL_OK;
}

static const assay_kernel_output outputs[] = {
    {sizeof(assay_kernel_output),
     Y,
     {.size = sizeof(assay_kernel_arith), .accumulate = ASSAY_KERNEL_F32, .math_ulp = 2}},
};
static const assay_kernel description = {
    .size = sizeof description,
    .abi = ASSAY_KERNEL_ABI,
    .name = "example swiglu",
    .version = "1",
    .operation = "swiglu_fwd",
    .built = "C17 -O2",
    .memory = ASSAY_KERNEL_MEMORY_HOST,
    .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32) | ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16),
    .flags = ASSAY_KERNEL_DETERMINISTIC | ASSAY_KERNEL_BATCH_INVARIANT | ASSAY_KERNEL_SHADOW,
    .n_outputs = 1,
    .outputs = outputs,
    .run = run,
};

const assay_kernel *example_swiglu(uint32_t abi);
const assay_kernel *example_swiglu(uint32_t abi)
{
    return abi == ASSAY_KERNEL_ABI ? &description : NULL;
}
