/* The recipes. */
#include "core/model/recipe.h"

/* Activations, weights and gradients in one type, sums in another. */
#define UNSCALED(stored, sums)                                                                               \
    {                                                                                                        \
        .act = ASSAY_##stored, .weight = ASSAY_##stored, .grad = ASSAY_##stored, .accumulate = ASSAY_##sums  \
    }
#define RECIPE(PRECISION, word, stored, state)                                                               \
    [ASSAY_PRECISION_##PRECISION] = {.precision = ASSAY_PRECISION_##PRECISION,                               \
                                     .name = word,                                                           \
                                     .op = {                                                                 \
                                         [ASSAY_OPS_LINEAR] = UNSCALED(stored, state),                       \
                                         [ASSAY_OPS_ATTENTION] = UNSCALED(stored, state),                    \
                                         [ASSAY_OPS_ELEMENTWISE] = UNSCALED(stored, state),                  \
                                         [ASSAY_OPS_ROUTER] = UNSCALED(state, state),                        \
                                         [ASSAY_OPS_LOSS] = UNSCALED(state, state),                          \
                                         [ASSAY_OPS_OPTIMIZER] = UNSCALED(state, state),                     \
                                     }}

static const assay_recipe recipes[ASSAY_PRECISION_COUNT] = {
    RECIPE(FP64, "fp64", F64, F64), /* the reference only */
    RECIPE(FP32, "fp32", F32, F32),
    RECIPE(BF16, "bf16", BF16, F32),
};

const assay_recipe *assay_recipe_of(assay_precision precision)
{
    return &recipes[precision];
}

assay_status assay_recipe_check_plain(const assay_recipe *r, const char *engine)
{
    for (int i = 0; i < ASSAY_OPS_COUNT; i++) {
        const assay_op_recipe *op = &r->op[i];
        ASSAY_CHECK(op->scaling == ASSAY_SCALING_NONE && op->operand_precision == 0, ASSAY_UNSUPPORTED,
                    "%s: recipe %s: %s: expected no scales and whole operands, found scaling %d and operands "
                    "of %d bits",
                    engine, r->name, assay_op_class_name((assay_op_class)i), (int)op->scaling,
                    op->operand_precision);
    }
    return ASSAY_OK;
}

const char *assay_precision_name(assay_precision p)
{
    const int64_t index = (int64_t)p;
    return index >= 0 && index < ASSAY_PRECISION_COUNT ? recipes[index].name : "?";
}

const char *assay_op_class_name(assay_op_class which)
{
    static const char *const names[ASSAY_OPS_COUNT] = {"linear", "attention", "elementwise",
                                                       "router", "loss",      "optimizer"};
    const int64_t index = (int64_t)which;
    return index >= 0 && index < ASSAY_OPS_COUNT ? names[index] : "?";
}
