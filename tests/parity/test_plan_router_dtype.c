/* Laws: what a router's logits are stored in is planned (docs/OPS.md 9.2): a record of gating, or its attribute, in another dtype
 * than moe_router_dtype says is named there. */
#include "tests/support/plan_faults.h"

#define GATING M1 "router.gating"

/* fp32: F32 in every precision. */
static const fault wide[] = {
    {"as_bf16", "linear_fwd", GATING, "y", "", false, 1, 0, 1, NULL},
    {"as_bf16", "linear_fwd", GATING, "y", "", false, 0, 1, 0, NULL},
    {"attr", "linear_fwd", GATING, "dtype", "\"BF16\"", false, 0, 0, 1, NULL},
};

/* model: what activations are stored in. */
static const fault narrow[] = {
    {"as_f32", "linear_fwd", GATING, "y", "", false, 1, 0, 1, NULL},
    {"as_f32", "linear_fwd", GATING, "y", "", false, 0, 1, 0, NULL},
    {"attr", "linear_fwd", GATING, "dtype", "\"F32\"", false, 0, 0, 1, NULL},
};

static void expect_all(const char *layout, assay_precision precision, const fault *faults, size_t n)
{
    expect_faults(plan_model, layout, precision, 0.0, ASSAY_DISPATCHER_ALLTOALL, faults, n);
}

Test(plan_router_dtype, logits_in_fp32)
{
    expect_all("tp2,sp,ep2", ASSAY_PRECISION_FP32, TABLE(wide));
    expect_all("tp2,sp,ep2", ASSAY_PRECISION_BF16, TABLE(wide));
}

Test(plan_router_dtype, logits_as_activations)
{
    expect_all("tp2,sp,ep2 model_router", ASSAY_PRECISION_FP32, TABLE(wide));
    expect_all("tp2,sp,ep2 model_router", ASSAY_PRECISION_BF16, TABLE(narrow));
}

/* Random logits are F32 in either. */
Test(plan_router_dtype, random_logits_stay_f32)
{
    static const fault forced[] = {
        {"as_bf16", "random_logits", M1 "router.random_logits", "y", "", false, 1, 0, 1, NULL},
    };
    expect_all("tp2,sp,ep2 forced model_router", ASSAY_PRECISION_BF16, TABLE(forced));
    expect_all("tp2,sp,ep2 forced model_router", ASSAY_PRECISION_BF16, TABLE(narrow));
}
