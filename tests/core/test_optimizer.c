/* Optimizer states by name, and what a rank owns of a parameter. */
#include "core/model/optimizer.h"
#include "tests/support/core.h"

Test(core_optimizer, states_have_names)
{
    const char *const *names = NULL;
    cr_assert_eq(assay_optimizer_states(ASSAY_OPTIMIZER_ADAM, &names), 2);
    cr_expect_str_eq(names[0], "exp_avg");
    cr_expect_str_eq(names[1], "exp_avg_sq");
    cr_expect_str_eq(assay_optimizer_name(ASSAY_OPTIMIZER_ADAM), "adam");
    cr_expect_str_eq(assay_optimizer_name(ASSAY_OPTIMIZER_COUNT), "?");
}

/* Whatever the ownership, the ranges of the members ascend and tile the parameter. */
Test(core_optimizer, owned_ranges_tile_a_parameter)
{
    static const int64_t counts[] = {0, 1, 3, 7, 64};
    for (int matrix = 0; matrix < 2; matrix++)
        for (int members = 1; members <= 5; members++)
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
                for (int64_t index = 0; index < 7; index++) {
                    const assay_param_spec p = {.ownership = matrix ? ASSAY_OWN_MATRIX : ASSAY_OWN_FLAT};
                    int64_t next = 0, owners = 0;
                    for (int m = 0; m < members; m++) {
                        int64_t first, length;
                        assay_param_owned_range(&p, index, counts[c], members, m, &first, &length);
                        cr_assert_eq(first, next);
                        cr_assert(length >= 0);
                        next += length;
                        owners += length > 0;
                    }
                    cr_assert_eq(next, counts[c]);
                    cr_assert(!matrix || owners == (counts[c] > 0));
                }
}
