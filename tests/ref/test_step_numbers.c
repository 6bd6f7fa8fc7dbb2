/* Numbers of a step that the reference computes by itself, without a word from core: how many labels count, and how
 * wide a drawn weight is. */
#include <criterion/criterion.h>
#include <math.h>

#include "ref/engine.h"

/* Two steps of two microbatches [2,3].  Position 0 of a row never counts, whatever its label. */
Test(ref_step_numbers, labels_behind_position_0_that_are_not_masked_count)
{
    int64_t ids[24] = {0};
    int64_t labels[24] = {
        5,    1, -100, -100, -100, 2,    /* step 0, microbatch 0: 2 */
        -100, 3, 4,    7,    5,    6,    /* microbatch 1: 4 */
        1,    2, 3,    1,    2,    -100, /* step 1, microbatch 0: 3 */
        9,    0, -100, 9,    -100, 0     /* microbatch 1: 2; the id 0 is a label as any other */
    };
    const assay_batches b = {
        .training = true, .steps = 2, .microbatches = 2, .b = 2, .s = 3, .input_ids = ids, .labels = labels};
    cr_expect_eq(ref_step_targets(&b, 0), 6);
    cr_expect_eq(ref_step_targets(&b, 1), 5);
}

Test(ref_step_numbers, a_row_of_one_token_has_no_target)
{
    int64_t ids[2] = {0}, labels[2] = {1, 1};
    const assay_batches b = {
        .steps = 1, .microbatches = 1, .b = 2, .s = 1, .input_ids = ids, .labels = labels};
    cr_expect_eq(ref_step_targets(&b, 0), 0);
}

/* std of a normal weight; std / sqrt(2L), correctly rounded, of one that writes into the residual stream. */
Test(ref_step_numbers, standard_deviation_of_a_drawn_weight)
{
    for (int64_t layers = 1; layers <= 64; layers++) {
        const assay_model_config c = {
            .num_layers = layers, .init_method_std = 0.02, .init_constant_std = 0.1};
        const struct {
            assay_init init;
            double expected;
        } table[] = {{ASSAY_INIT_NORMAL, 0.02},
                     {ASSAY_INIT_OUTPUT_NORMAL, 0.02 / sqrt(2.0 * (double)layers)},
                     {ASSAY_INIT_ONE, 0.1},
                     {ASSAY_INIT_ZERO, 0.1}};
        for (int i = 0; i < 4; i++) {
            const assay_param_spec p = {.init = table[i].init};
            cr_expect_eq(ref_init_std(&p, &c), table[i].expected, "%ld layers, kind %d", (long)layers, i);
        }
    }
}
