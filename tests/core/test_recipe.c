/* The recipes against the columns of docs/OPS.md. */
#include "core/run/options.h"
#include "tests/support/core.h"

Test(core_recipe, rows_are_the_columns_of_the_contract)
{
    static const struct {
        assay_precision precision;
        const char *name;
        assay_dtype act, state;
    } rows[] = {
        {ASSAY_PRECISION_FP64, "fp64", ASSAY_F64, ASSAY_F64},
        {ASSAY_PRECISION_FP32, "fp32", ASSAY_F32, ASSAY_F32},
        {ASSAY_PRECISION_BF16, "bf16", ASSAY_BF16, ASSAY_F32},
    };
    cr_assert_eq(sizeof rows / sizeof rows[0], ASSAY_PRECISION_COUNT);
    for (int i = 0; i < ASSAY_PRECISION_COUNT; i++) {
        const assay_recipe *r = assay_recipe_of(rows[i].precision);
        cr_expect_eq(r->precision, rows[i].precision);
        cr_expect_str_eq(r->name, rows[i].name);
        cr_expect_str_eq(assay_precision_name(rows[i].precision), rows[i].name);
        for (int c = 0; c < ASSAY_OPS_COUNT; c++) {
            const assay_op_recipe *op = &r->op[c];
            const bool keeps = c == ASSAY_OPS_ROUTER || c == ASSAY_OPS_LOSS || c == ASSAY_OPS_OPTIMIZER;
            const assay_dtype stored = keeps ? rows[i].state : rows[i].act;
            const char *name = assay_op_class_name((assay_op_class)c);
            cr_expect(op->act == stored && op->weight == stored && op->grad == stored, "%s %s", r->name,
                      name);
            cr_expect_eq(op->accumulate, rows[i].state, "%s %s", r->name, name);
            cr_expect(op->scaling == ASSAY_SCALING_NONE && op->operand_precision == 0, "%s %s", r->name,
                      name);
        }
    }
    cr_expect_str_eq(assay_precision_name(ASSAY_PRECISION_COUNT), "?");
    cr_expect_str_eq(assay_op_class_name(ASSAY_OPS_COUNT), "?");
    cr_expect_str_eq(assay_op_class_name(ASSAY_OPS_ROUTER), "router");
}

/* Every word of --precision is a recipe of that name. */
Test(core_recipe, words_of_the_option_are_recipes)
{
    for (const assay_option_row *row = assay_train_option_table(); row->name != NULL; row++) {
        if (strcmp(row->name, "precision") != 0)
            continue;
        int n = 0;
        for (; row->words[n] != NULL; n++)
            cr_expect_str_eq(row->words[n], assay_precision_name((assay_precision)n));
        cr_expect_eq(n, ASSAY_PRECISION_COUNT);
        return;
    }
    cr_assert_fail("no option precision");
}
